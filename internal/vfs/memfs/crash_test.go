package memfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

const page = 4096

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, fsys vfs.FS, name, data string) vfs.File {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	put(t, f, data, 0)
	return f
}

func put(t testing.TB, w interface {
	WriteAt([]byte, int64) (int, error)
}, data string, off int64) {
	t.Helper()
	_, err := w.WriteAt([]byte(data), off)
	must(t, err)
}

// tree describes all files and directories; runs of one byte are shortened.
func tree(t testing.TB, fsys vfs.FS) map[string]string {
	t.Helper()
	got := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := fsys.List(dir)
		must(t, err)
		for _, e := range entries {
			name := strings.TrimSuffix(dir, "/") + "/" + e.Name
			if e.IsDir() {
				got[name+"/"] = ""
				walk(name)
				continue
			}
			data, err := vfs.ReadFile(fsys, name, 1<<20)
			must(t, err)
			got[name] = short(data)
		}
	}
	walk("/")
	return got
}

// short writes runs of a byte as byte*count, zeros as "_".
func short(data []byte) string {
	var parts []string
	for i := 0; i < len(data); {
		j := i
		for j < len(data) && data[j] == data[i] {
			j++
		}
		c := string(data[i])
		if data[i] == 0 {
			c = "_"
		}
		if j-i > 1 {
			c += fmt.Sprint("*", j-i)
		}
		parts = append(parts, c)
		i = j
	}
	return strings.Join(parts, " ")
}

func fill(c byte, n int) string { return string(bytes.Repeat([]byte{c}, n)) }

