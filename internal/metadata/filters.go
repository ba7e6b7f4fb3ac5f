package metadata

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/internal/sqlfilter"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/remoting"
)

// Bounds of the filters that one broker keeps. Where one is reached, those that
// have been dead longest make room.
const (
	MaxFilters = 1 << 16
	// MaxExpressions bounds all expressions together, in bytes. Compiled they
	// take some fifty times as much.
	MaxExpressions = 16 << 20
)

const (
	// deadFor is how long a filter is kept after its group has gone
	// (upstream: filterDataCleanTimeSpan): with it the group finds the bit maps
	// of records stored meanwhile.
	deadFor = 24 * 60 * 60 * 1000 // ms
	// deadAtLoad is how long ago a group that was alive when the file was
	// written is taken to have gone.
	deadAtLoad = 30 * 1000 // ms
)

// A Filter is the expression by which a group chooses messages of a topic
// (upstream: ConsumerFilterData). It is immutable: a change makes another one.
type Filter struct {
	Topic, Group     string
	Expression, Type string
	// Expr is Expression compiled; nil if it came from a file and does not
	// compile.
	Expr *sqlfilter.Expr
	// ClientVersion is the version of the subscription, ms or ns.
	ClientVersion int64
	// BornTime is when the expression was registered, ms since 1970. Bit maps
	// of records that were stored earlier know nothing of it.
	BornTime int64
	// DeadTime is when the group left, ms since 1970; 0 while it is there.
	DeadTime int64
	// Positions are the group's bits in bit maps.
	Positions []int

	unknown unknown
}

// Dead reports whether the group has gone.
func (f *Filter) Dead() bool { return f.DeadTime != 0 }

// Covers reports whether the bit map of a record stored at storeTime knows the
// filter (upstream: isMsgInLive).
func (f *Filter) Covers(storeTime int64) bool { return storeTime > f.BornTime }

// Filters are the SQL filters of a broker's consumer groups, the content of
// consumerFilter.json (upstream: ConsumerFilterManager).
type Filters struct {
	file  file
	bloom sqlfilter.Bloom
	now   func() int64 // ms since 1970
	// table has the filters of each topic, sorted by group.
	table table[[]*Filter]

	// mu serialises changes. It is not held while a file is written.
	mu struct {
		sync.Mutex
		count int // filters
		bytes int // of their expressions
	}
	kept unknown // not changed after opening
}

