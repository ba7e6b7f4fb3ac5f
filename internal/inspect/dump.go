package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

// Item is a part of a file as it is decoded.
type Item struct {
	Offset int64  // in the file
	Kind   string // "record", "unit", "header" …
	Fields []Field
	Damage string // what is wrong with it; empty: nothing
}

// Field is a named value: an integer, a string or a bool. Names that end in
// Timestamp are times in ms.
type Field struct {
	Name  string
	Value any
}

// DumpOptions say what is dumped.
type DumpOptions struct {
	FS   vfs.FS
	Path string
	// As is the kind of file, a name of DumpKinds; empty: made out from name,
	// folder and content.
	As string
	// IndexSlots and IndexEntries are the geometry of an index file; 0: made
	// out from the content.
	IndexSlots, IndexEntries int32
	// From passes over what begins before this offset in the file.
	From int64
	// Begin is told the kind of the file, in words, before the first item; nil:
	// nobody is.
	Begin func(kind string)
	Item  func(Item) error // an error ends the dump; ErrEnough in silence
}

// DumpResult is what was dumped.
type DumpResult struct {
	Kind    string // in words: "commit log file"
	Items   int64
	Damaged int64
}

// ErrForeign is the error for a file or folder that is known by its name but
// is not of this format.
var ErrForeign = errors.New("not decoded")

// dumper decodes one file.
type dumper struct {
	ctx  context.Context
	o    *DumpOptions
	f    vfs.File
	size int64
	name string // base name
	res  DumpResult
	bad  error // the first range that could not be read
}

// fileKind is a kind of file that can be decoded.
type fileKind struct {
	name string // for DumpOptions.As
	what string
	dump func(*dumper) error
}

var fileKinds = []fileKind{
	{"commitlog", "commit log file", (*dumper).logFile},
	{"consumequeue", "consume queue file", (*dumper).queueFile},
	{"batchconsumequeue", "batch consume queue file", (*dumper).batchFile},
	{"consumequeue_ext", "consume queue extension file", (*dumper).extFile},
	{"index", "index file", (*dumper).indexFile},
	{"checkpoint", "checkpoint", (*dumper).checkpoint},
	{"abort", "abort file", (*dumper).abortFile},
	{"lock", "lock file", (*dumper).textFile},
	{"timerwheel", "timer wheel", (*dumper).timerWheel},
	{"timerlog", "timer log file", (*dumper).timerLog},
	{"timercheck", "timer checkpoint", (*dumper).timerCheck},
	{"compactionlog", "compaction log file", (*dumper).compactionLog},
	{"compactioncq", "compaction queue file", (*dumper).sparseFile},
	{"epoch", "epoch file", (*dumper).epochFile},
	{"identity", "broker identity", (*dumper).identity},
	{"json", "JSON file", (*dumper).jsonFile},
}

// DumpKinds are the names of the kinds of files.
func DumpKinds() (names []string) {
	for _, k := range fileKinds {
		names = append(names, k.name)
	}
	return names
}

func kindNamed(name string) *fileKind {
	for i := range fileKinds {
		if fileKinds[i].name == name {
			return &fileKinds[i]
		}
	}
	return nil
}

// Dump decodes a file piece by piece. What is damaged in it is no error.
func Dump(ctx context.Context, o DumpOptions) (DumpResult, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	d := &dumper{ctx: ctx, o: &o, name: filepath.Base(o.Path)}
	if what := foreignDir(o.FS, o.Path); what != "" {
		return DumpResult{Kind: what}, fmt.Errorf("%s is %s: %w", o.Path, what, ErrForeign)
	}
	var err error
	if d.f, err = o.FS.Open(o.Path, vfs.ReadOnly); err != nil {
		return d.res, err
	}
	defer d.f.Close()
	if d.size, err = d.f.Size(); err != nil {
		return d.res, err
	}
	k := kindNamed(o.As)
	if o.As == "" {
		name, foreign := d.recognise()
		if foreign != "" {
			return DumpResult{Kind: foreign}, fmt.Errorf("%s is %s: %w", o.Path, foreign, ErrForeign)
		}
		k = kindNamed(name)
	}
	if k == nil {
		return d.res, fmt.Errorf("%s: what kind of file this is cannot be told from its name, folder and content", o.Path)
	}
	d.res.Kind = k.what
	if o.Begin != nil {
		o.Begin(k.what)
	}
	if err = k.dump(d); errors.Is(err, ErrEnough) {
		err = nil
	}
	if err == nil && d.bad != nil {
		err = d.bad
	}
	return d.res, err
}

// item passes an item on.
func (d *dumper) item(off int64, kind, damage string, fields ...Field) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	if off < d.o.From {
		return nil
	}
	d.res.Items++
	if damage != "" {
		d.res.Damaged++
	}
	return d.o.Item(Item{off, kind, fields, damage})
}

// read returns n bytes at off, fewer at the end of the file. What the disk does
// not give is zeros, and told as an item.
func (d *dumper) read(buf []byte, off, n int64) ([]byte, error) {
	n = max(min(n, d.size-off), 0)
	if int64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if err := readAt(d.f, buf, off); err != nil {
		return buf, d.item(off, "unreadable", err.Error(), Field{"bytes", n})
	}
	return buf, nil
}

