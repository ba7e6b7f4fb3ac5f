package remoting

// Headers of administration: requests of tools to a broker, and what the
// broker passes on to clients for them.

// TopicRequest names a topic: the header of 105's relatives 202
// GET_TOPIC_STATS_INFO, 215 DELETE_TOPIC_IN_BROKER, 217
// REGISTER_TOPIC_IN_NAMESRV and 300 QUERY_TOPIC_CONSUME_BY_WHO.
type TopicRequest struct{ Topic string }

func (h *TopicRequest) fields(v *fieldVisitor) { v.str("topic", &h.Topic) }

// CreateTopicRequest is the header of 17 UPDATE_AND_CREATE_TOPIC.
type CreateTopicRequest struct {
	Topic           string
	DefaultTopic    string
	ReadQueueNums   int32
	WriteQueueNums  int32
	Perm            int32
	TopicFilterType string // SINGLE_TAG or MULTI_TAG
	TopicSysFlag    int32
	Order           bool
	Attributes      string // "+k=v,-k2"
	Force           bool
}

func (h *CreateTopicRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.str("defaultTopic", &h.DefaultTopic)
	v.i32("readQueueNums", &h.ReadQueueNums)
	v.i32("writeQueueNums", &h.WriteQueueNums)
	v.i32("perm", &h.Perm)
	v.str("topicFilterType", &h.TopicFilterType)
	v.optI32("topicSysFlag", &h.TopicSysFlag, 0)
	v.boolean("order", &h.Order)
	v.optStr("attributes", &h.Attributes)
	v.optBool("force", &h.Force, false)
}

// GetTopicConfigRequest is the header of 351 GET_TOPIC_CONFIG.
type GetTopicConfigRequest struct {
	Topic string
	Lo    bool
}

func (h *GetTopicConfigRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.optBool("lo", &h.Lo, false)
}

// AllTopicConfigRequest is the header of 21 GET_ALL_TOPIC_CONFIG: paging of
// 5.3 and later. MaxTopicNum 0 asks for everything.
type AllTopicConfigRequest struct {
	TopicSeq    int32
	MaxTopicNum int32
	DataVersion string
}

func (h *AllTopicConfigRequest) fields(v *fieldVisitor) {
	v.optI32("topicSeq", &h.TopicSeq, 0)
	v.optI32("maxTopicNum", &h.MaxTopicNum, 0)
	v.optStr("dataVersion", &h.DataVersion)
}

// AllTopicConfigResponse answers 21. TotalTopicNum -1 is absent.
type AllTopicConfigResponse struct{ TotalTopicNum int32 }

func (h *AllTopicConfigResponse) fields(v *fieldVisitor) {
	v.optI32("totalTopicNum", &h.TotalTopicNum, -1)
}

// AllGroupConfigRequest is the header of 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG.
type AllGroupConfigRequest struct {
	GroupSeq    int32
	MaxGroupNum int32
	DataVersion string
}

func (h *AllGroupConfigRequest) fields(v *fieldVisitor) {
	v.optI32("groupSeq", &h.GroupSeq, 0)
	v.optI32("maxGroupNum", &h.MaxGroupNum, 0)
	v.optStr("dataVersion", &h.DataVersion)
}

// AllGroupConfigResponse answers 201. TotalGroupNum -1 is absent.
type AllGroupConfigResponse struct{ TotalGroupNum int32 }

func (h *AllGroupConfigResponse) fields(v *fieldVisitor) {
	v.optI32("totalGroupNum", &h.TotalGroupNum, -1)
}

// GroupRequest names a consumer group: the header of 343
// QUERY_TOPICS_BY_CONSUMER and 352 GET_SUBSCRIPTIONGROUP_CONFIG.
type GroupRequest struct{ Group string }

func (h *GroupRequest) fields(v *fieldVisitor) { v.str("group", &h.Group) }

// DeleteGroupRequest is the header of 207 DELETE_SUBSCRIPTIONGROUP. 4.9 calls
// the second field removeOffset, 5.x cleanOffset; both are read and written.
type DeleteGroupRequest struct {
	GroupName   string
	CleanOffset bool
}

func (h *DeleteGroupRequest) fields(v *fieldVisitor) {
	remove := h.CleanOffset
	v.str("groupName", &h.GroupName)
	v.optBool("cleanOffset", &h.CleanOffset, false)
	v.optBool("removeOffset", &remove, false)
	h.CleanOffset = h.CleanOffset || remove
}

// BrokerConfigResponse answers 26 GET_BROKER_CONFIG.
type BrokerConfigResponse struct{ Version string } // a DataVersion as JSON

func (h *BrokerConfigResponse) fields(v *fieldVisitor) { v.optStr("version", &h.Version) }

// ConsumeStatsRequest is the header of 208 GET_CONSUME_STATS.
type ConsumeStatsRequest struct {
	ConsumerGroup string
	Topic         string
	TopicList     string // separated by ;
}

func (h *ConsumeStatsRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.optStr("topic", &h.Topic)
	v.optStr("topicList", &h.TopicList)
}

// ProducerGroupRequest is the header of 204 GET_PRODUCER_CONNECTION_LIST.
type ProducerGroupRequest struct{ ProducerGroup string }

