package consumequeue

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// fileNameLen is the number of digits of a file name.
const fileNameLen = 20

// fileName is the name of the file whose first byte is at byte offset start of
// its queue.
func fileName(start int64) string {
	return fmt.Sprintf("%0*d", fileNameLen, start)
}

// parseFileName is the inverse of fileName. Other digits than ASCII's, other
// lengths and numbers above 2^63-1 are not file names.
func parseFileName(name string) (start int64, ok bool) {
	if len(name) != fileNameLen {
		return 0, false
	}
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return 0, false
		}
	}
	start, err := strconv.ParseInt(name, 10, 64)
	return start, err == nil
}

// parseQueueID reads a queue's folder name: the decimal number as it is
// printed. Java reads "007" and "+7" as well, but then looks in folder 7.
func parseQueueID(name string) (id int32, ok bool) {
	n, err := strconv.ParseInt(name, 10, 32)
	if err != nil || strconv.FormatInt(n, 10) != name {
		return 0, false
	}
	return int32(n), true
}

// checkTopic makes sure that a topic, taken verbatim as the name of a folder,
// stays inside the folder above it on every system.
func checkTopic(topic string) error {
	switch {
	case topic == "":
		return fmt.Errorf("empty topic: %w", ErrName)
	case topic == "." || topic == ".." || strings.ContainsAny(topic, "/\\\x00") || !filepath.IsLocal(topic):
		return fmt.Errorf("topic %q: %w", topic, ErrName)
	}
	return nil
}
