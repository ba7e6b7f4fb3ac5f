package tool

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry"
)

// diffOptions compares options; functions and interfaces are not set here.
func diffOptions(want, got gantry.Options) string {
	return cmp.Diff(want, got, cmpopts.IgnoreFields(gantry.Options{}, "Events", "Now", "FS", "Logger", "Progress", "IsBatchTopic", "StoreHost"))
}

// TestSettingsReachOptions goes through every property: its value must be in
// the option that it is for, and nowhere else.
func TestSettingsReachOptions(t *testing.T) {
	tests := map[string]struct {
		value string
		want  gantry.Options
	}{
		"mappedFileSizeCommitLog":         {"1048576", gantry.Options{CommitLogFileSize: 1 << 20}},
		"mappedFileSizeConsumeQueue":      {"20000", gantry.Options{ConsumeQueueFileSize: 20000}},
		"mapedFileSizeCommitLog":          {"1MiB", gantry.Options{CommitLogFileSize: 1 << 20}},
		"mapedFileSizeConsumeQueue":       {"20KB", gantry.Options{ConsumeQueueFileSize: 20000}},
		"mapperFileSizeBatchConsumeQueue": {"920", gantry.Options{BatchConsumeQueueFileSize: 920}},
		"mappedFileSizeConsumeQueueExt":   {"4096", gantry.Options{ConsumeQueueExtFileSize: 4096}},
		"maxHashSlotNum":                  {"500", gantry.Options{IndexSlots: 500}},
		"maxIndexNum":                     {"2000", gantry.Options{IndexEntries: 2000}},
		"maxMessageSize":                  {"65536", gantry.Options{MaxMessageSize: 65536}},
		"flushIntervalCommitLog":          {"250", gantry.Options{FlushInterval: 250 * time.Millisecond}},
		"flushCommitLogThoroughInterval":  {"3000", gantry.Options{FlushThoroughInterval: 3 * time.Second}},
		"flushCommitLogLeastPages":        {"8", gantry.Options{FlushLeastPages: 8}},
		"syncFlushTimeout":                {"1000", gantry.Options{SyncFlushTimeout: time.Second}},
		"commitIntervalCommitLog":         {"20", gantry.Options{CommitInterval: 20 * time.Millisecond}},
		"osPageCacheBusyTimeOutMills":     {"500", gantry.Options{BusyTimeout: 500 * time.Millisecond}},
		"cleanResourceInterval":           {"60000", gantry.Options{CleanInterval: time.Minute}},
		"transientStorePoolEnable":        {"true", gantry.Options{TransientStorePool: true}},
		"transientStorePoolSize":          {"3", gantry.Options{TransientStorePoolSize: 3}},
		"writeWithoutMmap":                {"True", gantry.Options{WriteWithoutMmap: true}},
		"warmMapedFileEnable":             {"TRUE", gantry.Options{WarmUpFiles: true, LockMemory: true}},
		"dataReadAheadEnable":             {"false", gantry.Options{RandomAccess: true}},
		"checkCRCOnRecover":               {"false", gantry.Options{SkipCRC: true}},
		"enabledAppendPropCRC":            {"true", gantry.Options{PropertyCRC: true}},
		"forceVerifyPropCRC":              {"true", gantry.Options{VerifyPropertyCRC: true}},
		"messageIndexEnable":              {"False", gantry.Options{NoIndex: true}},
		"enableConsumeQueueExt":           {"true", gantry.Options{QueueExt: true}},
		"enableMultiDispatch":             {"true", gantry.Options{LightQueues: true}},
		"enableLmq":                       {"true", gantry.Options{}},
		"readUnCommitted":                 {"true", gantry.Options{ReadUnflushed: true}},
		"cleanFileForciblyEnable":         {"false", gantry.Options{KeepUnexpired: true}},
		"scrubRate":                       {"4MiB", gantry.Options{ScrubRate: 4 << 20}},
		"deleteFileBatchMax":              {"20", gantry.Options{DeleteBatch: 20}},
		"diskMaxUsedSpaceRatio":           {"80", gantry.Options{DiskMaxUsedPercent: 80}},
		"diskSpaceCleanForciblyRatio":     {"86", gantry.Options{DiskCleanForciblyPercent: 86}},
		"diskSpaceWarningLevelRatio":      {"95", gantry.Options{DiskWarningPercent: 95}},
		"deleteWhen":                      {"04;16", gantry.Options{DeleteWhen: "04;16"}},
		"messageDelayLevel":               {"1s 2s", gantry.Options{DelayLevels: "1s 2s"}},
		"storePathCommitLog":              {"/a/log, /b/log/,", gantry.Options{CommitLogDirs: []string{"/a/log", "/b/log"}}},
		"readOnlyCommitLogStorePaths":     {"/old/log", gantry.Options{ReadOnlyCommitLogDirs: []string{"/old/log"}}},
		"fileReservedTime":                {"48", gantry.Options{Reserved: 48 * time.Hour}},
		"flushDiskType":                   {"SYNC_FLUSH", gantry.Options{Flush: gantry.FlushSync}},
	}
	for name := range storeSettings {
		if _, ok := tests[name]; !ok {
			t.Errorf("%s has no test", name)
		}
	}
	for name, tc := range tests {
		var got gantry.Options
		unknown, err := Settings{name: " " + tc.value + " "}.Apply(&got, "/store")
		if err != nil || len(unknown) > 0 {
			t.Errorf("%s=%s: %q, %v", name, tc.value, unknown, err)
		}
		if d := diffOptions(tc.want, got); d != "" {
			t.Errorf("%s=%s (-want +got)\n%s", name, tc.value, d)
		}
	}
}

