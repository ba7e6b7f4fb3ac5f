package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// importJSON is the result for machines.
type importJSON struct {
	Stored  int64 `json:"stored"`
	Refused int64 `json:"refused"`
	// Postponed counts the messages whose store time had to be made later.
	Postponed int64 `json:"postponed"`
}

func (a *app) storeImport() *cobra.Command {
	var (
		in        string
		keepTimes bool
	)
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Append messages from lines of JSON",
		Long: `Appends one message for each line of JSON, in the form that the other commands
print with --json, creating the store if need be. Every field is kept but the
offsets and ids, which are given anew; the end of a transaction then refers to
the new place of its half message. A message of a delay level is stored as it
is, in the schedule topic. Topics with inner batches need their
config/topics.json beforehand.

With --keep-times each message keeps its store time, except that a log's times
do not go backwards: a message older than the one before it gets that one's
time, and the end says how many did.

Lines that cannot be stored are refused with their number and the reason, the
others are stored; the exit code is then 1. Everything is on stable storage when
the command ends.`,
		Example: "  gantry store get ./old Orders 0 -n 0 --json --raw | gantry store import ./new --keep-times",
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		i := importer{a: a, keepTimes: keepTimes, meter: a.meter(), halves: make(map[message.PhysicalOffset]message.PhysicalOffset)}
		open := func() io.ReadCloser { return a.input(ctx, "messages") }
		if in != "" && in != "-" {
			f, err := os.Open(in)
			if err != nil {
				return err
			}
			defer f.Close()
			if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
				i.total = fi.Size()
			}
			open = func() io.ReadCloser { return interruptible(ctx, f) }
		}
		o := gantry.Options{NoDelay: true, LongTopics: true}
		if err := a.options(&o, args[0]); err != nil {
			return err
		}
		if keepTimes {
			o.Now = i.now
		}
		s, err := a.openToWrite(ctx, args[0], &o)
		if err != nil {
			return err
		}
		src := open()
		defer src.Close()
		err = i.run(ctx, s, src, lineLimit(o.MaxMessageSize))
		i.storeTime.Store(0) // closing writes the present
		if err := errors.Join(err, s.Close()); err != nil {
			a.note("%s stored, %d refused before this:", plural(i.sum.Stored, "message"), i.sum.Refused)
			return failed(err)
		}
		if a.json {
			err = a.printJSON(i.sum)
		} else {
			err = a.printf("%s stored, %d refused%s\n", plural(i.sum.Stored, "message"), i.sum.Refused, i.postponed())
		}
		if err == nil && i.sum.Refused > 0 {
			err = found()
		}
		return err
	})
	cmd.Flags().StringVar(&in, "in", "", "`file` to read; default: the standard input")
	cmd.Flags().BoolVar(&keepTimes, "keep-times", false, "keep the store times")
	return cmd
}

// lineLimit bounds one line, in bytes: a body and properties that need six
// bytes in JSON for each of theirs, and the other fields.
func lineLimit(maxBody int) int {
	if maxBody == 0 {
		maxBody = message.DefaultMaxMessageSize
	}
	return int(min(6*(int64(maxBody)+message.MaxPropertiesSize)+64<<10, math.MaxInt32))
}

// importer is one run of import.
type importer struct {
	a         *app
	keepTimes bool
	total     int64 // bytes of the input; 0: unknown
	meter     *meter
	sum       importJSON
	// halves are the new places of half messages by their old ones, until the
	// end of the transaction has come by.
	halves map[message.PhysicalOffset]message.PhysicalOffset
	// storeTime is what the store takes for the present; 0 is the present.
	// The store's goroutines read it as well.
	storeTime atomic.Int64
}

func (i *importer) now() int64 {
	if t := i.storeTime.Load(); t != 0 {
		return t
	}
	return i.a.now().UnixMilli()
}

// run stores the messages of src. It stops at the first error that is not the
// message's own.
func (i *importer) run(ctx context.Context, s *gantry.Store, src io.Reader, limit int) error {
	lines := tool.NewLines(src, limit)
	for {
		line, err := lines.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tool.ErrLineTooLong) {
			return fmt.Errorf("read line %d: %w", lines.Number(), err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = i.store(ctx, s, line)
		}
		switch {
		case err == nil:
			i.sum.Stored++
		case isRefusal(err):
			i.sum.Refused++
			i.a.note("line %d refused: %v", lines.Number(), err)
		default:
			return fmt.Errorf("line %d: %w", lines.Number(), err)
		}
		if i.total > 0 {
			i.meter.show("importing", lines.Bytes(), i.total, "bytes")
		} else {
			i.meter.show("importing", i.sum.Stored+i.sum.Refused, 0, "messages")
		}
	}
}

// lineError is what is wrong with a line before it is a message.
type lineError struct{ error }

func isRefusal(err error) bool {
	var bad lineError
	return errors.As(err, &bad) || errors.Is(err, tool.ErrLineTooLong) ||
		errors.Is(err, gantry.ErrMessageIllegal) || errors.Is(err, gantry.ErrPropertiesSizeExceeded)
}

// maxAhead is how far a store time may lie in the future: all that is stored
// later gets at least that time.
const maxAhead = 24 * time.Hour

func (i *importer) store(ctx context.Context, s *gantry.Store, line []byte) error {
	m, err := tool.FromJSON(line)
	if err != nil {
		return lineError{err}
	}
	t := m.StoreTimestamp
	if i.keepTimes {
		switch present := i.a.now(); {
		case t <= 0:
			return lineError{fmt.Errorf("storeTimestamp %d is no time to keep", t)}
		case t > present.Add(maxAhead).UnixMilli():
			return lineError{fmt.Errorf("storeTimestamp %d is more than a day in the future", t)}
		}
		i.storeTime.Store(t)
	}
	if half, ok := i.halves[m.PreparedTransactionOffset]; ok {
		delete(i.halves, m.PreparedTransactionOffset)
		m.PreparedTransactionOffset = half
	}
	res, err := s.Put(ctx, &m.Message)
	if err != nil {
		return err
	}
	if m.Topic == message.HalfTopic || m.SysFlag.Transaction() == message.TxPrepared {
		i.halves[m.PhysicalOffset] = res.PhysicalOffset
	}
	if i.keepTimes && res.StoreTimestamp != t {
		i.sum.Postponed++
	}
	return nil
}

func (i *importer) postponed() string {
	if i.sum.Postponed == 0 {
		return ""
	}
	return fmt.Sprintf("; %d got a later store time than theirs", i.sum.Postponed)
}
