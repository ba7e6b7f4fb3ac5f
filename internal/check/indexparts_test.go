package check

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestIndexInParts: of a large index file several goroutines say what one says.
func TestIndexInParts(t *testing.T) {
	const messages, parts = partEntries + 5000, 2 // two keys each
	fs := memfs.New()
	b := newBuilder(t, fs, "/s")
	b.logSize, b.cqSize = 64<<20, 6_000_000
	b.slots, b.entries = 50_000, 3*partEntries
	for i := range messages {
		b.put(msg("T", 0, fmt.Sprintf("key%d", i), "TagA", 10))
	}
	b.close()
	const path = "/s/index/20231114221320000"
	f, err := fs.Open(path, vfs.ReadWrite)
	b.must(err)
	defer f.Close()
	run := func(workers int) (found []string) {
		t.Helper()
		opts := Options{FS: fs, Dir: "/s", Workers: workers, IndexSlots: b.slots, IndexEntries: b.entries}
		if _, err := Run(t.Context(), opts, func(f Finding) { found = append(found, f.String()) }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	sound := run(1)
	if got := run(parts); !slices.Equal(got, sound) || len(sound) > 1 {
		t.Errorf("undamaged: by one %q, by %d %q", sound, parts, got)
	}
	geo := indexfile.Geometry{Slots: b.slots, Entries: b.entries}
	entry := func(e int64) int64 { return geo.Size() - int64(geo.Entries)*indexEntrySize + e*indexEntrySize }
	boundary := int64(1 + (2*messages+entryBlock-1)/entryBlock/parts*entryBlock) // the first entry of the second part
	for _, at := range []int64{1, 2, 5000, boundary - 1, boundary, boundary + 1, 2*messages - 3, 2 * messages} {
		for name, damage := range map[string]func(e []byte){
			"negative hash":    func(e []byte) { e[0] |= 0x80 },
			"another hash":     func(e []byte) { e[3] ^= 1 },
			"position behind":  func(e []byte) { binary.BigEndian.PutUint64(e[posIndexPhy:], 1<<40) },
			"position before":  func(e []byte) { clear(e[posIndexPhy : posIndexPhy+8]) },
			"previous forward": func(e []byte) { binary.BigEndian.PutUint32(e[posIndexPrev:], uint32(at)+7) },
			"empty":            func(e []byte) { clear(e) },
		} {
			was, e := make([]byte, indexEntrySize), make([]byte, indexEntrySize)
			_, err := f.ReadAt(was, entry(at))
			b.must(err)
			copy(e, was)
			damage(e)
			_, err = f.WriteAt(e, entry(at))
			b.must(err)
			one, several := run(1), run(parts)
			if !slices.Equal(one, several) {
				t.Errorf("entry %d, %s: by one %q, by %d %q", at, name, one, parts, several)
			}
			if len(one) <= len(sound) && string(e) != string(was) {
				t.Errorf("entry %d, %s: not found: %q", at, name, one)
			}
			_, err = f.WriteAt(was, entry(at))
			b.must(err)
		}
	}
}