// TestSettingsZero: a zero is not taken for the default of the options.
func TestSettingsZero(t *testing.T) {
	for name, want := range map[string]gantry.Options{
		"fileReservedTime":         {Reserved: time.Nanosecond},
		"flushIntervalCommitLog":   {FlushInterval: time.Millisecond},
		"flushCommitLogLeastPages": {FlushLeastPages: 1, FlushThoroughInterval: time.Millisecond},
	} {
		var got gantry.Options
		if _, err := (Settings{name: "0"}).Apply(&got, "/store"); err != nil {
			t.Errorf("%s=0: %v", name, err)
		}
		if d := diffOptions(want, got); d != "" {
			t.Errorf("%s=0 (-want +got)\n%s", name, d)
		}
	}
}

func TestSettingsRefused(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		reading     bool // refused although the store is only read
	}{
		{"storeType", "defaultRocksDB", true},
		{"enableDLegerCommitLog", "true", true},
		{"multiPathSplitter", ";", true},
		{"brokerRole", "SLAVE", false},
		{"brokerRole", "SYNC_MASTER", false},
		{"duplicationEnable", "true", false},
		{"enableControllerMode", "TRUE", false},
		{"mappedFileSizeCommitLog", "0", true},
		{"mappedFileSizeCommitLog", "2GiB", true}, // an int in Java
		{"mappedFileSizeCommitLog", "", true},
		{"maxHashSlotNum", "-1", true},
		{"maxIndexNum", "99999999999999999999", true},
		{"flushIntervalCommitLog", "soon", true},
		{"flushIntervalCommitLog", "-1", true},
		{"flushCommitLogLeastPages", "4.5", true},
		{"diskMaxUsedSpaceRatio", "101", true},
		{"transientStorePoolEnable", "yes", true},
		{"transientStorePoolEnable", "1", true}, // false to Java
		{"enableLmq", "?", true},
		{"flushDiskType", "sync", true},
		{"fileReservedTime", "-1", true},
	} {
		p := Settings{tc.name: tc.value}
		for _, readOnly := range []bool{false, true} {
			_, err := p.Apply(&gantry.Options{ReadOnly: readOnly}, "/store")
			if refused := err != nil; refused != (tc.reading || !readOnly) {
				t.Errorf("%s=%s, read-only %v: %v", tc.name, tc.value, readOnly, err)
			} else if refused && !strings.HasPrefix(err.Error(), tc.name+"="+tc.value+": ") {
				t.Errorf("%s=%s: the error does not name it: %v", tc.name, tc.value, err)
			}
		}
	}
	for name, r := range refusedSettings {
		if _, err := (Settings{name: strings.ToUpper(r.harmless)}).Apply(&gantry.Options{}, "/store"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// All at once.
	_, err := Settings{"storeType": "x", "brokerRole": "SLAVE", "maxIndexNum": "x"}.Apply(&gantry.Options{}, "/store")
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three refusals: %v", err)
	}
}