// all reads a whole small file.
func (d *dumper) all(limit int64) ([]byte, error) {
	if d.size > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that such a file can have", d.o.Path, d.size, limit)
	}
	return d.read(nil, 0, d.size)
}

// blocks calls fn for each block of a file of blocks of one size, in long
// reads. Runs of zero blocks are one call, with zero set and b nil; n is how
// many. What is left at the end of the file is not passed on.
func (d *dumper) blocks(from, to, size int64, fn func(off int64, b []byte, n int64, zero bool) error) error {
	chunk := max(64<<10/size, 1) * size
	var buf []byte
	zeroFrom := int64(-1)
	flush := func(off int64) error {
		if zeroFrom < 0 {
			return nil
		}
		at := zeroFrom
		zeroFrom = -1
		return fn(at, nil, (off-at)/size, true)
	}
	for off := from; off+size <= to; {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		if next, err := d.f.NextData(off); err == nil && next > off {
			if n := (min(next, to) - off) / size * size; n > 0 {
				if zeroFrom < 0 {
					zeroFrom = off
				}
				off += n
				continue
			}
		}
		var err error
		if buf, err = d.read(buf, off, min(chunk, (to-off)/size*size)); err != nil {
			return err
		}
		for b := buf; int64(len(b)) >= size; b, off = b[size:], off+size {
			if isZero(b[:size]) {
				if zeroFrom < 0 {
					zeroFrom = off
				}
				continue
			}
			if err := flush(off); err != nil {
				return err
			}
			if err := fn(off, b[:size], 1, false); err != nil {
				return err
			}
		}
	}
	return flush(from + (to-from)/size*size)
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// start is the position that a file's name says, and whether it says one.
func (d *dumper) start() (int64, bool) { return parseSegmentName(d.name) }

// foreignDir names a folder that cannot be dumped.
func foreignDir(fsys vfs.FS, path string) string {
	entries, err := fsys.List(path)
	if err != nil {
		return ""
	}
	has := map[string]bool{}
	for _, e := range entries {
		has[e.Name] = true
		if strings.HasPrefix(e.Name, "MANIFEST-") {
			has["MANIFEST"] = true
		}
	}
	base := filepath.Base(path)
	switch {
	case has["CURRENT"] && has["MANIFEST"]:
		return "a RocksDB database"
	case strings.HasPrefix(base, "dledger-"):
		return "the folder of a DLedger log, which holds the messages instead of commitlog"
	case strings.HasPrefix(strings.ToLower(base), "tieredstore"):
		return "a folder of tiered storage"
	case has["commitlog"] || has["consumequeue"]:
		return "a store, a folder: see gantry store info and verify"
	}
	return "a folder"
}

// recognise makes out the kind of the file. foreign names one that is not
// decoded.
func (d *dumper) recognise() (kind, foreign string) {
	path := d.o.Path
	if abs, err := filepath.Abs(path); err == nil {
		path = abs // the names of the folders above tell the most
	}
	dir := filepath.Dir(path)
	parent, above := filepath.Base(dir), filepath.Base(filepath.Dir(filepath.Dir(dir)))
	name := strings.TrimSuffix(strings.TrimSuffix(d.name, ".bak"), ".tmp")
	if _, err := d.o.FS.Stat(filepath.Join(dir, "CURRENT")); err == nil {
		return "", "a file of a RocksDB database"
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", ""
	}
	for p := dir; p != filepath.Dir(p); p = filepath.Dir(p) {
		switch b := filepath.Base(p); {
		case strings.HasPrefix(b, "dledger-"):
			return "", "a file of a DLedger log"
		case strings.HasPrefix(strings.ToLower(b), "tieredstore"):
			return "", "a file of tiered storage"
		}
	}
	switch {
	case strings.HasSuffix(d.name, ".sst"):
		return "", "a file of a RocksDB database"
	case name == "checkpoint" || name == "lock" || name == "abort" || name == "timercheck":
		return name, ""
	case name == "timerwheel" || strings.HasPrefix(name, "timerwheel."):
		return "timerwheel", ""
	case name == "epochFileCheckpoint":
		return "epoch", ""
	case name == "brokerIdentity" || name == "brokerIdentity-temp":
		return "identity", ""
	case strings.HasSuffix(name, ".json") || name == "timermetrics" || name == "transactionMetrics" || name == "position-checkpoint":
		return "json", ""
	case parent == "index" && len(name) == 17:
		return "index", ""
	}
	if _, ok := d.start(); ok {
		if parent == "compacting" || parent == "replicating" {
			above = filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(dir))))
		}
		switch {
		case parent == "timerlog":
			return "timerlog", ""
		case above == "consumequeue" || above == "batchconsumequeue" || above == "consumequeue_ext":
			return above, ""
		case above == "compactionLog":
			return "compactionlog", ""
		case above == "compactionCq":
			return "compactioncq", ""
		case parent == "commitlog":
			return "commitlog", ""
		}
	}
	return d.sniff(), ""
}
