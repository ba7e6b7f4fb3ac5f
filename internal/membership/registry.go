package membership

import (
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
)

// Options are the options of a Registry. The zero value has upstream's times
// and tells nobody anything.
type Options struct {
	// Notify sends 40 NOTIFY_CONSUMER_IDS_CHANGED for a group over a
	// connection. It must not wait for the peer. nil: nothing is sent.
	Notify func(conn Conn, group string)
	// NotifyEnabled is whether a group wants that (its configuration's
	// notifyConsumerIdsChangedEnable). nil: every group does.
	NotifyEnabled func(group string) bool
	// NotifyWindow is how long further changes of a group are collected
	// after its members were notified of one. 0 means 100 ms.
	NotifyWindow time.Duration

	// Expiry is how long a member may be silent. 0 means 120 s.
	Expiry time.Duration
	// ScanInterval is how often silent members are looked for. 0 means 10 s.
	ScanInterval time.Duration
	// LockExpiry is how long a queue lock lasts. 0 means 60 s.
	LockExpiry time.Duration

	// MaxConnBytes bounds what one connection may have us remember of its
	// consumers, and again of its producers. 0 means 4 MiB.
	MaxConnBytes int64
	// MaxBytes bounds the same for all connections. 0 means 128 MiB.
	MaxBytes int64
	// MaxLockBytes bounds the memory for queue locks. 0 means 32 MiB.
	MaxLockBytes int64

	// OnChange is told of changes of groups after they have happened; two at
	// the same time may be told of in either order. nil: nobody.
	OnChange func(Change)
	Now      func() time.Time // nil: time.Now; expiry goes by its monotonic part
	Logger   *slog.Logger     // nil: discard
}

