package gantry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/message"
)

// threeFiles is a store whose log and queue have three files each and whose
// index has two.
func threeFiles(t testing.TB, v variant) *site {
	c := newSite(t, v)
	c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize, c.opts.IndexEntries = 3000, 20*20, 60
	s := c.open()
	c.putMany(s, "TopicTest", 0, 50)
	waitDispatched(t, s)
	c.stop(s, stopClean)
	if n := len(c.names("commitlog")); n != 3 {
		t.Fatalf("log files %q", c.names("commitlog"))
	}
	if n := len(c.names("consumequeue", "TopicTest", "0")); n != 3 {
		t.Fatalf("queue files %q", c.names("consumequeue", "TopicTest", "0"))
	}
	if n := len(c.names("index")); n != 2 {
		t.Fatalf("index files %q", c.names("index"))
	}
	return c
}

func TestC33WrongSizes(t *testing.T) {
	type outcome int
	const (
		opens outcome = iota
		warns         // opens, and says which file is odd
		refuses
	)
	const logs, queue = "commitlog", "consumequeue/TopicTest/0"
	size := map[string]int64{logs: 3000, queue: 400}
	for _, tt := range []struct {
		name   string
		dir    string
		file   int // -1: the last
		change int64
		want   outcome
	}{
		{"log, middle file short", logs, 1, -1, refuses},
		{"log, first file short", logs, 0, -1, refuses},
		{"log, middle file half", logs, 1, -1500, refuses},
		{"log, middle file empty", logs, 1, -3000, refuses},
		{"log, middle file long", logs, 1, 1, refuses},
		{"log, last file short", logs, -1, -1, warns},
		{"log, last file half", logs, -1, -1500, warns},
		{"log, last file longer", logs, -1, 4096, warns},
		{"queue, middle file short", queue, 1, -1, refuses},
		{"queue, middle file short by a unit", queue, 1, -20, refuses},
		{"queue, last file short", queue, -1, -1, warns},
		{"queue, last file empty", queue, -1, -400, warns},
		{"queue, last file longer", queue, -1, 4096, warns},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, v := range []variant{inMemory, allVariants[1], allVariants[3]} {
				base := threeFiles(t, v)
				for _, how := range []stop{stopClean, stopAbort} {
					c := base.fork()
					names := c.names(tt.dir)
					i := tt.file
					if i < 0 {
						i = len(names) - 1
					}
					file := filepath.Join(tt.dir, names[i])
					if tt.dir == logs && i == len(names)-1 {
						// Nothing of value is cut off.
						name, off := c.logPlace(c.acked[49].physical)
						if name != file || off+int64(c.acked[49].size) > 1500 {
							t.Fatalf("the last message is in %s at %d", name, off)
						}
					}
					c.resize(file, size[tt.dir]+tt.change)
					if how == stopAbort {
						c.create("abort", nil)
					}
					if tt.want == refuses {
						err := c.refused()
						if !errors.Is(err, ErrCorrupt) {
							t.Errorf("error %v", err)
						}
						holds(t, err, c.path(file), fmt.Sprint(size[tt.dir]+tt.change), fmt.Sprint(size[tt.dir]))
						continue
					}
					s := c.open()
					c.verify(s)
					if n := mentions(s.Recovery().Warnings, file); tt.want == warns && n != 1 {
						t.Errorf("%d warnings name %s: %q", n, file, s.Recovery().Warnings)
					}
					c.putMany(s, "TopicTest", 0, 20)
					s = c.reopen(s, stopKill)
					c.verify(s)
					// (The kill may fall between making the next file and giving
					// it its length.)
					if got := s.Recovery().Warnings; mentions(got, file) > 0 {
						t.Errorf("warnings again: %q", got)
					}
					mustClose(t, s)
					for _, name := range c.names(tt.dir) {
						if n := int64(len(c.bytes(tt.dir, name))); n != size[tt.dir] {
							t.Errorf("%s has %d bytes", name, n)
						}
					}
				}
			}
		})
	}
}

func TestC33ForeignFiles(t *testing.T) {
	for _, v := range allVariants {
		t.Run(v.name, func(t *testing.T) {
			base := threeFiles(t, v)
			for _, how := range []stop{stopClean, stopAbort} {
				c := base.fork()
				var foreign []string
				add := func(name string, content []byte) {
					c.create(name, content)
					foreign = append(foreign, name)
				}
				for _, dir := range []string{"commitlog", "consumequeue/TopicTest/0"} {
					add(filepath.Join(dir, ".DS_Store"), []byte("finder"))
					add(filepath.Join(dir, "00000000000000000000.bak"), make([]byte, 4096))
					add(filepath.Join(dir, "1048576"), make([]byte, 4096)) // not padded: ignored
					must(t, c.fs.MkdirAll(c.path(dir, "lost+found")))
					foreign = append(foreign, filepath.Join(dir, "lost+found"))
					if v.os {
						first := c.names(dir)[slices.Index(c.names(dir), "00000000000000000000")]
						link := filepath.Join(dir, "00000000000000999999")
						if err := os.Symlink(c.path(dir, first), c.path(link)); err != nil {
							t.Skip("symbolic links cannot be made here: ", err)
						}
						foreign = append(foreign, link)
					}
				}
				add("index/readme.txt", []byte("please keep"))
				add("index/20231114221320", make([]byte, 40)) // not 17 digits
				must(t, c.fs.MkdirAll(c.path("index", "lost+found")))
				foreign = append(foreign, "index/lost+found")
				add("consumequeue/notes.txt", nil)
				add("consumequeue/TopicTest/notes.txt", nil)
				must(t, c.fs.MkdirAll(c.path("consumequeue/TopicTest/007")))
				foreign = append(foreign, "consumequeue/TopicTest/007")
				if how == stopAbort {
					c.create("abort", nil)
				}
				s := c.open()
				c.verify(s)
				for _, name := range foreign {
					if n := countNamed(s.Recovery().Warnings, c.path(name)); n != 1 {
						t.Errorf("%d warnings name %s", n, name)
					}
				}
				if n := len(s.Recovery().Warnings); n != len(foreign) {
					t.Errorf("%d warnings for %d foreign names: %q", n, len(foreign), s.Recovery().Warnings)
				}
				c.putMany(s, "TopicTest", 0, 100)
				c.verify(s)
				s = c.reopen(s, stopKill)
				c.verify(s)
				mustClose(t, s)
				for _, name := range foreign {
					if _, err := c.fs.Stat(c.path(name)); err != nil && !v.os { // links are not copied by kill
						t.Errorf("foreign %s: %v", name, err)
					}
				}
			}
		})
	}
}

// countNamed counts the warnings that name exactly this path.
func countNamed(lines []string, path string) int {
	n := 0
	for _, l := range lines {
		if slices.Contains(strings.Fields(l), path) {
			n++
		}
	}
	return n
}

func TestC33ConfiguredSize(t *testing.T) {
	for _, v := range []variant{inMemory, allVariants[3]} {
		t.Run("log/"+v.name, func(t *testing.T) {
			c := threeFiles(t, v)
			c.opts = c.opts.with(func(o *Options) { o.CommitLogFileSize = 300_000 })
			err := c.refused()
			holds(t, err, "3000", "300000")
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			c.opts = c.opts.with(func(o *Options) { o.CommitLogFileSize = 0 }) // that of the files
			s := c.open()
			c.verify(s)
			mustClose(t, s)
		})
		t.Run("queue/"+v.name, func(t *testing.T) {
			// The files are right and the setting is wrong: theirs is used, and
			// a warning holds both numbers (store-behaviour CF1).
			c := threeFiles(t, v)
			c.opts = c.opts.with(func(o *Options) { o.ConsumeQueueFileSize = 6_000_000 })
			s := c.open()
			c.verify(s)
			if w := s.Recovery().Warnings; len(w) != 1 || !strings.Contains(w[0], "400") || !strings.Contains(w[0], "6000000") {
				t.Errorf("warnings %q", w)
			}
			c.putMany(s, "TopicTest", 0, 30)
			c.putMany(s, "Other", 0, 3)
			s = c.reopen(s, stopKill)
			c.verify(s)
			mustClose(t, s)
			for _, dir := range []string{"consumequeue/TopicTest/0", "consumequeue/Other/0"} {
				for _, name := range c.names(dir) {
					if n := len(c.bytes(dir, name)); n != 400 {
						t.Errorf("%s/%s has %d bytes", dir, name, n)
					}
				}
			}
		})
	}
}

