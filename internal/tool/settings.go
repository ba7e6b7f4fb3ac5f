package tool

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"github.com/gantrymq/gantry"
)

// Settings are properties under RocketMQ's names, as broker.conf holds them.
type Settings map[string]string

// maxSettingsFile bounds a properties file, in bytes.
const maxSettingsFile = 1 << 20

// ReadSettings reads a file as java.util.Properties does: Latin-1 with \u
// escapes, no expansion of ${…}, the last of doubled keys counts.
func ReadSettings(name string) (Settings, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSettingsFile+1))
	if err == nil && len(data) > maxSettingsFile {
		err = fmt.Errorf("more than %d bytes", maxSettingsFile)
	}
	var p *properties.Properties
	if err == nil {
		l := properties.Loader{Encoding: properties.ISO_8859_1, DisableExpansion: true}
		p, err = l.LoadBytes(data)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return p.Map(), nil
}

// Set adds one KEY=VALUE and returns KEY.
func (p Settings) Set(pair string) (name string, err error) {
	name, value, ok := strings.Cut(pair, "=")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return "", fmt.Errorf("%q is not KEY=VALUE", pair)
	}
	p[name] = value
	return name, nil
}

// apply puts the value of a property into the options.
type apply func(o *gantry.Options, value string) error

// storeSettings are the properties of upstream's MessageStoreConfig that a
// store honours. Where zero fields of the options mean a default, a zero here
// is refused or made the smallest value that is none.
var storeSettings = map[string]apply{
	"mappedFileSizeCommitLog":         size(func(o *gantry.Options) *int64 { return &o.CommitLogFileSize }),
	"mappedFileSizeConsumeQueue":      size(func(o *gantry.Options) *int64 { return &o.ConsumeQueueFileSize }),
	"mapedFileSizeCommitLog":          size(func(o *gantry.Options) *int64 { return &o.CommitLogFileSize }), // of old releases
	"mapedFileSizeConsumeQueue":       size(func(o *gantry.Options) *int64 { return &o.ConsumeQueueFileSize }),
	"mapperFileSizeBatchConsumeQueue": size(func(o *gantry.Options) *int64 { return &o.BatchConsumeQueueFileSize }),
	"mappedFileSizeConsumeQueueExt":   size(func(o *gantry.Options) *int64 { return &o.ConsumeQueueExtFileSize }),
	"maxHashSlotNum":                  count(func(o *gantry.Options) *int32 { return &o.IndexSlots }),
	"maxIndexNum":                     count(func(o *gantry.Options) *int32 { return &o.IndexEntries }),
	"maxMessageSize":                  size(func(o *gantry.Options) *int { return &o.MaxMessageSize }),
	"flushIntervalCommitLog":          millis(func(o *gantry.Options) *time.Duration { return &o.FlushInterval }),
	"flushCommitLogThoroughInterval":  millis(func(o *gantry.Options) *time.Duration { return &o.FlushThoroughInterval }),
	"syncFlushTimeout":                millis(func(o *gantry.Options) *time.Duration { return &o.SyncFlushTimeout }),
	"commitIntervalCommitLog":         millis(func(o *gantry.Options) *time.Duration { return &o.CommitInterval }),
	"osPageCacheBusyTimeOutMills":     millis(func(o *gantry.Options) *time.Duration { return &o.BusyTimeout }),
	"cleanResourceInterval":           millis(func(o *gantry.Options) *time.Duration { return &o.CleanInterval }),
	"scrubRate":                       size(func(o *gantry.Options) *int64 { return &o.ScrubRate }), // bytes a second; not one of upstream's
	"transientStorePoolEnable":        truth(func(o *gantry.Options) *bool { return &o.TransientStorePool }),
	"transientStorePoolSize":          count(func(o *gantry.Options) *int { return &o.TransientStorePoolSize }),
	"writeWithoutMmap":                truth(func(o *gantry.Options) *bool { return &o.WriteWithoutMmap }),
	"dataReadAheadEnable":             opposite(func(o *gantry.Options) *bool { return &o.RandomAccess }),
	"checkCRCOnRecover":               opposite(func(o *gantry.Options) *bool { return &o.SkipCRC }),
	"enabledAppendPropCRC":            truth(func(o *gantry.Options) *bool { return &o.PropertyCRC }),
	"forceVerifyPropCRC":              truth(func(o *gantry.Options) *bool { return &o.VerifyPropertyCRC }),
	"messageIndexEnable":              opposite(func(o *gantry.Options) *bool { return &o.NoIndex }),
	"enableConsumeQueueExt":           truth(func(o *gantry.Options) *bool { return &o.QueueExt }),
	"enableMultiDispatch":             truth(func(o *gantry.Options) *bool { return &o.LightQueues }),
	"readUnCommitted":                 truth(func(o *gantry.Options) *bool { return &o.ReadUnflushed }),
	"cleanFileForciblyEnable":         opposite(func(o *gantry.Options) *bool { return &o.KeepUnexpired }),
	"deleteFileBatchMax":              count(func(o *gantry.Options) *int { return &o.DeleteBatch }),
	"diskMaxUsedSpaceRatio":           percent(func(o *gantry.Options) *float64 { return &o.DiskMaxUsedPercent }),
	"diskSpaceCleanForciblyRatio":     percent(func(o *gantry.Options) *float64 { return &o.DiskCleanForciblyPercent }),
	"diskSpaceWarningLevelRatio":      percent(func(o *gantry.Options) *float64 { return &o.DiskWarningPercent }),
	"deleteWhen":                      func(o *gantry.Options, v string) error { o.DeleteWhen = v; return nil },
	"messageDelayLevel":               func(o *gantry.Options, v string) error { o.DelayLevels = v; return nil },
	"storePathCommitLog":              paths(func(o *gantry.Options) *[]string { return &o.CommitLogDirs }),
	"readOnlyCommitLogStorePaths":     paths(func(o *gantry.Options) *[]string { return &o.ReadOnlyCommitLogDirs }),
	"flushCommitLogLeastPages": func(o *gantry.Options, v string) error {
		n, err := number(v, 0, math.MaxInt32)
		o.FlushLeastPages = max(int(n), 1) // see Apply for 0
		return err
	},
	"warmMapedFileEnable": func(o *gantry.Options, v string) error { // upstream's spelling
		on, err := boolean(v)
		o.WarmUpFiles, o.LockMemory = on, on // upstream locks what it has warmed up
		return err
	},
	"fileReservedTime": func(o *gantry.Options, v string) error {
		hours, err := number(v, 0, math.MaxInt32)
		o.Reserved = max(time.Duration(hours)*time.Hour, time.Nanosecond)
		return err
	},
	"flushDiskType": func(o *gantry.Options, v string) error {
		switch v {
		case "ASYNC_FLUSH":
			o.Flush = gantry.FlushAsync
		case "SYNC_FLUSH":
			o.Flush = gantry.FlushSync
		default:
			return errors.New("must be ASYNC_FLUSH or SYNC_FLUSH")
		}
		return nil
	},
	"enableLmq": func(_ *gantry.Options, v string) error { // enableMultiDispatch decides
		_, err := boolean(v)
		return err
	},
}

