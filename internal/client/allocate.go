package client

import (
	"cmp"
	"slices"
	"unicode/utf8"

	"github.com/gantrymq/gantry/remoting"
)

// allocate returns the part of the queues of one topic that a member of a group
// reads. All members compute it from the same two lists, so it has to be what
// upstream's AllocateMessageQueueAveragely computes: both lists sorted, every
// member a run of neighbours, the first ones one queue more if it does not come
// out even. Who is not in the list gets nothing.
func allocate(queues []remoting.MessageQueue, members []string, self string) []remoting.MessageQueue {
	queues, members = slices.Clone(queues), slices.Clone(members)
	slices.SortFunc(queues, compareQueues)
	slices.SortFunc(members, compareJava)
	at := slices.Index(members, self)
	if at < 0 {
		return nil
	}
	share, more := len(queues)/len(members), len(queues)%len(members)
	from := at*share + min(at, more)
	if at < more {
		share++
	}
	return queues[from : from+share]
}

// compareQueues orders queues as Java's MessageQueue does.
func compareQueues(a, b remoting.MessageQueue) int {
	return cmp.Or(compareJava(a.Topic, b.Topic), compareJava(a.BrokerName, b.BrokerName), cmp.Compare(a.QueueID, b.QueueID))
}

// compareJava orders strings as Java does, by their UTF-16 units: characters
// above U+FFFF come before those from U+E000 on.
func compareJava(a, b string) int {
	for len(a) > 0 && len(b) > 0 {
		if a[0] < utf8.RuneSelf && b[0] < utf8.RuneSelf {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		x, n := utf8.DecodeRuneInString(a)
		y, m := utf8.DecodeRuneInString(b)
		if x != y {
			return cmp.Compare(javaRank(x), javaRank(y))
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}

// javaRank moves the characters that are two units in Java to where their first
// unit is.
func javaRank(r rune) int64 {
	if r > 0xFFFF {
		return 0xD800<<24 + int64(r)
	}
	return int64(r) << 24
}
