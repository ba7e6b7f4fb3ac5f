package broker

import (
	"context"
	"strings"

	"github.com/gantrymq/gantry/internal/membership"
	"github.com/gantrymq/gantry/internal/sqlfilter"
	"github.com/gantrymq/gantry/remoting"
)

// newRegistry makes the registry of clients.
func (b *Broker) newRegistry() *membership.Registry {
	return membership.New(membership.Options{
		Notify: func(conn membership.Conn, group string) {
			req := remoting.NewRequest(remoting.ReqNotifyConsumerIDsChanged, &remoting.ConsumerGroupRequest{ConsumerGroup: group})
			_ = conn.(*remoting.Conn).InvokeOneway(req) // it fails when the connection has closed
		},
		NotifyEnabled: func(group string) bool {
			g, ok := b.groups.Get(group)
			return !ok || g.NotifyConsumerIDsChanged
		},
		OnChange: func(c membership.Change) {
			if c.Role == membership.Consumer && c.Kind == membership.Gone {
				b.filters.Unregister(c.Group)
			}
		},
		Logger: b.log,
	})
}

// connectionClosed forgets a client, at once: its group has to divide its queues
// anew.
func (b *Broker) connectionClosed(c *remoting.Conn, _ error) {
	b.holds.drop(c)
	b.clients.ConnClosed(c)
}

// heartBeat answers 34 HEART_BEAT (upstream: ClientManageProcessor). The retry
// topics of the groups can be found at the name servers when the answer leaves:
// clients look for them right then.
func (b *Broker) heartBeat(ctx context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var hb remoting.Heartbeat
	if err := remoting.DecodeBody(cmd.Body, &hb); err != nil {
		return nil, err
	}
	if err := b.clients.Check(c, &hb); err != nil {
		return nil, err
	}
	consumers := hb.Consumers[:0:0]
	changed := false
	for _, cd := range hb.Consumers {
		g, _ := b.groups.Find(cd.GroupName, b.config().AutoCreateSubscriptionGroup)
		if g == nil {
			b.log.Warn("heartbeat of a group that does not exist", "group", cd.GroupName, "client", hb.ClientID)
			continue
		}
		_, made, err := b.topics.CreateRetry(cd.GroupName, g.RetryQueueNums, g.ConsumeMessageOrderly, retryTopicFlag(cd.UnitMode))
		if err != nil {
			return nil, err
		}
		changed = changed || made
		if !hb.WithoutSub {
			if err := b.filters.Register(cd.GroupName, cd.Subscriptions); err != nil {
				// Its pulls are answered with the reason.
				b.log.Warn("filter of a consumer group", "group", cd.GroupName, "client", hb.ClientID, "err", err)
			}
		}
		consumers = append(consumers, cd)
	}
	hb.Consumers = consumers
	switch {
	case changed:
		b.topicsChanged(ctx)
	case len(consumers) > 0: // another member may have made the topic just now
		b.topicsKnown(ctx)
	}
	to, err := b.clients.Heartbeat(c, cmd.Language, cmd.Version, &hb)
	if err != nil {
		return nil, err
	}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.SetHeader(&to)
	return resp, nil
}

// unregisterClient answers 35 UNREGISTER_CLIENT.
func (b *Broker) unregisterClient(_ context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.UnregisterClientRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	b.clients.Unregister(c, &h)
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// consumerList answers 38 GET_CONSUMER_LIST_BY_GROUP, from which each member
// computes which queues are its own.
func (b *Broker) consumerList(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumerGroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	ids := b.clients.Members.ClientIDs(h.ConsumerGroup)
	if len(ids) == 0 {
		return nil, remoting.Errorf(remoting.CodeSystemError, "no consumer for this group, %s", h.ConsumerGroup)
	}
	return bodyResponse(&remoting.ConsumerList{ConsumerIDs: ids}), nil
}

// checkClientConfig answers 46 CHECK_CLIENT_CONFIG: whether the expression of a
// subscription is one.
func (b *Broker) checkClientConfig(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var body remoting.CheckClient
	if err := remoting.DecodeBody(cmd.Body, &body); err != nil {
		return nil, err
	}
	if s := body.Subscription; !isTagExpression(s.ExpressionType) {
		if s.ExpressionType != remoting.ExpressionSQL92 {
			return nil, unknownExpression(s.ExpressionType)
		}
		if !b.config().EnablePropertyFilter {
			return nil, errNoSQL()
		}
		if _, err := sqlfilter.Compile(s.SubString); err != nil {
			return nil, badExpression(err)
		}
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// lockQueues answers 41 LOCK_BATCH_MQ.
func (b *Broker) lockQueues(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var body remoting.LockBatch
	if err := remoting.DecodeBody(cmd.Body, &body); err != nil {
		return nil, err
	}
	got, err := b.clients.Locks.TryLock(&body)
	if err != nil {
		return nil, err
	}
	return bodyResponse(&remoting.LockBatchResult{Locked: got}), nil
}

// unlockQueues answers 42 UNLOCK_BATCH_MQ.
func (b *Broker) unlockQueues(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var body remoting.LockBatch
	if err := remoting.DecodeBody(cmd.Body, &body); err != nil {
		return nil, err
	}
	if err := b.clients.Locks.Unlock(&body); err != nil {
		return nil, err
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

func bodyResponse(body remoting.Body) *remoting.Command {
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = remoting.EncodeBody(body)
	return resp
}

func isTagExpression(t string) bool { return t == "" || strings.EqualFold(t, remoting.ExpressionTag) }
