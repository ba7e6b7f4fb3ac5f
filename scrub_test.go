package gantry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

// scrubSite is a store with many closed files of all kinds.
func scrubSite(t *testing.T, v variant) (*site, *Store) {
	c := newSite(t, v)
	c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = 16<<10, 400
	c.opts.IndexSlots, c.opts.IndexEntries, c.keyStep = 50, 200, 20
	s := c.open()
	for i := range 12 {
		c.putMany(s, "TopicTest", int32(i%3), 60)
		c.putMany(s, "Other", 0, 3)
	}
	waitDispatched(t, s)
	must(t, s.Sync(context.Background()))
	return c, s
}

func scrub(t *testing.T, s *Store) Scrub {
	t.Helper()
	state, err := s.Scrub(context.Background())
	if err != nil {
		t.Fatalf("scrub: %v", err)
	}
	return state
}

// TestScrubFindsDamage damages one closed file of each kind in each way under
// an open store. A pass says so, before anybody reads, and names the place.
func TestScrubFindsDamage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(c *site)
		texts  []string // of the findings; all of them must be there
	}{
		{name: "nothing", damage: func(*site) {}},
		{
			name: "body of a record",
			damage: func(c *site) {
				e := c.acked[10]
				c.patchLog(e.physical+90, []byte{0xFF}) // of the body, which begins at 88
			},
			texts: []string{"commitlog"},
		},
		{
			name:   "size of a record",
			damage: func(c *site) { c.patchLog(c.acked[20].physical, []byte{0x7F}) },
			texts:  []string{"commitlog"},
		},
		{
			name: "a page of the log",
			damage: func(c *site) {
				name, _ := c.logPlace(c.acked[0].physical)
				c.zero(name, 4096, 8192)
			},
			texts: []string{"commitlog"},
		},
		{
			name:   "position in a unit",
			damage: func(c *site) { c.patch("consumequeue/TopicTest/1/00000000000000000400", 20*3+7, []byte{0xEE}) },
			texts:  []string{"consume queue TopicTest/1", "offset 23"},
		},
		{
			name:   "size in a unit",
			damage: func(c *site) { c.patch("consumequeue/Other/0/00000000000000000000", 20*2+11, []byte{0xEE}) },
			texts:  []string{"consume queue Other/0", "offset 2"},
		},
		{
			name: "a chain of the index",
			damage: func(c *site) {
				c.damageIndex(func(r indexPlaces) (int64, []byte) { return r.entry(100) + 16, []byte{0, 0, 0, 3} })
			},
			texts: []string{"index", "entry 100"},
		},
		{
			name: "a slot of the index",
			damage: func(c *site) {
				c.damageIndex(func(r indexPlaces) (int64, []byte) { return r.slot(7), []byte{0, 0, 0, 1} })
			},
			texts: []string{"index", "slot 7"},
		},
		{
			name: "a position in the index",
			damage: func(c *site) {
				c.damageIndex(func(r indexPlaces) (int64, []byte) { return r.entry(50) + 11, []byte{0xEF} })
			},
			texts: []string{"records are not found by one of their keys"},
		},
	} {
		for _, v := range allVariants[:2] {
			t.Run(tt.name+"/"+v.name, func(t *testing.T) {
				c, s := scrubSite(t, v)
				c.unchecked = true
				tt.damage(c)
				state := scrub(t, s)
				said := c.notes.damaged()
				if len(tt.texts) == 0 {
					if state.Findings != 0 || len(said) > 0 {
						t.Errorf("findings in a sound store: %+v, %v", state, said)
					}
					files := s.log.Files()
					if want := files[len(files)-1].Start; message.PhysicalOffset(state.Bytes) < want || state.Records < 600 {
						t.Errorf("scrubbed %+v, the closed files have %d bytes", state, want)
					}
				} else if state.Findings == 0 || len(said) != int(state.Findings) || state.Findings > 3 {
					t.Errorf("%d findings: %v", state.Findings, said)
				}
				for _, text := range tt.texts {
					if !slices.ContainsFunc(said, func(err error) bool { return strings.Contains(err.Error(), text) && errors.Is(err, ErrCorrupt) }) {
						t.Errorf("nothing says %q: %v", text, said)
					}
				}
				if got := s.Stats().Scrub; got != state || got.Passes != 1 || got.Completed == 0 {
					t.Errorf("statistics %+v, the pass said %+v", got, state)
				}
				info, err := s.Info()
				if err != nil || info.Scrub != state {
					t.Errorf("info %+v, %v", info.Scrub, err)
				}
				must(t, s.Close())
			})
		}
	}
}

// indexPlaces are the positions in an index file of scrubSite.
type indexPlaces struct{}

func (indexPlaces) slot(n int64) int64  { return 40 + 4*n }
func (indexPlaces) entry(n int64) int64 { return 40 + 4*50 + 20*n }

// damageIndex overwrites bytes of the second index file.
func (c *site) damageIndex(place func(indexPlaces) (int64, []byte)) {
	c.t.Helper()
	off, b := place(indexPlaces{})
	c.patch("index/"+c.names("index")[1], off, b)
}

