package gantry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// CleanOptions say how Clean works.
type CleanOptions struct {
	// DryRun removes nothing and returns what would go and why.
	DryRun bool
	// AnyHour removes for age without regard to Options.DeleteWhen.
	AnyHour bool
}

// runCleaner looks at age and disk every CleanInterval until ctx ends.
func (s *Store) runCleaner(ctx context.Context) {
	if s.opts.CleanInterval < 0 {
		return
	}
	// A store that is opened on a full disk refuses puts at once.
	if use, err := s.diskUse(); err == nil {
		s.setDiskFull(use)
	}
	t := time.NewTicker(s.opts.CleanInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if _, err := s.Clean(ctx, CleanOptions{}); err != nil && ctx.Err() == nil {
				s.reportWriteError("cleaning", err)
			}
		}
	}
}

// Clean removes commit log files that are older than Options.Reserved, in the
// hours of DeleteWhen or when the disk is used beyond DiskMaxUsedPercent, and
// files of any age when it is used beyond DiskCleanForciblyPercent; at most
// DeleteBatch of them, oldest first, never the newest, never one with records
// that have not been dispatched. Queue and index files that only speak of
// removed records follow. It also decides whether puts are refused for want of
// space. Age is that of the records, not of the file.
func (s *Store) Clean(ctx context.Context, opts CleanOptions) ([]Removal, error) {
	if s.closed.Load() {
		return nil, ErrClosed
	}
	if s.opts.ReadOnly && !opts.DryRun {
		return nil, fmt.Errorf("clean: %w", ErrReadOnly)
	}
	s.cleanMu.Lock()
	defer s.cleanMu.Unlock()
	use, err := s.diskUse()
	if err != nil {
		return nil, fmt.Errorf("disk use is not known, nothing is removed: %w", err)
	}
	if !opts.DryRun {
		s.setDiskFull(use)
	}
	plan, err := s.planRemoval(use, opts.AnyHour)
	if err != nil {
		return nil, err
	}
	if opts.DryRun {
		return plan, nil
	}
	var errs []error
	for i, r := range plan {
		gone, err := s.log.RemoveFront(1, func(f commitlog.FileInfo) bool { return f.Path == r.File })
		if err == nil && len(gone) == 0 {
			err = errors.New("it is not flushed yet")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", r.File, err))
			plan = plan[:i]
			break
		}
		s.opts.Logger.Info("removed commit log file", "file", r.File, "size", r.Size, "lastTimestamp", r.LastTimestamp, "reason", r.Reason)
		if r.Unread {
			s.opts.Logger.Warn("removed a file with delayed messages that were not delivered", "file", r.File)
		}
		if s.opts.Events.Removed != nil {
			s.opts.Events.Removed(r)
		}
	}
	// Always, not only when something was removed: an earlier pass may have
	// failed half way.
	queueFiles, err := s.queues.DeleteBefore(s.log.Min())
	for _, f := range queueFiles {
		s.opts.Logger.Info("removed consume queue file", "file", f.Path, "size", f.Size, "reason", "the log no longer has its messages")
	}
	errs = append(errs, err)
	if s.index != nil {
		indexFiles, err := s.index.DeleteBefore(s.log.Min())
		for _, name := range indexFiles {
			s.opts.Logger.Info("removed index file", "file", name, "reason", "the log no longer has its messages")
		}
		errs = append(errs, err)
	}
	return plan, errors.Join(errs...)
}

// diskUse returns the used percentage of the fullest file system that the
// store writes to.
func (s *Store) diskUse() (float64, error) {
	worst := 0.0
	for _, dir := range append([]string{s.dir}, s.opts.CommitLogDirs...) {
		u, err := s.diskUsage(dir)
		if err != nil {
			return 0, err
		}
		worst = max(worst, u.Ratio()*100)
	}
	return worst, nil
}

// diskUsage asks about dir or, when it does not exist yet, its parent.
func (s *Store) diskUsage(dir string) (vfs.Usage, error) {
	if _, err := s.fs.Stat(dir); err != nil {
		dir = filepath.Dir(dir)
	}
	return s.fs.DiskUsage(dir)
}

func (s *Store) setDiskFull(use float64) {
	full := use > s.opts.DiskWarningPercent
	if s.diskFull.Swap(full) == full {
		return
	}
	if full {
		s.opts.Logger.Error("disk is nearly full, puts are refused", "usedPercent", use, "limit", s.opts.DiskWarningPercent)
	} else {
		s.opts.Logger.Info("disk has space again, puts are taken", "usedPercent", use)
	}
}

// planRemoval lists the commit log files to remove, oldest first.
func (s *Store) planRemoval(use float64, anyHour bool) ([]Removal, error) {
	hours, err := parseHours(s.opts.DeleteWhen)
	if err != nil {
		return nil, err
	}
	now := s.opts.Now()
	byAge := s.opts.Reserved >= 0 && (anyHour || hours[time.UnixMilli(now).Hour()] || use > s.opts.DiskMaxUsedPercent)
	forced := !s.opts.KeepUnexpired && use > s.opts.DiskCleanForciblyPercent
	if !byAge && !forced {
		return nil, nil
	}
	files := s.log.Files()
	pending := message.PhysicalOffset(math.MaxInt64)
	if !s.opts.NoDelay && !s.opts.NoDelivery { // otherwise nobody here delivers
		pending = s.scheduler.pendingFrom()
	}
	var plan []Removal
	for i := 0; i+1 < len(files) && len(plan) < s.opts.DeleteBatch; i++ {
		f, next := files[i], files[i+1]
		if s.dispatchedPosition() < next.Start {
			break // queues and index have not seen it yet
		}
		last, err := s.log.NewestStoreTime(f.Start)
		if err != nil {
			return plan, fmt.Errorf("store time of %s: %w", f.Path, err)
		}
		r := Removal{File: f.Path, Size: int64(f.End - f.Start), LastTimestamp: last, Unread: pending < next.Start}
		age := time.Duration(now-last) * time.Millisecond
		switch {
		case byAge && last > 0 && age >= s.opts.Reserved && !r.Unread:
			r.Reason = fmt.Sprintf("its records are %v old, kept are %v", age.Truncate(time.Second), s.opts.Reserved)
		case forced && int64(s.log.End()-next.Start) >= s.opts.KeepBytes:
			r.Reason = fmt.Sprintf("the disk is %.2f %% used, the limit is %g %%", use, s.opts.DiskCleanForciblyPercent)
		default:
			return plan, nil
		}
		plan = append(plan, r)
	}
	return plan, nil
}

// parseHours reads a list of hours like "04" or "04;16".
func parseHours(list string) ([24]bool, error) {
	var hours [24]bool
	for _, part := range strings.Split(list, ";") {
		h, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || h < 0 || h > 23 {
			return hours, fmt.Errorf("%q is not an hour from 0 to 23 in %q", part, list)
		}
		hours[h] = true
	}
	return hours, nil
}