func TestC35TopicExpired(t *testing.T) {
	for _, by := range []string{"retention", "hand"} {
		for _, cqSize := range []int64{20_000, 400} {
			t.Run(fmt.Sprintf("%s/cq=%d", by, cqSize), func(t *testing.T) {
				eachVariant(t, allVariants, func(t *testing.T, c *site) {
					c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize, c.opts.DeleteBatch = 16<<10, cqSize, 100
					c.keyStep = 5
					s := c.open()
					c.putMany(s, "TopicA", 0, 250)
					lastA := c.acked[249].physical
					fill := func(files message.PhysicalOffset) {
						for c.acked[len(c.acked)-1].physical/(16<<10) < lastA/(16<<10)+files {
							c.putMany(s, "TopicB", 0, 25)
						}
					}
					fill(1)
					c.clock.add(100 * time.Hour)
					fill(6)
					var gone []entry
					if by == "retention" {
						all := slices.Clone(c.acked)
						c.retain(s)
						gone = all[:len(all)-len(c.acked)]
					} else {
						c.stop(s, stopClean)
						first := message.PhysicalOffset(0)
						for first <= lastA {
							name, _ := c.logPlace(first)
							c.remove(name)
							first += 16 << 10
						}
						gone = slices.Clone(c.acked)
						c.forget(func(e entry) bool { return e.physical < first })
						gone = gone[:len(gone)-len(c.acked)]
						s = c.open()
					}
					if c.acked[0].topic != "TopicB" {
						t.Fatal("messages of TopicA are left")
					}
					check := func(what string) {
						t.Helper()
						c.verify(s)
						c.queueRange(s, "TopicA", 0, 250, 250)
						c.queueRange(s, "TopicB", 0, c.acked[0].offset, c.acked[len(c.acked)-1].offset+1)
						for _, off := range []message.QueueOffset{0, 1, 249} {
							res, err := s.Get("TopicA", 0, off, GetOptions{})
							if err != nil || res.Status != OffsetTooSmall || res.NextOffset != 250 || res.MinOffset != 250 || res.MaxOffset != 250 {
								t.Errorf("%s: get at %d: %+v, %v", what, off, res, err)
							}
						}
						if res, err := s.Get("TopicA", 0, 250, GetOptions{}); err != nil || res.Status != OffsetOverflowOne {
							t.Errorf("%s: get at 250: %+v, %v", what, res, err)
						}
						lo, hi, err := s.QueueRange("TopicA", 0)
						must(t, err)
						if lag := hi - max(0, lo); lag != 0 { // of a group at offset 0
							t.Errorf("%s: lag %d", what, lag)
						}
						for _, e := range gone[:5] {
							for k := range e.props.Keys() {
								if got := c.query(s, e.topic, k, QueryOptions{}); got != nil {
									t.Errorf("%s: key %s of a deleted message gives %v", what, k, got)
								}
							}
						}
					}
					check("after deletion")
					for _, how := range allStops {
						s = c.reopen(s, how)
						check(string(how))
					}
					if res := c.put(s, &message.Message{Topic: "TopicA", Body: []byte("next"), Properties: message.NewProperties("KEYS", "next")}); res.QueueOffset != 250 {
						t.Errorf("the next message of TopicA has offset %d", res.QueueOffset)
					}
					for _, how := range []stop{stopKill, stopClean} {
						s = c.reopen(s, how)
						c.verify(s)
						c.queueRange(s, "TopicA", 0, 250, 251)
					}
					mustClose(t, s)
				})
			})
		}
	}
}

// TestC35EverythingExpired: the same when nothing of any topic is left but the
// newest file.
func TestC35EverythingExpired(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	s := c.open()
	c.putMany(s, "TopicA", 0, 250)
	c.clock.add(1000 * time.Hour)
	c.retain(s)
	for range 5 { // never the newest file, however often
		if _, err := s.Clean(context.Background(), CleanOptions{AnyHour: true}); err != nil {
			t.Fatal(err)
		}
	}
	first, end := s.Range()
	c.forget(func(e entry) bool { return e.physical < first })
	if first >= end || len(c.acked) == 0 {
		t.Fatalf("the log has %d to %d", first, end)
	}
	for _, how := range allStops {
		c.verify(s)
		c.queueRange(s, "TopicA", 0, c.acked[0].offset, 250)
		s = c.reopen(s, how)
	}
	mustClose(t, s)
}
