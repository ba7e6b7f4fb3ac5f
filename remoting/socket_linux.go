package remoting

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quietBytes is how much has to arrive before the system says so while the
// socket is quiet.
const quietBytes = 32 << 10

// Giving way that takes longer than slowWay is for threads that use up their time:
// clients that wait for us do not. The reader keeps its own for a while then.
const (
	slowWay = 2 * time.Millisecond
	rudeFor = 50 * time.Millisecond
)

// A socket reads a plain TCP connection in place of net.Conn.Read, which wakes
// threads in vain when many small requests come: each one that arrives while
// those before it are handled wakes the thread that waits for all connections,
// only for it to learn that nobody waits for this one. On a machine with two
// processors that took a tenth of what a send costs (TestSendCPU of
// interop/cluster).
//
// So a busy socket is quiet until its reader has to wait. Before it does, it lets
// other threads of the machine go first: where clients share the processors with
// us, they have more to say then, and nobody has to wake anybody.
//
// It belongs to the goroutine that reads.
type socket struct {
	raw syscall.RawConn
	try func(fd uintptr) bool

	p      []byte
	n      int
	err    error
	busy   bool
	quiet  bool // SO_RCVLOWAT is quietBytes
	loud   bool // and cannot be that
	waited bool
	rude   time.Time // until then no way is given
}

// newSocket returns nil for what is no TCP connection.
func newSocket(src io.Reader) *socket {
	t, ok := src.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{raw: raw}
	s.try = s.receive
	return s
}

// read is net.Conn.Read. busy says that many requests come one after the other;
// waited, that there was a time when none was there.
func (s *socket) read(p []byte, busy bool) (n int, waited bool, err error) {
	if len(p) == 0 {
		return 0, false, nil
	}
	s.p, s.busy, s.waited = p, busy, false
	err = s.raw.Read(s.try)
	s.p = nil
	switch {
	case err != nil:
		return 0, s.waited, err
	case s.err != nil:
		return 0, s.waited, os.NewSyscallError("read", s.err)
	case s.n == 0:
		return 0, s.waited, io.EOF
	}
	return s.n, s.waited, nil
}

// receive reads once. It reports false when nothing is there, and is called
// again when something is.
func (s *socket) receive(fd uintptr) bool {
	if s.busy && !s.quiet && !s.loud {
		s.quiet = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, quietBytes) == nil
		s.loud = !s.quiet
	}
	if s.readNow(fd) {
		return true
	}
	if s.busy && s.giveWay() && s.readNow(fd) {
		return true
	}
	if s.quiet {
		if s.err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1); s.err != nil {
			return true // waiting might never end
		}
		s.quiet = false
		if s.readNow(fd) { // what has come meanwhile was not announced
			return true
		}
	}
	s.busy, s.waited = false, true
	return false
}

// giveWay lets other threads of the machine go first, and reports whether it did.
func (s *socket) giveWay() bool {
	before := time.Now()
	if before.Before(s.rude) {
		return false
	}
	// Not by way of the scheduler, which would give our processor away.
	syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) //nolint:errcheck // never fails
	if after := time.Now(); after.Sub(before) > slowWay {
		s.rude = after.Add(rudeFor)
	}
	return true
}

// readNow reads once and reports whether that gave bytes, the end, or an error.
func (s *socket) readNow(fd uintptr) bool {
	for {
		if s.n, s.err = unix.Read(int(fd), s.p); s.err != unix.EINTR {
			return s.err != unix.EAGAIN
		}
	}
}
