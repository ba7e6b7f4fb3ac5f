package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// invalidParameter makes the errors of names and configurations answers.
func invalidParameter(err error) error {
	if e, ok := errors.AsType[*metadata.InvalidError](err); ok {
		return &remoting.Error{Code: remoting.CodeInvalidParameter, Remark: e.Reason}
	}
	return err
}

// createTopic answers 17 UPDATE_AND_CREATE_TOPIC.
func (b *Broker) createTopic(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.CreateTopicRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	attributes, err := metadata.ParseAttributes(h.Attributes)
	if err != nil {
		return nil, invalidParameter(err)
	}
	_, err = b.topics.Update(remoting.TopicConfig{
		TopicName: h.Topic, ReadQueueNums: h.ReadQueueNums, WriteQueueNums: h.WriteQueueNums, Perm: h.Perm,
		TopicFilterType: h.TopicFilterType, TopicSysFlag: h.TopicSysFlag, Order: h.Order, Attributes: attributes,
	})
	if err != nil {
		return nil, invalidParameter(err)
	}
	return b.changedTopics(ctx, nil)
}

// changedTopics answers a request that changed topics. Unlike what clients cause,
// a change that cannot be saved is an error. refused goes before it.
func (b *Broker) changedTopics(ctx context.Context, refused error) (*remoting.Command, error) {
	err := errors.Join(refused, b.topics.Save())
	b.topicsKnown(ctx)
	if err != nil {
		return nil, invalidParameter(err)
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// createTopics answers 18 UPDATE_AND_CREATE_TOPIC_LIST. Those before a topic that
// is refused have been made then, as upstream does.
func (b *Broker) createTopics(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var body remoting.TopicConfigList
	if err := remoting.DecodeBody(cmd.Body, &body); err != nil {
		return nil, err
	}
	var refused error
	for i, t := range body.Topics {
		if _, err := b.topics.Update(t); err != nil {
			refused = fmt.Errorf("topic %d of %d: %w", i+1, len(body.Topics), err)
			break
		}
	}
	return b.changedTopics(ctx, refused)
}

// deleteTopic answers 215 DELETE_TOPIC_IN_BROKER. The queues go with the topic: one
// of the same name that is made later begins at offset 0. The messages stay in the
// log, and are found by id and key, until they expire.
func (b *Broker) deleteTopic(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.TopicRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	if h.Topic == "" {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "The specified topic is blank.")
	}
	existed, err := b.topics.Delete(h.Topic)
	if err != nil {
		return nil, invalidParameter(err)
	}
	b.offsets.DeleteTopic(h.Topic)
	removed := b.removeQueues(h.Topic)
	if existed {
		b.log.Info("topic deleted", "topic", h.Topic)
	}
	return b.changedTopics(ctx, errors.Join(removed, b.offsets.Save()))
}

// removeQueues removes the queues of a topic that is none any more, and has those
// answered who wait for its messages. A client that goes away does not stop it.
func (b *Broker) removeQueues(topic string) error {
	if message.IsLight(topic) { // without configuration
		return nil
	}
	err := b.store.RemoveTopic(context.Background(), topic)
	b.holds.wakeTopic(topic)
	b.stats.queuesGone(topic)
	if err != nil && !errors.Is(err, gantry.ErrMessageIllegal) { // else it is no name of a topic
		return storeError(err)
	}
	return nil
}

// maxPage is the largest answer with all topics or groups, in bytes. Beyond it,
// who asks for pages gets them; a frame would have no room for much more.
const maxPage = 8 << 20

// page returns the part of all that a request for a page means: from the given
// one on, by name, at most most of them. It begins anew when the request speaks
// of another version. Java's client ends when one is left, so that comes along.
func page[T any](all map[string]T, asked string, version remoting.DataVersion, from, most int32) map[string]T {
	var v remoting.DataVersion
	if err := remoting.DecodeBody([]byte(asked), &v); err != nil || v != version || from < 0 {
		from = 0
	}
	names := slices.Sorted(maps.Keys(all))
	names = names[min(int(from), len(names)):]
	if int(most) < len(names)-1 {
		names = names[:most]
	}
	part := make(map[string]T, len(names))
	for _, name := range names {
		part[name] = all[name]
	}
	return part
}

// allTopics answers 21 GET_ALL_TOPIC_CONFIG, with one page that has them all
// unless that is too long.
func (b *Broker) allTopics(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.AllTopicConfigRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	table := b.topics.Table()
	total := int32(len(table.Topics))
	resp := bodyResponse(&table)
	if h.MaxTopicNum > 0 && len(resp.Body) > maxPage {
		table.Topics = page(table.Topics, h.DataVersion, table.DataVersion, h.TopicSeq, h.MaxTopicNum)
		resp = bodyResponse(&table)
	}
	resp.SetHeader(&remoting.AllTopicConfigResponse{TotalTopicNum: total})
	return resp, nil
}

// topicConfig answers 351 GET_TOPIC_CONFIG.
func (b *Broker) topicConfig(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.GetTopicConfigRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	t, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "No topic in this broker. topic: %s", h.Topic)
	}
	return bodyResponse(t), nil
}

