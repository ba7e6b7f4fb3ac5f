package golden

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func TestNames(t *testing.T) {
	names, err := Names()
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 50 {
		t.Errorf("got %d stores, want 50: %q", len(names), names)
	}
	if !slices.IsSorted(names) {
		t.Errorf("names are not sorted: %q", names)
	}
}

// TestManifests checks that a manifest is complete in itself, so that a test
// that trusts it does not compare with nothing.
func TestManifests(t *testing.T) {
	Each(t, func(t *testing.T, name string) {
		m := MustLoad(t, name)
		version, store := SplitName(name)
		if m.Version != version || m.Store != store {
			t.Errorf("manifest is of %s-%s", m.Version, m.Store)
		}
		if m.Config.CommitLogFileSize == 0 || m.Config.ConsumeQueueFileSize == 0 || m.Config.IndexSlots == 0 || m.Config.IndexEntries == 0 {
			t.Errorf("file sizes are missing: %+v", m.Config)
		}
		if !m.Reopen.Load || !m.Reopen.Dispatched || m.WalkStopped != "" || len(m.Messages) != m.Reopen.ReadableMessages {
			t.Errorf("Java could not read the store: load %t, dispatched %t, %q, %d messages of %d", m.Reopen.Load, m.Reopen.Dispatched,
				m.WalkStopped, len(m.Messages), m.Reopen.ReadableMessages)
		}
		if len(m.Queues) == 0 || len(m.KeyQueries) == 0 || len(m.TimeQueries) == 0 || len(m.GetMessage) == 0 || len(m.Lookups) == 0 {
			t.Errorf("%d queues, %d key, %d time queries, %d gets, %d lookups", len(m.Queues), len(m.KeyQueries), len(m.TimeQueries),
				len(m.GetMessage), len(m.Lookups))
		}
		if got := len(m.TagQueries) > 0; got && !m.IndexesTags() {
			t.Errorf("tag queries in %s", m.Version)
		}

		// Records and blanks cover the log from end to end.
		next := map[message.PhysicalOffset]message.PhysicalOffset{}
		for _, r := range m.Messages {
			next[r.PhysicalOffset] = r.PhysicalOffset + message.PhysicalOffset(r.Size)
		}
		for _, b := range m.Blanks {
			size := message.PhysicalOffset(m.Config.CommitLogFileSize)
			next[b.PhysicalOffset] = (b.PhysicalOffset/size + 1) * size
		}
		at := m.MinPhysicalOffset
		for at < m.MaxPhysicalOffset {
			end, ok := next[at]
			if !ok {
				t.Fatalf("nothing starts at %d", at)
			}
			at = end
		}
		if at != m.MaxPhysicalOffset {
			t.Errorf("the last record ends at %d, the log at %d", at, m.MaxPhysicalOffset)
		}

		for _, q := range m.Queues {
			units := int64(len(q.Units))
			for _, b := range q.BatchUnits {
				units += int64(b.BatchNum)
			}
			if q.UnitsStopped != nil || units != int64(q.Max-q.Min) {
				t.Errorf("queue %s/%d: %d units from %d to %d", q.Topic, q.ID, units, q.Min, q.Max)
			}
			if m.Queue(q.Topic, q.ID).Max != q.Max {
				t.Errorf("Queue(%q, %d) finds another one", q.Topic, q.ID)
			}
			for i, u := range q.Units {
				if end := u.Physical + message.PhysicalOffset(u.Size); end > m.MaxPhysicalOffset {
					t.Errorf("queue %s/%d: unit %d ends at %d", q.Topic, q.ID, i, end)
				}
			}
		}
		for i := range m.Messages {
			phy := m.Messages[i].PhysicalOffset
			if got := m.Message(phy); got != &m.Messages[i] {
				t.Fatalf("Message(%d) finds %+v", phy, got)
			}
			if m.Message(phy+1) != nil {
				t.Fatalf("Message(%d) finds a record", phy+1)
			}
		}
	})
}

func TestUnpack(t *testing.T) {
	Each(t, func(t *testing.T, name string) {
		m := MustLoad(t, name)
		root := Unpack(t, name)
		got, err := Tree(vfs.OS(), root)
		if err != nil {
			t.Fatal(err)
		}
		if d := DiffTrees(m.PackedFiles, got); len(d) > 0 {
			t.Errorf("files differ from the manifest:\n%s", strings.Join(d, "\n"))
		}
		if d := cmp.Diff(m.PackedFiles, got); d != "" {
			t.Errorf("listing (-manifest +unpacked):\n%s", d)
		}
	})
}

// TestUnpackDurable unpacks into memory and lets everything go that is not
// durable.
func TestUnpackDurable(t *testing.T) {
	for _, name := range []string{"4.9.4-crash-torn", "5.4.0-multipath"} {
		t.Run(name, func(t *testing.T) {
			fsys := memfs.NewCrashable(1)
			root := filepath.FromSlash("/a/b")
			if err := UnpackTo(fsys, root, name); err != nil {
				t.Fatal(err)
			}
			got, err := Tree(fsys.CrashClone(memfs.LoseUnsynced), root)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(MustLoad(t, name).PackedFiles, got); d != "" {
				t.Errorf("listing (-manifest +left after a crash):\n%s", d)
			}
			if err := UnpackTo(fsys, root, name); err == nil {
				t.Errorf("unpacked over a store")
			}
		})
	}
}

