//go:build interop

package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

const (
	firstPort = 20000
	lastPort  = 32000
)

// ports are given out below those that the kernel picks for outgoing
// connections, so that a server can come back to its own.
var ports struct {
	sync.Mutex
	next int
}

// freePort returns a port such that the two before it and the one after are
// free as well: a broker also listens on port−2, and a Java one on port+1. No
// port is given out twice by one process.
func freePort(t *testing.T) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.next == 0 {
		ports.next = firstPort + 4*rand.IntN((lastPort-firstPort)/4)
	}
	for range (lastPort - firstPort) / 4 {
		base := ports.next
		if ports.next += 4; ports.next >= lastPort {
			ports.next = firstPort
		}
		if free(base, base+1, base+2, base+3) {
			return base + 2
		}
	}
	t.Fatal("no free ports")
	return 0
}

func free(all ...int) bool {
	for _, port := range all {
		l, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
