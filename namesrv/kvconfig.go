package namesrv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs"
)

// orderNamespace has the queues of ordered topics: "broker-a:4;broker-b:4" by
// topic.
const orderNamespace = "ORDER_TOPIC_CONFIG"

// Bounds of KV config, in bytes. The largest namespace, and with it the answer
// to every registration, has to fit into a frame however much is escaped.
const (
	maxKVCost  = 2 << 20
	maxKVName  = 1024 // a namespace or key
	kvOverhead = 64   // of each namespace and entry
)

// kvConfig are texts by namespace and key, kept in a file (upstream:
// KVConfigManager).
type kvConfig struct {
	fsys vfs.FS
	path string // "": no file

	// table is immutable; who changes something replaces it, holding mu.
	table atomic.Pointer[kvTable]

	mu struct {
		sync.Mutex // held while the file is written
		cost       int
		unsure     bool // the last save failed: the file may have either content
	}
}

type kvTable map[string]map[string]string

// kvFile is the content of kvConfig.json (upstream: KVConfigSerializeWrapper).
type kvFile struct {
	ConfigTable kvTable `json:"configTable"`
}

// damagedSuffix is what a damaged file is renamed to, so that the next save does
// not put it in the place of the good .bak.
const damagedSuffix = ".damaged"

// openKVConfig reads the file at path, if there is one. It makes the directory
// of a file that is not there.
func openKVConfig(fsys vfs.FS, dir, path string, log *slog.Logger) (*kvConfig, error) {
	kv := &kvConfig{fsys: fsys, path: path}
	table := kvTable{}
	kv.table.Store(&table)
	if path == "" {
		return kv, nil
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("directory of KV config: %w", err)
	}
	used, cause, err := javajson.Load(fsys, path, func(f kvFile) {
		for namespace, entries := range f.ConfigTable {
			table[namespace] = make(map[string]string, len(entries))
			maps.Copy(table[namespace], entries)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read KV config: %w", err)
	}
	kv.mu.cost = table.cost()
	if kv.mu.cost > maxKVCost {
		return nil, fmt.Errorf("%s: entries take %d bytes, the limit is %d", used, kv.mu.cost, maxKVCost)
	}
	if used != "" && used != path {
		log.Warn("KV config read from its backup", "file", used, "err", cause)
		if err := fsys.Rename(path, path+damagedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("set the damaged KV config aside: %w", err)
		}
	}
	return kv, nil
}

func (t kvTable) cost() int {
	n := 0
	for namespace, entries := range t {
		n += len(namespace) + kvOverhead
		for key, value := range entries {
			n += kvCost(key, value)
		}
	}
	return n
}

func kvCost(key, value string) int { return len(key) + len(value) + kvOverhead }

// get returns the value of a key.
func (kv *kvConfig) get(namespace, key string) (string, bool) {
	v, ok := (*kv.table.Load())[namespace][key]
	return v, ok
}

// namespace returns all keys of a namespace, which nobody may change. One whose
// keys were all deleted still exists.
func (kv *kvConfig) namespace(name string) (map[string]string, bool) {
	entries, ok := (*kv.table.Load())[name]
	return entries, ok
}

// count returns the number of keys.
func (kv *kvConfig) count() int {
	n := 0
	for _, entries := range *kv.table.Load() {
		n += len(entries)
	}
	return n
}

// put sets the value of a key. nil means that it is on stable storage.
func (kv *kvConfig) put(namespace, key, value string) error {
	if err := errors.Join(checkName("namespace", namespace, maxKVName), checkName("key", key, maxKVName)); err != nil {
		return err
	}
	kv.mu.Lock()
	defer kv.mu.Unlock()
	table := *kv.table.Load()
	old, ok := table[namespace][key]
	if ok && old == value && !kv.mu.unsure {
		return nil
	}
	cost := kv.mu.cost + kvCost(key, value)
	if ok {
		cost -= kvCost(key, old)
	} else if table[namespace] == nil {
		cost += len(namespace) + kvOverhead
	}
	if cost > maxKVCost {
		return fmt.Errorf("KV config would take %d bytes, the limit is %d", cost, maxKVCost)
	}
	return kv.replaceLocked(table, namespace, cost, func(entries map[string]string) { entries[key] = value })
}

// remove deletes a key. nil means that it is gone from stable storage.
func (kv *kvConfig) remove(namespace, key string) error {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	table := *kv.table.Load()
	old, ok := table[namespace][key]
	cost := kv.mu.cost
	switch {
	case ok:
		cost -= kvCost(key, old)
	case !kv.mu.unsure || table[namespace] == nil:
		return nil
	}
	return kv.replaceLocked(table, namespace, cost, func(entries map[string]string) { delete(entries, key) })
}

// replaceLocked saves table with one namespace changed, and only then shows it.
func (kv *kvConfig) replaceLocked(table kvTable, namespace string, cost int, change func(map[string]string)) error {
	next := maps.Clone(table)
	entries := make(map[string]string, len(table[namespace])+1)
	maps.Copy(entries, table[namespace])
	change(entries)
	next[namespace] = entries
	if kv.path != "" {
		data, err := encodeKV(next)
		if err != nil {
			return err
		}
		kv.mu.unsure = true
		if err := javajson.Save(kv.fsys, kv.path, data); err != nil {
			return fmt.Errorf("save KV config: %w", err)
		}
	}
	kv.mu.cost, kv.mu.unsure = cost, false
	kv.table.Store(&next)
	return nil
}

// encodeKV returns the content of the file.
func encodeKV(t kvTable) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(kvFile{t}); err != nil {
		return nil, fmt.Errorf("encode KV config: %w", err)
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}