// TestRecords decodes every record of every store from its bytes and compares
// it with what Java makes of it.
func TestRecords(t *testing.T) {
	Each(t, func(t *testing.T, name string) {
		m := MustLoad(t, name)
		root := Unpack(t, name)
		files := map[int64]vfs.File{}
		for _, dir := range m.Config.CommitLogDirs(root) {
			entries, err := vfs.OS().List(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				start, err := strconv.ParseInt(e.Name, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				f, err := vfs.OS().Open(filepath.Join(dir, e.Name), vfs.ReadOnly)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				files[start] = f
			}
		}
		for i := range m.Messages {
			want := &m.Messages[i]
			at := int64(want.PhysicalOffset)
			start := at / m.Config.CommitLogFileSize * m.Config.CommitLogFileSize
			rec := make([]byte, want.Size)
			if _, err := files[start].ReadAt(rec, at-start); err != nil {
				t.Fatal(err)
			}
			if sum := Hash(sha256.Sum256(rec)); sum != want.RawSHA256 {
				t.Fatalf("record at %d has hash %s, in Java %s", at, sum, want.RawSHA256)
			}
			got, err := message.Decode(rec)
			if err != nil {
				t.Errorf("record at %d: %v", at, err)
				continue
			}
			if d := want.Diff(&got) + want.DiffProperties(got.Properties.Map()); d != "" {
				t.Error(d)
			}
			if got.MsgID() != want.ID {
				t.Errorf("record at %d has id %s, in Java %s", at, got.MsgID(), want.ID)
			}
		}
	})
}

func TestConfig(t *testing.T) {
	m := MustLoad(t, "5.4.0-multipath")
	if got, want := m.Config.CommitLogDirs("/s"), []string{"/s/disk1/commitlog", "/s/disk2/commitlog", "/s/disk3/commitlog"}; !slices.Equal(got, want) {
		t.Errorf("directories of multipath: %q, want %q", got, want)
	}
	m = MustLoad(t, "5.4.0-expired")
	if got := m.Config.CommitLogDirs("s"); !slices.Equal(got, []string{"s/commitlog"}) {
		t.Errorf("directories of expired: %q", got)
	}
	if m.Config.FlushSync() {
		t.Errorf("expired flushes synchronously")
	}
	got := m.Config.Properties()
	for _, want := range []string{"mappedFileSizeCommitLog=1048576", "cleanFileForciblyEnable=false", "flushCommitLogLeastPages=0", "deleteCommitLogFilesInterval=1",
		"flushDiskType=ASYNC_FLUSH", "maxIndexNum=1000"} {
		if !slices.Contains(got, want) {
			t.Errorf("properties %q lack %s", got, want)
		}
	}
}

func TestLocation(t *testing.T) {
	at := time.UnixMilli(1795989253409)
	for _, tc := range []struct{ name, want string }{
		{"4.9.8-basic-clean", "+0800"},
		{"4.9.4-basic-clean", "+0000"},
	} {
		if got := at.In(MustLoad(t, tc.name).Location()).Format("-0700"); got != tc.want {
			t.Errorf("%s: offset %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"4.9.8", "5.1.4", -1},
		{"5.10.0", "5.4.0", 1},
		{"5.4.0", "5.4.0", 0},
		{"5.4", "5.4.0", -1},
	} {
		if got := CompareVersions(tc.a, tc.b); got != tc.want {
			t.Errorf("CompareVersions(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

// TestDamage checks both forms of the field.
func TestDamage(t *testing.T) {
	if d := MustLoad(t, "4.9.4-crash-torn").Damage; d.Torn == 0 || d.ZeroedTo-d.Torn != message.PhysicalOffset(d.TornSize) || d.ZeroedFrom <= d.Torn {
		t.Errorf("crash-torn: %+v", d)
	}
	if d := MustLoad(t, "5.4.0-crash-middle").Damage; d.Flipped == 0 || d.FlippedAt <= d.Flipped || d.XOR != 1 {
		t.Errorf("crash-middle: %+v", d)
	}
	if d := MustLoad(t, "5.4.0-crash-flushed").Damage; d.Note == "" || d.Torn != 0 {
		t.Errorf("crash-flushed: %+v", d)
	}
}

// ext is what a reader without faults makes of m.
func ext(m *Message, body []byte) message.Ext {
	return message.Ext{
		Message: message.Message{
			Topic: m.Topic, QueueID: m.QueueID, Flag: m.Flag, SysFlag: m.SysFlag, Body: body, Properties: message.Properties(m.RawProperties),
			BornTimestamp: m.BornTimestamp, BornHost: m.BornHost, StoreHost: m.StoreHost, ReconsumeTimes: m.ReconsumeTimes,
			PreparedTransactionOffset: m.PreparedTransactionOffset,
		},
		QueueOffset: m.QueueOffset, PhysicalOffset: m.PhysicalOffset, StoreTimestamp: m.StoreTimestamp, StoreSize: m.Size,
		Magic: uint32(m.Magic), BodyCRC: m.BodyCRC,
	}
}

// TestDiff changes one field after the other; each change must be seen.
func TestDiff(t *testing.T) {
	m := MustLoad(t, "5.4.0-basic-clean")
	want := &m.Messages[0]
	if len(want.Body) == 0 || len(want.RawProperties) == 0 {
		t.Fatalf("not a good example: %+v", want)
	}
	right := ext(want, want.Body)
	if d := want.Diff(&right); d != "" {
		t.Fatalf("equal messages differ: %s", d)
	}
	var change func(v reflect.Value, name string)
	change = func(v reflect.Value, name string) {
		for i := range v.NumField() {
			f, fieldName := v.Field(i), name+v.Type().Field(i).Name
			old := reflect.New(f.Type()).Elem()
			old.Set(f)
			switch {
			case fieldName == "Message":
				change(f, "")
				continue
			case f.Type() == reflect.TypeOf(want.BornHost):
				f.SetZero()
			case f.CanInt():
				f.SetInt(f.Int() + 1)
			case f.CanUint():
				f.SetUint(f.Uint() + 1)
			case f.Kind() == reflect.String:
				f.SetString(f.String() + "x")
			case f.Kind() == reflect.Slice:
				f.SetBytes([]byte("another"))
			default:
				t.Fatalf("field %s of type %v is not handled", fieldName, f.Type())
			}
			if want.Diff(&right) == "" {
				t.Errorf("a change of %s is not seen", fieldName)
			}
			f.Set(old)
		}
	}
	change(reflect.ValueOf(&right).Elem(), "")
	if d := want.Diff(&right); d != "" {
		t.Errorf("restored message differs: %s", d)
	}
}

func TestDiffProperties(t *testing.T) {
	m := &Message{Properties: map[string]string{"a": "1", "b": "2"}}
	for _, tc := range []struct {
		name string
		got  map[string]string
		want int // lines
	}{
		{"equal", map[string]string{"a": "1", "b": "2"}, 0},
		{"missing", map[string]string{"a": "1"}, 1},
		{"another value", map[string]string{"a": "1", "b": ""}, 1},
		{"unknown", map[string]string{"a": "1", "b": "2", "c": ""}, 1},
		{"nil", nil, 2},
	} {
		if got := m.DiffProperties(tc.got); strings.Count(got, "\n") != tc.want {
			t.Errorf("%s: got %q, want %d lines", tc.name, got, tc.want)
		}
	}
	if got := (&Message{}).DiffProperties(map[string]string{}); got != "" {
		t.Errorf("nil and empty differ: %q", got)
	}
}

func TestDecode(t *testing.T) {
	pack := func(s string) *bytes.Buffer {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		if _, err := zw.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	m, err := decodeManifest(pack(`{"maxPhysicalOffset":9223372036854775807,"keyQueries":[{"indexPhyOffsets":[1,null,9007199254740993]}],
		"queues":[{"units":[[-9223372036854775808,2147483647,-1]]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if m.MaxPhysicalOffset != 1<<63-1 {
		t.Errorf("largest offset is %d", m.MaxPhysicalOffset)
	}
	if got, want := m.KeyQueries[0].IndexOffsets, (Offsets{1, NoOffset, 1<<53 + 1}); !slices.Equal(got, want) {
		t.Errorf("offsets %d, want %d", got, want)
	}
	if got, want := m.Queues[0].Units[0], (Unit{-1 << 63, 1<<31 - 1, -1}); got != want {
		t.Errorf("unit %v, want %v", got, want)
	}
	for _, tc := range []struct{ name, json string }{
		{"unknown field", `{"unheardOf":1}`},
		{"data behind", `{} {}`},
		{"not JSON", `{`},
		{"short hash", `{"packedFiles":[{"sha256":"00"}]}`},
		{"short unit", `{"queues":[{"units":[[1,2]]}]}`},
		{"unit beyond int32", `{"queues":[{"units":[[1,2147483648,0]]}]}`},
		{"fraction", `{"maxPhysicalOffset":1.5}`},
		{"short compaction read", `{"compaction":[{"reads":[[1,"FOUND",2]]}]}`},
	} {
		if m, err := decodeManifest(pack(tc.json)); err == nil {
			t.Errorf("%s: accepted as %+v", tc.name, m)
		}
	}
	if _, err := decodeManifest(pack(strings.Repeat(" ", maxManifestSize+1))); err == nil {
		t.Errorf("a manifest above the limit is accepted")
	}
}

// TestText checks the text forms both ways.
func TestText(t *testing.T) {
	type all struct {
		Hash  Hash
		Hex   Hex
		None  Hex
		Magic Magic
	}
	want := all{Hash: Hash{1, 31: 2}, Hex: Hex{}, Magic: 0xdaa320a7}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got all
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want.None = Hex{} // a nil Hex is written as an empty text
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", b, d)
	}
	if want.Hash.String()[:4] != "0100" {
		t.Errorf("hash prints as %s", want.Hash)
	}
}