// refusedSettings would change where the data are or what they mean, and a
// store cannot honour them.
var refusedSettings = map[string]struct {
	harmless string // the value that is no problem
	why      string
	writing  bool // a problem only for who writes
}{
	"storeType":             {"default", "consume queues in RocksDB are not supported", false},
	"enableDLegerCommitLog": {"false", "DLedger commit logs are not supported", false},
	"multiPathSplitter":     {",", "only a comma separates paths", false},
	"brokerRole":            {"ASYNC_MASTER", "replication is not supported", true},
	"duplicationEnable":     {"false", "replication is not supported", true},
	"enableControllerMode":  {"false", "replication is not supported", true},
}

// RootSetting is the directory of the store. The store commands are given theirs.
const RootSetting = "storePathRootDir"

// Apply puts p into o, for the store in dir. It returns the names that mean
// nothing to a store, sorted; the error names every property that cannot be
// honoured. Set o.ReadOnly before: who only reads need not care for
// replication.
//
// Paths below the root directory that p itself names are taken below dir, so
// that a copy of a store can be opened with its own configuration.
func (p Settings) Apply(o *gantry.Options, dir string) (unknown []string, err error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p)) {
		value := strings.TrimSpace(p[name])
		set, known := storeSettings[name]
		refused, cannot := refusedSettings[name]
		switch {
		case cannot:
			if !strings.EqualFold(value, refused.harmless) && !(refused.writing && o.ReadOnly) {
				errs = append(errs, fmt.Errorf("%s=%s: %s", name, value, refused.why))
			}
		case known:
			if err := set(o, value); err != nil {
				errs = append(errs, fmt.Errorf("%s=%s: %w", name, value, err))
			}
		case name != RootSetting:
			unknown = append(unknown, name)
		}
	}
	if strings.TrimSpace(p["flushCommitLogLeastPages"]) == "0" {
		o.FlushThoroughInterval = time.Millisecond // whatever waits, at every interval
	}
	if root := strings.TrimSpace(p[RootSetting]); root != "" {
		errs = append(errs, moveDirs(o.CommitLogDirs, root, dir), moveDirs(o.ReadOnlyCommitLogDirs, root, dir))
	}
	return unknown, errors.Join(errs...)
}

