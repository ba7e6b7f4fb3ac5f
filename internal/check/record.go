package check

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/gantrymq/gantry/message"
)

// bornAhead is how far a sender's clock may be ahead of the broker's before it
// is remarked, in ms.
const bornAhead = 24 * 60 * 60 * 1000

// knownFlags are the bits of SysFlag that some release defines.
const knownFlags message.SysFlag = 0x7FF

// accept takes the valid record in w.view, which lies at pos: it checks what
// does not decide about its validity, and compares it with queues and index.
func (w *logWorker) accept(pos, last int64) {
	r, v := w.r, &w.view
	if r.records == 0 {
		r.firstTime, r.first = v.StoreTimestamp, pos
	}
	r.records++
	r.lastTime = v.StoreTimestamp
	r.maxTime = max(r.maxTime, r.lastTime)

	w.findTopic()
	if w.expect.again {
		w.expect.record(v, &w.props, w.topic)
		return
	}
	w.times(pos, last)
	w.checkTopic(pos)
	w.properties(pos)
	if v.SysFlag&^knownFlags != 0 {
		r.sink.put(ruleLogSysFlag, Finding{Severity: Info, File: r.file, Offset: pos, Count: 1, Repair: repairNone,
			Meaning: "a bit that the sender has set; brokers keep it as it is"}, "system flag %#x has bits that no release defines", uint32(v.SysFlag))
	}
	if v.SysFlag.Transaction() == message.TxCommit && v.PreparedTransactionOffset != 0 {
		w.prepared(pos)
	}
	if string(v.TopicBytes()) == message.OpHalfTopic {
		w.opItems(pos)
	}
	if w.c.o.Level == Deep && v.SysFlag&message.InnerBatch != 0 {
		w.innerBatch(pos)
	}
	w.expect.record(v, &w.props, w.topic)
	if len(w.c.index.files) == 0 {
		if w.props.keys != nil || w.props.uniqKey != nil {
			r.keyed++
		}
		return
	}
	w.cursor.record(w, pos)
}

// times is rule 8.
func (w *logWorker) times(pos, last int64) {
	r, v := w.r, &w.view
	switch {
	case v.StoreTimestamp <= 0:
		r.sink.add(ruleLogTime, r.file, pos, "store time %d", v.StoreTimestamp)
	case v.StoreTimestamp < last:
		if r.disorder == 0 {
			r.disorderAt = pos
		}
		r.disorder++
	case v.BornTimestamp > v.StoreTimestamp && v.BornTimestamp-v.StoreTimestamp > bornAhead:
		r.sink.put(ruleLogTime, Finding{Severity: Warning, File: r.file, Offset: pos, Count: 1,
			Meaning: "the sender's clock was ahead"}, "birth %d ms behind the store time %d", v.BornTimestamp-v.StoreTimestamp, v.StoreTimestamp)
	}
}

// checkTopic is rule 9, apart from what makes a record unreadable.
func (w *logWorker) checkTopic(pos int64) {
	r, v := w.r, &w.view
	t := v.TopicBytes()
	if v.Magic == message.MagicV2 && len(t) <= math.MaxInt8 {
		r.sink.put(ruleLogTopic, Finding{Severity: Warning, File: r.file, Offset: pos, Count: 1,
			Meaning: "brokers before 5.1 cannot read the record, without need"}, "version 2 record with a topic of only %d bytes", len(t))
	}
	if w.topic != nil && w.topic.legal || legalTopic(t) {
		return
	}
	sev := Warning
	if bytes.HasPrefix(t, []byte(message.RetryPrefix)) || bytes.HasPrefix(t, []byte(message.DLQPrefix)) || bytes.HasPrefix(t, []byte(message.LightPrefix)) {
		sev = Info // brokers do not look at these
	}
	r.sink.put(ruleLogTopic, Finding{Severity: sev, File: r.file, Offset: pos, Count: 1, Repair: repairNone,
		Meaning: "brokers refuse to create such a topic"}, "topic %q has characters that are not legal", t)
}

