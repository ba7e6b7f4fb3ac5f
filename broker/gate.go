package broker

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// How much is read from the store at a time, whatever the number of clients that
// ask: an answer takes memory from then on, until it is on its way. A pull may
// take 4 MiB, when its first message is as large as that, a query three times as
// much.
const (
	maxPulls   = 32
	maxQueries = 4
)

// Bodies above largeBody bytes are handled maxLarge at a time: decoded, one may
// take remoting.MaxExpansion times as much.
const (
	largeBody = 64 << 10
	maxLarge  = 4
)

// gate lets a number of goroutines in at a time.
type gate chan struct{}

func newGate(n int) gate { return make(gate, n) }

// tryEnter reports whether there is a place now.
func (g gate) tryEnter() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter waits for a place, or reports false when ctx ends.
func (g gate) enter(ctx context.Context) bool {
	if g.tryEnter() {
		return true
	}
	select {
	case g <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g gate) leave() { <-g }

// body wraps a handler of requests that have a body to be decoded.
func (b *Broker) body(h remoting.Handler) remoting.Handler {
	return func(ctx context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
		if len(cmd.Body) > largeBody {
			if !b.large.enter(ctx) {
				return nil, ctx.Err()
			}
			defer b.large.leave()
		}
		return h(ctx, c, cmd)
	}
}
