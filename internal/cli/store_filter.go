package cli

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/inspect"
)

// filterFlags are the flags of commands that search the log.
type filterFlags struct {
	cmd             *cobra.Command
	topic, tag, key string
	properties      []string
	body            string
	from, to        *timeFlag
	prepared, scan  bool
	live            bool
}

func (a *app) filterFlags(cmd *cobra.Command) *filterFlags {
	f := &filterFlags{cmd: cmd}
	flags := cmd.Flags()
	flags.StringVar(&f.topic, "topic", "", "only messages of `TOPIC`")
	flags.StringVar(&f.tag, "tag", "", "only messages with this `TAG` (the whole property TAGS)")
	flags.StringVar(&f.key, "key", "", "only messages with this `KEY` (a word of KEYS, or UNIQ_KEY)")
	flags.StringArrayVar(&f.properties, "property", nil, "only messages with the property `NAME=VALUE`, or NAME with any value; repeatable")
	flags.StringVar(&f.body, "body", "", "only messages whose body matches `REGEXP`; compressed bodies are opened")
	f.from, f.to = a.windowFlags(cmd)
	flags.BoolVar(&f.prepared, "prepared", false, "with --topic: also records of transactions that were not committed")
	flags.BoolVar(&f.scan, "scan", false, "read the log itself, also where queues or index lead to the messages")
	liveFlag(cmd, &f.live)
	return f
}

// filter makes a filter of the flags.
func (f *filterFlags) filter() (out inspect.Filter, err error) {
	out = inspect.Filter{Topic: f.topic, Tag: f.tag, Key: f.key, Prepared: f.prepared}
	for _, flag := range []string{"topic", "tag", "key", "body"} {
		if f.cmd.Flags().Changed(flag) && f.cmd.Flag(flag).Value.String() == "" {
			return out, usagef("--%s is empty", flag)
		}
	}
	if strings.Contains(f.key, " ") {
		return out, usagef("--key %q: a key has no blanks, which separate keys", f.key)
	}
	for _, p := range f.properties {
		name, value, pair := strings.Cut(p, "=")
		if name == "" || pair && value == "" {
			return out, usagef("--property %q is neither NAME=VALUE nor NAME", p)
		}
		out.Properties = append(out.Properties, [2]string{name, value})
	}
	if f.body != "" {
		if out.Body, err = regexp.Compile(f.body); err != nil {
			return out, usagef("--body: %v", err)
		}
	}
	out.From, out.To, err = window(f.from, f.to)
	return out, err
}

// openToInspect opens a store directory as it lies on the disk, without any
// recovery.
func (a *app) openToInspect(dir string, live bool) (*inspect.Store, error) {
	o, err := a.readOptions(dir, live)
	if err != nil {
		return nil, err
	}
	if err := a.findStore(dir, o); err != nil {
		return nil, failed(err)
	}
	s, err := inspect.Open(inspectOptions(o, dir))
	return s, failed(err)
}

func inspectOptions(o gantry.Options, dir string) inspect.Options {
	return inspect.Options{
		FS: o.FS, Dir: dir, CommitLogDirs: o.CommitLogDirs, ReadOnlyDirs: o.ReadOnlyCommitLogDirs,
		CommitLogFileSize: o.CommitLogFileSize, ConsumeQueueFileSize: o.ConsumeQueueFileSize,
	}
}

// maxNotes is how many damaged ranges are told one by one.
const maxNotes = 20

// damageNotes tells of damage that a search passes over.
func (a *app) damageNotes() func(inspect.Damage) {
	n := 0
	return func(d inspect.Damage) {
		switch n++; {
		case n <= maxNotes:
			a.note("passed over: positions %d to %d of the log: %s", d.From, d.To, d.Reason)
		case n == maxNotes+1:
			a.note("passed over: more; gantry store verify tells all")
		}
	}
}

// scanNotes tells what a user should know about how a search went.
func (a *app) scanNotes(res inspect.ScanResult) {
	if res.Unopened > 0 {
		a.note("not searched, because they are compressed and could not be opened: the bodies of %s", plural(res.Unopened, "message"))
	}
	if res.TailReason != "" {
		a.note("the log ends at position %d, in front of what is no whole record: %s", res.End, res.TailReason)
	}
}

// cut shortens what was found to n messages.
func cut(f inspect.Found, n int64) inspect.Found {
	if int64(len(f.Ends)) <= n {
		return f
	}
	f.Ends, f.Nexts = f.Ends[:n], f.Nexts[:n]
	if n == 0 {
		f.Data = nil
		return f
	}
	f.Data, f.Next = f.Data[:f.Ends[n-1]], f.Nexts[n-1]
	return f
}
