package indexfile

import (
	"errors"

	"github.com/gantrymq/gantry/message"
)

// An outage begins with the first message that could not be indexed and ends
// when no message is missing any more.
type outage struct {
	cause     error
	from      message.PhysicalOffset // the first message that is missing
	skippedTo message.PhysicalOffset // the newest message that was left out
	pause     int64                  // ms
	nextTry   int64                  // ms
}

const (
	firstPause = 1000      // ms
	maxPause   = 60 * 1000 // ms
	// refillMessages bounds the work of one Put after an outage, so that the
	// caller's queues do not wait for the index.
	refillMessages = 512
)

// errEnough ends a portion of a refill.
var errEnough = errors.New("enough for now")

// degradeLocked begins an outage at the message that could not be put. A
// failed store is more than that and has been reported.
func (x *Index) degradeLocked(phy message.PhysicalOffset, err error) error {
	if x.mu.broken != nil {
		return err
	}
	x.mu.outage = &outage{cause: err, from: phy, skippedTo: phy, pause: firstPause, nextTry: x.opt.Now() + firstPause}
	x.opt.Logger.Warn("index leaves messages out", "physicalOffset", phy, "err", err)
	if x.opt.OnDegraded != nil {
		x.opt.OnDegraded(err)
	}
	return err
}

func (x *Index) putInOutageLocked(phy message.PhysicalOffset, storeTime int64, hashes []int32) error {
	o := x.mu.outage
	if phy < o.from {
		return nil // in already
	}
	if phy == o.from && o.skippedTo == o.from {
		// The caller did not go on: the same message again.
		if err := x.insertLocked(phy, storeTime, hashes); err != nil {
			x.tryLaterLocked(err)
			return err
		}
		x.healLocked()
		return nil
	}
	o.skippedTo = max(o.skippedTo, phy)
	// A message at or before the newest indexed one may be offered again by a
	// replay; only a new one may end the outage.
	if phy < o.skippedTo || x.opt.Now() < o.nextTry {
		return nil
	}

	if x.opt.Refill == nil {
		if err := x.insertLocked(phy, storeTime, hashes); err != nil {
			x.tryLaterLocked(err)
			return x.mu.broken
		}
		if !x.mu.missing {
			x.mu.missing, x.mu.from = true, o.from
		}
		x.healLocked()
		return nil
	}

	n := 0
	err := x.opt.Refill(o.from, phy, func(p message.PhysicalOffset, t int64, hs []int32) error {
		if p <= x.mu.lastPhy || len(hs) == 0 {
			return nil
		}
		o.from = p
		if n++; n > refillMessages {
			return errEnough
		}
		return x.insertLocked(p, t, hs)
	})
	if err == nil {
		err = x.insertLocked(phy, storeTime, hashes)
	}
	switch {
	case errors.Is(err, errEnough):
		return nil // the next Put goes on
	case err != nil:
		x.tryLaterLocked(err)
		return x.mu.broken
	}
	x.healLocked()
	return nil
}

func (x *Index) tryLaterLocked(err error) {
	o := x.mu.outage
	o.cause = err
	o.pause = min(2*o.pause, maxPause)
	o.nextTry = x.opt.Now() + o.pause
}

func (x *Index) healLocked() {
	o := x.mu.outage
	x.mu.outage = nil
	x.opt.Logger.Info("index takes messages again", "physicalOffset", o.from, "missing", x.mu.missing)
	if x.opt.OnDegraded != nil {
		x.opt.OnDegraded(nil)
	}
}
