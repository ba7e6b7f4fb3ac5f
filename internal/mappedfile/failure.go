package mappedfile

import (
	"fmt"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
)

// failure remembers the first error after which stored bytes cannot be
// trusted to reach the disk. It is shared by all files of a queue.
type failure struct {
	first atomic.Pointer[error]
}

// err returns nil, or what every write and flush has to answer.
func (f *failure) err() error {
	if p := f.first.Load(); p != nil {
		return *p
	}
	return nil
}

// set records cause unless there is one already, and returns err().
func (f *failure) set(cause error) error {
	err := fmt.Errorf("%w: an earlier write did not reach the disk: %w", base.ErrReadOnly, cause)
	f.first.CompareAndSwap(nil, &err)
	return f.err()
}
