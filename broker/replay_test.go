package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestRecordings replays what genuine clients and tools sent to brokers of 4.9.4
// and 5.4.0, at the recorded times, and compares what comes back.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(wireDir, "*__*__*.ndjson.gz"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(wireDir, "mqadmin", "*.ndjson.gz"))
	if err != nil {
		t.Fatal(err)
	}
	seen := &seen{codes: make(map[int32]int), differences: make(map[string]int)}
	for _, file := range append(files, more...) {
		scenario := strings.TrimSuffix(filepath.Base(file), ".ndjson.gz")
		if strings.HasPrefix(scenario, "raw__") {
			continue // TestHandMadeFrames
		}
		lines := loadRecording(t, file)
		if !slices.ContainsFunc(lines, (*frameRecord).ofBroker) {
			continue
		}
		t.Run(scenario, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newPlayer(t, scenario, lines, seen).play() })
		})
	}
	seen.check(t)
}

func (r *frameRecord) ofBroker() bool { return strings.HasPrefix(r.Peer, "broker") }

// seen is what the recordings have shown.
type seen struct {
	mu          sync.Mutex
	codes       map[int32]int // requests that were compared
	differences map[string]int
}

func (s *seen) check(t *testing.T) {
	if t.Failed() || t.Skipped() {
		return
	}
	for _, d := range differences {
		if s.differences[d.name] == 0 {
			t.Errorf("no recording shows the difference %q", d.name)
		}
	}
	for _, d := range bodyDifferences {
		if s.differences[d.name] == 0 {
			t.Errorf("no recording shows the difference %q", d.name)
		}
	}
	for code, n := range map[int32]int{10: 50, 11: 500, 12: 20, 14: 200, 15: 90, 29: 30, 30: 50, 31: 30, 33: 15, 34: 200, 35: 200, 36: 10, 37: 5, 38: 150, 41: 20, 310: 300, 320: 5, 361: 15} {
		if s.codes[code] < n {
			t.Errorf("only %d requests with code %d: recordings are missing", s.codes[code], code)
		}
	}
	t.Logf("requests compared by code: %v", s.codes)
	t.Logf("known differences: %v", s.differences)
}

// A player plays a recording.
type player struct {
	*rig
	scenario string
	old      bool // the recorded broker is 4.9.4
	lines    []*frameRecord
	seen     *seen
	clock    atomic.Int64 // ms; 0: the recorded clock
	conns    map[string]*wire
	now      int64 // recorded ms
	asked    map[wireID]*question
	pushes   map[wireID]*remoting.Command // ours for the recorded ones

	// What recorded answers say that later requests repeat, and ours for it.
	physical map[int64]int64 // of messages
	places   map[int64]place3
	half     map[int64]int64 // queue offsets of half messages
	fillers  map[queueKey]int64
}

// place3 is where a message lies.
type place3 struct {
	queueKey
	offset message.QueueOffset
}

type wireID struct {
	conn   string
	opaque int32
}

// question is a request that was sent.
type question struct {
	ask      *frameRecord
	sent     *remoting.Command
	compared bool
}

func newPlayer(t *testing.T, scenario string, lines []*frameRecord, seen *seen) *player {
	p := &player{
		scenario: scenario, old: strings.Contains(scenario, "__4.9.4__"), lines: lines, seen: seen,
		conns: make(map[string]*wire), asked: make(map[wireID]*question), pushes: make(map[wireID]*remoting.Command),
		physical: make(map[int64]int64), places: make(map[int64]place3), half: make(map[int64]int64), fillers: make(map[queueKey]int64),
	}
	// The recorded clock: no message was born after it was sent.
	began := time.Now()
	epoch := int64(0)
	for _, l := range lines {
		if ms := intOf(l.ext.Value("g") + l.ext.Value("bornTimestamp")); l.Dir == "c2s" && ms > 0 {
			epoch = max(epoch, ms-l.Ms)
		}
	}
	if epoch == 0 {
		epoch = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	}
	p.rig = startRig(t, func(o *Options) {
		o.Now = func() int64 {
			if ms := p.clock.Load(); ms > 0 {
				return ms
			}
			return epoch + time.Since(began).Milliseconds()
		}
		o.Config.TraceTopic = strings.Contains(strings.ToLower(scenario), "trace")
		o.Config.TransactionTimeout, o.Config.TransactionCheckInterval = 2*time.Second, 3*time.Second
		if strings.HasSuffix(scenario, "consumer-from-old") {
			o.Config.InMemoryMaxRatio = 0
		}
	})
	t.Cleanup(func() {
		for _, w := range p.conns {
			w.close()
		}
	})
	p.prepare()
	return p
}

// A wire is a connection of the recorded client to the broker.
type wire struct {
	nc net.Conn

	mu      sync.Mutex
	answers map[int32]*remoting.Command
	pushes  []*remoting.Command
	done    chan struct{}
}

func (p *player) wire(conn string) *wire {
	if w := p.conns[conn]; w != nil {
		return w
	}
	w := dialWire(p.b)
	p.conns[conn] = w
	return w
}

