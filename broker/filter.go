package broker

import (
	"errors"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/membership"
	"github.com/gantrymq/gantry/internal/sqlfilter"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// filter returns how a subscription chooses messages of a topic; nil is all. The
// SQL92 expression of a group does not apply to its retry topic, unless the
// configuration says so: what was chosen once is to be tried again.
func (b *Broker) filter(topic string, sub *membership.Subscription) (gantry.Filter, error) {
	if sub.IsTag() {
		if sub.All() {
			return nil, nil
		}
		return tagFilter{sub}, nil
	}
	cfg := b.config()
	switch t := sub.Data().ExpressionType; {
	case t != remoting.ExpressionSQL92:
		return nil, unknownExpression(t)
	case !cfg.EnablePropertyFilter:
		return nil, errNoSQL()
	case isRetryTopic(topic) && !cfg.FilterSupportRetry:
		return nil, nil
	}
	expr, err := sub.Compiled(func(text string) (any, error) { return sqlfilter.Compile(text) })
	if err != nil {
		return nil, badExpression(err)
	}
	return sqlFilter{expr.(*sqlfilter.Expr)}, nil
}

func unknownExpression(t string) error {
	return remoting.Errorf(remoting.CodeSubscriptionParseFailed, "parse the consumer's subscription failed: the expression type %.40q is neither TAG nor SQL92", t)
}

func errNoSQL() error {
	return remoting.Errorf(remoting.CodeSystemError, "The broker does not support consumer to filter message by SQL92")
}

// badExpression has the text that clients know from upstream.
func badExpression(err error) error {
	remark := err.Error()
	if s, ok := errors.AsType[*sqlfilter.SyntaxError](err); ok {
		remark = s.Remark()
	}
	return &remoting.Error{Code: remoting.CodeSubscriptionParseFailed, Remark: remark}
}

// tagFilter chooses messages by tag.
type tagFilter struct{ sub *membership.Subscription }

func (f tagFilter) MatchUnit(code message.TagsCode) bool {
	return code == gantry.AnyTags || f.sub.MatchHash(code)
}

func (f tagFilter) MatchRecord(v *message.View) bool {
	tags, _ := v.GetProp(message.PropTags)
	return f.sub.MatchTags(string(tags))
}

// sqlFilter chooses messages by their properties.
type sqlFilter struct{ expr *sqlfilter.Expr }

func (sqlFilter) MatchUnit(message.TagsCode) bool { return true }

func (f sqlFilter) MatchRecord(v *message.View) bool {
	return f.expr.Matches(func(name string) (string, bool) {
		value, ok := v.GetProp(name)
		return string(value), ok
	})
}
