//go:build unix

package remoting

import (
	"syscall"
	"testing"
)

// reportCPU begins to measure the CPU time of this process, which, unlike the
// time on the clock, does not depend on what else the machine does. Its result
// reports it for each operation.
func reportCPU(b *testing.B) func() {
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	start := used()
	return func() { b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op") }
}
