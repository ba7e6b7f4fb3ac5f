package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// ScanOptions say what Scan looks for and what becomes of it.
type ScanOptions struct {
	Filter Filter
	// From is a position of the log: what lies before it is passed over. It is
	// the start of a record, or 0.
	From int64
	// LogOnly reads the log and believes neither queues nor index.
	LogOnly bool
	Workers int // goroutines that look at records; 0: GOMAXPROCS, at most 8

	// Format appends what is to be kept of a message to dst. It is called by
	// several goroutines. v is valid during the call. An error ends the scan.
	Format func(dst []byte, v *message.View) ([]byte, error)
	// Take gets what Format made, in the order of the log. An error ends the
	// scan; ErrEnough does so in silence.
	Take func(Found) error
	// Damage is told of ranges of the log without valid records, in order;
	// nil: nobody is.
	Damage func(Damage)
	// Progress is told how many bytes of about total were passed; nil: nobody
	// is.
	Progress func(done, total int64)
}

// ErrEnough ends a scan without an error.
var ErrEnough = errors.New("enough was found")

// Found is a run of messages: what Format appended for each of them. The slices
// are valid during the call.
type Found struct {
	Data []byte
	Ends []int // of each message in Data
	// Next is a position behind all of them from which a scan goes on.
	Next int64
	// Nexts are the positions behind each of them.
	Nexts []int64
}

// ScanResult is how a scan went.
type ScanResult struct {
	Messages int64 // chosen
	Records  int64 // looked at
	Damaged  int64 // ranges that were passed over
	Unopened int64 // bodies that are compressed and could not be opened
	End      int64 // of the log, or where the scan stopped
	// TailReason is why the log ends there: what stands behind is no valid
	// record. Empty: zeros, or the scan did not come so far.
	TailReason string
	// By is what led to the messages: "log", "queues" or "index".
	By string
}

// Scan looks for messages.
func (s *Store) Scan(ctx context.Context, o ScanOptions) (ScanResult, error) {
	if o.Workers <= 0 {
		o.Workers = min(runtime.GOMAXPROCS(0), 8)
	}
	if o.Damage == nil {
		o.Damage = func(Damage) {}
	}
	to := int64(math.MaxInt64)
	if s.held {
		// What is written meanwhile is not followed, or it might never end.
		end, err := s.writtenTo(ctx)
		if err != nil {
			return ScanResult{}, err
		}
		to = end
	}
	var res ScanResult
	steps, by, err := s.plan(ctx, &o, to)
	if err != nil {
		return ScanResult{}, err
	}
	res.By = by
	sc := &scan{s: s, o: &o, res: &res, to: to}
	err = sc.run(ctx, steps)
	var lie *lieError
	switch {
	case errors.As(err, &lie):
		// Everything before that position has been dealt with.
		res.By = "log"
		err = sc.run(ctx, s.inWindow(&o, []step{{from: lie.at, to: to}}))
	case err == nil && res.Messages == 0 && res.By != "log":
		// What is not there is only certain when the log was read.
		res.By = "log"
		err = sc.run(ctx, s.inWindow(&o, []step{{from: o.From, to: to}}))
	}
	if errors.Is(err, ErrEnough) {
		err = nil
	}
	return res, err
}

// lieError is a queue or an index that leads to something else than it says. The
// log from at on has not been looked at.
type lieError struct {
	at     int64
	reason string
}

func (e *lieError) Error() string { return fmt.Sprintf("from position %d on: %s", e.at, e.reason) }

// step is a part of a scan: a range of the log, or positions of records.
type step struct {
	from, to int64
	records  []pointer // rising; not nil: these only
}

// pointer is what a queue or the index says about a record.
type pointer struct {
	phy  int64
	slot int64 // queue offset; -1: not known
	size int32 // 0: not known
	id   int32 // queue id
}

// pointerCost is what a record is taken to cost that is read alone, in bytes
// that could be read in a row meanwhile.
const pointerCost = 16 << 10

// cost is about how many bytes are read.
func (s *Store) cost(steps []step) (n int64) {
	for _, st := range steps {
		if st.records != nil {
			n += int64(len(st.records)) * pointerCost
		} else {
			n += max(min(st.to, s.Top())-max(st.from, s.Min()), 0)
		}
	}
	return n
}

// scan is a Scan under way.
type scan struct {
	s   *Store
	o   *ScanOptions
	res *ScanResult
	to  int64

	done, total int64
	last        *Damage // what was met last, if that is damage
}

// job is a piece of work: a run of records, or positions to read. A worker
// fills in the rest.
type job struct {
	run
	pointers []pointer
	resume   int64 // where a scan of the log would go on if the pointers lie
	passed   int64 // what it counts for progress

	out      []byte
	ends     []int
	nexts    []int64
	records  int64
	damage   []Damage
	unopened int64
	err      error
	ready    chan struct{}
}

// jobsAhead is how many jobs are under way for each worker.
const jobsAhead = 2

