package check

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

// Names at the top of a store that some release of RocketMQ or Gantry makes.
var knownNames = []string{
	"commitlog", dirQueue, dirBatch, dirExt, "index", "checkpoint", "abort", "abort.bak", "lock",
	"timerwheel", "timerlog", "compaction", "config", "epochFileCheckpoint", "epochFileCheckpoint.bak",
	"brokerIdentity", "brokerIdentity-temp", "transaction", "rocksdbstore", "kvStore", "quarantine",
	"namesrv", "scrub.json", // of "gantry serve" and of a scrub
}

// lookAround reads what decides how the rest is judged: the markers of a clean
// or unclean stop, the lock, traces of newer releases, and data in other
// formats. It reports rules 40 and 50.
func (c *checker) lookAround() error {
	s := c.sink()
	defer s.flush()
	c.config = &config{topics: map[string]topicConfig{}}
	entries := c.list(s, c.dir)
	has := func(name string) bool {
		return slices.ContainsFunc(entries, func(e vfs.Entry) bool { return e.Name == name })
	}
	for _, e := range entries {
		c.topLevel(s, e, has)
	}
	c.newer = has("rocksdbstore") || has("abort.bak") || has("timerwheel") || has("compaction") || has(dirBatch)

	if locked, err := c.fs.Locked(filepath.Join(c.dir, "lock")); err == nil {
		c.live = locked
	}
	if has("abort") {
		c.abort = true
		pid, _ := c.slurp(s, filepath.Join(c.dir, "abort"), 1<<10, ruleAbort)
		f := Finding{Severity: Info, File: "abort", Count: 1}
		by := "an unknown process"
		if pid = bytes.TrimSpace(pid); len(pid) > 0 {
			c.newer = true
			by = "process " + quoteShort(string(pid))
		}
		if c.live {
			f.Meaning, f.Repair = "the store is in use; what is written meanwhile is not judged", repairNone
			s.put(ruleAbort, f, "the store is open, the lock is held; opened by %s", by)
		} else {
			s.put(ruleAbort, f, "the last stop was not clean; opened by %s", by)
		}
	} else if c.live {
		s.addAs(ruleAbort, Info, "lock", 0, "the lock is held: the store is being opened or closed")
	}
	c.rocksDB(s)
	c.gantryTraces()
	return nil
}

func (c *checker) topLevel(s *sink, e vfs.Entry, has func(string) bool) {
	switch {
	case slices.Contains(knownNames, e.Name):
		return
	case c.isLogParent(e.Name):
		return
	case strings.HasPrefix(e.Name, "dledger-"):
		c.dledger = true
		s.put(ruleForeign, Finding{Severity: Warning, File: e.Name,
			Meaning: "DLedger's log is not looked into: nothing here says that the messages are sound"}, "a DLedger log: the messages are in there, not in commitlog")
	case strings.HasPrefix(strings.ToLower(e.Name), "tieredstore"):
		s.add(ruleForeign, e.Name, 0, "tiered storage")
	case strings.HasPrefix(e.Name, "timerwheel."):
		s.add(ruleForeign, e.Name, 0, "a snapshot of the timer wheel")
	case strings.HasSuffix(e.Name, ".bak") && !has(strings.TrimSuffix(e.Name, ".bak")):
		s.add(ruleLeftover, e.Name, 0, "a .bak without the file that it is a copy of")
	default:
		s.add(ruleLeftover, e.Name, 0, "no release makes this")
	}
}

// isLogParent reports whether a top-level name leads to a folder of the log.
func (c *checker) isLogParent(name string) bool {
	p := filepath.Join(c.dir, name)
	for _, d := range c.commitLogDirs() {
		if rel, err := filepath.Rel(p, d); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

// rocksDB recognises consume queues that are kept in RocksDB, whose files lie
// between the folders of topics.
func (c *checker) rocksDB(s *sink) {
	entries, err := c.fs.List(filepath.Join(c.dir, dirQueue))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // listing it again will report that
	}
	for _, e := range entries {
		if e.IsRegular() && (e.Name == "CURRENT" || strings.HasPrefix(e.Name, "MANIFEST-") || strings.HasSuffix(e.Name, ".sst")) {
			c.rocksQueues = true
			s.add(ruleForeign, dirQueue+"/"+e.Name, 0, "the consume queues are in RocksDB: they are not compared with the log")
			return
		}
	}
}

// gantryTraces looks into the checkpoint for fields that 4.9 does not write.
func (c *checker) gantryTraces() {
	f, err := c.fs.Open(filepath.Join(c.dir, "checkpoint"), vfs.ReadOnly)
	if err != nil {
		return
	}
	defer f.Close()
	var b [checkpointSize]byte
	n, _ := f.ReadAt(b[:], 0)
	if n > 24 && trimZeros(b[24:n]) > 0 {
		c.newer = true
	}
}

// checkEmpty reports a store whose log is gone while its other parts are there.
func (c *checker) checkEmpty(s *sink) {
	if len(c.log.files) > 0 || c.dledger {
		return
	}
	units := 0
	for _, q := range c.queues.queues {
		units += len(q.files)
	}
	n := len(c.index.files)
	if units == 0 && n == 0 {
		return
	}
	s.add(ruleEmpty, c.show(c.log.dirs[0]), 0, "no log files, but %d files of consume queues and %d of the index", units, n)
}
