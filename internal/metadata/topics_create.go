package metadata

import (
	"fmt"
	"strings"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Creation of topics that clients have not asked for.

// Bits of a topic's system flag (upstream: TopicSysFlag).
const (
	TopicFlagUnit    = 1 << 0
	TopicFlagUnitSub = 1 << 1
)

// CreateForSend returns a topic that a message is for, and creates it if need
// be after the model of template, which is TBW102 as a rule: with as many
// queues as the client wishes and the template has at most, and its permissions
// without PermInherit. TBW102 is a model only if autoCreate. A retry topic
// needs no template and has one queue then. created says that the topic is new,
// to be saved and registered.
//
// An error wraps base.ErrNotFound, when the template is missing or gives
// nothing, or ErrFull, or is an *InvalidError about the name (upstream:
// createTopicInSendMessageMethod).
func (t *Topics) CreateForSend(topic, template string, queues, sysFlag int32, autoCreate bool) (_ *remoting.TopicConfig, created bool, err error) {
	if c, ok := t.Get(topic); ok {
		return c, false, nil
	}
	config, err := t.fromTemplate(topic, template, queues, autoCreate)
	if err != nil {
		if !strings.HasPrefix(topic, message.RetryPrefix) {
			return nil, false, err
		}
		config = newTopic(topic, 1, remoting.PermRead|remoting.PermWrite)
	}
	config.TopicSysFlag = sysFlag
	return t.create(config, false)
}

func (t *Topics) fromTemplate(topic, template string, queues int32, autoCreate bool) (remoting.TopicConfig, error) {
	model, ok := t.Get(template)
	switch {
	case !ok:
		return remoting.TopicConfig{}, notFound(topic, fmt.Sprintf("there is no template %.127q", template))
	case model.Perm&remoting.PermInherit == 0 || template == TemplateTopic && !autoCreate:
		return remoting.TopicConfig{}, notFound(topic, fmt.Sprintf("%.127q is no template", template))
	}
	// A topic without queues could never be sent to.
	config := newTopic(topic, max(1, min(queues, model.WriteQueueNums)), model.Perm&^remoting.PermInherit)
	config.TopicFilterType = model.TopicFilterType
	return config, nil
}

// create adds a topic unless it exists. An existing one gets the order flag of
// config if setOrder. changed says that either happened.
func (t *Topics) create(config remoting.TopicConfig, setOrder bool) (_ *remoting.TopicConfig, changed bool, err error) {
	asWanted := func(c *remoting.TopicConfig) bool { return !setOrder || c.Order == config.Order }
	if c, ok := t.Get(config.TopicName); ok && asWanted(c) {
		return c, false, nil
	}
	if err := ValidTopic(config.TopicName); err != nil {
		return nil, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.table.get(config.TopicName)
	switch {
	case ok && asWanted(&e.config):
		return &e.config, false, nil
	case ok:
		e = e.with(func(c *remoting.TopicConfig) { c.Order = config.Order })
	case t.table.len() >= MaxTopics:
		return nil, false, fmt.Errorf("topic %s: %w", config.TopicName, ErrFull)
	default:
		e = &topicEntry{config: config}
	}
	t.putLocked(e)
	return &e.config, true, nil
}

// CreateRetry returns the retry topic of a group. It creates the topic if need
// be, with as many queues as asked for but one at least, and sets its order
// flag as asked for. changed says that it did one of both. Errors are ErrFull
// or an *InvalidError (upstream: createTopicInSendMessageBackMethod).
func (t *Topics) CreateRetry(group string, queues int32, order bool, sysFlag int32) (_ *remoting.TopicConfig, changed bool, err error) {
	config := newTopic(RetryTopic(group), min(max(queues, 1), MaxQueueNums), remoting.PermRead|remoting.PermWrite)
	config.Order, config.TopicSysFlag = order, sysFlag
	return t.create(config, true)
}

// CreateDLQ returns the topic of a group's dead letters and creates it if need
// be, with one queue. Errors are those of CreateRetry.
func (t *Topics) CreateDLQ(group string) (_ *remoting.TopicConfig, created bool, err error) {
	return t.create(newTopic(DLQTopic(group), 1, remoting.PermRead|remoting.PermWrite), false)
}

// CreateTransCheckMaxTime returns the topic of half messages that were given
// up, and creates it if need be.
func (t *Topics) CreateTransCheckMaxTime() (_ *remoting.TopicConfig, created bool, err error) {
	return t.create(newTopic(TransCheckMaxTimeTopic, 1, remoting.PermRead|remoting.PermWrite), false)
}
