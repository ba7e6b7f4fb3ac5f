// Package checkpoint keeps the three small files that govern a store's
// lifecycle: checkpoint, abort and lock.
//
// The file checkpoint (RocketMQ: StoreCheckpoint) has 4096 bytes. The first 48
// are RocketMQ's. Behind them are two slots of our own, written alternately,
// which Java brokers neither read nor change. Integers are big-endian.
//
//	0        8        16       24       32       40       48
//	+--------+--------+--------+--------+--------+--------+-- … --+
//	| physic | logics | index  | master | confirm| logics |  zero |
//	| time   | time   | time   | flushed| offset | offset |       |
//	+--------+--------+--------+--------+--------+--------+-- … --+
//	512                        1024                       1536
//	+--------------------------+--------------------------+-- … --+
//	| slot 0                   | slot 1                   |  zero |
//	+--------------------------+--------------------------+-- … --+
//
// docs/format/checkpoint.md has the slots to the byte. Save writes the older
// slot, syncs, writes bytes 0–47 and syncs. A slot holds bytes 0–47 as they
// are after the save and as they were before it, so that one that belongs to
// the file can be told from one that was left behind when a Java broker went
// on with the store. At every moment at least one slot is whole.
//
// A File is used by one goroutine at a time. Open changes nothing on disk.
package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// File is the checkpoint file of a store.
type File struct {
	fs   vfs.FS
	path string

	f      vfs.File         // open for writing; nil before the first Save
	disk   [valuesSize]byte // bytes 0–47 as they are in the file
	seq    uint64           // of the newest slot in the file, matching or not
	target int              // the slot that Save writes next
	values Values
	ext    *Ext
	failed error
}

// maxAhead is how far behind now a time may lie in the future and still be
// taken for one: clocks are set back.
const maxAhead = 24 * 3600 * 1000 // ms

// maxOffset bounds the offsets that are believed.
const maxOffset = 1 << 60

// Open reads the file at path. A file that is missing, short or garbage is as
// good as one full of zeros: recovery then takes longer. Only an I/O error is
// an error. now is the clock in ms, nil the system's; times more than a day
// after it are taken for garbage.
func Open(fsys vfs.FS, path string, now func() int64) (*File, error) {
	if now == nil {
		now = func() int64 { return time.Now().UnixMilli() }
	}
	f := &File{fs: fsys, path: path}
	if err := f.read(now()); err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	return f, nil
}

func (f *File) read(now int64) error {
	var b [fileSize]byte
	h, err := f.fs.Open(f.path, vfs.ReadOnly)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	// What lies behind a short file's end reads as zeros.
	_, err = h.ReadAt(b[:], 0)
	if err == io.EOF {
		err = nil
	}
	if err = errors.Join(err, h.Close()); err != nil {
		return err
	}

	copy(f.disk[:], b[:])
	var newest *slot
	for i := range slotCount {
		s, ok := decodeSlot([slotSize]byte(b[firstSlot+i*slotSize:]))
		if !ok {
			continue
		}
		if s.ext.Seq >= f.seq {
			f.seq, f.target = s.ext.Seq, 1-i
		}
		if s.matches(f.disk) && (newest == nil || s.ext.Seq > newest.ext.Seq) {
			newest = &s
		}
	}
	if newest != nil {
		// Bytes 0–47 may be torn; the slot is not.
		f.values = decodeValues(newest.values)
		f.ext = &newest.ext
		return nil
	}
	f.values = sane(decodeValues(f.disk), now)
	return nil
}

// sane replaces what cannot be by zero, which means unknown.
func sane(v Values, now int64) Values {
	for _, t := range []*int64{&v.PhysicTime, &v.LogicsTime, &v.IndexTime} {
		if *t < 0 || *t > now && uint64(*t)-uint64(now) > maxAhead {
			*t = 0
		}
	}
	for _, o := range []*int64{(*int64)(&v.MasterFlushed), (*int64)(&v.Confirm), (*int64)(&v.LogicsPhysical)} {
		if *o < 0 || *o > maxOffset {
			*o = 0
		}
	}
	return v
}

// Load returns what Open read or the last Save wrote. The second result is nil
// when there is none of ours or another program has written since. The caller
// may keep and change it.
func (f *File) Load() (Values, *Ext) {
	if f.ext == nil {
		return f.values, nil
	}
	ext := *f.ext
	return f.values, &ext
}

// Save makes v and ext durable together: after a crash Load returns this pair
// or the one before, never a mixture. The caller has synced what they promise.
// With ext nil only v is written and the slots are cleared. A file that is
// missing or has another length is made right.
//
// No space is an error that wraps base.ErrDiskFull; Save may be tried again.
// A failed sync is final: then and later the error wraps base.ErrReadOnly.
func (f *File) Save(v Values, ext *Ext) error {
	if f.failed != nil {
		return f.failed
	}
	if f.f == nil {
		if err := f.prepare(); err != nil {
			return fmt.Errorf("save checkpoint: %w", err)
		}
	}
	if err := f.save(v, ext); err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	return nil
}

func (f *File) save(v Values, ext *Ext) error {
	values := encodeValues(v)
	if ext == nil {
		var zero [slotCount * slotSize]byte
		if err := f.store(zero[:], firstSlot); err != nil {
			return err
		}
	} else {
		if len(ext.Index.Name) > indexNameSize {
			return fmt.Errorf("index file name %q is longer than %d bytes", ext.Index.Name, indexNameSize)
		}
		s := slot{ext: *ext, values: values, before: f.disk}
		s.ext.Seq = f.seq + 1
		b := encodeSlot(s)
		if err := f.store(b[:], firstSlot+int64(f.target)*slotSize); err != nil {
			return err
		}
		f.seq, f.target = s.ext.Seq, 1-f.target
		ext = &s.ext
	}
	if err := f.store(values[:], 0); err != nil {
		return err
	}
	f.disk, f.values, f.ext = values, v, ext
	return nil
}

// store writes and syncs.
func (f *File) store(b []byte, off int64) error {
	if _, err := f.f.WriteAt(b, off); err != nil {
		return err
	}
	return f.sync()
}

func (f *File) sync() error {
	if err := f.f.Sync(); err != nil {
		f.failed = fmt.Errorf("checkpoint: %w: %w", base.ErrReadOnly, err)
		return f.failed
	}
	return nil
}

// prepare opens or creates the file and gives it its length and blocks.
func (f *File) prepare() error {
	h, err := f.fs.Open(f.path, vfs.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		h, err = f.fs.Create(f.path)
	}
	if err != nil {
		return err
	}
	f.f = h
	size, err := h.Size()
	if err == nil && size != fileSize {
		err = h.Truncate(fileSize)
	}
	if err == nil {
		err = h.Allocate(0, fileSize)
	}
	if err == nil {
		err = f.sync()
	}
	if err == nil {
		err = f.fs.SyncDir(filepath.Dir(f.path))
	}
	if err != nil {
		f.f = nil
		return errors.Join(err, h.Close())
	}
	return nil
}

// Close closes the file; it saves nothing.
func (f *File) Close() error {
	h := f.f
	f.f = nil
	f.failed = base.ErrClosed
	if h == nil {
		return nil
	}
	return h.Close()
}
