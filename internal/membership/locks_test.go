package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/remoting"
	"pgregory.net/rapid"
)

func queues(topic string, n int) []remoting.MessageQueue {
	qs := make([]remoting.MessageQueue, n)
	for i := range qs {
		qs[i] = remoting.MessageQueue{Topic: topic, BrokerName: "b", QueueID: int32(i)}
	}
	return qs
}

func newTestLocks(ct *clock, maxBytes int64) *Locks {
	o := Options{Now: ct.Now, MaxLockBytes: maxBytes}.withDefaults()
	return newLocks(&o)
}

func TestLocks(t *testing.T) {
	ct := newClock()
	l := newTestLocks(ct, 0)
	try := func(what, group, client string, ids []int32, want ...int32) {
		t.Helper()
		b := &remoting.LockBatch{ConsumerGroup: group, ClientID: client}
		for _, id := range ids {
			b.Queues = append(b.Queues, remoting.MessageQueue{Topic: "T", BrokerName: "b", QueueID: id})
		}
		qs, err := l.TryLock(b)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, q := range qs {
			got = append(got, q.QueueID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v granted, want %v", what, got, want)
		}
	}
	has := func(what, group string, want bool) {
		t.Helper()
		if l.HasLocks(group) != want {
			t.Errorf("%s: HasLocks is %v", what, !want)
		}
	}
	has("at first", "G", false)
	try("free ones", "G", "x", []int32{0, 1}, 0, 1)
	has("locked", "G", true)
	has("locked by another group", "H", false)
	try("another client", "G", "y", []int32{0, 1, 2}, 2)
	try("another group", "H", "y", []int32{0}, 0)
	try("own ones", "G", "x", []int32{0, 1, 2}, 0, 1)
	ct.add(40 * time.Second)
	try("refresh", "G", "x", []int32{0}, 0)
	ct.add(20 * time.Second)
	try("not yet expired", "G", "y", []int32{1})
	ct.add(time.Millisecond)
	try("expired, and refreshed", "G", "y", []int32{0, 1}, 1)
	if err := l.Unlock(&remoting.LockBatch{ConsumerGroup: "G", ClientID: "y", Queues: queues("T", 3)}); err != nil {
		t.Fatal(err)
	}
	has("x holds 0", "G", true)
	try("given back", "G", "x", []int32{0, 1, 2}, 0, 1, 2)
	ct.add(time.Minute)
	has("at the last moment", "G", true)
	has("H had no luck", "H", false)
	ct.add(time.Millisecond)
	has("expired", "G", false)
	if n, _ := l.stats(); n != 4 {
		t.Errorf("%d locks kept", n)
	}
	l.Expire()
	if n, bytes := l.stats(); n != 0 || bytes != 0 || len(l.mu.groups) != 0 {
		t.Errorf("%d locks kept, %d bytes", n, bytes)
	}
}

func TestLocksOfOtherBrokers(t *testing.T) {
	l := newTestLocks(newClock(), 0)
	for _, broker := range []string{"b", "c", ""} {
		q := remoting.MessageQueue{Topic: "T", BrokerName: broker}
		if got, err := l.TryLock(&remoting.LockBatch{ConsumerGroup: "G", ClientID: broker + "x", Queues: []remoting.MessageQueue{q}}); err != nil || len(got) != 1 {
			t.Errorf("broker %q: %v, %v", broker, got, err)
		}
	}
}

func TestLockBounds(t *testing.T) {
	long := strings.Repeat("x", MaxNameLen+1)
	q := queues("T", 1)
	tests := []struct {
		name  string
		batch remoting.LockBatch
		field string
	}{
		{"fine", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: q}, "<nil>"},
		{"no queues", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x"}, "<nil>"},
		{"no group", remoting.LockBatch{ClientID: "x", Queues: q}, "consumerGroup"},
		{"group too long", remoting.LockBatch{ConsumerGroup: long, ClientID: "x", Queues: q}, "consumerGroup"},
		{"no client", remoting.LockBatch{ConsumerGroup: "G", Queues: q}, "clientId"},
		{"client too long", remoting.LockBatch{ConsumerGroup: "G", ClientID: strings.Repeat("x", MaxClientIDLen+1), Queues: q}, "clientId"},
		{"no topic", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: queues("", 1)}, "mqSet.topic"},
		{"topic too long", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: queues(long, 1)}, "mqSet.topic"},
		{"broker too long", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: []remoting.MessageQueue{{Topic: "T", BrokerName: long}}}, "mqSet.brokerName"},
		{"many queues", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: queues("T", MaxLockBatch)}, "<nil>"},
		{"too many queues", remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: queues("T", MaxLockBatch+1)}, "mqSet"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newTestLocks(newClock(), 0)
			got, err := l.TryLock(&tt.batch)
			if fieldOf(err) != tt.field || err == nil && len(got) != len(tt.batch.Queues) {
				t.Errorf("TryLock: %d granted, %v", len(got), err)
			}
			if err := l.Unlock(&tt.batch); fieldOf(err) != tt.field {
				t.Errorf("Unlock: %v", err)
			}
			if n, bytes := l.stats(); n != 0 || bytes != 0 {
				t.Errorf("%d locks are left, %d bytes", n, bytes)
			}
		})
	}
}

