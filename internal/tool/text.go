package tool

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gantrymq/gantry/message"
)

// maxTextBody bounds what Text shows of a body, in bytes.
const maxTextBody = 4096

// Text describes a message for people, times in loc. For raw see AppendJSON.
func Text(m message.Ext, raw bool, loc *time.Location) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s queue %d offset %d  stored %s  position %d  size %d\n",
		Printable(m.Topic), m.QueueID, m.QueueOffset, Clock(m.StoreTimestamp, loc), m.PhysicalOffset, m.StoreSize)
	fmt.Fprintf(&b, "  id %s  born %s on %s", m.MsgID(), Clock(m.BornTimestamp, loc), m.BornHost)
	for _, f := range []struct {
		format string
		v      int64
	}{
		{"  sysFlag %#x", int64(m.SysFlag)}, {"  flag %d", int64(m.Flag)}, {"  reconsumed %d times", int64(m.ReconsumeTimes)},
		{"  prepared at %d", int64(m.PreparedTransactionOffset)},
	} {
		if f.v != 0 {
			fmt.Fprintf(&b, f.format, f.v)
		}
	}
	b.WriteByte('\n')
	props := m.Properties.Map()
	for _, name := range slices.Sorted(maps.Keys(props)) {
		fmt.Fprintf(&b, "  %s: %s\n", Printable(name), Printable(props[name]))
	}
	body, size := m.Body, fmt.Sprintf("%d bytes", len(m.Body))
	if c := m.SysFlag.CompressionType(); c != message.CompressionNone {
		var stored bool
		if body, stored = plainBody(m.Body, m.SysFlag, raw); stored {
			size += fmt.Sprintf(" compressed with %v", c)
		} else {
			size = fmt.Sprintf("%d bytes, stored as %s compressed with %v", len(body), size, c)
		}
	}
	fmt.Fprintf(&b, "  body (%s): %s\n", size, bodyText(body))
	return b.String()
}

// bodyText is text as it is, and anything else in hexadecimal.
func bodyText(body []byte) string {
	more := ""
	text := utf8.Valid(body)
	if len(body) > maxTextBody {
		body, more = body[:maxTextBody], " …"
		for text && !utf8.Valid(body) { // not through the middle of a character
			body = body[:len(body)-1]
		}
	}
	if !text {
		return fmt.Sprintf("%x%s", body, more)
	}
	return Printable(string(body)) + more
}

// Clock writes a time in ms for people; none is "-".
func Clock(ms int64, loc *time.Location) string {
	if ms <= 0 {
		return "-"
	}
	return time.UnixMilli(ms).In(loc).Format("2006-01-02 15:04:05.000")
}

// Printable makes control characters and bytes that are no UTF-8 visible, so
// that what is stored cannot steer the terminal or pretend to be a line.
func Printable(s string) string {
	if strings.IndexFunc(s, hidden) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch _, size := utf8.DecodeRuneInString(s[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case hidden(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// hidden reports whether a terminal shows r as something else than a sign. Bad
// UTF-8 counts, and a genuine U+FFFD is not told apart from it here.
func hidden(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }
