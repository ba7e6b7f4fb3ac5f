//go:build amd64 || arm64

package plugfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// ErrUnavailable says that this machine, or this user, cannot have the file
// system. The error that wraps it names the reason.
var ErrUnavailable = errors.New("no FUSE file system here")

// daemonVariable holds the mount point in the environment of the serving
// process.
const daemonVariable = "GANTRY_TEST_PLUGFS"

// Daemon serves the file system and ends the process when it was started by
// Start; otherwise it does nothing. TestMain calls it before anything else.
func Daemon() {
	dir := os.Getenv(daemonVariable)
	if dir == "" {
		return
	}
	d := daemon{dir: dir, mem: memfs.NewCrashable(1)}
	err := d.plug()
	d.answer(err)
	if err != nil {
		os.Exit(1)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		d.answer(d.command(lines.Text()))
	}
	_ = d.unplug() // the tests are over, or died
	os.Exit(0)
}

// daemon is the serving process.
type daemon struct {
	dir  string
	mem  *memfs.FS // what is or will be mounted
	srv  *server   // nil while the plug is pulled and nothing is mounted
	next *memfs.FS // what the power cut left
}

func (d *daemon) answer(err error) {
	if err == nil {
		fmt.Println("ok")
	} else {
		fmt.Println("error:", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

func (d *daemon) command(line string) error {
	var policy, seed, errno int64
	switch word, _, _ := strings.Cut(line, " "); word {
	case "pull":
		if _, err := fmt.Sscanf(line, "pull %d %d", &policy, &seed); err != nil {
			return err
		}
		d.next = d.mem.CrashClone(memfs.Policy(policy), seed)
		d.srv.kill()
		return nil
	case "plug":
		if err := d.unplug(); err != nil {
			return err
		}
		if d.next != nil {
			d.mem, d.next = d.next, nil
		}
		return d.plug()
	case "freeze":
		if _, err := fmt.Sscanf(line, "freeze %d", &errno); err != nil {
			return err
		}
		d.srv.freeze(syscall.Errno(errno))
		return nil
	}
	return fmt.Errorf("unknown command %q", line)
}

func (d *daemon) plug() (err error) {
	d.srv, err = mount(d.dir, d.mem)
	return err
}

// unplug unmounts. Who still has files open keeps them, without effect.
func (d *daemon) unplug() error {
	if d.srv == nil {
		return nil
	}
	d.srv.kill()
	if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", d.dir, err)
	}
	d.srv = nil
	return nil
}

// FS is a mounted file system with a plug, served by another process. One
// goroutine uses it.
type FS struct {
	dir   string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	said  strings.Builder
	lines chan string
}

// Start mounts an empty file system at dir, an existing empty directory. When
// that cannot be done on this machine the error wraps ErrUnavailable.
func Start(dir string) (*FS, error) {
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	} else if err := f.Close(); err != nil {
		return nil, err
	}
	p := &FS{dir: dir, cmd: exec.Command(os.Args[0]), lines: make(chan string)}
	p.cmd.Env = append(os.Environ(), daemonVariable+"="+dir)
	p.cmd.Stderr = &p.said
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewScanner(out)
	go func() {
		defer close(p.lines)
		for p.out.Scan() {
			p.lines <- p.out.Text()
		}
	}()
	if err := p.reply(); err != nil {
		_ = p.Stop() // the first error is the one that matters
		if os.Geteuid() != 0 || strings.Contains(err.Error(), "operation not permitted") {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, err
	}
	return p, nil
}

// Dir is the mount point.
func (p *FS) Dir() string { return p.dir }

// replyTime bounds the wait for the serving process.
const replyTime = 30 * time.Second

func (p *FS) reply() error {
	select {
	case line, ok := <-p.lines:
		switch {
		case line == "ok":
			return nil
		case !ok:
			return fmt.Errorf("the process that serves %s ended: %s", p.dir, p.said.String())
		}
		return fmt.Errorf("serving %s: %s", p.dir, line)
	case <-time.After(replyTime):
		return fmt.Errorf("the process that serves %s does not answer", p.dir)
	}
}

func (p *FS) ask(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return err
	}
	return p.reply()
}

// Pull cuts the power: what is durable stays, what else survives the policy
// decides, and every call on the file system fails from now on. The moment of
// the cut lies inside the call.
func (p *FS) Pull(policy memfs.Policy, seed int64) error {
	return p.ask("pull %d %d", policy, seed)
}

// Plug mounts what the last power cut left at the same place. Who has files of
// before open keeps them and gets errors from them. Without a cut it mounts
// what there is again, without the kernel's page cache.
func (p *FS) Plug() error { return p.ask("plug") }

// Freeze makes every change fail with errno, as on a disk that went read-only
// under its users; 0 ends it.
func (p *FS) Freeze(errno syscall.Errno) error { return p.ask("freeze %d", errno) }

// Stop unmounts and ends the serving process.
func (p *FS) Stop() error {
	if err := p.in.Close(); err != nil {
		return err
	}
	for range p.lines { // so that its reader ends
	}
	return p.cmd.Wait()
}
