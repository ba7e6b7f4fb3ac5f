//go:build amd64 || arm64

package gantry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/plugfs"
	"github.com/gantrymq/gantry/message"
)

func TestMain(m *testing.M) {
	plugfs.Daemon()
	os.Exit(m.Run())
}

// powerSupply is a mounted file system whose power can be cut.
type powerSupply interface {
	dir() string
	// cut takes the power away; every call fails afterwards.
	cut(rng *rand.Rand) (string, error)
	// restore mounts what is left; nobody has files open.
	restore() error
}

// plugged is a file system that loses what was not synced.
type plugged struct{ fs *plugfs.FS }

func newPlugged(t *testing.T) plugged {
	t.Helper()
	p, err := plugfs.Start(t.TempDir())
	if errors.Is(err, plugfs.ErrUnavailable) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, p.Stop()) })
	return plugged{p}
}

func (p plugged) dir() string    { return p.fs.Dir() }
func (p plugged) restore() error { return p.fs.Plug() }

func (p plugged) cut(rng *rand.Rand) (string, error) {
	policies := memfs.Policies()
	policy, seed := policies[rng.IntN(len(policies))], rng.Int64N(1<<30)
	return fmt.Sprintf("%v, seed %d", policy, seed), p.fs.Pull(policy, seed)
}

// ext4 is a real file system in a file. Its shutdown call, made for such
// tests, keeps everything from the disk that is not on it yet, the journal
// among it.
type ext4 struct {
	t     *testing.T
	image string
	mount string
}

func newExt4(t *testing.T) *ext4 {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	e := &ext4{t: t, image: filepath.Join(t.TempDir(), "image"), mount: t.TempDir()}
	must(t, os.WriteFile(e.image, nil, 0o600))
	must(t, os.Truncate(e.image, 96<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", e.image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", e.image, e.mount).CombinedOutput(); err != nil {
		t.Skipf("no loop device, or no ext4: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", e.mount).Run() }) // it may be unmounted already
	return e
}

func (e *ext4) dir() string { return e.mount }

func (e *ext4) cut(*rand.Rand) (string, error) {
	const shutdown, noLogFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	d, err := os.Open(e.mount)
	if err != nil {
		return "", err
	}
	defer d.Close()
	return "ext4 shutdown", unix.IoctlSetPointerInt(int(d.Fd()), shutdown, noLogFlush)
}

func (e *ext4) restore() error {
	if out, err := exec.Command("umount", e.mount).CombinedOutput(); err != nil {
		return fmt.Errorf("umount: %w: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", e.image, e.mount).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return nil
}

// TestPlug cuts the power under a store that works on a file system of the
// operating system, with true mappings and msync, at random moments, and holds
// what is left to what was promised. -crash.long makes it many times.
func TestPlug(t *testing.T) {
	rounds := map[string]int{"plugfs": 6, "ext4": 2}
	if *crashLong {
		rounds = map[string]int{"plugfs": 150, "ext4": 100}
	}
	t.Run("plugfs", func(t *testing.T) { t.Parallel(); cutPower(t, newPlugged(t), rounds["plugfs"]) })
	t.Run("ext4", func(t *testing.T) { t.Parallel(); cutPower(t, newExt4(t), rounds["ext4"]) })
}

func cutPower(t *testing.T, power powerSupply, rounds int) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(uint64(seed), 11))
	cuts, acked, lost := 0, 0, 0
	for cuts < rounds {
		dir := filepath.Join(power.dir(), fmt.Sprintf("store%d", cuts))
		var l ledger
		for range min(10, rounds-cuts) {
			opts := killOptions(killKinds[rng.IntN(len(killKinds))])
			had := len(l.now.acked)
			what := underPower(t, power, rng, dir, opts, &l)
			must(t, power.restore())
			cuts++
			acked += len(l.now.acked) - had
			lost += verifyCut(t, dir, opts, &l, what)
			if t.Failed() {
				return
			}
		}
		must(t, os.RemoveAll(dir))
	}
	t.Logf("%d power cuts; of %d acknowledged messages %d, all of them asynchronous, were lost with the end of the log", cuts, acked, lost)
}

// underPower puts messages until the power goes at some moment.
func underPower(t *testing.T, power powerSupply, rng *rand.Rand, dir string, opts *Options, l *ledger) string {
	t.Helper()
	ctx := context.Background()
	enough := make(chan struct{}, 1)
	limit := rng.IntN(120)
	moment := time.Duration(rng.IntN(30)) * time.Millisecond
	var loaders sync.WaitGroup
	var s *Store
	var mu sync.Mutex
	acks := 0
	loaders.Go(func() { // opening is part of what the power may be cut under
		opened, err := Open(ctx, dir, opts)
		if err != nil {
			select {
			case enough <- struct{}{}:
			default:
			}
			return // without power, or it is an error that the next opening finds
		}
		s = opened
		var putters sync.WaitGroup
		for p := range 3 {
			putters.Go(func() {
				for {
					n := l.next()
					m := &message.Message{
						Topic: "TopicTest", QueueID: int32(p), Body: []byte(crashBody(n)),
						Properties: message.NewProperties("KEYS", crashKey(n), "TAGS", "a"),
					}
					res, err := s.Put(ctx, m)
					if err != nil {
						return
					}
					l.ack(res, false, n)
					mu.Lock()
					acks++
					if acks == limit {
						enough <- struct{}{}
					}
					mu.Unlock()
				}
			})
		}
		putters.Wait()
		s.abandon()
	})
	select {
	case <-enough:
	case <-time.After(moment): // a random moment, before or among the puts
	}
	before := l.claim()
	what, err := power.cut(rng)
	if err != nil {
		t.Fatalf("cut the power: %v", err)
	}
	loaders.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.acked, l.now.durable = before.acked, before.durable
	return what
}

