package gantry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// crashScenario is a workload that is crashed at each of its operations.
type crashScenario struct {
	name    string
	options func(*Options)
	run     func(w *crashWork) error
	lively  bool // background work happens among the puts
	deliver bool // there are delayed messages
	pool    bool // what is not committed is lost when the process ends
	drops   bool // syncs fail, and what they were to write is lost for asynchronous puts
}

// tinyOptions make files roll after a handful of messages.
func tinyOptions(fs vfs.FS, clock *testClock) *Options {
	o := smallOptions(fs, clock)
	o.CommitLogFileSize = 4096
	o.ConsumeQueueFileSize = 10 * 20
	o.IndexSlots, o.IndexEntries = 16, 24
	return o
}

// tinyIntervals let the background work happen among the puts.
func tinyIntervals(o *Options) {
	o.FlushInterval, o.FlushThoroughInterval, o.FlushLeastPages = time.Millisecond, time.Millisecond, 1
	o.CommitInterval, o.CheckpointInterval = time.Millisecond, 2*time.Millisecond
}

// crashScenarios cover every operation that docs/crash-safety.md argues about.
var crashScenarios = []crashScenario{
	{name: "sync", run: (*crashWork).mixed},
	{name: "sync without mmap", run: (*crashWork).mixed, options: func(o *Options) { o.WriteWithoutMmap = true }},
	{name: "async", run: (*crashWork).mixed, options: async, lively: true},
	{name: "async without mmap", run: (*crashWork).mixed, options: func(o *Options) { o.Flush, o.WriteWithoutMmap = FlushAsync, true }},
	{name: "transient pool", run: (*crashWork).mixed, options: func(o *Options) {
		o.Flush, o.TransientStorePool, o.TransientStorePoolSize = FlushAsync, true, 3
	}, lively: true, pool: true},
	{name: "sync group", run: (*crashWork).group, lively: true},
	{name: "async group", run: (*crashWork).group, options: async, lively: true},
	{name: "killed", run: (*crashWork).killed, lively: true},
	{name: "killed async", run: (*crashWork).killed, options: async},
	{name: "power cuts", run: (*crashWork).powerCuts},
	{name: "power cuts async", run: (*crashWork).powerCuts, options: async, lively: true},
	{name: "stopped cleanly", run: (*crashWork).stopped, options: async},
	{name: "delayed", run: (*crashWork).delayed, options: threeDelays, deliver: true},
	{name: "delayed async", run: (*crashWork).delayed, options: func(o *Options) { async(o); threeDelays(o) }, lively: true, deliver: true},
	{name: "retention", run: (*crashWork).retention, options: twoSeconds},
	{name: "retention async", run: (*crashWork).retention, options: func(o *Options) { async(o); twoSeconds(o) }, lively: true},
	{name: "queue kinds", run: (*crashWork).kinds, options: func(o *Options) {
		o.LightQueues, o.QueueExt, o.ConsumeQueueExtFileSize = true, true, 400
		o.BatchConsumeQueueFileSize = 4 * 46
		o.IsBatchTopic = func(topic string) bool { return topic == "Bulk" }
	}},
	{name: "full disk", run: (*crashWork).full},
	{name: "failed sync", run: (*crashWork).failedSync},
	{name: "failed sync async", run: (*crashWork).failedSync, options: async, lively: true, drops: true},
}

func async(o *Options)       { o.Flush = FlushAsync }
func threeDelays(o *Options) { o.DelayLevels = "1s 2s 1m" }
func twoSeconds(o *Options)  { o.Reserved, o.DeleteBatch = 2*time.Second, 2 }

// crashWork is a workload at work.
type crashWork struct {
	ledger *ledger
	mem    *memfs.FS
	fs     *faultfs.FS // what the store sees of mem
	wrap   func(*memfs.FS) *faultfs.FS
	opts   *Options
	clock  *testClock
	rng    *rand.Rand
	s      *Store // nil when none is open
}

