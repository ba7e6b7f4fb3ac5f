package metadata

import (
	"strconv"
	"strings"

	"github.com/gantrymq/gantry/message"
)

// Names of topics with a meaning (section 17 of the format), those apart that
// package message has.
const (
	TemplateTopic          = "TBW102" // whose configuration new topics get
	SelfTestTopic          = "SELF_TEST_TOPIC"
	BenchmarkTopic         = "BenchmarkTest"
	OffsetMovedTopic       = "OFFSET_MOVED_EVENT"
	TransCheckMaxTimeTopic = "TRANS_CHECK_MAX_TIME_TOPIC"
	TraceTopic             = "RMQ_SYS_TRACE_TOPIC"
	CheckpointTopic        = "CHECKPOINT_TOPIC"

	rocksDBHalfTopic   = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
	rocksDBOpHalfTopic = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"

	syncMemberPrefix = message.SystemPrefix + "SYNC_BROKER_MEMBER_"
	revivePrefix     = message.SystemPrefix + "REVIVE_LOG_"
	replySuffix      = "_REPLY_TOPIC"
)

// Lengths of names in bytes.
const (
	MaxTopicLength      = 127
	MaxRetryTopicLength = 255 // topics of retries and dead letters
	MaxGroupLength      = 120
)

// Bounds of what one broker keeps.
const (
	// MaxQueueNums bounds the queues of a topic, and so queue ids.
	MaxQueueNums = 1 << 17
	MaxTopics    = 1 << 18
	MaxGroups    = 1 << 18
)

// InvalidError says why a name, an attribute or a configuration was refused, in
// words for the remark of INVALID_PARAMETER; upstream's own where it has some.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

func invalid(parts ...string) error { return &InvalidError{strings.Join(parts, "")} }

// legalNames is upstream's text for what names consist of.
const legalNames = ", contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"

func legal(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '%', c == '|', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// servable reports whether a name from a file is one that requests can name.
func servable(name string) bool {
	return name != "" && len(name) <= MaxRetryTopicLength && legal(name)
}

// ValidTopic refuses what is no name for a topic. Errors are *InvalidError
// (upstream: TopicValidator.validateTopic).
func ValidTopic(name string) error {
	limit := MaxTopicLength
	if strings.HasPrefix(name, message.RetryPrefix) || strings.HasPrefix(name, message.DLQPrefix) {
		limit = MaxRetryTopicLength
	}
	switch {
	case strings.TrimSpace(name) == "":
		return invalid("The specified topic is blank.")
	case !legal(name):
		return invalid("The specified topic: ", name, legalNames)
	case len(name) <= limit:
		return nil
	case limit == MaxTopicLength:
		return invalid("The specified topic: ", name, ", is longer than topic max length: ", strconv.Itoa(limit))
	}
	return invalid("The specified topic is DLQ or Retry topic: ", name, ", and it's longer than topic max length: ", strconv.Itoa(limit))
}

// ValidGroup refuses what is no name for a new group of consumers or producers
// (upstream: TopicValidator.validateGroup). Errors are *InvalidError.
func ValidGroup(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return invalid("The specified group is blank.")
	case !legal(name):
		return invalid("The specified group: ", name, legalNames)
	case len(name) > MaxGroupLength:
		return invalid("The specified group: ", name, ", is longer than group max length: ", strconv.Itoa(MaxGroupLength))
	}
	return nil
}

// IsForbiddenForSend reports whether clients may not send to a topic.
func IsForbiddenForSend(topic string) bool {
	switch topic {
	case message.ScheduleTopic, message.HalfTopic, message.OpHalfTopic, rocksDBHalfTopic, rocksDBOpHalfTopic,
		TransCheckMaxTimeTopic, SelfTestTopic, OffsetMovedTopic:
		return true
	}
	return false
}

// systemTopics are those of every broker.
var systemTopics = []string{
	TemplateTopic, message.ScheduleTopic, BenchmarkTopic, message.HalfTopic, TraceTopic, message.OpHalfTopic,
	TransCheckMaxTimeTopic, SelfTestTopic, OffsetMovedTopic, CheckpointTopic, rocksDBHalfTopic, rocksDBOpHalfTopic,
}

// RetryTopic is the topic of a group's retries.
func RetryTopic(group string) string { return message.RetryPrefix + group }

// DLQTopic is the topic of a group's dead letters.
func DLQTopic(group string) string { return message.DLQPrefix + group }
