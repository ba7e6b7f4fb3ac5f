package membership

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// recorded is a line of a recording in testdata/wire.
type recorded struct {
	T        int64           `json:"t_ms"`
	Conn     string          `json:"conn"`
	Dir      string          `json:"dir"`
	Kind     string          `json:"kind"`
	Code     int32           `json:"code"`
	ReqCode  int32           `json:"reqCode"`
	Opaque   int32           `json:"opaque"`
	Language string          `json:"language"`
	Version  int32           `json:"version"`
	Ext      json.RawMessage `json:"extFields"`
	Body     json.RawMessage `json:"body"`
}

func (l *recorded) field(name string) string {
	var ext map[string]any
	if len(l.Ext) > 0 {
		if err := json.Unmarshal(l.Ext, &ext); err != nil {
			return err.Error()
		}
	}
	s, _ := ext[name].(string)
	return s
}

func readRecording(t *testing.T, name string) []recorded {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines []recorded
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<26)
	for sc.Scan() {
		var l recorded
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(l.Conn, "broker") {
			lines = append(lines, l)
		}
	}
	if sc.Err() != nil {
		t.Fatal(sc.Err())
	}
	return lines
}

// TestRecordings has the clients of the recordings talk to a Registry, and
// compares its answers with those of the genuine brokers: the ext fields of 34
// (5.4.0), the lists of 38, and who was sent 40.
func TestRecordings(t *testing.T) {
	var files []string
	for _, scenario := range []string{"rebalance", "broadcast", "tags", "tags-heartbeatv2", "retry", "sql"} {
		found, err := filepath.Glob(filepath.Join("..", "..", "testdata", "wire", "*__consumer-"+scenario+".ndjson.gz"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 20 {
		t.Fatalf("only %d recordings found", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".ndjson.gz"), func(t *testing.T) {
			lines := readRecording(t, file)
			synctest.Test(t, func(t *testing.T) { replay(t, lines, strings.Contains(file, "__5.4.0__")) })
		})
	}
}

func replay(t *testing.T, lines []recorded, v5 bool) {
	conns := make(map[string]*testConn)
	names := make(map[Conn]string)
	conn := func(name string) *testConn {
		c := conns[name]
		if c == nil {
			c = newConn()
			conns[name], names[c] = c, name
		}
		return c
	}
	told := make(map[string]bool)
	r := New(Options{Notify: func(c Conn, group string) { told[names[c]+" "+group] = true }})
	defer r.Close()
	want := make(map[string]bool)
	key := func(l *recorded) string { return fmt.Sprint(l.Conn, " ", l.Opaque) }
	groupOf := make(map[string]string)                     // of a 38, by key
	answers := make(map[string]remoting.HeartbeatResponse) // ours, by key
	beats, lists := 0, 0
	start := time.Now()

	for i := range lines {
		l := &lines[i]
		time.Sleep(time.Until(start.Add(time.Duration(l.T) * time.Millisecond)))
		c := conn(l.Conn)
		switch {
		case l.Kind == "close":
			if !closed(c) {
				hangUp(r, c)
			}
		case l.Kind == "request" && l.Code == remoting.ReqHeartBeat:
			hb := new(remoting.Heartbeat)
			if err := remoting.DecodeBody(l.Body, hb); err != nil {
				t.Fatal(err)
			}
			resp, err := r.Heartbeat(c, remoting.ParseLanguage(l.Language), l.Version, hb)
			if err != nil {
				t.Fatal(err)
			}
			answers[key(l)] = resp
			for k := range hb.Consumers {
				for _, s := range hb.Consumers[k].Subscriptions {
					sub, err := r.Members.ForPull(hb.Consumers[k].GroupName, s.Topic, s.SubVersion, true)
					if err != nil || sub.Expression() != s.SubString || sub.All() != (s.SubString == "*") {
						t.Errorf("%d ms: subscription to %s is %+v, %v, want %q", l.T, s.Topic, sub, err, s.SubString)
					}
				}
			}
			beats++
		case l.Kind == "request" && l.Code == remoting.ReqUnregisterClient:
			r.Unregister(c, &remoting.UnregisterClientRequest{
				ClientID: l.field("clientID"), ProducerGroup: l.field("producerGroup"), ConsumerGroup: l.field("consumerGroup"),
			})
		case l.Kind == "request" && l.Code == remoting.ReqGetConsumerListByGroup:
			groupOf[key(l)] = l.field("consumerGroup")
		case l.Dir == "s2c" && l.Code == remoting.ReqNotifyConsumerIDsChanged && l.Kind == "oneway":
			group := l.field("consumerGroup")
			if g, ok := r.Members.Group(group); v5 || !ok || g.Model != remoting.Broadcasting { // 4.9.4 tells those too
				want[l.Conn+" "+group] = true
			}
		case l.Kind == "response" && l.ReqCode == remoting.ReqHeartBeat:
			got := answers[key(l)]
			if v5 && (got.SupportV2 != l.field("IS_SUPPORT_HEART_BEAT_V2") || got.SubChanged != l.field("IS_SUB_CHANGE")) {
				t.Errorf("%d ms: answer of heartbeat %s is %+v, want %s", l.T, key(l), got, l.Ext)
			}
		case l.Kind == "response" && l.ReqCode == remoting.ReqGetConsumerListByGroup && l.Code == 0:
			list := new(remoting.ConsumerList)
			if err := remoting.DecodeBody(l.Body, list); err != nil {
				t.Fatal(err)
			}
			slices.Sort(list.ConsumerIDs)
			if got := r.Members.ClientIDs(groupOf[key(l)]); !slices.Equal(got, list.ConsumerIDs) {
				t.Errorf("%d ms: %s has %v, want %v", l.T, groupOf[key(l)], got, list.ConsumerIDs)
			}
			lists++
		}
	}
	if beats == 0 {
		t.Error("no heartbeats in the recording")
	}
	t.Logf("%d heartbeats, %d lists, told %v", beats, lists, told)
	for k := range want {
		if !told[k] {
			t.Errorf("%s was sent 40, and is not by us", k)
		}
	}
	for k := range told {
		if !want[k] {
			t.Errorf("%s is sent 40 by us, and was not", k)
		}
	}
	for _, c := range conns {
		hangUp(r, c)
	}
	if s := r.Stats(); s != (Stats{}) {
		t.Errorf("after all connections have closed: %+v", s)
	}
}
