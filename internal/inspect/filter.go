package inspect

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// Filter chooses messages. Every field that is set must fit; the zero Filter
// chooses all records.
type Filter struct {
	Topic string
	Tag   string // the whole TAGS property
	Key   string // a word of KEYS, or UNIQ_KEY
	// Properties are pairs of name and value that the message has. An empty
	// value stands for any.
	Properties [][2]string
	From, To   int64          // store time in ms, both included; 0: no bound
	Body       *regexp.Regexp // of the body, which is opened if it is compressed
	// Prepared also chooses the records of Topic that no consumer gets, because
	// they belong to transactions that were not committed. Without Topic they
	// are always chosen.
	Prepared bool
}

// matcher is a Filter ready for use by one goroutine.
type matcher struct {
	*Filter
	need     []byte // every matching body has it
	unopened int64  // bodies that could not be opened
}

func newMatcher(f *Filter) *matcher {
	m := &matcher{Filter: f}
	if f.Body != nil {
		if re, err := syntax.Parse(f.Body.String(), syntax.Perl); err == nil {
			m.need = []byte(required(re.Simplify()))
		}
	}
	return m
}

// match reports whether the record is chosen.
func (m *matcher) match(v *message.View) bool {
	if m.From != 0 && v.StoreTimestamp < m.From || m.To != 0 && v.StoreTimestamp > m.To {
		return false
	}
	if m.Topic != "" && (string(v.TopicBytes()) != m.Topic || !m.Prepared && !v.SysFlag.Queued()) {
		return false
	}
	if m.Tag != "" {
		if tags, _ := v.GetProp(message.PropTags); string(tags) != m.Tag {
			return false
		}
	}
	if m.Key != "" && !m.hasKey(v) {
		return false
	}
	for _, p := range m.Properties {
		value, ok := v.GetProp(p[0])
		if !ok || p[1] != "" && string(value) != p[1] {
			return false
		}
	}
	return m.Body == nil || m.matchBody(v)
}

func (m *matcher) hasKey(v *message.View) bool {
	if !bytes.Contains(v.PropsBytes(), []byte(m.Key)) {
		return false
	}
	if k, _ := v.GetProp(message.PropUniqKey); string(k) == m.Key {
		return true
	}
	keys, _ := v.GetProp(message.PropKeys)
	for len(keys) > 0 {
		key := keys
		if i := bytes.IndexByte(keys, ' '); i >= 0 {
			key, keys = keys[:i], keys[i+1:]
		} else {
			keys = nil
		}
		if len(key) > 0 && string(key) == m.Key {
			return true
		}
	}
	return false
}

func (m *matcher) matchBody(v *message.View) bool {
	body := v.Body()
	if c := v.SysFlag.CompressionType(); c != message.CompressionNone {
		plain, err := tool.Inflate(body, c, tool.MaxPlainBody)
		if err != nil {
			m.unopened++
			return false
		}
		body = plain
	}
	if len(m.need) > 0 && !bytes.Contains(body, m.need) {
		return false
	}
	return m.Body.Match(body)
}

// required returns a text that everything that re matches contains, the longest
// that is easily found: searching it is many times quicker than matching.
func required(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return ""
		}
		var b strings.Builder
		for _, r := range re.Rune {
			if r == utf8.RuneError {
				return "" // also matches bytes that are no UTF-8
			}
			b.WriteRune(r)
		}
		return b.String()
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		best := ""
		for _, sub := range re.Sub {
			if s := required(sub); len(s) > len(best) {
				best = s
			}
		}
		return best
	}
	return ""
}
