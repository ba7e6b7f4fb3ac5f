//go:build interop

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
)

// The golden broker stores: their broker, and what a user of it knew.
const (
	goldenCluster = "GoldenCluster"
	goldenBroker  = "broker-a"
)

var (
	goldenTopics = []string{"TopicTest", "OrderTopic", "RetryTopic", "DlqTopic", "TransTopic", "DelayTopic", "TBW102_probe",
		"%RETRY%cg_all", "%RETRY%cg_retry", "%RETRY%cg_dlq", "%RETRY%cg_order", "%RETRY%cg_tag", "%DLQ%cg_dlq"}
	goldenGroups = []string{"cg_all", "cg_retry", "cg_dlq", "cg_order", "cg_tag"}
)

// delayTopic has messages that were waiting when the store was made. Whoever
// opens it delivers those that are due, so it grows.
const delayTopic = "DelayTopic"

// snapshot is what genuine clients and the admin library see of a broker.
type snapshot struct {
	Topics   map[string]string            `json:"topics"`
	Groups   map[string]string            `json:"groups"`
	Queues   map[string]map[string]string `json:"queues"`   // topic, queue: min-max
	Offsets  map[string]map[string]int64  `json:"offsets"`  // group, topic/queue
	Messages map[string][]map[string]any  `json:"messages"` // topic/queue
	Keys     map[string]any               `json:"keys"`     // topic/key: places
}

// look runs the Java program that looks at a broker, of a version.
func look(t *testing.T, version string, into any, args ...string) {
	t.Helper()
	dir := t.TempDir()
	argv := []string{"java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8",
		"-Duser.home=" + dir, "-Djava.io.tmpdir=" + dir}
	argv = append(argv, javaOpens...)
	argv = append(argv, "-cp", serverClassPath(t, kind("java-"+version)), "gantry.look.Main")
	argv = append(argv, args...)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("look %q: %v\n%s\n%s", args, err, out, stderr.String())
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "{") {
			continue // 4.9 logs to standard output, also after the answer
		}
		if err := json.Unmarshal([]byte(line), into); err != nil {
			t.Fatalf("look %q: %v in %q", args, err, line)
		}
		return
	}
	t.Fatalf("look %q: no answer in %q", args, out)
}

func (p *pair) snapshot(t *testing.T, version string) *snapshot {
	t.Helper()
	var s snapshot
	look(t, version, &s, "snapshot", p.namesrv, p.broker, strings.Join(goldenTopics, ","), strings.Join(goldenGroups, ","))
	return &s
}

// settled is a snapshot without what differs between brokers for good reasons:
// system topics and groups that each makes for itself, and what has been
// delivered since. until has the length of each queue of the delay topic.
func (s *snapshot) settled(until map[string]int) *snapshot {
	c := *s
	c.Topics = maps.Clone(s.Topics)
	maps.DeleteFunc(c.Topics, func(name string, _ string) bool { return !slices.Contains(goldenTopics, name) })
	c.Groups = maps.Clone(s.Groups)
	maps.DeleteFunc(c.Groups, func(name string, _ string) bool { return !slices.Contains(goldenGroups, name) })
	c.Queues = maps.Clone(s.Queues)
	delete(c.Queues, delayTopic)
	c.Messages = maps.Clone(s.Messages)
	for q, all := range c.Messages {
		if n, ok := until[q]; ok && len(all) > n {
			c.Messages[q] = all[:n]
		}
	}
	c.Keys = maps.Clone(s.Keys)
	maps.DeleteFunc(c.Keys, func(key string, _ any) bool { return strings.HasPrefix(key, delayTopic+"/") })
	return &c
}

// delivered is the number of messages in the delay topic.
func (s *snapshot) delivered() (n int) {
	for q, all := range s.Messages {
		if strings.HasPrefix(q, delayTopic+"/") {
			n += len(all)
		}
	}
	return n
}

// diff compares two views and says where they differ.
func diff(t *testing.T, what string, want, got *snapshot) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-genuine before +now):\n%s", what, d)
	}
}