func (o Options) withDefaults() Options {
	or := func(p *time.Duration, d time.Duration) {
		if *p <= 0 {
			*p = d
		}
	}
	or(&o.NotifyWindow, 100*time.Millisecond)
	or(&o.Expiry, 120*time.Second)
	or(&o.ScanInterval, 10*time.Second)
	or(&o.LockExpiry, 60*time.Second)
	orBytes := func(p *int64, n int64) {
		if *p <= 0 {
			*p = n
		}
	}
	orBytes(&o.MaxConnBytes, 4<<20)
	orBytes(&o.MaxBytes, 128<<20)
	orBytes(&o.MaxLockBytes, 32<<20)
	if o.Notify == nil {
		o.Notify = func(Conn, string) {}
	}
	if o.NotifyEnabled == nil {
		o.NotifyEnabled = func(string) bool { return true }
	}
	if o.OnChange == nil {
		o.OnChange = func(Change) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Registry is what a broker knows of its clients.
type Registry struct {
	Members   *Members
	Producers *Producers
	Locks     *Locks

	opts     Options
	notifier *notifier

	stop sync.Once
	quit chan struct{}
	done sync.WaitGroup
}

// New returns a Registry that knows nobody. The caller has to call Close.
func New(opts Options) *Registry {
	opts = opts.withDefaults()
	r := &Registry{
		Members:   newMembers(&opts),
		Producers: newProducers(&opts),
		Locks:     newLocks(&opts),
		opts:      opts,
		quit:      make(chan struct{}),
	}
	r.notifier = newNotifier(opts.NotifyWindow, r.toTell, opts.Notify)
	r.done.Add(1)
	go r.scan()
	return r
}

// Close ends the search for silent members and the notifications. It may be
// called again.
func (r *Registry) Close() {
	r.stop.Do(func() { close(r.quit) })
	r.done.Wait()
	r.notifier.close()
}

func (r *Registry) toTell(group string) []Conn {
	conns := r.Members.toTell(group)
	if len(conns) > 0 && !r.opts.NotifyEnabled(group) {
		return nil
	}
	return conns
}

// Check reports whether a heartbeat is within the bounds: what Heartbeat would
// say at this moment. A broker asks before it creates groups and retry topics
// for it. The error is a *FieldError.
func (r *Registry) Check(conn Conn, hb *remoting.Heartbeat) error {
	if err := checkHeartbeat(hb); err != nil {
		return err
	}
	if err := r.Members.check(conn, hb); err != nil {
		return err
	}
	return r.Producers.check(conn, hb)
}

// Heartbeat takes in a heartbeat (34) and returns its answer. Members of groups
// that it changes have been notified then, as far as that is not put off to the
// end of a window. Entries for groups that the broker does not allow have to be
// removed from hb before; what is in hb must not be changed afterwards. The
// error is a *FieldError, or base.ErrClosed if conn has been closed.
func (r *Registry) Heartbeat(conn Conn, lang remoting.Language, version int32, hb *remoting.Heartbeat) (remoting.HeartbeatResponse, error) {
	if err := checkHeartbeat(hb); err != nil {
		return remoting.HeartbeatResponse{}, err
	}
	if err := r.Producers.check(conn, hb); err != nil { // before the consumers are taken in
		return remoting.HeartbeatResponse{}, err
	}
	c := Client{ID: hb.ClientID, Language: lang, Version: version}
	now := r.opts.Now()
	changes, subChanged, err := r.Members.heartbeat(conn, c, hb, now)
	if err == nil {
		var more []Change
		more, err = r.Producers.heartbeat(conn, c, hb.Producers, now)
		changes = append(changes, more...)
	}
	r.tell(changes)
	if err != nil {
		return remoting.HeartbeatResponse{}, err
	}
	return remoting.HeartbeatResponse{
		SupportV2:  "true",
		SubChanged: strconv.FormatBool(subChanged || hb.Fingerprint == 0),
	}, nil
}

// Unregister takes in a client's farewell (35), which counts on the connection
// of its heartbeats only: from another one it may be about a connection that
// has been replaced.
func (r *Registry) Unregister(conn Conn, req *remoting.UnregisterClientRequest) {
	var changes []Change
	if req.ProducerGroup != "" {
		changes = r.Producers.unregister(conn, req.ClientID, req.ProducerGroup)
	}
	if req.ConsumerGroup != "" {
		changes = append(changes, r.Members.unregister(conn, req.ClientID, req.ConsumerGroup)...)
	}
	r.tell(changes)
}

// ConnClosed takes conn out of all groups. Its context has to have ended.
func (r *Registry) ConnClosed(conn Conn) {
	base.Assert(closed(conn), "connection %d is open", conn.ID())
	r.tell(append(r.Producers.connClosed(conn), r.Members.connClosed(conn)...))
}

// tell passes changes on: to OnChange all, to the members of each group once.
func (r *Registry) tell(changes []Change) {
	for i := range changes {
		r.opts.OnChange(changes[i])
	}
	last := ""
	for i := range changes {
		// Changes of one heartbeat to one group follow each other.
		if c := &changes[i]; c.tells() && c.Group != last {
			last = c.Group
			r.notifier.notify(c.Group)
		}
	}
}

func (r *Registry) scan() {
	defer r.done.Done()
	ticker := time.NewTicker(r.opts.ScanInterval)
	defer ticker.Stop()
	for {
		select {
		case <-r.quit:
			return
		case <-ticker.C:
			r.expire()
		}
	}
}

// expire removes silent members and closes connections that are left without
// any. Upstream closes a connection when one of its memberships expires, though
// others on it may be alive.
func (r *Registry) expire() {
	since := r.opts.Now().Add(-r.opts.Expiry)
	changes, conns := r.Members.expire(since)
	more, moreConns := r.Producers.expire(since)
	r.tell(append(changes, more...))
	for i := range changes {
		if c := &changes[i]; c.Kind == Expired {
			r.opts.Logger.Warn("a consumer has been silent for too long", "group", c.Group, "client", c.ClientID)
		}
	}
	for _, conn := range append(conns, moreConns...) {
		if r.Members.holds(conn) || r.Producers.holds(conn) || closed(conn) {
			continue
		}
		if err := conn.Close(); err != nil && !errors.Is(err, base.ErrClosed) {
			r.opts.Logger.Warn("a silent connection does not close", "conn", conn.ID(), "remote", conn.RemoteAddr(), "err", err)
		}
	}
	r.Locks.Expire()
}

// Stats are figures of this moment.
type Stats struct {
	ConsumerGroups, Consumers int
	ProducerGroups, Producers int
	Locks                     int   // those that have just expired included
	Bytes                     int64 // estimated memory for all of it
}

// Stats returns figures of this moment.
func (r *Registry) Stats() Stats {
	var s Stats
	var members, producers, locks int64
	s.ConsumerGroups, s.Consumers, members = r.Members.stats()
	s.ProducerGroups, s.Producers, producers = r.Producers.stats()
	s.Locks, locks = r.Locks.stats()
	s.Bytes = members + producers + locks
	return s
}
