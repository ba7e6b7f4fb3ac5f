package metadata

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gantrymq/gantry/remoting"
)

// topicsContent is a topics.json:
//
//	{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1704067200000},
//	 "topicConfigTable":{"Orders":{…}}}
//
// The name in the table counts, not the one in the entry.
type topicsContent struct {
	version remoting.DataVersion
	entries map[string]*topicEntry
	kept    topicsKept
}

// topicsKept is what goes back into the file as it came.
type topicsKept struct {
	unknown  unknown
	unserved map[string]unserved
}

// unserved is an entry whose name or values no request can use.
type unserved struct {
	json []byte
	err  error
}

// topicMembers are the members of an entry that remoting.TopicConfig has.
var topicMembers = map[string]bool{
	"attributes": true, "order": true, "perm": true, "readQueueNums": true, "topicFilterType": true,
	"topicName": true, "topicSysFlag": true, "writeQueueNums": true,
}

// UnmarshalJSON reads what encoding/json has found well-formed.
func (c *topicsContent) UnmarshalJSON(data []byte) error {
	c.entries, c.kept.unserved = make(map[string]*topicEntry), make(map[string]unserved)
	return eachMember(data, func(name string, v []byte) (err error) {
		switch name {
		case "dataVersion":
			c.version, err = versionOf(v)
		case "topicConfigTable":
			clear(c.entries)
			clear(c.kept.unserved)
			err = eachMember(v, c.entry)
		default:
			return c.kept.unknown.keep(name, v)
		}
		return in(name, err)
	})
}

func (c *topicsContent) entry(name string, v []byte) error {
	e, err := topicOf(name, v)
	if err != nil {
		return in(name, err)
	}
	delete(c.entries, name) // of several with one name the last counts
	delete(c.kept.unserved, name)
	if err := e.servable(); err != nil {
		c.kept.unserved[name] = unserved{append([]byte(nil), v...), err}
	} else {
		c.entries[name] = e
	}
	if len(c.entries)+len(c.kept.unserved) > MaxTopics {
		return fmt.Errorf("more than %d topics", MaxTopics)
	}
	return nil
}

func topicOf(name string, v []byte) (*topicEntry, error) {
	e := new(topicEntry)
	if err := remoting.DecodeBody(v, &e.config); err != nil {
		return nil, err
	}
	e.config.TopicName = name
	err := eachMember(v, func(member string, value []byte) error {
		if topicMembers[member] {
			return nil
		}
		return e.unknown.keep(member, value)
	})
	return e, err
}

func (e *topicEntry) servable() error {
	c := &e.config
	switch {
	case !servable(c.TopicName):
		return fmt.Errorf("the name %.100q is not allowed", c.TopicName)
	case !validQueueNums(c.ReadQueueNums) || !validQueueNums(c.WriteQueueNums):
		return fmt.Errorf("%d read and %d write queues, a topic has 0 to %d", c.ReadQueueNums, c.WriteQueueNums, MaxQueueNums)
	}
	return nil
}

func (t *Topics) encode() []byte {
	entries, version := t.snapshot()
	dst := make([]byte, 0, 1024+256*len(entries))
	dst = append(dst, '{')
	dst = remoting.AppendBody(appendName(dst, "dataVersion"), &version)
	dst = append(appendName(dst, "topicConfigTable"), '{')
	for _, name := range namesOf(entries, t.kept.unserved) {
		dst = appendName(dst, name)
		if e := entries[name]; e != nil {
			dst = e.unknown.appendTo(remoting.AppendBody(dst, &e.config))
		} else {
			dst = append(dst, t.kept.unserved[name].json...)
		}
	}
	dst = append(dst, '}', '}')
	return t.kept.unknown.appendTo(dst)
}

// namesOf returns the names of both, sorted. What was created since under the
// name of an entry that could not be served takes its place.
func namesOf[V any](entries map[string]V, unserved map[string]unserved) []string {
	names := make([]string, 0, len(entries)+len(unserved))
	names = slices.AppendSeq(names, maps.Keys(entries))
	for name := range unserved {
		if _, ok := entries[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