func legalTopic(name []byte) bool {
	for _, b := range name {
		if !topicByte[b] {
			return false
		}
	}
	return true
}

// topicByte says which bytes are legal in a topic (RocketMQ: TopicValidator).
var topicByte = func() (legal [256]bool) {
	for _, b := range []byte("%|-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		legal[b] = true
	}
	return legal
}()

// properties is rule 10 and the rest of rule 7.
func (w *logWorker) properties(pos int64) {
	r, v, p := w.r, &w.view, &w.props
	if p.hidden {
		if r.shortProps == 0 {
			r.shortPropsAt = pos
		}
		r.shortProps++
	}
	// Only these can make the parser fail.
	if p.innerNum != nil && p.innerBase != nil || p.delay != nil && string(v.TopicBytes()) == message.ScheduleTopic {
		if err := v.ParserError(); err != nil {
			r.sink.put(ruleLogProperties, Finding{Severity: Error, File: r.file, Offset: pos, Count: 1, Repair: repairLog,
				Meaning: "a Java broker cannot parse the record: it dispatches nothing behind it in this file, and cuts the log there when it recovers"}, "%v", err)
		}
	}
	if p.light() {
		if _, err := v.LightQueues(); err != nil {
			r.sink.put(ruleLogProperties, Finding{Severity: Error, File: r.file, Offset: pos, Count: 1, Repair: repairNone,
				Meaning: "Java brokers put the message into none of its light queues"}, "%v", err)
		}
	}
	if props := v.PropsBytes(); bytes.IndexByte(props, '#') >= 0 { // in few; searching one byte is quick
		if i := bytes.Index(props, []byte(message.PropCRC32)); i >= 0 && !v.HasPropertyCRC() {
			w.strayCRC(pos, i)
		}
	}
}

// propScan is what the check needs of a record's properties, found in one pass
// by the rules of message.Properties. The values are parts of the record.
type propScan struct {
	keys, tags, uniqKey, delay []byte
	innerNum, innerBase        []byte
	lightQueues, lightOffsets  []byte
	hidden                     bool // some segment is no pair that readers return

	names [48][2]uint16 // where the names seen so far are, from … to
}

// light reports whether the record names light queues and its offsets there.
func (p *propScan) light() bool { return p.lightQueues != nil && p.lightOffsets != nil }

// scan looks through a property string.
func (r *propScan) scan(p []byte) {
	r.keys, r.tags, r.uniqKey, r.delay, r.innerNum, r.innerBase, r.lightQueues, r.lightOffsets = nil, nil, nil, nil, nil, nil, nil, nil
	r.hidden = false
	count := 0
	for next := 0; next < len(p); {
		at := next
		seg := p[at:]
		if end := bytes.IndexByte(seg, 0x02); end >= 0 {
			seg = seg[:end]
		}
		next += len(seg) + 1
		if len(seg) == 0 {
			continue
		}
		n := bytes.IndexByte(seg, 0x01)
		if n <= 0 || n == len(seg)-1 {
			r.hidden = true
			continue
		}
		name, value := seg[:n], seg[n+1:]
		for _, o := range r.names[:min(count, len(r.names))] {
			if string(p[o[0]:o[1]]) == string(name) {
				r.hidden = true
			}
		}
		if count < len(r.names) {
			r.names[count] = [2]uint16{uint16(at), uint16(at + n)} // a property string has at most 32767 bytes
		}
		count++
		switch string(name) {
		case message.PropKeys:
			r.keys = value
		case message.PropTags:
			r.tags = value
		case message.PropUniqKey:
			r.uniqKey = value
		case message.PropDelay:
			r.delay = value
		case message.PropInnerNum:
			r.innerNum = value
		case message.PropInnerBase:
			r.innerBase = value
		case message.PropInnerMultiDispatch:
			r.lightQueues = value
		case message.PropInnerMultiQueueOffset:
			r.lightOffsets = value
		}
	}
}

