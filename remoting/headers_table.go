package remoting

func newHeader[T any, P interface {
	*T
	Header
}]() Header {
	return P(new(T))
}

// requestHeaders has the header of each request code that has ext fields of
// its own.
var requestHeaders = map[int32]func() Header{
	ReqSendMessage:                     newHeader[SendMessageRequest],
	ReqPullMessage:                     newHeader[PullMessageRequest],
	ReqQueryMessage:                    newHeader[QueryMessageRequest],
	ReqQueryConsumerOffset:             newHeader[QueryOffsetRequest],
	ReqUpdateConsumerOffset:            newHeader[UpdateOffsetRequest],
	ReqUpdateAndCreateTopic:            newHeader[CreateTopicRequest],
	ReqGetAllTopicConfig:               newHeader[AllTopicConfigRequest],
	ReqSearchOffsetByTimestamp:         newHeader[SearchOffsetRequest],
	ReqGetMaxOffset:                    newHeader[MaxOffsetRequest],
	ReqGetMinOffset:                    newHeader[QueueRequest],
	ReqGetEarliestMsgStoreTime:         newHeader[QueueRequest],
	ReqViewMessageByID:                 newHeader[ViewMessageRequest],
	ReqUnregisterClient:                newHeader[UnregisterClientRequest],
	ReqConsumerSendMsgBack:             newHeader[SendBackRequest],
	ReqEndTransaction:                  newHeader[EndTransactionRequest],
	ReqGetConsumerListByGroup:          newHeader[ConsumerGroupRequest],
	ReqCheckTransactionState:           newHeader[CheckTransactionRequest],
	ReqNotifyConsumerIDsChanged:        newHeader[ConsumerGroupRequest],
	ReqPutKVConfig:                     newHeader[PutKVRequest],
	ReqGetKVConfig:                     newHeader[KVRequest],
	ReqDeleteKVConfig:                  newHeader[KVRequest],
	ReqRegisterBroker:                  newHeader[RegisterBrokerRequest],
	ReqUnregisterBroker:                newHeader[BrokerIdentity],
	ReqGetRouteInfoByTopic:             newHeader[RouteInfoRequest],
	ReqGetAllSubscriptionGroupConfig:   newHeader[AllGroupConfigRequest],
	ReqGetTopicStatsInfo:               newHeader[TopicRequest],
	ReqGetConsumerConnectionList:       newHeader[ConsumerGroupRequest],
	ReqGetProducerConnectionList:       newHeader[ProducerGroupRequest],
	ReqWipeWritePermOfBroker:           newHeader[BrokerNameRequest],
	ReqDeleteSubscriptionGroup:         newHeader[DeleteGroupRequest],
	ReqGetConsumeStats:                 newHeader[ConsumeStatsRequest],
	ReqDeleteTopicInBroker:             newHeader[TopicRequest],
	ReqDeleteTopicInNamesrv:            newHeader[DeleteTopicRequest],
	ReqRegisterTopicInNamesrv:          newHeader[TopicRequest],
	ReqGetKVListByNamespace:            newHeader[NamespaceRequest],
	ReqResetConsumerClientOffset:       newHeader[ResetOffsetRequest],
	ReqGetConsumerStatusFromClient:     newHeader[ConsumerStatusRequest],
	ReqInvokeBrokerToResetOffset:       newHeader[ResetOffsetRequest],
	ReqInvokeBrokerToGetConsumerStatus: newHeader[ConsumerStatusRequest],
	ReqGetTopicsByCluster:              newHeader[ClusterRequest],
	ReqQueryTopicConsumeByWho:          newHeader[TopicRequest],
	ReqQueryConsumeTimeSpan:            newHeader[TopicGroupRequest],
	ReqGetConsumerRunningInfo:          newHeader[RunningInfoRequest],
	ReqQueryCorrectionOffset:           newHeader[CorrectionOffsetRequest],
	ReqConsumeMessageDirectly:          newHeader[ConsumeDirectlyRequest],
	ReqSendMessageV2:                   newHeader[SendMessageRequestV2],
	ReqCloneGroupOffset:                newHeader[CloneOffsetRequest],
	ReqViewBrokerStatsData:             newHeader[StatsDataRequest],
	ReqGetBrokerConsumeStats:           newHeader[BrokerConsumeStatsRequest],
	ReqSendBatchMessage:                newHeader[SendMessageRequestV2],
	ReqQueryConsumeQueue:               newHeader[QueryQueueRequest],
	ReqQueryDataVersion:                newHeader[BrokerIdentity],
	ReqResumeCheckHalfMessage:          newHeader[ResumeCheckRequest],
	ReqSendReplyMessage:                newHeader[SendMessageRequest],
	ReqSendReplyMessageV2:              newHeader[SendMessageRequestV2],
	ReqPushReplyMessageToClient:        newHeader[ReplyMessageRequest],
	ReqAddWritePermOfBroker:            newHeader[BrokerNameRequest],
	ReqQueryTopicsByConsumer:           newHeader[GroupRequest],
	ReqQuerySubscriptionByConsumer:     newHeader[SubscriptionRequest],
	ReqGetTopicConfig:                  newHeader[GetTopicConfigRequest],
	ReqGetSubscriptionGroupConfig:      newHeader[GroupRequest],
	ReqUpdateAndGetGroupForbidden:      newHeader[GroupForbiddenRequest],
	ReqLitePullMessage:                 newHeader[PullMessageRequest],
	ReqRecallMessage:                   newHeader[RecallMessageRequest],
	ReqBrokerHeartbeat:                 newHeader[BrokerHeartbeatRequest],
	ReqPopMessage:                      newHeader[PopMessageRequest],
	ReqAckMessage:                      newHeader[AckMessageRequest],
	ReqPeekMessage:                     newHeader[PeekMessageRequest],
	ReqChangeMessageInvisibleTime:      newHeader[ChangeInvisibleTimeRequest],
	ReqNotification:                    newHeader[NotificationRequest],
}

