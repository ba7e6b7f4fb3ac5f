package cli

import (
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// TestImportToServers replays an exported store into a running broker: bodies,
// keys and queues come back, and what is a broker's own does not.
func TestImportToServers(t *testing.T) {
	s := newServerBench(t).serve()
	in := `{"topic":"Orders","queueId":0,"properties":{"KEYS":"k0","TAGS":"a","DELAY":"3","REAL_TOPIC":"x","REAL_QID":"1"},"body":"zero"}
{"topic":"Orders","queueId":1,"properties":{"KEYS":"k1"},"body":"one"}
{"topic":"Orders","queueId":9,"flag":7,"bornTimestamp":1796000000000,"properties":{"KEYS":"k9"},"body":"nine"}
{"topic":"Orders","queueId":1,"sysFlag":1,"bodyCompression":"zlib","properties":{"KEYS":"z"},"body":"` + strings.Repeat("packed ", 1000) + `"}
{"topic":"Orders","queueId":1,"properties":{"KEYS":"k1"},"body":"one again"}
{"topic":"SCHEDULE_TOPIC_XXXX","queueId":2,"body":"waits"}
{"topic":"Orders","sysFlag":4,"body":"prepared"}
{"topic":"Orders","body":""}
not JSON
`
	got := s.askIn(in, "store", "import", "--json")
	if sum := jsonLines[importJSON](t, got.stdout); got.code != exitFound || len(sum) != 1 || sum[0] != (importJSON{Stored: 5, Refused: 4}) {
		t.Fatalf("exit code %d, %s%s", got.code, got.stdout, got.stderr)
	}
	for _, want := range []string{"line 6 refused: topic SCHEDULE_TOPIC_XXXX is a broker's own", "line 7 refused: the message was not committed", "line 8 refused: the body is empty", "line 9 refused"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("no %q in %s", want, got.stderr)
		}
	}
	queues := map[string][]int32{}
	for _, m := range jsonLines[tool.Message](t, s.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "5", "--json")) {
		body := *m.Body
		queues[body] = append(queues[body], m.QueueID)
		props := message.Properties(m.Properties).Map()
		if props["DELAY"] != "" || props["REAL_TOPIC"] != "" || props["KEYS"] == "" {
			t.Errorf("%.20s has the properties %v", body, props)
		}
		if body == "nine" && (m.Flag != 7 || m.BornTimestamp != 1796000000000) {
			t.Errorf("%+v", m)
		}
	}
	if q := queues; len(q) != 5 || len(q["one"]) != 1 || q["one"][0] != q["one again"][0] || q["zero"][0] == q["one"][0] {
		t.Errorf("queues %v", q)
	}
}

func TestImportToServersUsage(t *testing.T) {
	b := newBench(t)
	for args, want := range map[string]string{
		"store import": "DIR is missing",
		"store import /data --namesrv 127.0.0.1:1":                     "into DIR or",
		"store import --namesrv 127.0.0.1:1 --keep-times":              "--keep-times is for DIR",
		"store import --namesrv 127.0.0.1:1 --set brokerName=x --in /": "brokerName",
	} {
		if got := b.run(strings.Fields(args)...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit code %d, %s", args, got.code, got.stderr)
		}
	}
}
