package broker

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// handMade are the hand-made frames to which we answer otherwise than 5.4.0, and
// why. The codes of those for the name server are not looked at.
var handMade = map[string]struct {
	want   any // a code, "silence" or "close"
	reason string
}{
	"send, no producerGroup":        {1.0, "a mandatory field is missing"},
	"send, empty body":              {1.0, "the fields that the errors of other sends have"},
	"send, queueId -1":              {0.0, "any queue"},
	"send to a read-only topic":     {16.0, "permissions of topics hold for sending too"},
	"pull from a read-only topic":   {19.0, "for that reason it is empty"},
	"batch code with a single body": {13.0, "what is no batch is an illegal message"},
	"pull, broken SQL":              {23.0, "not unfiltered"},
	"pull, unknown expression type": {23.0, "not unfiltered"},
	"pop before setting the mode":   {3.0, "pop is not supported"},
	"serialize type 5":              {"close", "it cannot be read on"},
	"header is an empty object":     {3.0, "a request of code 0"},
	"frame length 0":                {"close", "it cannot be read on"},
	"frame length 3":                {"close", "it cannot be read on"},
}

// notRecorded are frames that the recorder could not keep as they were.
var notRecorded = map[string]string{
	"frame length 0":        "0000000000000000",
	"frame length 3":        "00000003000000",
	"frame length 16777217": "010000010000000a30303030303030303030",
	"frame length negative": "800000000000000000000000",
	"HTTP":                  hex.EncodeToString([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")),
}

type handMadeCase struct {
	Case      string            `json:"case"`
	Got       any               `json:"got"`
	Remark    string            `json:"remark"`
	ExtFields map[string]string `json:"extFields"`

	peer   string
	frames []byte
}

// handMadeCases pairs the answers of 5.4.0 with the bytes of their connections,
// which were made one after the other.
func handMadeCases(t *testing.T) (cases []handMadeCase) {
	t.Helper()
	lines := loadRecording(t, filepath.Join(wireDir, "raw__5.4.0__rawframes.ndjson.gz"))
	type conn struct {
		peer   string
		frames []byte
	}
	var conns []string
	sent := make(map[string]*conn)
	for _, l := range lines {
		if sent[l.Conn] == nil {
			conns = append(conns, l.Conn)
			sent[l.Conn] = &conn{peer: l.Peer}
		}
		if l.Dir == "c2s" && l.Kind != "close" {
			b, err := hex.DecodeString(l.Raw)
			if err != nil {
				t.Fatal(err)
			}
			sent[l.Conn].frames = append(sent[l.Conn].frames, b...)
		}
	}
	for line := range bytes.Lines(readGzip(t, filepath.Join(wireDir, "raw__5.4.0__rawframes.answers.txt.gz"))) {
		var c handMadeCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if c.Case == "" {
			continue
		}
		c.peer = "broker"
		if c.Case != "frame length 16777217" { // the recorder closed it
			c.peer, c.frames = sent[conns[0]].peer, sent[conns[0]].frames
			conns = conns[1:]
		}
		if text, ok := notRecorded[c.Case]; ok {
			c.frames, _ = hex.DecodeString(text)
		}
		cases = append(cases, c)
	}
	if len(conns) > 0 || len(cases) != 99 {
		t.Fatalf("%d cases, %d connections are left", len(cases), len(conns))
	}
	return cases
}

// TestHandMadeFrames sends the 99 hand-made frames, each on a connection of its
// own, and compares what comes back with what a broker of 5.4.0 said.
func TestHandMadeFrames(t *testing.T) {
	cases := handMadeCases(t)
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		used := make(map[string]bool)
		good := dialWire(r.b) // a well-behaved client that is not disturbed
		defer good.close()
		for i, c := range cases {
			if c.peer == "namesrv" {
				continue
			}
			want := c.Got
			d, differs := handMade[c.Case]
			if differs {
				want, used[c.Case] = d.want, true
			}
			w := dialWire(r.b)
			if _, err := w.nc.Write(c.frames); err != nil && want != "close" {
				t.Errorf("%s: %v", c.Case, err)
			}
			got, resp := handMadeOutcome(w)
			if got != want {
				t.Errorf("%s: got %v (%v), want %v, recorded %v", c.Case, got, resp, want, c.Got)
			} else if resp != nil && !differs {
				compareHandMade(t, &c, resp)
			}
			w.close()

			req := remoting.NewRequest(remoting.ReqGetMaxOffset, &remoting.MaxOffsetRequest{Topic: "T", Committed: true})
			req.Opaque = int32(i)
			frame, err := remoting.AppendFrame(nil, req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := good.nc.Write(frame); err != nil {
				t.Fatalf("after %s: %v", c.Case, err)
			}
			if resp := within(func() *remoting.Command { return good.answer(int32(i)) }); resp == nil || resp.Code != 0 {
				t.Fatalf("after %s a good client gets %v", c.Case, resp)
			}
		}
		for name := range handMade {
			if !used[name] {
				t.Errorf("there is no case %q", name)
			}
		}
	})
}

// handMadeOutcome waits for an answer, the end of the connection, or long enough.
func handMadeOutcome(w *wire) (any, *remoting.Command) {
	for range 30 {
		synctest.Wait()
		w.mu.Lock()
		for _, resp := range w.answers {
			w.mu.Unlock()
			return float64(resp.Code), resp
		}
		w.mu.Unlock()
		select {
		case <-w.done:
			return "close", nil
		default:
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "silence", nil
}

// compareHandMade compares an answer with the recorded one: fields, those values
// that are no matter of time or of other cases, and remarks that are no
// exceptions of Java's.
func compareHandMade(t *testing.T, c *handMadeCase, resp *remoting.Command) {
	var want, got []string
	for name := range c.ExtFields {
		want = append(want, name)
	}
	slices.Sort(want)
	if got = fieldNames(resp.Ext); !slices.Equal(want, got) {
		t.Errorf("%s: fields %v, recorded %v", c.Case, got, want)
	}
	for _, name := range []string{"queueId", "offset", "forbiddenType", "nextBeginOffset", "maxOffset", "minOffset", "MSG_REGION", "TRACE_ON", "timestamp"} {
		// Of the eight messages that 5.4.0 has in queue 0 we refused one, and one
		// may be in queue 1.
		ours, theirs := resp.Ext.Value(name), c.ExtFields[name]
		if ours != theirs && (theirs != "8" || ours != "7" && ours != "6") {
			t.Errorf("%s: field %s=%s, recorded %s", c.Case, name, ours, theirs)
		}
	}
	remark := c.Remark
	for _, noise := range []string{"not set any response code", "127.0.0.1:"} {
		if strings.Contains(remark, noise) {
			return
		}
	}
	if strings.Contains(remark, "Exception") || len(remark) >= 160 {
		return
	}
	if !strings.HasPrefix(resp.Remark, remark) && c.Case != "pull before any heartbeat, no subscription" {
		t.Errorf("%s: remark %q, recorded %q", c.Case, resp.Remark, remark)
	}
}
