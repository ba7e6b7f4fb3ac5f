package membership

import (
	"slices"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// all as an expression, or as a tag, means every message.
const all = "*"

// A Subscription is what a group, or a single pull, wants of a topic
// (upstream: SubscriptionData, FilterAPI). It never changes.
type Subscription struct {
	data remoting.Subscription
	all  bool
	cost int64

	compiled struct {
		sync.Once
		filter any
		err    error
	}
}

// NewSubscription makes the subscription of a pull that brings its own (flag
// 4). No type, and "TAG", mean tags separated by "||"; nothing and "*" mean
// every message. The expression of another type is taken as it is: see
// Compiled. An error is a *remoting.Error with SUBSCRIPTION_PARSE_FAILED.
func NewSubscription(topic, expression, expressionType string) (*Subscription, error) {
	d := remoting.Subscription{Topic: topic, SubString: expression, ExpressionType: expressionType}
	var err error
	switch {
	case len(expression) > MaxExpressionLen:
		err = checkLen("subscription", len(expression), MaxExpressionLen, "bytes")
	case !isTag(expressionType):
		if strings.TrimSpace(expression) == "" {
			err = &FieldError{"subscription", "missing"}
		}
	case isAll(expression):
		d.SubString = all
	default:
		d.Tags = splitTags(expression)
		if err = checkTags("subscription", d.Tags); err == nil && len(d.Tags) == 0 {
			err = &FieldError{"subscription", "no tag in it"}
		}
	}
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSubscriptionParseFailed, "topic %s: %v", topic, err)
	}
	return subscribed(&d), nil
}

// subscribed makes a Subscription of what a heartbeat says. Some clients leave
// out tags, codes or both, so what is missing is made of what is there: a code
// too many only costs a look at the record, a code too few loses messages.
func subscribed(d *remoting.Subscription) *Subscription {
	s := &Subscription{data: *d}
	if s.data.ExpressionType == "" {
		s.data.ExpressionType = remoting.ExpressionTag
	}
	if s.IsTag() {
		bare := len(d.Tags) == 0 && len(d.Codes) == 0
		s.all = d.ClassFilterMode || strings.TrimSpace(d.SubString) == all || bare && isAll(d.SubString)
		if bare && !s.all {
			s.data.Tags = splitTags(d.SubString)
		}
		s.all = s.all || slices.Contains(s.data.Tags, all)
	}
	s.data.Tags = slices.Clone(s.data.Tags)
	s.data.Codes = codes(s.data.Tags, d.Codes, s.IsTag() && !s.all)
	s.cost = subscriptionCost + int64(len(s.data.Topic)+len(s.data.SubString)+len(s.data.ExpressionType)+4*len(s.data.Codes))
	for _, tag := range s.data.Tags {
		s.cost += tagCost + int64(len(tag))
	}
	return s
}

// codes returns the given hash codes, and those of the tags if withTags, in
// order and each once.
func codes(tags []string, given []int32, withTags bool) []int32 {
	if len(given) == 0 && (len(tags) == 0 || !withTags) {
		return nil
	}
	c := make([]int32, len(given), len(given)+len(tags))
	copy(c, given)
	if withTags {
		for _, tag := range tags {
			c = append(c, message.JavaHash(tag))
		}
	}
	slices.Sort(c)
	return slices.Clip(slices.Compact(c))
}

func splitTags(expression string) []string {
	var tags []string
	for tag := range strings.SplitSeq(expression, "||") {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
		if len(tags) > MaxTags {
			break // refused by whoever checks; it need not be read to its end
		}
	}
	return tags
}

// isAll reports whether an expression by tags means every message.
func isAll(expression string) bool {
	expression = strings.TrimSpace(expression)
	return expression == "" || expression == all
}

func isTag(expressionType string) bool {
	return expressionType == "" || expressionType == remoting.ExpressionTag
}

// Data returns the subscription as it goes over the wire. Its slices must not
// be changed.
func (s *Subscription) Data() remoting.Subscription { return s.data }

// Topic is what is subscribed to.
func (s *Subscription) Topic() string { return s.data.Topic }

// Version is the subVersion; only those of one group can be compared.
func (s *Subscription) Version() int64 { return s.data.SubVersion }

// Expression is the text of it.
func (s *Subscription) Expression() string { return s.data.SubString }

// IsTag reports whether messages are chosen by tag, and not by an expression
// that has to be compiled.
func (s *Subscription) IsTag() bool { return isTag(s.data.ExpressionType) }

// All reports whether every message is wanted.
func (s *Subscription) All() bool { return s.all }

// MatchHash reports whether a message with this tags code may be wanted, as far
// as tags go: messages with another tag may have the same code. A subscription
// by another type of expression wants every code.
func (s *Subscription) MatchHash(code message.TagsCode) bool {
	if s.all || !s.IsTag() {
		return true
	}
	_, ok := slices.BinarySearch(s.data.Codes, int32(code)) // 32 bits, as upstream compares them
	return ok
}

// MatchTags reports whether a message with these tags, "" for none, is wanted.
// A client that gave codes but no tags is content with MatchHash.
func (s *Subscription) MatchTags(tags string) bool {
	return s.all || !s.IsTag() || slices.Contains(s.data.Tags, tags) ||
		len(s.data.Tags) == 0 && s.MatchHash(message.HashTags(tags))
}

// Compiled returns what compile made of the expression. It is called once in
// the life of s, so that the filter lives as long as the subscription; its
// errors are kept too.
func (s *Subscription) Compiled(compile func(expression string) (any, error)) (any, error) {
	c := &s.compiled
	c.Do(func() { c.filter, c.err = compile(s.data.SubString) })
	return c.filter, c.err
}

// wants reports whether s and o choose the same messages by the same words.
func (s *Subscription) wants(o *Subscription) bool {
	return s.data.SubString == o.data.SubString && s.data.ExpressionType == o.data.ExpressionType &&
		s.all == o.all && slices.Equal(s.data.Codes, o.data.Codes)
}
