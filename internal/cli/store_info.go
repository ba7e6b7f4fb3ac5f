package cli

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/inspect"
	"github.com/gantrymq/gantry/internal/tool"
)

// infoJSON is the line about the store; queueJSON one about a queue.
type infoJSON struct {
	Type                       string      `json:"type"`
	Dir                        string      `json:"dir"`
	CleanStop                  bool        `json:"cleanStop"`
	LastWriter                 string      `json:"lastWriter"`
	RocketMQSince              string      `json:"rocketmqSince,omitempty"`
	RocketMQTrace              string      `json:"rocketmqTrace,omitempty"`
	Bytes                      int64       `json:"bytes"`
	AllocatedBytes             int64       `json:"allocatedBytes"`
	MappedFileSizeCommitLog    int64       `json:"mappedFileSizeCommitLog"`
	MappedFileSizeConsumeQueue int64       `json:"mappedFileSizeConsumeQueue"`
	CommitLogFiles             int         `json:"commitLogFiles"`
	MinPhysicalOffset          int64       `json:"minPhysicalOffset"`
	MaxPhysicalOffset          int64       `json:"maxPhysicalOffset"`
	EarliestTimestamp          int64       `json:"earliestTimestamp"`
	LatestTimestamp            int64       `json:"latestTimestamp"`
	PhysicMsgTimestamp         int64       `json:"physicMsgTimestamp"`
	LogicsMsgTimestamp         int64       `json:"logicsMsgTimestamp"`
	IndexMsgTimestamp          int64       `json:"indexMsgTimestamp"`
	Topics                     int         `json:"topics"`
	Queues                     int         `json:"queues"`
	Messages                   int64       `json:"messages"`
	IndexFiles                 []indexJSON `json:"indexFiles"`
	ConfigFiles                []string    `json:"configFiles"`
	Locked                     bool        `json:"locked"`
	LockPid                    string      `json:"lockPid,omitempty"`
	// What recovery did, in memory only.
	Replayed   int64    `json:"replayedRecords"`
	Truncated  int64    `json:"truncatedBytes"`
	TailReason string   `json:"tailReason,omitempty"`
	Repaired   []string `json:"repaired,omitempty"`
	Warnings   []string `json:"warnings,omitempty"`
	// The background check of the one who has or had the store.
	Scrub *scrubJSON `json:"scrub,omitempty"`
}

// scrubJSON is how far the last pass came. Times are in ms.
type scrubJSON struct {
	Complete    bool   `json:"complete"`
	Started     int64  `json:"started"`
	Completed   int64  `json:"completed"` // the last pass that came to its end; 0: none
	Bytes       int64  `json:"bytes"`
	Records     int64  `json:"records"`
	Findings    int64  `json:"findings"`
	LastFinding string `json:"lastFinding,omitempty"`
}

type indexJSON struct {
	File           string `json:"file"`
	MaxHashSlotNum int32  `json:"maxHashSlotNum"`
	MaxIndexNum    int32  `json:"maxIndexNum"`
	Entries        int32  `json:"entries"`
	BeginTimestamp int64  `json:"beginTimestamp"`
	EndTimestamp   int64  `json:"endTimestamp"`
	BeginPhyOffset int64  `json:"beginPhyOffset"`
	EndPhyOffset   int64  `json:"endPhyOffset"`
}

// topicJSON is a line about a topic.
type topicJSON struct {
	Type     string `json:"type"`
	Topic    string `json:"topic"`
	Queues   int    `json:"queues"`
	Messages int64  `json:"messages"`
	Bytes    int64  `json:"bytes"` // of their records
	Estimate bool   `json:"estimate,omitempty"`
}

type queueJSON struct {
	Type      string `json:"type"`
	Topic     string `json:"topic"`
	QueueID   int32  `json:"queueId"`
	MinOffset int64  `json:"minOffset"`
	MaxOffset int64  `json:"maxOffset"`
	Count     int64  `json:"count"`
	Batch     bool   `json:"batch,omitempty"`
}

func (a *app) storeInfo() *cobra.Command {
	var live, all bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show what is in a store",
		Long: `Shows how much is in a store, from when to when, and whether it was stopped
cleanly; then its files, which topics are large, and the offsets of the queues.
What recovery would do to a store that was not stopped cleanly is done in
memory, and told. Sizes of topics are those of the messages that their queues
refer to, estimated where there are millions of them. Exits with 1 when the last
stop was not clean.`,
		Example: "  gantry store info ./data\n  gantry store info --live /var/rocketmq/store --json",
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		s, err := a.openToRead(ctx, args[0], live)
		if err != nil {
			return err
		}
		defer s.Close()
		info, err := s.Info()
		if err != nil {
			return err
		}
		holder, err := gantry.LockHolder(args[0], a.fs)
		if err != nil {
			return err
		}
		o, err := a.readOptions(args[0], true) // who holds it was looked at
		if err != nil {
			return err
		}
		files, err := inspect.Open(inspectOptions(o, args[0]))
		if err != nil {
			return err
		}
		topics, err := files.TopicSizes(ctx)
		if err != nil {
			return err
		}
		if a.json {
			err = a.infoJSON(info, holder, topics)
		} else {
			err = a.infoText(info, holder, topics, all)
		}
		if err == nil && !info.Recovery.CleanStop && holder == "" {
			err = found()
		}
		return err
	})
	liveFlag(cmd, &live)
	cmd.Flags().BoolVar(&all, "all", false, "show all topics and queues, however many")
	return cmd
}

