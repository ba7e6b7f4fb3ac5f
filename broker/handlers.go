package broker

import (
	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/remoting"
)

// inline chooses the requests that are answered on the goroutine that reads the
// connection since they wait for nothing: the commits of a client, which so take
// effect in the order in which it sent them, and sends that wait for no sync and
// make no topic.
func (b *Broker) inline(cmd *remoting.Command) bool {
	switch cmd.Code {
	case remoting.ReqUpdateConsumerOffset, remoting.ReqQueryConsumerOffset:
		return true
	case remoting.ReqSendMessage, remoting.ReqSendMessageV2, remoting.ReqSendBatchMessage:
		if b.opts.Store.Flush != gantry.FlushAsync {
			return false
		}
		topic := remoting.SendTopic(cmd)
		if isRetryTopic(topic) {
			return false
		}
		_, ok := b.topics.Get(topic)
		return ok
	default:
		return false
	}
}

// handlers is the table of all requests that this broker answers. Any other is
// answered REQUEST_CODE_NOT_SUPPORTED.
func (b *Broker) handlers() *remoting.Mux {
	m := remoting.NewMux()
	m.Handle(b.sendMessage, remoting.ReqSendMessage, remoting.ReqSendMessageV2, remoting.ReqSendBatchMessage)
	m.Handle(b.sendBack, remoting.ReqConsumerSendMsgBack)
	m.Handle(b.sendReply, remoting.ReqSendReplyMessage, remoting.ReqSendReplyMessageV2)
	m.Handle(b.endTransaction, remoting.ReqEndTransaction)

	m.Handle(b.pullMessage, remoting.ReqPullMessage, remoting.ReqLitePullMessage)
	m.Handle(b.queryConsumerOffset, remoting.ReqQueryConsumerOffset)
	m.Handle(b.updateConsumerOffset, remoting.ReqUpdateConsumerOffset)
	m.Handle(b.maxOffset, remoting.ReqGetMaxOffset)
	m.Handle(b.minOffset, remoting.ReqGetMinOffset)
	m.Handle(b.searchOffset, remoting.ReqSearchOffsetByTimestamp)
	m.Handle(b.earliestStoreTime, remoting.ReqGetEarliestMsgStoreTime)

	m.Handle(b.body(b.heartBeat), remoting.ReqHeartBeat)
	m.Handle(b.unregisterClient, remoting.ReqUnregisterClient)
	m.Handle(b.consumerList, remoting.ReqGetConsumerListByGroup)
	m.Handle(b.body(b.checkClientConfig), remoting.ReqCheckClientConfig)
	m.Handle(b.body(b.lockQueues), remoting.ReqLockBatchMQ)
	m.Handle(b.body(b.unlockQueues), remoting.ReqUnlockBatchMQ)

	m.Handle(b.queryMessage, remoting.ReqQueryMessage)
	m.Handle(b.viewMessage, remoting.ReqViewMessageByID)

	m.Handle(b.createTopic, remoting.ReqUpdateAndCreateTopic)
	m.Handle(b.body(b.createTopics), remoting.ReqUpdateAndCreateTopicList)
	m.Handle(b.deleteTopic, remoting.ReqDeleteTopicInBroker)
	m.Handle(b.allTopics, remoting.ReqGetAllTopicConfig)
	m.Handle(b.topicConfig, remoting.ReqGetTopicConfig)
	m.Handle(b.systemTopics, remoting.ReqGetSystemTopicListFromBroker)
	m.Handle(b.body(b.updateGroup), remoting.ReqUpdateAndCreateSubscriptionGroup)
	m.Handle(b.body(b.updateGroups), remoting.ReqUpdateSubscriptionGroupList)
	m.Handle(b.allGroups, remoting.ReqGetAllSubscriptionGroupConfig)
	m.Handle(b.groupConfig, remoting.ReqGetSubscriptionGroupConfig)
	m.Handle(b.deleteGroup, remoting.ReqDeleteSubscriptionGroup)
	m.Handle(b.getConfig, remoting.ReqGetBrokerConfig)
	m.Handle(b.body(b.updateConfig), remoting.ReqUpdateBrokerConfig)

	m.Handle(b.runningInfo, remoting.ReqGetConsumerRunningInfo)
	m.Handle(b.consumeDirectly, remoting.ReqConsumeMessageDirectly)
	m.Handle(b.consumerStatus, remoting.ReqInvokeBrokerToGetConsumerStatus)
	m.Handle(b.resetOffset, remoting.ReqInvokeBrokerToResetOffset)

	m.Handle(b.consumerConnections, remoting.ReqGetConsumerConnectionList)
	m.Handle(b.producerConnections, remoting.ReqGetProducerConnectionList)
	m.Handle(b.allProducers, remoting.ReqGetAllProducerInfo)
	m.Handle(b.topicStats, remoting.ReqGetTopicStatsInfo)
	m.Handle(b.consumeStats, remoting.ReqGetConsumeStats)
	m.Handle(b.brokerConsumeStats, remoting.ReqGetBrokerConsumeStats)
	m.Handle(b.topicConsumers, remoting.ReqQueryTopicConsumeByWho)
	m.Handle(b.consumeTimeSpan, remoting.ReqQueryConsumeTimeSpan)
	m.Handle(b.groupTopics, remoting.ReqQueryTopicsByConsumer)
	m.Handle(b.groupSubscription, remoting.ReqQuerySubscriptionByConsumer)
	m.Handle(b.consumeQueue, remoting.ReqQueryConsumeQueue)
	m.Handle(b.allConsumerOffsets, remoting.ReqGetAllConsumerOffset)
	m.Handle(b.allDelayOffsets, remoting.ReqGetAllDelayOffset)
	m.Handle(b.cloneOffsets, remoting.ReqCloneGroupOffset)
	m.Handle(b.clean, remoting.ReqCleanExpiredConsumeQueue, remoting.ReqCleanUnusedTopic, remoting.ReqDeleteExpiredCommitLog)
	m.Handle(b.statsData, remoting.ReqViewBrokerStatsData)
	m.Handle(b.runtimeInfo, remoting.ReqGetBrokerRuntimeInfo)
	return m
}
