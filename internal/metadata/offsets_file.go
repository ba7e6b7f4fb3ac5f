package metadata

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry/remoting"
)

// offsetsContent is a consumerOffset.json:
//
//	{"dataVersion":{…},"offsetTable":{"topic@group":{0:12,1:7}}}
//
// 5.x also writes groupTopicMap, which says nothing that offsetTable does not
// say; it is dropped. 4.x has no dataVersion.
type offsetsContent struct {
	version remoting.DataVersion
	pairs   map[pair][]queueOffset
	size    int64
	kept    offsetsKept
}

// offsetsKept is what goes back into the file as it came.
type offsetsKept struct {
	unknown  unknown
	unserved map[string][]byte // entries of offsetTable whose keys are not topic@group
}

// UnmarshalJSON reads what encoding/json has found well-formed.
func (c *offsetsContent) UnmarshalJSON(data []byte) error {
	c.pairs, c.kept.unserved = make(map[pair][]queueOffset), make(map[string][]byte)
	return eachMember(data, func(name string, v []byte) (err error) {
		switch name {
		case "dataVersion":
			c.version, err = versionOf(v)
		case "offsetTable":
			clear(c.pairs)
			clear(c.kept.unserved)
			c.size = 0
			err = eachMember(v, c.entry)
		case "groupTopicMap":
		default:
			return c.kept.unknown.keep(name, v)
		}
		return in(name, err)
	})
}

func (c *offsetsContent) entry(key string, v []byte) error {
	// No name of a topic has an @. What upstream keeps for broadcast groups has
	// a second one, in the part behind.
	topic, group, ok := strings.Cut(key, "@")
	if !ok {
		c.kept.unserved[key] = slices.Clone(v)
		if len(c.kept.unserved) > maxUnknown {
			return errors.New("too many keys that are not topic@group")
		}
		return nil
	}
	queues, err := queueOffsets(v)
	if err != nil {
		return in(key, err)
	}
	p := pair{topic, group}
	if old, ok := c.pairs[p]; ok { // of several with one name the last counts
		c.size -= p.cost() + queueCost*int64(len(old))
	}
	c.pairs[p] = queues
	if c.size += p.cost() + queueCost*int64(len(queues)); c.size > MaxOffsetsSize {
		return errors.New("more offsets than a broker keeps")
	}
	return nil
}

// queueOffsets reads {0:12,1:7} and sorts it by queue id. Upstream stores a
// commit of -1, which means that there is no offset, so that is left out.
func queueOffsets(v []byte) ([]queueOffset, error) {
	var queues []queueOffset
	sorted := true
	err := eachMember(v, func(key string, v []byte) error {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return in(key, errors.New("the key is not a queue id"))
		}
		offset, err := intOf(v, 64)
		if err != nil {
			return in(key, err)
		}
		sorted = sorted && (len(queues) == 0 || queues[len(queues)-1].id < int32(id))
		queues = append(queues, queueOffset{int32(id), offset})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !sorted {
		slices.SortStableFunc(queues, byQueueID)
		// Of several with one id the last counts.
		slices.Reverse(queues)
		queues = slices.CompactFunc(queues, func(a, b queueOffset) bool { return a.id == b.id })
		slices.Reverse(queues)
	}
	queues = slices.DeleteFunc(queues, func(q queueOffset) bool { return q.offset < 0 })
	return slices.Clip(queues), nil
}

func byQueueID(a, b queueOffset) int { return cmp.Compare(a.id, b.id) }

func (o *Offsets) encode() []byte {
	o.mu.Lock()
	advance(&o.version)
	version := o.version
	o.mu.Unlock()

	// Under the locks offsets are only copied, into one slice that has room.
	type part struct {
		pair
		key      string
		from, to int
		raw      []byte
	}
	pairs, count := o.count()
	parts := make([]part, 0, pairs+len(o.kept.unserved))
	queues := make([]queueOffset, 0, count)
	for i := range o.shards {
		s := &o.shards[i]
		s.RLock()
		for p, g := range s.pairs {
			from := len(queues)
			queues = append(queues, g.queues...)
			parts = append(parts, part{pair: p, from: from, to: len(queues)})
		}
		s.RUnlock()
	}
	for i := range parts {
		parts[i].key = parts[i].String()
	}
	for key, raw := range o.kept.unserved {
		parts = append(parts, part{key: key, raw: raw})
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.key, b.key) })
	dst := make([]byte, 0, 1024+64*len(parts)+16*len(queues))
	dst = append(dst, '{')
	dst = remoting.AppendBody(appendName(dst, "dataVersion"), &version)
	dst = append(appendName(dst, "offsetTable"), '{')
	for _, p := range parts {
		dst = appendName(dst, p.key)
		if p.raw != nil {
			dst = append(dst, p.raw...)
			continue
		}
		dst = appendQueueOffsets(dst, queues[p.from:p.to])
	}
	dst = append(dst, '}', '}')
	return o.kept.unknown.appendTo(dst)
}

// count returns how many pairs and queues there are, roughly.
func (o *Offsets) count() (pairs, queues int) {
	for i := range o.shards {
		s := &o.shards[i]
		s.RLock()
		pairs += len(s.pairs)
		for _, g := range s.pairs {
			queues += len(g.queues)
		}
		s.RUnlock()
	}
	return pairs, queues
}

func appendQueueOffsets(dst []byte, queues []queueOffset) []byte {
	dst = append(dst, '{')
	for i, q := range queues {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(strconv.AppendInt(dst, int64(q.id), 10), ':')
		dst = strconv.AppendInt(dst, q.offset, 10)
	}
	return append(dst, '}')
}
