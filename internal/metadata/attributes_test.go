package metadata

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAttributes(t *testing.T) {
	tests := []struct {
		name, in string
		want     map[string]string
		err      string
	}{
		{"none", "", map[string]string{}, ""},
		{"one", "+message.type=DELAY", map[string]string{"+message.type": "DELAY"}, ""},
		{"several", "+a=1,-b,+c=x=y", map[string]string{"+a": "1", "-b": "", "+c": "x=y"}, ""},
		{"empty value", "+a=", map[string]string{"+a": ""}, ""},
		{"no sign", "a=1", nil, `attribute "a=1" is neither +name=value nor -name`},
		{"set without value", "+a", nil, `attribute "+a" is neither +name=value nor -name`},
		{"removal with value", "-a=1", nil, `attribute "-a=1" is neither +name=value nor -name`},
		{"no name", "+=1", nil, `attribute "+=1" is neither +name=value nor -name`},
		{"only a sign", "-", nil, `attribute "-" is neither +name=value nor -name`},
		{"empty part", "+a=1,", nil, `attribute "" is neither +name=value nor -name`},
		{"twice", "+a=1,+a=2", nil, "attribute a is given twice"},
		{"set and removed", "+a=1,-a", nil, "attribute a is given twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseAttributes(tt.in)
			checkInvalid(t, err, tt.err)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestAlterAttributes(t *testing.T) {
	type m = map[string]string
	tests := []struct {
		name             string
		current, changes m
		create           bool
		want             m
		err              string
	}{
		{"nothing on a new topic", nil, nil, true, m{}, ""},
		{"nothing", m{"message.type": "FIFO"}, m{}, false, m{"message.type": "FIFO"}, ""},
		{"all on a new topic", nil, m{"+queue.type": "BatchCQ", "+cleanup.policy": "COMPACTION", "+message.type": "MIXED", "+reserve.time": "-1"}, true,
			m{"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION", "message.type": "MIXED", "reserve.time": "-1"}, ""},
		{"added", m{"message.type": "FIFO"}, m{"+reserve.time": "60"}, false, m{"message.type": "FIFO", "reserve.time": "60"}, ""},
		{"changed", m{"message.type": "FIFO"}, m{"+message.type": "DELAY"}, false, m{"message.type": "DELAY"}, ""},
		{"removed", m{"message.type": "FIFO"}, m{"-message.type": ""}, false, m{}, ""},
		{"unknown one stays", m{"future": "x"}, m{"+message.type": "DELAY"}, false, m{"future": "x", "message.type": "DELAY"}, ""},

		{"unknown", nil, m{"+colour": "red"}, true, nil, `unsupported attribute "colour", known are cleanup.policy, message.type, queue.type, reserve.time`},
		{"unknown removed", m{"colour": "red"}, m{"-colour": ""}, false, nil, `unsupported attribute "colour", known are cleanup.policy, message.type, queue.type, reserve.time`},
		{"no sign", nil, m{"message.type": "FIFO"}, true, nil, `attribute "message.type" begins neither with + nor with -`},
		{"no name", nil, m{"": "FIFO"}, true, nil, `attribute "" begins neither with + nor with -`},
		{"both signs", m{"message.type": "FIFO"}, m{"+message.type": "DELAY", "-message.type": ""}, false, nil, "attribute message.type is given twice"},
		{"removal of nothing", m{}, m{"-message.type": ""}, false, nil, "attribute message.type cannot be removed, it is not set"},
		{"removal on a new topic", nil, m{"-message.type": ""}, true, nil, "attribute message.type cannot be removed, it is not set"},
		{"queue type later", m{}, m{"+queue.type": "BatchCQ"}, false, nil, "attribute queue.type can only be set when the topic is created"},
		{"cleanup policy removed", m{"cleanup.policy": "DELETE"}, m{"-cleanup.policy": ""}, false, nil, "attribute cleanup.policy can only be set when the topic is created"},
		{"wrong value", nil, m{"+queue.type": "batchcq"}, true, nil, `value "batchcq" of attribute queue.type is none of SimpleCQ, BatchCQ`},
		{"no value", nil, m{"+message.type": ""}, true, nil, `value "" of attribute message.type is none of UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED`},
		{"no number", nil, m{"+reserve.time": "1h"}, true, nil, `value "1h" of attribute reserve.time is not an integer from -1 to 9223372036854775807`},
		{"out of range", nil, m{"+reserve.time": "-2"}, true, nil, `value "-2" of attribute reserve.time is not an integer from -1 to 9223372036854775807`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := cmp.Diff(nil, tt.current)
			got, err := alter(topicAttributes, tt.current, tt.changes, tt.create)
			checkInvalid(t, err, tt.err)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if cmp.Diff(nil, tt.current) != before {
				t.Error("the current attributes were changed")
			}
		})
	}
}
