package metadata

import (
	"errors"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

func TestValidTopic(t *testing.T) {
	long := strings.Repeat("x", 128)
	tests := []struct{ name, topic, want string }{
		{"plain", "Orders", ""},
		{"all characters", "%|aZ09_-", ""},
		{"longest", long[1:], ""},
		{"longest retry topic", "%RETRY%" + strings.Repeat("g", 248), ""},
		{"longest dead letter topic", "%DLQ%" + strings.Repeat("g", 250), ""},
		{"empty", "", "The specified topic is blank."},
		{"blanks", " \t", "The specified topic is blank."},
		{"blank inside", "has blank", "The specified topic: has blank, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"},
		{"path", "../x", "The specified topic: ../x, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"},
		{"not ASCII", "ünicode", "The specified topic: ünicode, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"},
		{"too long", long, "The specified topic: " + long + ", is longer than topic max length: 127"},
		{"retry topic too long", "%RETRY%" + strings.Repeat("g", 249), "The specified topic is DLQ or Retry topic: %RETRY%" + strings.Repeat("g", 249) + ", and it's longer than topic max length: 255"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkInvalid(t, ValidTopic(tt.topic), tt.want) })
	}
}

func TestValidGroup(t *testing.T) {
	long := strings.Repeat("x", 121)
	tests := []struct{ name, group, want string }{
		{"plain", "CID_ONS-HTTP-PROXY", ""},
		{"longest", long[1:], ""},
		{"empty", "", "The specified group is blank."},
		{"illegal", "a@b", "The specified group: a@b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"},
		{"too long", long, "The specified group: " + long + ", is longer than group max length: 120"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkInvalid(t, ValidGroup(tt.group), tt.want) })
	}
}

// checkInvalid expects an *InvalidError with the text want, or none for "".
func checkInvalid(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) || invalid.Reason != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// What clients may not send to is in the recordings of both servers.
func TestIsForbiddenForSend(t *testing.T) {
	for topic, want := range map[string]bool{
		"SCHEDULE_TOPIC_XXXX": true, "RMQ_SYS_TRANS_HALF_TOPIC": true, "RMQ_SYS_TRANS_OP_HALF_TOPIC": true,
		"TRANS_CHECK_MAX_TIME_TOPIC": true, "SELF_TEST_TOPIC": true, "OFFSET_MOVED_EVENT": true,
		"Orders": false, "TBW102": false, "BenchmarkTest": false, "RMQ_SYS_TRACE_TOPIC": false, "%RETRY%g": false, "": false,
	} {
		if got := IsForbiddenForSend(topic); got != want {
			t.Errorf("%q: got %t, want %t", topic, got, want)
		}
	}
}

func TestIsSystem(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	for topic, want := range map[string]bool{
		"DefaultCluster": true, "broker-a": true, "DefaultCluster_REPLY_TOPIC": true, "rmq_sys_anything": true,
		"RMQ_SYS_TRACE_TOPIC": true, "TBW102": true, "Orders": false, "%RETRY%g": false, "OtherCluster": false,
	} {
		if got := topics.IsSystem(topic); got != want {
			t.Errorf("%q: got %t, want %t", topic, got, want)
		}
	}
}
