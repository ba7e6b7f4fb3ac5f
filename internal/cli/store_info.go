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
	var live bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show what is in a store",
		Long: `Shows sizes, offsets and times of a store, its queues, index files and
configuration files, how it was stopped and who holds it. What recovery would do
to a store that was not stopped cleanly is done in memory, and told. Exits with
1 when the last stop was not clean.`,
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
		print := a.infoText
		if a.json {
			print = a.infoJSON
		}
		err = print(info, holder)
		if err == nil && !info.Recovery.CleanStop && holder == "" {
			err = found()
		}
		return err
	})
	liveFlag(cmd, &live)
	return cmd
}

func lastWriter(info gantry.Info) string {
	if info.Recovery.ForeignWriter {
		return "another program"
	}
	return "gantry"
}

func topicsOf(queues []gantry.QueueInfo) (topics int, messages int64) {
	seen := make(map[string]bool)
	for _, q := range queues {
		seen[q.Topic] = true
		messages += int64(q.MaxOffset - q.MinOffset)
	}
	return len(seen), messages
}

func (a *app) infoJSON(info gantry.Info, holder string) error {
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
	for _, f := range info.IndexFiles {
		out.IndexFiles = append(out.IndexFiles, indexJSON{
			filepath.Base(f.Path), f.Slots, f.Capacity, f.Entries, f.BeginTimestamp, f.EndTimestamp, int64(f.BeginOffset), int64(f.EndOffset),
		})
	}
	if err := a.printJSON(out); err != nil {
		return err
	}
	for _, q := range info.Queues {
		err := a.printJSON(queueJSON{"queue", q.Topic, q.QueueID, int64(q.MinOffset), int64(q.MaxOffset), int64(q.MaxOffset - q.MinOffset), q.Batch})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) infoText(info gantry.Info, holder string) error {
	var out bytes.Buffer
	topics, messages := topicsOf(info.Queues)
	span := "empty"
	if info.LatestTimestamp > 0 {
		span = a.clock(info.EarliestTimestamp) + " to " + a.clock(info.LatestTimestamp)
	}
	fmt.Fprintf(&out, "%s: %s in %s of %s, %s\n", tool.Printable(info.Dir),
		plural(messages, "message"), plural(len(info.Queues), "queue"), plural(topics, "topic"), span)

	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %s\t%s\n", name, tool.Printable(fmt.Sprintf(format, args...)))
	}
	switch {
	case holder != "":
		row("state", "in use by process %s", holder)
	case info.Recovery.CleanStop:
		row("state", "stopped cleanly")
	default:
		row("state", "not stopped cleanly: the abort file is there")
	}
	row("last writer", "%s", lastWriter(info))
	if info.Release != "" {
		row("RocketMQ", "%s or later has used it (%s)", info.Release, info.Trace)
	}
	row("size", "%s on the disk, %s by the lengths of the files", humanize.IBytes(uint64(info.AllocatedBytes)), humanize.IBytes(uint64(info.Bytes)))
	row("commit log", "positions %d to %d in %s of %s", info.MinOffset, info.EndOffset, plural(len(info.CommitLogFiles), "file"), humanize.IBytes(uint64(info.CommitLogFileSize)))
	row("consume queues", "files of %d bytes, %d units", info.ConsumeQueueFileSize, info.ConsumeQueueFileSize/20)
	row("checkpoint", "log %s, queues %s, index %s", a.clock(info.Checkpoint.PhysicMsgTimestamp), a.clock(info.Checkpoint.LogicsMsgTimestamp), a.clock(info.Checkpoint.IndexMsgTimestamp))
	for _, f := range info.IndexFiles {
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
	w.Flush()

	if len(info.Queues) > 0 {
		out.WriteByte('\n')
		w = tabwriter.NewWriter(&out, 0, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "queue\tmin\tmax\tcount\t  topic")
		for _, q := range info.Queues {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t  %s\n", q.QueueID, q.MinOffset, q.MaxOffset, q.MaxOffset-q.MinOffset, tool.Printable(q.Topic))
		}
		w.Flush()
	}
	_, err := a.Write(out.Bytes())
	return err
}

// plural is "1 file", "2,000 files".
func plural[T int | int64](n T, what string) string {
	if n != 1 {
		what += "s"
	}
	return humanize.Comma(int64(n)) + " " + what
}