// responseHeaders has the header of the successful answer to each request code
// whose answer has ext fields.
var responseHeaders = map[int32]func() Header{
	ReqSendMessage:                   newHeader[SendMessageResponse],
	ReqPullMessage:                   newHeader[PullMessageResponse],
	ReqQueryMessage:                  newHeader[QueryMessageResponse],
	ReqQueryConsumerOffset:           newHeader[OffsetResponse],
	ReqGetAllTopicConfig:             newHeader[AllTopicConfigResponse],
	ReqGetBrokerConfig:               newHeader[BrokerConfigResponse],
	ReqSearchOffsetByTimestamp:       newHeader[OffsetResponse],
	ReqGetMaxOffset:                  newHeader[OffsetResponse],
	ReqGetMinOffset:                  newHeader[OffsetResponse],
	ReqGetEarliestMsgStoreTime:       newHeader[TimestampResponse],
	ReqHeartBeat:                     newHeader[HeartbeatResponse],
	ReqGetKVConfig:                   newHeader[KVResponse],
	ReqRegisterBroker:                newHeader[RegisterBrokerResponse],
	ReqGetAllSubscriptionGroupConfig: newHeader[AllGroupConfigResponse],
	ReqWipeWritePermOfBroker:         newHeader[WipeWritePermResponse],
	ReqSendMessageV2:                 newHeader[SendMessageResponse],
	ReqSendBatchMessage:              newHeader[SendMessageResponse],
	ReqQueryDataVersion:              newHeader[QueryDataVersionResponse],
	ReqSendReplyMessage:              newHeader[SendMessageResponse],
	ReqSendReplyMessageV2:            newHeader[SendMessageResponse],
	ReqAddWritePermOfBroker:          newHeader[AddWritePermResponse],
	ReqLitePullMessage:               newHeader[PullMessageResponse],
	ReqRecallMessage:                 newHeader[RecallMessageResponse],
	ReqPopMessage:                    newHeader[PopMessageResponse],
	ReqChangeMessageInvisibleTime:    newHeader[ChangeInvisibleTimeResponse],
}

// RequestHeader returns an empty header for requests with code, nil if they
// have no ext fields of their own or nobody here knows them.
func RequestHeader(code int32) Header {
	if make := requestHeaders[code]; make != nil {
		return make()
	}
	return nil
}

// ResponseHeader returns an empty header for the answer to requests with code,
// nil if it has none. Answers that say that nothing was done lack the fields.
func ResponseHeader(code int32) Header {
	if make := responseHeaders[code]; make != nil {
		return make()
	}
	return nil
}
