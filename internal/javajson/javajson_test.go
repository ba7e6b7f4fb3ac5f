package javajson

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnmarshal(t *testing.T) {
	type offsets struct {
		OffsetTable map[string]map[int32]int64 `json:"offsetTable"`
	}
	want := offsets{map[string]map[int32]int64{"Orders@g1": {0: 12, 1: 7}}}
	for name, in := range map[string]string{
		"bare keys":        `{"offsetTable":{"Orders@g1":{0:12,1:7}}}`,
		"quoted keys":      `{"offsetTable":{"Orders@g1":{"0":12,"1":7}}}`,
		"spread out":       "{\n\t\"offsetTable\":{\n\t\t\"Orders@g1\":{\n0:12,\n\t1 :7\n\t\t}\n\t}\n}",
		"unknown fields":   `{"dataVersion":{"counter":1},"list":[1,2,{3:4}],"offsetTable":{"Orders@g1":{0:12,1:7}}}`,
		"digits in string": `{"note":"{0:1,2:3}\"{4:5}","offsetTable":{"Orders@g1":{0:12,1:7}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var got offsets
			if err := Unmarshal([]byte(in), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"empty":         ``,
		"cut":           `{"offsetTable":{"a`,
		"open string":   `{"a`,
		"closing first": `}`,
		"two values":    `{} {}`,
		"too deep":      strings.Repeat("[", 1000),
		"bare word key": `{a:1}`,
	} {
		t.Run(name, func(t *testing.T) {
			var v map[string]any
			if err := Unmarshal([]byte(in), &v); err == nil {
				t.Errorf("decoded %q as %v", in, v)
			}
		})
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"offsetTable":{"Orders@g1":{0:12,-1:7}},"x":[1,{2:3}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		if Unmarshal(data, &v) != nil {
			return
		}
		again, err := Normalize(data)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := Normalize(again)
		if err != nil || string(twice) != string(again) {
			t.Fatalf("normalising is not stable: %q, %q, %v", again, twice, err)
		}
	})
}
