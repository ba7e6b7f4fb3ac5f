package checkpoint

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

const (
	dir  = "/store"
	path = "/store/checkpoint"
)

// start is the clock of all tests.
const start = 1_700_000_000_000

func clock() int64 { return start }

func newFS(t testing.TB) *memfs.FS {
	t.Helper()
	fs := memfs.NewCrashable(1)
	if err := fs.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	return fs
}

func mustOpen(t testing.TB, fs vfs.FS) *File {
	t.Helper()
	f, err := Open(fs, path, clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func content(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name, vfs.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

func setContent(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := fs.SyncDir(dir); err != nil {
		t.Fatal(err)
	}
}

// pair is what one Save writes; n makes it different from others.
func pair(n int64) (Values, *Ext) {
	v := Values{
		PhysicTime: start + n, LogicsTime: start + 2*n, IndexTime: start - n,
		MasterFlushed: 7, Confirm: 1000 * 3, LogicsPhysical: 99,
	}
	v.Confirm = v.Confirm * 31
	ext := &Ext{
		DispatchedTo: 100, LastRecord: 200, FlushedTo: 300, LastStoreTime: start + n, Clean: n%2 == 0,
		QueueCount: uint64(n), QueueHash: math.MaxUint64 - uint64(n),
		Index: IndexState{
			Name: "20240101000000000", Count: int32(n), EndPhy: 5, EndTime: start + 3*n,
			MonotoneFrom: 17, Complete: n%3 == 0, MissingFrom: 19,
		},
	}
	return v, ext
}

func same(t *testing.T, f *File, v Values, ext *Ext) {
	t.Helper()
	gotV, gotExt := f.Load()
	if gotExt != nil && ext != nil {
		gotExt.Seq = ext.Seq // checked elsewhere
	}
	if d := cmp.Diff(v, gotV); d != "" {
		t.Fatalf("values (-want +got):\n%s", d)
	}
	if d := cmp.Diff(ext, gotExt); d != "" {
		t.Fatalf("ext (-want +got):\n%s", d)
	}
}

// The bytes of section 18.9 of the format.
func TestGoldenBytes(t *testing.T) {
	want := "0000018cc251f8d20000018cc251f8d2" + strings.Repeat("00", 16) + "000000000000005e" + strings.Repeat("00", 8)
	fs := newFS(t)
	f := mustOpen(t, fs)
	v := Values{PhysicTime: 1704067201234, LogicsTime: 1704067201234, Confirm: 94}
	if err := f.Save(v, nil); err != nil {
		t.Fatal(err)
	}
	b := content(t, fs, path)
	if len(b) != 4096 {
		t.Fatalf("length %d, want 4096", len(b))
	}
	if got := hex.EncodeToString(b[:48]); got != want {
		t.Errorf("bytes 0–47\n got %s\nwant %s", got, want)
	}
	if !bytes.Equal(b[48:], make([]byte, 4096-48)) {
		t.Error("bytes 48… are not zero without an extension")
	}
	g, err := Open(fs, path, func() int64 { return v.PhysicTime })
	if err != nil {
		t.Fatal(err)
	}
	same(t, g, v, nil)
}

// Java must find zeros in bytes 48–511, and everything behind the slots.
func TestLayout(t *testing.T) {
	fs := newFS(t)
	f := mustOpen(t, fs)
	for n := range int64(3) {
		if err := f.Save(pair(n)); err != nil {
			t.Fatal(err)
		}
	}
	b := content(t, fs, path)
	for _, zero := range [][2]int{{48, 512}, {512 + slotPosEnd, 512 + slotPosCRC}, {1024 + slotPosEnd, 1024 + slotPosCRC}, {1536, 4096}} {
		if i := bytes.IndexFunc(b[zero[0]:zero[1]], func(r rune) bool { return r != 0 }); i >= 0 {
			t.Errorf("byte %d is not zero", zero[0]+i)
		}
	}
	for i, seq := range []uint64{3, 2} {
		s, ok := decodeSlot([slotSize]byte(b[firstSlot+i*slotSize:]))
		if !ok || s.ext.Seq != seq {
			t.Errorf("slot %d: valid %v, seq %d, want %d", i, ok, s.ext.Seq, seq)
		}
	}
}

func TestSaveLoad(t *testing.T) {
	fs := newFS(t)
	f := mustOpen(t, fs)
	for n := range int64(5) {
		v, ext := pair(n)
		if err := f.Save(v, ext); err != nil {
			t.Fatal(err)
		}
		same(t, f, v, ext)
		g := mustOpen(t, fs)
		same(t, g, v, ext)
		if _, e := g.Load(); e.Seq != uint64(n)+1 {
			t.Fatalf("save %d has number %d", n, e.Seq)
		}
	}
	v, _ := pair(4)
	if err := f.Save(v, nil); err != nil { // equal values, but the extension is void
		t.Fatal(err)
	}
	same(t, f, v, nil)
	same(t, mustOpen(t, fs), v, nil)
}

// A Java broker that went on with the store makes our part void, whichever
// fields its version writes; one that changed nothing does not.
func TestOtherWriter(t *testing.T) {
	for name, change := range map[string]struct {
		pos  int
		void bool
	}{
		"physic time":  {posPhysicTime + 7, true},
		"index time":   {posIndexTime + 6, true},
		"confirm":      {posConfirm + 7, true},
		"logics phy":   {posLogicsPhysical + 7, true},
		"behind":       {48, false}, // not a field
		"end of slots": {1536, false},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newFS(t)
			f := mustOpen(t, fs)
			var v Values
			var ext *Ext
			for n := range int64(3) {
				v, ext = pair(n)
				if err := f.Save(v, ext); err != nil {
					t.Fatal(err)
				}
			}
			b := content(t, fs, path)
			b[change.pos] ^= 0x55
			if err := fs.Remove(path); err != nil {
				t.Fatal(err)
			}
			setContent(t, fs, path, b)
			g := mustOpen(t, fs)
			gotV, gotExt := g.Load()
			if (gotExt == nil) != change.void {
				t.Fatalf("extension %+v, want void: %v", gotExt, change.void)
			}
			if !change.void {
				same(t, g, v, ext)
				return
			}
			if gotV == v {
				t.Error("the values of the other program were not read")
			}
			// Our next save makes the file ours again.
			v, ext = pair(9)
			if err := g.Save(v, ext); err != nil {
				t.Fatal(err)
			}
			same(t, mustOpen(t, fs), v, ext)
		})
	}
}

// Case C31: whatever the file holds, opening it works, and what cannot be is
// zero.
func TestC31Contents(t *testing.T) {
	good := encodeValues(Values{PhysicTime: start, LogicsTime: start - 5, IndexTime: start - 9, Confirm: 94})
	full := append(append([]byte(nil), good[:]...), make([]byte, fileSize-valuesSize)...)
	year2100 := encodeValues(Values{PhysicTime: 4102444800000, LogicsTime: 4102444800000, IndexTime: 4102444800000, Confirm: 94})
	indexOnly := encodeValues(Values{IndexTime: start})
	confirm := encodeValues(Values{PhysicTime: start, Confirm: math.MaxInt64})
	ahead := encodeValues(Values{PhysicTime: start + 3600_000, LogicsTime: math.MaxInt64, IndexTime: math.MinInt64})
	tests := []struct {
		name    string
		content []byte // nil: missing
		want    Values
	}{
		{"missing", nil, Values{}},
		{"empty", []byte{}, Values{}},
		{"8 bytes", good[:8], Values{PhysicTime: start}},
		{"7 bytes", good[:7], Values{PhysicTime: start &^ 0xff}},
		{"zeros", make([]byte, fileSize), Values{}},
		{"ones", bytes.Repeat([]byte{0xff}, fileSize), Values{}},
		{"year 2100", year2100[:], Values{Confirm: 94}},
		{"index time only", indexOnly[:], Values{IndexTime: start}},
		{"confirm max", confirm[:], Values{PhysicTime: start}},
		{"clock set back an hour", ahead[:], Values{PhysicTime: start + 3600_000}},
		{"good", full, Values{PhysicTime: start, LogicsTime: start - 5, IndexTime: start - 9, Confirm: 94}},
		{"too long", append(append([]byte(nil), full...), 1, 2, 3), Values{PhysicTime: start, LogicsTime: start - 5, IndexTime: start - 9, Confirm: 94}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fs := newFS(t)
			if tt.content != nil {
				setContent(t, fs, path, tt.content)
			}
			f := mustOpen(t, fs)
			same(t, f, tt.want, nil)
			if tt.content != nil {
				if got := content(t, fs, path); !bytes.Equal(got, tt.content) {
					t.Error("Open changed the file")
				}
			} else if _, err := fs.Stat(path); err == nil {
				t.Error("Open made the file")
			}
			v, ext := pair(3)
			if err := f.Save(v, ext); err != nil {
				t.Fatal(err)
			}
			if got := len(content(t, fs, path)); got != fileSize {
				t.Errorf("length %d after Save, want %d", got, fileSize)
			}
			same(t, mustOpen(t, fs), v, ext)
		})
	}
}

