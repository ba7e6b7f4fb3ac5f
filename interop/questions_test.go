//go:build interop

package interop

import (
	"math"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/interop/javastore"
	"github.com/gantrymq/gantry/message"
)

// questions collects questions without asking one twice.
type questions struct {
	javastore.Questions
	withTags bool
	seen     map[any]bool
}

func newQuestions(withTags bool) questions {
	return questions{withTags: withTags, seen: make(map[any]bool)}
}

func (q *questions) first(question any) bool {
	if q.seen[question] {
		return false
	}
	q.seen[question] = true
	return true
}

// maxHits is the most that Java answers to a query.
const maxHits = 64

// key asks for a key. Java looks at whole seconds, so only the whole time is
// asked for: the answers must be equal.
func (q *questions) key(topic, key string) {
	type question struct{ topic, key string }
	if key != "" && q.first(question{topic, key}) {
		q.KeyQueries = append(q.KeyQueries, golden.KeyQuery{Topic: topic, Key: key, End: math.MaxInt64, MaxNum: maxHits})
	}
}

func (q *questions) tag(topic, tags string) {
	type question struct{ tagTopic, tags string }
	if q.withTags && q.first(question{topic, tags}) {
		q.TagQueries = append(q.TagQueries, golden.TagQuery{Topic: topic, Tags: tags, End: math.MaxInt64, MaxNum: maxHits})
	}
}

// queue asks about a message of a queue: its store time and the offsets around
// it.
func (q *questions) queue(topic string, id int32, offset message.QueueOffset, time int64) {
	type timeQuestion struct {
		topic string
		id    int32
		time  int64
	}
	for _, t := range []int64{time - 1, time, time + 1} {
		if q.first(timeQuestion{topic, id, t}) {
			q.TimeQueries = append(q.TimeQueries, golden.TimeQuery{Topic: topic, QueueID: id, Timestamp: t})
		}
	}
	type getQuestion struct {
		topic string
		id    int32
		off   message.QueueOffset
	}
	for _, off := range []message.QueueOffset{-1, 0, offset, offset + 1, offset + 100} {
		if q.first(getQuestion{topic, id, off}) {
			q.GetMessage = append(q.GetMessage, golden.Get{Topic: topic, QueueID: id, Offset: off, MaxMsgNums: 32})
		}
	}
}

func (q *questions) lookup(at message.PhysicalOffset) {
	if q.first(at) {
		q.Lookups = append(q.Lookups, golden.Lookup{PhysicalOffset: at})
	}
}
