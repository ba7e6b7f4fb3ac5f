package broker

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// stats count what the broker does, per topic and per group (upstream:
// BrokerStatsManager). What is counted on the way of a message costs a lookup
// and some atomic additions; rates are computed from samples that a loop takes.
type stats struct {
	b *Broker

	puts, gets, missed counter // messages of the whole broker; pulls without one
	failedPuts         atomic.Int64
	mornings           mornings

	pulled atomic.Int64 // entries in the pulled of all groups

	mu     sync.RWMutex
	topics map[string]*topicStats
	groups map[groupTopic]*groupStats
	// otherTopics and otherGroups are those beyond maxCounted.
	otherTopics topicStats
	otherGroups groupStats
}

type groupTopic struct{ group, topic string }

type topicStats struct {
	puts, bytes counter
	in          [kinds]incoming
	// of transactions: how many ended in which way, and how long it took to
	// commit them.
	committed, rolledBack atomic.Int64
	finish                tally
}

type groupStats struct {
	gets, bytes, sentBack counter
	dead                  atomic.Int64 // that went to the dead letters

	mu     sync.Mutex
	gone   bool            // nobody asks any more
	pulled map[int32]int64 // queue -> the offset up to which messages were given out
}

// Bounds of what is counted by name, which is the clients' to choose: the samples
// of a topic or of a group at a topic take some 3 KiB. What comes beyond is
// counted together, and shown nowhere.
const (
	maxCounted = 1 << 14
	maxPulled  = 1 << 18 // queues with an offset of pulls, of all groups
)

// counter sums up values. times is how many values there were.
type counter struct {
	sum, times atomic.Int64

	mu                sync.Mutex
	minute, hour, day []sample // the newest last
}

type sample struct {
	at         int64 // ms
	sum, times int64
}

// Samples: every ten seconds for a minute, every ten minutes for an hour, every
// hour for a day, as upstream.
const (
	samplePause   = 10 * time.Second
	minuteSamples = 7
	hourSamples   = 7
	hourEvery     = 60 // of the ten-second samples
	daySamples    = 25
	dayEvery      = 360
)

func (c *counter) add(n int64) {
	c.sum.Add(n)
	c.times.Add(1)
}

// sample takes the n-th sample.
func (c *counter) sample(at int64, n int) {
	s := sample{at, c.sum.Load(), c.times.Load()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.minute) == 0 && s.times > 0 { // it began since the last samples were taken
		before := sample{at: at - samplePause.Milliseconds()}
		c.minute, c.hour, c.day = []sample{before}, []sample{before}, []sample{before}
	}
	c.minute = push(c.minute, s, minuteSamples)
	if n%hourEvery == 0 {
		c.hour = push(c.hour, s, hourSamples)
	}
	if n%dayEvery == 0 {
		c.day = push(c.day, s, daySamples)
	}
}

func push(ring []sample, s sample, most int) []sample {
	if len(ring) == most {
		copy(ring, ring[1:])
		ring = ring[:most-1]
	}
	return append(ring, s)
}

// item is what happened between the first and the last of some samples.
func item(ring []sample) remoting.StatsItem {
	if len(ring) < 2 {
		return remoting.StatsItem{}
	}
	first, last := ring[0], ring[len(ring)-1]
	it := remoting.StatsItem{Sum: last.sum - first.sum}
	if d := last.at - first.at; d > 0 {
		it.TPS = float64(it.Sum) * 1000 / float64(d)
	}
	if n := last.times - first.times; n > 0 {
		it.AvgPT = float64(it.Sum) / float64(n)
	}
	return it
}

func (c *counter) data() *remoting.StatsData {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &remoting.StatsData{Minute: item(c.minute), Hour: item(c.hour), Day: item(c.day)}
}

// rates are per second over the last ten seconds, the last minute and the last
// ten minutes or what there is of them.
func (c *counter) rates() [3]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.minute
	if len(m) == 0 {
		return [3]float64{}
	}
	long := m
	if len(c.hour) > 0 {
		long = []sample{c.hour[len(c.hour)-1], m[len(m)-1]}
		if long[0].at == long[1].at && len(c.hour) > 1 {
			long[0] = c.hour[len(c.hour)-2]
		}
	}
	return [3]float64{item(m[max(0, len(m)-2):]).TPS, item(m).TPS, item(long).TPS}
}

// mornings are the sums as they stood when the last days began (upstream:
// BrokerStats): tools show the messages of today and of yesterday by them.
type mornings struct {
	mu               sync.Mutex
	date             string // of today
	today, yesterday struct{ puts, gets int64 }
}

// look notes that a day has begun if it has since the last look.
func (m *mornings) look(now time.Time, puts, gets int64) {
	date := now.Format(time.DateOnly)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.date == date {
		return
	}
	if m.date != "" {
		m.yesterday = m.today
		m.today.puts, m.today.gets = puts, gets
	}
	m.date = date
}

