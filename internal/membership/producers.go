package membership

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
)

// Producers are the producer groups (upstream: ProducerManager).
type Producers struct {
	mu struct {
		sync.RWMutex
		roster[producerGroup]

		// byClient has the connection over which a client last sent a
		// heartbeat with producers.
		byClient map[string]*holder[producerGroup]
	}
}

type producerGroup struct {
	next atomic.Uint32 // whose turn it is to be picked
}

func newProducers(opts *Options) *Producers {
	ps := new(Producers)
	ps.mu.roster = newRoster[producerGroup](Producer, opts.MaxBytes, opts.MaxConnBytes)
	ps.mu.byClient = make(map[string]*holder[producerGroup])
	ps.mu.left = ps.leftLocked
	return ps
}

// leftLocked forgets where a client is when its last membership ends there.
func (ps *Producers) leftLocked(m *member[producerGroup]) {
	h := m.holder
	if len(h.members) == 0 && ps.mu.byClient[h.client.ID] == h {
		delete(ps.mu.byClient, h.client.ID)
	}
}

func (ps *Producers) check(conn Conn, hb *remoting.Heartbeat) error {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return ps.checkLocked(conn, &Client{ID: hb.ClientID}, hb.Producers)
}

func (ps *Producers) checkLocked(conn Conn, c *Client, producers []remoting.ProducerData) error {
	var groups int
	var more int64
	for i := range producers {
		if cost, ok := ps.mu.newcomer(conn, c, producers[i].GroupName); ok {
			groups++
			more += cost
		}
	}
	if groups == 0 {
		return nil
	}
	return ps.mu.room(conn, "producerDataSet", groups, more)
}

// heartbeat takes in what a client says of its producers. The errors are those
// of Members.heartbeat.
func (ps *Producers) heartbeat(conn Conn, c Client, producers []remoting.ProducerData, now time.Time) (changes []Change, err error) {
	if len(producers) == 0 {
		return nil, nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if closed(conn) {
		return nil, base.ErrClosed
	}
	if err := ps.checkLocked(conn, &c, producers); err != nil {
		return nil, err
	}
	if h := ps.mu.holders[conn]; h != nil && h.client.ID != c.ID && ps.mu.byClient[h.client.ID] == h {
		delete(ps.mu.byClient, h.client.ID)
	}
	for i := range producers {
		m, isNew, before := ps.mu.join(conn, c, producers[i].GroupName, now)
		if before != "" {
			changes = append(changes, Change{Role: Producer, Kind: Left, Group: m.group.name, ClientID: before})
		}
		if isNew {
			changes = append(changes, Change{Role: Producer, Kind: Joined, Group: m.group.name, ClientID: c.ID})
		}
		ps.mu.byClient[c.ID] = m.holder
	}
	return changes, nil
}

func (ps *Producers) unregister(conn Conn, clientID, groupName string) []Change {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.mu.unregister(conn, clientID, groupName)
}

func (ps *Producers) connClosed(conn Conn) []Change {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.mu.connClosed(conn)
}

func (ps *Producers) expire(since time.Time) ([]Change, []Conn) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.mu.expire(since)
}

// holds reports whether conn has memberships.
func (ps *Producers) holds(conn Conn) bool {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return ps.mu.holders[conn] != nil
}

// Client returns the connection of a client that has producers: where a reply
// goes (326).
func (ps *Producers) Client(clientID string) (Conn, bool) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	h := ps.mu.byClient[clientID]
	if h == nil || closed(h.conn) {
		return nil, false
	}
	return h.conn, true
}

// Pick returns a member of a group whose connection is open, another one each
// time: whom to ask about a transaction (39).
func (ps *Producers) Pick(groupName string) (Member, bool) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	g := ps.mu.groups[groupName]
	if g == nil {
		return Member{}, false
	}
	n := uint32(len(g.members))
	first := g.info.next.Add(1) - 1
	for i := range n {
		if m := g.members[(first%n+i)%n]; !closed(m.Conn) {
			return m.Member, true
		}
	}
	return Member{}, false
}

// Of returns the members of a group, ordered by client id.
func (ps *Producers) Of(groupName string) []Member {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	if g := ps.mu.groups[groupName]; g != nil {
		return g.list()
	}
	return nil
}

// Groups returns the groups that have members, in order.
func (ps *Producers) Groups() []string {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return ps.mu.names()
}

// Connections returns the body of 204, or nil if no member is online.
func (ps *Producers) Connections(groupName string) *remoting.ProducerConnection {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	g := ps.mu.groups[groupName]
	if g == nil {
		return nil
	}
	b := &remoting.ProducerConnection{Connections: make([]remoting.Connection, len(g.members))}
	for i, m := range g.members {
		b.Connections[i] = m.connection()
	}
	return b
}

// Table returns the body of 328: everybody.
func (ps *Producers) Table() *remoting.ProducerTable {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	b := &remoting.ProducerTable{Data: make(map[string][]remoting.ProducerInfo, len(ps.mu.groups))}
	for name, g := range ps.mu.groups {
		infos := make([]remoting.ProducerInfo, len(g.members))
		for i, m := range g.members {
			infos[i] = remoting.ProducerInfo{
				ClientID: m.ID, RemoteIP: "/" + m.addr(), // as Java prints a socket address
				Language: m.Language, Version: m.Version, LastUpdateTimestamp: m.LastSeen.UnixMilli(),
			}
		}
		b.Data[name] = infos
	}
	return b
}

func (ps *Producers) stats() (groups, members int, bytes int64) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return len(ps.mu.groups), ps.mu.members, ps.mu.account.used
}
