package membership

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
	"pgregory.net/rapid"
)

// The model of a registry: every membership is an entry of a list, every
// question looks at all of them.

type modelMember struct {
	group, id string
	conn      int
	seen      time.Time
}

type modelGroup struct {
	topics      map[string]int64 // versions
	fingerprint int32
	broadcast   bool
	changed     moment // when its members had last to be told of something
}

// A moment orders what happens at the same time too, in different steps.
type moment struct {
	step int
	at   time.Time
}

func (m moment) before(o moment) bool {
	return m.step < o.step || m.step == o.step && m.at.Before(o.at)
}

type model struct {
	members []modelMember
	groups  map[string]*modelGroup
	dead    map[int]bool
	step    int
}

func (m *model) ids(group string) []string {
	var ids []string
	for _, e := range m.members {
		if e.group == group {
			ids = append(ids, e.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// drop removes the memberships that gone names and returns their connections.
func (m *model) drop(now time.Time, gone func(modelMember) bool) (conns []int) {
	m.members = slices.DeleteFunc(m.members, func(e modelMember) bool {
		if !gone(e) {
			return false
		}
		conns = append(conns, e.conn)
		m.change(e.group, now)
		return true
	})
	for group := range m.groups {
		if len(m.ids(group)) == 0 {
			delete(m.groups, group)
		}
	}
	return conns
}

func (m *model) change(group string, now time.Time) {
	m.groups[group].changed = moment{m.step, now}
}

// heartbeat returns whether the client has to send its subscriptions.
func (m *model) heartbeat(conn int, hb *remoting.Heartbeat, now time.Time) (again bool) {
	for _, c := range hb.Consumers {
		g := m.groups[c.GroupName]
		if g == nil {
			g = &modelGroup{topics: make(map[string]int64)}
			m.groups[c.GroupName] = g
		}
		g.broadcast = c.Model == remoting.Broadcasting
		is := func(e modelMember) bool { return e.group == c.GroupName && e.id == hb.ClientID && e.conn == conn }
		if !slices.ContainsFunc(m.members, is) {
			m.change(c.GroupName, now)
		}
		m.members = slices.DeleteFunc(m.members, func(e modelMember) bool {
			return e.group == c.GroupName && (e.id == hb.ClientID || e.conn == conn)
		})
		m.members = append(m.members, modelMember{c.GroupName, hb.ClientID, conn, now})

		if hb.WithoutSub {
			again = again || g.fingerprint != hb.Fingerprint
			continue
		}
		topics := make(map[string]int64)
		for _, s := range c.Subscriptions {
			topics[s.Topic] = max(s.SubVersion, g.topics[s.Topic])
		}
		same := slices.Equal(slices.Sorted(maps.Keys(topics)), slices.Sorted(maps.Keys(g.topics)))
		if !same {
			m.change(c.GroupName, now)
		}
		g.topics = topics
		switch {
		case hb.Fingerprint != 0:
			again = again || g.fingerprint != 0 && g.fingerprint != hb.Fingerprint
			g.fingerprint = hb.Fingerprint
		case !same:
			g.fingerprint = 0
		}
	}
	return again || hb.Fingerprint == 0
}

// modelOp is one thing that happens; what does not apply is ignored.
type modelOp struct {
	Kind   string // beat, bye, close, dial, wait
	Conn   int
	Client int
	Groups []int
	Topics []int // of every group
	V      int64 // version of subscriptions
	F      int32
	No     bool // without subscriptions
	Wait   time.Duration
}

const (
	modelConns  = 4
	modelGroups = 3
)

func drawOp(t *rapid.T) modelOp {
	return modelOp{
		Kind:   rapid.SampledFrom([]string{"beat", "beat", "beat", "beat", "bye", "close", "wait"}).Draw(t, "kind"),
		Conn:   rapid.IntRange(0, modelConns-1).Draw(t, "conn"),
		Client: rapid.IntRange(0, 2).Draw(t, "client"),
		Groups: rapid.SliceOfNDistinct(rapid.IntRange(0, modelGroups-1), 1, modelGroups, rapid.ID).Draw(t, "groups"),
		Topics: rapid.SliceOfNDistinct(rapid.IntRange(0, 2), 0, 3, rapid.ID).Draw(t, "topics"),
		V:      int64(rapid.IntRange(1, 3).Draw(t, "version")),
		F:      rapid.SampledFrom([]int32{0, 0, 7, 8}).Draw(t, "fingerprint"),
		No:     rapid.IntRange(0, 3).Draw(t, "without") == 0,
		Wait:   time.Duration(rapid.SampledFrom([]int{1, 30, 99, 101, 1000, 35_000, 125_000}).Draw(t, "wait")) * time.Millisecond,
	}
}

func (op *modelOp) heartbeat() *remoting.Heartbeat {
	hb := &remoting.Heartbeat{ClientID: fmt.Sprint("client", op.Client), Fingerprint: op.F, WithoutSub: op.No}
	for _, i := range op.Groups {
		c := push(fmt.Sprint("G", i))
		if i == 2 {
			c.Model = remoting.Broadcasting
		}
		if !op.No {
			for _, k := range op.Topics {
				c.Subscriptions = append(c.Subscriptions, sub(fmt.Sprint("T", k), "*", op.V))
			}
		}
		hb.Consumers = append(hb.Consumers, c)
		hb.Producers = append(hb.Producers, remoting.ProducerData{GroupName: c.GroupName})
	}
	return hb
}

// TestModel: whatever clients do, the groups are those of the model at each
// moment; and once nothing changes any more, every member has been told since
// the last change of its group.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(drawOp), 1, 40).Draw(rt, "ops")
		var problem string
		synctest.Test(t, func(*testing.T) { problem = runModel(ops) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

type told struct {
	conn  Conn
	group string
}

// runModel returns what is wrong, or "".
func runModel(ops []modelOp) string {
	m := &model{groups: make(map[string]*modelGroup), dead: make(map[int]bool)}
	var mu sync.Mutex // for the next three: 40 is also sent at the ends of windows
	var step int
	toldAt := make(map[told]moment)
	broadcast := false
	r := New(Options{Notify: func(c Conn, group string) {
		mu.Lock()
		defer mu.Unlock()
		broadcast = broadcast || group == "G2"
		toldAt[told{c, group}] = moment{step, time.Now()}
	}})
	defer r.Close()
	setStep := func(i int) {
		mu.Lock()
		defer mu.Unlock()
		step, m.step = i, i
	}
	conns := newConns(modelConns)
	var scanned time.Duration
	start := time.Now()

	for i, op := range ops {
		c := conns[op.Conn]
		now := time.Now()
		setStep(i)
		switch op.Kind {
		case "beat":
			hb := op.heartbeat()
			resp, err := r.Heartbeat(c, remoting.LanguageGo, 1, hb)
			if m.dead[op.Conn] {
				if !errors.Is(err, base.ErrClosed) {
					return fmt.Sprintf("step %d: heartbeat on a closed connection: %v", i, err)
				}
				break
			}
			want := fmt.Sprint(m.heartbeat(op.Conn, hb, now))
			if err != nil || resp.SubChanged != want {
				return fmt.Sprintf("step %d: answer %+v, %v, want %s", i, resp, err, want)
			}
		case "bye":
			id, group := fmt.Sprint("client", op.Client), fmt.Sprint("G", op.Groups[0])
			r.Unregister(c, &remoting.UnregisterClientRequest{ClientID: id, ConsumerGroup: group, ProducerGroup: group})
			m.drop(now, func(e modelMember) bool { return e.group == group && e.id == id && e.conn == op.Conn })
		case "close":
			if !m.dead[op.Conn] {
				hangUp(r, c)
				m.dead[op.Conn] = true
				m.drop(now, func(e modelMember) bool { return e.conn == op.Conn })
			}
		case "wait":
			time.Sleep(op.Wait)
			synctest.Wait()
			for scanned+10*time.Second <= time.Since(start) {
				scanned += 10 * time.Second
				at := start.Add(scanned)
				for _, k := range m.drop(at, func(e modelMember) bool { return at.Sub(e.seen) > 120*time.Second }) {
					if !slices.ContainsFunc(m.members, func(e modelMember) bool { return e.conn == k }) {
						m.dead[k] = true
					}
				}
			}
		}
		if problem := compare(r, m, conns); problem != "" {
			return fmt.Sprintf("step %d: %s", i, problem)
		}
		if m.dead[0] && m.dead[1] && m.dead[2] && m.dead[3] {
			conns, m.dead = newConns(modelConns), make(map[int]bool)
		}
	}

	setStep(len(ops))
	time.Sleep(200 * time.Millisecond)
	synctest.Wait()
	untold := func() string {
		mu.Lock()
		defer mu.Unlock()
		if broadcast {
			return "a broadcasting group is told"
		}
		for _, e := range m.members {
			g := m.groups[e.group]
			if at, ok := toldAt[told{conns[e.conn], e.group}]; !g.broadcast && (!ok || at.before(g.changed)) {
				return fmt.Sprintf("%s in %s was told at %v, the last change was at %v", e.id, e.group, at, g.changed)
			}
		}
		return ""
	}
	if problem := untold(); problem != "" {
		return problem
	}
	for _, c := range conns {
		hangUp(r, c)
	}
	if s := r.Stats(); s != (Stats{}) {
		return fmt.Sprintf("after all connections have closed: %+v", s)
	}
	return ""
}

func compare(r *Registry, m *model, conns []*testConn) string {
	if problem := broken(r); problem != "" {
		return problem
	}
	for i := range modelGroups {
		group := fmt.Sprint("G", i)
		ids := m.ids(group)
		if got := r.Members.ClientIDs(group); !slices.Equal(got, ids) {
			return fmt.Sprintf("%s has %v, want %v", group, got, ids)
		}
		var want []string
		if g := m.groups[group]; g != nil {
			want = slices.Sorted(maps.Keys(g.topics))
			for topic, v := range g.topics {
				if s := r.Members.Subscription(group, topic); s == nil || s.Version() != v {
					return fmt.Sprintf("%s subscribes to %s with %+v, want version %d", group, topic, s, v)
				}
			}
		}
		if got := r.Members.Topics(group); !slices.Equal(got, want) {
			return fmt.Sprintf("%s subscribes to %v, want %v", group, got, want)
		}
	}
	for _, e := range m.members {
		if got, ok := r.Members.Find(e.group, e.id); !ok || got.Conn != Conn(conns[e.conn]) || !got.LastSeen.Equal(e.seen) {
			return fmt.Sprintf("%s in %s is %+v, %v", e.id, e.group, got, ok)
		}
	}
	for i, c := range conns {
		if closed(c) != m.dead[i] {
			return fmt.Sprintf("connection %d is closed: %v", i, closed(c))
		}
	}
	if s := r.Stats(); s.Consumers != len(m.members) || s.ConsumerGroups != len(m.groups) {
		return fmt.Sprintf("%+v, want %d members of %d groups", s, len(m.members), len(m.groups))
	}
	return ""
}
