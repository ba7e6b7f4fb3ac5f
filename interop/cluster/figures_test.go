//go:build interop && linux

package cluster

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var figures = flag.Bool("figures", false, "compare the CPU time of brokers, some minutes on a quiet machine")

// TestSendCPU measures the CPU time of brokers for a message of 1 KiB, when 64
// threads of the genuine client on the same machine send and each waits for its
// answer: ours against the Java one of the version whose answers ours gives, in
// turns. The Java ones have all their compilers, the collector of their start
// script, and 2 GiB.
func TestSendCPU(t *testing.T) {
	if !*figures {
		t.Skip("measures; see -figures")
	}
	per := make(map[kind][]time.Duration)
	for range 3 {
		for _, k := range []kind{java540, gantry, java494} {
			took, rate := sendCPU(t, k)
			t.Logf("%s: %v of CPU a message, %d messages/s", k, took, rate)
			per[k] = append(per[k], took)
		}
	}
	median := func(k kind) float64 { slices.Sort(per[k]); return float64(per[k][len(per[k])/2]) }
	ratio := median(gantry) / median(java540)
	t.Logf("of the CPU of Java 5.4.0: %.2f; of 4.9.4: %.2f", ratio, median(gantry)/median(java494))
	if ratio > 1./3 {
		t.Errorf("%.2f of the CPU of Java 5.4.0, want a third at most", ratio)
	}
}

// sendCPU starts a broker of kind k and returns its CPU time for a message and the
// messages in a second.
func sendCPU(t *testing.T, k kind) (took time.Duration, rate int) {
	t.Helper()
	const seconds = 8
	p := newPair(t, k, brokerConfig{set: map[string]string{"mappedFileSizeCommitLog": "1073741824"}})
	for _, s := range p.servers {
		if k == gantry {
			continue
		}
		for tests, users := range map[string]string{
			"-XX:TieredStopAtLevel=1": "-XX:TieredStopAtLevel=4", "-XX:+UseSerialGC": "-XX:+UseG1GC", "-Xms256m": "-Xms2g", "-Xmx512m": "-Xmx2g",
		} {
			i := slices.Index(s.argv, tests)
			if i < 0 {
				t.Fatalf("no %s among %q", tests, s.argv)
			}
			s.argv[i] = users
		}
	}
	p.start(t)
	client := newJavaClient(t, java540.version(), p.namesrv, "-XX:TieredStopAtLevel=4")
	var before, after time.Duration
	r := client.run(t, "pound", newSuffix(), func(event string) {
		switch pid := p.last().p.cmd.Process.Pid; event {
		case "hot":
			before = cpuOf(t, pid)
		case "sent":
			after = cpuOf(t, pid)
		}
	}, "64", "300000", strconv.Itoa(seconds))
	r.check(t)
	sent := r.Facts["sent"].(float64)
	p.stop(t)
	return time.Duration(float64(after-before) / sent), int(sent / seconds)
}

// cpuOf is the CPU time that a process has used.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, s := range f[11:13] { // utime, stime
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
