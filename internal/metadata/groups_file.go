package metadata

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gantrymq/gantry/remoting"
)

// groupsContent is a subscriptionGroup.json:
//
//	{"dataVersion":{…},"forbiddenTable":{"group":{"topic":4}},
//	 "subscriptionGroupTable":{"group":{…}}}
//
// The name in the table counts, not the one in the entry.
type groupsContent struct {
	version   remoting.DataVersion
	entries   map[string]*groupEntry
	forbidden map[string]map[string]int32
	kept      groupsKept
}

// groupsKept is what goes back into the file as it came.
type groupsKept struct {
	unknown  unknown
	unserved map[string]unserved
}

// groupMembers are the members of an entry that remoting.GroupConfig has.
var groupMembers = map[string]bool{
	"attributes": true, "brokerId": true, "consumeBroadcastEnable": true, "consumeEnable": true,
	"consumeFromMinEnable": true, "consumeMessageOrderly": true, "consumeTimeoutMinute": true, "groupName": true,
	"groupRetryPolicy": true, "groupSysFlag": true, "notifyConsumerIdsChangedEnable": true, "retryMaxTimes": true,
	"retryQueueNums": true, "subscriptionDataSet": true, "whichBrokerWhenConsumeSlowly": true,
}

// UnmarshalJSON reads what encoding/json has found well-formed.
func (c *groupsContent) UnmarshalJSON(data []byte) error {
	c.entries, c.kept.unserved = make(map[string]*groupEntry), make(map[string]unserved)
	c.forbidden = make(map[string]map[string]int32)
	return eachMember(data, func(name string, v []byte) (err error) {
		switch name {
		case "dataVersion":
			c.version, err = versionOf(v)
		case "forbiddenTable":
			clear(c.forbidden)
			if !isNull(v) {
				err = eachMember(v, c.forbid)
			}
		case "subscriptionGroupTable":
			clear(c.entries)
			clear(c.kept.unserved)
			err = eachMember(v, c.entry)
		default:
			return c.kept.unknown.keep(name, v)
		}
		return in(name, err)
	})
}

func (c *groupsContent) entry(name string, v []byte) error {
	e := new(groupEntry)
	if err := remoting.DecodeBody(v, &e.config); err != nil {
		return in(name, err)
	}
	e.config.GroupName = name
	// They alias the whole file.
	e.config.RetryPolicy = slices.Clone(e.config.RetryPolicy)
	e.config.SubscriptionDataSet = slices.Clone(e.config.SubscriptionDataSet)
	err := eachMember(v, func(member string, value []byte) error {
		if groupMembers[member] {
			return nil
		}
		return e.unknown.keep(member, value)
	})
	if err != nil {
		return in(name, err)
	}
	delete(c.entries, name) // of several with one name the last counts
	delete(c.kept.unserved, name)
	if servable(name) {
		c.entries[name] = e
	} else {
		c.kept.unserved[name] = unserved{slices.Clone(v), fmt.Errorf("the name %.100q is not allowed", name)}
	}
	if len(c.entries)+len(c.kept.unserved) > MaxGroups {
		return fmt.Errorf("more than %d groups", MaxGroups)
	}
	return nil
}

func (c *groupsContent) forbid(group string, v []byte) error {
	topics := make(map[string]int32)
	err := eachMember(v, func(topic string, v []byte) error {
		bits, err := intOf(v, 32)
		topics[topic] = int32(bits)
		return in(topic, err)
	})
	c.forbidden[group] = topics
	return in(group, err)
}

func (g *Groups) encode() []byte {
	entries, forbidden, version := g.snapshot()
	dst := make([]byte, 0, 1024+512*len(entries))
	dst = append(dst, '{')
	dst = remoting.AppendBody(appendName(dst, "dataVersion"), &version)
	dst = appendForbidden(appendName(dst, "forbiddenTable"), forbidden)
	dst = append(appendName(dst, "subscriptionGroupTable"), '{')
	for _, name := range namesOf(entries, g.kept.unserved) {
		dst = appendName(dst, name)
		if e := entries[name]; e != nil {
			dst = e.unknown.appendTo(remoting.AppendBody(dst, &e.config))
		} else {
			dst = append(dst, g.kept.unserved[name].json...)
		}
	}
	dst = append(dst, '}', '}')
	return g.kept.unknown.appendTo(dst)
}

func appendForbidden(dst []byte, forbidden map[string]map[string]int32) []byte {
	dst = append(dst, '{')
	for _, group := range sortedKeys(forbidden) {
		dst = append(appendName(dst, group), '{')
		for _, topic := range sortedKeys(forbidden[group]) {
			dst = strconv.AppendInt(appendName(dst, topic), int64(forbidden[group][topic]), 10)
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
