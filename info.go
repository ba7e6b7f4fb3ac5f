package gantry

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strconv"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Info is an overview of a store.
type Info struct {
	Dir                  string
	CommitLogFileSize    int64
	ConsumeQueueFileSize int64
	CommitLogFiles       []FileInfo
	IndexFiles           []IndexFileInfo
	ConfigFiles          []string // below config/
	Bytes                int64    // lengths of all files
	AllocatedBytes       int64    // what they occupy: files are sparse
	MinOffset            message.PhysicalOffset
	EndOffset            message.PhysicalOffset
	EarliestTimestamp    int64 // store time of the first record in ms; 0: the log is empty, or the record damaged
	LatestTimestamp      int64 // of the last one
	Checkpoint           CheckpointInfo
	// Release is the oldest RocketMQ release that leaves what was found in the
	// directory, Trace what that was: "5.4.0", "rocksdbstore". Empty: nothing
	// that 4.x does not leave as well. A store has no version stamp.
	Release, Trace string
	Queues         []QueueInfo
	Recovery       Recovery
	// Scrub is the last pass; of a store that was opened read-only, that of
	// the process that wrote it.
	Scrub Scrub
}

// FileInfo describes a commit log file.
type FileInfo struct {
	Path       string
	Start, End message.PhysicalOffset
}

// IndexFileInfo describes an index file.
type IndexFileInfo struct {
	Path           string
	Size           int64
	Slots          int32
	Capacity       int32 // entries, one of which is never used
	Entries        int32
	BeginTimestamp int64 // ms
	EndTimestamp   int64
	BeginOffset    message.PhysicalOffset
	EndOffset      message.PhysicalOffset
}

// CheckpointInfo is what the checkpoint file on the disk says.
type CheckpointInfo struct {
	PhysicMsgTimestamp int64 // ms
	LogicsMsgTimestamp int64
	IndexMsgTimestamp  int64
	DispatchedTo       message.PhysicalOffset // -1: Gantry was not the last to write
}

// Info returns an overview of the store as it is now.
func (s *Store) Info() (Info, error) {
	if s.closed.Load() {
		return Info{}, ErrClosed
	}
	info := Info{
		Dir: s.dir, CommitLogFileSize: s.log.FileSize(), ConsumeQueueFileSize: s.queues.simple.FileSize(),
		Queues: s.Queues(), Recovery: s.recovery, Scrub: s.scrubbing.now(),
	}
	info.MinOffset, info.EndOffset = s.Range()
	for _, f := range s.log.Files() {
		info.CommitLogFiles = append(info.CommitLogFiles, FileInfo{f.Path, f.Start, f.End})
	}
	switch t, err := s.EarliestTime(); {
	case err == nil:
		info.EarliestTimestamp, info.LatestTimestamp = t, s.log.LastStoreTime()
	case errors.Is(err, ErrCorrupt): // an overview of a damaged store is wanted most
		info.LatestTimestamp = s.log.LastStoreTime()
		info.Recovery.Warnings = append(slices.Clip(info.Recovery.Warnings), fmt.Sprintf("earliest store time: %v", err))
	case !errors.Is(err, ErrNotFound):
		return info, err
	}
	// s.checkpoint of a store opened read-only holds what recovery made of it.
	file, err := checkpoint.Open(s.opts.FS, filepath.Join(s.dir, checkpointFileName), s.opts.Now)
	if err != nil {
		return info, err
	}
	v, ext := file.Load()
	info.Checkpoint = CheckpointInfo{v.PhysicTime, v.LogicsTime, v.IndexTime, -1}
	if ext != nil {
		info.Checkpoint.DispatchedTo = ext.DispatchedTo
	}
	if info.Release, info.Trace, err = s.release(v, ext != nil); err != nil {
		return info, err
	}
	if s.index != nil {
		for _, f := range s.index.Files() {
			info.IndexFiles = append(info.IndexFiles, IndexFileInfo{
				Path: f.Path, Size: f.Size, Slots: f.Geometry.Slots, Capacity: f.Geometry.Entries,
				Entries:        max(f.Header.Count, 1) - 1,
				BeginTimestamp: f.Header.BeginTime, EndTimestamp: f.Header.EndTime,
				BeginOffset: f.Header.BeginPhy, EndOffset: f.Header.EndPhy,
			})
		}
	}
	if info.ConfigFiles, err = s.configFiles(); err != nil {
		return info, err
	}
	dirs := append([]string{s.dir}, s.opts.CommitLogDirs...)
	seen := make(map[string]bool)
	for _, dir := range append(dirs, s.opts.ReadOnlyCommitLogDirs...) {
		if err := info.addSizes(s.opts.FS, dir, seen); err != nil {
			return info, err
		}
	}
	return info, nil
}

// release looks for the traces of RocketMQ releases (format: section 19).
func (s *Store) release(v checkpoint.Values, ours bool) (release, trace string, err error) {
	if !ours && v.LogicsPhysical > 0 { // this store writes the field, too
		return "5.5.1", "logicsPhysicalOffset in the checkpoint", nil
	}
	for _, t := range []struct{ name, release string }{
		{"rocksdbstore", "5.4.0"}, {"brokerIdentity", "5.1.1"},
		{"abort.bak", "5.0.0"}, {"timerwheel", "5.0.0"}, {"compaction", "5.0.0"}, {batchQueueDir, "5.0.0"},
	} {
		_, err := s.opts.FS.Stat(filepath.Join(s.dir, t.name))
		if err == nil {
			return t.release, t.name, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", err
		}
	}
	return "", "", nil
}

func (s *Store) configFiles() ([]string, error) {
	entries, err := s.fs.List(filepath.Join(s.dir, "config"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsRegular() {
			names = append(names, e.Name)
		}
	}
	sort.Strings(names)
	return names, err
}

// addSizes adds the sizes of all files below dir that were not seen before.
func (info *Info) addSizes(fsys vfs.FS, dir string, seen map[string]bool) error {
	entries, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name)
		switch {
		case seen[name]:
		case e.IsDir():
			if err := info.addSizes(fsys, name, seen); err != nil {
				return err
			}
		case e.IsRegular():
			seen[name] = true
			info.Bytes += e.Size
			info.AllocatedBytes += e.Allocated
		}
	}
	return nil
}

// LockHolder says who holds the store in dir: the process id that its abort
// file names, "?" when that names none, "" when nobody holds it. fsys nil is
// the operating system.
func LockHolder(dir string, fsys vfs.FS) (pid string, err error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	held, err := fsys.Locked(filepath.Join(dir, lockFileName))
	if err != nil || !held {
		return "", err
	}
	if pid, ok, err := checkpoint.AbortPID(fsys, dir); err == nil && ok {
		return strconv.Itoa(pid), nil
	}
	return "?", nil
}
