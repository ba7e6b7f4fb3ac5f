package membership

import (
	"fmt"
	"strings"

	"github.com/gantrymq/gantry/remoting"
)

// Bounds of what a client may say. Genuine clients stay far below them:
// group names have at most 120 bytes, topics 127 (255 with the prefix of a retry
// topic), and a process has a few groups.
const (
	MaxNameLen       = 255       // of groups, topics, broker names and expression types, in bytes
	MaxClientIDLen   = 1024      // in bytes
	MaxGroups        = 1024      // consumer groups of a connection, and as many producer groups
	MaxSubscriptions = 4096      // topics of a consumer group
	MaxTags          = 1024      // of a subscription
	MaxTagLen        = 1<<15 - 1 // in bytes: that of all properties of a message
	MaxExpressionLen = 1 << 16   // in bytes
	MaxLockBatch     = 1 << 14   // queues of one request for locks
)

// A FieldError says which part of a heartbeat or of a request for locks is not
// acceptable.
type FieldError struct {
	Field  string // as in JSON: "consumerDataSet.groupName"
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

func checkName(field, name string, limit int) error {
	switch {
	case name == "":
		return &FieldError{field, "missing"}
	case len(name) > limit:
		return &FieldError{field, fmt.Sprintf("%d bytes, at most %d", len(name), limit)}
	}
	return nil
}

func checkLen(field string, n, limit int, what string) error {
	if n > limit {
		return &FieldError{field, fmt.Sprintf("%d %s, at most %d", n, what, limit)}
	}
	return nil
}

// checkHeartbeat checks what can be judged without knowing anything else.
func checkHeartbeat(hb *remoting.Heartbeat) error {
	if err := checkName("clientID", hb.ClientID, MaxClientIDLen); err != nil {
		return err
	}
	if err := checkLen("producerDataSet", len(hb.Producers), MaxGroups, "groups"); err != nil {
		return err
	}
	if err := checkLen("consumerDataSet", len(hb.Consumers), MaxGroups, "groups"); err != nil {
		return err
	}
	for i := range hb.Producers {
		if err := checkName("producerDataSet.groupName", hb.Producers[i].GroupName, MaxNameLen); err != nil {
			return err
		}
	}
	for i := range hb.Consumers {
		c := &hb.Consumers[i]
		if err := checkName("consumerDataSet.groupName", c.GroupName, MaxNameLen); err != nil {
			return err
		}
		if err := checkLen("subscriptionDataSet", len(c.Subscriptions), MaxSubscriptions, "topics"); err != nil {
			return err
		}
		for j := range c.Subscriptions {
			if err := checkSubscription(&c.Subscriptions[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkSubscription(s *remoting.Subscription) error {
	if err := checkName("subscriptionDataSet.topic", s.Topic, MaxNameLen); err != nil {
		return err
	}
	if err := checkLen("subscriptionDataSet.subString", len(s.SubString), MaxExpressionLen, "bytes"); err != nil {
		return err
	}
	if err := checkLen("subscriptionDataSet.expressionType", len(s.ExpressionType), MaxNameLen, "bytes"); err != nil {
		return err
	}
	if err := checkLen("subscriptionDataSet.codeSet", len(s.Codes), MaxTags, "codes"); err != nil {
		return err
	}
	if len(s.Tags) == 0 && isTag(s.ExpressionType) { // then they are taken from the expression
		if err := checkLen("subscriptionDataSet.subString", strings.Count(s.SubString, "||")+1, MaxTags, "tags"); err != nil {
			return err
		}
	}
	return checkTags("subscriptionDataSet.tagsSet", s.Tags)
}

func checkTags(field string, tags []string) error {
	if err := checkLen(field, len(tags), MaxTags, "tags"); err != nil {
		return err
	}
	for _, tag := range tags {
		if err := checkLen(field, len(tag), MaxTagLen, "bytes"); err != nil {
			return err
		}
	}
	return nil
}

// What things cost in memory, apart from the text in them: rounded up, maps and
// allocation classes included. TestCosts measures them.
const (
	connCost         = 512
	memberCost       = 768 // with its group, which may be its own
	subscriptionCost = 384
	tagCost          = 32
	lockCost         = 256
	lockGroupCost    = 768
)

// An account bounds the memory that clients make us keep.
type account struct {
	used     int64
	max      int64
	maxOfOne int64 // of one connection
}

// check reports whether a connection that has used so much may use more of it.
func (a *account) check(field string, used, more int64) error {
	if used+more > a.maxOfOne {
		return &FieldError{field, fmt.Sprintf("the connection would keep %d bytes, at most %d", used+more, a.maxOfOne)}
	}
	if a.used+more > a.max {
		return &FieldError{field, fmt.Sprintf("all connections would keep %d bytes, at most %d", a.used+more, a.max)}
	}
	return nil
}
