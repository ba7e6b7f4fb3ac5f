package remoting

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxCrowd = 32 << 10 // bytes
	// crowdTime bounds the wait for a crowd, and restTime is how long none is waited
	// for after two were in vain. A peer that sends many at once again and again,
	// and few in between, loses a twelfth of its time at worst.
	crowdTime = 2 * time.Millisecond
	restTime  = 50 * time.Millisecond
)

// A socket reads a plain TCP connection in place of net.Conn.Read, which wakes
// threads for each small request that comes, only to find little more than that
// one: on a machine with two processors this took a fifth of what a send costs
// (TestSendCPU of interop/cluster).
//
// So when a peer is seen to have many requests under way, the reader waits for a
// crowd: until half as many bytes are there as once were at the same time, which
// leaves the other half for the peer to be busy with. A peer that no longer has so
// many under way would wait in vain for its answers; that takes a moment at most,
// and happens twice.
//
// It belongs to the goroutine that reads.
type socket struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	try  func(fd uintptr) bool

	p      []byte
	n      int
	err    error
	want   int  // bytes that end a wait
	mark   int  // SO_RCVLOWAT, the bytes of which the system says that they are there
	waited bool // nothing was there

	crowd int           // bytes; 0: none is waited for
	time  time.Duration // crowdTime
	vain  int           // waits in vain since a crowd came
	rest  time.Time     // until then none is waited for

	onWait func(want int) // for tests
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
	s := &socket{conn: t, raw: raw, mark: 1, time: crowdTime}
	s.try = s.receive
	return s
}

// sawMany notes that n bytes with many requests were there at once.
func (s *socket) sawMany(n int) {
	if n = min(n/2, maxCrowd); n > s.crowd && time.Now().After(s.rest) {
		s.crowd = n
	}
}

// read is net.Conn.Read, for a crowd if there is to be one. waited says that
// there was a time when nothing came.
func (s *socket) read(p []byte, crowd bool) (n int, waited bool, err error) {
	if len(p) == 0 {
		return 0, false, nil
	}
	s.p = p
	if crowd && s.crowd > 0 {
		waited, err = s.readCrowd()
	} else {
		err = s.readAt(1)
		waited = s.waited
	}
	s.p = nil
	switch {
	case err != nil:
		return 0, waited, err
	case s.err != nil:
		return 0, waited, os.NewSyscallError("read", s.err)
	case s.n == 0:
		return 0, waited, io.EOF
	}
	return s.n, waited, nil
}

// readCrowd reads what is there, or when a crowd is. It reports whether none came
// in time; then it has waited for less.
func (s *socket) readCrowd() (none bool, err error) {
	err = s.readAt(s.crowd)
	if s.waited {
		s.conn.SetReadDeadline(time.Time{}) //nolint:errcheck // if it is closed, reading fails as well
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		if s.n >= min(s.crowd, len(s.p)) {
			s.vain = 0
		}
		return false, err
	}
	if err = s.readAt(1); !s.waited {
		if s.vain++; s.vain > 1 { // once, the peer may have been held up
			s.crowd, s.vain, s.rest = 0, 0, time.Now().Add(restTime)
		}
	}
	return true, err
}

// readAt reads what is there, or when n bytes are. If those are more than one it
// gives up after crowdTime.
func (s *socket) readAt(n int) error {
	s.want, s.waited = n, false
	return s.raw.Read(s.try)
}

// receive reads once. It reports false when nothing is there, and is called
// again when something is.
func (s *socket) receive(fd uintptr) bool {
	if s.readNow(fd) {
		return true
	}
	if s.mark != s.want {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, s.want); err == nil {
			s.mark = s.want
		} else if s.mark > 1 {
			s.err = err // waiting might never end
			return true
		}
		if s.readNow(fd) { // what has come meanwhile was not announced
			return true
		}
	}
	if s.want > 1 {
		if s.err = s.conn.SetReadDeadline(time.Now().Add(s.time)); s.err != nil {
			return true
		}
	}
	s.waited = true
	if s.onWait != nil {
		s.onWait(s.want)
	}
	return false
}

// readNow reads once and reports whether that gave bytes, the end, or an error.
func (s *socket) readNow(fd uintptr) bool {
	for {
		if s.n, s.err = unix.Read(int(fd), s.p); s.err != unix.EINTR {
			return s.err != unix.EAGAIN
		}
	}
}