// TestCrash: what a crash that keeps nothing, and one that keeps everything,
// leaves of what was done.
func TestCrash(t *testing.T) {
	type state = map[string]string
	// Every case starts with a durable file /d/f of two pages of o.
	tests := []struct {
		name string
		do   func(t *testing.T, m *memfs.FS, f vfs.File, fm vfs.Mapping)
		lose state
		keep state
	}{
		{
			name: "nothing",
			do:   func(*testing.T, *memfs.FS, vfs.File, vfs.Mapping) {},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "o*8192"},
		},
		{
			name: "unsynced write",
			do:   func(t *testing.T, m *memfs.FS, f vfs.File, _ vfs.Mapping) { put(t, f, "nn", 0) },
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "n*2 o*8190"},
		},
		{
			name: "unsynced mapped store",
			do:   func(t *testing.T, m *memfs.FS, _ vfs.File, fm vfs.Mapping) { put(t, fm, "nn", 0) },
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "n*2 o*8190"},
		},
		{
			name: "write, mapped store, sync",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, fm vfs.Mapping) {
				put(t, f, "n", 0)
				put(t, fm, "m", page)
				must(t, f.Sync())
				put(t, f, "x", 10)
			},
			lose: state{"/d/": "", "/d/f": "n o*4095 m o*4095"},
			keep: state{"/d/": "", "/d/f": "n o*9 x o*4085 m o*4095"},
		},
		{
			name: "flush covers the pages of its range, no more",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, fm vfs.Mapping) {
				put(t, f, "n", 0)
				put(t, f, "n", page)
				must(t, fm.Flush(100, 1))
			},
			lose: state{"/d/": "", "/d/f": "n o*8191"},
			keep: state{"/d/": "", "/d/f": "n o*4095 n o*4095"},
		},
		{
			name: "flush of nothing",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, fm vfs.Mapping) {
				put(t, f, "n", page)
				must(t, fm.Flush(page, 0))
			},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "o*4096 n o*4095"},
		},
		{
			name: "longer, flushed only in part",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, _ vfs.Mapping) {
				must(t, f.Truncate(5*page))
				long, err := f.Map(true)
				must(t, err)
				put(t, long, "n", 2*page)
				put(t, long, "n", 4*page)
				must(t, long.Flush(2*page, 10))
			},
			lose: state{"/d/": "", "/d/f": "o*8192 n _*9"},
			keep: state{"/d/": "", "/d/f": "o*8192 n _*8191 n _*4095"},
		},
		{
			name: "unsynced cut",
			do:   func(t *testing.T, m *memfs.FS, f vfs.File, _ vfs.Mapping) { must(t, f.Truncate(10)) },
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "o*10"},
		},
		{
			name: "synced cut, unsynced growth",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, _ vfs.Mapping) {
				must(t, f.Truncate(10))
				must(t, f.Sync())
				must(t, f.Truncate(20))
			},
			lose: state{"/d/": "", "/d/f": "o*10"},
			keep: state{"/d/": "", "/d/f": "o*10 _*10"},
		},
		{
			name: "cut and grown, synced as a whole",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, _ vfs.Mapping) {
				must(t, f.Truncate(10))
				must(t, f.Truncate(20))
				must(t, f.Sync())
			},
			lose: state{"/d/": "", "/d/f": "o*10 _*10"},
			keep: state{"/d/": "", "/d/f": "o*10 _*10"},
		},
		{
			name: "new file, content synced, name not",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, create(t, m, "/d/g", "g").Sync())
			},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "o*8192", "/d/g": "g"},
		},
		{
			name: "new file, name synced, content not",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				create(t, m, "/d/g", "g")
				must(t, m.SyncDir("/d"))
			},
			lose: state{"/d/": "", "/d/f": "o*8192", "/d/g": ""},
			keep: state{"/d/": "", "/d/f": "o*8192", "/d/g": "g"},
		},
		{
			name: "sync of the directory above does not reach down",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				create(t, m, "/d/g", "g")
				must(t, m.SyncDir("/"))
			},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "o*8192", "/d/g": "g"},
		},
		{
			name: "unsynced removal",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, _ vfs.Mapping) {
				put(t, f, "n", 0)
				must(t, m.Remove("/d/f"))
			},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": ""},
		},
		{
			name: "synced removal",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.Remove("/d/f"))
				must(t, m.SyncDir("/d"))
			},
			lose: state{"/d/": ""},
			keep: state{"/d/": ""},
		},
		{
			name: "removed, made anew under the name",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.Remove("/d/f"))
				must(t, create(t, m, "/d/f", "new").Sync())
			},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/d/": "", "/d/f": "n e w"},
		},
		{
			name: "unsynced rename over a file",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, create(t, m, "/d/tmp", "new").Sync())
				must(t, m.SyncDir("/d"))
				must(t, m.Rename("/d/tmp", "/d/f"))
			},
			lose: state{"/d/": "", "/d/f": "o*8192", "/d/tmp": "n e w"},
			keep: state{"/d/": "", "/d/f": "n e w"},
		},
		{
			name: "written atomically",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, vfs.WriteFileAtomic(m, "/d/f", []byte("new")))
			},
			lose: state{"/d/": "", "/d/f": "n e w"},
			keep: state{"/d/": "", "/d/f": "n e w"},
		},
		{
			name: "moved to another directory, only the new one synced",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.MkdirAll("/e"))
				must(t, m.Rename("/d/f", "/e/f"))
				must(t, m.SyncDir("/e"))
			},
			lose: state{"/d/": "", "/d/f": "o*8192", "/e/": "", "/e/f": "o*8192"},
			keep: state{"/d/": "", "/e/": "", "/e/f": "o*8192"},
		},
		{
			name: "moved to another directory, only the old one synced",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.MkdirAll("/e"))
				must(t, m.Rename("/d/f", "/e/f"))
				must(t, m.SyncDir("/d"))
			},
			lose: state{"/d/": "", "/e/": ""},
			keep: state{"/d/": "", "/e/": "", "/e/f": "o*8192"},
		},
		{
			name: "directory moved and one side synced",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.MkdirAll("/e"))
				must(t, m.Rename("/d", "/e/d"))
				must(t, m.SyncDir("/e"))
				create(t, m, "/e/d/g", "")
			},
			lose: state{"/e/": "", "/e/d/": "", "/e/d/f": "o*8192"},
			keep: state{"/e/": "", "/e/d/": "", "/e/d/f": "o*8192", "/e/d/g": ""},
		},
		{
			name: "directory moved, nothing synced",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.Rename("/d", "/e"))
			},
			lose: state{"/d/": "", "/d/f": "o*8192"},
			keep: state{"/e/": "", "/e/f": "o*8192"},
		},
		{
			name: "directories are durable when made",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.MkdirAll("/a/b"))
				create(t, m, "/a/b/x", "")
			},
			lose: state{"/a/": "", "/a/b/": "", "/d/": "", "/d/f": "o*8192"},
			keep: state{"/a/": "", "/a/b/": "", "/a/b/x": "", "/d/": "", "/d/f": "o*8192"},
		},
		{
			name: "unsynced removal of a directory",
			do: func(t *testing.T, m *memfs.FS, _ vfs.File, _ vfs.Mapping) {
				must(t, m.Remove("/d/f"))
				must(t, m.SyncDir("/d"))
				must(t, m.Remove("/d"))
			},
			lose: state{"/d/": ""},
			keep: state{},
		},
		{
			name: "pages dropped by a failed sync",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, fm vfs.Mapping) {
				put(t, f, "n", 0)
				put(t, f, "n", page)
				f.(interface{ DropDirty(off, n int64) }).DropDirty(0, 1)
				must(t, f.Sync())
			},
			lose: state{"/d/": "", "/d/f": "o*4096 n o*4095"},
			keep: state{"/d/": "", "/d/f": "o*4096 n o*4095"},
		},
		{
			name: "dropped page written again",
			do: func(t *testing.T, m *memfs.FS, f vfs.File, fm vfs.Mapping) {
				put(t, f, "n", 0)
				f.(interface{ DropDirty(off, n int64) }).DropDirty(0, -1)
				put(t, f, "n", 2)
				must(t, f.Sync())
			},
			lose: state{"/d/": "", "/d/f": "n o n o*8189"},
			keep: state{"/d/": "", "/d/f": "n o n o*8189"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := memfs.NewCrashable(1)
			must(t, m.MkdirAll("/d"))
			f := create(t, m, "/d/f", fill('o', 2*page))
			must(t, f.Sync())
			must(t, m.SyncDir("/d"))
			fm, err := f.Map(true)
			must(t, err)
			tt.do(t, m, f, fm)
			now := tree(t, m)

			lost := m.CrashClone(memfs.LoseUnsynced)
			if diff := cmp.Diff(tt.lose, tree(t, lost)); diff != "" {
				t.Errorf("LoseUnsynced (-want +got):\n%s", diff)
			}
			kept := m.CrashClone(memfs.KeepAll)
			if diff := cmp.Diff(tt.keep, tree(t, kept)); diff != "" {
				t.Errorf("KeepAll (-want +got):\n%s", diff)
			}
			// The clone is durable as it is, and the original as it was.
			for _, p := range memfs.Policies() {
				if diff := cmp.Diff(tt.keep, tree(t, kept.CrashClone(p))); diff != "" {
					t.Errorf("second crash, %v (-want +got):\n%s", p, diff)
				}
			}
			if diff := cmp.Diff(now, tree(t, m)); diff != "" {
				t.Errorf("the original changed (-was +is):\n%s", diff)
			}
		})
	}
}

