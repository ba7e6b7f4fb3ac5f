package membership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// TestNotification: who is sent 40, and when relative to the call that caused
// it.
func TestNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent notes
		disabled := map[string]bool{"quiet": true}
		r := New(Options{Notify: sent.send, NotifyEnabled: func(g string) bool { return !disabled[g] }})
		defer r.Close()
		a, b, c := newConn(), newConn(), newConn()
		// step does something outside of all windows and says who heard of it
		// before it returned.
		step := func(what string, do func(), want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			equalStrings(t, what+": before", sent.take())
			do()
			equalStrings(t, what, sent.take(), want...)
		}
		g := push("G", sub("T", "*", 1))
		step("join", func() { beat(t, r, a, consumers("x", g)) }, note(a, "G"))
		step("refresh", func() { beat(t, r, a, consumers("x", g)) })
		step("newer subVersion", func() { beat(t, r, a, consumers("x", push("G", sub("T", "*", 2)))) })
		step("another expression", func() { beat(t, r, a, consumers("x", push("G", sub("T", "a", 3)))) })
		step("another topic", func() { beat(t, r, a, consumers("x", push("G", sub("U", "a", 3)))) }, note(a, "G"))
		step("second", func() { beat(t, r, b, consumers("y", push("G", sub("U", "a", 3)))) }, note(a, "G"), note(b, "G"))
		step("the same client again", func() { beat(t, r, c, consumers("y", push("G", sub("U", "a", 3)))) }, note(a, "G"), note(c, "G"))
		step("replaced connection closes", func() { hangUp(r, b) })
		step("farewell", func() { r.Unregister(c, &remoting.UnregisterClientRequest{ClientID: "y", ConsumerGroup: "G"}) }, note(a, "G"))
		step("farewell again", func() { r.Unregister(c, &remoting.UnregisterClientRequest{ClientID: "y", ConsumerGroup: "G"}) })
		step("two groups", func() { beat(t, r, c, consumers("y", push("H"), push("G", sub("U", "a", 3)))) }, note(c, "H"), note(a, "G"), note(c, "G"))
		step("producer", func() { beat(t, r, c, producers("y", "G")) })
		step("close", func() { hangUp(r, c) }, note(a, "G"))

		quiet, bc := push("quiet"), push("B")
		bc.Model = remoting.Broadcasting
		step("notification disabled, broadcasting", func() { beat(t, r, a, consumers("x", quiet, bc)) })
		delete(disabled, "quiet")
		d := newConn()
		step("enabled", func() { beat(t, r, d, consumers("z", quiet, bc)) }, note(a, "quiet"), note(d, "quiet"))
		step("last one", func() { hangUp(r, a) }, note(d, "quiet"))
		step("end", func() { hangUp(r, d) })
		time.Sleep(time.Second)
		equalStrings(t, "after all", sent.take())
	})
}

// TestRejoin: a consumer that restarts within a window is told at once, since
// its group had ended.
func TestRejoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent notes
		r := New(Options{Notify: sent.send})
		defer r.Close()
		a, b := newConn(), newConn()
		beat(t, r, a, consumers("x", push("G")))
		time.Sleep(time.Second)
		hangUp(r, a)
		beat(t, r, b, consumers("x", push("G")))
		equalStrings(t, "sent", sent.take(), note(a, "G"), note(b, "G"))
	})
}

// TestExpiry: who is silent for 120 s is out at the next scan, its connection
// is closed, and the others of its groups are told.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent notes
		r := New(Options{Notify: sent.send})
		defer r.Close()
		silent, alive, half, producer := newConn(), newConn(), newConn(), newConn()
		g := push("G", sub("T", "*", 1))
		start := time.Now()
		beat(t, r, silent, consumers("silent", g))
		beat(t, r, alive, consumers("alive", g))
		beat(t, r, half, consumers("half", g, push("H"))) // H goes on, G does not
		beat(t, r, producer, producers("producer", "P"))
		if _, err := r.Locks.TryLock(&remoting.LockBatch{ConsumerGroup: "G", ClientID: "silent", Queues: queues("T", 3)}); err != nil {
			t.Fatal(err)
		}
		sent.take()
		for range 4 {
			time.Sleep(29 * time.Second)
			beat(t, r, alive, consumers("alive", g))
			beat(t, r, half, consumers("half", push("H")))
		}
		time.Sleep(time.Until(start.Add(120 * time.Second)))
		synctest.Wait()
		equalStrings(t, "members after 120 s", r.Members.ClientIDs("G"), "alive", "half", "silent")
		equalStrings(t, "producers after 120 s", r.Producers.Groups(), "P")
		if s := r.Stats(); s.Locks != 0 {
			t.Errorf("%d locks after 120 s", s.Locks)
		}
		sent.take()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		equalStrings(t, "members after 130 s", r.Members.ClientIDs("G"), "alive")
		equalStrings(t, "H after 130 s", r.Members.ClientIDs("H"), "half")
		equalStrings(t, "producers after 130 s", r.Producers.Groups())
		if got := sent.take(); len(got) == 0 || got[0] != note(alive, "G") {
			t.Errorf("told were %v", got)
		}
		for c, want := range map[*testConn]bool{silent: true, alive: false, half: false, producer: true} {
			if closed(c) != want {
				t.Errorf("connection %d is closed: %v", c.id, closed(c))
			}
		}
	})
}

func TestCloseIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		beat(t, r, newConn(), consumers("x", push("G")))
		r.Close()
		r.Close()
		time.Sleep(time.Hour)
		equalStrings(t, "members", r.Members.ClientIDs("G"), "x") // nobody scans any more
		beat(t, r, newConn(), consumers("y", push("G")))
		equalStrings(t, "members", r.Members.ClientIDs("G"), "x", "y")
	})
}
