package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// records are the messages of an export as they stand in it. Parsing them takes
// longer than storing them, so it is done ahead, on all cores.
type records struct {
	next   func() ([]byte, error) // the next one; errors are those of tool.Lines
	number func() int
	bytes  func() int64 // read so far
	ready  func() bool  // next need not wait for the input
	parse  func([]byte) (message.Ext, error)
}

// newRecords reads lines of JSON, or CSV.
func newRecords(src io.Reader, isCSV bool, limit int) (*records, error) {
	lines := tool.NewLines(src, limit)
	if !isCSV {
		return &records{lines.Next, lines.Number, lines.Bytes, lines.Buffered, tool.FromJSON}, nil
	}
	c, err := tool.NewCSV(lines, limit)
	if err != nil {
		return nil, err
	}
	return &records{c.Next, c.Number, lines.Bytes, lines.Buffered, c.Parse}, nil
}

// isCSVName reports whether a file's name says that it is CSV.
func isCSVName(name string) bool { return filepath.Ext(name) == ".csv" }

// lineError is what is wrong with a line before it is a message.
type lineError struct{ error }

// record is one line.
type record struct {
	line  int
	bytes int64 // of the input, up to its end
	text  []byte
	m     message.Ext
	err   error
}

// recordBatch is some records.
type recordBatch struct {
	list  []record
	err   error // that ended reading, behind the list; io.EOF
	ready chan struct{}
}

const (
	batchRecords = 256
	batchBytes   = 1 << 20
)

// each calls store for the records from line first on, in order. It returns the
// first error of reading or of store. It closes src, which ends reading.
func (r *records) each(ctx context.Context, src io.Closer, first int, store func(*record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer func() {
		cancel()
		src.Close() // reading may wait for ever
		group.Wait()
	}()
	workers := runtime.GOMAXPROCS(0)
	work, order := make(chan *recordBatch, workers), make(chan *recordBatch, workers)
	group.Go(func() {
		defer close(order)
		defer close(work)
		for ctx.Err() == nil {
			b := r.read(first)
			for _, to := range []chan<- *recordBatch{work, order} {
				select {
				case to <- b:
				case <-ctx.Done():
					return
				}
			}
			if b.err != nil {
				return
			}
		}
	})
	for range workers {
		group.Go(func() {
			for b := range work {
				for i := range b.list {
					if x := &b.list[i]; x.err == nil {
						if x.m, x.err = r.parse(x.text); x.err != nil {
							x.err = lineError{x.err}
						}
					}
				}
				close(b.ready)
			}
		})
	}
	for b := range order {
		select {
		case <-b.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
		for i := range b.list {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := store(&b.list[i]); err != nil {
				return err
			}
		}
		if b.err == io.EOF {
			return nil
		}
		if b.err != nil {
			return b.err
		}
	}
	return ctx.Err()
}

// read reads a batch: what there is without waiting, but at least one record.
func (r *records) read(first int) *recordBatch {
	b := &recordBatch{ready: make(chan struct{})}
	var text []byte
	for len(b.list) == 0 || len(b.list) < batchRecords && len(text) < batchBytes && r.ready() {
		line, err := r.next()
		if err != nil && !errors.Is(err, tool.ErrLineTooLong) {
			if err != io.EOF {
				err = fmt.Errorf("read line %d: %w", r.number(), err)
			}
			b.err = err
			break
		}
		if r.number() < first {
			continue
		}
		text = append(text, line...)
		b.list = append(b.list, record{line: r.number(), bytes: r.bytes(), text: text[len(text)-len(line):], err: err})
	}
	return b
}
