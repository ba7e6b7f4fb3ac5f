package tool

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// base is a golden store in memory, of which each case damages a clone.
type baseStore struct {
	m  *golden.Manifest
	fs *memfs.FS
}

// loaded has the stores that were unpacked. They are never changed.
var loaded struct {
	sync.Mutex
	m map[string]baseStore
}

func loadBase(tb testing.TB, name string) baseStore {
	tb.Helper()
	loaded.Lock()
	defer loaded.Unlock()
	b, ok := loaded.m[name]
	if !ok {
		b = baseStore{golden.MustLoad(tb, name), memfs.NewCrashable(1)}
		if err := golden.UnpackTo(b.fs, "/s", name); err != nil {
			tb.Fatal(err)
		}
		if loaded.m == nil {
			loaded.m = map[string]baseStore{}
		}
		loaded.m[name] = b
	}
	return b
}

// eachStore runs f for the golden stores: all of them with -damage.all, else one
// or two releases of each kind.
func eachStore(t *testing.T, f func(t *testing.T, name string)) {
	golden.Each(t, func(t *testing.T, name string) {
		version, _ := golden.SplitName(name)
		if !*allDamages && version != "4.9.8" && version != "5.4.0" && name != "4.9.4-broker-dir" {
			t.Skip("only with -damage.all")
		}
		f(t, name)
	})
}

// damager damages a store in memory. Names are relative to the store.
type damager struct {
	tb   testing.TB
	m    *golden.Manifest
	fs   *memfs.FS
	dirs []string // of the log
}

func (b baseStore) damager(tb testing.TB) *damager {
	return &damager{tb, b.m, b.fs.CrashClone(memfs.KeepAll), b.m.Config.CommitLogDirs("/s")}
}

func (d *damager) must(err error) {
	d.tb.Helper()
	if err != nil {
		d.tb.Fatal(err)
	}
}

func (d *damager) path(rel string) string { return filepath.Join("/s", filepath.FromSlash(rel)) }

func (d *damager) has(rel string) bool {
	_, err := d.fs.Stat(d.path(rel))
	return err == nil
}

func (d *damager) open(rel string) vfs.File {
	d.tb.Helper()
	f, err := d.fs.Open(d.path(rel), vfs.ReadWrite)
	d.must(err)
	return f
}

func (d *damager) get(rel string, off int64, n int) []byte {
	d.tb.Helper()
	f := d.open(rel)
	defer f.Close()
	p := make([]byte, n)
	if _, err := f.ReadAt(p, off); err != io.EOF {
		d.must(err)
	}
	return p
}

func (d *damager) set(rel string, off int64, p ...byte) {
	d.tb.Helper()
	f := d.open(rel)
	defer f.Close()
	_, err := f.WriteAt(p, off)
	d.must(err)
}

func (d *damager) set32(rel string, off int64, v uint32) {
	d.set(rel, off, binary.BigEndian.AppendUint32(nil, v)...)
}

func (d *damager) set64(rel string, off int64, v uint64) {
	d.set(rel, off, binary.BigEndian.AppendUint64(nil, v)...)
}

func (d *damager) flip(rel string, off int64) { d.set(rel, off, d.get(rel, off, 1)[0]^0x20) }

func (d *damager) zero(rel string, off, n int64) { d.set(rel, off, make([]byte, n)...) }

func (d *damager) size(rel string) int64 {
	f := d.open(rel)
	defer f.Close()
	n, err := f.Size()
	d.must(err)
	return n
}

func (d *damager) cut(rel string, n int64) {
	f := d.open(rel)
	defer f.Close()
	d.must(f.Truncate(n))
}

func (d *damager) remove(rel string) { d.must(removeAll(d.fs, d.path(rel))) }

func (d *damager) rename(from, to string) { d.must(d.fs.Rename(d.path(from), d.path(to))) }

func (d *damager) write(rel string, data []byte) {
	d.must(d.fs.MkdirAll(filepath.Dir(d.path(rel))))
	f, err := d.fs.Create(d.path(rel))
	d.must(err)
	_, err = f.WriteAt(data, 0)
	d.must(err)
	d.must(f.Close())
}

func (d *damager) swap(a, b string) {
	d.rename(a, "tmp")
	d.rename(b, a)
	d.rename("tmp", b)
}

// files lists the files below a folder of the store, by name, with their
// folders.
func (d *damager) files(rel string) (names []string) {
	entries, err := d.fs.List(d.path(rel))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, d.files(rel+"/"+e.Name)...)
		} else {
			names = append(names, rel+"/"+e.Name)
		}
	}
	return names
}

