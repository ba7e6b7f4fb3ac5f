package tool

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// storeShape is how queues and index of a store are made: what a broker takes
// from its configuration, and a tool reads off the files.
type storeShape struct {
	queueSize, batchSize, extSize int64 // 0: upstream's defaults
	hasExt, light                 bool
	index                         indexfile.Geometry // zero: upstream's default
	tags                          bool               // tags are indexed
	delays                        message.DelayLevels
	isBatch                       func(topic string) bool
	// removed are topics whose queues were removed: records before the position
	// are in none.
	removed map[string]int64
}

// shapeOf finds out the shape of the store in dir. What o says beats the files.
func shapeOf(fsys vfs.FS, dir string, o *gantry.Options, old *oldQueues) (storeShape, error) {
	s := storeShape{
		queueSize: cmp.Or(o.ConsumeQueueFileSize, old.fileSize[0]),
		batchSize: cmp.Or(o.BatchConsumeQueueFileSize, old.fileSize[1]),
		extSize:   cmp.Or(o.ConsumeQueueExtFileSize, old.extSize),
		hasExt:    o.QueueExt || old.hasExt,
		light:     o.LightQueues || old.light || len(old.m) == 0, // no queues at all: nothing speaks against them
		index:     indexfile.Geometry{Slots: o.IndexSlots, Entries: o.IndexEntries},
		tags:      !o.NoTagIndex,
	}
	var err error
	if s.delays, err = message.ParseDelayLevels(cmp.Or(o.DelayLevels, message.DefaultDelayLevels)); err != nil {
		return s, err
	}
	if s.isBatch = o.IsBatchTopic; s.isBatch == nil {
		batch := map[string]bool{}
		for n := range old.m {
			if n.kind == 1 {
				batch[n.topic] = true
			}
		}
		type topics struct {
			Table map[string]struct {
				Attributes map[string]string `json:"attributes"`
			} `json:"topicConfigTable"`
		}
		// A file that cannot be read tells nothing; verify reports it.
		_, _, _ = javajson.Load(fsys, filepath.Join(dir, "config", "topics.json"), func(t topics) {
			for topic, c := range t.Table {
				if c.Attributes["queue.type"] == "BatchCQ" {
					batch[topic] = true
				}
			}
		})
		s.isBatch = func(topic string) bool { return batch[topic] }
	}
	type removed struct {
		Topics map[string]int64 `json:"removedTopics"`
	}
	_, _, _ = javajson.Load(fsys, filepath.Join(dir, "config", "removedTopics.json"), func(r removed) { s.removed = r.Topics })
	files, err := indexFiles(fsys, dir)
	if err != nil {
		return s, err
	}
	for _, name := range slices.Backward(files) {
		if s.index.Slots != 0 && s.index.Entries != 0 {
			break
		}
		r, err := indexfile.OpenReader(fsys, name)
		if err != nil {
			continue // an older one may tell
		}
		g := r.Geometry()
		s.index.Slots, s.index.Entries = cmp.Or(s.index.Slots, g.Slots), cmp.Or(s.index.Entries, g.Entries)
		r.Close()
	}
	return s, nil
}

// indexFiles lists the index files of a store by name.
func indexFiles(fsys vfs.FS, dir string) (names []string, err error) {
	entries, err := fsys.List(filepath.Join(dir, "index"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsRegular() && len(e.Name) == 17 && strings.Trim(e.Name, "0123456789") == "" {
			names = append(names, filepath.Join(dir, "index", e.Name))
		}
	}
	return names, nil
}

// indexedTags finds out whether the index of a store has entries for tags,
// which brokers write from 5.4 on, by looking at its newest entries. known is
// false when they do not tell.
func indexedTags(fsys vfs.FS, dir string, hints indexfile.Geometry, record func(phy int64) (message.View, bool)) (tags, known bool) {
	files, _ := indexFiles(fsys, dir)
	const look = 500 // entries
	yes, no := 0, 0
	for _, name := range slices.Backward(files) {
		var h []indexfile.Geometry
		if hints.Slots > 0 && hints.Entries > 0 {
			h = append(h, hints)
		}
		r, err := indexfile.OpenReader(fsys, name, h...)
		if err != nil {
			continue
		}
		count := r.Header().Count
		hashes := map[message.PhysicalOffset][]int32{}
		_ = r.Entries(max(1, count-look), count, func(_ int32, en indexfile.Entry) bool { // what cannot be read tells nothing
			hashes[en.Phy] = append(hashes[en.Phy], en.Hash)
			return true
		})
		r.Close()
		for phy, have := range hashes {
			v, ok := record(int64(phy))
			if !ok {
				continue
			}
			with, without := v.IndexHashes(nil, true), v.IndexHashes(nil, false)
			switch {
			case len(with) == len(without):
			case len(have) == len(with) && slices.Contains(have, with[len(with)-1]):
				yes++
			default:
				no++
			}
		}
		if yes+no > 0 {
			break
		}
	}
	return yes >= no, yes+no > 0
}