func lastWriter(info gantry.Info) string {
	if info.Recovery.ForeignWriter {
		return "another program"
	}
	return "gantry"
}

// scrubbed reports whether the pass came to its end.
func scrubbed(c gantry.Scrub) bool { return c.Completed >= c.Started }

func topicsOf(queues []gantry.QueueInfo) (topics int, messages int64) {
	seen := make(map[string]bool)
	for _, q := range queues {
		seen[q.Topic] = true
		messages += int64(q.MaxOffset - q.MinOffset)
	}
	return len(seen), messages
}

func (a *app) infoJSON(info gantry.Info, holder string, sizes []inspect.TopicSize) error {
	topics, messages := topicsOf(info.Queues)
	out := infoJSON{
		Type: "store", Dir: info.Dir, CleanStop: info.Recovery.CleanStop, LastWriter: lastWriter(info), RocketMQSince: info.Release, RocketMQTrace: info.Trace,
		Bytes: info.Bytes, AllocatedBytes: info.AllocatedBytes,
		MappedFileSizeCommitLog: info.CommitLogFileSize, MappedFileSizeConsumeQueue: info.ConsumeQueueFileSize,
		CommitLogFiles:    len(info.CommitLogFiles),
		MinPhysicalOffset: int64(info.MinOffset), MaxPhysicalOffset: int64(info.EndOffset),
		EarliestTimestamp: info.EarliestTimestamp, LatestTimestamp: info.LatestTimestamp,
		PhysicMsgTimestamp: info.Checkpoint.PhysicMsgTimestamp, LogicsMsgTimestamp: info.Checkpoint.LogicsMsgTimestamp,
		IndexMsgTimestamp: info.Checkpoint.IndexMsgTimestamp,
		Topics:            topics, Queues: len(info.Queues), Messages: messages,
		IndexFiles: []indexJSON{}, ConfigFiles: append([]string{}, info.ConfigFiles...), Locked: holder != "", LockPid: holder,
		Truncated: info.Recovery.Truncated, Replayed: info.Recovery.Replayed, TailReason: info.Recovery.TailReason,
		Repaired: info.Recovery.Repaired, Warnings: info.Recovery.Warnings,
	}
	if c := info.Scrub; c.Started > 0 {
		out.Scrub = &scrubJSON{scrubbed(c), c.Started, c.Completed, c.Bytes, c.Records, c.Findings, c.LastFinding}
	}
	for _, f := range info.IndexFiles {
		out.IndexFiles = append(out.IndexFiles, indexJSON{
			filepath.Base(f.Path), f.Slots, f.Capacity, f.Entries, f.BeginTimestamp, f.EndTimestamp, int64(f.BeginOffset), int64(f.EndOffset),
		})
	}
	if err := a.printJSON(out); err != nil {
		return err
	}
	for _, t := range sizes {
		if err := a.printJSON(topicJSON{"topic", t.Topic, t.Queues, t.Messages, t.Bytes, t.Estimate}); err != nil {
			return err
		}
	}
	for _, q := range info.Queues {
		err := a.printJSON(queueJSON{"queue", q.Topic, q.QueueID, int64(q.MinOffset), int64(q.MaxOffset), int64(q.MaxOffset - q.MinOffset), q.Batch})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) infoText(info gantry.Info, holder string, sizes []inspect.TopicSize, all bool) error {
	var out bytes.Buffer
	topics, messages := topicsOf(info.Queues)
	span := "empty"
	if info.LatestTimestamp > 0 {
		span = a.clock(info.EarliestTimestamp) + " to " + a.clock(info.LatestTimestamp)
	}
	state := a.paint(green, "stopped cleanly")
	switch {
	case holder != "":
		state = "in use by process " + tool.Printable(holder)
	case !info.Recovery.CleanStop:
		state = a.paint(red, "not stopped cleanly")
	}
	fmt.Fprintf(&out, "%s: %s in %s of %s, %s, %s; %s\n", tool.Printable(info.Dir), plural(messages, "message"), plural(len(info.Queues), "queue"),
		plural(topics, "topic"), humanize.IBytes(uint64(info.EndOffset-info.MinOffset)), span, state)

	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %s\t%s\n", name, tool.Printable(fmt.Sprintf(format, args...)))
	}
	if holder == "" && !info.Recovery.CleanStop {
		row("state", "the abort file is there: what follows is what opening the store would give")
	}
	row("last writer", "%s", lastWriter(info))
	if info.Release != "" {
		row("RocketMQ", "%s or later has used it (%s)", info.Release, info.Trace)
	}
	row("size", "%s on the disk, %s by the lengths of the files", humanize.IBytes(uint64(info.AllocatedBytes)), humanize.IBytes(uint64(info.Bytes)))
	row("commit log", "positions %d to %d in %s of %s", info.MinOffset, info.EndOffset, plural(len(info.CommitLogFiles), "file"), humanize.IBytes(uint64(info.CommitLogFileSize)))
	row("consume queues", "files of %d bytes, %d units", info.ConsumeQueueFileSize, info.ConsumeQueueFileSize/20)
	row("checkpoint", "log %s, queues %s, index %s", a.clock(info.Checkpoint.PhysicMsgTimestamp), a.clock(info.Checkpoint.LogicsMsgTimestamp), a.clock(info.Checkpoint.IndexMsgTimestamp))
	for i, f := range info.IndexFiles {
		if !all && i >= maxRows {
			row("index files", "%s more", humanize.Comma(int64(len(info.IndexFiles)-i)))
			break
		}
		row("index file", "%s: %d of %d entries, %d slots, %s to %s", filepath.Base(f.Path), f.Entries, f.Capacity, f.Slots, a.clock(f.BeginTimestamp), a.clock(f.EndTimestamp))
	}
	if len(info.ConfigFiles) > 0 {
		row("config", "%s", strings.Join(info.ConfigFiles, " "))
	}
	if r := info.Recovery; !r.CleanStop {
		row("recovery", "%d records replayed, %d bytes behind the end of the log dropped (in memory)", r.Replayed, r.Truncated)
	}
	if info.Recovery.TailReason != "" {
		row("the log ends at", "%s", info.Recovery.TailReason)
	}
	for _, text := range info.Recovery.Repaired {
		row("repaired", "%s (in memory)", text)
	}
	for _, text := range info.Recovery.Warnings {
		row("warning", "%s", text)
	}
	if c := info.Scrub; c.Started > 0 {
		until := "not complete"
		if scrubbed(c) {
			until = "completed " + a.clock(c.Completed)
		}
		row("scrub", "begun %s, %s: %s of %s verified, %s", a.clock(c.Started), until, plural(c.Records, "record"), humanize.IBytes(uint64(c.Bytes)), plural(c.Findings, "finding"))
		if c.Findings > 0 {
			row("scrub found", "%s", c.LastFinding)
		}
	}
	w.Flush()
	a.topicTable(&out, sizes, all)
	a.queueTable(&out, info.Queues, all)
	_, err := a.Write(out.Bytes())
	return err
}

