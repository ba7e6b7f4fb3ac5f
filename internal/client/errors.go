package client

import (
	"errors"

	"github.com/gantrymq/gantry/remoting"
)

var (
	// ErrClosed: the client, producer or consumer has been closed.
	ErrClosed = errors.New("client: closed")
	// ErrNoQueue: the route of a topic names no queue that may be used for
	// what was asked.
	ErrNoQueue = errors.New("no queue with the permission")
	// ErrNoBroker: the route of a topic does not name the broker, or no
	// address of it.
	ErrNoBroker = errors.New("no address of the broker")
)

// Code returns the response code in err, if a server answered with one.
func Code(err error) (code int32, ok bool) {
	if e, ok := errors.AsType[*remoting.Error](err); ok {
		return e.Code, true
	}
	return 0, false
}

// hasCode reports whether err is an answer with code.
func hasCode(err error, code int32) bool {
	c, ok := Code(err)
	return ok && c == code
}