// run takes the steps one after the other: one goroutine reads ahead, others
// look at records, and what they find is passed on in order here.
func (sc *scan) run(ctx context.Context, steps []step) error {
	sc.done, sc.total = 0, sc.s.cost(steps)
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel() // first: who reads ahead waits for nothing else
	n := sc.o.Workers * (1 + jobsAhead)
	free := make(chan *job, n)
	for range n {
		free <- &job{}
	}
	work, order := make(chan *job, n), make(chan *job, n)
	var readErr error
	var tail struct {
		end    int64
		reason string
	}
	group.Go(func() {
		defer close(order)
		defer close(work)
		f := &feeder{sc: sc, ctx: ctx, free: free, work: work, order: order}
		readErr = f.feed(steps)
		tail.end, tail.reason = f.end, f.reason
	})
	for range sc.o.Workers {
		group.Go(func() {
			w := &worker{sc: sc, m: newMatcher(&sc.o.Filter)}
			defer w.close()
			for j := range work {
				w.do(j)
				close(j.ready)
			}
		})
	}
	for j := range order {
		select {
		case <-j.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := sc.take(j); err != nil {
			return err
		}
		free <- j // never full: there are as many as it holds
	}
	if readErr == nil {
		sc.res.End, sc.res.TailReason = tail.end, tail.reason
		if d := sc.last; d != nil {
			// No record follows: the log ends in front of it.
			sc.res.End, sc.res.TailReason = d.From, d.Reason
		}
	}
	return readErr
}

// take passes on what a job found.
func (sc *scan) take(j *job) error {
	sc.res.Records += j.records
	sc.res.Unopened += j.unopened
	for i := range j.damage {
		sc.damaged()
		sc.last = &j.damage[i]
	}
	if j.n > 0 && (sc.last == nil || sc.last.To != j.at+int64(j.n)) {
		sc.damaged() // a valid record follows
	}
	if len(j.ends) > 0 {
		sc.res.Messages += int64(len(j.ends))
		if err := sc.o.Take(Found{j.out, j.ends, j.nexts[len(j.nexts)-1], j.nexts}); err != nil {
			return err
		}
	}
	sc.done += j.passed
	if sc.o.Progress != nil {
		sc.o.Progress(min(sc.done, sc.total), sc.total)
	}
	return j.err
}

// damaged reports the damage met last.
func (sc *scan) damaged() {
	if sc.last != nil {
		sc.res.Damaged++
		sc.o.Damage(*sc.last)
		sc.last = nil
	}
}

// feeder is the goroutine that reads ahead.
type feeder struct {
	sc                *scan
	ctx               context.Context
	free, work, order chan *job
	damage            []Damage // to go with the next job
	passed            int64
	end               int64
	reason            string
}

func (f *feeder) feed(steps []step) error {
	for i := range steps {
		st := &steps[i]
		var err error
		if st.records != nil {
			err = f.pointers(st)
		} else {
			err = f.log(st)
		}
		if err != nil {
			return err
		}
	}
	if len(f.damage) > 0 || f.passed > 0 {
		if j := f.job(); j != nil {
			f.send(j)
		}
	}
	return f.ctx.Err()
}

// job returns an empty job, nil when ctx has ended.
func (f *feeder) job() *job {
	select {
	case j := <-f.free:
		*j = job{run: run{buf: j.buf}, pointers: j.pointers[:0], out: j.out[:0], ends: j.ends[:0], nexts: j.nexts[:0], ready: make(chan struct{})}
		return j
	case <-f.ctx.Done():
		return nil
	}
}

// send passes a job on. Both channels have room for all jobs.
func (f *feeder) send(j *job) {
	j.damage, f.damage = f.damage, nil
	j.passed, f.passed = f.passed, 0
	f.work <- j
	f.order <- j
}

func (f *feeder) log(st *step) error {
	c := newChain(f.ctx, f.sc.s, st.from, func(d Damage) { f.damage = append(f.damage, d) }, func(n int64) { f.passed += n })
	defer c.close()
	for {
		j := f.job()
		if j == nil {
			return f.ctx.Err()
		}
		more, err := c.next(&j.run, st.to)
		if err != nil || !more {
			f.free <- j
			f.end, f.reason = c.end, c.reason
			return err
		}
		f.send(j)
	}
}

// pointersAtOnce is how many records a job reads one by one.
const pointersAtOnce = 64

func (f *feeder) pointers(st *step) error {
	resume := st.from
	for list := st.records; len(list) > 0; {
		j := f.job()
		if j == nil {
			return f.ctx.Err()
		}
		n := min(pointersAtOnce, len(list))
		j.pointers = append(j.pointers, list[:n]...)
		j.resume = resume
		resume = list[n-1].phy + 1
		list = list[n:]
		f.passed += int64(n) * pointerCost
		f.send(j)
	}
	f.end = resume
	return nil
}

// worker looks at records.
type worker struct {
	sc  *scan
	m   *matcher
	f   vfs.File
	i   int // of the log file that is open
	buf []byte
}

func (w *worker) close() {
	if w.f != nil {
		w.f.Close() // only read
	}
}

func (w *worker) do(j *job) {
	w.m.unopened = 0
	if len(j.pointers) > 0 {
		w.follow(j)
	} else {
		w.look(j)
	}
	j.unopened = w.m.unopened
}

// look goes through a run of records.
func (w *worker) look(j *job) {
	for off := 0; off < j.n && j.err == nil; {
		size := int(message.Size(j.buf[off:]))
		at := j.at + int64(off)
		v, err := message.Check(j.buf[off:off+size], message.PhysicalOffset(at), checks)
		off += size
		if err != nil {
			j.damage = append(j.damage, Damage{j.path, at, at + int64(size), err.Error()})
			continue
		}
		j.records++
		if w.m.match(&v) {
			w.keep(j, &v)
		}
	}
}

func (w *worker) keep(j *job, v *message.View) {
	out, err := w.sc.o.Format(j.out, v)
	if err != nil {
		j.err = err
		return
	}
	j.out = out
	j.ends = append(j.ends, len(out))
	j.nexts = append(j.nexts, int64(v.PhysicalOffset)+int64(v.Size))
}