// TestTakeover: a store that a genuine broker has left is served by ours as
// that broker serves it, clients go on where they were, and then the genuine
// broker takes it back.
func TestTakeover(t *testing.T) {
	k := ours(t)
	for _, java := range javaKinds {
		t.Run(string(java), func(t *testing.T) {
			t.Parallel()
			if k != gantry && k != java {
				t.Skip("a genuine broker is given stores of its own version")
			}
			version := java.version()
			name := version + "-broker-dir"
			m, err := golden.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			// What waits at the end of the golden store is not compared.
			until := make(map[string]int)
			for _, q := range m.Queues {
				if q.Topic == delayTopic {
					until[fmt.Sprintf("%s/%d", q.Topic, q.ID)] = int(q.Max)
				}
			}
			config := func(dir string) brokerConfig {
				set := make(map[string]string)
				for _, kv := range m.Config.Properties() {
					key, value, _ := strings.Cut(kv, "=")
					set[key] = value
				}
				delete(set, "haListenPort")
				// The levels that the store was written with: upstream's own.
				set["messageDelayLevel"] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
				return brokerConfig{name: goldenBroker, cluster: goldenCluster, dir: dir, set: set, file: true}
			}
			unpack := func() string {
				dir := t.TempDir()
				if err := golden.UnpackTo(vfs.OS(), dir+"/store", name); err != nil {
					t.Fatal(err)
				}
				return dir + "/store"
			}

			// As the genuine broker serves it.
			before := newPair(t, java, config(unpack()))
			before.start(t)
			want := before.snapshot(t, version)
			before.stop(t)
			if n := len(want.Messages["TopicTest/0"]); n == 0 {
				t.Fatal("the genuine broker gave no messages")
			}

			// As ours serves a copy.
			dir := unpack()
			taken := newPair(t, k, config(dir))
			taken.start(t)
			got := taken.snapshot(t, version)
			diff(t, "taken over", want.settled(until), got.settled(until))

			// Clients go on: the group has consumed everything and gets what is new.
			sent := proceed(t, version, taken, 12)
			got = taken.snapshot(t, version)
			taken.stop(t)
			// Three messages of the highest level wait in each store, for two
			// hours, and in that of 5.4.0 three for a moment, which ours leaves
			// to it.
			total := 0
			for _, n := range until {
				total += n
			}
			if n := got.delivered() - total; n != 3 && (k != java540 || n < 3 || n > 6) {
				t.Errorf("%s has %d messages more than the %d before, want the 3 that were due", delayTopic, n, total)
			}

			// As the genuine broker serves it afterwards.
			back := newPair(t, java, config(dir))
			back.start(t)
			after := back.snapshot(t, version)
			diff(t, "given back", got.settled(until), after.settled(until))
			if n := after.delivered() - got.delivered(); n < 0 || n > 3 || java == java494 && n > 0 {
				t.Errorf("%s has %d more messages after it was given back", delayTopic, n)
			}
			again := proceed(t, version, back, 12)
			for _, s := range again {
				if slices.Contains(sent, s) {
					t.Errorf("after it was given back a message got the place of another: %s", s)
				}
			}
			back.stop(t)
		})
	}
}

// proceed sends messages to a topic whose messages a group has consumed, and
// sees that the group gets these and no others. It returns their places.
func proceed(t *testing.T, version string, p *pair, n int) []string {
	t.Helper()
	var r struct {
		Sent []string `json:"sent"`
		Want []string `json:"want"`
		Got  []string `json:"got"`
	}
	begin := time.Now()
	look(t, version, &r, "continue", p.namesrv, "TopicTest", "cg_all", fmt.Sprint(n))
	t.Logf("continued after %v: %q", time.Since(begin).Round(time.Millisecond), r.Sent)
	if d := cmp.Diff(r.Want, r.Got); d != "" {
		t.Errorf("the group did not get exactly what was new (-sent +got):\n%s", d)
	}
	for _, s := range r.Sent {
		if !strings.HasPrefix(s, "SEND_OK ") {
			t.Errorf("a send: %s", s)
		}
	}
	return r.Sent
}
