package message

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

func TestJavaHash(t *testing.T) {
	for _, tc := range []struct {
		s    string
		want int32
	}{
		{"", 0},
		{"a", 97},
		{"TagA", 2598919},
		{"中文", 646394},
		{"😀", 1772899},
		{"TopicTest", -1902610879},
		{"TopicTest#key1", -1655984460},
		{"polygenelubricants", -2147483648},
		{"Aa", 2112},
		{"BB", 2112},
		// Malformed UTF-8, as Java 17 decodes and hashes it.
		{"\x80", 65533},
		{"\xc0\x80", 2097056},
		{"A\xc2", 67548},
		{"\xe4\xb8", 65533},
		{"\xe4\xb8A", 2031588},
		{"\xe0\x80\x80", 65074269},
		{"\xed\xa0\x80", 65533},
		{"\xed\xa0", 65533},
		{"\xf0\x90\x8d", 65533},
		{"\xf0\x80\x80\x80", 2017367872},
		{"\xf4\x90\x80\x80", 2017367872},
		{"\xf5\x80\x80\x80", 2017367872},
		{"\xf1\x9fA", 2031588},
		{"\xe1\xf0\x90\x8d\x88", 64748549},
		{"\ufffd", 65533},
	} {
		if got := JavaHash(tc.s); got != tc.want {
			t.Errorf("JavaHash(%q) = %d, want %d", tc.s, got, tc.want)
		}
		if got := HashTags(tc.s); got != TagsCode(tc.want) {
			t.Errorf("HashTags(%q) = %d, want %d", tc.s, got, tc.want)
		}
	}
}

func TestHashProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		var want int32
		for _, unit := range utf16.Encode([]rune(a + b)) {
			want = 31*want + int32(unit)
		}
		if got := JavaHash(a + b); got != want {
			t.Errorf("JavaHash = %d, want %d", got, want)
		}
		if got := HashAppend(JavaHash(a), b); got != want {
			t.Errorf("HashAppend = %d, want %d", got, want)
		}
	})
}

func TestIndexKeyHash(t *testing.T) {
	for _, tc := range []struct {
		topic, key string
		want       int32
	}{
		{"TopicTest", "7F0000014E7B18B4AAC20A1B2C3D0000", 1562057478},
		{"TopicTest", "key1", 1655984460},
		{"T", "a", 81906},
		{"T", "b", 81907},
		{"T", "e", 81910},
		{"AaTopic", "Aa", 10606476},
		{"AaTopic", "BB", 10606476},
		{"BBTopic", "BB", 10606476},
		{"BBTopic", "Aa", 10606476},
		{"TopicTest", "vlsoaerz", 0}, // the hash without an absolute value
		{"TopicTest", "flrkafys", 0},
	} {
		if got := IndexKeyHash(tc.topic, tc.key); got != tc.want {
			t.Errorf("IndexKeyHash(%q, %q) = %d, want %d", tc.topic, tc.key, got, tc.want)
		}
	}
}

func TestIndexHashes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		props    Properties
		flag     SysFlag
		withTags bool
		want     []string // keys
	}{
		{"none", "", 0, true, nil},
		{"key", "KEYS\x01k\x02", 0, false, []string{"k"}},
		{"unique key first", "KEYS\x01k\x02UNIQ_KEY\x01u\x02", 0, false, []string{"u", "k"}},
		{"two blanks", "KEYS\x01order 1  x\x02", 0, false, []string{"order", "1", "x"}},
		{"one blank", "KEYS\x01 \x02", 0, false, nil},
		{"leading and trailing blanks", "KEYS\x01  a  \x02", 0, false, []string{"a"}},
		{"same key twice", "KEYS\x01k k\x02", 0, false, []string{"k", "k"}},
		{"key equals unique key", "KEYS\x01u\x02UNIQ_KEY\x01u\x02", 0, false, []string{"u", "u"}},
		{"tags last", "TAGS\x01a b\x02KEYS\x01k\x02UNIQ_KEY\x01u\x02", 0, true, []string{"u", "k", "T#a b"}},
		{"tags before 5.4", "TAGS\x01a\x02KEYS\x01k\x02", 0, false, []string{"k"}},
		{"empty values", "TAGS\x01\x02KEYS\x01\x02UNIQ_KEY\x01\x02", 0, true, nil},
		{"not ASCII", "KEYS\x01schlüssel 键 🔑\x02", 0, true, []string{"schlüssel", "键", "🔑"}},
		{"prepared", "KEYS\x01k\x02", TxPrepared, true, []string{"k"}},
		{"committed", "KEYS\x01k\x02", TxCommit, true, []string{"k"}},
		{"rolled back", "KEYS\x01k\x02TAGS\x01a\x02", TxRollback, true, nil},
		{"many keys", Properties("KEYS\x01" + strings.Repeat("k ", 10000) + "\x02"), 0, false, slices.Repeat([]string{"k"}, 10000)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := []int32{-7}
			for _, key := range tc.want {
				want = append(want, IndexKeyHash("Topic", key))
			}
			if got := IndexHashes([]int32{-7}, "Topic", tc.props, tc.flag, tc.withTags); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			rec := sealed(t, &Encoder{}, &Message{Topic: "Topic", SysFlag: tc.flag, Properties: tc.props}, 0, 0, 0)
			v := must(Check(rec, 0, CheckOptions{}))
			if got := v.IndexHashes([]int32{-7}, tc.withTags); !slices.Equal(got, want) {
				t.Errorf("view: got %v, want %v", got, want)
			}
		})
	}
}
