package metadata

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Defaults says which topics a broker has from the start (upstream:
// TopicConfigManager.init). What the file says of such a topic goes before.
type Defaults struct {
	ClusterName, BrokerName string

	AutoCreateTopic       bool   // there is TBW102
	DefaultTopicQueueNums int32  // of TBW102; 0 means 8
	ClusterTopic          bool   // the topic named like the cluster can be read and written
	BrokerTopic           bool   // the same for the broker's
	ReviveQueueNums       int32  // of the topic for pop consumption; 0 means 8
	TraceTopic            string // "": none
}

// Topics are the topics of a broker and their configuration, the content of
// topics.json (upstream: TopicConfigManager).
type Topics struct {
	file   file
	table  table[*topicEntry]
	system map[string]bool // names, not changed after opening

	// mu serialises changes. It is not held while a file is written.
	mu      sync.Mutex
	version remoting.DataVersion // guarded by mu
	kept    topicsKept           // not changed after opening
}

// topicEntry is immutable.
type topicEntry struct {
	config  remoting.TopicConfig
	unknown unknown
}

// OpenTopics reads topics.json in dir, the directory config of a store, and
// adds the topics that every broker has.
func OpenTopics(fsys vfs.FS, dir string, d Defaults, logger *slog.Logger) (*Topics, error) {
	t := &Topics{system: make(map[string]bool)}
	t.file.init(fsys, dir, "topics.json", logger)
	builtIn := d.topics()
	entries := make(map[string]*topicEntry, len(builtIn))
	for _, name := range systemTopics {
		t.system[name] = true
	}
	for _, config := range builtIn {
		t.system[config.TopicName] = true
		entries[config.TopicName] = &topicEntry{config: config}
	}
	added := len(entries)
	t.version.Timestamp = nowMillis()
	err := load(&t.file, func(c topicsContent) {
		for name, e := range c.entries {
			if entries[name] != nil {
				added--
			}
			entries[name] = e
		}
		t.version, t.kept = c.version, c.kept
	})
	if err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(t.kept.unserved) {
		t.file.logger.Error("topic in the file cannot be served", "file", t.file.path, "topic", name, "err", t.kept.unserved[name].err)
	}
	t.table.fill(entries)
	if added > 0 {
		t.changedLocked() // nobody else has t yet
	}
	return t, nil
}

// topics are the configurations of built-in topics.
func (d Defaults) topics() []remoting.TopicConfig {
	const readWrite = remoting.PermRead | remoting.PermWrite
	inherit := func(usable bool) int32 {
		if usable {
			return readWrite | remoting.PermInherit
		}
		return remoting.PermInherit
	}
	orEight := func(n int32) int32 {
		if n <= 0 {
			return 8
		}
		return min(n, MaxQueueNums)
	}
	list := []remoting.TopicConfig{
		newTopic(SelfTestTopic, 1, readWrite),
		newTopic(BenchmarkTopic, 1024, readWrite),
		newTopic(d.ClusterName, 16, inherit(d.ClusterTopic)),
		newTopic(d.BrokerName, 1, inherit(d.BrokerTopic)),
		newTopic(OffsetMovedTopic, 1, readWrite),
		newTopic(message.ScheduleTopic, 18, readWrite),
		newTopic(d.ClusterName+replySuffix, 1, readWrite),
		newTopic(revivePrefix+d.ClusterName, orEight(d.ReviveQueueNums), readWrite),
		newTopic(syncMemberPrefix+d.BrokerName, 1, remoting.PermInherit),
		newTopic(message.HalfTopic, 1, readWrite),
		newTopic(message.OpHalfTopic, 1, readWrite),
		newTopic(message.TimerTopic, 1, readWrite),
	}
	if d.AutoCreateTopic {
		list = append(list, newTopic(TemplateTopic, orEight(d.DefaultTopicQueueNums), inherit(true)))
	}
	if d.TraceTopic != "" {
		list = append(list, newTopic(d.TraceTopic, 1, readWrite))
	}
	return list
}

func newTopic(name string, queues, perm int32) remoting.TopicConfig {
	return remoting.TopicConfig{
		TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: perm,
		TopicFilterType: remoting.FilterTypeSingle, Attributes: map[string]string{},
	}
}

// changedLocked makes the next version. The change it is for has been made.
func (t *Topics) changedLocked() {
	advance(&t.version)
	t.file.changes.Add(1)
}

// Get returns the configuration of a topic. It takes no lock and allocates
// nothing.
func (t *Topics) Get(name string) (*remoting.TopicConfig, bool) {
	e, ok := t.table.get(name)
	if !ok {
		return nil, false
	}
	return &e.config, true
}

// IsBatch reports whether a topic has batch consume queues; see
// gantry.Options.IsBatchTopic.
func (t *Topics) IsBatch(name string) bool {
	e, ok := t.table.get(name)
	return ok && e.config.Attributes[AttrQueueType] == QueueTypeBatch
}

// IsSystem reports whether the topic is one of the broker's own, which clients
// cannot create, change or delete.
func (t *Topics) IsSystem(name string) bool {
	return t.system[name] || strings.HasPrefix(name, message.SystemPrefix)
}

// System returns the names of the broker's own topics, sorted: the answer to
// 305. Not all of them exist.
func (t *Topics) System() []string { return slices.Sorted(maps.Keys(t.system)) }

// Len is the number of topics.
func (t *Topics) Len() int { return t.table.len() }

// Names returns the names of all topics, sorted.
func (t *Topics) Names() []string { return sortedKeys(t.table.collect()) }

// Version is the version of the table. It differs after every change.
func (t *Topics) Version() remoting.DataVersion {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version
}

// Table returns all topics and the version that they belong to, for 21 and
// 103. The map is the caller's; the attributes in it are not.
func (t *Topics) Table() remoting.TopicConfigTable {
	entries, version := t.snapshot()
	topics := make(map[string]remoting.TopicConfig, len(entries))
	for name, e := range entries {
		topics[name] = e.config
	}
	return remoting.TopicConfigTable{Topics: topics, DataVersion: version}
}

func (t *Topics) snapshot() (map[string]*topicEntry, remoting.DataVersion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.collect(), t.version
}

// Update creates or changes a topic as an administrator asks for it. The
// attributes in config are changes, in the form that ParseAttributes returns
// and that bodies have; nil is none. Errors are *InvalidError or ErrFull.
func (t *Topics) Update(config remoting.TopicConfig) (*remoting.TopicConfig, error) {
	name := config.TopicName
	if err := ValidTopic(name); err != nil {
		return nil, err
	}
	switch {
	case t.IsSystem(name):
		return nil, systemConflict(name)
	case config.Perm < 0 || config.Perm >= remoting.PermPriority:
		return nil, invalid(fmt.Sprintf("perm %d is not from 0 to 7", config.Perm))
	case !validQueueNums(config.ReadQueueNums) || !validQueueNums(config.WriteQueueNums):
		return nil, invalid(fmt.Sprintf("%d read queues and %d write queues: a topic has 0 to %d", config.ReadQueueNums, config.WriteQueueNums, MaxQueueNums))
	case config.TopicFilterType != remoting.FilterTypeSingle && config.TopicFilterType != "MULTI_TAG":
		return nil, invalid(fmt.Sprintf("topicFilterType %.40q is neither SINGLE_TAG nor MULTI_TAG", config.TopicFilterType))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old, exists := t.table.get(name)
	e := &topicEntry{config: config}
	var current map[string]string
	if exists {
		e.unknown, current = old.unknown, old.config.Attributes
	} else if t.table.len() >= MaxTopics {
		return nil, fmt.Errorf("topic %s: %w", name, ErrFull)
	}
	var err error
	if e.config.Attributes, err = alter(topicAttributes, current, config.Attributes, !exists); err != nil {
		return nil, err
	}
	t.putLocked(e)
	return &e.config, nil
}

func validQueueNums(n int32) bool { return n >= 0 && n <= MaxQueueNums }

func systemConflict(topic string) error {
	return invalid("The topic[", topic, "] is conflict with system topic.")
}

func (t *Topics) putLocked(e *topicEntry) {
	t.table.set(e.config.TopicName, e)
	t.changedLocked()
}

// Delete removes a topic and reports whether there was one. The error for a
// topic of the broker's own is an *InvalidError.
func (t *Topics) Delete(name string) (bool, error) {
	if t.IsSystem(name) {
		return false, systemConflict(name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.table.get(name); !ok {
		return false, nil
	}
	t.table.remove(name)
	t.changedLocked()
	return true, nil
}

// SetOrder marks as ordered those of the topics in order that exist, as the
// answer to a registration asks for; nothing takes the mark away but Update.
func (t *Topics) SetOrder(order map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := false
	for name := range order {
		if old, ok := t.table.get(name); ok && !old.config.Order {
			t.table.set(name, old.with(func(c *remoting.TopicConfig) { c.Order = true }))
			changed = true
		}
	}
	if changed {
		t.changedLocked()
	}
}

// with returns a changed copy of an entry.
func (e *topicEntry) with(change func(*remoting.TopicConfig)) *topicEntry {
	c := *e
	change(&c.config)
	return &c
}

// Changes counts the changes of the table since it was opened.
func (t *Topics) Changes() uint64 { return t.file.changes.Load() }

// Save writes topics.json if there were changes since the last Save.
func (t *Topics) Save() error { return t.file.save(t.encode) }

// notFound says that a topic neither exists nor can be created.
func notFound(topic, why string) error {
	return fmt.Errorf("topic %.255q is not created, %s: %w", topic, why, base.ErrNotFound)
}
