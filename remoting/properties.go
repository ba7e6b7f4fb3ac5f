package remoting

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxProperties bounds the lines of a properties text.
const maxProperties = 1 << 16

// AppendProperties appends fields as the properties text that is the body of
// 25, 26, 318 and 319: a line "name=value" each, nothing escaped, as upstream
// writes it.
func AppendProperties(dst []byte, f Fields) []byte {
	for _, e := range f {
		dst = append(dst, e.Name...)
		dst = append(dst, '=')
		dst = append(dst, e.Value...)
		dst = append(dst, '\n')
	}
	return dst
}

// ParseProperties reads properties text by the rules of java.util.Properties:
// comments with # or !, names ended by =, : or white space, escapes with a
// backslash, which also continues a line. Of several values of a name the last
// wins.
func ParseProperties(text []byte) (Fields, error) {
	var f Fields
	at := make(map[string]int)
	for n := 0; len(text) > 0; n++ {
		if n == maxProperties {
			return nil, fmt.Errorf("more than %d properties", maxProperties)
		}
		var line []byte
		line, text = propertyLine(text)
		if len(line) == 0 {
			continue
		}
		end, value := splitProperty(line)
		e := Field{unescapeProperty(line[:end]), unescapeProperty(line[value:])}
		if i, ok := at[e.Name]; ok {
			f[i] = e
			continue
		}
		at[e.Name] = len(f)
		f = append(f, e)
	}
	return f, nil
}

func propertySpace(c byte) bool { return c == ' ' || c == '\t' || c == '\f' }

func trimProperty(b []byte) []byte {
	for len(b) > 0 && propertySpace(b[0]) {
		b = b[1:]
	}
	return b
}

// propertyLine returns the next line with its continuations joined, empty for
// blank lines and comments, and what comes behind it.
func propertyLine(text []byte) (line, rest []byte) {
	for first := true; ; first = false {
		part := text
		rest = nil
		for i, c := range text {
			if c == '\n' || c == '\r' {
				part, rest = text[:i], text[i+1:]
				if c == '\r' && len(rest) > 0 && rest[0] == '\n' {
					rest = rest[1:]
				}
				break
			}
		}
		part = trimProperty(part)
		if first && (len(part) == 0 || part[0] == '#' || part[0] == '!') {
			return nil, rest
		}
		slashes := 0
		for slashes < len(part) && part[len(part)-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return append(line, part...), rest
		}
		line = append(line, part[:len(part)-1]...)
		if text = rest; len(text) == 0 {
			return line, nil
		}
	}
}

// splitProperty returns where the name ends and where the value begins.
func splitProperty(line []byte) (end, value int) {
	for end < len(line) {
		c := line[end]
		if c == '\\' {
			end++
		} else if c == '=' || c == ':' || propertySpace(c) {
			break
		}
		end++
	}
	end = min(end, len(line))
	value = end
	separated := false
	for ; value < len(line); value++ {
		c := line[value]
		if !propertySpace(c) {
			if separated || c != '=' && c != ':' {
				break
			}
			separated = true
		}
	}
	return end, value
}

func unescapeProperty(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' || i+1 == len(b) {
			s.WriteByte(b[i])
			continue
		}
		i++
		switch c := b[i]; c {
		case 't':
			s.WriteByte('\t')
		case 'n':
			s.WriteByte('\n')
		case 'r':
			s.WriteByte('\r')
		case 'f':
			s.WriteByte('\f')
		case 'u':
			if r, ok := hex4(b, i+1); ok {
				s.WriteRune(r)
				i += 4
				continue
			}
			s.WriteByte(c)
		default:
			s.WriteByte(c)
		}
	}
	if !utf8.ValidString(s.String()) {
		return string(repair(nil, []byte(s.String())))
	}
	return s.String()
}
