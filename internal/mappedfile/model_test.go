package mappedfile

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// queueModel compares a queue with a slice.
type queueModel struct {
	fs        *memfs.FS
	opt       Options
	poolSize  int // 0: no pool
	withAlloc bool

	q       *Queue
	content []byte // from offset 0 on, also what was removed since
	min     int64
	flushed int64 // lower bound
}

func (m *queueModel) open(t *rapid.T) {
	opt := m.opt
	if m.withAlloc {
		opt.Alloc = NewAllocator(AllocatorOptions{PopulateDistance: 3 * PageSize, PopulateChunk: PageSize})
	}
	if m.poolSize > 0 {
		opt.Pool = NewTransientPool(m.poolSize, m.opt.FileSize)
	}
	var rep Report
	var err error
	m.q, rep, err = OpenQueue(opt)
	fatalIf(t, err)
	if len(rep.Gaps)+len(rep.Foreign)+len(rep.Short)+len(rep.Long) > 0 {
		t.Fatalf("report %+v", rep)
	}
}

func (m *queueModel) close(t *rapid.T) {
	fatalIf(t, m.q.Close())
	if m.q.sh.alloc != nil {
		fatalIf(t, m.q.sh.alloc.Close())
	}
}

func (m *queueModel) end() int64 { return int64(len(m.content)) }

func fatalIf(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (m *queueModel) put(t *rapid.T) {
	p := record(rapid.IntRange(0, 250).Draw(t, "content"), rapid.IntRange(1, int(min(m.opt.FileSize, 3*PageSize))).Draw(t, "length"))
	at, err := put(m.q, p)
	fatalIf(t, err)
	if at != m.end() { // rolled: a mark of up to 8 bytes, then zeros
		rest := at - m.end()
		mark := min(rest, 8)
		m.content = append(m.content, bytes.Repeat([]byte{'~'}, int(mark))...)
		m.content = append(m.content, make([]byte, rest-mark)...)
	}
	m.content = append(m.content, p...)
	if m.q.WroteOffset() != m.end() {
		t.Fatalf("wrote up to %d, want %d", m.q.WroteOffset(), m.end())
	}
}

func (m *queueModel) rewrite(t *rapid.T) {
	f := m.q.Last()
	if f == nil || f.Wrote() == 0 {
		return
	}
	at := rapid.Int64Range(0, f.Wrote()-1).Draw(t, "at")
	p := record(7, int(rapid.Int64Range(0, f.Wrote()-at).Draw(t, "length")))
	if n, err := f.WriteAt(p, at); n != len(p) || err != nil {
		t.Fatalf("rewrite: %d, %v", n, err)
	}
	copy(m.content[f.Start()+at:], p)
}

func (m *queueModel) commit(t *rapid.T) {
	end, err := m.q.Commit(rapid.IntRange(0, 2).Draw(t, "pages"))
	fatalIf(t, err)
	if end > m.end() {
		t.Fatalf("readable up to %d of %d", end, m.end())
	}
}

func (m *queueModel) flush(t *rapid.T) {
	pages := rapid.IntRange(0, 3).Draw(t, "pages")
	readable := m.q.MaxOffset()
	end, err := m.q.Flush(pages)
	fatalIf(t, err)
	if end < m.flushed || end > readable || pages == 0 && end != readable || end != m.q.Flushed() {
		t.Fatalf("flush %d pages: flushed %d before, %d now, readable %d", pages, m.flushed, end, readable)
	}
	m.flushed = end
}

func (m *queueModel) truncate(t *rapid.T) {
	if m.q.First() == nil {
		return
	}
	to := rapid.Int64Range(m.min, m.end()).Draw(t, "to")
	fatalIf(t, m.q.TruncateTo(to))
	m.content = m.content[:to]
	m.flushed = min(m.flushed, to)
	if m.q.WroteOffset() != to || m.q.Flushed() > to {
		t.Fatalf("truncated to %d: end %d, flushed %d", to, m.q.WroteOffset(), m.q.Flushed())
	}
}

func (m *queueModel) remove(t *rapid.T) {
	files := m.q.Files()
	n := rapid.IntRange(0, 3).Draw(t, "files")
	removed, err := m.q.RemoveFront(n, nil)
	fatalIf(t, err)
	if want := max(0, min(n, len(files)-1)); len(removed) != want {
		t.Fatalf("removed %d of %d files, want %d", len(removed), len(files), want)
	}
	for _, f := range removed {
		m.min = f.End()
	}
	m.flushed = max(m.flushed, m.min)
}

func (m *queueModel) reopen(t *rapid.T) {
	m.close(t)
	m.open(t)
	if m.q.First() != nil {
		fatalIf(t, m.q.TruncateTo(m.end()))
	}
	m.flushed = m.end()
}

func (m *queueModel) check(t *rapid.T) {
	if m.q.First() != nil && m.q.MinOffset() != m.min {
		t.Fatalf("min offset %d, want %d", m.q.MinOffset(), m.min)
	}
	hi := m.q.MaxOffset()
	if hi < m.q.Flushed() || m.poolSize == 0 && hi != m.end() {
		t.Fatalf("readable up to %d, flushed %d, want %d", hi, m.q.Flushed(), m.end())
	}
	if hi <= m.min {
		return
	}
	off := rapid.Int64Range(m.min, hi-1).Draw(t, "read at")
	n := rapid.Int64Range(0, hi-off).Draw(t, "read length")
	got := make([]byte, n)
	if r, err := m.q.ReadAt(got, off); int64(r) != n || err != nil || !bytes.Equal(got, m.content[off:off+n]) {
		t.Fatalf("read %d bytes at %d: %d, %v: got %x, want %x", n, off, r, err, got, m.content[off:off+n])
	}
	if m.min > 0 {
		if _, err := m.q.ReadAt(make([]byte, 1), m.min-1); !errors.Is(err, base.ErrNotFound) {
			t.Fatalf("read in front of the first file: %v", err)
		}
	}
}

// TestModel compares random histories under random options with a slice.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := newMem()
		m := &queueModel{
			fs: mem,
			opt: Options{
				FS:          vfs.FS(mem),
				Dirs:        []string{"/a", "/b"}[:rapid.IntRange(1, 2).Draw(t, "directories")],
				FileSize:    rapid.SampledFrom([]int64{16, 1000, PageSize, PageSize + 1, 3 * PageSize, 5*PageSize - 9}).Draw(t, "file size"),
				Mapped:      rapid.Bool().Draw(t, "mapped"),
				ReserveStep: rapid.SampledFrom([]int64{1, PageSize, 0}).Draw(t, "step"),
				Warm:        rapid.Bool().Draw(t, "warm"),
			},
			poolSize:  rapid.IntRange(0, 2).Draw(t, "pool"),
			withAlloc: rapid.IntRange(0, 3).Draw(t, "allocator") == 0,
		}
		m.open(t)
		defer m.close(t)
		t.Repeat(map[string]func(*rapid.T){
			"put": m.put, "put again": m.put, "put more": m.put, "rewrite": m.rewrite, "commit": m.commit, "flush": m.flush,
			"truncate": m.truncate, "remove": m.remove, "reopen": m.reopen, "": m.check,
		})
	})
}
