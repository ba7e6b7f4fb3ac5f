package cli

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// get asks the HTTP port of a server.
func (r *running) get(path string) (status int, body string) {
	r.b.t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Get("http://" + r.at.HTTP + path)
	if err != nil {
		r.b.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.b.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// until asks again and again until the answer is the wanted status: what makes
// it so happens in the background, and nothing tells of it.
func (r *running) until(path string, want int) (body string) {
	r.b.t.Helper()
	for end := time.Now().Add(patience); ; {
		status, body := r.get(path)
		if status == want {
			return body
		}
		if time.Now().After(end) {
			r.b.t.Fatalf("%s: %d %q", path, status, body)
		}
	}
}

func TestHealth(t *testing.T) {
	for _, tc := range []struct {
		name string
		harm func(fs *faultfs.FS, mem *memfs.FS)
		args []string
		want string
	}{
		{"disk full", func(_ *faultfs.FS, mem *memfs.FS) {
			mem.SetUsage(&vfs.Usage{Total: 100, Used: 99, Free: 1})
		}, []string{"--set", "cleanResourceInterval=10"}, "disk full"},
		{"read-only", func(fs *faultfs.FS, _ *memfs.FS) {
			fs.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Name: "/data/commitlog/*", Err: faultfs.ErrIO})
		}, []string{"--set", "flushDiskType=SYNC_FLUSH"}, faultfs.ErrIO.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newServerBench(t)
			mem := b.fs.(*memfs.FS)
			faults := faultfs.New(mem)
			b.fs = faults
			s := b.serve(append(tc.args, "--http", "127.0.0.1:0")...)
			s.must(exitOK, "send", "Orders", "--body", "x")
			for _, path := range []string{"/healthz", "/readyz"} {
				if status, body := s.get(path); status != http.StatusOK || body != "ok\n" {
					t.Errorf("%s: %d %q", path, status, body)
				}
			}
			tc.harm(faults, mem)
			if got := s.ask("send", "Orders", "--body", "y"); tc.name == "read-only" && got.code == exitOK {
				t.Errorf("sent: %q", got.stdout)
			}
			for _, path := range []string{"/healthz", "/readyz"} {
				if body := s.until(path, http.StatusServiceUnavailable); !strings.Contains(body, tc.want) {
					t.Errorf("%s: %q", path, body)
				}
			}
			mem.SetUsage(nil)
			if tc.name == "disk full" { // it passes
				s.until("/healthz", http.StatusOK)
			}
		})
	}
}

// TestReadiness: not before all runs, and no more once it stops; neither is a
// reason to restart the process.
func TestReadiness(t *testing.T) {
	var s servers
	ask := func(check func() error) (int, string) {
		w := httptest.NewRecorder()
		answer(check)(w, nil)
		return w.Code, w.Body.String()
	}
	for _, tc := range []struct {
		phase  phase
		status int
		body   string
	}{
		{starting, http.StatusServiceUnavailable, "starting\n"}, {ready, http.StatusOK, "ok\n"}, {stopping, http.StatusServiceUnavailable, "stopping\n"},
	} {
		s.phase.Store(int32(tc.phase))
		if status, body := ask(s.ready); status != tc.status || body != tc.body {
			t.Errorf("%v: %d %q", tc.phase, status, body)
		}
		if status, body := ask(s.healthy); status != http.StatusOK {
			t.Errorf("%v: healthy: %d %q", tc.phase, status, body)
		}
	}
}

// TestReadyWhileStarting: the HTTP port answers while a store is opened, which
// may take long.
func TestReadyWhileStarting(t *testing.T) {
	b := newServerBench(t)
	faults := faultfs.New(b.fs)
	b.fs = faults
	opening, goOn := make(chan struct{}), make(chan struct{})
	faults.Inject(faultfs.Rule{Ops: faultfs.OpLock, Count: 1, Hook: func(faultfs.Call) {
		close(opening)
		<-goOn
	}})
	var s servers
	a := &app{console: newConsole(io.Discard, io.Discard), fs: b.fs, now: time.Now}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := &serverFlags{cmd: a.serve()}
	f.data, f.listen, f.namesrvListen, f.proxy = "/data", "127.0.0.1:0", "127.0.0.1:0", "off"
	a.set = []string{"mappedFileSizeCommitLog=65536", "maxIndexNum=400", "maxHashSlotNum=100"}
	o, err := a.serverOptions(f, true, true)
	if err != nil {
		t.Fatal(err)
	}
	o.http = "127.0.0.1:0"
	started := make(chan error, 1)
	go func() { started <- s.start(ctx, o) }()
	<-opening
	r := &running{b: b, at: readyJSON{HTTP: s.http.addr}}
	if status, body := r.get("/readyz"); status != http.StatusServiceUnavailable || body != "starting\n" {
		t.Errorf("%d %q", status, body)
	}
	if status, _ := r.get("/healthz"); status != http.StatusOK {
		t.Errorf("%d", status)
	}
	if _, body := r.get("/metrics"); !strings.Contains(body, "gantry_namesrv_brokers 0") || strings.Contains(body, "rocketmq_") {
		t.Errorf("metrics of a broker that does not run yet:\n%s", body)
	}
	close(goOn)
	if err := errors.Join(<-started, s.stop()); err != nil {
		t.Error(err)
	}
}

