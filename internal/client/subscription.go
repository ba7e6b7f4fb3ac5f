package client

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// allTags is the expression that every message matches.
const allTags = "*"

// An Expression selects messages of a topic. The zero value selects all.
type Expression struct {
	// Type is remoting.ExpressionTag or ExpressionSQL92; "" is the first.
	Type string
	// Text is "a || b" for tags, or a condition. "" and "*" select all.
	Text string
}

// Tags returns the expression for messages with one of some tags.
func Tags(tags ...string) Expression { return Expression{Text: strings.Join(tags, " || ")} }

// SQL returns the expression for messages whose properties meet a condition.
func SQL(condition string) Expression {
	return Expression{Type: remoting.ExpressionSQL92, Text: condition}
}

// subscribe returns e as a subscription of topic.
func (e Expression) subscribe(topic string, version int64) (remoting.Subscription, error) {
	s := remoting.Subscription{
		Topic: topic, SubString: strings.TrimSpace(e.Text), SubVersion: version,
		ExpressionType: cmp.Or(e.Type, remoting.ExpressionTag),
	}
	switch {
	case s.SubString == "" || s.SubString == allTags:
		s.SubString, s.ExpressionType = allTags, remoting.ExpressionTag
		return s, nil
	case s.ExpressionType != remoting.ExpressionTag:
		return s, nil
	}
	for tag := range strings.SplitSeq(s.SubString, "||") {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(s.Tags, tag) {
			s.Tags = append(s.Tags, tag)
			s.Codes = append(s.Codes, message.JavaHash(tag))
		}
	}
	if len(s.Tags) == 0 {
		return s, errors.New("expression " + s.SubString + " names no tag")
	}
	return s, nil
}

// matches reports whether a message that a broker sent for the subscription has
// one of its tags: the broker compares their hashes only.
func matches(s *remoting.Subscription, m *message.Ext) bool {
	return len(s.Tags) == 0 || slices.Contains(s.Tags, m.Tags())
}
