package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// export returns what export writes, and the messages.
func (b *bench) export(dir string, flags ...string) (text string, all []tool.Message) {
	b.t.Helper()
	lines := b.run(append([]string{"store", "export", dir}, flags...)...).stdout
	all = jsonLines[tool.Message](b.t, lines)
	if len(all) == 0 {
		b.t.Fatalf("%s exports nothing", dir)
	}
	return lines, all
}

// TestImportRoundTrip exports stores that Java wrote, with every kind of
// message, and imports them: all fields come back but those that a store gives.
func TestImportRoundTrip(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags []string
	}{
		{"4.9.4-basic-clean", []string{"--raw"}},
		{"5.4.0-basic-clean", nil},
		{"5.4.0-longretry", nil},
		{"5.4.0-batchcq", []string{"--raw"}},
		{"4.9.8-lmq", nil},
		{"5.4.0-propcrc", nil},
		{"5.4.0-manykeys", nil},
		{"5.4.0-crash-middle", []string{"--raw"}},
		{"4.9.4-broker-dir", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.unpack("/old", tc.name)
			lines, want := b.export("/old", tc.flags...)
			for i := range want {
				comparable(&want[i], tc.flags == nil)
			}
			csv := b.run(slices.Concat([]string{"store", "export", "/old", "--format", "csv"}, tc.flags)...).stdout
			for format, text := range map[string]string{"ndjson": lines, "csv": csv} {
				dir := "/" + format
				b.topics(dir, golden.MustLoad(t, tc.name))
				out := b.mustIn(exitOK, text, "store", "import", dir, "--keep-times", "--json", "--format", format,
					"--set", "mappedFileSizeCommitLog=1MiB", "--set", "mappedFileSizeConsumeQueue=20000", "--set", "maxHashSlotNum=500", "--set", "maxIndexNum=2000")
				if sum := jsonLines[importJSON](t, out)[0]; sum != (importJSON{Stored: int64(len(want))}) {
					t.Fatalf("import printed %+v for %d messages", sum, len(want))
				}
				_, got := b.export(dir, tc.flags...)
				for i := range got {
					comparable(&got[i], tc.flags == nil)
				}
				if d := gocmp.Diff(want, got); d != "" {
					t.Fatalf("%s (-exported +imported)\n%s", format, d)
				}
				for _, f := range jsonLines[findingJSON](t, b.run("store", "verify", dir, "--json").stdout) {
					if f.Severity == "error" {
						t.Errorf("verify found %+v", f)
					}
				}
			}
		})
	}
}

// comparable takes out what a store gives anew, and the CRC that the store
// adds as a property. A body that was inflated may be compressed to other
// bytes.
func comparable(m *tool.Message, inflated bool) {
	m.QueueOffset, m.CommitLogOffset, m.PreparedTransactionOffset, m.StoreSize, m.MsgID = 0, 0, 0, 0, ""
	if m.BodyCompression != "" && inflated {
		m.BodyCRC = 0
	}
	p := message.Properties(m.Properties)
	if m.PropertiesBase64 != "" {
		raw, err := base64.StdEncoding.DecodeString(m.PropertiesBase64)
		if err != nil {
			panic(err)
		}
		p, m.PropertiesBase64 = message.Properties(raw), ""
	}
	p = p.Delete(message.PropCRC32)
	if base, ok := p.Get(message.PropInnerBase); ok {
		p = p.Set(message.PropInnerBase, base) // the store puts it last
	}
	if p != "" && p[len(p)-1] != 2 {
		p += "\x02" // some releases leave the last one out
	}
	*(*message.Properties)(&m.Properties) = p
}

// topics writes the topic configuration that says which queues are batch ones.
func (b *bench) topics(dir string, m *golden.Manifest) {
	table := map[string]any{}
	for topic, c := range m.TopicConfig {
		table[topic] = map[string]any{"topicName": topic, "attributes": c.Attributes}
	}
	if len(table) == 0 {
		return
	}
	data, err := json.Marshal(map[string]any{"topicConfigTable": table})
	if err == nil {
		err = errors.Join(b.fs.MkdirAll(dir+"/config"), vfs.WriteFileAtomic(b.fs, dir+"/config/topics.json", data))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestImportLongLines: a line above the limit is refused and passed over, a
// body as large as a message can be is not.
func TestImportLongLines(t *testing.T) {
	b := newBench(t)
	set := []string{"--set", "maxMessageSize=2000"}
	limit := lineLimit(2000)
	worst := strings.Repeat(`\u0000`, 2000)
	in := `{"topic":"T","body":"first"}` + "\n" +
		`{"topic":"T","body":"` + strings.Repeat("x", limit) + `"}` + "\n" +
		`{"topic":"T","body":"` + worst + `"}` + "\n" +
		`{"topic":"T","body":"` + worst + `\u0000"}` + "\n" +
		"\n" + strings.Repeat(" ", 100) + "\r\n" +
		`{"topic":"T","body":"last"}`
	got := b.runIn(context.Background(), in, slices.Concat([]string{"store", "import", "/data", "--json"}, smallSizes, set)...)
	want := outcome{exitFound, `{"stored":3,"refused":2,"postponed":0}` + "\n",
		"gantry: line 2 refused: the line is longer than the limit\n" +
			"gantry: line 4 refused: message illegal: body: 2001 bytes, limit 2000\n"}
	if d := gocmp.Diff(want, got, gocmp.AllowUnexported(outcome{})); d != "" {
		t.Error(d)
	}
	_, all := b.export("/data")
	if len(all) != 3 || *all[1].Body != strings.Repeat("\x00", 2000) || *all[2].Body != "last" {
		t.Errorf("%d messages were stored", len(all))
	}
}

// TestImportMemory: the memory in use does not grow with the input.
func TestImportMemory(t *testing.T) {
	const n = 4000
	in := &heapReader{
		line: `{"topic":"T","properties":{"KEYS":"k"},"body":"` + strings.Repeat("x", 10_000) + `"}` + "\n",
		left: n, sample: []int{n / 2, 1},
	}
	var stdout, stderr strings.Builder
	a := &app{console: newConsole(&stdout, &stderr), stdin: in, fs: vfs.OS(), now: func() time.Time { return testNow }}
	code := a.main(context.Background(), append([]string{"store", "import", t.TempDir(), "--set", "diskSpaceWarningLevelRatio=100"}, smallSizes...))
	if code != exitOK || stdout.String() != "4,000 messages stored, 0 refused\n" {
		t.Fatalf("exit code %d, %q\n%s", code, stdout.String(), stderr.String())
	}
	if grown := int64(in.heap[1]) - int64(in.heap[0]); grown > 4<<20 {
		t.Errorf("%d bytes more were in use after the second half of %d bytes of input", grown, n*len(in.line))
	}
}

// heapReader gives a line many times, and looks at the heap in between.
type heapReader struct {
	line   string
	rest   string
	left   int
	sample []int // when so many lines are left
	heap   []uint64
}

func (r *heapReader) Read(p []byte) (int, error) {
	if r.rest == "" {
		if r.left == 0 {
			return 0, io.EOF
		}
		if slices.Contains(r.sample, r.left) {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			r.heap = append(r.heap, m.HeapAlloc)
		}
		r.left--
		r.rest = r.line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