func dialWire(b *Broker) *wire {
	ours, theirs := net.Pipe()
	b.server.ServeConn(theirs)
	w := &wire{nc: ours, answers: make(map[int32]*remoting.Command), done: make(chan struct{})}
	go w.read()
	return w
}

func (w *wire) close() {
	w.nc.Close() //nolint:errcheck // the end
	<-w.done
}

func (w *wire) read() {
	defer close(w.done)
	for {
		c, err := readFrame(w.nc)
		if err != nil {
			return
		}
		w.mu.Lock()
		if c.IsResponse() {
			w.answers[c.Opaque] = c
		} else {
			w.pushes = append(w.pushes, c)
		}
		w.mu.Unlock()
	}
}

// readFrame reads a frame as a command.
func readFrame(r io.Reader) (*remoting.Command, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	frame := append(head, make([]byte, binary.BigEndian.Uint32(head))...)
	if _, err := io.ReadFull(r, frame[4:]); err != nil {
		return nil, err
	}
	c, _, err := remoting.DecodeFrame(frame)
	return c, err
}

func (w *wire) answer(opaque int32) *remoting.Command {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.answers[opaque]
	delete(w.answers, opaque)
	return c
}

// sameMessage reports whether two records have the same body; others are.
func sameMessage(a, b []byte) bool {
	x, y := wholeRecords(a), wholeRecords(b)
	return len(x) != len(y) || len(x) == 0 || bytes.Equal(x[0].Body, y[0].Body)
}

func (w *wire) push(code int32, fits func(*remoting.Command) bool) *remoting.Command {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range w.pushes {
		if c.Code == code && fits(c) {
			w.pushes = slices.Delete(w.pushes, i, i+1)
			return c
		}
	}
	return nil
}

