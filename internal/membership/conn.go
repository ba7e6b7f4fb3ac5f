package membership

import (
	"context"
	"net/netip"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// A Conn is the connection of a client: a *remoting.Conn, or what a test has
// in its place. Two are the same if they are equal, so it has to be comparable.
type Conn interface {
	ID() uint64
	RemoteAddr() netip.AddrPort
	// Context ends when the connection closes, before Registry.ConnClosed is
	// called for it. It is how a heartbeat that is still being handled then
	// finds out.
	Context() context.Context
	Close() error
}

var _ Conn = (*remoting.Conn)(nil)

// Client is what a client says of itself in a heartbeat.
type Client struct {
	ID       string
	Language remoting.Language
	Version  int32 // ordinal of its MQ version
}

// A Member is a client in a group (upstream: ClientChannelInfo).
type Member struct {
	Client
	Conn     Conn
	LastSeen time.Time // of its last heartbeat for the group
}

// addr is the address of the member as ip:port; nothing if it has none.
func (m *Member) addr() string {
	a := m.Conn.RemoteAddr()
	if !a.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
}

func (m *Member) connection() remoting.Connection {
	return remoting.Connection{ClientID: m.ID, ClientAddr: m.addr(), Language: m.Language, Version: m.Version}
}

// closed reports whether c has been closed already.
func closed(c Conn) bool { return c.Context().Err() != nil }

// Role tells consumers from producers.
type Role uint8

const (
	Consumer Role = iota
	Producer
)

func (r Role) String() string {
	if r == Producer {
		return "producer"
	}
	return "consumer"
}

// ChangeKind says what happened to a group.
type ChangeKind uint8

const (
	// Joined: a client is a member now, or on another connection now.
	Joined ChangeKind = iota
	// Left: a member has said farewell, or its connection has closed.
	Left
	// Expired: no heartbeat of a member arrived in time.
	Expired
	// Subscribed: the subscriptions of a consumer group have changed.
	Subscribed
	// Gone: the last member is gone, and so is the group.
	Gone
)

func (k ChangeKind) String() string {
	return [...]string{"joined", "left", "expired", "subscribed", "gone"}[k]
}

// A Change is something that happened to a group.
type Change struct {
	Role     Role
	Kind     ChangeKind
	Group    string
	ClientID string // whose doing it is; of Gone, the last member

	// topics: the set of topics has changed, not only an expression.
	topics bool
}

// tells reports whether the members of the group have to hear of c by 40.
func (c *Change) tells() bool {
	return c.Role == Consumer && c.Kind != Gone && (c.Kind != Subscribed || c.topics)
}
