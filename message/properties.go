package message

import (
	"iter"
	"strconv"
	"strings"
)

// The separators of the property string, section 4.3.
const (
	nameSep = 0x01 // between name and value
	pairSep = 0x02 // between pairs
)

// LightQueueSep separates the items of INNER_MULTI_DISPATCH and
// INNER_MULTI_QUEUE_OFFSET.
const LightQueueSep = ','

// keySep separates the pieces of KEYS (RocketMQ: KEY_SEPARATOR).
const keySep = ' '

// NewProperties returns the string of the pairs name, value, name, value, …,
// each ended by 0x02. Pairs with an empty name or value are left out, because
// no reader would find them. See CheckProperty for text from outside.
func NewProperties(pairs ...string) Properties {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "" || pairs[i+1] == "" {
			continue
		}
		b.WriteString(pairs[i])
		b.WriteByte(nameSep)
		b.WriteString(pairs[i+1])
		b.WriteByte(pairSep)
	}
	return Properties(b.String())
}

// CheckProperty reports whether Get would return value after Set(name, value):
// both are non-empty, the name holds no 0x01, and neither holds 0x02.
func CheckProperty(name, value string) error {
	switch {
	case name == "":
		return illegal("properties", "empty name")
	case value == "":
		return illegal(name, "empty value")
	case strings.IndexByte(name, nameSep) >= 0 || strings.IndexByte(name, pairSep) >= 0:
		return illegal(strconv.Quote(name), "name contains a separator")
	case strings.IndexByte(value, pairSep) >= 0:
		return illegal(name, "value contains a separator")
	}
	return nil
}

// Get returns the value of the last valid pair of that name. The string is
// part of p: no allocation.
func (p Properties) Get(name string) (string, bool) {
	s := string(p)
	if !strings.Contains(s, name) { // most names that are asked for are not there
		return "", false
	}
	value := ""
	for len(s) > len(name)+1 {
		// A pair of that name starts with it and goes on with the first 0x01.
		hit := s[len(name)] == nameSep && s[:len(name)] == name
		end := strings.IndexByte(s, pairSep)
		if end < 0 {
			end = len(s)
		}
		if hit && end > len(name)+1 {
			value = s[len(name)+1 : end]
		}
		if end == len(s) {
			break
		}
		s = s[end+1:]
	}
	// An empty value is no value to upstream, so "" needs no second flag. A
	// name that is empty or holds a separator cannot be that of a pair.
	if value == "" || name == "" || strings.IndexByte(name, nameSep) >= 0 {
		return "", false
	}
	return value, true
}

// Reserved are the properties that stores and brokers act upon, each as Get
// returns it, "" for none. Reserved finds them in one pass.
type Reserved struct {
	Keys, Tags, UniqKey string
	Delay               string
	InnerNum, InnerBase string
	TransactionPrepared string
	ShardingKey         string
	Timed               bool // one that asks for a delay of its own length or for a time
	OfBroker            bool // a pair, even an empty one, of those that brokers add or take away
	hasCRC              bool // a pair, even an empty one
}

// Reserved returns the reserved properties. The strings are part of p.
func (p Properties) Reserved() Reserved {
	var r Reserved
	for s := string(p); s != ""; {
		seg := s
		if end := strings.IndexByte(s, pairSep); end >= 0 {
			seg, s = s[:end], s[end+1:]
		} else {
			s = ""
		}
		sep := strings.IndexByte(seg, nameSep)
		if sep <= 0 {
			continue
		}
		r.note(seg[:sep], seg[sep+1:])
	}
	return r
}

// note takes the next pair into account.
func (r *Reserved) note(name, value string) {
	switch name {
	case PropCRC32:
		r.hasCRC = true
	case PropCluster, PropMsgRegion, PropTraceSwitch, PropPopCheckPoint:
		r.OfBroker = true
	case PropUniqKey:
		r.OfBroker = r.OfBroker || value == ""
	}
	if value == "" {
		return
	}
	switch name {
	case PropKeys:
		r.Keys = value
	case PropTags:
		r.Tags = value
	case PropUniqKey:
		r.UniqKey = value
	case PropDelay:
		r.Delay = value
	case PropInnerNum:
		r.InnerNum = value
	case PropInnerBase:
		r.InnerBase = value
	case PropTransactionPrepared:
		r.TransactionPrepared = value
	case PropShardingKey:
		r.ShardingKey = value
	case PropTimerDelaySec, PropTimerDelayMS, PropTimerDeliverMS, PropStartDeliverTime:
		r.Timed = true
	}
}

// segments yields what stands between the 0x02 bytes, with its position.
func (p Properties) segments() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		s := string(p)
		for at := 0; at < len(s); {
			end := strings.IndexByte(s[at:], pairSep)
			if end < 0 {
				end = len(s)
			} else {
				end += at
			}
			if !yield(at, s[at:end]) {
				return
			}
			at = end + 1
		}
	}
}

