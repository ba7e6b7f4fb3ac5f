package gantry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/message"
)

// recover brings log, queues and index into agreement (the argument stands in
// docs/crash-safety.md, section 5). Up to the decision that the store can be
// opened it only reads; then abort is written, and only then things change.
//
//  1. From where: the checkpoint's own position, when this store wrote it last
//     and it still fits the log; else all of the log.
//  2. Where the log ends: at the first record that is not valid. Torn tail or
//     damage in the middle is decided here.
//  3. Queues are opened without the units of what will be replayed.
//  4. abort, truncation of the log's tail, index.
//  5. Replay: every record from the starting point on goes to its queue slot
//     and the index, unless it is there already.
func (s *Store) recover(ctx context.Context) error {
	s.recovering = true
	defer func() { s.recovering = false }()
	hadAbort, err := checkpoint.HasAbort(s.fs, s.dir)
	if err != nil {
		return err
	}
	s.recovery.CleanStop = !hadAbort

	plan, err := s.planRecovery()
	if err != nil {
		return err
	}
	tail, err := s.log.FindTail(ctx, plan.checkFrom, commitlog.ScanOptions{
		Check:    s.recoveryCheck(),
		Progress: func(done, total int64) { s.opts.Progress(Progress{"checking the commit log", done, total, "bytes"}) },
	})
	if err == nil && s.opts.Live {
		err = s.settleTail(ctx, &tail)
	}
	if err != nil {
		return err
	}
	s.recovery.MinOffset, s.recovery.EndOffset, s.recovery.ScannedFrom = s.log.Min(), tail.End, plan.checkFrom
	if tail.Reason != nil {
		s.recovery.TailReason = tail.Reason.Error()
	}
	quarantine, err := s.judgeTail(tail, plan)
	if err != nil {
		return err
	}
	if s.opts.ReadOnly && !quarantine && tail.ValidBehind > 0 {
		if err := s.lookBehind(&tail); err != nil {
			return err
		}
	}
	emptied, err := s.logEmptied(ctx, tail, plan)
	if err != nil {
		return err
	}
	if emptied && !s.opts.AllowEmptyLog {
		return fmt.Errorf("%s: %w; restore the log, or open with AllowEmptyLog to give the queues up", s.opts.CommitLogDirs[0], ErrQueuesWithoutLog)
	}
	if err := s.openQueues(ctx, min(plan.discardFrom, tail.End)); err != nil {
		return err
	}
	if plan.flushedTo > tail.End {
		s.repaired("the log ends at %d, but had reached the disk up to %d: what followed is lost", tail.End, plan.flushedTo)
	}
	settled := false // nothing can stand behind the ends of the queues
	if plan.ext != nil {
		count, hash := s.queues.Fingerprint()
		settled = s.recovery.CleanStop && plan.ext.Clean && tail.End == plan.ext.DispatchedTo && !s.queues.misfits
		if count != plan.ext.QueueCount || hash != plan.ext.QueueHash {
			settled = false
			s.repaired("the consume queues are not those of the checkpoint; all were compared with the log")
			plan.replayFrom = s.log.Min()
		}
	}

	// The decision is taken: from here on things change.
	if err := checkpoint.CreateAbort(s.fs, s.dir, os.Getpid()); err != nil {
		return fmt.Errorf("create the abort file: %w", err)
	}
	if s.lock != nil {
		if err := checkpoint.MarkLock(s.lock); err != nil {
			return err
		}
	}
	if quarantine {
		if err := s.quarantine(tail.End); err != nil {
			return fmt.Errorf("keep the records behind %d: %w", tail.End, err)
		}
	}
	if err := s.removeEmptyLogFiles(); err != nil {
		return err
	}
	if !s.recovery.CleanStop && !s.opts.ReadOnly && plan.flushedTo >= 0 {
		if err := s.log.Renew(plan.flushedTo, tail.End); err != nil {
			return err
		}
	}
	lastTime := tail.StoreTime
	if tail.Last < 0 && plan.ext != nil {
		lastTime = plan.ext.LastStoreTime
	}
	s.recovery.Truncated = int64(tail.DataEnd - tail.End)
	if err := s.log.SetEnd(tail.End, lastTime); err != nil {
		return fmt.Errorf("truncate the commit log to %d: %w", tail.End, err)
	}
	if emptied {
		if err := s.queues.RemoveAll(); err != nil {
			return err
		}
	}
	if !settled { // else a look into each of perhaps 100 000 queues would find nothing
		if err := s.queues.TrimAll(ctx); err != nil {
			return fmt.Errorf("trim consume queues: %w", err)
		}
	}
	if err := s.recoverRemovals(&plan, tail.End); err != nil {
		return err
	}
	from, err := s.openIndex(ctx, plan.ext, plan.replayFrom, tail.End)
	if err != nil {
		return err
	}
	if err := s.replay(ctx, from, tail, plan); err != nil {
		return err
	}
	if err := s.queues.CorrectMin(ctx, s.log.Min()); err != nil {
		return err
	}
	s.table.m = make(map[queueKey]*topicQueue) // entries made while replaying know old ends
	if err := s.scheduler.load(s); err != nil {
		return err
	}
	s.reportRecovery()
	return s.writeCheckpoint(ctx, false)
}