func TestNamesrvHTTP(t *testing.T) {
	s := newServerBench(t).server("namesrv", "--data", "/data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := s.get(path); status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	s.must(exitFailed, "query", "Orders", "k")
	fams := families(t, s)
	for name, want := range map[string]float64{"gantry_namesrv_brokers": 0, "gantry_namesrv_topics": 0} {
		if f := fams[name]; f == nil || f.GetMetric()[0].GetGauge().GetValue() != want {
			t.Errorf("%s: %v", name, f)
		}
	}
	asked := 0.0
	for _, m := range fams["gantry_namesrv_requests_total"].GetMetric() {
		if m.GetLabel()[0].GetValue() == "get_routeinfo_by_topic" {
			asked = m.GetCounter().GetValue()
		}
	}
	if asked != 1 {
		t.Errorf("%v requests for routes", asked)
	}
	if status, _ := s.get("/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("profiles are served: %d", status)
	}
}

// TestHTTPEnds: an asker who does not read does not keep the server, and is no
// failure.
func TestHTTPEnds(t *testing.T) {
	s := newServerBench(t).server("namesrv", "--data", "/data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--pprof")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.at.HTTP+"/debug/pprof/trace?seconds=60", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req) // the head comes at once, the trace in a minute
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := s.stop(); got.code != exitOK {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
}

func families(t *testing.T, s *running) map[string]*dto.MetricFamily {
	t.Helper()
	status, text := s.get("/metrics")
	p := expfmt.NewTextParser(model.LegacyValidation)
	fams, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d, %v\n%s", status, err, text)
	}
	return fams
}

// upstreamMetric is a line of testdata/metrics-5.4.0.txt.
type upstreamMetric struct {
	kind   string
	labels []string
	bounds []string
}

func upstreamMetrics(t *testing.T) map[string]upstreamMetric {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "metrics-5.4.0.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]upstreamMetric)
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		m := upstreamMetric{kind: f[1], labels: strings.Split(f[2], ",")}
		if len(f) > 3 {
			m.bounds = strings.Split(f[3], ",")
		}
		all[f[0]] = m
	}
	return all
}

// TestMetrics: what we show has the names, kinds, labels and bounds of a genuine
// broker.
func TestMetrics(t *testing.T) {
	b := newServerBench(t)
	s := b.serve("--http", "127.0.0.1:0")
	s.must(exitOK, "send", "Orders", "--body", "x", "--tag", "a", "--key", "k")
	s.mustIn(exitOK, "a\nb\n", "send", "Orders", "--lines")
	s.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "3")
	s.must(exitOK, "query", "Orders", "k")
	s.must(exitFailed, "send", "Bad Topic", "--body", "x")
	// One who is connected.
	ctx, cancel := context.WithCancel(t.Context())
	out := &lockedBuffer{lines: make(chan string, 1)}
	code := make(chan int, 1)
	go func() {
		a := &app{console: newConsole(out, io.Discard), fs: b.fs, now: time.Now}
		code <- a.main(ctx, []string{"receive", "Orders", "--group", "watch", "--from-earliest", "--namesrv", s.at.NameServer})
	}()
	<-out.lines
	fams := families(t, s)
	cancel()
	<-code

	genuine := upstreamMetrics(t)
	for name, f := range fams {
		if !strings.HasPrefix(name, "rocketmq_") {
			continue
		}
		want, ok := genuine[name]
		if !ok {
			t.Errorf("%s: a genuine broker has no such metric", name)
			continue
		}
		delete(genuine, name)
		if kind := strings.ToLower(f.GetType().String()); kind != want.kind {
			t.Errorf("%s is a %s, want a %s", name, kind, want.kind)
		}
		for _, m := range f.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetName())
			}
			slices.Sort(got)
			if d := cmp.Diff(want.labels, got); d != "" {
				t.Errorf("labels of %s: %s", name, d)
			}
		}
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			var bounds []string
			for _, b := range h.GetBucket() {
				bounds = append(bounds, strconv.FormatFloat(b.GetUpperBound(), 'f', 1, 64))
			}
			if d := cmp.Diff(want.bounds, bounds); d != "" {
				t.Errorf("bounds of %s: %s", name, d)
			}
		}
	}
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(genuine)), func(name string) bool {
		return strings.HasPrefix(name, "rocketmq_pop_") || strings.HasPrefix(name, "rocketmq_timer_") // there is neither
	})
	if d := cmp.Diff([]string{
		"rocketmq_commit_messages_total", "rocketmq_finish_message_latency_milliseconds", "rocketmq_half_messages",
		"rocketmq_producer_connections", "rocketmq_rollback_messages_total", "rocketmq_send_to_dlq_messages_total",
	}, missing); d != "" {
		t.Errorf("not shown because there is nothing yet, as upstream: %s", d)
	}

	in := 0.0
	for _, m := range fams["rocketmq_messages_in_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "topic" && l.GetValue() == "Orders" {
				in = m.GetCounter().GetValue()
			}
		}
	}
	if in != 3 {
		t.Errorf("%v messages came in", in)
	}
	for _, name := range []string{
		"gantry_connections", "gantry_store_read_only", "gantry_store_disk_full", "gantry_namesrv_brokers", "go_goroutines",
	} {
		if fams[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}
