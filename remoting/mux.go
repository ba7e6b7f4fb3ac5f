package remoting

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// A Handler answers one request. It runs on a goroutine of its own, beside
// handlers of other requests of the same connection, unless the code is one of
// Options.Inline.
//
// The result is the answer; Conn.Reply fills in what belongs to the request.
// An error becomes an answer by Response. Later means that the handler, or
// somebody it told, will call c.Reply; nil and no error, that there will be no
// answer at all. A oneway request is never answered, whatever comes back.
//
// ctx ends when the connection closes. The body of req is the handler's.
type Handler func(ctx context.Context, c *Conn, req *Command) (*Command, error)

// Later is returned by a handler that answers by Conn.Reply in its own time.
var Later = new(Command)

// A Mux has a handler for each code. A server or client copies it when it is
// made.
type Mux struct{ handlers map[int32]Handler }

// NewMux returns an empty Mux, which answers every request
// REQUEST_CODE_NOT_SUPPORTED.
func NewMux() *Mux { return &Mux{handlers: make(map[int32]Handler)} }

// Handle sets the handler of some codes. A code that has one already panics: it
// is a mistake in the program.
func (m *Mux) Handle(h Handler, codes ...int32) {
	for _, code := range codes {
		if m.handlers[code] != nil {
			panic(fmt.Sprintf("remoting: two handlers for %s (%d)", RequestName(code), code))
		}
		m.handlers[code] = h
	}
}

// Codes returns the codes that have a handler, in order.
func (m *Mux) Codes() []int32 { return slices.Sorted(maps.Keys(m.handlers)) }

func notSupported(code int32) *Command {
	return NewResponse(CodeRequestCodeNotSupported, fmt.Sprintf(" request type %d not supported", code))
}