// All yields the valid pairs in stored order, duplicates included. The strings
// are parts of p.
func (p Properties) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, seg := range p.segments() {
			name, value, _ := strings.Cut(seg, "\x01")
			if name != "" && value != "" && !yield(name, value) {
				return
			}
		}
	}
}

// Map returns the valid pairs; of duplicates the last one wins.
func (p Properties) Map() map[string]string {
	m := make(map[string]string)
	for name, value := range p.All() {
		m[name] = value
	}
	return m
}

// Set returns p without the pairs of that name and with name, value as its last
// pair, ended by 0x02. All other bytes are kept. An empty value only removes,
// as no reader would find it. A 0x02 in value would end it for every reader;
// see CheckProperty.
func (p Properties) Set(name, value string) Properties {
	p = p.Delete(name)
	if value == "" {
		return p
	}
	sep := ""
	if p.needsSep() {
		sep = "\x02"
	}
	return p + Properties(sep+name+"\x01"+value+"\x02")
}

// needsSep reports whether a 0x02 must be written before a further pair.
func (p Properties) needsSep() bool { return p != "" && p[len(p)-1] != pairSep }

// Delete returns p without any pair of that name, empty ones included; all
// other bytes are kept. If there is none it returns p itself.
func (p Properties) Delete(name string) Properties {
	if name == "" || !strings.Contains(string(p), name) {
		return p
	}
	var b strings.Builder
	kept := 0 // everything before it was decided upon
	found := false
	for at, seg := range p.segments() {
		if n, _, ok := strings.Cut(seg, "\x01"); !ok || n != name {
			continue
		}
		if !found {
			found = true
			b.Grow(len(p))
		}
		b.WriteString(string(p[kept:at]))
		kept = min(at+len(seg)+1, len(p))
	}
	if !found {
		return p
	}
	b.WriteString(string(p[kept:]))
	return Properties(b.String())
}

// PropertyProblems counts what no reader of a property string returns, though
// the bytes hold it.
type PropertyProblems struct {
	NoSeparator int // a segment without 0x01
	EmptyName   int
	EmptyValue  int
	Duplicate   int // a pair that a later one of the same name hides
}

// Problems looks through the whole string. Doubled, leading and missing
// trailing 0x02 are no problem: they hide nothing.
func (p Properties) Problems() PropertyProblems {
	var pr PropertyProblems
	seen := make(map[string]struct{})
	for _, seg := range p.segments() {
		name, value, ok := strings.Cut(seg, "\x01")
		switch {
		case seg == "":
		case !ok:
			pr.NoSeparator++
		case name == "":
			pr.EmptyName++
		case value == "":
			pr.EmptyValue++
		default:
			if _, dup := seen[name]; dup {
				pr.Duplicate++
			}
			seen[name] = struct{}{}
		}
	}
	return pr
}

// HasBadSegments reports whether some segment is no valid pair.
func (p Properties) HasBadSegments() bool {
	pr := p.Problems()
	return pr.NoSeparator+pr.EmptyName+pr.EmptyValue > 0
}

// Split yields the pieces of s between sep as Java's String.split does:
// trailing empty pieces are dropped, leading and inner ones kept, and an empty
// s is one empty piece (section 4.2).
func Split(s string, sep byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		if s == "" {
			yield("")
			return
		}
		for s = trimRight(s, sep); s != ""; {
			end := strings.IndexByte(s, sep)
			if end < 0 {
				yield(s)
				return
			}
			if !yield(s[:end]) {
				return
			}
			s = s[end+1:]
		}
	}
}

// trimRight cuts all sep from the end of s.
func trimRight(s string, sep byte) string {
	for s != "" && s[len(s)-1] == sep {
		s = s[:len(s)-1]
	}
	return s
}

// keyPieces yields the keys in a KEYS property.
func keyPieces(keys string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range Split(keys, keySep) {
			if key != "" && !yield(key) {
				return
			}
		}
	}
}

// Keys yields the non-empty pieces of KEYS, as they are indexed.
func (p Properties) Keys() iter.Seq[string] {
	keys, _ := p.Get(PropKeys)
	return keyPieces(keys)
}

// Tags returns the TAGS property or "".
func (p Properties) Tags() string {
	tags, _ := p.Get(PropTags)
	return tags
}

// UniqKey returns the UNIQ_KEY property or "".
func (p Properties) UniqKey() string {
	key, _ := p.Get(PropUniqKey)
	return key
}

// DelayLevel returns the DELAY property, 0 if there is none.
func (p Properties) DelayLevel() (int, error) {
	s, ok := p.Get(PropDelay)
	if !ok {
		return 0, nil
	}
	n, ok := parseInt(s, 32)
	if !ok {
		return 0, illegal(PropDelay, "%q is no number", s)
	}
	return int(n), nil
}

// WaitStoreOK reports whether the sender wants to wait for durability: unless
// the WAIT property says otherwise.
func (p Properties) WaitStoreOK() bool {
	s, ok := p.Get(PropWait)
	return !ok || strings.EqualFold(s, "true")
}

