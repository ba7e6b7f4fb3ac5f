//go:build !unix

package broker

import "time"

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