func (w *crashWork) open() error {
	s, err := Open(context.Background(), testDir, w.opts.with(func(o *Options) { o.FS = w.fs }))
	if err != nil {
		return err
	}
	w.s = s
	return nil
}

func (w *crashWork) close() error {
	before := w.ledger.claim()
	s := w.s
	w.s = nil
	if err := s.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	w.ledger.settle(before)
	return nil
}

// kill ends the process: nothing that the store does afterwards reaches the
// files, and what it did stays, whether it was synced or not.
func (w *crashWork) kill() {
	w.fs.Crash()
	w.s.abandon()
	w.s = nil
	w.fs = w.wrap(w.mem)
}

// cut cuts the power: the work goes on with what a crash leaves, and what is
// lost in it must never come back.
func (w *crashWork) cut() error {
	policies := memfs.Policies()
	policy := policies[w.rng.IntN(len(policies))]
	left := w.mem.CrashClone(policy, w.rng.Int64())
	w.kill()
	w.mem = left
	w.fs = w.wrap(left)
	// What is left is seen in a copy: the recovery is part of what is tried.
	opts := w.opts.with(func(o *Options) { o.FS, o.NoDelivery = left.CrashClone(memfs.KeepAll), true })
	return withStore(context.Background(), opts, func(s *Store) error {
		in, err := readAll(s)
		if err != nil {
			return err
		}
		return w.ledger.lose(in)
	})
}

func (w *crashWork) sync() error {
	before := w.ledger.claim()
	if err := w.s.Sync(context.Background()); err != nil {
		return err
	}
	w.ledger.settle(before)
	return nil
}

// await calls wait until it does not run out of its time, a minute in all, or
// the file system has crashed or the store failed: then there is nothing to
// wait for.
func (w *crashWork) await(wait func(ctx context.Context) error) error {
	for range 600 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		err := wait(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if w.fs.Crashed() {
			return faultfs.ErrCrashed
		}
		if err := w.s.Stats().Failure; err != nil {
			return err
		}
	}
	return errors.New("waited for a minute")
}

func (w *crashWork) waitDispatched() error { return w.await(w.s.WaitDispatched) }

// message makes the next message.
func (w *crashWork) message(topic string, queue int32, props ...string) (*message.Message, int) {
	n := w.ledger.next()
	props = append([]string{"KEYS", crashKey(n), "TAGS", "a", "UNIQ_KEY", fmt.Sprintf("u%d", n)}, props...)
	return &message.Message{Topic: topic, QueueID: queue, Body: []byte(crashBody(n)), Properties: message.NewProperties(props...)}, n
}

func (w *crashWork) put(topic string, queue int32, props ...string) error {
	w.clock.add(7 * time.Millisecond)
	m, n := w.message(topic, queue, props...)
	res, err := w.s.Put(context.Background(), m)
	if err == nil {
		w.ledger.ack(res, !m.Properties.WaitStoreOK(), n)
	}
	return err
}

func (w *crashWork) putBatch(topic string, queue int32, count int) error {
	w.clock.add(7 * time.Millisecond)
	var msgs []*message.Message
	var ns []int
	for range count {
		m, n := w.message(topic, queue)
		msgs, ns = append(msgs, m), append(ns, n)
	}
	res, err := w.s.PutBatch(context.Background(), msgs)
	if err == nil {
		w.ledger.ack(res, false, ns...)
	}
	return err
}