// Keys is m.Properties.Keys.
func (m *Message) Keys() iter.Seq[string] { return m.Properties.Keys() }

// Tags is m.Properties.Tags.
func (m *Message) Tags() string { return m.Properties.Tags() }

// UniqKey is m.Properties.UniqKey.
func (m *Message) UniqKey() string { return m.Properties.UniqKey() }

// DelayLevel is m.Properties.DelayLevel.
func (m *Message) DelayLevel() (int, error) { return m.Properties.DelayLevel() }

// parseInt reads a decimal as Java does, but only ASCII digits: an optional
// sign, no blanks, within bits.
func parseInt(s string, bits int) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, bits)
	return n, err == nil
}

// InnerBatch returns the first queue offset and the number of messages of an
// inner batch. ok is false unless INNER_BASE and INNER_NUM are both there and
// make sense: base >= 0, num >= 1. The record's SysFlag must say InnerBatch too.
func (p Properties) InnerBatch() (base QueueOffset, num int16, ok bool) {
	sn, hasNum := p.Get(PropInnerNum)
	if !hasNum {
		return 0, 0, false
	}
	sb, hasBase := p.Get(PropInnerBase)
	if !hasBase {
		return 0, 0, false
	}
	n, okNum := parseInt(sn, 16)
	b, okBase := parseInt(sb, 64)
	if !okNum || !okBase || n < 1 || b < 0 {
		return 0, 0, false
	}
	return QueueOffset(b), int16(n), true
}

// InnerNum returns the INNER_NUM property of a message to be stored as an inner
// batch; it is refused unless it is a number from 1 to 32767.
func (p Properties) InnerNum() (int16, error) {
	s, ok := p.Get(PropInnerNum)
	if !ok {
		return 0, illegal(PropInnerNum, "missing")
	}
	n, ok := parseInt(s, 16)
	if !ok || n < 1 {
		return 0, illegal(PropInnerNum, "%q is no number from 1 to 32767", s)
	}
	return int16(n), nil
}

// LightQueue is a further queue that refers to a record (RocketMQ: LMQ).
type LightQueue struct {
	Name   string
	Offset QueueOffset
}

// IsLight reports whether a queue name is that of a light queue. Its queue id
// is always 0.
func IsLight(name string) bool { return strings.HasPrefix(name, LightPrefix) }

// QueueID is the id of a queue that a record names besides its own: 0, but what
// names an ordinary topic, as brokers of 4.9 allow, means the record's id.
func (l LightQueue) QueueID(own int32) int32 {
	if IsLight(l.Name) {
		return 0
	}
	return own
}

// AllowsLightQueues reports whether messages of topic may be referred to by
// light queues: not those of retry, system and schedule topics (5.x).
func AllowsLightQueues(topic string) bool {
	return topic != ScheduleTopic && !strings.HasPrefix(topic, RetryPrefix) && !strings.HasPrefix(topic, SystemPrefix)
}

// LightNames yields the queue names in INNER_MULTI_DISPATCH, in order, with
// empty and repeated ones: each takes its place in the list of offsets.
func (p Properties) LightNames() iter.Seq[string] {
	names, ok := p.Get(PropInnerMultiDispatch)
	if !ok {
		return func(func(string) bool) {}
	}
	return Split(names, LightQueueSep)
}

// LightQueues pairs INNER_MULTI_DISPATCH with INNER_MULTI_QUEUE_OFFSET. It
// returns nothing when one of them is missing. Lists of different length and
// offsets that are no number are a *FormatError: upstream then puts the record
// into none of these queues (section 9).
func (p Properties) LightQueues() ([]LightQueue, error) {
	names, ok := p.Get(PropInnerMultiDispatch)
	if !ok {
		return nil, nil
	}
	offsets, ok := p.Get(PropInnerMultiQueueOffset)
	if !ok {
		return nil, nil
	}
	var list []LightQueue
	for name := range Split(names, LightQueueSep) {
		list = append(list, LightQueue{Name: name})
	}
	i := 0
	for s := range Split(offsets, LightQueueSep) {
		if i < len(list) {
			off, ok := parseInt(s, 64)
			if !ok || off < 0 {
				return nil, badFormat(PropInnerMultiQueueOffset, int64(i), "is the item that is no offset, of", int64(len(list)))
			}
			list[i].Offset = QueueOffset(off)
		}
		i++
	}
	if i != len(list) {
		return nil, badFormat(PropInnerMultiQueueOffset, int64(i), "items, but the number of queues is", int64(len(list)))
	}
	return list, nil
}

// JoinOffsets formats the value of INNER_MULTI_QUEUE_OFFSET.
func JoinOffsets(offsets []QueueOffset) string {
	var b []byte
	for i, off := range offsets {
		if i > 0 {
			b = append(b, LightQueueSep)
		}
		b = strconv.AppendInt(b, int64(off), 10)
	}
	return string(b)
}
