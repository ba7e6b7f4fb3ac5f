package membership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A roster says which client is in which group over which connection. G is
// what its owner keeps with a group; the owner also has the lock for all of it.
type roster[G any] struct {
	role    Role
	groups  map[string]*group[G]
	holders map[Conn]*holder[G]
	members int
	account account

	// The members by when they were last seen, the longest silent one first.
	oldest, newest *member[G]

	// left, if set, is told of each member that is no longer in its group,
	// and gone of each group that has ended.
	left func(m *member[G])
	gone func(g *group[G])
}

type group[G any] struct {
	name    string
	members []*member[G] // by client id, each once; never empty outside of roster's methods
	info    G
}

// A holder is a connection with memberships.
type holder[G any] struct {
	conn    Conn
	client  Client                // of its last heartbeat
	members map[string]*member[G] // by group; never empty outside of roster's methods
	used    int64                 // of the account
}

type member[G any] struct {
	Member
	group  *group[G]
	holder *holder[G]
	cost   int64

	older, newer *member[G]
}

func newRoster[G any](role Role, maxBytes, maxConnBytes int64) roster[G] {
	return roster[G]{
		role:    role,
		groups:  make(map[string]*group[G]),
		holders: make(map[Conn]*holder[G]),
		account: account{max: maxBytes, maxOfOne: maxConnBytes},
	}
}

// charge adds to, or with a negative n takes from, the account and h's part.
func (r *roster[G]) charge(h *holder[G], n int64) {
	r.account.used += n
	if h != nil {
		h.used += n
	}
}

func costOfMember(c *Client, group string) int64 {
	return memberCost + int64(len(group)+len(c.ID))
}

// newcomer returns what it costs to make c a member of a group over conn, and
// false if it is one already.
func (r *roster[G]) newcomer(conn Conn, c *Client, group string) (int64, bool) {
	if h := r.holders[conn]; h != nil {
		if m := h.members[group]; m != nil && m.ID == c.ID {
			return 0, false
		}
	}
	return costOfMember(c, group), true
}

// room checks that conn may have so many groups and bytes more.
func (r *roster[G]) room(conn Conn, field string, groups int, bytes int64) error {
	var used int64
	if h := r.holders[conn]; h != nil {
		groups += len(h.members)
		used = h.used
	} else {
		bytes += connCost
	}
	if groups > MaxGroups {
		return &FieldError{field, fmt.Sprintf("the connection would be in %d %s groups, at most %d", groups, r.role, MaxGroups)}
	}
	return r.account.check(field, used, bytes)
}

// join makes c a member of a group over conn, or refreshes that it is one. It
// returns whether anything is new, and the client that conn stood for in the
// group before, if it was another.
func (r *roster[G]) join(conn Conn, c Client, name string, now time.Time) (m *member[G], isNew bool, before string) {
	h := r.holders[conn]
	if h == nil {
		h = &holder[G]{conn: conn, members: make(map[string]*member[G])}
		r.holders[conn] = h
		r.charge(h, connCost)
	}
	h.client = c
	if m = h.members[name]; m != nil && m.ID == c.ID {
		m.Client, m.LastSeen = c, now
		r.unlink(m)
		r.link(m)
		return m, false, ""
	}

	g := r.groups[name]
	if g == nil {
		g = &group[G]{name: name}
		r.groups[name] = g
	}
	if m != nil {
		before = m.ID
		r.remove(m)
	}
	i, found := g.find(c.ID)
	if found {
		old := g.members[i]
		r.remove(old)
		r.release(old.holder)
	}
	m = &member[G]{
		Member: Member{Client: c, Conn: conn, LastSeen: now},
		group:  g, holder: h, cost: costOfMember(&c, name),
	}
	g.members = slices.Insert(g.members, i, m)
	h.members[name] = m
	r.link(m)
	r.members++
	r.charge(h, m.cost)
	return m, true, before
}

func (g *group[G]) find(clientID string) (int, bool) {
	return slices.BinarySearchFunc(g.members, clientID, func(m *member[G], id string) int { return cmp.Compare(m.ID, id) })
}

// remove takes m out of group and holder, which may be left empty.
func (r *roster[G]) remove(m *member[G]) {
	i, _ := m.group.find(m.ID)
	m.group.members = slices.Delete(m.group.members, i, i+1)
	delete(m.holder.members, m.group.name)
	r.unlink(m)
	r.members--
	r.charge(m.holder, -m.cost)
	if r.left != nil {
		r.left(m)
	}
}

// release forgets h if it has no memberships.
func (r *roster[G]) release(h *holder[G]) {
	if len(h.members) == 0 {
		r.charge(h, -connCost)
		delete(r.holders, h.conn)
	}
}

// leave removes m for good, and its group if that was the last member.
func (r *roster[G]) leave(changes []Change, m *member[G], kind ChangeKind) []Change {
	g := m.group
	r.remove(m)
	r.release(m.holder)
	changes = append(changes, Change{Role: r.role, Kind: kind, Group: g.name, ClientID: m.ID})
	if len(g.members) > 0 {
		return changes
	}
	delete(r.groups, g.name)
	if r.gone != nil {
		r.gone(g)
	}
	return append(changes, Change{Role: r.role, Kind: Gone, Group: g.name, ClientID: m.ID})
}

// unregister removes a client from a group if it is in it over conn.
func (r *roster[G]) unregister(conn Conn, clientID, name string) []Change {
	h := r.holders[conn]
	if h == nil {
		return nil
	}
	m := h.members[name]
	if m == nil || m.ID != clientID {
		return nil
	}
	return r.leave(nil, m, Left)
}

// connClosed removes conn from all groups, in the order of their names.
func (r *roster[G]) connClosed(conn Conn) (changes []Change) {
	h := r.holders[conn]
	if h == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(h.members)) {
		changes = r.leave(changes, h.members[name], Left)
	}
	return changes
}

// expire removes the members not seen since a time, and returns their
// connections, once for each membership. It looks at no others.
func (r *roster[G]) expire(since time.Time) (changes []Change, conns []Conn) {
	for m := r.oldest; m != nil && m.LastSeen.Before(since); m = r.oldest {
		changes = r.leave(changes, m, Expired)
		conns = append(conns, m.Conn)
	}
	return changes, conns
}

// link makes m the one that was seen last.
func (r *roster[G]) link(m *member[G]) {
	m.older, m.newer = r.newest, nil
	if r.newest != nil {
		r.newest.newer = m
	} else {
		r.oldest = m
	}
	r.newest = m
}

func (r *roster[G]) unlink(m *member[G]) {
	if m.older != nil {
		m.older.newer = m.newer
	} else {
		r.oldest = m.newer
	}
	if m.newer != nil {
		m.newer.older = m.older
	} else {
		r.newest = m.older
	}
	m.older, m.newer = nil, nil
}

func (r *roster[G]) names() []string {
	return slices.Sorted(maps.Keys(r.groups))
}

func (g *group[G]) list() []Member {
	members := make([]Member, len(g.members))
	for i, m := range g.members {
		members[i] = m.Member
	}
	return members
}
