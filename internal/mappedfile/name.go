package mappedfile

import (
	"math"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

// nameLen is the number of digits of a file name.
const nameLen = 20

// FileName returns the name of the file whose first byte has the given
// offset: decimal, zero-padded to 20 digits (RocketMQ: UtilAll.offset2FileName).
// start must not be negative.
func FileName(start int64) string {
	var b [nameLen]byte
	for i := nameLen - 1; i >= 0; i-- {
		b[i] = byte('0' + start%10)
		start /= 10
	}
	return string(b[:])
}

// ParseFileName is the inverse of FileName. ok is false for a name that is not
// exactly 20 ASCII digits or does not fit into an int64.
func ParseFileName(name string) (start int64, ok bool) {
	if len(name) != nameLen {
		return 0, false
	}
	for i := range nameLen {
		d := name[i] - '0'
		if d > 9 || start > (math.MaxInt64-int64(d))/10 {
			return 0, false
		}
		start = start*10 + int64(d)
	}
	return start, true
}

// maxStart is the largest start for which the end of the file and of the one
// behind it are offsets.
func maxStart(size int64) int64 { return math.MaxInt64 - 2*min(size, math.MaxInt64/2) }

// InTheMaking reports whether a directory entry is a segment, or an index file,
// that has its name and not yet its length.
func InTheMaking(e vfs.Entry) bool {
	return e.IsRegular() && e.Size == 0 && strings.Trim(e.Name, "0123456789") == ""
}