func (h *ProducerGroupRequest) fields(v *fieldVisitor) { v.str("producerGroup", &h.ProducerGroup) }

// TopicGroupRequest names a topic and a group: the header of 303
// QUERY_CONSUME_TIME_SPAN.
type TopicGroupRequest struct {
	Topic string
	Group string
}

func (h *TopicGroupRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.str("group", &h.Group)
}

// SubscriptionRequest is the header of 345 QUERY_SUBSCRIPTION_BY_CONSUMER.
type SubscriptionRequest struct {
	Group string
	Topic string
}

func (h *SubscriptionRequest) fields(v *fieldVisitor) {
	v.str("group", &h.Group)
	v.optStr("topic", &h.Topic)
}

// GroupForbiddenRequest is the header of 353 UPDATE_AND_GET_GROUP_FORBIDDEN.
type GroupForbiddenRequest struct {
	Group    string
	Topic    string
	Readable string // "true", "false" or absent: ask only
}

func (h *GroupForbiddenRequest) fields(v *fieldVisitor) {
	v.str("group", &h.Group)
	v.str("topic", &h.Topic)
	v.optStr("readable", &h.Readable)
}

// RunningInfoRequest is the header of 307 GET_CONSUMER_RUNNING_INFO.
type RunningInfoRequest struct {
	ConsumerGroup string
	ClientID      string
	JstackEnable  bool
}

func (h *RunningInfoRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("clientId", &h.ClientID)
	v.optBool("jstackEnable", &h.JstackEnable, false)
}

// ConsumeDirectlyRequest is the header of 309 CONSUME_MESSAGE_DIRECTLY.
type ConsumeDirectlyRequest struct {
	ConsumerGroup string
	ClientID      string
	MsgID         string
	BrokerName    string
	Topic         string
	TopicSysFlag  int32
	GroupSysFlag  int32
}

func (h *ConsumeDirectlyRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.optStr("clientId", &h.ClientID)
	v.optStr("msgId", &h.MsgID)
	v.optStr("brokerName", &h.BrokerName)
	v.optStr("topic", &h.Topic)
	v.optI32("topicSysFlag", &h.TopicSysFlag, 0)
	v.optI32("groupSysFlag", &h.GroupSysFlag, 0)
}

// ResetOffsetRequest is the header of 220 RESET_CONSUMER_CLIENT_OFFSET and 222
// INVOKE_BROKER_TO_RESET_OFFSET.
type ResetOffsetRequest struct {
	Topic     string
	Group     string
	Timestamp int64 // -1: the end
	IsForce   bool
	QueueID   int32 // -1: all
	Offset    int64 // -1: by Timestamp
}

func (h *ResetOffsetRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.str("group", &h.Group)
	v.i64("timestamp", &h.Timestamp)
	v.boolean("isForce", &h.IsForce)
	v.optI32("queueId", &h.QueueID, -1)
	v.optI64("offset", &h.Offset, -1)
}

// ConsumerStatusRequest is the header of 221 GET_CONSUMER_STATUS_FROM_CLIENT
// and 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS.
type ConsumerStatusRequest struct {
	Topic      string
	Group      string
	ClientAddr string
}

func (h *ConsumerStatusRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.str("group", &h.Group)
	v.optStr("clientAddr", &h.ClientAddr)
}

// CorrectionOffsetRequest is the header of 308 QUERY_CORRECTION_OFFSET.
type CorrectionOffsetRequest struct {
	Topic        string
	CompareGroup string
	FilterGroups string
}

func (h *CorrectionOffsetRequest) fields(v *fieldVisitor) {
	v.str("compareGroup", &h.CompareGroup)
	v.str("topic", &h.Topic)
	v.optStr("filterGroups", &h.FilterGroups)
}

// CloneOffsetRequest is the header of 314 CLONE_GROUP_OFFSET.
type CloneOffsetRequest struct {
	SrcGroup  string
	DestGroup string
	Topic     string
	Offline   bool
}

func (h *CloneOffsetRequest) fields(v *fieldVisitor) {
	v.str("srcGroup", &h.SrcGroup)
	v.str("destGroup", &h.DestGroup)
	v.optStr("topic", &h.Topic)
	v.optBool("offline", &h.Offline, false)
}

// StatsDataRequest is the header of 315 VIEW_BROKER_STATS_DATA.
type StatsDataRequest struct {
	StatsName string
	StatsKey  string
}

func (h *StatsDataRequest) fields(v *fieldVisitor) {
	v.str("statsName", &h.StatsName)
	v.str("statsKey", &h.StatsKey)
}

// BrokerConsumeStatsRequest is the header of 317 GET_BROKER_CONSUME_STATS.
type BrokerConsumeStatsRequest struct{ IsOrder bool }

func (h *BrokerConsumeStatsRequest) fields(v *fieldVisitor) { v.boolean("isOrder", &h.IsOrder) }

// QueryQueueRequest is the header of 321 QUERY_CONSUME_QUEUE.
type QueryQueueRequest struct {
	Topic         string
	QueueID       int32
	Index         int64
	Count         int32
	ConsumerGroup string
}

func (h *QueryQueueRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i64("index", &h.Index)
	v.i32("count", &h.Count)
	v.optStr("consumerGroup", &h.ConsumerGroup)
}