// some puts n messages and batches into three queues.
func (w *crashWork) some(n int) error {
	for i := range n {
		var err error
		switch {
		case i%5 == 4:
			err = w.putBatch("TopicTest", 1, 3)
		case i%7 == 3:
			err = w.put("TopicTest", int32(i%3), message.PropWait, "false")
		default:
			err = w.put("TopicTest", int32(i%3))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *crashWork) mixed() error {
	for round := range 3 {
		if err := w.open(); err != nil {
			return err
		}
		if err := w.some(12); err != nil {
			return err
		}
		if round%2 == 1 {
			if err := w.sync(); err != nil {
				return err
			}
		}
		if err := w.close(); err != nil {
			return err
		}
	}
	return nil
}

// group lets several producers share syncs.
func (w *crashWork) group() error {
	for range 2 {
		if err := w.open(); err != nil {
			return err
		}
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for p := range errs {
			wg.Go(func() {
				for range 7 {
					if errs[p] = w.put("TopicTest", int32(p%2)); errs[p] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := w.close(); err != nil {
			return err
		}
	}
	return nil
}

// killed ends the process now and then; the power goes later, when what the
// process left in the page cache may be lost.
func (w *crashWork) killed() error {
	for range 4 {
		if err := w.open(); err != nil {
			return err
		}
		if err := w.some(3 + w.rng.IntN(8)); err != nil {
			return err
		}
		if w.rng.IntN(2) == 0 {
			if err := w.sync(); err != nil {
				return err
			}
			if err := w.some(w.rng.IntN(4)); err != nil {
				return err
			}
		}
		w.kill()
	}
	if err := w.open(); err != nil {
		return err
	}
	return w.close()
}

// powerCuts cuts the power now and then, with a tail that is not on the disk.
func (w *crashWork) powerCuts() error {
	for range 4 {
		before := w.ledger.claim()
		if err := w.open(); err != nil {
			return err
		}
		w.ledger.settle(before) // what recovery finds is on the disk before anything is added
		if err := w.some(2 + w.rng.IntN(6)); err != nil {
			return err
		}
		if w.rng.IntN(2) == 0 {
			if err := w.sync(); err != nil {
				return err
			}
		}
		for range w.rng.IntN(6) { // of one size, as what comes instead of them
			if err := w.put("TopicTest", 0, message.PropWait, "false"); err != nil {
				return err
			}
		}
		if err := w.cut(); err != nil {
			return err
		}
	}
	if err := w.open(); err != nil {
		return err
	}
	return w.close()
}

// stopped stops cleanly after little work, again and again.
func (w *crashWork) stopped() error {
	for i := range 5 {
		if err := w.open(); err != nil {
			return err
		}
		if err := w.some(i); err != nil {
			return err
		}
		if err := w.close(); err != nil {
			return err
		}
	}
	return nil
}

// delayed stores messages for later and lets time pass.
func (w *crashWork) delayed() error {
	for round := range 3 {
		if err := w.open(); err != nil {
			return err
		}
		for i := range 8 {
			var err error
			if i%3 == 0 {
				err = w.put("TopicTest", 0)
			} else {
				err = w.put("TopicTest", 0, message.PropDelay, fmt.Sprint(1+i%3))
			}
			if err != nil {
				return err
			}
			w.clock.add(400 * time.Millisecond)
			if err := w.awaitDelivery(); err != nil {
				return err
			}
		}
		if round == 1 {
			if err := w.sync(); err != nil {
				return err
			}
		}
		if round == 2 {
			w.kill()
			return nil
		}
		if err := w.close(); err != nil {
			return err
		}
	}
	return nil
}

// awaitDelivery waits until the scheduler has delivered what is due.
func (w *crashWork) awaitDelivery() error {
	if err := w.waitDispatched(); err != nil {
		return err
	}
	return w.await(func(ctx context.Context) error {
		for {
			woken := w.s.readers.wait()
			due, err := w.due()
			if err != nil || !due {
				return err
			}
			w.s.scheduler.notify()
			select {
			case <-woken: // what was delivered has been dispatched
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// due reports whether a message waits although its time has come.
func (w *crashWork) due() (bool, error) {
	d := &w.s.scheduler
	for level := 1; level <= w.s.delays.Max(); level++ {
		q := w.s.queues.Get(message.ScheduleTopic, int32(level-1))
		if q == nil {
			continue
		}
		d.mu.Lock()
		off := max(d.offsets[level], q.Min())
		d.mu.Unlock()
		if off >= q.Max() {
			continue
		}
		u, err := placeAt(q, off)
		if err != nil {
			return false, err
		}
		if u.Valid() && int64(w.s.unitTags(q, u.Unit)) <= w.clock.now() {
			return true, nil
		}
	}
	return false, nil
}

// retention removes what is older than two seconds.
func (w *crashWork) retention() error {
	if err := w.open(); err != nil {
		return err
	}
	for range 5 {
		if err := w.some(9); err != nil {
			return err
		}
		w.clock.add(time.Second)
		if err := w.waitDispatched(); err != nil {
			return err
		}
		if err := w.sync(); err != nil {
			return err
		}
		files := w.s.log.Files()
		w.ledger.mayRemove(files[len(files)-1].Start)
		if _, err := w.s.Clean(context.Background(), CleanOptions{AnyHour: true}); err != nil {
			return err
		}
	}
	return w.close()
}

// kinds fills light queues, extensions and batch queues.
func (w *crashWork) kinds() error {
	for round := range 3 {
		if err := w.open(); err != nil {
			return err
		}
		for i := range 9 {
			var err error
			switch i % 3 {
			case 0:
				err = w.put("TopicTest", 0, message.PropInnerMultiDispatch, "%LMQ%a,%LMQ%b")
			case 1:
				err = w.putInner(2 + i%3)
			default:
				err = w.put("TopicTest", 0, message.PropInnerMultiDispatch, "%LMQ%b")
			}
			if err != nil {
				return err
			}
		}
		if round == 1 {
			w.kill()
		} else if err := w.close(); err != nil {
			return err
		}
	}
	return nil
}

// putInner stores an inner batch of count messages.
func (w *crashWork) putInner(count int) error {
	m, n := w.message("Bulk", 0, "INNER_NUM", fmt.Sprint(count))
	m.Body = nil
	for i := range count {
		body, err := message.AppendBatchItem(m.Body, message.BatchItem{Body: fmt.Appendf(nil, "item %d of %d", i, n)})
		if err != nil {
			return err
		}
		m.Body = body
	}
	m.SysFlag = message.InnerBatch | message.NeedUnwrap
	res, err := w.s.Put(context.Background(), m)
	if err == nil {
		w.ledger.ack(res, false, n)
	}
	return err
}

// full runs out of space and gets some again.
func (w *crashWork) full() error {
	if err := w.open(); err != nil {
		return err
	}
	for range 3 {
		w.mem.SetCapacity(w.mem.Used() + int64(w.rng.IntN(4))*4096)
		for failed := 0; failed < 3; {
			err := w.put("TopicTest", 0)
			if errors.Is(err, ErrDiskFull) {
				failed++
			} else if err != nil {
				return err
			}
		}
		w.mem.SetCapacity(0)
		w.clock.add(2 * time.Minute) // the longest pause of the index
		// The file that could not be made is tried again after a pause.
		for deadline := time.Now().Add(time.Minute); ; {
			err := w.put("TopicTest", 0)
			if err == nil {
				break
			}
			if !errors.Is(err, ErrDiskFull) || time.Now().After(deadline) {
				return err
			}
		}
	}
	return w.close()
}

// failedSync makes one sync fail, and with it the store.
func (w *crashWork) failedSync() error {
	if err := w.open(); err != nil {
		return err
	}
	rule := w.fs.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Nth: 1 + w.rng.IntN(25), Count: 1, Err: faultfs.ErrIO})
	err := w.some(40)
	if err == nil {
		err = w.sync()
	}
	if err != nil && (rule.Hits() == 0 || !errors.Is(err, faultfs.ErrIO) && !errors.Is(err, ErrDiskFull)) {
		return err
	}
	rule.Remove()
	if failure := w.s.Stats().Failure; failure != nil {
		if _, err := w.s.Put(context.Background(), testMessage("x")); !errors.Is(err, ErrReadOnly) {
			return fmt.Errorf("a put after a failed sync: %w", err)
		}
	}
	w.kill() // closing answers an error, or not: nothing is promised any more
	if err := w.open(); err != nil {
		return err
	}
	return w.close()
}
