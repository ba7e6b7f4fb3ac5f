package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// store is the parent of the commands that work on a store directory.
func (a *app) store() *cobra.Command {
	return group(&cobra.Command{
		Use:   "store",
		Short: "Look into a store directory, or write one",
		Long: `The store commands work on the directory of a store (commitlog, consumequeue,
index …) written by Gantry or by Java RocketMQ 4.x and 5.x. Sizes are read off
the files. Those that only read change nothing in it, and refuse a directory
that a broker holds unless --live is given.`,
		Example: "  gantry store info ./data",
	}, a.storeInfo(), a.storeGet(), a.storeQuery(), a.storeOffset(), a.storeGrep(), a.storePut(), a.storeExport(), a.storeImport(), a.storeVerify(), a.storeDiff(), a.storeDump(), a.storeRecover(), a.storeRepair(), a.storeRebuild())
}

// options reads --config and --set into o, for the store in dir, and fills in
// what all commands set. Set o.ReadOnly before.
func (a *app) options(o *gantry.Options, dir string) error {
	settings, given, err := a.settings()
	if err != nil {
		return err
	}
	unknown, err := settings.Apply(o, dir)
	if err != nil {
		return usagef("%v", err)
	}
	var unused []string
	for _, name := range unknown {
		if given[name] {
			return usagef("--set %s: a store has no such property", name)
		}
		unused = append(unused, name)
	}
	if len(unused) > 0 {
		a.note("%s: not used here: %s", a.config, strings.Join(unused, ", "))
	}
	level := slog.LevelWarn
	if o.ReadOnly {
		level = slog.LevelError + 1 // the command itself tells what it meets
	}
	m := a.meter()
	o.FS, o.Logger = a.fs, a.logger(level)
	o.Now = func() int64 { return a.now().UnixMilli() }
	o.IndexLocation = a.now().Location()
	o.Progress = func(p gantry.Progress) { m.show(p.Step, p.Done, p.Total, p.Unit) }
	if err := o.Validate(); err != nil {
		return usagef("%v", err)
	}
	// What makes a broker fast takes memory, and disk, that a command for one
	// look or a few messages has no use for. The bytes are the same without.
	o.TransientStorePool, o.WarmUpFiles, o.LockMemory = false, false, false
	return nil
}

// liveFlag adds --live.
func liveFlag(cmd *cobra.Command, live *bool) {
	cmd.Flags().BoolVar(live, "live", false, "read beside the broker that holds the store: what is there now")
}

// rawFlag adds --raw.
func rawFlag(cmd *cobra.Command, raw *bool) {
	cmd.Flags().BoolVar(raw, "raw", false, "leave compressed bodies as they are stored")
}

// refuseHeld fails when somebody holds the store in dir.
func (a *app) refuseHeld(dir, hint string) error {
	holder, err := gantry.LockHolder(dir, a.fs)
	if err == nil && holder != "" {
		err = fmt.Errorf("%s is held by process %s: stop it%s: %w", dir, holder, hint, gantry.ErrLocked)
	}
	return failed(err)
}

// readOptions returns options for a store that is only looked at; with live
// also while somebody else holds it.
func (a *app) readOptions(dir string, live bool) (gantry.Options, error) {
	o := gantry.Options{ReadOnly: true, Live: live, NoDelay: true}
	if err := a.options(&o, dir); err != nil {
		return o, err
	}
	if live {
		return o, nil
	}
	return o, a.refuseHeld(dir, ", or read beside it with --live")
}

// openToRead opens a store without changing anything.
func (a *app) openToRead(ctx context.Context, dir string, live bool) (*gantry.Store, error) {
	o, err := a.readOptions(dir, live)
	if err != nil {
		return nil, err
	}
	s, err := gantry.Open(ctx, dir, &o)
	return s, failed(err)
}

// openToWrite opens or creates a store for a command that adds messages and
// does nothing else: it neither removes old files nor delivers delayed
// messages. Closing it puts everything on stable storage.
func (a *app) openToWrite(ctx context.Context, dir string, o *gantry.Options) (*gantry.Store, error) {
	if err := a.refuseHeld(dir, " first"); err != nil {
		return nil, err
	}
	o.Flush, o.CleanInterval, o.NoDelivery = gantry.FlushAsync, -1, true
	s, err := gantry.Open(ctx, dir, o)
	return s, failed(err)
}

// queueArg parses a queue id.
func queueArg(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, usagef("QUEUE %q is no number from 0 on", s)
	}
	return int32(n), nil
}

// timeFlag is the value of a flag that takes a time, in ms.
type timeFlag struct {
	a    *app
	text string
	ms   int64
}

func (t *timeFlag) String() string { return t.text }
func (t *timeFlag) Type() string   { return "time" }

func (t *timeFlag) Set(s string) (err error) {
	t.text = s
	t.ms, err = tool.ParseTime(s, t.a.now())
	return err
}

// windowFlags adds --from and --to.
func (a *app) windowFlags(cmd *cobra.Command) (from, to *timeFlag) {
	from, to = &timeFlag{a: a}, &timeFlag{a: a}
	cmd.Flags().Var(from, "from", "only messages stored at or after this `time` (ms, RFC 3339, -2h …)")
	cmd.Flags().Var(to, "to", "only messages stored at or before this `time`")
	return from, to
}

// window returns the bounds that the flags set: 0 is none.
func window(from, to *timeFlag) (lo, hi int64, err error) {
	if from.text != "" {
		lo = from.ms
	}
	if to.text != "" {
		hi = max(to.ms, 1) // before 1970 there is nothing, and 0 would be no bound
		if lo > hi {
			return 0, 0, usagef("--from %s is later than --to %s", from.text, to.text)
		}
	}
	return lo, hi, nil
}

// printMessage writes a message for people or machines.
func (a *app) printMessage(m message.Ext, raw bool) error {
	if a.json {
		_, err := a.Write(append(tool.AppendJSON(nil, &m, raw), '\n'))
		return err
	}
	return a.printf("%s", tool.Text(m, raw, a.now().Location()))
}

// clock writes a time for people, to the second.
func (a *app) clock(ms int64) string {
	if ms <= 0 {
		return "-"
	}
	return time.UnixMilli(ms).In(a.now().Location()).Format("2006-01-02 15:04:05")
}
