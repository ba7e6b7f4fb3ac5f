package membership

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// oneConn is a group table in which every group has one connection.
func oneConn() (*testConn, func(string) []Conn) {
	c := newConn()
	return c, func(string) []Conn { return []Conn{c} }
}

func (n *notifier) pending() (groups, windows int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.mu.again), len(n.mu.queue)
}

func TestNotifierWindow(t *testing.T) {
	const window = 100 * time.Millisecond
	tests := []struct {
		name    string
		changes []time.Duration // since the start
		sent    []time.Duration
	}{
		{"one", []time.Duration{0}, []time.Duration{0}},
		{"two", []time.Duration{0, 10}, []time.Duration{0, 100}},
		{"many in a window", []time.Duration{0, 0, 1, 50, 99}, []time.Duration{0, 100}},
		{"slow", []time.Duration{0, 150, 300}, []time.Duration{0, 150, 300}},
		{"a window follows what was put off", []time.Duration{0, 10, 150, 160}, []time.Duration{0, 100, 200}},
		{"a storm", slices.Repeat([]time.Duration{0, 20, 40, 60, 80, 120, 140, 160, 180, 220, 240}, 3), []time.Duration{0, 100, 200, 300}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var mu sync.Mutex
				var list []time.Duration
				sent := func() []time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return slices.Clone(list)
				}
				_, conns := oneConn()
				n := newNotifier(window, conns, func(Conn, string) {
					mu.Lock()
					defer mu.Unlock()
					list = append(list, time.Since(start).Round(time.Millisecond))
				})
				slices.Sort(tt.changes)
				for i, at := range tt.changes {
					time.Sleep(time.Until(start.Add(at * time.Millisecond)))
					before := len(sent())
					n.notify("G")
					// The first change of a window is told before notify returns.
					first := i == 0 || tt.changes[i-1] != at
					if told := len(sent()) > before; told != (first && slices.Contains(tt.sent, at)) {
						t.Errorf("change at %d ms: told at once: %v", at, told)
					}
					synctest.Wait()
				}
				time.Sleep(time.Second)
				want := slices.Clone(tt.sent)
				for i := range want {
					want[i] *= time.Millisecond
				}
				if got := sent(); !slices.Equal(got, want) {
					t.Errorf("sent at %v, want %v", got, want)
				}
				if groups, windows := n.pending(); groups != 0 || windows != 0 {
					t.Errorf("left are %d groups, %d windows", groups, windows)
				}
				n.close()
				n.notify("G")
				if len(sent()) != len(want) {
					t.Error("sent after close")
				}
				n.close()
			})
		})
	}
}

// TestNotifierGroups: groups do not wait for each other's windows.
func TestNotifierGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent notes
		c, conns := oneConn()
		n := newNotifier(100*time.Millisecond, conns, sent.send)
		defer n.close()
		n.notify("G")
		n.notify("G")
		time.Sleep(50 * time.Millisecond)
		n.notify("H")
		n.notify("H")
		n.notify("I")
		equalStrings(t, "at once", sent.take(), note(c, "G"), note(c, "H"), note(c, "I"))
		time.Sleep(51 * time.Millisecond)
		equalStrings(t, "at the end of G's window", sent.take(), note(c, "G"))
		time.Sleep(50 * time.Millisecond)
		equalStrings(t, "at the end of H's window", sent.take(), note(c, "H"))
		time.Sleep(time.Second)
		equalStrings(t, "later", sent.take())
	})
}

// TestNotifierAsksLate: whoever is in the group at the end of the window is
// told, not whoever was in it at the change.
func TestNotifierAsksLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent notes
		a, b := newConn(), newConn()
		var conns atomic.Pointer[[]Conn]
		conns.Store(&[]Conn{a})
		n := newNotifier(100*time.Millisecond, func(string) []Conn { return *conns.Load() }, sent.send)
		defer n.close()
		n.notify("G")
		n.notify("G")
		conns.Store(&[]Conn{b})
		time.Sleep(time.Second)
		equalStrings(t, "sent", sent.take(), note(a, "G"), note(b, "G"))
		conns.Store(new([]Conn))
		n.notify("G")
		conns.Store(&[]Conn{a})
		n.notify("G") // a group without connections has no window
		equalStrings(t, "sent", sent.take(), note(a, "G"))
	})
}

// TestNotifierFull: beyond its bound the notifier puts nothing off.
func TestNotifierFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		_, conns := oneConn()
		n := newNotifier(100*time.Millisecond, conns, func(Conn, string) { sent.Add(1) })
		defer n.close()
		n.max = 10
		for i := range 20 {
			for range 3 {
				n.notify(fmt.Sprint("G", i))
			}
		}
		if got := sent.Load(); got != 10+10*3 {
			t.Errorf("%d sent at once", got)
		}
		if groups, windows := n.pending(); groups != 10 || windows != 10 {
			t.Errorf("%d groups and %d windows are kept", groups, windows)
		}
		time.Sleep(time.Second)
		if got := sent.Load(); got != 10*2+10*3 {
			t.Errorf("%d sent in all", got)
		}
	})
}

// TestNotifierCloseWaits: close returns when nothing is being sent any more.
func TestNotifierCloseWaits(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("at the end of a window: ", late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sends atomic.Int64
				sending, release := make(chan struct{}), make(chan struct{})
				_, conns := oneConn()
				n := newNotifier(100*time.Millisecond, conns, func(Conn, string) {
					if first := sends.Add(1) == 1; first != late {
						close(sending)
						<-release
					}
				})
				go func() {
					n.notify("G")
					n.notify("G")
				}()
				<-sending
				closed := make(chan struct{})
				go func() {
					n.close()
					close(closed)
				}()
				synctest.Wait()
				select {
				case <-closed:
					t.Error("close has not waited")
				default:
				}
				close(release)
				<-closed
			})
		})
	}
}