// outcomes runs the crash under many seeds and returns what it led to.
func outcomes(m *memfs.FS, p memfs.Policy, describe func(fs *memfs.FS) string) []string {
	seen := map[string]bool{}
	for seed := range int64(300) {
		seen[describe(m.CrashClone(p, seed))] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestPolicies: three changes, one after the other, to three pages; which
// combinations does each policy produce?
func TestPolicies(t *testing.T) {
	m := memfs.NewCrashable(3)
	f := create(t, m, "/f", fill('o', 3*page))
	must(t, f.Sync())
	must(t, m.SyncDir("/"))
	for i, c := range []byte("abc") {
		put(t, f, fill(c, page), int64(i)*page)
	}
	describe := func(fs *memfs.FS) string {
		data, err := vfs.ReadFile(fs, "/f", 1<<20)
		must(t, err)
		return string([]byte{data[0], data[page], data[2*page]})
	}
	all := []string{"abc", "abo", "aoc", "aoo", "obc", "obo", "ooc", "ooo"}
	for p, want := range map[memfs.Policy][]string{
		memfs.LoseUnsynced:    {"ooo"},
		memfs.KeepAll:         {"abc"},
		memfs.LoseRandomPages: all,
		memfs.OldestFirst:     {"abc", "abo", "aoo", "ooo"},
		memfs.NewestFirst:     {"abc", "obc", "ooc", "ooo"},
	} {
		if diff := cmp.Diff(want, outcomes(m, p, describe)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", p, diff)
		}
	}
}

// TestMiddleStates: a page may have been written out between two changes.
func TestMiddleStates(t *testing.T) {
	seen := map[string]bool{}
	for seed := range int64(50) {
		m := memfs.NewCrashable(seed)
		f := create(t, m, "/f", "o")
		must(t, f.Sync())
		must(t, m.SyncDir("/"))
		for _, c := range "1234" {
			put(t, f, string(c), 0)
		}
		describe := func(fs *memfs.FS) string {
			data, err := vfs.ReadFile(fs, "/f", 10)
			must(t, err)
			return string(data)
		}
		for _, p := range []memfs.Policy{memfs.LoseRandomPages, memfs.OldestFirst} {
			for _, o := range outcomes(m, p, describe) {
				seen[o] = true
			}
		}
		if got := outcomes(m, memfs.NewestFirst, describe); !cmp.Equal(got, []string{"4", "o"}) {
			t.Errorf("NewestFirst: %q", got)
		}
	}
	if got, want := slices.Sorted(maps.Keys(seen)), []string{"1", "2", "3", "4", "o"}; !cmp.Equal(got, want) {
		t.Errorf("contents after the crash: %q, want %q", got, want)
	}
}

func TestTorn(t *testing.T) {
	const sectors = page / 512
	m := memfs.NewCrashable(4)
	f := create(t, m, "/f", fill('o', 2*page))
	must(t, f.Sync())
	must(t, m.SyncDir("/"))
	put(t, f, fill('n', page), page)
	for _, p := range memfs.Policies() {
		states := map[string]bool{}
		for seed := range int64(200) {
			data, err := vfs.ReadFile(m.CrashClone(p, seed), "/f", 1<<20)
			must(t, err)
			if string(data[:page]) != fill('o', page) {
				t.Fatalf("%v: a page changed that was not written", p)
			}
			state := ""
			for s := range sectors {
				sector := data[page+s*512 : page+(s+1)*512]
				if string(sector) != fill(sector[0], 512) {
					t.Fatalf("%v: sector %d is torn", p, s)
				}
				state += string(sector[:1])
			}
			states[state] = true
		}
		delete(states, fill('o', sectors))
		delete(states, fill('n', sectors))
		if torn := len(states) > 20; torn != (p&memfs.Torn != 0) {
			t.Errorf("%v: %d different torn pages", p, len(states))
		}
	}
}

// TestNamesAreIndependent: of two new files either, both or none survive; of a
// rename never none, but one or both.
func TestNamesAreIndependent(t *testing.T) {
	names := func(fs *memfs.FS) string {
		return strings.Join(slices.Sorted(maps.Keys(tree(t, fs))), " ")
	}
	tests := []struct {
		name string
		do   func(m *memfs.FS)
		want []string
	}{
		{"two files", func(m *memfs.FS) {
			create(t, m, "/x", "")
			create(t, m, "/y", "")
		}, []string{"/d/ /d/f /r", "/d/ /d/f /r /x", "/d/ /d/f /r /x /y", "/d/ /d/f /r /y"}},
		{"rename", func(m *memfs.FS) {
			must(t, m.Rename("/r", "/s"))
		}, []string{"/d/ /d/f /r", "/d/ /d/f /r /s", "/d/ /d/f /s"}},
		{"two renames", func(m *memfs.FS) {
			must(t, m.Rename("/r", "/s"))
			must(t, m.Rename("/s", "/t"))
		}, []string{"/d/ /d/f /r", "/d/ /d/f /r /s", "/d/ /d/f /r /s /t", "/d/ /d/f /r /t", "/d/ /d/f /s", "/d/ /d/f /s /t", "/d/ /d/f /t"}},
		{"rename of a directory", func(m *memfs.FS) {
			must(t, m.Rename("/d", "/e"))
		}, []string{"/d/ /d/f /r", "/e/ /e/f /r"}},
		{"directory twice", func(m *memfs.FS) {
			must(t, m.Rename("/d", "/e"))
			must(t, m.Rename("/e", "/g"))
		}, []string{"/d/ /d/f /r", "/e/ /e/f /r", "/g/ /g/f /r"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := memfs.NewCrashable(5)
			must(t, m.MkdirAll("/d"))
			create(t, m, "/d/f", "")
			create(t, m, "/r", "")
			must(t, m.SyncDir("/"))
			must(t, m.SyncDir("/d"))
			tt.do(m)
			if diff := cmp.Diff(tt.want, outcomes(m, memfs.LoseRandomPages, names)); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBothNamesOneFile: when a rename leaves both names they are one file.
func TestBothNamesOneFile(t *testing.T) {
	m := memfs.NewCrashable(6)
	must(t, m.MkdirAll("/e"))
	create(t, m, "/f", "abc")
	must(t, m.SyncDir("/"))
	must(t, m.Rename("/f", "/e/f"))
	must(t, m.SyncDir("/e"))
	c := m.CrashClone(memfs.LoseUnsynced)
	f, err := c.Open("/f", vfs.ReadWrite)
	must(t, err)
	put(t, f, "x", 0)
	if got := tree(t, c); got["/f"] != "x" || got["/e/f"] != "x" {
		t.Errorf("after writing to one: %q", got)
	}
	used := c.Used()
	must(t, c.Remove("/f"))
	if c.Used() != used {
		t.Errorf("removing one of two names freed %d bytes", used-c.Used())
	}
	must(t, f.Close())
	must(t, c.Remove("/e/f"))
	if c.Used() != 0 {
		t.Errorf("removing both leaves %d bytes", c.Used())
	}
}

// TestSizesAndReservations: unsynced lengths and blocks may survive or not.
func TestSizesAndReservations(t *testing.T) {
	newFS := func() (*memfs.FS, vfs.File) {
		m := memfs.NewCrashable(7)
		f := create(t, m, "/f", "")
		must(t, f.Sync())
		must(t, m.SyncDir("/"))
		must(t, f.Truncate(100))
		must(t, f.Truncate(10*page))
		must(t, f.Allocate(0, 10*page))
		return m, f
	}
	describe := func(fs *memfs.FS) string {
		e, err := fs.Stat("/f")
		must(t, err)
		return fmt.Sprint(e.Size, " with ", fs.Used()/page)
	}
	m, f := newFS()
	all := []string{"0 with 0", "0 with 10", "100 with 0", "100 with 10", "40960 with 0", "40960 with 10"}
	if diff := cmp.Diff(all, outcomes(m, memfs.LoseRandomPages, describe)); diff != "" {
		t.Errorf("before the sync (-want +got):\n%s", diff)
	}
	if got := describe(m.CrashClone(memfs.LoseUnsynced)); got != "0 with 0" {
		t.Errorf("LoseUnsynced: %s", got)
	}
	must(t, f.Sync())
	for _, p := range memfs.Policies() {
		if diff := cmp.Diff([]string{"40960 with 10"}, outcomes(m, p, describe)); diff != "" {
			t.Errorf("after the sync, %v (-want +got):\n%s", p, diff)
		}
	}

	// Flush covers the reservation of its range and the length up to there.
	m, f = newFS()
	fm, err := f.Map(true)
	must(t, err)
	must(t, fm.Flush(page, 3*page))
	if got := describe(m.CrashClone(memfs.LoseUnsynced)); got != "16384 with 3" {
		t.Errorf("after the flush: %s", got)
	}
}

func TestDeterministic(t *testing.T) {
	run := func(seed int64) (*memfs.FS, string) {
		m := memfs.NewCrashable(seed)
		must(t, m.MkdirAll("/d"))
		for i := range 20 {
			f := create(t, m, fmt.Sprint("/d/", i), fill('a', i*3000))
			if i%3 == 0 {
				must(t, f.Sync())
			}
			put(t, f, fill('b', 9000), int64(i)*1000)
			must(t, f.Truncate(int64(i)*2500))
			must(t, f.Allocate(0, 1<<20))
			put(t, f, "c", 9)
		}
		big := create(t, m, "/d/big", "")
		for i := range 4 {
			put(t, big, fill(byte('0'+i), 30*page), 0)
		}
		must(t, big.Truncate(0))
		must(t, big.Truncate(30*page))
		must(t, m.Rename("/d/1", "/d/0"))
		var all strings.Builder
		for _, p := range memfs.Policies() {
			for extra := range int64(3) {
				c := m.CrashClone(p, extra)
				fmt.Fprintln(&all, p, extra, c.Used(), tree(t, c))
				fmt.Fprintln(&all, tree(t, c.CrashClone(p)))
			}
		}
		return m, all.String()
	}
	m, first := run(1)
	if _, again := run(1); again != first {
		t.Errorf("two runs with one seed differ:\n%s", cmp.Diff(first, again))
	}
	if _, other := run(2); other == first {
		t.Error("two seeds give the same crashes")
	}
	a, b := m.CrashClone(memfs.LoseRandomPages), m.CrashClone(memfs.LoseRandomPages)
	if diff := cmp.Diff(tree(t, a), tree(t, b)); diff != "" {
		t.Errorf("two crashes at one moment differ:\n%s", diff)
	}
}

// TestCloneIsSeparate: pages are shared until somebody writes.
func TestCloneIsSeparate(t *testing.T) {
	m := memfs.NewCrashable(8)
	f := create(t, m, "/f", fill('o', 3*page))
	must(t, f.Sync())
	put(t, f, "o", page) // one page is dirty
	lock, err := m.Lock("/lock")
	must(t, err)
	fm, err := f.Map(true)
	must(t, err)
	c := m.CrashClone(memfs.KeepAll)

	put(t, f, "ORIG", 0)
	put(t, fm, "ORIG", page)
	cf, err := c.Open("/f", vfs.ReadWrite)
	must(t, err)
	put(t, cf, "copy", 2)
	create(t, c, "/new", "")
	must(t, m.Remove("/lock"))

	if diff := cmp.Diff(map[string]string{"/f": "O R I G o*4092 O R I G o*8188"}, tree(t, m)); diff != "" {
		t.Errorf("original (-want +got):\n%s", diff)
	}
	want := map[string]string{"/f": "o*2 c o p y o*12282", "/lock": "", "/new": ""}
	if diff := cmp.Diff(want, tree(t, c)); diff != "" {
		t.Errorf("clone (-want +got):\n%s", diff)
	}
	if held, err := c.Locked("/lock"); held || err != nil {
		t.Errorf("the clone is locked: %v, %v", held, err)
	}
	must(t, lock.Close())
}

func TestCrashClonePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("CrashClone of New() does not panic")
		}
	}()
	memfs.New().CrashClone(memfs.KeepAll)
}

// TestCrashWhileWriting: a crash sees all files at one moment. The writer puts
// a number into one file and then into another; no crash that keeps everything
// may see the second ahead of the first.
func TestCrashWhileWriting(t *testing.T) {
	m := memfs.NewCrashable(9)
	first, second := create(t, m, "/1", "\x00"), create(t, m, "/2", "\x00")
	must(t, first.Sync())
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := byte(1); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			first.WriteAt([]byte{i}, 0)
			first.Sync() // the page becomes clean, and shared with a clone
			second.WriteAt([]byte{i}, 0)
		}
	})
	for range 200 {
		c := m.CrashClone(memfs.KeepAll)
		a, err := vfs.ReadFile(c, "/1", 1)
		must(t, err)
		b, err := vfs.ReadFile(c, "/2", 1)
		must(t, err)
		if a[0]-b[0] > 1 {
			t.Errorf("first file at %d, second at %d", a[0], b[0])
		}
		f, err := c.Open("/1", vfs.ReadWrite)
		must(t, err)
		put(t, f, "x", 1)
	}
	close(stop)
	wg.Wait()
}

