package gantry

import (
	"slices"
	"strings"

	"github.com/gantrymq/gantry/message"
)

// tagFilter chooses messages by tag.
type tagFilter struct {
	tags   []string
	hashes []message.TagsCode
}

// Tags returns a Filter for a subscription expression by tag: tags separated
// by "||", where "*" or nothing means every message (nil). The consume queue's
// hash is compared first, then the tag in the record, so that a message whose
// tag merely has the same hash is not chosen; upstream leaves that to its
// clients.
func Tags(expression string) Filter {
	f := &tagFilter{}
	for tag := range strings.SplitSeq(expression, "||") {
		switch tag = strings.TrimSpace(tag); tag {
		case "":
		case "*":
			return nil
		default:
			f.tags = append(f.tags, tag)
			f.hashes = append(f.hashes, message.HashTags(tag))
		}
	}
	if len(f.tags) == 0 {
		return nil
	}
	return f
}

// MatchUnit compares hashes.
func (f *tagFilter) MatchUnit(code message.TagsCode) bool {
	return code == AnyTags || slices.Contains(f.hashes, code)
}

// MatchRecord compares the record's tag.
func (f *tagFilter) MatchRecord(v *message.View) bool {
	tags, ok := v.GetProp(message.PropTags)
	return ok && slices.Contains(f.tags, string(tags))
}