// At every call of every Save, and with every mixture of old and new sectors
// that a power cut may leave, Load gives the pair of the last finished Save or
// of the one that was interrupted.
func TestCrashDuringSave(t *testing.T) {
	for k := 0; ; k++ {
		mem := newFS(t)
		fs := faultfs.CrashAt(mem, k)
		done := int64(-1)
		if f, err := Open(fs, path, clock); err == nil {
			for n := range int64(4) {
				if f.Save(pair(n)) != nil {
					break
				}
				done = n
			}
			f.Close()
		}
		for _, policy := range memfs.Policies() {
			for seed := range int64(6) {
				after := mem.CrashClone(policy, seed)
				g := mustOpen(t, after)
				v, ext := g.Load()
				ok := done < 0 && v == Values{} && ext == nil
				for _, n := range []int64{done, done + 1} {
					wantV, wantExt := pair(n)
					if n >= 0 && v == wantV && ext != nil {
						wantExt.Seq = uint64(n) + 1
						ok = cmp.Equal(ext, wantExt)
					}
				}
				if !ok {
					t.Fatalf("crash at change %d, %v, seed %d, after save %d: values %+v, ext %+v", k, policy, seed, done, v, ext)
				}
				// And the store goes on.
				v, ext = pair(50)
				if err := g.Save(v, ext); err != nil {
					t.Fatal(err)
				}
				same(t, mustOpen(t, after), v, ext)
			}
		}
		if !fs.Crashed() {
			if done != 3 {
				t.Fatalf("only %d saves done without a crash", done+1)
			}
			return
		}
	}
}

