package metadata

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/remoting"
)

// Names of groups that every broker has.
const (
	ToolsGroup       = "TOOLS_CONSUMER"
	TransactionGroup = "CID_RMQ_SYS_TRANS" // whose offsets are those of the transaction check

	sysGroupPrefix = "CID_RMQ_SYS_"
)

var systemGroups = []string{
	ToolsGroup, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
	"CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", TransactionGroup,
}

// Groups are the consumer groups of a broker and their configuration, the
// content of subscriptionGroup.json (upstream: SubscriptionGroupManager).
type Groups struct {
	file  file
	table table[*groupEntry]
	// forbidden are permission bits by group and topic; the maps are not
	// changed, only replaced.
	forbidden atomic.Pointer[map[string]map[string]int32]

	// mu serialises changes. It is not held while a file is written.
	mu      sync.Mutex
	version remoting.DataVersion // guarded by mu
	kept    groupsKept           // not changed after opening
}

// groupEntry is immutable.
type groupEntry struct {
	config  remoting.GroupConfig
	unknown unknown
}

// OpenGroups reads subscriptionGroup.json in dir, the directory config of a
// store, and adds the groups that every broker has.
func OpenGroups(fsys vfs.FS, dir string, logger *slog.Logger) (*Groups, error) {
	g := new(Groups)
	g.file.init(fsys, dir, "subscriptionGroup.json", logger)
	entries := make(map[string]*groupEntry)
	for _, name := range systemGroups {
		entries[name] = &groupEntry{config: newGroup(name)}
	}
	added := len(entries)
	g.version.Timestamp = nowMillis()
	forbidden := make(map[string]map[string]int32)
	err := load(&g.file, func(c groupsContent) {
		for name, e := range c.entries {
			if entries[name] != nil {
				added--
			}
			entries[name] = e
		}
		forbidden, g.version, g.kept = c.forbidden, c.version, c.kept
	})
	if err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(g.kept.unserved) {
		g.file.logger.Error("group in the file cannot be served", "file", g.file.path, "group", name, "err", g.kept.unserved[name].err)
	}
	g.table.fill(entries)
	g.forbidden.Store(&forbidden)
	if added > 0 {
		g.changedLocked() // nobody else has g yet
	}
	return g, nil
}

// newGroup is remoting.NewGroupConfig with the members that 5.x writes too.
func newGroup(name string) remoting.GroupConfig {
	c := remoting.NewGroupConfig(name)
	c.Attributes = map[string]string{}
	c.RetryPolicy = remoting.RawJSON(`{"type":"CUSTOMIZED"}`)
	return c
}

func (g *Groups) changedLocked() {
	advance(&g.version)
	g.file.changes.Add(1)
}

// Get returns the configuration of a group. It takes no lock and allocates
// nothing.
func (g *Groups) Get(name string) (*remoting.GroupConfig, bool) {
	e, ok := g.table.get(name)
	if !ok {
		return nil, false
	}
	return &e.config, true
}

// Find returns the configuration of a group and creates it with default values
// if need be: if autoCreate, or for a group of the broker's own kind. created
// says that the group is new. It returns nil if there is none: it may not be
// created, its name is not allowed or so long that its retry topic's would not
// be, or there are MaxGroups (upstream: findSubscriptionGroupConfig).
func (g *Groups) Find(name string, autoCreate bool) (_ *remoting.GroupConfig, created bool) {
	if c, ok := g.Get(name); ok {
		return c, false
	}
	if !autoCreate && !IsSystemGroup(name) || name == "" || ValidTopic(RetryTopic(name)) != nil {
		return nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old, ok := g.table.get(name); ok {
		return &old.config, false
	}
	if g.table.len() >= MaxGroups {
		g.file.logger.Warn("group is not created, there are too many", "group", name, "groups", MaxGroups)
		return nil, false
	}
	e := &groupEntry{config: newGroup(name)}
	g.putLocked(e)
	return &e.config, true
}

func (g *Groups) putLocked(e *groupEntry) {
	g.table.set(e.config.GroupName, e)
	g.changedLocked()
}

// Update creates or changes a group as an administrator asks for it. The
// attributes in config are changes, as for Topics.Update. Errors are
// *InvalidError or ErrFull.
func (g *Groups) Update(config remoting.GroupConfig) (*remoting.GroupConfig, error) {
	name := config.GroupName
	if _, ok := g.table.get(name); !ok { // one that Find created may have a longer name
		if err := ValidGroup(name); err != nil {
			return nil, err
		}
	}
	if config.RetryQueueNums < 0 || config.RetryQueueNums > MaxQueueNums {
		return nil, invalid(fmt.Sprintf("retryQueueNums %d is not from 0 to %d", config.RetryQueueNums, MaxQueueNums))
	}
	var err error
	if config.RetryPolicy, err = passedOn("groupRetryPolicy", config.RetryPolicy, '{'); err != nil {
		return nil, err
	}
	if config.SubscriptionDataSet, err = passedOn("subscriptionDataSet", config.SubscriptionDataSet, '['); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old, exists := g.table.get(name)
	e := &groupEntry{config: config}
	var current map[string]string
	if exists {
		e.unknown, current = old.unknown, old.config.Attributes
	} else if g.table.len() >= MaxGroups {
		return nil, fmt.Errorf("group %s: %w", name, ErrFull)
	}
	if e.config.Attributes, err = alter(groupAttributes, current, config.Attributes, !exists); err != nil {
		return nil, err
	}
	g.putLocked(e)
	return &e.config, nil
}

// IsSystemGroup reports whether a group is of the broker's own kind.
func IsSystemGroup(name string) bool { return strings.HasPrefix(name, sysGroupPrefix) }

// Bounds of JSON that is passed on. They keep the file readable.
const (
	maxPassedOn      = 64 << 10
	maxPassedOnDepth = 16
)

// passedOn returns JSON from a request in the form in which it may stand in a
// file: other parsers of JSON are less lenient than that of requests. first is
// the byte that it begins with.
func passedOn(name string, v remoting.RawJSON, first byte) (remoting.RawJSON, error) {
	if v == nil {
		return nil, nil
	}
	if len(v) > maxPassedOn {
		return nil, invalid(fmt.Sprintf("%s has %d bytes, %d are allowed", name, len(v), maxPassedOn))
	}
	std, err := javajson.Normalize(v)
	if err != nil || v[0] != first || !json.Valid(std) || depthOf(std) > maxPassedOnDepth {
		return nil, invalid(name, " is not the expected JSON")
	}
	return append(remoting.RawJSON(nil), std...), nil
}

// depthOf returns how deep objects and lists of well-formed JSON are nested.
func depthOf(v []byte) (deepest int) {
	depth := 0
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '"':
			i = stringEnd(v, i) - 1
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}

// Delete removes a group, with what it is forbidden, and reports whether there
// was one.
func (g *Groups) Delete(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.table.get(name)
	if ok {
		g.table.remove(name)
	}
	old := *g.forbidden.Load()
	if _, has := old[name]; has {
		m := maps.Clone(old)
		delete(m, name)
		g.forbidden.Store(&m)
		ok = true
	}
	if ok {
		g.changedLocked()
	}
	return ok
}

// IsForbidden reports whether a group may not do something with a topic: perm
// is remoting.PermRead for pulling. It takes no lock (upstream: getForbidden).
func (g *Groups) IsForbidden(group, topic string, perm int32) bool {
	// Upstream numbers the bits as those of permissions are; a negative value
	// means nothing.
	bits := (*g.forbidden.Load())[group][topic]
	return bits > 0 && bits&perm != 0
}

// Len is the number of groups.
func (g *Groups) Len() int { return g.table.len() }

// Names returns the names of all groups, sorted.
func (g *Groups) Names() []string { return sortedKeys(g.table.collect()) }

// Version is the version of the table. It differs after every change.
func (g *Groups) Version() remoting.DataVersion {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.version
}

// Table returns all groups and the version that they belong to, for 201. The
// map is the caller's; what is in the configurations is not.
func (g *Groups) Table() remoting.GroupConfigTable {
	entries, forbidden, version := g.snapshot()
	groups := make(map[string]remoting.GroupConfig, len(entries))
	for name, e := range entries {
		groups[name] = e.config
	}
	return remoting.GroupConfigTable{Groups: groups, ForbiddenTable: appendForbidden(nil, forbidden), DataVersion: version}
}

func (g *Groups) snapshot() (map[string]*groupEntry, map[string]map[string]int32, remoting.DataVersion) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table.collect(), *g.forbidden.Load(), g.version
}

// Changes counts the changes of the table since it was opened.
func (g *Groups) Changes() uint64 { return g.file.changes.Load() }

// Save writes subscriptionGroup.json if there were changes since the last Save.
func (g *Groups) Save() error { return g.file.save(g.encode) }