// text returns the bytes as a string without copying them. It is for passing
// them to functions that do not keep it.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// strayCRC looks at a property CRC that is not the last property.
func (w *logWorker) strayCRC(pos int64, at int) {
	r, v := w.r, &w.view
	if rec := v.Record(); len(rec) == int(v.Size) {
		if _, err := message.Check(rec, v.PhysicalOffset, message.CheckOptions{RequirePropertyCRC: true}); err == nil {
			r.sink.put(ruleLogPropCRC, Finding{Severity: Info, File: r.file, Offset: pos, Count: 1, Repair: repairNone,
				Meaning: "the value before it reads with these bytes at its end; Java brokers write client batches so"},
				"the property CRC is not separated from the property before it")
			return
		}
	}
	r.sink.put(ruleLogPropCRC, Finding{Severity: Warning, File: r.file, Offset: pos, Count: 1, Repair: repairNone,
		Meaning: "some programs take it for the record's checksum, which it is not"},
		"%q stands at byte %d of the properties, not at their end", message.PropCRC32, at)
}

// prepared is rule 12.
func (w *logWorker) prepared(pos int64) {
	r, v := w.r, &w.view
	half := int64(v.PreparedTransactionOffset)
	if half < w.c.log.min || half >= w.c.log.top() {
		return
	}
	info, err := w.peek.look(half)
	switch {
	case err != nil:
		r.sink.add(ruleLogPrepared, r.file, pos, "the half message should be at %d: %v", half, err)
	case half >= r.seg.start+pos:
		r.sink.add(ruleLogPrepared, r.file, pos, "the half message at %d is behind its commit", half)
	case info.topic != message.HalfTopic && info.SysFlag.Transaction() != message.TxPrepared:
		r.sink.add(ruleLogPrepared, r.file, pos, "the record at %d is no half message but one of topic %q", half, info.topic)
	}
}

// opItems is rule 47. Brokers up to 5.0 write one queue offset, later ones
// several, each followed by a comma.
func (w *logWorker) opItems(pos int64) {
	r, v := w.r, &w.view
	if tags := w.props.tags; string(tags) != "d" {
		r.sink.add(ruleTransactionOp, r.file, pos, "tags %s instead of \"d\"", quoteShort(string(tags)))
	}
	if len(v.Record()) != int(v.Size) {
		r.sink.add(ruleTransactionOp, r.file, pos, "body of %d bytes", v.BodyLen)
		return
	}
	for item := range message.Split(string(v.Body()), ',') {
		off, err := strconv.ParseInt(item, 10, 64)
		if err != nil || off < 0 {
			r.sink.add(ruleTransactionOp, r.file, pos, "%s is no queue offset", quoteShort(item))
			return
		}
		if r.ops == nil {
			r.ops = map[int32]opItem{}
		}
		if op, ok := r.ops[v.QueueID]; (!ok || off > op.offset) && len(r.ops) < 10_000 {
			r.ops[v.QueueID] = opItem{off, r.seg.start + pos}
		}
	}
}

// quoteShort quotes hostile text for a finding.
func quoteShort(s string) string {
	const most = 40
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…"
	}
	return strconv.Quote(s)
}

// innerBatch checks the items in the body of an inner batch, unless it is
// compressed.
func (w *logWorker) innerBatch(pos int64) {
	r, v := w.r, &w.view
	_, num, ok := v.InnerBatch()
	if !ok || v.SysFlag&message.Compressed != 0 || len(v.Record()) != int(v.Size) {
		return
	}
	n := 0
	for _, err := range message.SplitBatch(v.Body()) {
		if err != nil {
			r.sink.add(ruleQueueBatch, r.file, pos, "item %d in the body of the inner batch: %v", n, err)
			return
		}
		n++
	}
	if n != int(num) {
		r.sink.add(ruleQueueBatch, r.file, pos, "the inner batch has %d items, INNER_NUM says %d", n, num)
	}
}