// systemTopics answers 305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER.
func (b *Broker) systemTopics(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	return bodyResponse(&remoting.TopicList{TopicList: b.topics.System()}), nil
}

// updateGroup answers 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.
func (b *Broker) updateGroup(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var body remoting.GroupConfig
	if err := remoting.DecodeBody(cmd.Body, &body); err != nil {
		return nil, err
	}
	if _, err := b.groups.Update(body); err != nil {
		return nil, invalidParameter(err)
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), b.groups.Save()
}

// updateGroups answers 225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.
func (b *Broker) updateGroups(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var body remoting.GroupConfigList
	if err := remoting.DecodeBody(cmd.Body, &body); err != nil {
		return nil, err
	}
	for i, g := range body.Groups {
		if _, err := b.groups.Update(g); err != nil {
			return nil, invalidParameter(errors.Join(fmt.Errorf("group %d of %d: %w", i+1, len(body.Groups), err), b.groups.Save()))
		}
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), b.groups.Save()
}

// allGroups answers 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG, as allTopics does.
func (b *Broker) allGroups(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.AllGroupConfigRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	table := b.groups.Table()
	total := int32(len(table.Groups))
	resp := bodyResponse(&table)
	if h.MaxGroupNum > 0 && len(resp.Body) > maxPage {
		table.Groups = page(table.Groups, h.DataVersion, table.DataVersion, h.GroupSeq, h.MaxGroupNum)
		resp = bodyResponse(&table)
	}
	resp.SetHeader(&remoting.AllGroupConfigResponse{TotalGroupNum: total})
	return resp, nil
}

// groupConfig answers 352 GET_SUBSCRIPTIONGROUP_CONFIG.
func (b *Broker) groupConfig(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.GroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	g, ok := b.groups.Get(h.Group)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeSubscriptionGroupNotExist, "No group in this broker. group: %s", h.Group)
	}
	return bodyResponse(g), nil
}

// deleteGroup answers 207 DELETE_SUBSCRIPTIONGROUP.
func (b *Broker) deleteGroup(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.DeleteGroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	if h.GroupName == metadata.TransactionGroup {
		return nil, errBrokersOffsets()
	}
	b.groups.Delete(h.GroupName)
	if h.CleanOffset {
		b.offsets.DeleteGroup(h.GroupName)
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), errors.Join(b.groups.Save(), b.offsets.Save())
}

// getConfig answers 26 GET_BROKER_CONFIG.
func (b *Broker) getConfig(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	version := b.topics.Version()
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.SetHeader(&remoting.BrokerConfigResponse{Version: string(remoting.EncodeBody(&version))})
	resp.Body = remoting.AppendProperties(nil, b.config().Properties())
	return resp, nil
}

// protectedSettings may not be changed over the wire (upstream:
// configBlackList).
var protectedSettings = map[string]bool{"configBlackList": true, "brokerConfigPath": true, "rocketmqHome": true, "storePathRootDir": true}

// updateConfig answers 25 UPDATE_BROKER_CONFIG: all of it or nothing. What takes
// effect at a start only is refused, for it would be forgotten by then; upstream
// says success. Settings that this broker does not have are ignored, as upstream
// does.
func (b *Broker) updateConfig(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	props, err := remoting.ParseProperties(cmd.Body)
	if err != nil {
		return nil, err
	}
	b.configuring.Lock()
	defer b.configuring.Unlock()
	next := *b.config()
	for _, p := range props {
		if protectedSettings[p.Name] {
			return nil, remoting.Errorf(remoting.CodeNoPermission, "Can not update config in black list.")
		}
		before := next
		switch err := next.Set(p.Name, p.Value); {
		case errors.Is(err, ErrUnknownSetting):
			b.log.Info("setting of a request not used", "name", p.Name)
			continue
		case err != nil:
			return nil, remoting.Errorf(remoting.CodeInvalidParameter, "%v", err)
		}
		if s := findSetting(p.Name); s != nil && !s.live && s.get(&next) != s.get(&before) {
			return nil, remoting.Errorf(remoting.CodeNoPermission, "%s takes effect at the start of the broker: set it there", p.Name)
		}
	}
	if _, ok := b.topics.Get(metadata.TemplateTopic); next.AutoCreateTopic && !ok {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "autoCreateTopicEnable=true takes effect at the start of the broker, which makes the topic %s then", metadata.TemplateTopic)
	}
	if err := next.Validate(); err != nil {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "%v", err)
	}
	permission := next.BrokerPermission != b.config().BrokerPermission
	b.cfg.Store(&next)
	if permission {
		b.registrar.permissions.Add(1)
		b.topicsKnown(ctx)
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}
