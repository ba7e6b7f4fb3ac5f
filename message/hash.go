package message

import (
	"unicode/utf8"
	"unsafe"
)

// JavaHash is String.hashCode of s read as UTF-8: 31*h + c over its UTF-16
// units, wrapping. Malformed bytes count as the U+FFFD that Java decodes them
// to, so that hashes of stored strings equal upstream's.
func JavaHash(s string) int32 { return HashAppend(0, s) }

// HashAppend continues a hash: HashAppend(JavaHash(a), b) is JavaHash(a+b) as
// long as a does not end, and b not begin, inside a character.
func HashAppend(h int32, s string) int32 {
	u := uint32(h)
	for len(s) >= 8 {
		// Eight characters at once are not a chain of eight multiplications.
		const (
			p2 = 31 * 31
			p3 = p2 * 31
			p4 = p3 * 31
			p5 = p4 * 31
			p6 = p5 * 31 % (1 << 32)
			p7 = p6 * 31 % (1 << 32)
			p8 = p7 * 31 % (1 << 32)
		)
		if (s[0]|s[1]|s[2]|s[3]|s[4]|s[5]|s[6]|s[7])&0x80 != 0 {
			break
		}
		u = p8*u + p7*uint32(s[0]) + p6*uint32(s[1]) + p5*uint32(s[2]) + p4*uint32(s[3]) +
			p3*uint32(s[4]) + p2*uint32(s[5]) + 31*uint32(s[6]) + uint32(s[7])
		s = s[8:]
	}
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			u = 31*u + uint32(c)
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			n = malformedLen(s[i:])
		}
		i += n
		if r < 0x10000 {
			u = 31*u + uint32(r)
			continue
		}
		r -= 0x10000
		u = 31*u + uint32(0xD800+r>>10)
		u = 31*u + uint32(0xDC00+r&0x3FF)
	}
	return int32(u)
}

// malformedLen returns how many bytes at the start of s, which is malformed
// there, Java's decoder replaces by one U+FFFD: the longest beginning of some
// character, and all three bytes of an encoded surrogate. Go's decoder counts
// each of those bytes alone, which would give another hash.
func malformedLen(s string) int {
	var want int // bytes that the first byte announces
	lo, hi := byte(0x80), byte(0xBF)
	switch b := s[0]; {
	case b >= 0xE0 && b <= 0xEF:
		want = 3
		if b == 0xE0 {
			lo = 0xA0
		}
	case b >= 0xF0 && b <= 0xF4:
		want = 4
		if b == 0xF0 {
			lo = 0x90
		} else if b == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1
	}
	n := 1
	for n < want && n < len(s) && s[n] >= lo && s[n] <= hi {
		lo, hi = 0x80, 0xBF
		n++
	}
	return n
}

// HashTags is the tags code of a TAGS property: the hash of the whole value,
// sign-extended; 0 for none (section 6.2).
func HashTags(tags string) TagsCode { return TagsCode(JavaHash(tags)) }

// IndexKeyHash is the hash under which the index files keep a key of a topic:
// the absolute value of the hash of topic "#" key, and 0 for the one hash that
// has none (RocketMQ: IndexFile.indexKeyHashMethod).
func IndexKeyHash(topic, key string) int32 {
	return absHash(HashAppend(topicPrefix(topic), key))
}

// topicPrefix is the hash of topic + "#", the beginning of every index key.
func topicPrefix(topic string) int32 { return HashAppend(JavaHash(topic), "#") }

func absHash(h int32) int32 {
	if h < 0 {
		h = -h
	}
	if h < 0 { // -2^31 is its own negative
		return 0
	}
	return h
}

// IndexHashes appends the hashes of all index entries of a record, in the order
// upstream makes them: UNIQ_KEY, each non-empty piece of KEYS, and with
// withTags (RocketMQ 5.4 and later) the key "T#" + TAGS. A key that is there
// twice gives two hashes. A rollback record has none (section 10.3).
func IndexHashes(dst []int32, topic string, p Properties, f SysFlag, withTags bool) []int32 {
	r := p.Reserved()
	return r.IndexHashes(dst, topic, f, withTags)
}

// IndexHashes is the function of that name for properties that have been looked
// through already.
func (r *Reserved) IndexHashes(dst []int32, topic string, f SysFlag, withTags bool) []int32 {
	if !f.Indexed() {
		return dst
	}
	prefix := topicPrefix(topic)
	if r.UniqKey != "" {
		dst = append(dst, absHash(HashAppend(prefix, r.UniqKey)))
	}
	for key := range keyPieces(r.Keys) {
		dst = append(dst, absHash(HashAppend(prefix, key)))
	}
	if withTags && r.Tags != "" {
		dst = append(dst, absHash(HashAppend(HashAppend(prefix, "T#"), r.Tags)))
	}
	return dst
}

// stringOf views b as a string without copying. The string must not outlive
// the call that made it, and nobody may write to b meanwhile.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf views a string of stringOf as the bytes that it is.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