// log lists the files of the log by position.
func (d *damager) log() (names []string) {
	for _, dir := range d.dirs {
		rel, err := filepath.Rel("/s", dir)
		d.must(err)
		names = append(names, d.files(filepath.ToSlash(rel))...)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	return names
}

// record is a message of the manifest and where it lies.
type record struct {
	*golden.Message
	file string
	off  int64
}

// find returns the file of a position.
func (d *damager) find(phy int64) (file string, off int64) {
	size := d.m.Config.CommitLogFileSize
	for _, name := range d.log() {
		if start, ok := mappedfile.ParseFileName(filepath.Base(name)); ok && start == phy/size*size {
			return name, phy - start
		}
	}
	d.tb.Fatalf("no file for position %d", phy)
	return "", 0
}

// pick returns the message in the middle of those that fit.
func (d *damager) pick(fits func(*golden.Message) bool) (record, bool) {
	var list []*golden.Message
	for i := range d.m.Messages {
		if m := &d.m.Messages[i]; fits == nil || fits(m) {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		return record{}, false
	}
	m := list[len(list)/2]
	file, off := d.find(int64(m.PhysicalOffset))
	return record{m, file, off}, true
}

// middle is a queued message with a body that others follow in its file and in
// its queue.
func (d *damager) middle() (record, bool) {
	size := message.PhysicalOffset(d.m.Config.CommitLogFileSize)
	last := map[string]message.PhysicalOffset{}
	for _, m := range d.m.Messages {
		last[m.Topic] = m.PhysicalOffset
	}
	return d.pick(func(m *golden.Message) bool {
		next := m.PhysicalOffset + message.PhysicalOffset(m.Size)
		return m.BodyLength > 8 && m.SysFlag.Queued() && m.PhysicalOffset < last[m.Topic] && next/size == m.PhysicalOffset/size &&
			d.m.Message(next) != nil && m.PhysicalOffset%size > 0 && m.SysFlag&(message.BornHostV6|message.StoreHostV6) == 0 && m.Size < 1<<20
	})
}

func (d *damager) last() record {
	m := &d.m.Messages[len(d.m.Messages)-1]
	file, off := d.find(int64(m.PhysicalOffset))
	return record{m, file, off}
}

// queueFile returns the file of a queue with the most units, of the given
// folder, and how many it has.
func (d *damager) queueFile(root string, unit int64) (file string, n int64) {
	for _, name := range d.files(root) {
		if strings.Contains(name, message.LightPrefix) || strings.Contains(name, message.ScheduleTopic) {
			continue
		}
		p := d.get(name, 0, int(d.size(name)))
		k := int64(0)
		for ; (k+1)*unit <= int64(len(p)) && binary.BigEndian.Uint32(p[k*unit+8:]) != 0; k++ {
		}
		if k > n {
			file, n = name, k
		}
	}
	return file, n
}

// options are those that a command would have.
func (d *damager) options() gantry.Options { return storeOptions(d.fs, d.m, "/s") }

// verify returns the worst severity of each rule.
func (d *damager) verify(dir string, report func(check.Finding)) (map[string]check.Severity, check.Summary) {
	d.tb.Helper()
	o := check.Options{FS: d.fs, Dir: dir}
	for _, l := range d.m.Config.CommitLogDirs(dir) {
		rel, err := filepath.Rel(dir, l)
		d.must(err)
		o.CommitLogDirs = append(o.CommitLogDirs, rel)
	}
	found := map[string]check.Severity{}
	sum, err := check.Run(context.Background(), o, func(f check.Finding) {
		found[f.Rule] = max(found[f.Rule], f.Severity)
		if report != nil {
			report(f)
		}
	})
	d.must(err)
	return found, sum
}

// tree lists the store's files.
func (d *damager) tree(dir string) []golden.File {
	d.tb.Helper()
	files, err := golden.Tree(d.fs, dir)
	d.must(err)
	return files
}

// bytesAt reads a part of the log of an undamaged store.
func (b baseStore) bytesAt(tb testing.TB, phy int64, n int32) []byte {
	d := &damager{tb, b.m, b.fs, b.m.Config.CommitLogDirs("/s")}
	file, off := d.find(phy)
	return d.get(file, off, int(n))
}

// intact lists the messages of the manifest whose bytes are still there, in
// whatever file of the log.
func (d *damager) intact(b baseStore) (list []*golden.Message) {
	size := d.m.Config.CommitLogFileSize
	contents := map[string][]byte{}
	for _, name := range d.log() {
		contents[name] = d.get(name, 0, int(min(d.size(name), size)))
	}
	for i := range d.m.Messages {
		m := &d.m.Messages[i]
		want := b.bytesAt(d.tb, int64(m.PhysicalOffset), m.Size)
		off := int64(m.PhysicalOffset) % size
		for _, p := range contents {
			if off+int64(m.Size) <= int64(len(p)) && bytes.Equal(p[off:off+int64(m.Size)], want) {
				list = append(list, m)
				break
			}
		}
	}
	return list
}
