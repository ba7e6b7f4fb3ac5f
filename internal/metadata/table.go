package metadata

import (
	"hash/maphash"
	"iter"
	"maps"
	"sync/atomic"
)

// tableShards makes a change of a table with 100 000 names copy some 1600.
const tableShards = 64

// table is a map by name for many readers, who take no lock, and few writers,
// who copy a part of it for each change. The owner serialises writers.
type table[V any] struct {
	seed   maphash.Seed
	shards [tableShards]atomic.Pointer[map[string]V]
}

// fill replaces the content of a table that nobody reads yet.
func (t *table[V]) fill(m map[string]V) {
	t.seed = maphash.MakeSeed()
	parts := make([]map[string]V, tableShards)
	for i := range parts {
		parts[i] = make(map[string]V, len(m)/tableShards)
	}
	for name, v := range m {
		parts[t.shard(name)][name] = v
	}
	for i := range parts {
		t.shards[i].Store(&parts[i])
	}
}

func (t *table[V]) shard(name string) int {
	return int(maphash.String(t.seed, name) % tableShards)
}

func (t *table[V]) get(name string) (V, bool) {
	v, ok := (*t.shards[t.shard(name)].Load())[name]
	return v, ok
}

// change applies fn to a copy of the part that name belongs to.
func (t *table[V]) change(name string, fn func(map[string]V)) {
	p := &t.shards[t.shard(name)]
	m := maps.Clone(*p.Load())
	fn(m)
	p.Store(&m)
}

func (t *table[V]) set(name string, v V) {
	t.change(name, func(m map[string]V) { m[name] = v })
}

func (t *table[V]) remove(name string) {
	t.change(name, func(m map[string]V) { delete(m, name) })
}

// all yields the content, in no order; one moment's only while no writer runs.
func (t *table[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for i := range t.shards {
			for name, v := range *t.shards[i].Load() {
				if !yield(name, v) {
					return
				}
			}
		}
	}
}

func (t *table[V]) len() int {
	n := 0
	for i := range t.shards {
		n += len(*t.shards[i].Load())
	}
	return n
}

// collect returns the content as a map of its own.
func (t *table[V]) collect() map[string]V {
	m := make(map[string]V, t.len())
	maps.Insert(m, t.all())
	return m
}
