package broker

import (
	"errors"
	"strings"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// TestFailedSyncIsSaid: after a failed sync every answer to a producer, health
// and metrics say that the store takes nothing any more; what was acknowledged
// is served.
func TestFailedSyncIsSaid(t *testing.T) {
	faults := faultfs.New(memfs.New())
	r := startRig(t, func(o *Options) { o.FS, o.Store.Flush = faults, gantry.FlushSync })
	r.createTopic("T", 1)
	r.send("T", 0, "before")
	r.dispatched()
	if v, there := scrape(t, r.b)["gantry_store_read_only"]; !there || v != 0 {
		t.Errorf("before: gantry_store_read_only is %v (there: %v)", v, there)
	}
	faults.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Name: "/store/commitlog/*", Count: 1, Err: faultfs.ErrIO})
	for i := range 3 {
		resp := r.call(remoting.ReqSendMessageV2, sendHeader("T", 0), []byte("after"))
		if resp.Code == 0 || i > 0 && !strings.Contains(resp.Remark, faultfs.ErrIO.Error()) {
			t.Errorf("send %d after the failed sync: %d %q", i, resp.Code, resp.Remark)
		}
	}
	if err := r.b.Healthy(); !errors.Is(err, gantry.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("health: %v", err)
	}
	if v := scrape(t, r.b)["gantry_store_read_only"]; v != 1 {
		t.Errorf("gantry_store_read_only is %v", v)
	}
	if got := r.bodies("T", 0, 0); len(got) == 0 || got[0] != "before" {
		t.Errorf("served: %q", got)
	}
}

// TestScrubIsSaid: what the background check finds is in the metrics.
func TestScrubIsSaid(t *testing.T) {
	mem := memfs.New()
	r := startRig(t, func(o *Options) { o.FS, o.Store.CommitLogFileSize = mem, 16<<10 })
	r.createTopic("T", 1)
	for range 40 {
		r.send("T", 0, strings.Repeat("x", 1000))
	}
	r.dispatched()
	for _, findings := range []float64{0, 1} {
		if _, err := r.b.store.Scrub(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, r.b)
		for name, want := range map[string]float64{"gantry_store_scrub_passes_total": findings + 1, "gantry_store_scrub_findings": findings} {
			if v, there := got[name]; !there || v != want {
				t.Errorf("%s is %v (there: %v), want %v", name, v, there, want)
			}
		}
		if got["gantry_store_scrub_bytes"] < 16<<10 {
			t.Errorf("%v bytes in pass %v", got["gantry_store_scrub_bytes"], findings+1)
		}
		f, err := mem.Open("/store/commitlog/00000000000000000000", vfs.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{'?'}, 200); err != nil { // of the first body
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
