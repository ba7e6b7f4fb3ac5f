//go:build unix

package vfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gantrymq/gantry/internal/base"
)

// The tests run themselves as a second process, which takes the lock in the way
// that these variables say and holds it until its input ends.
const (
	envLockHow  = "VFS_TEST_LOCK_HOW"
	envLockFile = "VFS_TEST_LOCK_FILE"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(envLockHow); how != "" {
		fmt.Println(holdLock(how, os.Getenv(envLockFile)))
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holdLock answers "held", "refused" or an error.
func holdLock(how, name string) string {
	switch how {
	case "posix": // as the file lock of a Java virtual machine
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT, 0o644)
		if err != nil {
			return err.Error()
		}
		lk := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1}
		switch err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lk); err {
		case nil:
			return "held"
		case unix.EAGAIN, unix.EACCES:
			return "refused"
		default:
			return err.Error()
		}
	case "vfs":
		switch _, err := OS().Lock(name); {
		case err == nil:
			return "held"
		case errors.Is(err, base.ErrLocked):
			return "refused"
		default:
			return err.Error()
		}
	}
	return "unknown way " + how
}

// startLocker starts the second process and returns its answer.
func startLocker(t *testing.T, how, name string) (cmd *exec.Cmd, end func(), answer string) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envLockHow+"="+how, envLockFile+"="+name)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	ended := false
	end = func() {
		if !ended {
			ended = true
			stdin.Close()
			cmd.Wait()
		}
	}
	t.Cleanup(end)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	return cmd, end, strings.TrimSpace(line)
}

// TestLockAgainstProcess: the lock excludes another process in both directions,
// whether that is a Java broker or one of ours.
func TestLockAgainstProcess(t *testing.T) {
	for _, how := range []string{"posix", "vfs"} {
		t.Run(how, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "lock")
			wantLocked := func(want bool) {
				t.Helper()
				if got, err := OS().Locked(name); got != want || err != nil {
					t.Errorf("Locked: %v, %v, want %v", got, err, want)
				}
			}

			cmd, end, answer := startLocker(t, how, name)
			if answer != "held" {
				t.Fatalf("the second process says %q", answer)
			}
			wantLocked(true)
			if _, err := OS().Lock(name); !errors.Is(err, base.ErrLocked) {
				t.Errorf("Lock while the other process holds it: %v", err)
			}
			must(t, os.Chmod(name, 0o444)) // asking needs no right to write
			wantLocked(true)
			must(t, os.Chmod(name, 0o644))
			must(t, cmd.Process.Kill())
			end()
			wantLocked(false)

			l, err := OS().Lock(name)
			must(t, err)
			_, end, answer = startLocker(t, how, name)
			if answer != "refused" {
				t.Errorf("while we hold it the second process says %q", answer)
			}
			end()
			wantLocked(true)
			must(t, l.Close())
			wantLocked(false)
			_, end, answer = startLocker(t, how, name)
			if answer != "held" {
				t.Errorf("after Close the second process says %q", answer)
			}
			end()
		})
	}
}
