package metadata

import (
	"maps"
	"strconv"
	"strings"
)

// AttrQueueType is the attribute of a topic that says what its queues are.
const AttrQueueType = "queue.type"

// QueueTypeBatch is the queue type of topics with batch consume queues.
const QueueTypeBatch = "BatchCQ"

// An attribute is one that topics or groups may have (upstream:
// TopicAttributes, SubscriptionGroupAttributes).
type attribute struct {
	changeable bool     // also later than when the topic is made
	oneOf      []string // the values; nil: an integer from min to max
	min, max   int64
}

var topicAttributes = map[string]attribute{
	AttrQueueType:    {oneOf: []string{"SimpleCQ", QueueTypeBatch}},
	"cleanup.policy": {oneOf: []string{"DELETE", "COMPACTION"}},
	"message.type":   {changeable: true, oneOf: []string{"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"}},
	"reserve.time":   {changeable: true, min: -1, max: 1<<63 - 1},
}

var groupAttributes = map[string]attribute{
	"priority.factor": {changeable: true, min: 0, max: 100},
}

func (a attribute) verify(name, value string) error {
	if a.oneOf == nil {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < a.min || n > a.max {
			return invalid("value ", strconv.Quote(value), " of attribute ", name, " is not an integer from ",
				strconv.FormatInt(a.min, 10), " to ", strconv.FormatInt(a.max, 10))
		}
		return nil
	}
	for _, v := range a.oneOf {
		if v == value {
			return nil
		}
	}
	return invalid("value ", strconv.Quote(value), " of attribute ", name, " is none of ", strings.Join(a.oneOf, ", "))
}

// ParseAttributes reads the language in which 17 UPDATE_AND_CREATE_TOPIC
// changes attributes, "+k=v,-k2", into the form that bodies have: "+k" → "v",
// "-k2" → "". Whether there are such attributes is not looked at. Errors are
// *InvalidError.
func ParseAttributes(changes string) (map[string]string, error) {
	m := make(map[string]string)
	for part := range strings.SplitSeq(changes, ",") {
		name, value, set := strings.Cut(part, "=")
		switch {
		case part == "" && changes == "":
			return m, nil
		case len(name) < 2 || set != (name[0] == '+') || !set && name[0] != '-':
			return nil, invalid("attribute ", strconv.Quote(part), " is neither +name=value nor -name")
		}
		_, added := m["+"+name[1:]]
		_, removed := m["-"+name[1:]]
		if added || removed {
			return nil, invalid("attribute ", name[1:], " is given twice")
		}
		m[name] = value
	}
	return m, nil
}

// alter applies changes to the current attributes of a topic or group that is
// being created or exists (upstream: AttributeUtil.alterCurrentAttributes).
func alter(known map[string]attribute, current, changes map[string]string, create bool) (map[string]string, error) {
	result := make(map[string]string, len(current)+len(changes))
	maps.Copy(result, current)
	for _, change := range sortedKeys(changes) {
		if len(change) < 2 || change[0] != '+' && change[0] != '-' {
			return nil, invalid("attribute ", strconv.Quote(change), " begins neither with + nor with -")
		}
		name, value := change[1:], changes[change]
		a, ok := known[name]
		_, exists := current[name]
		_, added := changes["+"+name]
		switch {
		case !ok:
			return nil, invalid("unsupported attribute ", strconv.Quote(name), ", known are ", strings.Join(sortedKeys(known), ", "))
		case change[0] == '-' && added:
			return nil, invalid("attribute ", name, " is given twice")
		case change[0] == '-' && !exists:
			return nil, invalid("attribute ", name, " cannot be removed, it is not set")
		case !create && !a.changeable:
			return nil, invalid("attribute ", name, " can only be set when the topic is created")
		case change[0] == '-':
			delete(result, name)
			continue
		}
		if err := a.verify(name, value); err != nil {
			return nil, err
		}
		result[name] = value
	}
	return result, nil
}