// TestScrubUnreadable: a page that the disk cannot read is a finding, and the
// records behind it are verified all the same.
func TestScrubUnreadable(t *testing.T) {
	for _, v := range allVariants[:2] {
		t.Run(v.name, func(t *testing.T) {
			c, s := scrubSite(t, v)
			c.stop(s, stopClean)
			c.fault = faultfs.New(c.fs)
			s = c.open()
			whole := scrub(t, s)
			c.fault.Inject(faultfs.Rule{
				Ops: faultfs.OpRead | faultfs.OpMapRead, Name: c.path(firstLogFile), Err: faultfs.ErrIO,
				Match: func(call faultfs.Call) bool { return call.Off < 8192 && call.Off+call.N > 4096 },
			})
			state := scrub(t, s)
			if said := c.notes.damaged(); state.Findings == 0 || !errors.Is(said[0], faultfs.ErrIO) {
				t.Errorf("findings %d: %v", state.Findings, said)
			}
			// Two pages or so are lost, with some 130 bytes for each record.
			if state.Records >= whole.Records || state.Records < whole.Records-100 {
				t.Errorf("%d records were verified, %d before", state.Records, whole.Records)
			}
			mustClose(t, s)
		})
	}
}

// TestScrubByItself: the store makes passes at the rate and with the pauses
// that it was told, and stops when it is closed.
func TestScrubByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scrubSite(t, inMemory)
		c.stop(s, stopClean)
		c.opts.ScrubRate, c.opts.ScrubInterval = 5_000, time.Hour // some 30 s for a pass
		s = c.open()
		synctest.Wait()
		if state := s.Stats().Scrub; !state.Running || state.Bytes > 100_000 {
			t.Errorf("at the beginning: %+v", state)
		}
		time.Sleep(5 * time.Second) // of the bubble
		synctest.Wait()
		if state := s.Stats().Scrub; !state.Running || state.Bytes < 20_000 || state.Bytes > 100_000 {
			t.Errorf("after five seconds: %+v", state)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		state := s.Stats().Scrub
		if state.Running || state.Passes != 1 || state.Findings != 0 || state.Records < 600 {
			t.Errorf("after a minute: %+v", state)
		}
		time.Sleep(time.Hour - 20*time.Second)
		synctest.Wait()
		if state := s.Stats().Scrub; state.Passes != 1 || !state.Running {
			t.Errorf("an hour after the first pass: %+v", state)
		}
		start := time.Now()
		mustClose(t, s)
		if d := time.Since(start); d > time.Second {
			t.Errorf("closing waited %v for the scrub", d)
		}
		// The one who looks from outside sees the last pass that was completed.
		s = mustOpenAt(t, c, func(o *Options) { o.ReadOnly = true })
		info, err := s.Info()
		if err != nil || info.Scrub.Completed == 0 || info.Scrub.Bytes != state.Bytes || info.Scrub.Running {
			t.Errorf("info read-only: %+v, %v", info.Scrub, err)
		}
		mustClose(t, s)
	})
}

// TestScrubIsToldEarly: what a pass finds can be seen from outside before the
// pass is complete, also when it never will be.
func TestScrubIsToldEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scrubSite(t, inMemory)
		c.unchecked = true
		c.patchLog(c.acked[10].physical+90, []byte{0xFF})
		c.stop(s, stopClean)
		c.opts.ScrubRate, c.opts.ScrubInterval = 5_000, time.Hour // some 30 s for a pass, 4 for a log file
		s = c.open()
		time.Sleep(10 * time.Second) // of the bubble
		synctest.Wait()
		mustClose(t, s)
		s = mustOpenAt(t, c, func(o *Options) { o.ReadOnly = true })
		info, err := s.Info()
		if err != nil || info.Scrub.Completed != 0 || info.Scrub.Started == 0 || info.Scrub.Findings == 0 || info.Scrub.LastFinding == "" {
			t.Errorf("info read-only: %+v, %v", info.Scrub, err)
		}
		mustClose(t, s)
	})
}

func mustOpenAt(t testing.TB, c *site, change func(*Options)) *Store {
	t.Helper()
	s, err := Open(context.Background(), c.dir, c.options().with(change))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// TestScrubBesideOthers: puts, retention and closing do not wait for a pass,
// and what they remove under it is no damage.
func TestScrubBesideOthers(t *testing.T) {
	for _, v := range allVariants[:2] {
		c, s := scrubSite(t, v)
		c.opts.DeleteBatch = 1
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			for {
				if _, err := s.Scrub(ctx); err != nil {
					done <- err
					return
				}
			}
		}()
		for i := range 40 {
			c.putMany(s, "TopicTest", int32(i%3), 10)
			c.clock.add(20 * time.Hour)
			waitDispatched(t, s)
			if _, err := s.Clean(ctx, CleanOptions{AnyHour: true}); err != nil {
				t.Fatal(err)
			}
		}
		if i := slices.IndexFunc(c.acked, func(e entry) bool { return e.physical >= s.log.Min() }); i <= 0 {
			t.Errorf("retention removed %d messages", i)
		}
		mustClose(t, s)
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("the scrub ended with %v", err)
		}
		cancel()
		if said := c.notes.damaged(); len(said) > 0 {
			t.Errorf("%s: findings in a sound store: %v", v.name, said)
		}
	}
}