// settleTail looks again at what seems damaged to a look beside a broker. That
// appends while the log is read: zeros that were seen may be in front of records
// that came a moment later. All in front of a record that can be seen was
// written before it, so damage is only what does not go away.
func (s *Store) settleTail(ctx context.Context, tail *commitlog.Tail) error {
	for tail.ValidBehind > 0 || tail.Partial {
		from := tail.End
		if tail.Last >= 0 {
			from = tail.Last
		}
		again, err := s.log.FindTail(ctx, from, commitlog.ScanOptions{Check: s.recoveryCheck()})
		if err != nil || again.End == tail.End {
			return err
		}
		seen := tail.LastBehind
		if tail.Last >= 0 {
			again.Records--
		}
		again.Records += tail.Records
		again.Disorder += tail.Disorder
		if tail.Disorder > 0 {
			again.FirstDisorder = tail.FirstDisorder
		}
		if *tail = again; tail.End > seen && seen >= 0 {
			break // all that was there
		}
	}
	tail.ValidBehind, tail.FirstBehind, tail.LastBehind, tail.Partial = 0, -1, -1, false
	tail.DataEnd, tail.Reason = tail.End, nil // what is behind it is being written
	return nil
}

// recoveryCheck says what is verified of each record.
func (s *Store) recoveryCheck() message.CheckOptions {
	if s.opts.VerifyPropertyCRC {
		return message.CheckOptions{RequirePropertyCRC: true}
	}
	return message.CheckOptions{BodyCRC: !s.opts.SkipCRC}
}

// removeEmptyLogFiles removes files without length: a Java broker before 5.1.3
// does not start with one.
func (s *Store) removeEmptyLogFiles() error {
	for _, name := range s.emptyLogFiles {
		if err := s.fs.Remove(name); err != nil {
			return err
		}
		if err := s.fs.SyncDir(filepath.Dir(name)); err != nil {
			return err
		}
	}
	return nil
}

// quarantine copies what lies behind the end of the log.
func (s *Store) quarantine(end message.PhysicalOffset) error {
	copies, err := s.log.Quarantine(end, filepath.Join(s.dir, "quarantine"))
	for _, c := range copies {
		s.recovery.Quarantined = append(s.recovery.Quarantined, c.Path)
	}
	return err
}

// recoveryPlan says where the steps of recovery begin.
type recoveryPlan struct {
	checkFrom   message.PhysicalOffset // records from here on are checked
	replayFrom  message.PhysicalOffset // records from here on are compared with queues and index
	discardFrom message.PhysicalOffset // queue units of records from here on are not believed
	ext         *checkpoint.Ext        // the checkpoint that the plan rests on; nil: none
	flushedTo   message.PhysicalOffset // the log before it was on stable storage; -1: not known
}

