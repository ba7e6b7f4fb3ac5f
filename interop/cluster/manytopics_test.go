//go:build interop

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestManyTopics: our broker registers more topics than fit into a frame with name
// servers of all kinds.
func TestManyTopics(t *testing.T) {
	k := ours(t)
	if k != gantry {
		t.Skip("genuine brokers cannot by default")
	}
	t.Parallel()
	var addrs []string
	for _, kind := range append(slices.Clone(javaKinds), gantry) {
		ns := newNamesrv(t, kind)
		ns.start(t)
		addrs = append(addrs, ns.namesrvs...)
	}
	dir := filepath.Join(t.TempDir(), "store")
	b := newBroker(t, k, brokerConfig{namesrv: addrs, dir: dir})
	const count = 100_000
	var file strings.Builder
	file.WriteString(`{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{`)
	for i := range count {
		if i > 0 {
			file.WriteByte(',')
		}
		fmt.Fprintf(&file, `"Topic-%d":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"Topic-%d","topicSysFlag":0,"writeQueueNums":4}`, i, i)
	}
	file.WriteString("}}")
	config := filepath.Join(dir, "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "topics.json"), []byte(file.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	for _, addr := range addrs {
		for _, topic := range []string{"Topic-0", fmt.Sprint("Topic-", count-1), "TBW102"} {
			if names, err := routed(t, addr, topic); err != nil || !slices.Contains(names, b.brokerName) {
				t.Errorf("%s: %s is at %v, %v", addr, topic, names, err)
			}
		}
	}
}
