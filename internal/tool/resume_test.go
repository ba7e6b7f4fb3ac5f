package tool

import (
	"strings"
	"testing"
)

func TestReadExported(t *testing.T) {
	a, b := testMessage(), testMessage()
	a.PhysicalOffset, a.Body = 0, []byte("line one\nline \"two\"")
	b.PhysicalOffset, b.StoreSize = 120, 200
	jsonA, jsonB := string(line(t, a, false)), string(line(t, b, false))
	csvA, csvB := CSVHeader()+string(AppendCSV(nil, &a, false)), string(AppendCSV(nil, &b, false))
	long := a
	long.Body = []byte(strings.Repeat("x", 200_000))
	jsonLong := string(line(t, long, false))
	for _, tc := range []struct {
		name, text string
		csv        bool
		size       int
		next       int64
		err        string
	}{
		{"nothing", "", false, 0, 0, ""},
		{"half a line", jsonA[:20], false, 0, 0, ""},
		{"one line", jsonA, false, len(jsonA), 120, ""},
		{"and a half", jsonA + jsonB[:30], false, len(jsonA), 120, ""},
		{"and all but the end", jsonA + jsonB[:len(jsonB)-1], false, len(jsonA), 120, ""},
		{"two lines", jsonA + jsonB, false, len(jsonA + jsonB), 320, ""},
		{"long lines", jsonLong + jsonLong + jsonLong[:100_000], false, 2 * len(jsonLong), 120, ""},
		{"something else", "hello\n", false, 0, 0, "no exported message"},
		{"another object", "{\"topic\":\"T\"}\n", false, 0, 0, "commitLogOffset or storeSize"},

		{"csv: nothing", "", true, 0, 0, ""},
		{"csv: names", CSVHeader(), true, len(CSVHeader()), 0, ""},
		{"csv: half a name", CSVHeader()[:10], true, 0, 0, ""},
		{"csv: cut in quotes", csvA[:len(csvA)-20], true, len(CSVHeader()), 0, ""},
		{"csv: one", csvA, true, len(csvA), 120, ""},
		{"csv: and a half", csvA + csvB[:40], true, len(csvA), 120, ""},
		{"csv: two", csvA + csvB, true, len(csvA + csvB), 320, ""},
		{"csv: something else", "a,b\n1,2\n", true, 0, 0, "columns"},
		{"csv: no number", CSVHeader() + strings.Repeat(",", strings.Count(CSVHeader(), ",")) + "\n", true, 0, 0, "no numbers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ReadExported(strings.NewReader(tc.text), int64(len(tc.text)), tc.csv)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || got != (Exported{int64(tc.size), tc.next}) {
				t.Errorf("got %+v, %v, want %d bytes and %d", got, err, tc.size, tc.next)
			}
		})
	}
}

func FuzzReadExported(f *testing.F) {
	m := testMessage()
	f.Add(string(line(f, m, false)), false)
	f.Add(CSVHeader()+string(AppendCSV(nil, &m, false)), true)
	f.Fuzz(func(t *testing.T, text string, isCSV bool) {
		e, err := ReadExported(strings.NewReader(text), int64(len(text)), isCSV)
		if err == nil && (e.Size < 0 || e.Size > int64(len(text)) || e.Size > 0 && text[e.Size-1] != '\n') {
			t.Fatalf("%+v of %d bytes", e, len(text))
		}
	})
}