// TestStoreBehindEnd: what is stored between the end of a file and the end of
// its last page is not in the file.
func TestStoreBehindEnd(t *testing.T) {
	m := memfs.NewCrashable(11)
	f := create(t, m, "/f", fill('o', 100))
	fm, err := f.Map(true)
	must(t, err)
	must(t, f.Truncate(10))
	put(t, fm, fill('n', 50), 5)
	put(t, fm, fill('n', 10), 80)
	must(t, f.Truncate(100))
	must(t, m.SyncDir("/"))
	if got, want := tree(t, m)["/f"], "o*5 n*5 _*90"; got != want {
		t.Errorf("file holds %s, want %s", got, want)
	}
	if got, want := tree(t, m.CrashClone(memfs.KeepAll))["/f"], "o*5 n*5 _*90"; got != want {
		t.Errorf("after a crash %s, want %s", got, want)
	}
}

func TestDropCache(t *testing.T) {
	m := memfs.NewCrashable(10)
	f := create(t, m, "/f", fill('o', 2*page))
	must(t, f.Sync())
	put(t, f, fill('n', 3*page), 0)
	f.(interface{ DropDirty(off, n int64) }).DropDirty(page, -1)
	put(t, f, "m", 0)
	if got, want := tree(t, m)["/f"], "m n*12287"; got != want {
		t.Errorf("before eviction: %s, want %s", got, want)
	}
	m.DropCache()
	if got, want := tree(t, m)["/f"], "m n*4095 o*4096 _*4096"; got != want {
		t.Errorf("after eviction: %s, want %s", got, want)
	}
	if _, err := m.Stat("/nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