// planRecovery decides from where to check and replay.
func (s *Store) planRecovery() (recoveryPlan, error) {
	v, ext := s.checkpoint.Load()
	if ext != nil {
		ok, err := s.extFits(ext)
		if err != nil {
			return recoveryPlan{}, err
		}
		if ok {
			at := ext.DispatchedTo
			return recoveryPlan{checkFrom: s.checkStart(ext), replayFrom: at, discardFrom: at, ext: ext, flushedTo: ext.FlushedTo}, nil
		}
	}
	// Another program wrote last, or nothing is known. Units of all queues are
	// believed as far as they fit the log, and each is compared with it.
	all := recoveryPlan{checkFrom: s.log.Min(), replayFrom: s.log.Min(), discardFrom: math.MaxInt64, flushedTo: -1}
	if ext != nil {
		all.flushedTo = ext.FlushedTo
	}
	if len(s.log.Files()) == 0 {
		return all, nil
	}
	s.recovery.ForeignWriter = true
	if !s.opts.ReadOnly {
		return all, nil
	}
	// A look must not read the whole log of a large store: what upstream
	// itself relies on has to do, its times after a crash, and the newest file
	// with records after a clean stop.
	upTo := int64(math.MaxInt64)
	if !s.recovery.CleanStop {
		upTo = max(0, min(v.PhysicTime, v.LogicsTime)-upstreamTimeMargin)
	}
	start, ok, err := s.log.StartFileByTime(upTo, s.recoveryCheck())
	if err != nil || !ok {
		return all, err
	}
	all.checkFrom, all.replayFrom = start, start
	return all, nil
}

// checkBack is how far before the checkpoint's position the log is checked
// again, in bytes: it takes some hundredths of a second and shows damage while
// the store can still be refused. Deeper down it shows when it is read.
const checkBack = 64 << 20

// checkStart returns where checking the log begins: at the start of the file
// with the checkpoint's last record when that is near, else at its position.
func (s *Store) checkStart(ext *checkpoint.Ext) message.PhysicalOffset {
	for _, f := range s.log.Files() {
		if f.Start <= ext.LastRecord && ext.LastRecord < f.End && ext.DispatchedTo-f.Start <= checkBack {
			return f.Start
		}
	}
	return ext.DispatchedTo
}

// upstreamTimeMargin is how far upstream goes back before its checkpoint
// times, in ms.
const upstreamTimeMargin = 3000

// extFits reports whether the checkpoint's position is the end of the record
// that it names, within the log.
func (s *Store) extFits(ext *checkpoint.Ext) (bool, error) {
	at := ext.DispatchedTo
	switch {
	case at < s.log.Min() || at > s.log.End():
		return false, nil
	case ext.LastRecord < 0:
		return at == s.log.Min(), nil // nothing has been dispatched yet
	}
	v, _, err := s.log.ReadRecord(ext.LastRecord, nil, s.recoveryCheck())
	if err != nil {
		if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) {
			return ext.LastRecord < s.log.Min() && at == s.log.Min(), nil
		}
		return false, err
	}
	if props := v.PropsBytes(); len(props) > 0 && props[len(props)-1] == 0 {
		return false, nil // no writer ends properties so: its end may have been lost
	}
	end := ext.LastRecord + message.PhysicalOffset(v.Size)
	if end == at {
		return true, nil
	}
	// Only a blank record may lie between.
	h, err := s.log.ReadHeader(end)
	return err == nil && h.Kind == message.KindBlank && end+message.PhysicalOffset(h.Size) == at, nil
}

// judgeTail decides what the end of the valid records is: the ordinary end of
// a log, possibly torn by a crash, or damage with records behind it. It
// reports whether those records are to be set aside.
func (s *Store) judgeTail(tail commitlog.Tail, plan recoveryPlan) (quarantine bool, err error) {
	if tail.ValidBehind == 0 && !tail.Partial {
		return false, nil
	}
	// Pages reach the disk in any order, so after a power cut valid records
	// may stand behind lost ones. Those were never promised, unless the log is
	// known to have been flushed beyond the hole.
	if tail.PowerLoss && !s.recovery.CleanStop && tail.End >= plan.flushedTo {
		s.repaired("the log was torn at %d by a power cut; %d later records were never confirmed and were set aside", tail.End, tail.ValidBehind)
		return true, nil
	}
	if s.opts.Damage == QuarantineDamage {
		s.repaired("damage at %d; %d valid records behind it were set aside", tail.End, tail.ValidBehind)
		return true, nil
	}
	if s.opts.ReadOnly {
		s.warn("damage at %d, %d valid records behind it; the store must be repaired before it can be written: %v", tail.End, tail.ValidBehind, tail.Reason)
		return false, nil
	}
	var corrupt *CorruptError
	if !errors.As(tail.Reason, &corrupt) {
		corrupt = &CorruptError{File: s.opts.CommitLogDirs[0], Offset: int64(tail.End), Reason: "the log ends", Err: tail.Reason}
	}
	return false, fmt.Errorf("damage in the middle of the commit log, %d valid records follow, the first at %d; repair the store, or open it with QuarantineDamage to set them aside: %w",
		tail.ValidBehind, tail.FirstBehind, corrupt)
}