func TestSettingsPaths(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name          string
		p             Settings
		dir           string
		log, readOnly []string // nil: refused
	}{
		{"below the root", Settings{RootSetting: "/var/store", "storePathCommitLog": "/var/store/commitlog"}, "/copy", []string{"/copy/commitlog"}, nil},
		{"several", Settings{RootSetting: "/var/store/", "storePathCommitLog": "/var/store/a,/var/store/b", "readOnlyCommitLogStorePaths": "/var/store/c"}, "copy",
			[]string{"copy/a", "copy/b"}, []string{"copy/c"}},
		{"outside, same root", Settings{RootSetting: "/var/store", "storePathCommitLog": "/mnt/log"}, "/var/store/", []string{"/mnt/log"}, nil},
		{"same root, relative", Settings{RootSetting: filepath.Join(wd, "store"), "storePathCommitLog": "/mnt/log"}, "./store", []string{"/mnt/log"}, nil},
		{"outside, a copy", Settings{RootSetting: "/var/store", "storePathCommitLog": "/mnt/log"}, "/copy", nil, nil},
		{"beside the root", Settings{RootSetting: "/var/store", "storePathCommitLog": "/var/store2/log"}, "/copy", nil, nil},
		{"no root", Settings{"storePathCommitLog": "/mnt/log"}, "/copy", []string{"/mnt/log"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o gantry.Options
			_, err := tc.p.Apply(&o, tc.dir)
			if tc.log == nil {
				if err == nil {
					t.Errorf("accepted as %q", o.CommitLogDirs)
				}
				return
			}
			if err != nil || !slices.Equal(o.CommitLogDirs, tc.log) || !slices.Equal(o.ReadOnlyCommitLogDirs, tc.readOnly) {
				t.Errorf("got %q and %q, %v, want %q and %q", o.CommitLogDirs, o.ReadOnlyCommitLogDirs, err, tc.log, tc.readOnly)
			}
		})
	}
}

// TestBrokerConf reads a file as operators have it.
func TestBrokerConf(t *testing.T) {
	p, err := ReadSettings(filepath.Join("testdata", "broker.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"namesrvAddr": "10.20.0.11:9876;10.20.0.12:9876", "brokerId": "0", "brokerIP1": "10.20.0.21", "brokerNote": "für München ${user.home}",
	} {
		if p[name] != want {
			t.Errorf("%s is %q, want %q", name, p[name], want)
		}
	}
	var o gantry.Options
	unknown, err := p.Apply(&o, "/data/rocketmq/store")
	if err != nil {
		t.Fatal(err)
	}
	want := gantry.Options{
		CommitLogDirs: []string{"/data/rocketmq/store/commitlog"}, DeleteWhen: "04;16", Reserved: 120 * time.Hour,
		CommitLogFileSize: 512 << 20, ConsumeQueueFileSize: 3_000_000, MaxMessageSize: 8 << 20, DiskMaxUsedPercent: 88,
		Flush: gantry.FlushSync, FlushLeastPages: 1, FlushThoroughInterval: time.Millisecond, WarmUpFiles: true, LockMemory: true,
		DelayLevels: "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h 1d",
	}
	if d := diffOptions(want, o); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	wantUnknown := []string{
		"abortFile", "aclEnable", "autoCreateTopicEnable", "brokerClusterName", "brokerIP1", "brokerId", "brokerName", "brokerNote", "listenPort",
		"namesrvAddr", "sendMessageThreadPoolNums", "storeCheckpoint", "storePathConsumeQueue", "storePathIndex", "useReentrantLockWhenPutMessage",
	}
	if !slices.Equal(unknown, wantUnknown) {
		t.Errorf("not used: %q, want %q", unknown, wantUnknown)
	}
}

func TestSettingsSet(t *testing.T) {
	p := Settings{"maxIndexNum": "1"}
	for pair, want := range map[string]string{"maxIndexNum=2": "2", " maxHashSlotNum = 3": " 3", "a=b=c": "b=c", "empty=": ""} {
		name, err := p.Set(pair)
		if err != nil || p[name] != want {
			t.Errorf("Set(%q): %s is %q, %v", pair, name, p[name], err)
		}
	}
	for _, pair := range []string{"", "x", "=x", "  =x"} {
		if _, err := p.Set(pair); err == nil {
			t.Errorf("Set(%q) was accepted", pair)
		}
	}
}

func TestReadSettingsFails(t *testing.T) {
	huge := filepath.Join(t.TempDir(), "huge")
	if err := os.WriteFile(huge, make([]byte, maxSettingsFile+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{huge, t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		if _, err := ReadSettings(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
