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
		in, format string
		keepTimes  bool
		first      int
		cf         clientFlags
	)
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Append exported messages",
		Long: `Appends one message for each line of JSON, in the form that export writes and
the other commands print with --json, or for each record of CSV (--format csv,
or a FILE named .csv), creating the store if need be. Every field is kept but
the offsets and ids, which are given anew; the end of a transaction then refers
to the new place of its half message. A message of a delay level is stored as it
is, in the schedule topic. Topics with inner batches need their
config/topics.json beforehand.

With --keep-times each message keeps its store time, except that a log's times
do not go backwards: a message older than the one before it gets that one's
time, and the end says how many did.

With --namesrv and without DIR the messages are sent to the brokers of a
cluster, in the order of the lines, each to the queue of the same number as far
as there is one: so that what a dead broker has left can be consumed. They get
the time of now. Refused are messages that are a broker's own, such as delayed
ones that were still waiting, and those that were not committed.

Lines that cannot be stored are refused with their number and the reason, the
others are stored; the exit code is then 1. Everything is on stable storage when
the command ends. One that was interrupted says how to go on.`,
		Example: "  gantry store export ./old --raw | gantry store import ./new --keep-times\n" +
			"  gantry store import ./data --in orders.csv\n" +
			"  gantry store import ./data --in messages.ndjson --from-line 120001\n" +
			"  gantry store export ./dead --topic Orders --from -2h | gantry store import --namesrv 10.0.0.1:9876",
	}
	arguments(cmd, "DIR")
	cmd.Use = "import {DIR | --namesrv ADDR}"
	dirArgs := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("namesrv") {
			return dirArgs(cmd, args)
		}
		if len(args) > 0 {
			return usagef("messages go into DIR or, by --namesrv, to servers")
		}
		return nil
	}
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if format != "" && format != formatJSON && format != formatCSV {
			return usagef("--format %s is neither %s nor %s", format, formatJSON, formatCSV)
		}
		if first < 1 {
			return usagef("--from-line %d is no line", first)
		}
		if keepTimes && len(args) == 0 {
			return usagef("--keep-times is for DIR: servers give messages the time of now")
		}
		i := importer{a: a, keepTimes: keepTimes, meter: a.meter(), next: first, halves: make(map[message.PhysicalOffset]message.PhysicalOffset)}
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
		limit := 0
		var done func() error
		if len(args) == 0 {
			r, err := a.replay(&cf)
			if err != nil {
				return err
			}
			i.put, done = r.put, r.close
		} else {
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
			limit, done = o.MaxMessageSize, s.Close
			i.put = func(ctx context.Context, m *message.Ext) error { return i.store(ctx, s, m) }
		}
		src := open()
		defer src.Close()
		recs, err := newRecords(src, format == formatCSV || format == "" && isCSVName(in), lineLimit(limit))
		if err == nil {
			err = recs.each(ctx, src, first, func(r *record) error { return i.record(ctx, r) })
		}
		i.storeTime.Store(0) // closing writes the present
		if err := errors.Join(err, done()); err != nil {
			a.note("%s stored, %d refused before this; --from-line %d goes on", plural(i.sum.Stored, "message"), i.sum.Refused, i.next)
			return unanswered(err)
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
	cf.add(cmd)
	cmd.Flags().StringVar(&in, "in", "", "`FILE` to read; default: the standard input")
	cmd.Flags().StringVar(&format, "format", "", "`FORMAT`: ndjson or csv; default: by the name of the file, else ndjson")
	cmd.Flags().BoolVar(&keepTimes, "keep-times", false, "keep the store times")
	cmd.Flags().IntVar(&first, "from-line", 1, "begin at this `LINE`")
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
	next      int // line to go on with
	put       func(context.Context, *message.Ext) error
	// halves are the new places of half messages by their old ones, of the last
	// maxHalves; order are the old places, oldest first.
	halves map[message.PhysicalOffset]message.PhysicalOffset
	order  []message.PhysicalOffset
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

// record stores the message of a line. The error is one that is not the
// message's own.
func (i *importer) record(ctx context.Context, r *record) error {
	err := r.err
	if err == nil {
		err = i.put(ctx, &r.m)
	}
	switch {
	case err == nil:
		i.sum.Stored++
	case isRefusal(err):
		i.sum.Refused++
		i.a.note("line %d refused: %v", r.line, err)
	default:
		return fmt.Errorf("line %d: %w", r.line, err)
	}
	i.next = r.line + 1
	if i.total > 0 {
		i.meter.show("importing", r.bytes, i.total, "bytes")
	} else {
		i.meter.show("importing", i.sum.Stored+i.sum.Refused, 0, "messages")
	}
	return nil
}

func isRefusal(err error) bool {
	var bad lineError
	return errors.As(err, &bad) || errors.Is(err, tool.ErrLineTooLong) ||
		errors.Is(err, gantry.ErrMessageIllegal) || errors.Is(err, gantry.ErrPropertiesSizeExceeded)
}

// maxAhead is how far a store time may lie in the future: all that is stored
// later gets at least that time.
const maxAhead = 24 * time.Hour

func (i *importer) store(ctx context.Context, s *gantry.Store, m *message.Ext) error {
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
	// 0 is the place of the first message, but mostly says that there is none.
	if ends := m.SysFlag.Transaction() == message.TxCommit; ends || m.PreparedTransactionOffset != 0 {
		if half, ok := i.halves[m.PreparedTransactionOffset]; ok {
			m.PreparedTransactionOffset = half
		}
	}
	res, err := s.Put(ctx, &m.Message)
	if err != nil {
		return err
	}
	if m.Topic == message.HalfTopic || m.SysFlag.Transaction() == message.TxPrepared {
		i.half(m.PhysicalOffset, res.PhysicalOffset)
	}
	if i.keepTimes && res.StoreTimestamp != t {
		i.sum.Postponed++
	}
	return nil
}

// maxHalves bounds the memory for half messages: some 50 MB.
const maxHalves = 1 << 20

// half notes the new place of a half message.
func (i *importer) half(old, place message.PhysicalOffset) {
	if len(i.order) >= maxHalves {
		delete(i.halves, i.order[0])
		i.order = i.order[1:]
	}
	i.halves[old] = place
	i.order = append(i.order, old)
}

func (i *importer) postponed() string {
	if i.sum.Postponed == 0 {
		return ""
	}
	return fmt.Sprintf("; %d got a later store time than theirs", i.sum.Postponed)
}