// maxRows is how many rows of a table are shown unless all are wanted.
const maxRows = 20

// topicTable writes the topics, the largest first.
func (a *app) topicTable(out *bytes.Buffer, sizes []inspect.TopicSize, all bool) {
	if len(sizes) == 0 {
		return
	}
	total := int64(0)
	for _, t := range sizes {
		total += t.Bytes
	}
	out.WriteByte('\n')
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "size\tshare\tmessages\tqueues\t  topic")
	for i, t := range sizes {
		if !all && i >= maxRows {
			w.Flush()
			fmt.Fprintf(out, "and %s; --all shows them\n", plural(len(sizes)-i, "smaller topic"))
			return
		}
		about := ""
		if t.Estimate {
			about = "~"
		}
		fmt.Fprintf(w, "%s%s\t%.1f%%\t%s%s\t%d\t  %s\n", about, humanize.IBytes(uint64(max(t.Bytes, 0))), 100*float64(t.Bytes)/float64(max(total, 1)),
			about, humanize.Comma(t.Messages), t.Queues, a.fit(tool.Printable(t.Topic), 44))
	}
	w.Flush()
}

// queueTable writes the queues.
func (a *app) queueTable(out *bytes.Buffer, queues []gantry.QueueInfo, all bool) {
	if len(queues) == 0 {
		return
	}
	out.WriteByte('\n')
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "queue\tmin\tmax\tcount\t  topic")
	for i, q := range queues {
		if !all && i >= 2*maxRows {
			w.Flush()
			fmt.Fprintf(out, "and %s more; --all shows them\n", plural(len(queues)-i, "queue"))
			return
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t  %s\n", q.QueueID, q.MinOffset, q.MaxOffset, q.MaxOffset-q.MinOffset, a.fit(tool.Printable(q.Topic), 50))
	}
	w.Flush()
}

// fit shortens text that stands at the end of a line, behind at most used
// characters, to the width of the terminal.
func (a *app) fit(text string, used int) string {
	room := a.width() - used
	if a.width() == 0 || room < 10 {
		return text
	}
	r := []rune(text)
	if len(r) <= room {
		return text
	}
	return string(r[:room-1]) + "…"
}

// plural is "1 file", "2,000 files".
func plural[T int | int64](n T, what string) string {
	if n != 1 {
		what += "s"
	}
	return humanize.Comma(int64(n)) + " " + what
}