// verifyCut opens what is left. What an asynchronous store lost is taken off
// the ledger; the number is returned.
func verifyCut(t *testing.T, dir string, opts *Options, l *ledger, what string) int {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, dir, opts)
	if err != nil {
		t.Fatalf("%s: open: %v", what, err)
	}
	st := crashState{claim: l.claim()}
	in, err := readAll(s)
	if err == nil {
		err = checkKeys(ctx, s, in)
	}
	if err == nil {
		err = st.holds(in, opts.Flush == FlushSync)
	}
	if err != nil {
		t.Errorf("%s: %v\nrecovery %+v", what, err, s.Recovery())
	}
	mustClose(t, s)
	if err := checkImage(ctx, vfs.OS(), dir, opts); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var kept []promise
	for _, p := range l.now.acked {
		if in != nil && in.messages[p.place].n == p.n {
			kept = append(kept, p)
		}
	}
	lost := len(l.now.acked) - len(kept)
	l.now.acked, l.now.durable = kept, len(kept) // closed: all of it is on the disk
	return lost
}

// TestFileSystemTurnsReadOnly: the file system goes read-only under a writing
// store, as ext4 does after an error. The store says so for good, reads go on,
// the process lives, and what was acknowledged is there afterwards.
func TestFileSystemTurnsReadOnly(t *testing.T) {
	t.Run("plugfs", func(t *testing.T) {
		t.Parallel()
		p := newPlugged(t)
		turnReadOnly(t, p, func() error { return p.fs.Freeze(syscall.EROFS) }, func() error {
			if err := p.fs.Freeze(0); err != nil {
				return err
			}
			return p.restore()
		})
	})
	t.Run("ext4", func(t *testing.T) {
		t.Parallel()
		e := newExt4(t)
		// remount,ro is refused while files are open for writing; abort is what
		// an error of the file system itself does.
		turnReadOnly(t, e, func() error { return unix.Mount("", e.mount, "", unix.MS_REMOUNT, "abort") }, e.restore)
	})
}

func turnReadOnly(t *testing.T, power powerSupply, turn, back func() error) {
	ctx := context.Background()
	for i, kind := range killKinds {
		if !*crashLong && i%3 != 0 {
			continue // the first and the last differ in everything
		}
		dir := filepath.Join(power.dir(), fmt.Sprint("store", i))
		opts := killOptions(kind)
		s, err := Open(ctx, dir, opts)
		must(t, err)
		var l ledger
		put := func() error {
			n := l.next()
			m := &message.Message{Topic: "TopicTest", Body: []byte(crashBody(n)), Properties: message.NewProperties("KEYS", crashKey(n))}
			res, err := s.Put(ctx, m)
			if err == nil {
				l.ack(res, false, n)
			}
			return err
		}
		for range 200 {
			must(t, put())
		}
		must(t, s.WaitDispatched(ctx))
		must(t, s.Sync(ctx))
		safe := l.claim()
		must(t, turn())
		// Asynchronous puts go on until a flush meets it.
		deadline := time.Now().Add(20 * time.Second)
		for err = put(); err == nil && time.Now().Before(deadline); err = put() {
		}
		if err == nil {
			t.Fatalf("%s: puts go on on a read-only file system", kind)
		}
		for range 3 {
			if err := put(); err == nil {
				t.Errorf("%s: a put after it turned read-only succeeds", kind)
			}
		}
		// A positional write that fails has changed nothing and is tried again
		// by the next put, as on a full disk; a sync is not.
		if st := s.Stats(); st.Failure == nil && (!opts.WriteWithoutMmap || st.WriteErrors == 0) {
			t.Errorf("%s: the statistics do not show it: %+v", kind, st)
		}
		in, err := readAll(s)
		if err != nil {
			t.Errorf("%s: reading on a read-only file system: %v", kind, err)
		} else if st := (crashState{claim: safe}); true {
			st.claim.tried = l.claim().tried
			if err := st.holds(in, true); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		if err := s.Close(); err == nil {
			t.Errorf("%s: closing says nothing", kind)
		}
		must(t, back())
		l.now.durable = len(safe.acked)
		verifyCut(t, dir, opts, &l, kind)
	}
}