// The same by hand and harder: sectors may be torn inside, at any byte.
func TestTornAnywhere(t *testing.T) {
	fs := newFS(t)
	f := mustOpen(t, fs)
	if err := f.Save(pair(1)); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(pair(2)); err != nil {
		t.Fatal(err)
	}
	before := content(t, fs, path)
	if err := f.Save(pair(3)); err != nil {
		t.Fatal(err)
	}
	after := content(t, fs, path)

	rapid.Check(t, func(t *rapid.T) {
		// Save writes the slot first, then, after a sync, bytes 0–47.
		b := bytes.Clone(before)
		mix := func(from, to int) {
			for i := from; i < to; i++ {
				if before[i] != after[i] && rapid.Bool().Draw(t, fmt.Sprint("new", i)) {
					b[i] = after[i]
				}
			}
		}
		want := []int64{3}
		if rapid.Bool().Draw(t, "slot") {
			want = []int64{2, 3}
			mix(valuesSize, fileSize)
		} else {
			copy(b[valuesSize:], after[valuesSize:])
			mix(0, valuesSize)
		}
		mem := memfs.New()
		if err := mem.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		h, err := mem.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
		g, err := Open(mem, path, clock)
		if err != nil {
			t.Fatal(err)
		}
		v, ext := g.Load()
		for _, n := range want {
			wantV, wantExt := pair(n)
			wantExt.Seq = uint64(n)
			if v == wantV && cmp.Equal(ext, wantExt) {
				return
			}
		}
		t.Fatalf("values %+v, ext %+v, want pair of %v", v, ext, want)
	})
}

