//go:build interop

package interop

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/interop/javastore"
	"github.com/gantrymq/gantry/message"
)

// printed is a message as the commands print it.
type printed struct {
	Topic                     string                 `json:"topic"`
	QueueID                   int32                  `json:"queueId"`
	QueueOffset               message.QueueOffset    `json:"queueOffset"`
	CommitLogOffset           message.PhysicalOffset `json:"commitLogOffset"`
	StoreSize                 int32                  `json:"storeSize"`
	SysFlag                   message.SysFlag        `json:"sysFlag"`
	Flag                      int32                  `json:"flag"`
	BodyCRC                   uint32                 `json:"bodyCRC"`
	BornTimestamp             int64                  `json:"bornTimestamp"`
	BornHost                  string                 `json:"bornHost"`
	StoreTimestamp            int64                  `json:"storeTimestamp"`
	StoreHost                 string                 `json:"storeHost"`
	ReconsumeTimes            int32                  `json:"reconsumeTimes"`
	PreparedTransactionOffset message.PhysicalOffset `json:"preparedTransactionOffset"`
	MsgID                     string                 `json:"msgId"`
	Properties                map[string]string      `json:"properties"`

	Body       *string `json:"body"`
	BodyBase64 *string `json:"bodyBase64"`
}

// cli runs gantry; want is the exit code.
func cli(t *testing.T, binary string, want int, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("gantry %q: exit code %d, want %d\n%s", args, got, want, stderr.String())
	}
	return stdout.Bytes()
}

// lines decodes one JSON object per line.
func lines[T any](t *testing.T, out []byte) []T {
	t.Helper()
	var all []T
	d := json.NewDecoder(bytes.NewReader(out))
	for d.More() {
		var v T
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%v in %q", err, out)
		}
		all = append(all, v)
	}
	return all
}

// same compares what a command printed with what Java read.
func same(t *testing.T, want *golden.Message, got printed) {
	t.Helper()
	body := []byte{}
	if got.Body != nil {
		body = []byte(*got.Body)
	} else if got.BodyBase64 != nil {
		var err error
		if body, err = base64.StdEncoding.DecodeString(*got.BodyBase64); err != nil {
			t.Error(err)
		}
	}
	if sum := golden.Hash(sha256.Sum256(body)); sum != want.BodySHA256 && want.Uncompressed == nil {
		t.Errorf("message at %d: body differs", want.PhysicalOffset)
	} else if want.Uncompressed != nil && sum != want.Uncompressed.SHA256 && sum != want.BodySHA256 {
		t.Errorf("message at %d: compressed body differs", want.PhysicalOffset)
	}
	got.Body, got.BodyBase64 = nil, nil
	if len(got.Properties) == 0 {
		got.Properties = want.Properties // none may be null or {}
	}
	expected := printed{
		Topic: want.Topic, QueueID: want.QueueID, QueueOffset: want.QueueOffset, CommitLogOffset: want.PhysicalOffset, StoreSize: want.Size,
		SysFlag: want.SysFlag, Flag: want.Flag, BodyCRC: want.BodyCRC, BornTimestamp: want.BornTimestamp, BornHost: want.BornHost.String(),
		StoreTimestamp: want.StoreTimestamp, StoreHost: want.StoreHost.String(), ReconsumeTimes: want.ReconsumeTimes,
		PreparedTransactionOffset: want.PreparedTransactionOffset, MsgID: want.ID, Properties: want.Properties,
	}
	if d := cmp.Diff(expected, got); d != "" {
		t.Errorf("message at %d (-Java +printed):\n%s", want.PhysicalOffset, d)
	}
}

// TestCommands: a store made by gantry store put goes to Java and back to the
// commands that read.
func TestCommands(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "gantry")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/gantrymq/gantry/cmd/gantry").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, version := range javastore.Versions {
		t.Run(version, func(t *testing.T) {
			dir, c := filepath.Join(t.TempDir(), "store"), small()
			geometry := []string{"--set", fmt.Sprint("mappedFileSizeCommitLog=", c.CommitLogFileSize), "--set", fmt.Sprint("mappedFileSizeConsumeQueue=", c.ConsumeQueueFileSize),
				"--set", fmt.Sprint("maxHashSlotNum=", c.IndexSlots), "--set", fmt.Sprint("maxIndexNum=", c.IndexEntries)}
			var at []message.PhysicalOffset
			for i := range 5 {
				args := append([]string{"store", "put", dir, "InteropA", "--json", "--queue", "1", "--tag", "TagA", "--key", "common", "--key", fmt.Sprint("cli", i),
					"--property", "colour=grün", "--body", fmt.Sprint("body ", i)}, geometry...)
				res := lines[printed](t, cli(t, binary, 0, args...))
				if len(res) != 1 || res[0].QueueOffset != message.QueueOffset(i) {
					t.Fatalf("put %d printed %+v", i, res)
				}
				at = append(at, res[0].CommitLogOffset)
			}
			java := javaStore(t, version)
			put, err := java.Append(t.Context(), dir, c, nil, puts, 3)
			if err != nil {
				t.Fatal(err)
			}
			checkPuts(t, put, puts)
			a, err := java.Read(t.Context(), dir, c, javastore.Questions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, phy := range at {
				if a.Message(phy) == nil {
					t.Errorf("Java has no message at %d", phy)
				}
			}
			before, err := golden.Tree(vfs.OS(), dir)
			if err != nil {
				t.Fatal(err)
			}

			// Each queue, from its beginning to its end.
			for _, q := range a.Queues {
				if q.Max == 0 {
					continue
				}
				got := lines[printed](t, cli(t, binary, 0, "store", "get", dir, q.Topic, strconv.Itoa(int(q.ID)), "0", "-n", "1000", "--json"))
				if len(got) != len(q.Units) {
					t.Errorf("get %s/%d: %d messages, want %d", q.Topic, q.ID, len(got), len(q.Units))
					continue
				}
				for i, u := range q.Units {
					same(t, a.Message(u.Physical), got[i])
				}
			}
			// A key, newest first; a single message by position and id.
			var want []message.PhysicalOffset
			for _, m := range slices.Backward(a.Messages) {
				if m.Topic == "InteropA" && m.SysFlag.Transaction() != message.TxRollback && hasKey(&m, "common") {
					want = append(want, m.PhysicalOffset)
				}
			}
			var got []message.PhysicalOffset
			for _, m := range lines[printed](t, cli(t, binary, 0, "store", "query", dir, "InteropA", "common", "-n", "0", "--json")) {
				got = append(got, m.CommitLogOffset)
			}
			if !slices.Equal(want, got) {
				t.Errorf("query: %d, want %d", got, want)
			}
			last := &a.Messages[len(a.Messages)-1]
			for _, args := range [][]string{{"--id", last.ID}, {"--physical", fmt.Sprint(last.PhysicalOffset)}} {
				got := lines[printed](t, cli(t, binary, 0, append([]string{"store", "get", dir, "--json"}, args...)...))
				if len(got) != 1 {
					t.Fatalf("get %q printed %+v", args, got)
				}
				same(t, last, got[0])
			}
			cli(t, binary, 1, "store", "query", dir, "InteropA", "no-such-key", "--json")
			if info := lines[map[string]any](t, cli(t, binary, 0, "store", "info", dir, "--json")); len(info) == 0 {
				t.Errorf("info printed nothing")
			}

			after, err := golden.Tree(vfs.OS(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if d := golden.DiffTrees(before, after); len(d) > 0 {
				t.Errorf("reading changed the directory: %q", d)
			}
		})
	}
}