// within waits for something for as long as a recorded hold lasts.
func within(f func() *remoting.Command) *remoting.Command {
	for range 400 {
		synctest.Wait()
		if c := f(); c != nil {
			return c
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func (p *player) play() {
	for _, l := range p.lines {
		if !l.ofBroker() {
			continue
		}
		if d := l.Ms - p.now; d > 0 {
			time.Sleep(time.Duration(d) * time.Millisecond)
			p.now = l.Ms
		}
		switch id := (wireID{l.Conn, l.Opaque}); {
		case l.Dir == "c2s" && (l.Kind == "request" || l.Kind == "oneway"):
			p.ask(l)
		case l.Dir == "s2c" && l.Kind == "response":
			p.compareAnswer(id, l)
		case l.Dir == "s2c" && (l.Kind == "request" || l.Kind == "oneway"):
			p.comparePush(id, l)
		case l.Dir == "c2s" && l.Kind == "response":
			p.reply(id, l)
		case l.Dir == "c2s" && l.Kind == "close":
			if w := p.conns[l.Conn]; w != nil {
				w.close()
			}
		}
	}
	synctest.Wait()
	for id, q := range p.asked {
		// Without an answer: the recording ended, or there is none.
		if !q.compared && q.ask.Kind == "request" && q.ask.Code == remoting.ReqEndTransaction {
			p.compare(q, nil, p.wire(id.conn).answer(q.sent.Opaque))
		}
	}
}

func (p *player) ask(l *frameRecord) {
	c := l.command(p.t)
	changed := p.patch(c)
	p.asked[wireID{l.Conn, l.Opaque}] = &question{ask: l, sent: c}
	p.write(l.Conn, c, l, changed)
}

func (p *player) write(conn string, c *remoting.Command, l *frameRecord, changed bool) {
	p.t.Helper()
	frame, err := remoting.AppendFrame(nil, c)
	if err == nil && l.Raw != "" && !changed {
		frame = frame[:0]
		_, err = fmt.Sscanf(l.Raw, "%x", &frame)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", l.where, err)
	}
	if _, err := p.wire(conn).nc.Write(frame); err != nil {
		p.t.Fatalf("%s: %v", l.where, err)
	}
	synctest.Wait() // what one connection sent before is done with before another sends
}

// patch puts our positions in the place of recorded ones.
func (p *player) patch(c *remoting.Command) (changed bool) {
	number := func(name string, to func(int64) (int64, bool)) {
		v, _ := c.Ext.Get(name)
		n, err := strconv.ParseInt(v, 10, 64)
		if ours, ok := to(n); err == nil && ok {
			c.Ext.Set(name, strconv.FormatInt(ours, 10))
			changed = true
		}
	}
	switch c.Code {
	case remoting.ReqConsumerSendMsgBack, remoting.ReqViewMessageByID:
		number("offset", p.position)
	case remoting.ReqEndTransaction:
		number("commitLogOffset", p.position)
		number("tranStateTableOffset", func(n int64) (int64, bool) { ours, ok := p.half[n]; return ours, ok })
	case remoting.ReqConsumeMessageDirectly:
		v, _ := c.Ext.Get("msgId")
		if host, at, err := message.ParseOffsetID(v); err == nil {
			if ours, ok := p.position(int64(at)); ok {
				c.Ext.Set("msgId", message.OffsetID(host, message.PhysicalOffset(ours)))
				changed = true
			}
		}
	}
	return changed
}

// position returns our position of the message that was recorded at one.
func (p *player) position(theirs int64) (int64, bool) {
	if ours, ok := p.physical[theirs]; ok {
		return ours, true
	}
	at, ok := p.places[theirs]
	if !ok {
		return 0, false
	}
	ours, err := p.b.store.PhysicalOffsetOf(at.topic, at.queueID, at.offset)
	return int64(ours), err == nil
}

func (p *player) compareAnswer(id wireID, l *frameRecord) {
	q := p.asked[id]
	if q == nil {
		p.t.Fatalf("%s: answer without a request", l.where)
	}
	q.compared = true
	w := p.wire(id.conn)
	ours := within(func() *remoting.Command { return w.answer(q.sent.Opaque) })
	if ours == nil {
		p.t.Errorf("%s: %s %v is not answered, recorded is %d", q.ask.where, remoting.RequestName(q.ask.Code), q.sent.Ext, l.Code)
		return
	}
	p.compare(q, l, ours)
	p.learn(q, l, ours)
}

// learn notes which of our positions stand for which recorded ones.
func (p *player) learn(q *question, l *frameRecord, ours *remoting.Command) {
	if theirIDs, ok := l.ext.Get("msgId"); ok {
		ourIDs := strings.Split(ours.Ext.Value("msgId"), ",")
		for i, id := range strings.Split(theirIDs, ",") {
			if i < len(ourIDs) {
				p.same(id, ourIDs[i])
			}
		}
		if strings.Contains(q.sent.Ext.Value("i")+q.sent.Ext.Value("properties"), message.PropTransactionPrepared) {
			p.half[intOf(l.ext.Value("queueOffset"))] = intOf(ours.Ext.Value("queueOffset"))
		}
	}
	theirs, _ := l.content(p.t)
	for _, m := range wholeRecords(theirs) {
		p.places[int64(m.PhysicalOffset)] = place3{queueKey{m.Topic, m.QueueID}, m.QueueOffset}
	}
}

func (p *player) same(theirs, ours string) {
	_, a, err := message.ParseOffsetID(theirs)
	_, b, err2 := message.ParseOffsetID(ours)
	if err == nil && err2 == nil {
		p.physical[int64(a)] = int64(b)
	}
}

func intOf(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// wholeRecords decodes records up to where the bytes end or are something else.
func wholeRecords(data []byte) (list []message.Ext) {
	for len(data) >= message.MinRecordSize {
		n := int(message.Size(data))
		if n < message.MinRecordSize || n > len(data) {
			break
		}
		m, err := message.Decode(data[:n])
		if err != nil {
			break
		}
		list, data = append(list, m), data[n:]
	}
	return list
}

func (p *player) comparePush(id wireID, l *frameRecord) {
	w := p.wire(id.conn)
	if l.Code == remoting.ReqNotifyConsumerIDsChanged || l.Code == remoting.ReqResetConsumerClientOffset {
		return // coalesced, and never at the same moments; reset here
	}
	theirs, _ := l.content(p.t)
	ours := within(func() *remoting.Command {
		return w.push(l.Code, func(c *remoting.Command) bool { return sameMessage(theirs, c.Body) })
	})
	if ours == nil {
		p.t.Errorf("%s: no %s from us", l.where, remoting.RequestName(l.Code))
		return
	}
	p.pushes[id] = ours
	want, got := fieldNames(l.ext), fieldNames(ours.Ext)
	if l.Code == remoting.ReqCheckTransactionState {
		p.half[intOf(l.ext.Value("tranStateTableOffset"))] = intOf(ours.Ext.Value("tranStateTableOffset"))
		p.physical[intOf(l.ext.Value("commitLogOffset"))] = intOf(ours.Ext.Value("commitLogOffset"))
		if p.old { // 4.9.4 has neither
			want = append(want, "topic", "bname")
		}
	}
	if l.Code == remoting.ReqConsumeMessageDirectly && p.old {
		want = append(want, "topicSysFlag", "groupSysFlag")
	}
	slices.Sort(want)
	if !slices.Equal(slices.Compact(want), got) {
		p.t.Errorf("%s: %s has fields %v, recorded %v", l.where, remoting.RequestName(l.Code), got, want)
	}
	if l.Kind == "oneway" != ours.IsOneway() {
		p.t.Errorf("%s: %s oneway: %v", l.where, remoting.RequestName(l.Code), ours.IsOneway())
	}
	if l.Code == remoting.ReqCheckTransactionState {
		theirs = slices.Clone(theirs) // its offset is that in the half queue
		binary.BigEndian.PutUint64(theirs[20:], binary.BigEndian.Uint64(ours.Body[20:]))
	}
	p.compareRecords(l.where, theirs, ours.Body)
}

// reply passes the recorded client's answer on, to our request.
func (p *player) reply(id wireID, l *frameRecord) {
	ours := p.pushes[id]
	if ours == nil {
		return
	}
	c := l.command(p.t)
	c.Opaque = ours.Opaque
	p.write(id.conn, c, l, true)
}

func fieldNames(f remoting.Fields) []string {
	var names []string
	for name := range f.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
