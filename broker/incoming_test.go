package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestMessageKind: as upstream tells them, the first that fits.
func TestMessageKind(t *testing.T) {
	for _, tc := range []struct {
		props []string
		want  kind
	}{
		{nil, normal},
		{[]string{"KEYS", "DELAY TRAN_MSG __SHARDINGKEY"}, normal},
		{[]string{"MODEL", "DELAY"}, normal},
		{[]string{"TRAN_MSG", "false"}, normal},
		{[]string{"TRAN_MSG", "TRUE", "DELAY", "1"}, transaction},
		{[]string{"__SHARDINGKEY", "k", "DELAY", "1"}, fifo},
		{[]string{"DELAY", "1"}, delay},
		{[]string{"TIMER_DELAY_SEC", "1"}, delay},
		{[]string{"TIMER_DELIVER_MS", "1"}, delay},
		{[]string{"__STARTDELIVERTIME", "1"}, delay},
	} {
		props := message.NewProperties(tc.props...).Reserved()
		if got := messageKind(&props); got != tc.want {
			t.Errorf("%q: %v, want %v", tc.props, got, tc.want)
		}
	}
}

// TestDelayOffsets: 28 and 45 tell how far each delay level has come.
func TestDelayOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(o *Options) { o.Store.DelayLevels = message.DefaultDelayLevels })
		r.createTopic("T", 1)
		offsets := func() map[int32]int64 {
			return body(t, r.ok(remoting.ReqGetAllDelayOffset, nil, nil), new(remoting.DelayOffsets)).OffsetTable
		}
		if got := offsets(); len(got) != 0 {
			t.Errorf("before any message: %v", got)
		}
		for _, level := range []string{"1", "1", "18"} {
			r.send("T", 0, "m", "DELAY", level)
		}
		time.Sleep(2 * time.Second) // level 1 is a second, level 18 much longer
		synctest.Wait()
		if d := cmp.Diff(map[int32]int64{1: 2, 18: 0}, offsets()); d != "" {
			t.Error(d)
		}
		table := body(t, r.ok(remoting.ReqGetBrokerRuntimeInfo, nil, nil), new(remoting.KVTable)).Table
		for name, want := range map[string]string{"scheduleMessageOffset_1": "2,2", "scheduleMessageOffset_2": "", "scheduleMessageOffset_18": "0,1"} {
			if table[name] != want {
				t.Errorf("%s=%q, want %q", name, table[name], want)
			}
		}
	})
}

// TestCountedNames: what is counted by names that clients choose has a bound, and
// what lies beyond is not lost for the broker's own sums.
func TestCountedNames(t *testing.T) {
	s := newStats(nil)
	for i := range maxCounted + 10 {
		s.put(fmt.Sprint("T", i), 1, 1, remoting.CodeSuccess)
		s.got(fmt.Sprint("CG", i), "T", 1, 1)
		s.pulledTo(fmt.Sprint("CG", i), "T", 0, 1)
	}
	for i := range int32(maxPulled) {
		s.pulledTo("CG0", "T", i, 1)
	}
	topics, groups := s.snapshot()
	if len(topics) != maxCounted || len(groups) != maxCounted || s.pulled.Load() != maxPulled {
		t.Errorf("%d topics, %d groups, %d offsets", len(topics), len(groups), s.pulled.Load())
	}
	if s.puts.sum.Load() != maxCounted+10 || s.gets.sum.Load() != maxCounted+10 {
		t.Errorf("%d puts, %d gets", s.puts.sum.Load(), s.gets.sum.Load())
	}
	if s.pulledUpTo("CG0", "T", 1) != 1 || s.pulledUpTo("CG", "T", 0) != 0 {
		t.Error("offsets of pulls are wrong")
	}
}

// TestMornings: the sums that tools subtract from those of now.
func TestMornings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		for day, want := range [][3]string{{"1", "0", "0"}, {"3", "1", "0"}, {"6", "3", "1"}} { // now, this morning, yesterday's
			for range day + 1 {
				r.send("T", 0, "m")
			}
			time.Sleep(time.Minute)
			table := body(t, r.ok(remoting.ReqGetBrokerRuntimeInfo, nil, nil), new(remoting.KVTable)).Table
			got := [3]string{table["msgPutTotalTodayNow"], table["msgPutTotalTodayMorning"], table["msgPutTotalYesterdayMorning"]}
			if got != want {
				t.Errorf("day %d: %v, want %v", day, got, want)
			}
			r.peer.close()
			time.Sleep(24*time.Hour - time.Minute)
			r.peer = r.newPeer("")
		}
	})
}
