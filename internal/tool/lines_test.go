package tool

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 200_000) // more than the buffer
	type line struct {
		n    int
		text string
	}
	for _, tc := range []struct {
		name, in string
		limit    int
		want     []line
	}{
		{"nothing", "", 10, nil},
		{"one without end", "abc", 10, []line{{1, "abc"}}},
		{"blank ones", "\n \r\n\tabc \r\n\n", 10, []line{{3, "abc"}}},
		{"at the limit", "12345678\nx\n", 9, []line{{1, "12345678"}, {2, "x"}}},
		{"above it", "123456789\nx\n123456789", 8, []line{{1, "!"}, {2, "x"}, {3, "!"}}},
		{"longer than the buffer", long + "\nx\n", len(long) + 1, []line{{1, long}, {2, "x"}}},
		{"and above the limit", long + "\nx\n" + long, 5, []line{{1, "!"}, {2, "x"}, {3, "!"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, r := range map[string]io.Reader{
				"whole": strings.NewReader(tc.in), "bytes": iotest.OneByteReader(strings.NewReader(tc.in)), "end": iotest.DataErrReader(strings.NewReader(tc.in)),
			} {
				l := NewLines(r, tc.limit)
				var got []line
				for {
					text, err := l.Next()
					if err == io.EOF {
						break
					}
					if errors.Is(err, ErrLineTooLong) {
						text = []byte("!")
					} else if err != nil {
						t.Fatal(err)
					}
					got = append(got, line{l.Number(), string(text)})
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("%s: got %.100v, want %.100v", name, got, tc.want)
				}
				if l.Bytes() != int64(len(tc.in)) {
					t.Errorf("%s: %d bytes of %d", name, l.Bytes(), len(tc.in))
				}
			}
		})
	}
	broken := errors.New("broken pipe")
	l := NewLines(io.MultiReader(strings.NewReader("a\nhalf"), iotest.ErrReader(broken)), 10)
	if text, err := l.Next(); string(text) != "a" || err != nil {
		t.Errorf("first line %q, %v", text, err)
	}
	if text, err := l.Next(); !errors.Is(err, broken) {
		t.Errorf("half a line before an error: %q, %v", text, err)
	}
}
