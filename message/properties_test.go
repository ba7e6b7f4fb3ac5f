package message

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The strings are those that Java stores were made with; the pairs are what
// Java read from them.
func TestParseProperties(t *testing.T) {
	type pairs = map[string]string
	for _, tc := range []struct {
		name string
		p    Properties
		want pairs
		bad  PropertyProblems
	}{
		{"none", "", pairs{}, PropertyProblems{}},
		{"no trailing separator", "a\x011", pairs{"a": "1"}, PropertyProblems{}},
		{"trailing separator", "a\x011\x02", pairs{"a": "1"}, PropertyProblems{}},
		{"empty value", "empty\x01\x02b\x012\x02", pairs{"b": "2"}, PropertyProblems{EmptyValue: 1}},
		{"empty value at the end", "b\x012\x02empty\x01", pairs{"b": "2"}, PropertyProblems{EmptyValue: 1}},
		{"doubled separators", "a\x011\x02\x02\x02b\x012\x02", pairs{"a": "1", "b": "2"}, PropertyProblems{}},
		{"segment without 0x01", "novalue\x02b\x012\x02", pairs{"b": "2"}, PropertyProblems{NoSeparator: 1}},
		{"empty name", "\x01v\x02b\x012\x02", pairs{"b": "2"}, PropertyProblems{EmptyName: 1}},
		{"0x01 in a value", "a\x011\x012\x02b\x012\x02", pairs{"a": "1\x012", "b": "2"}, PropertyProblems{}},
		{"duplicate name", "d\x011\x02d\x012\x02", pairs{"d": "2"}, PropertyProblems{Duplicate: 1}},
		{"later duplicate is empty", "d\x011\x02d\x01\x02", pairs{"d": "1"}, PropertyProblems{EmptyValue: 1}},
		{"two-character segment", "x\x01\x02a\x011\x02", pairs{"a": "1"}, PropertyProblems{EmptyValue: 1}},
		{"leading separator", "\x02a\x011", pairs{"a": "1"}, PropertyProblems{}},
		{"only separators", "\x02\x02\x01\x02", pairs{}, PropertyProblems{EmptyName: 1}},
		{"name is the end of another", "xKEYS\x011\x02KEYS\x012\x02", pairs{"xKEYS": "1", "KEYS": "2"}, PropertyProblems{}},
		{"name is the start of another", "KEYSx\x011\x02KEYS\x012\x02", pairs{"KEYSx": "1", "KEYS": "2"}, PropertyProblems{}},
		{"unicode and NUL", "名\x01值\x02emoji😀\x01😀😀\x02nul\x00\x01a\x00b\x02", pairs{"名": "值", "emoji😀": "😀😀", "nul\x00": "a\x00b"}, PropertyProblems{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if d := diff(tc.want, tc.p.Map()); d != "" {
				t.Errorf("Map -want +got\n%s", d)
			}
			for name, want := range tc.want {
				if got, ok := tc.p.Get(name); got != want || !ok {
					t.Errorf("Get(%q) = %q, %v, want %q", name, got, ok, want)
				}
			}
			for _, name := range []string{"", "empty", "novalue", "x", "a\x011", "missing", "\x02", "KEY"} {
				if got, ok := tc.p.Get(name); got != "" || ok {
					t.Errorf("Get(%q) = %q, %v, want none", name, got, ok)
				}
			}
			if got := tc.p.Problems(); got != tc.bad {
				t.Errorf("Problems = %+v, want %+v", got, tc.bad)
			}
			bad := tc.bad
			bad.Duplicate = 0
			if got := tc.p.HasBadSegments(); got != (bad != PropertyProblems{}) {
				t.Errorf("HasBadSegments = %v", got)
			}
		})
	}
}

// modelPairs reads a property string by the words of the specification: cut at
// each 0x02, the name ends at the first 0x01, both parts are non-empty.
func modelPairs(p Properties) (pairs [][2]string) {
	for _, seg := range strings.Split(string(p), "\x02") {
		if i := strings.Index(seg, "\x01"); i > 0 && i < len(seg)-1 {
			pairs = append(pairs, [2]string{seg[:i], seg[i+1:]})
		}
	}
	return pairs
}

func TestPropertiesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyProperties().Draw(t, "p")
		want := modelPairs(p)
		var got [][2]string
		for name, value := range p.All() {
			got = append(got, [2]string{name, value})
		}
		if !slices.Equal(got, want) {
			t.Fatalf("All = %q, want %q", got, want)
		}
		name := rapid.SampledFrom([]string{"a", "b", "KEYS", "TAGS", "中", "__CRC32#", "aa", ""}).Draw(t, "name")
		last, has := "", false
		var others [][2]string
		for _, pair := range want {
			if pair[0] == name {
				last, has = pair[1], true
			} else {
				others = append(others, pair)
			}
		}
		if value, ok := p.Get(name); value != last || ok != has {
			t.Fatalf("Get(%q) = %q, %v, want %q, %v", name, value, ok, last, has)
		}

		gone := p.Delete(name)
		if got := modelPairs(gone); !slices.Equal(got, others) {
			t.Fatalf("after Delete(%q): %q, want %q", name, got, others)
		}
		if name == "" {
			return
		}
		if strings.HasPrefix(string(gone), name+"\x01") || strings.Contains(string(gone), "\x02"+name+"\x01") {
			t.Fatalf("Delete(%q) left a pair: %q", name, gone)
		}
		if gone.Delete(name) != gone {
			t.Fatalf("Delete(%q) is not final", name)
		}
		value := rapid.StringMatching("[a-z ]{0,3}").Draw(t, "value")
		set := p.Set(name, value)
		if value != "" {
			others = append(others, [2]string{name, value})
		}
		if got := modelPairs(set); !slices.Equal(got, others) {
			t.Fatalf("after Set(%q, %q): %q, want %q", name, value, got, others)
		}
		if value != "" && set[len(set)-1] != 2 {
			t.Fatalf("Set left no separator at the end: %q", set)
		}
	})
}

func TestSetAndDeleteKeepBytes(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want Properties
	}{
		{"delete from an odd string", Properties("\x02\x02odd\x02k\x01v\x02x\x01\x02k\x01").Delete("k"), "\x02\x02odd\x02x\x01\x02"},
		{"delete the only one", Properties("k\x01v").Delete("k"), ""},
		{"delete a name inside a value", Properties("a\x01k\x01v\x02").Delete("k"), "a\x01k\x01v\x02"},
		{"delete nothing", Properties("a\x011").Delete("k"), "a\x011"},
		{"delete an empty name", Properties("\x01v\x02").Delete(""), "\x01v\x02"},
		{"set adds a separator", Properties("a\x011").Set("k", "v"), "a\x011\x02k\x01v\x02"},
		{"set replaces all", Properties("k\x011\x02a\x011\x02k\x012").Set("k", "3"), "a\x011\x02k\x013\x02"},
		{"set in nothing", Properties("").Set("k", "v"), "k\x01v\x02"},
		{"set to nothing", Properties("k\x01v\x02a\x011\x02").Set("k", ""), "a\x011\x02"},
		{"new", NewProperties("k", "v", "empty", "", "", "x", "a", "1", "odd"), "k\x01v\x02a\x011\x02"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, tc.got, tc.want)
		}
	}
}

// TestReserved: one pass finds what Get finds name by name.
func TestReserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SampledFrom([]string{
			PropKeys, PropTags, PropUniqKey, PropWait, PropDelay, PropInnerNum, PropInnerBase, PropTransactionPrepared, PropShardingKey,
			PropTimerDelaySec, PropTimerDelayMS, PropTimerDeliverMS, PropStartDeliverTime,
			PropCRC32, PropCluster, PropMsgRegion, PropTraceSwitch, PropPopCheckPoint,
			"", "K", "KEYSS", " KEYS", "DELA", "INNER", "__CRC32",
		})
		seg := rapid.Custom(func(t *rapid.T) string {
			return names.Draw(t, "name") + rapid.SampledFrom([]string{"\x01", "", "\x01\x01"}).Draw(t, "separator") +
				rapid.SampledFrom([]string{"", "v", "w", "KEYS", "中"}).Draw(t, "value")
		})
		segs := rapid.SliceOfN(seg, 0, 8).Draw(t, "segments")
		checkReserved(t, Properties(strings.Join(segs, "\x02")+rapid.SampledFrom([]string{"", "\x02"}).Draw(t, "end")))
	})
}

func checkReserved(t interface{ Fatalf(string, ...any) }, p Properties) {
	value := func(name string) string { v, _ := p.Get(name); return v }
	pair := func(names ...string) bool { // even an empty one
		return slices.ContainsFunc(names, func(name string) bool { return p.Delete(name) != p })
	}
	want := Reserved{
		Keys: value(PropKeys), Tags: value(PropTags), UniqKey: value(PropUniqKey), Delay: value(PropDelay),
		InnerNum: value(PropInnerNum), InnerBase: value(PropInnerBase), TransactionPrepared: value(PropTransactionPrepared), ShardingKey: value(PropShardingKey),
		Timed:    value(PropTimerDelaySec)+value(PropTimerDelayMS)+value(PropTimerDeliverMS)+value(PropStartDeliverTime) != "",
		OfBroker: pair(PropCluster, PropMsgRegion, PropTraceSwitch, PropPopCheckPoint) || strings.Contains("\x02"+string(p)+"\x02", "\x02"+PropUniqKey+"\x01\x02"),
		hasCRC:   pair(PropCRC32),
	}
	if got := p.Reserved(); got != want {
		t.Fatalf("%q: reserved %+v, want %+v", p, got, want)
	}
}