// TestLocksFull: when memory is used up nothing more is granted, what is held
// can be kept, and expired locks make room.
func TestLocksFull(t *testing.T) {
	ct := newClock()
	l := newTestLocks(ct, 100*1024)
	batch := func(group string) *remoting.LockBatch {
		return &remoting.LockBatch{ConsumerGroup: group, ClientID: "x", Queues: queues("T", 1000)}
	}
	first, err := l.TryLock(batch("G"))
	if err != nil || len(first) == 0 || len(first) == 1000 {
		t.Fatalf("%d granted, %v", len(first), err)
	}
	if _, bytes := l.stats(); bytes > l.max {
		t.Errorf("%d bytes, at most %d", bytes, l.max)
	}
	if again, _ := l.TryLock(batch("G")); len(again) != len(first) {
		t.Errorf("%d granted, then %d", len(first), len(again))
	}
	if other, _ := l.TryLock(batch("H")); len(other) != 0 {
		t.Errorf("%d granted beyond the bound", len(other))
	}
	ct.add(time.Minute + 1)
	other, _ := l.TryLock(batch("H"))
	if len(other) != len(first) {
		t.Errorf("%d granted after expiry, %d before", len(other), len(first))
	}
	if n, bytes := l.stats(); n != len(other) || bytes > l.max {
		t.Errorf("%d locks, %d bytes", n, bytes)
	}
}

// TestLocksFullOfOwn: the locks that make room may be all of the group that
// needs it.
func TestLocksFullOfOwn(t *testing.T) {
	ct := newClock()
	l := newTestLocks(ct, 100*1024)
	if _, err := l.TryLock(&remoting.LockBatch{ConsumerGroup: "G", ClientID: "x", Queues: queues("T", 1000)}); err != nil {
		t.Fatal(err)
	}
	ct.add(time.Minute + 1)
	got, err := l.TryLock(&remoting.LockBatch{ConsumerGroup: "G", ClientID: "y", Queues: queues("U", 5)})
	if err != nil || len(got) != 5 {
		t.Errorf("%d granted, %v", len(got), err)
	}
	if n, _ := l.stats(); n != 5 || !l.HasLocks("G") {
		t.Errorf("%d locks, HasLocks is %v", n, l.HasLocks("G"))
	}
}

// TestLocksModel compares with a list of who asked for what when.
func TestLocksModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type key struct {
			group string
			queue int32
		}
		type held struct {
			client string
			at     time.Time
		}
		ct := newClock()
		l := newTestLocks(ct, 0)
		model := make(map[key]held)
		alive := func(h held) bool { return ct.Now().Sub(h.at) <= time.Minute }
		draw := func(t *rapid.T) *remoting.LockBatch {
			b := &remoting.LockBatch{
				ConsumerGroup: fmt.Sprint("G", rapid.IntRange(0, 2).Draw(t, "group")), ClientID: fmt.Sprint("c", rapid.IntRange(0, 2).Draw(t, "client")),
			}
			for _, id := range rapid.SliceOfN(rapid.Int32Range(0, 4), 0, 6).Draw(t, "queues") {
				b.Queues = append(b.Queues, remoting.MessageQueue{Topic: "T", BrokerName: "b", QueueID: id})
			}
			return b
		}
		t.Repeat(map[string]func(*rapid.T){
			"lock": func(t *rapid.T) {
				b := draw(t)
				var want []remoting.MessageQueue
				for _, q := range b.Queues {
					k := key{b.ConsumerGroup, q.QueueID}
					if h, ok := model[k]; !ok || h.client == b.ClientID || !alive(h) {
						model[k] = held{b.ClientID, ct.Now()}
						want = append(want, q)
					}
				}
				got, err := l.TryLock(b)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("granted %v, %v, want %v", got, err, want)
				}
			},
			"unlock": func(t *rapid.T) {
				b := draw(t)
				for _, q := range b.Queues {
					if k := (key{b.ConsumerGroup, q.QueueID}); model[k].client == b.ClientID {
						delete(model, k)
					}
				}
				if err := l.Unlock(b); err != nil {
					t.Fatal(err)
				}
			},
			"wait":   func(t *rapid.T) { ct.add(time.Duration(rapid.IntRange(1, 70).Draw(t, "seconds")) * time.Second) },
			"expire": func(*rapid.T) { l.Expire() },
			"": func(t *rapid.T) {
				for i := range 3 {
					group, want := fmt.Sprint("G", i), false
					for k, h := range model {
						want = want || k.group == group && alive(h)
					}
					if l.HasLocks(group) != want {
						t.Fatalf("HasLocks(%s) is %v", group, !want)
					}
				}
				var bytes int64
				for group, locks := range l.mu.groups {
					bytes += lockGroupCost
					for q, k := range locks {
						bytes += costOfLock(group, &q, k.clientID)
					}
				}
				if bytes != l.mu.bytes {
					t.Fatalf("%d bytes accounted, %d there", l.mu.bytes, bytes)
				}
			},
		})
	})
}
