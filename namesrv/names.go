package namesrv

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what peers name, in bytes. Upstream's own bounds are 127 for a
// topic and 255 for a retry topic; it has none for the others.
const (
	maxTopicLen = 255
	maxNameLen  = 255 // brokers, clusters, zones
	maxAddrLen  = 300
)

// checkName refuses what no broker, cluster or topic can be called: nothing, too
// much, or text with control characters, which would end up in logs and
// terminals. Other characters are the broker's affair.
func checkName(what, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > limit:
		return fmt.Errorf("%s of %d bytes, the limit is %d", what, len(name), limit)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%s %q has control characters", what, name)
	}
	return nil
}

// checkAddr refuses addresses that clients cannot dial, and those with
// characters that some of them split lists of addresses by. An IPv6 address may
// lack its brackets, as Java clients do not need them.
func checkAddr(what, addr string) error {
	i := strings.LastIndexByte(addr, ':')
	if i <= 0 || len(addr) > maxAddrLen {
		return fmt.Errorf("%s %s is not host:port", what, quoteClipped(addr))
	}
	port, err := strconv.ParseUint(addr[i+1:], 10, 16)
	if err != nil || port == 0 || strings.ContainsFunc(addr[:i], notHost) {
		return fmt.Errorf("%s %s is not host:port", what, quoteClipped(addr))
	}
	return nil
}

func notHost(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:%[]", r))
}

// clipped is the start of a text from a peer, for a remark.
func clipped(s string) string {
	const limit = 300
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

func quoteClipped(s string) string { return strconv.Quote(clipped(s)) }