// OpenFilters reads consumerFilter.json in dir, the directory config of a
// store. All filters in it are dead until their groups register again. If it
// was written with other parameters of the Bloom filter it is worth nothing:
// that is logged, and the next Save begins anew.
func OpenFilters(fsys vfs.FS, dir string, logger *slog.Logger) (*Filters, error) {
	bloom, err := sqlfilter.NewBloom(sqlfilter.DefaultErrorRate, sqlfilter.DefaultExpectedGroups)
	if err != nil {
		return nil, err
	}
	f := &Filters{bloom: bloom, now: nowMillis}
	f.file.init(fsys, dir, "consumerFilter.json", logger)
	topics := make(map[string][]*Filter)
	err = load(&f.file, func(c filtersContent) {
		f.kept = c.kept
		if why := c.misfit(bloom); why != "" {
			f.file.logger.Error("filters in the file are discarded, they were made with other parameters of the Bloom filter",
				"file", f.file.path, "filters", len(c.filters), "reason", why)
			f.file.changes.Add(1)
			return
		}
		for _, e := range c.filters {
			f.revive(e)
			topics[e.Topic] = append(topics[e.Topic], e)
			f.mu.count++
			f.mu.bytes += len(e.Expression)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, list := range topics {
		slices.SortFunc(list, byGroup)
	}
	f.table.fill(topics)
	return f, nil
}

// revive makes a usable filter of one from the file.
func (f *Filters) revive(e *Filter) {
	if !e.Dead() {
		e.DeadTime = max(e.BornTime, f.now()-deadAtLoad, 1)
		f.file.changes.Add(1)
	}
	var err error
	if e.Expr, err = compile(e.Type, e.Expression); err != nil {
		f.file.logger.Warn("filter in the file does not compile", "file", f.file.path, "topic", e.Topic, "group", e.Group, "err", err)
	}
}

func byGroup(a, b *Filter) int { return strings.Compare(a.Group, b.Group) }

// compile compiles an expression that is not about tags.
func compile(typ, expression string) (*sqlfilter.Expr, error) {
	if typ != remoting.ExpressionSQL92 {
		return nil, fmt.Errorf("expression type %.40q is not known", typ)
	}
	return sqlfilter.Compile(expression)
}

// Bloom returns the Bloom filter that positions and bit maps belong to.
func (f *Filters) Bloom() sqlfilter.Bloom { return f.bloom }

// Get returns the filter of a group on a topic. It takes no lock.
func (f *Filters) Get(topic, group string) (*Filter, bool) {
	list, _ := f.table.get(topic)
	i, ok := slices.BinarySearchFunc(list, group, func(e *Filter, group string) int { return strings.Compare(e.Group, group) })
	if !ok {
		return nil, false
	}
	return list[i], true
}

// OnTopic returns all filters on a topic, dead ones included, by group. It
// takes no lock; the slice is shared.
func (f *Filters) OnTopic(topic string) []*Filter {
	list, _ := f.table.get(topic)
	return list
}

// OfGroup returns all filters of a group, dead ones included, by topic.
func (f *Filters) OfGroup(group string) []*Filter {
	var found []*Filter
	for topic := range f.table.all() {
		if e, ok := f.Get(topic, group); ok {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *Filter) int { return strings.Compare(a.Topic, b.Topic) })
	return found
}

// Register takes what a group subscribes to now. Expressions that are not about
// tags become its filters; the group's other filters die. As long as a filter
// is alive only a newer subscription changes it, for the group's members need
// not have heard of the latest one all at once. The error joins those of
// expressions that are not filters now: a *sqlfilter.SyntaxError, an unknown
// type, or ErrFull.
func (f *Filters) Register(group string, subscriptions []remoting.Subscription) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	topics := make(map[string]bool, len(subscriptions))
	for i := range subscriptions {
		s := &subscriptions[i]
		if s.ExpressionType == remoting.ExpressionTag || s.ExpressionType == "" || s.SubString == "" {
			continue
		}
		topics[s.Topic] = true
		if err := f.registerLocked(group, s); err != nil {
			errs = append(errs, fmt.Errorf("filter of group %s on topic %s: %w", group, s.Topic, err))
		}
	}
	if f.mu.count > 0 {
		f.dieLocked(func(e *Filter) bool { return e.Group == group && !topics[e.Topic] })
	}
	return errors.Join(errs...)
}

func (f *Filters) registerLocked(group string, s *remoting.Subscription) error {
	old, known := f.Get(s.Topic, group)
	if known && !old.Dead() && s.SubVersion <= old.ClientVersion {
		return nil
	}
	if known && old.Expr != nil && old.Expression == s.SubString && old.Type == s.ExpressionType {
		e := *old
		e.ClientVersion, e.DeadTime = s.SubVersion, 0
		f.putLocked(&e)
		return nil
	}
	if !servable(s.Topic) || !isPlain(group) || group == "" {
		return errors.New("the topic or the group has no valid name")
	}
	expr, err := compile(s.ExpressionType, s.SubString)
	if known {
		// Whatever comes of it, pulls must not go on with the old expression.
		f.removeLocked(s.Topic, old)
	}
	if err != nil {
		return err
	}
	if !f.makeRoomLocked(len(s.SubString)) {
		return ErrFull
	}
	f.putLocked(&Filter{
		Topic: s.Topic, Group: group, Expression: s.SubString, Type: s.ExpressionType, Expr: expr,
		ClientVersion: s.SubVersion, BornTime: f.now(), Positions: f.bloom.Positions(group, s.Topic),
	})
	return nil
}

// putLocked adds a filter or replaces one.
func (f *Filters) putLocked(e *Filter) {
	list := slices.Clone(f.OnTopic(e.Topic))
	i, exists := slices.BinarySearchFunc(list, e, byGroup)
	if exists {
		f.mu.bytes -= len(list[i].Expression)
		list[i] = e
	} else {
		list = slices.Insert(list, i, e)
		f.mu.count++
	}
	f.mu.bytes += len(e.Expression)
	f.table.set(e.Topic, list)
	f.file.changes.Add(1)
}

// makeRoomLocked reports whether one more filter may be kept. If need be the
// filters that have been dead longest are dropped, a quarter of the dead ones
// at a time.
func (f *Filters) makeRoomLocked(bytes int) bool {
	fits := func() bool { return f.mu.count < MaxFilters && f.mu.bytes+bytes <= MaxExpressions }
	for !fits() {
		var dead []int64
		for _, list := range f.table.all() {
			for _, e := range list {
				if e.Dead() {
					dead = append(dead, e.DeadTime)
				}
			}
		}
		if len(dead) == 0 {
			return false
		}
		slices.Sort(dead)
		limit := dead[len(dead)/4]
		f.forgetLocked(limit)
	}
	return true
}

// Unregister lets a group's filters die: its last member has gone.
func (f *Filters) Unregister(group string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dieLocked(func(e *Filter) bool { return e.Group == group })
}

func (f *Filters) dieLocked(match func(*Filter) bool) {
	now := f.now()
	f.replaceLocked(func(e *Filter) *Filter {
		if e.Dead() || !match(e) {
			return e
		}
		c := *e
		c.DeadTime = max(now, 1)
		return &c
	})
}

// forgetLocked removes the filters that have been dead since limit or longer.
func (f *Filters) forgetLocked(limit int64) {
	f.replaceLocked(func(e *Filter) *Filter {
		if e.Dead() && e.DeadTime <= limit {
			return nil
		}
		return e
	})
}

// removeLocked removes one filter of a topic.
func (f *Filters) removeLocked(topic string, e *Filter) {
	list := slices.DeleteFunc(slices.Clone(f.OnTopic(topic)), func(x *Filter) bool { return x == e })
	f.setLocked(topic, list)
	f.mu.count--
	f.mu.bytes -= len(e.Expression)
	f.file.changes.Add(1)
}

func (f *Filters) setLocked(topic string, list []*Filter) {
	if len(list) == 0 {
		f.table.remove(topic)
	} else {
		f.table.set(topic, list)
	}
}

// replaceLocked puts what fn returns in the place of each filter, nothing for
// nil.
func (f *Filters) replaceLocked(fn func(*Filter) *Filter) {
	for topic, list := range f.table.all() { // changes make copies of what is walked over
		var replaced []*Filter // nil: all of list stays
		for i, e := range list {
			r := fn(e)
			if r != e && replaced == nil {
				replaced = append(make([]*Filter, 0, len(list)), list[:i]...)
			}
			if r == nil {
				f.mu.count--
				f.mu.bytes -= len(e.Expression)
			} else if replaced != nil {
				replaced = append(replaced, r)
			}
		}
		if replaced != nil {
			f.setLocked(topic, replaced)
			f.file.changes.Add(1)
		}
	}
}

// Len is the number of filters, dead ones included.
func (f *Filters) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.count
}

// Changes counts the changes of filters since they were opened.
func (f *Filters) Changes() uint64 { return f.file.changes.Load() }

// Save forgets filters that have been dead for a day and writes
// consumerFilter.json if there were changes since the last Save.
func (f *Filters) Save() error {
	f.mu.Lock()
	oldest := f.now() - deadFor
	f.forgetLocked(oldest)
	f.mu.Unlock()
	return f.file.save(f.encode)
}