// Faults F2 and F1: a failed sync is final and the file keeps what it had.
func TestF1FailedSyncIsFinal(t *testing.T) {
	for _, at := range []string{"slot", "values"} {
		t.Run(at, func(t *testing.T) {
			mem := newFS(t)
			fs := faultfs.New(mem)
			f := mustOpen(t, fs)
			v, ext := pair(1)
			if err := f.Save(v, ext); err != nil {
				t.Fatal(err)
			}
			rule := faultfs.Rule{Ops: faultfs.OpSync, Err: faultfs.ErrIO, Count: 1}
			if at == "values" {
				rule.Nth = 2
			}
			fs.Inject(rule)
			for range 2 {
				if err := f.Save(pair(2)); !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
					t.Fatalf("Save with a failing sync: %v", err)
				}
			}
			same(t, f, v, ext)
			g := mustOpen(t, mem.CrashClone(memfs.LoseUnsynced))
			gotV, _ := g.Load()
			if want, _ := pair(2); at == "slot" {
				same(t, g, v, ext)
			} else if gotV != v && gotV != want {
				t.Fatalf("values %+v", gotV)
			}
		})
	}
}

func TestNoSpaceCanBeTriedAgain(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate, faultfs.OpWrite} {
		t.Run(op.String(), func(t *testing.T) {
			mem := newFS(t)
			fs := faultfs.New(mem)
			fs.Inject(faultfs.Rule{Ops: op, Err: faultfs.ErrNoSpace, Count: 2})
			f := mustOpen(t, fs)
			v, ext := pair(1)
			for range 2 {
				if err := f.Save(v, ext); !errors.Is(err, base.ErrDiskFull) {
					t.Fatalf("Save on a full disk: %v", err)
				}
			}
			if err := f.Save(v, ext); err != nil {
				t.Fatal(err)
			}
			same(t, mustOpen(t, mem), v, ext)
		})
	}
}

func TestUnreadable(t *testing.T) {
	mem := newFS(t)
	setContent(t, mem, path, make([]byte, fileSize))
	fs := faultfs.New(mem)
	fs.Inject(faultfs.Rule{Ops: faultfs.OpRead, Err: faultfs.ErrIO})
	if _, err := Open(fs, path, clock); !errors.Is(err, faultfs.ErrIO) {
		t.Fatalf("Open: %v", err)
	}
}

func TestCloseAndNames(t *testing.T) {
	f := mustOpen(t, newFS(t))
	v, ext := pair(1)
	ext.Index.Name = strings.Repeat("x", indexNameSize+1)
	if err := f.Save(v, ext); err == nil {
		t.Error("a name that does not fit was saved")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(pair(1)); !errors.Is(err, base.ErrClosed) {
		t.Errorf("Save after Close: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	fs := newFS(f)
	c := mustOpen(f, fs)
	f.Add([]byte{})
	for n := range int64(3) {
		if err := c.Save(pair(n)); err != nil {
			f.Fatal(err)
		}
		f.Add(content(f, fs, path))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := newFS(t)
		setContent(t, mem, path, b)
		g := mustOpen(t, mem)
		v, ext := g.Load()
		if ext == nil && sane(v, start) != v {
			t.Fatalf("values %+v are not sane", v)
		}
		if ext != nil { // what was accepted is written back the same
			s := slot{ext: *ext, values: encodeValues(v)}
			copy(s.before[:], b)
			for i := range slotCount {
				have, ok := decodeSlot([slotSize]byte(append(b[firstSlot+i*slotSize:], make([]byte, slotSize)...)))
				if ok && have.ext.Seq == ext.Seq && have.values == s.values {
					s.before = have.before
					again, ok := decodeSlot(encodeSlot(s))
					if !ok || again != s {
						t.Fatalf("slot %+v came back as %+v", s, again)
					}
				}
			}
		}
		wantV, wantExt := pair(77)
		if err := g.Save(wantV, wantExt); err != nil {
			t.Fatal(err)
		}
		same(t, mustOpen(t, mem), wantV, wantExt)
	})
}