// lookBehind moves the end of a log that is only looked at behind its last
// valid record: who reads a damaged store wants what is intact, and is told of
// the rest when it comes to it.
func (s *Store) lookBehind(tail *commitlog.Tail) error {
	h, err := s.log.ReadHeader(tail.LastBehind)
	if err != nil {
		return fmt.Errorf("read the last record behind the damage: %w", err)
	}
	tail.End = tail.LastBehind + message.PhysicalOffset(h.Size)
	tail.Last, tail.StoreTime, tail.DataEnd = tail.LastBehind, h.StoreTimestamp, max(tail.DataEnd, tail.End)
	s.recovery.EndOffset, s.recovery.TailReason = tail.End, ""
	return nil
}

func (s *Store) repaired(format string, args ...any) {
	s.recovery.Repaired = append(s.recovery.Repaired, fmt.Sprintf(format, args...))
}

// logEmptied reports whether the log has no record although queues speak of
// some, and although a crash cannot be the reason: the files are on a volume
// that is not mounted, or somebody removed them (store-behaviour L5).
func (s *Store) logEmptied(ctx context.Context, tail commitlog.Tail, plan recoveryPlan) (bool, error) {
	if tail.End > s.log.Min() || len(s.log.Files()) > 0 && !s.recovery.CleanStop && plan.flushedTo <= tail.End {
		return false, nil
	}
	warnings := len(s.recovery.Warnings)
	if err := s.openQueues(ctx, math.MaxInt64); err != nil {
		return false, err
	}
	ahead := false
	for q := range s.queues.All() {
		ahead = ahead || q.Max() > 0 && q.MaxPhysical() > tail.End
	}
	// They are opened again, to be cut at the log's end.
	s.recovery.Warnings = s.recovery.Warnings[:warnings]
	queues := s.queues
	s.queues = nil
	queues.Discard()
	return ahead, nil
}

// replay dispatches the records from from to the end of the log again.
func (s *Store) replay(ctx context.Context, from message.PhysicalOffset, tail commitlog.Tail, plan recoveryPlan) error {
	s.dispatched = dispatched{to: from, last: -1}
	s.indexedTo = -1
	if s.index != nil {
		_, s.indexedTo = s.index.Last()
	}
	for from < tail.End {
		var failed error
		end, err := s.log.ScanAhead(ctx, from, tail.End, commitlog.ScanOptions{
			Progress: func(done, total int64) { s.opts.Progress(Progress{"replaying", done, total, "bytes"}) },
		}, func(v *message.View) error {
			s.recovery.Replayed++
			failed = s.dispatchView(v)
			return failed
		})
		if err == nil {
			break
		}
		if !s.opts.ReadOnly || failed != nil || !errors.Is(err, ErrCorrupt) {
			return fmt.Errorf("replay from %d, at %d: %w", from, end, err)
		}
		from = s.nextRecord(end, tail.End) // see lookBehind
	}
	last, t := s.dispatched.last, s.dispatched.storeTime
	if last < 0 { // nothing was replayed: the checkpoint knows
		if ext := plan.ext; ext != nil && ext.DispatchedTo <= tail.End {
			last, t = ext.LastRecord, ext.LastStoreTime
		}
	}
	s.setDispatched(tail.End, last, t)
	// Units behind the last record that was replayed are leftovers.
	return s.queues.TruncateFrom(ctx, tail.End)
}

// reportRecovery tells what was found.
func (s *Store) reportRecovery() {
	r := s.recovery
	s.opts.Logger.Info("store opened", "dir", s.dir, "cleanStop", r.CleanStop, "min", r.MinOffset, "end", r.EndOffset,
		"replayed", r.Replayed, "truncated", r.Truncated, "queues", s.queues.Len())
	if r.TailReason != "" {
		s.opts.Logger.Warn("the log ended in bytes that are no record", "physicalOffset", r.EndOffset, "reason", r.TailReason)
	}
	for _, what := range r.Repaired {
		s.opts.Logger.Warn("repaired while opening", "what", what)
	}
	if s.opts.Events.Recovered != nil {
		s.opts.Events.Recovered(r)
	}
}