func newStats(b *Broker) *stats {
	return &stats{b: b, topics: make(map[string]*topicStats), groups: make(map[groupTopic]*groupStats)}
}

func (s *stats) topic(name string) *topicStats {
	s.mu.RLock()
	t := s.topics[name]
	s.mu.RUnlock()
	if t != nil {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t = s.topics[name]; t == nil {
		if len(s.topics) >= maxCounted {
			return &s.otherTopics
		}
		t = new(topicStats)
		s.topics[name] = t
	}
	return t
}

func (s *stats) group(group, topic string) *groupStats {
	k := groupTopic{group, topic}
	s.mu.RLock()
	g := s.groups[k]
	s.mu.RUnlock()
	if g != nil {
		return g
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g = s.groups[k]; g == nil {
		if len(s.groups) >= maxCounted {
			return &s.otherGroups
		}
		g = new(groupStats)
		s.groups[k] = g
	}
	return g
}

// put counts n messages of size bytes in all for a topic, and the code of the
// answer. n is 0 when nothing was stored.
func (s *stats) put(topic string, n, size int, code int32) {
	if n == 0 {
		s.failedPuts.Add(1)
		return
	}
	t := s.topic(topic)
	t.puts.add(int64(n))
	t.bytes.add(int64(size))
	s.puts.add(int64(n))
	if code != remoting.CodeSuccess {
		s.failedPuts.Add(1)
	}
}

// got counts n messages of size bytes in all that a group got.
func (s *stats) got(group, topic string, n, size int) {
	g := s.group(group, topic)
	g.gets.add(int64(n))
	g.bytes.add(int64(size))
	s.gets.add(int64(n))
}

// pulledTo notes up to which offset a group was given the messages of a queue.
func (s *stats) pulledTo(group, topic string, queueID int32, next int64) {
	g := s.group(group, topic)
	if g == &s.otherGroups {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.pulled[queueID]; !ok {
		if g.gone || s.pulled.Load() >= maxPulled {
			return
		}
		s.pulled.Add(1)
		if g.pulled == nil {
			g.pulled = make(map[int32]int64)
		}
	}
	g.pulled[queueID] = next
}

// pulledUpTo is what pulledTo noted, 0 when nothing was given out since the
// start.
func (s *stats) pulledUpTo(group, topic string, queueID int32) int64 {
	s.mu.RLock()
	g := s.groups[groupTopic{group, topic}]
	s.mu.RUnlock()
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pulled[queueID]
}

// queuesGone forgets how far the queues of a topic were given out.
func (s *stats) queuesGone(topic string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for k, g := range s.groups {
		if k.topic == topic {
			g.mu.Lock()
			s.pulled.Add(-int64(len(g.pulled)))
			g.pulled = nil
			g.mu.Unlock()
		}
	}
}

// miss counts a pull that found nothing.
func (s *stats) miss() { s.missed.add(1) }

// sentBack counts a message that a group wants again later.
func (s *stats) sentBack(group, topic string) { s.group(group, topic).sentBack.add(1) }

// loop takes the samples. What belongs to topics and groups that are gone is
// forgotten on the way.
func (s *stats) loop(ctx context.Context) {
	t := time.NewTicker(samplePause)
	defer t.Stop()
	for n := 0; ; n++ {
		s.sample(n)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *stats) sample(n int) {
	now := s.b.now()
	s.mornings.look(time.UnixMilli(now), s.puts.sum.Load(), s.gets.sum.Load())
	s.mu.Lock()
	maps.DeleteFunc(s.topics, func(name string, _ *topicStats) bool { _, ok := s.b.topics.Get(name); return !ok })
	maps.DeleteFunc(s.groups, func(k groupTopic, g *groupStats) bool {
		_, group := s.b.groups.Get(k.group)
		_, topic := s.b.topics.Get(k.topic)
		if group && topic {
			return false
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		s.pulled.Add(-int64(len(g.pulled)))
		g.gone, g.pulled = true, nil
		return true
	})
	counters := []*counter{&s.puts, &s.gets, &s.missed}
	for _, t := range s.topics {
		counters = append(counters, &t.puts, &t.bytes)
	}
	for _, g := range s.groups {
		counters = append(counters, &g.gets, &g.bytes, &g.sentBack)
	}
	s.mu.Unlock()
	for _, c := range counters {
		c.sample(now, n)
	}
}

// putRate and getRate are messages per second over the last minute.
func (s *stats) putRate(topic string) float64 {
	s.mu.RLock()
	t := s.topics[topic]
	s.mu.RUnlock()
	if t == nil {
		return 0
	}
	return t.puts.rates()[1]
}

func (s *stats) getRate(group, topic string) float64 {
	s.mu.RLock()
	g := s.groups[groupTopic{group, topic}]
	s.mu.RUnlock()
	if g == nil {
		return 0
	}
	return g.gets.rates()[1]
}

// snapshot returns all topics and groups that are counted.
func (s *stats) snapshot() (map[string]*topicStats, map[groupTopic]*groupStats) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.topics), maps.Clone(s.groups)
}
