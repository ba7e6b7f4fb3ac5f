package membership

import (
	"sync"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// Locks are the queue locks of orderly consumers: a client of a group holds a
// queue until it gives it back, or has not asked for it again for a minute
// (upstream: RebalanceLockManager). Clients ask every 20 s and trust their lock
// for 30 s. The closing of a connection frees no lock: the client may go on
// consuming, and come back.
type Locks struct {
	now    func() time.Time
	expiry time.Duration
	max    int64

	mu struct {
		sync.Mutex
		groups map[string]map[remoting.MessageQueue]lock
		bytes  int64 // what they cost
		swept  time.Time
	}
}

type lock struct {
	clientID string
	at       time.Time // asked for last
}

func newLocks(opts *Options) *Locks {
	l := &Locks{now: opts.Now, expiry: opts.LockExpiry, max: opts.MaxLockBytes}
	l.mu.groups = make(map[string]map[remoting.MessageQueue]lock)
	return l
}

func checkLocks(b *remoting.LockBatch) error {
	if err := checkName("consumerGroup", b.ConsumerGroup, MaxNameLen); err != nil {
		return err
	}
	if err := checkName("clientId", b.ClientID, MaxClientIDLen); err != nil {
		return err
	}
	if err := checkLen("mqSet", len(b.Queues), MaxLockBatch, "queues"); err != nil {
		return err
	}
	for i := range b.Queues {
		if err := checkName("mqSet.topic", b.Queues[i].Topic, MaxNameLen); err != nil {
			return err
		}
		if err := checkLen("mqSet.brokerName", len(b.Queues[i].BrokerName), MaxNameLen, "bytes"); err != nil {
			return err
		}
	}
	return nil
}

func costOfLock(group string, q *remoting.MessageQueue, clientID string) int64 {
	return lockCost + int64(len(group)+len(q.Topic)+len(q.BrokerName)+len(clientID))
}

// TryLock gives the client those of the queues that are free, its own, or whose
// lock has expired, and returns them (41). When the memory for locks is used up
// nothing is free. The error is a *FieldError.
func (l *Locks) TryLock(b *remoting.LockBatch) ([]remoting.MessageQueue, error) {
	if err := checkLocks(b); err != nil {
		return nil, err
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	locks := l.mu.groups[b.ConsumerGroup]
	var granted []remoting.MessageQueue
	for i := range b.Queues {
		q := b.Queues[i]
		if k, ok := locks[q]; ok && k.clientID != b.ClientID && !l.expired(k, now) {
			continue
		}
		more := l.moreLocked(b, &q)
		if more > 0 && l.mu.bytes+more > l.max {
			if now.Sub(l.mu.swept) < time.Second {
				continue // what can be freed has just been
			}
			l.sweepLocked(now)
			locks = l.mu.groups[b.ConsumerGroup]
			if more = l.moreLocked(b, &q); l.mu.bytes+more > l.max {
				continue
			}
		}
		if locks == nil {
			locks = make(map[remoting.MessageQueue]lock)
			l.mu.groups[b.ConsumerGroup] = locks
		}
		locks[q] = lock{clientID: b.ClientID, at: now}
		l.mu.bytes += more
		granted = append(granted, q)
	}
	return granted, nil
}

// moreLocked returns how many bytes it takes to give a queue to b's client.
func (l *Locks) moreLocked(b *remoting.LockBatch, q *remoting.MessageQueue) int64 {
	locks := l.mu.groups[b.ConsumerGroup]
	if k, ok := locks[*q]; ok {
		return int64(len(b.ClientID) - len(k.clientID))
	}
	more := costOfLock(b.ConsumerGroup, q, b.ClientID)
	if locks == nil {
		more += lockGroupCost
	}
	return more
}

func (l *Locks) expired(k lock, now time.Time) bool { return now.Sub(k.at) > l.expiry }

// Unlock gives back those of the queues that the client holds (42). The error
// is a *FieldError.
func (l *Locks) Unlock(b *remoting.LockBatch) error {
	if err := checkLocks(b); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	locks := l.mu.groups[b.ConsumerGroup]
	for i := range b.Queues {
		q := b.Queues[i]
		if k, ok := locks[q]; ok && k.clientID == b.ClientID {
			l.dropLocked(b.ConsumerGroup, locks, q, k)
		}
	}
	return nil
}

func (l *Locks) dropLocked(group string, locks map[remoting.MessageQueue]lock, q remoting.MessageQueue, k lock) {
	delete(locks, q)
	l.mu.bytes -= costOfLock(group, &q, k.clientID)
	if len(locks) == 0 {
		delete(l.mu.groups, group)
		l.mu.bytes -= lockGroupCost
	}
}

// HasLocks reports whether any client of the group holds a queue: then a
// message that it sends to its retry topic is one that it gives up, and goes to
// the dead letters (spec section 6.6).
func (l *Locks) HasLocks(group string) bool {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.mu.groups[group] {
		if !l.expired(k, now) {
			return true
		}
	}
	return false
}

// Expire forgets expired locks.
func (l *Locks) Expire() {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(now)
}

func (l *Locks) sweepLocked(now time.Time) {
	l.mu.swept = now
	for group, locks := range l.mu.groups {
		for q, k := range locks {
			if l.expired(k, now) {
				l.dropLocked(group, locks, q, k)
			}
		}
	}
}

// stats returns how many locks there are, expired ones included, and what they
// cost.
func (l *Locks) stats() (locks int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.mu.groups {
		locks += len(g)
	}
	return locks, l.mu.bytes
}
