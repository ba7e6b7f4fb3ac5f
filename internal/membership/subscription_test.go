package membership

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
	"github.com/google/go-cmp/cmp"
)

func TestNewSubscription(t *testing.T) {
	hash := message.JavaHash
	tests := []struct {
		name, expression, typ string
		want                  remoting.Subscription
		all                   bool
		bad                   bool
	}{
		{name: "star", expression: "*", want: remoting.Subscription{SubString: "*", ExpressionType: "TAG"}, all: true},
		{name: "nothing", expression: "", want: remoting.Subscription{SubString: "*", ExpressionType: "TAG"}, all: true},
		{name: "blank", expression: " \t", typ: "TAG", want: remoting.Subscription{SubString: "*", ExpressionType: "TAG"}, all: true},
		{name: "blank around the star", expression: " * ", want: remoting.Subscription{SubString: "*", ExpressionType: "TAG"}, all: true},
		{name: "one", expression: "a", want: remoting.Subscription{SubString: "a", ExpressionType: "TAG", Tags: []string{"a"}, Codes: []int32{97}}},
		{name: "two", expression: "a || c", typ: "TAG",
			want: remoting.Subscription{SubString: "a || c", ExpressionType: "TAG", Tags: []string{"a", "c"}, Codes: []int32{97, 99}}},
		{name: "order and repetition", expression: "c||a|| ||c",
			want: remoting.Subscription{SubString: "c||a|| ||c", ExpressionType: "TAG", Tags: []string{"c", "a"}, Codes: []int32{97, 99}}},
		{name: "same hash", expression: "Ea||FB", want: remoting.Subscription{SubString: "Ea||FB", ExpressionType: "TAG", Tags: []string{"Ea", "FB"}, Codes: []int32{hash("Ea")}}},
		{name: "negative hash", expression: "polygenelubricants",
			want: remoting.Subscription{SubString: "polygenelubricants", ExpressionType: "TAG", Tags: []string{"polygenelubricants"}, Codes: []int32{-1 << 31}}},
		{name: "star among tags", expression: "a || *", want: remoting.Subscription{SubString: "a || *", ExpressionType: "TAG", Tags: []string{"a", "*"}}, all: true},
		{name: "single bar is part of a tag", expression: "a|b",
			want: remoting.Subscription{SubString: "a|b", ExpressionType: "TAG", Tags: []string{"a|b"}, Codes: []int32{hash("a|b")}}},
		{name: "only separators", expression: "|| ||", bad: true},
		{name: "SQL", expression: "a > 5", typ: "SQL92", want: remoting.Subscription{SubString: "a > 5", ExpressionType: "SQL92"}},
		{name: "SQL without text", expression: " ", typ: "SQL92", bad: true},
		{name: "too long", expression: strings.Repeat("a", MaxExpressionLen+1), bad: true},
		{name: "SQL too long", expression: strings.Repeat("a", MaxExpressionLen+1), typ: "SQL92", bad: true},
		{name: "too many tags", expression: manyTags(MaxTags + 1), bad: true},
		{name: "tag too long", expression: strings.Repeat("a", MaxTagLen+1), bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := NewSubscription("T", tt.expression, tt.typ)
			if tt.bad {
				var e *remoting.Error
				if !errors.As(err, &e) || e.Code != remoting.CodeSubscriptionParseFailed {
					t.Fatalf("got %v, %v, want an error with code 23", s, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Topic = "T"
			if diff := cmp.Diff(tt.want, s.Data()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if s.All() != tt.all {
				t.Errorf("All is %v", s.All())
			}
		})
	}
}

// manyTags is an expression with n different tags.
func manyTags(n int) string {
	tags := make([]string, n)
	for i := range tags {
		tags[i] = fmt.Sprintf("t%d", i)
	}
	return strings.Join(tags, "||")
}

func TestMatch(t *testing.T) {
	tests := []struct {
		name      string
		sub       remoting.Subscription
		hit, miss []string // tags of messages
		hashOnly  []string // MatchHash lets them pass, MatchTags does not
	}{
		{name: "all", sub: remoting.Subscription{SubString: "*"}, hit: []string{"a", ""}},
		{name: "blank", sub: remoting.Subscription{}, hit: []string{"a", ""}},
		{name: "as Java sends it", sub: remoting.Subscription{SubString: "a || c", Tags: []string{"a", "c"}, Codes: []int32{97, 99}},
			hit: []string{"a", "c"}, miss: []string{"b", "", "a || c", "ac"}},
		{name: "without codes", sub: remoting.Subscription{SubString: "a || c", Tags: []string{"a", "c"}}, hit: []string{"a", "c"}, miss: []string{"b", ""}},
		{name: "without tags and codes", sub: remoting.Subscription{SubString: "a || c"}, hit: []string{"a", "c"}, miss: []string{"b", ""}},
		{name: "codes only", sub: remoting.Subscription{SubString: "a", Codes: []int32{97}}, hit: []string{"a"}, miss: []string{"b", ""}},
		{name: "codes that do not fit the tags", sub: remoting.Subscription{SubString: "a", Tags: []string{"a"}, Codes: []int32{98}},
			hit: []string{"a"}, miss: []string{"c"}, hashOnly: []string{"b"}},
		{name: "blank with tags", sub: remoting.Subscription{Tags: []string{"a"}}, hit: []string{"a"}, miss: []string{"b"}},
		{name: "same hash", sub: remoting.Subscription{SubString: "Ea", Tags: []string{"Ea"}}, hit: []string{"Ea"}, hashOnly: []string{"FB"}},
		{name: "only separators", sub: remoting.Subscription{SubString: " || "}, miss: []string{"a", ""}},
		{name: "class filter", sub: remoting.Subscription{SubString: "a", Tags: []string{"a"}, ClassFilterMode: true}, hit: []string{"a", "b", ""}},
		{name: "SQL", sub: remoting.Subscription{SubString: "a = 1", ExpressionType: "SQL92"}, hit: []string{"a", ""}},
		{name: "beyond the basic plane", sub: remoting.Subscription{SubString: "😀", Tags: []string{"😀"}}, hit: []string{"😀"}, miss: []string{"😁"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.sub.Topic = "T"
			s := subscribed(&tt.sub)
			check := func(tags string, hash, text bool) {
				if got := s.MatchHash(message.HashTags(tags)); got != hash {
					t.Errorf("MatchHash of %q is %v", tags, got)
				}
				if got := s.MatchTags(tags); got != text {
					t.Errorf("MatchTags of %q is %v", tags, got)
				}
			}
			for _, tags := range tt.hit {
				check(tags, true, true)
			}
			for _, tags := range tt.miss {
				check(tags, false, false)
			}
			for _, tags := range tt.hashOnly {
				check(tags, true, false)
			}
		})
	}
}

// TestMatchHash32: only 32 bits of a tags code are the hash.
func TestMatchHash32(t *testing.T) {
	s := subscribed(&remoting.Subscription{Topic: "T", SubString: "polygenelubricants"})
	for _, code := range []message.TagsCode{-1 << 31, 1 << 31} {
		if !s.MatchHash(code) {
			t.Errorf("code %d does not match", code)
		}
	}
}

func TestSubscribedKeepsNoMoreThanItNeeds(t *testing.T) {
	d := remoting.Subscription{Topic: "T", SubString: "a", Tags: append(make([]string, 0, 100), "a"), Codes: append(make([]int32, 0, 100), 97)}
	s := subscribed(&d)
	if c := cap(s.data.Tags); c > 8 {
		t.Errorf("capacity of tags is %d", c)
	}
	if c := cap(s.data.Codes); c > 8 {
		t.Errorf("capacity of codes is %d", c)
	}
	d.Tags[0], d.Codes[0] = "b", 98
	if !s.MatchTags("a") || s.MatchTags("b") || s.MatchHash(98) {
		t.Error("the subscription changes with what it was made of")
	}
}

func TestCompiled(t *testing.T) {
	s, err := NewSubscription("T", "a = 1", "SQL92")
	if err != nil {
		t.Fatal(err)
	}
	var calls int
	for range 3 {
		v, err := s.Compiled(func(expression string) (any, error) {
			calls++
			return "filter of " + expression, nil
		})
		if v != "filter of a = 1" || err != nil {
			t.Errorf("got %v, %v", v, err)
		}
	}
	if calls != 1 {
		t.Errorf("compiled %d times", calls)
	}
}

func FuzzNewSubscription(f *testing.F) {
	for _, expression := range []string{"*", "", "a || b", "||", "a||*", "Ea||FB", "\xff||\xed\xa0\x80", "a > 1 AND b IS NULL"} {
		f.Add(expression, "")
		f.Add(expression, "TAG")
		f.Add(expression, "SQL92")
	}
	f.Fuzz(func(t *testing.T, expression, typ string) {
		s, err := NewSubscription("T", expression, typ)
		if err != nil {
			return
		}
		d := s.Data()
		if again := subscribed(&d); !again.wants(s) || again.cost != s.cost {
			t.Errorf("%q sent in a heartbeat becomes %+v, was %+v", expression, again.Data(), d)
		}
		for _, tag := range d.Tags {
			if !s.MatchTags(tag) || !s.MatchHash(message.HashTags(tag)) {
				t.Errorf("%q does not match its tag %q", expression, tag)
			}
		}
		if s.IsTag() && !s.All() && len(d.Tags) == 0 {
			t.Errorf("%q matches nothing", expression)
		}
	})
}