func TestGetDoesNotAllocate(t *testing.T) {
	p := messageB().Properties
	allocs := testing.AllocsPerRun(100, func() {
		if v, ok := p.Get(PropTags); !ok || v != "TagA" {
			t.Fatal(v)
		}
		if p.Delete("missing") != p {
			t.Fatal("changed")
		}
		if r := p.Reserved(); r.Tags != "TagA" {
			t.Fatal(r)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func TestCheckProperty(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		ok          bool
	}{
		{"k", "v", true},
		{"k", "a\x01b", true},
		{"", "v", false},
		{"k", "", false},
		{"k\x01", "v", false},
		{"k\x02", "v", false},
		{"k", "v\x02x\x01y", false},
	} {
		err := CheckProperty(tc.name, tc.value)
		if (err == nil) != tc.ok || (err != nil && !errors.Is(err, ErrMessageIllegal)) {
			t.Errorf("CheckProperty(%q, %q) = %v, want ok %v", tc.name, tc.value, err, tc.ok)
		}
		got, ok := Properties("k\x01old\x02").Set(tc.name, tc.value).Get(tc.name)
		if (ok && got == tc.value) != tc.ok {
			t.Errorf("Set(%q, %q) is read as %q, %v", tc.name, tc.value, got, ok)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		s    string
		want []string // what Java's split gives
	}{
		{"", []string{""}},
		{"a", []string{"a"}},
		{",", nil},
		{",,", nil},
		{",a", []string{"", "a"}},
		{"a,", []string{"a"}},
		{"a,,b,,", []string{"a", "", "b"}},
	} {
		if got := slices.Collect(Split(tc.s, ',')); !slices.Equal(got, tc.want) {
			t.Errorf("Split(%q) = %q, want %q", tc.s, got, tc.want)
		}
	}
	for s := range Split("a,b", ',') { // leaving early must be safe
		if s != "a" {
			t.Errorf("went on with %q", s)
		}
		break
	}
}

func TestConveniences(t *testing.T) {
	m := Message{Properties: "KEYS\x01 k1  k2 \x02TAGS\x01t\x02UNIQ_KEY\x01u\x02DELAY\x013\x02WAIT\x01false\x02"}
	if got := slices.Collect(m.Keys()); !slices.Equal(got, []string{"k1", "k2"}) {
		t.Errorf("Keys = %q", got)
	}
	level, err := m.DelayLevel()
	if m.Tags() != "t" || m.UniqKey() != "u" || level != 3 || err != nil || m.Properties.WaitStoreOK() {
		t.Errorf("tags %q, unique key %q, level %d (%v), wait %v", m.Tags(), m.UniqKey(), level, err, m.Properties.WaitStoreOK())
	}
	none := Message{}
	level, err = none.DelayLevel()
	if len(slices.Collect(none.Keys())) != 0 || none.Tags() != "" || none.UniqKey() != "" || level != 0 || err != nil || !none.Properties.WaitStoreOK() {
		t.Error("the zero message has properties")
	}
	bad := Message{Properties: "DELAY\x01x\x02"}
	if _, err := bad.DelayLevel(); !errors.Is(err, ErrMessageIllegal) {
		t.Errorf("DELAY of x: %v", err)
	}
	for value, want := range map[string]bool{"true": true, "TRUE": true, "false": false, "yes": false} {
		if got := NewProperties(PropWait, value).WaitStoreOK(); got != want {
			t.Errorf("WAIT of %q: %v", value, got)
		}
	}
}

func TestInnerNum(t *testing.T) {
	for value, want := range map[string]int16{"1": 1, "+2": 2, "32767": 32767, "0": 0, "-1": 0, "32768": 0, "x": 0, "": 0} {
		n, err := NewProperties(PropInnerNum, value).InnerNum()
		if n != want || (err == nil) != (want > 0) {
			t.Errorf("INNER_NUM of %q: %d, %v, want %d", value, n, err, want)
		}
	}
}

func TestLightQueues(t *testing.T) {
	for _, tc := range []struct {
		name    string
		props   Properties
		want    []LightQueue
		wantErr bool
	}{
		{"none", "", nil, false},
		{"offsets not yet assigned", NewProperties(PropInnerMultiDispatch, "%LMQ%a"), nil, false},
		{"offsets alone", NewProperties(PropInnerMultiQueueOffset, "1"), nil, false},
		{"one", NewProperties(PropInnerMultiDispatch, "%LMQ%a", PropInnerMultiQueueOffset, "7"), []LightQueue{{"%LMQ%a", 7}}, false},
		{"same queue twice", NewProperties(PropInnerMultiDispatch, "%LMQ%a,%LMQ%b,%LMQ%a", PropInnerMultiQueueOffset, "7,0,7"), []LightQueue{{"%LMQ%a", 7}, {"%LMQ%b", 0}, {"%LMQ%a", 7}}, false},
		{"trailing empty items drop", NewProperties(PropInnerMultiDispatch, "%LMQ%a,,", PropInnerMultiQueueOffset, "7,"), []LightQueue{{"%LMQ%a", 7}}, false},
		{"more queues", NewProperties(PropInnerMultiDispatch, "%LMQ%a,b", PropInnerMultiQueueOffset, "7"), nil, true},
		{"more offsets", NewProperties(PropInnerMultiDispatch, "%LMQ%a", PropInnerMultiQueueOffset, "7,8"), nil, true},
		{"empty offset", NewProperties(PropInnerMultiDispatch, "b,%LMQ%a", PropInnerMultiQueueOffset, ",8"), nil, true},
		{"no number", NewProperties(PropInnerMultiDispatch, "%LMQ%a", PropInnerMultiQueueOffset, "x"), nil, true},
		{"negative", NewProperties(PropInnerMultiDispatch, "%LMQ%a", PropInnerMultiQueueOffset, "-1"), nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.props.LightQueues()
			var bad *FormatError
			if !slices.Equal(got, tc.want) || (err != nil) != tc.wantErr || (err != nil && !errors.As(err, &bad)) {
				t.Errorf("got %v, %v, want %v, error %v", got, err, tc.want, tc.wantErr)
			}
			rec := sealed(t, &Encoder{}, &Message{Topic: "T", Properties: tc.props}, 0, 0, 0)
			v := must(Check(rec, 0, CheckOptions{}))
			got, err = v.LightQueues()
			if !slices.Equal(got, tc.want) || (err != nil) != tc.wantErr || v.HasLightQueues() != (tc.want != nil || tc.wantErr) {
				t.Errorf("view: got %v, %v, want %v, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
	names := slices.Collect(NewProperties(PropInnerMultiDispatch, ",%LMQ%a,%LMQ%a,").LightNames())
	if !slices.Equal(names, []string{"", "%LMQ%a", "%LMQ%a"}) {
		t.Errorf("LightNames = %q", names)
	}
	if names := slices.Collect(Properties("").LightNames()); len(names) != 0 {
		t.Errorf("LightNames of none = %q", names)
	}
	if got := JoinOffsets([]QueueOffset{7, 0, 12}); got != "7,0,12" {
		t.Errorf("JoinOffsets = %q", got)
	}
	for topic, want := range map[string]bool{"T": true, ScheduleTopic: false, "%RETRY%g": false, TimerTopic: false, "%DLQ%g": true} {
		if got := AllowsLightQueues(topic); got != want {
			t.Errorf("AllowsLightQueues(%q) = %v", topic, got)
		}
	}
	if !IsLight("%LMQ%a") || IsLight("LMQ%a") {
		t.Error("IsLight")
	}
}

func TestSysFlag(t *testing.T) {
	for _, tc := range []struct {
		flag        SysFlag
		compression Compression
		queued      bool
		indexed     bool
	}{
		{0, CompressionNone, true, true},
		{Compressed, CompressionZlib, true, true},
		{Compressed | 0x100, CompressionLZ4, true, true},
		{Compressed | 0x200, CompressionZstd, true, true},
		{Compressed | 0x300, CompressionZlib, true, true},
		{Compressed | 0x400, CompressionUnknown, true, true},
		{0x300, CompressionNone, true, true},
		{TxPrepared, CompressionNone, false, true},
		{TxCommit, CompressionNone, true, true},
		{TxRollback, CompressionNone, false, false},
	} {
		if c, q, i := tc.flag.CompressionType(), tc.flag.Queued(), tc.flag.Indexed(); c != tc.compression || q != tc.queued || i != tc.indexed {
			t.Errorf("flag %#x: %v, queued %v, indexed %v, want %v, %v, %v", tc.flag, c, q, i, tc.compression, tc.queued, tc.indexed)
		}
	}
	const others = TxCommit | NeedUnwrap | 0x40000000
	for c, name := range []string{"none", "zlib", "lz4", "zstd"} {
		f := (others | Compressed | 0x700).WithCompression(Compression(c))
		if f.CompressionType() != Compression(c) || f&^(Compressed|0x700) != others || Compression(c).String() != name {
			t.Errorf("WithCompression(%v) = %#x", Compression(c), f)
		}
	}
}
