package golden

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Config is the settings that a store was written with, under upstream's names
// in JSON. A zero value means the default of the version, which the methods
// below know where a reader needs it. Sizes are bytes, intervals are ms.
type Config struct {
	CommitLogFileSize         int64 `json:"mappedFileSizeCommitLog,omitempty"`
	ConsumeQueueFileSize      int64 `json:"mappedFileSizeConsumeQueue,omitempty"`
	ConsumeQueueExtFileSize   int64 `json:"mappedFileSizeConsumeQueueExt,omitempty"`
	BatchConsumeQueueFileSize int64 `json:"mapperFileSizeBatchConsumeQueue,omitempty"` // upstream's spelling
	TimerLogFileSize          int64 `json:"mappedFileSizeTimerLog,omitempty"`
	CompactionLogFileSize     int64 `json:"compactionMappedFileSize,omitempty"`
	CompactionQueueFileSize   int64 `json:"compactionCqMappedFileSize,omitempty"`
	IndexSlots                int32 `json:"maxHashSlotNum,omitempty"`
	IndexEntries              int32 `json:"maxIndexNum,omitempty"`

	// CommitLogPaths are the directories of the commit log relative to the
	// root, separated by commas. Empty: commitlog. See CommitLogDirs.
	CommitLogPaths string `json:"storePathCommitLog,omitempty"`

	ConsumeQueueExt bool `json:"enableConsumeQueueExt,omitempty"`
	LightQueues     bool `json:"enableLmq,omitempty"`
	MultiDispatch   bool `json:"enableMultiDispatch,omitempty"`
	PropertyCRC     bool `json:"enabledAppendPropCRC,omitempty"`
	Compaction      bool `json:"enableCompaction,omitempty"`

	FlushDiskType                     string `json:"flushDiskType,omitempty"` // ASYNC_FLUSH, SYNC_FLUSH
	FlushIntervalCommitLog            int64  `json:"flushIntervalCommitLog,omitempty"`
	FlushCommitLogLeastPages          *int   `json:"flushCommitLogLeastPages,omitempty"`
	FlushCommitLogThoroughInterval    int64  `json:"flushCommitLogThoroughInterval,omitempty"`
	FlushIntervalConsumeQueue         int64  `json:"flushIntervalConsumeQueue,omitempty"`
	FlushConsumeQueueThoroughInterval int64  `json:"flushConsumeQueueThoroughInterval,omitempty"`

	FileReservedTime                int64  `json:"fileReservedTime,omitempty"` // hours
	DeleteWhen                      string `json:"deleteWhen,omitempty"`
	CleanFileForcibly               *bool  `json:"cleanFileForciblyEnable,omitempty"`
	DeleteCommitLogFilesInterval    int64  `json:"deleteCommitLogFilesInterval,omitempty"`
	DeleteConsumeQueueFilesInterval int64  `json:"deleteConsumeQueueFilesInterval,omitempty"`
	CompactionScheduleInterval      int64  `json:"compactionScheduleInternal,omitempty"` // upstream's spelling
	DiskMaxUsedSpaceRatio           int    `json:"diskMaxUsedSpaceRatio,omitempty"`      // percent
	HAListenPort                    int    `json:"haListenPort,omitempty"`
}

// CommitLogDirs returns the directories of the commit log below root, in the
// order in which Java uses them for new files.
func (c *Config) CommitLogDirs(root string) []string {
	paths := c.CommitLogPaths
	if paths == "" {
		paths = "commitlog"
	}
	var dirs []string
	for p := range strings.SplitSeq(paths, ",") {
		dirs = append(dirs, filepath.Join(root, filepath.FromSlash(p)))
	}
	return dirs
}

// FlushSync reports whether a put waited for the disk.
func (c *Config) FlushSync() bool { return c.FlushDiskType == "SYNC_FLUSH" }

// Properties returns the settings that are not zero as KEY=VALUE with
// upstream's names, sorted: the form of a broker's configuration file.
func (c *Config) Properties() []string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of numbers, strings and booleans
	}
	var v map[string]json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		panic(err)
	}
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(v)) {
		value := string(v[k])
		var s string
		if json.Unmarshal(v[k], &s) == nil {
			value = s
		}
		lines = append(lines, fmt.Sprintf("%s=%s", k, value))
	}
	return lines
}
