package cli

import (
	"context"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/inspect"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// exportJSON is the result for machines, of an export into a file.
type exportJSON struct {
	Messages           int64 `json:"messages"`
	Bytes              int64 `json:"bytes"`
	DamagedRanges      int64 `json:"damagedRanges"`
	NextPhysicalOffset int64 `json:"nextPhysicalOffset"`
}

func (a *app) storeExport() *cobra.Command {
	var (
		raw                 bool
		format, out, resume string
		from                int64
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write messages with every field, for import",
		Long: `Writes all messages, or those that fit the flags, in the order in which they
were stored: as lines of JSON like the other commands print with --json, or as
CSV. Import reads both. Bodies that are compressed are opened, unless --raw is
given: then the imported records hold the same bytes.

A FILE is called FILE.part until it is whole. --resume FILE goes on with an
export that was interrupted, or adds what was stored since one was finished:
behind the last whole line. --from-physical does so for an export elsewhere; the
position is told at the end. What is damaged in the log is passed over and told;
the exit code is then 1.`,
		Example: "  gantry store export ./data --out messages.ndjson\n" +
			"  gantry store export ./data --topic Orders --from -2h --format csv > orders.csv\n" +
			"  gantry store export ./old --raw | gantry store import ./new --keep-times",
	}
	arguments(cmd, "DIR")
	f := a.filterFlags(cmd)
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if format != formatJSON && format != formatCSV {
			return usagef("--format %s is neither %s nor %s", format, formatJSON, formatCSV)
		}
		if from < 0 {
			return usagef("--from-physical %d is negative", from)
		}
		if out == "-" {
			out = ""
		}
		if resume != "" && (out != "" || cmd.Flags().Changed("from-physical")) {
			return usagef("--resume excludes --out and --from-physical: it goes on where the file ends")
		}
		filter, err := f.filter()
		if err != nil {
			return err
		}
		s, err := a.openToInspect(args[0], f.live)
		if err != nil {
			return err
		}
		e := exporter{a: a, raw: raw, csv: format == formatCSV, w: a.console, next: from, whole: from == 0}
		switch {
		case out != "":
			e.file, err = createOut(out)
		case resume != "":
			var old tool.Exported
			e.file, old, err = resumeOut(resume, e.csv)
			e.next, e.whole = old.Next, old.Size == 0
		}
		if err != nil {
			return failed(err)
		}
		if e.file != nil {
			e.w = e.file
		}
		return e.run(ctx, s, filter, f.scan)
	})
	rawFlag(cmd, &raw)
	cmd.Flags().StringVar(&format, "format", formatJSON, "`FORMAT`: ndjson or csv")
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to write; default: the standard output")
	cmd.Flags().StringVar(&resume, "resume", "", "go on with `FILE` behind its last whole line")
	cmd.Flags().Int64Var(&from, "from-physical", 0, "begin at this `OFFSET` in the commit log")
	return cmd
}

// The formats of exports.
const (
	formatJSON = "ndjson"
	formatCSV  = "csv"
)

// exporter is one run of export.
type exporter struct {
	a        *app
	raw, csv bool
	w        io.Writer
	file     *outFile // nil: the standard output
	whole    bool     // it begins with the first line
	next     int64    // where it goes on
	bytes    int64
}

func (e *exporter) run(ctx context.Context, s *inspect.Store, filter inspect.Filter, logOnly bool) error {
	a := e.a
	meter := a.meter()
	var err error
	if e.csv && e.whole {
		_, err = io.WriteString(e.w, tool.CSVHeader())
	}
	var res inspect.ScanResult
	if err == nil {
		res, err = s.Scan(ctx, inspect.ScanOptions{
			Filter: filter, From: e.next, LogOnly: logOnly, Format: e.format, Damage: a.damageNotes(),
			Take: func(found inspect.Found) error {
				n, err := e.w.Write(found.Data)
				e.bytes += int64(n)
				if err == nil {
					e.next = found.Next
				}
				return err
			},
			Progress: func(done, total int64) { meter.show("exporting", done, total, "bytes") },
		})
	}
	if e.file != nil {
		if err == nil {
			err = e.file.finish()
		} else {
			e.file.abandon()
			a.note("%s is not whole; --resume %s goes on with it", e.file.name+partSuffix, e.file.name)
		}
	}
	if err != nil {
		return failed(err)
	}
	a.scanNotes(res)
	sum := exportJSON{res.Messages, e.bytes, res.Damaged, e.next}
	switch {
	case e.file == nil:
		a.note("%s, %s; a later export goes on with --from-physical %d", plural(sum.Messages, "message"), humanize.IBytes(uint64(sum.Bytes)), sum.NextPhysicalOffset)
	case a.json:
		err = a.printJSON(sum)
	default:
		err = a.printf("%s, %s written to %s\n", plural(sum.Messages, "message"), humanize.IBytes(uint64(sum.Bytes)), tool.Printable(e.file.name))
	}
	if err == nil && res.Damaged > 0 {
		err = found()
	}
	return err
}

func (e *exporter) format(dst []byte, v *message.View) ([]byte, error) {
	m := v.Decode()
	if e.csv {
		return tool.AppendCSV(dst, &m, e.raw), nil
	}
	return append(tool.AppendJSON(dst, &m, e.raw), '\n'), nil
}