// moveDirs replaces directories below from by those below to. Others are
// refused, unless from and to are the same: they are those of another store.
func moveDirs(dirs []string, from, to string) error {
	same := func() bool {
		a, err1 := filepath.Abs(from)
		b, err2 := filepath.Abs(to)
		return err1 == nil && err2 == nil && a == b
	}
	for i, d := range dirs {
		rel, err := filepath.Rel(from, d)
		switch {
		case err == nil && filepath.IsLocal(rel):
			dirs[i] = filepath.Join(to, rel)
		case !same():
			return fmt.Errorf("%s belongs to the store in %s=%s; if it is that of %s, add %s=%s", d, RootSetting, from, to, RootSetting, to)
		}
	}
	return nil
}

// number parses a decimal as Java does, within limits.
func number(v string, least, most int64) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, errors.New("is no number")
	case err != nil, n < least, n > most:
		return 0, fmt.Errorf("must be between %d and %d", least, most)
	}
	return n, nil
}

// boolean parses as Java does, but refuses what Java silently takes for false.
func boolean(v string) (bool, error) {
	switch {
	case strings.EqualFold(v, "true"):
		return true, nil
	case strings.EqualFold(v, "false"):
		return false, nil
	}
	return false, errors.New("must be true or false")
}

// size is for lengths in bytes. They are ints in Java: no file of a store that
// a broker can open is longer.
func size[T int | int64](field func(*gantry.Options) *T) apply {
	return func(o *gantry.Options, v string) error {
		n, err := ParseSize(v)
		if err == nil && (n < 1 || n > math.MaxInt32) {
			err = fmt.Errorf("must be between 1 and %d bytes", math.MaxInt32)
		}
		*field(o) = T(n)
		return err
	}
}

func count[T int | int32](field func(*gantry.Options) *T) apply {
	return func(o *gantry.Options, v string) error {
		n, err := number(v, 1, math.MaxInt32)
		*field(o) = T(n)
		return err
	}
}

func millis(field func(*gantry.Options) *time.Duration) apply {
	return func(o *gantry.Options, v string) error {
		n, err := number(v, 0, math.MaxInt32)
		*field(o) = max(time.Duration(n), 1) * time.Millisecond
		return err
	}
}

func percent(field func(*gantry.Options) *float64) apply {
	return func(o *gantry.Options, v string) error {
		n, err := number(v, 1, 100)
		*field(o) = float64(n)
		return err
	}
}

func truth(field func(*gantry.Options) *bool) apply {
	return func(o *gantry.Options, v string) (err error) {
		*field(o), err = boolean(v)
		return err
	}
}

func opposite(field func(*gantry.Options) *bool) apply {
	return func(o *gantry.Options, v string) error {
		on, err := boolean(v)
		*field(o) = !on
		return err
	}
}

func paths(field func(*gantry.Options) *[]string) apply {
	return func(o *gantry.Options, v string) error {
		var dirs []string
		for dir := range strings.SplitSeq(v, ",") {
			if dir = strings.TrimSpace(dir); dir != "" {
				dirs = append(dirs, filepath.Clean(dir))
			}
		}
		*field(o) = dirs
		return nil
	}
}
