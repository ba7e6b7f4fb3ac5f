package remoting

import (
	"fmt"
	"time"
)

// Bounds of one frame. Each is checked before memory is taken for what it
// bounds, and memory for large parts grows with the bytes that have arrived,
// never with the length that was announced.
const (
	// MaxFrameSize is the largest frame in bytes, its length word included:
	// upstream's default of com.rocketmq.remoting.frameMaxLength.
	MaxFrameSize = 16 << 20
	// MaxHeaderSize bounds the header in bytes. The largest genuine one is
	// the answer to a batch of very many messages, which lists their ids.
	MaxHeaderSize = 4 << 20
	// MaxFields bounds the ext fields of one header.
	MaxFields = 512
	// MaxNesting bounds objects and arrays within each other, in JSON
	// headers and in JSON bodies.
	MaxNesting = 32
	// MaxExpansion bounds the memory that the lists and maps of a JSON body
	// take, texts apart, as a multiple of its length.
	MaxExpansion = 8
	// MaxMembers bounds the members of an object that is not a map.
	MaxMembers = 1024
	// MaxInflatedBody bounds a compressed registration once inflated, and
	// MaxInflatedTopics its topics. Two are inflated at a time.
	MaxInflatedBody   = 16 << 20
	MaxInflatedTopics = 1 << 18

	// freeExpansion is what a body may take in any case.
	freeExpansion = 64 << 10
)

// Defaults of Limits.
const (
	defaultMaxConns         = 20_000
	defaultMaxInFlight      = 1024
	defaultMaxHeld          = 16_384
	defaultMaxHeldTotal     = 100_000
	defaultMaxCalls         = 16_384
	defaultMaxQueued        = 64 << 20
	defaultMaxQueuedTotal   = 256 << 20
	defaultMaxRequestTotal  = 256 << 20
	defaultIdleTimeout      = 120 * time.Second
	defaultFrameTimeout     = 60 * time.Second
	defaultWriteTimeout     = 60 * time.Second
	defaultHandshakeTimeout = 10 * time.Second
)

// Limits bounds what the connections of one Server or Client may take. Zero
// fields have the defaults.
type Limits struct {
	// MaxConns bounds open connections; more are closed right after they
	// were accepted. 0 means 20 000.
	MaxConns int
	// MaxInFlight bounds the requests of one connection whose handlers run.
	// At the bound the connection is not read. 0 means 1024.
	MaxInFlight int
	// MaxHeld bounds the requests of one connection that a handler has
	// put off with Later. At the bound a further request is answered
	// SYSTEM_BUSY. 0 means 16 384.
	MaxHeld int
	// MaxHeldTotal bounds the same over all connections. 0 means 100 000.
	MaxHeldTotal int
	// MaxCalls bounds the requests sent on one connection that wait for
	// their answers. At the bound Invoke fails with ErrBusy. 0 means 16 384.
	MaxCalls int
	// MaxQueued bounds the bytes that wait to be written to one connection.
	// From a quarter of it on the connection is not read; a connection that
	// would exceed it is closed, unless nothing else waits. 0 means 64 MiB.
	MaxQueued int64
	// MaxQueuedTotal bounds the same over all connections: beyond it, a
	// connection on which more than 8 KiB wait already is closed when it
	// would queue more, and on others a longer answer becomes SYSTEM_BUSY
	// and a longer request fails with ErrBusy. 0 means 256 MiB.
	MaxQueuedTotal int64
	// MaxRequestTotal bounds the memory of all requests that are being
	// read, handled or held, counted as their bytes and a fixed cost for
	// each. At the bound connections wait with reading, but one request at
	// a time may exceed it, so that some request always gets on. 0 means
	// 256 MiB.
	MaxRequestTotal int64
	// IdleTimeout closes a connection on which nothing was read or written
	// for so long. 0 means 120 s; negative, never.
	IdleTimeout time.Duration
	// FrameTimeout closes a connection when a frame that began has not
	// arrived completely. While memory is at its bound, the frame that
	// exceeds it has a sixth of that. 0 means 60 s.
	FrameTimeout time.Duration
	// WriteTimeout closes a connection whose peer took nothing for so long
	// although bytes wait. 0 means 60 s.
	WriteTimeout time.Duration
	// HandshakeTimeout bounds the PROXY preamble and the TLS handshake,
	// counted from the first byte. 0 means 10 s.
	HandshakeTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	def(&l.MaxConns, defaultMaxConns)
	def(&l.MaxInFlight, defaultMaxInFlight)
	def(&l.MaxHeld, defaultMaxHeld)
	def(&l.MaxHeldTotal, defaultMaxHeldTotal)
	def(&l.MaxCalls, defaultMaxCalls)
	def(&l.MaxQueued, defaultMaxQueued)
	def(&l.MaxQueuedTotal, defaultMaxQueuedTotal)
	def(&l.MaxRequestTotal, defaultMaxRequestTotal)
	def(&l.IdleTimeout, defaultIdleTimeout)
	def(&l.FrameTimeout, defaultFrameTimeout)
	def(&l.WriteTimeout, defaultWriteTimeout)
	def(&l.HandshakeTimeout, defaultHandshakeTimeout)
	return l
}

// validate names a limit that makes no sense.
func (l Limits) validate() error {
	for name, n := range map[string]int64{
		"MaxConns": int64(l.MaxConns), "MaxInFlight": int64(l.MaxInFlight), "MaxHeld": int64(l.MaxHeld),
		"MaxHeldTotal": int64(l.MaxHeldTotal), "MaxCalls": int64(l.MaxCalls), "MaxQueued": l.MaxQueued,
		"MaxQueuedTotal": l.MaxQueuedTotal, "MaxRequestTotal": l.MaxRequestTotal,
		"FrameTimeout": int64(l.FrameTimeout), "WriteTimeout": int64(l.WriteTimeout), "HandshakeTimeout": int64(l.HandshakeTimeout),
	} {
		if n < 0 {
			return fmt.Errorf("remoting: limit %s is negative: %d", name, n)
		}
	}
	return nil
}

func def[T int | int64 | time.Duration](p *T, value T) {
	if *p == 0 {
		*p = value
	}
}
