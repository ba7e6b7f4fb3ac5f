package gantry

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

var casesLong = flag.Bool("cases.long", false, "run the cases in their full size, with their limits of time and memory")

// TestC39ManyTopics: one message in each of 100 000 topics, with -cases.long;
// otherwise of 2 000, and without the limits that only make sense for all.
func TestC39ManyTopics(t *testing.T) {
	topics := 2000
	if *casesLong {
		topics = 100_000
	}
	// The usual limit of handles; an attempt to open more fails.
	var old syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1024, Max: old.Max}))
	defer func() { must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)) }()

	c := newSite(t, variant{os: true, async: true})
	c.opts.CommitLogFileSize, c.opts.IndexSlots, c.opts.IndexEntries = 64<<20, 50_000, 200_000
	topic := func(i int) string { return fmt.Sprintf("Topic-%06d", i) }
	body := func(i int) string { return fmt.Sprintf("message of topic %d", i) }
	handles, rss := openHandles(t), residentMemory(t)

	open := func(what string, limit time.Duration) *Store { // a limit for four processors
		limit *= time.Duration(max(1, 4/runtime.GOMAXPROCS(0)))
		start, cpu := time.Now(), processorTime(t)
		s, err := Open(context.Background(), c.dir, c.options())
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		took := time.Since(start)
		cpu = processorTime(t) - cpu
		debug.FreeOSMemory()
		h, m := openHandles(t)-handles, residentMemory(t)-rss
		t.Logf("%s: %d topics, %v, %v of processor time, %d handles, %d MiB more than before",
			what, topics, took.Round(time.Millisecond), cpu.Round(time.Millisecond), h, m>>20)
		if h >= 1000 {
			t.Errorf("%s: %d handles are open", what, h)
		}
		if n := len(s.Queues()); n != topics {
			t.Errorf("%s: %d queues, want %d", what, n, topics)
		}
		if *casesLong && (took > limit || residentMemory(t) > 300<<20) {
			t.Errorf("%s: took %v, limit %v; resident %d MiB", what, took, limit, residentMemory(t)>>20)
		}
		return s
	}
	read := func(s *Store) {
		t.Helper()
		rng := rand.New(rand.NewPCG(39, uint64(topics)))
		for range 1000 {
			i := rng.IntN(topics)
			if got := bodies(t, s, topic(i), 0, 0); len(got) != 1 || got[0] != body(i) {
				t.Fatalf("topic %d: %q", i, got)
			}
			if got := queryBodies(t, s, topic(i), "key", QueryOptions{}); len(got) != 1 || got[0] != body(i) {
				t.Fatalf("topic %d by key: %q", i, got)
			}
		}
		if h := openHandles(t) - handles; h >= 1000 {
			t.Errorf("after reading %d handles are open", h)
		}
	}

	s, err := Open(context.Background(), c.dir, c.options())
	must(t, err)
	for i := range topics {
		mustPut(t, s, toTopic(topic(i), body(i), "KEYS", "key"))
	}
	waitDispatched(t, s)
	read(s)
	mustClose(t, s)

	s = open("clean", 5*time.Second)
	read(s)
	for i := range topics / 10 {
		mustPut(t, s, toTopic(topic(i*10), "second", "KEYS", "second"))
	}
	waitDispatched(t, s)
	s.abandon() // as if the process had ended here

	s = open("crashed", 30*time.Second)
	for i := range topics {
		want := 1
		if i%10 == 0 && i/10 < topics/10 {
			want = 2
		}
		if _, hi, err := s.QueueRange(topic(i), 0); err != nil || hi != message.QueueOffset(want) {
			t.Fatalf("topic %d has %d messages, want %d, %v", i, hi, want, err)
		}
	}
	mustClose(t, s)

	c.create("abort", nil)
	s = open("abort file", 30*time.Second)
	mustClose(t, s)

	// All queues gone: the worst that a crash can leave of them.
	if *casesLong {
		c.remove("consumequeue")
		c.create("abort", nil)
		mustClose(t, open("without queues", time.Hour)) // no limit in the case
	}
}

// TestC39IdleMinute: an open store that nobody uses writes nothing.
func TestC39IdleMinute(t *testing.T) {
	for _, v := range allVariants {
		for _, how := range []stop{stopClean, stopAbort} {
			t.Run(fmt.Sprintf("%s/%s", v.name, how), func(t *testing.T) {
				base := newSite(t, v)
				s := base.open()
				for i := range 100 {
					base.put(s, toTopic(fmt.Sprintf("T%d", i), "x", "KEYS", "k"))
				}
				base.stop(s, how)
				synctest.Test(t, func(t *testing.T) {
					c := *base
					c.t = t
					c.opts = c.opts.with(func(o *Options) { o.CleanInterval = 0 }) // the default
					c.fault = faultfs.New(c.fs)
					s := c.open()
					synctest.Wait()
					before := c.fault.Count(faultfs.OpMutating, "").Calls
					time.Sleep(time.Minute) // of the bubble
					synctest.Wait()
					if n := c.fault.Count(faultfs.OpMutating, "").Calls - before; n != 0 {
						t.Errorf("%d changes in an idle minute", n)
					}
					c.verify(s)
					mustClose(t, s)
				})
			})
		}
	}
}

func openHandles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// processorTime is what the process has used on all processors.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentMemory is the process's resident set in bytes.
func residentMemory(t testing.TB) int64 {
	t.Helper()
	f, err := os.Open("/proc/self/status")
	must(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kb, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(kb, "kB")), 10, 64)
			must(t, err)
			return n << 10
		}
	}
	t.Fatal("no resident set size")
	return 0
}
