package check

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func visited(data string) ([]string, error) {
	var got []string
	err := parseJSON([]byte(data), func(path []string, v jsonValue) {
		if v.kind != jsonObject && v.kind != jsonArray {
			got = append(got, fmt.Sprintf("%s=%d:%s", strings.Join(path, "/"), v.kind, v.text))
		}
	})
	return got, err
}

func TestParseJSON(t *testing.T) {
	tests := []struct {
		name, data string
		want       []string
	}{
		{"bare integer keys", `{"offsetTable":{1:40,-3:12}}`, []string{"offsetTable/1=2:40", "offsetTable/-3=2:12"}},
		{"quoted integer keys", `{"t":{"1":40}}`, []string{"t/1=2:40"}},
		{"pretty", "{\n\t\"a\": [ 1 , 2 ] ,\r\n\t\"b\" : { }\n}\n", []string{"a/=2:1", "a/=2:2"}},
		{"words", `[true,false,null]`, []string{"=1:true", "=1:false", "=0:null"}},
		{"escapes", `["a\"\\\n\u4e2d\ud83d\ude00\ud83dx"]`, []string{"=3:a\"\\\n中😀\uFFFDx"}},
		{"numbers", `[-1.5e+3,9223372036854775807]`, []string{"=2:-1.5e+3", "=2:9223372036854775807"}},
		{"scalar", ` 7 `, []string{"=2:7"}},
		{"empty object", `{}`, nil},
		{"members without separator between pretty lines", "{\"a\":1,\n2:3\n}", []string{"a=2:1", "2=2:3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := visited(tt.data)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("values (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseJSONErrors(t *testing.T) {
	tests := []struct {
		name, data, want string
	}{
		{"empty", "", "the end of the file instead of a value at offset 0"},
		{"cut", `{"a":1`, "the end of the file instead of a comma or brace at offset 6"},
		{"cut string", `{"a`, "a string that does not end at offset 3"},
		{"behind", `{} {`, `data behind the value at offset 3`},
		{"trailing comma", `{"a":1,}`, `'}' instead of a key at offset 7`},
		{"no colon", `{"a" 1}`, `'1' instead of a colon at offset 5`},
		{"bare word", `{a:1}`, `'a' instead of a key at offset 1`},
		{"huge bare key", `{99999999999999999999:1}`, "a bare key that is no integer at offset 1"},
		{"deep", strings.Repeat("[", 1000), "more than 32 levels at offset 32"},
		{"reference", `{"a":{"$ref":"$.b"}}`, "a reference ($ref), which is not supported at offset 12"},
		{"zeros", "\x00\x00\x00", `'\x00' instead of a value at offset 0`},
		{"escape at the end", `"\`, "the end of the file behind a backslash at offset 2"},
		{"short hex", `"\u12"`, `\u without four digits at offset 2`},
		{"control character", "\"\x01\"", "control character 0x01 in a string at offset 1"},
		{"lone minus", `-`, "the end of the file instead of a digit at offset 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := visited(tt.data); err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"offsetTable":{1:40,3:12}}`, `{"a":[{"b":null},"\u4e2d"]}`, `{"a":-1.5e3}`, `[[[[`, `{"$ref":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		depth := 0
		err := parseJSON(data, func(path []string, v jsonValue) {
			depth = max(depth, len(path))
			if v.offset < 0 || v.offset >= int64(len(data)) {
				t.Fatalf("offset %d of %d", v.offset, len(data))
			}
		})
		if depth > maxJSONDepth {
			t.Fatalf("%d levels, error %v", depth, err)
		}
	})
}
