package remoting

// Bodies with the configuration of topics and groups. They are also the
// content of topics.json and subscriptionGroup.json.

// DataVersion tells which of two copies of a table is newer, and is the body of
// 322 QUERY_DATA_VERSION.
type DataVersion struct {
	StateVersion int64
	Timestamp    int64 // ms
	Counter      int64
}

func (b *DataVersion) members(o *object) {
	o.i64("counter", &b.Counter)
	o.i64("stateVersion", &b.StateVersion)
	o.i64("timestamp", &b.Timestamp)
}

// FilterTypeSingle is the filter type of nearly every topic.
const FilterTypeSingle = "SINGLE_TAG"

// TopicConfig is the configuration of a topic and the answer to 351
// GET_TOPIC_CONFIG.
type TopicConfig struct {
	TopicName       string
	ReadQueueNums   int32
	WriteQueueNums  int32
	Perm            int32
	TopicFilterType string // SINGLE_TAG or MULTI_TAG
	TopicSysFlag    int32
	Order           bool
	Attributes      map[string]string // nil: not given, as by 4.9
}

func (b *TopicConfig) setDefaults() {
	b.ReadQueueNums, b.WriteQueueNums, b.Perm, b.TopicFilterType = 16, 16, PermRead|PermWrite, FilterTypeSingle
}

func (b *TopicConfig) members(o *object) {
	o.optStrMap("attributes", &b.Attributes)
	o.boolean("order", &b.Order)
	o.i32("perm", &b.Perm)
	o.i32("readQueueNums", &b.ReadQueueNums)
	o.str("topicFilterType", &b.TopicFilterType)
	o.str("topicName", &b.TopicName)
	o.i32("topicSysFlag", &b.TopicSysFlag)
	o.i32("writeQueueNums", &b.WriteQueueNums)
}

// TopicConfigList is the body of 18 UPDATE_AND_CREATE_TOPIC_LIST.
type TopicConfigList struct{ Topics []TopicConfig }

func (b *TopicConfigList) members(o *object) { list(o, "topicConfigList", &b.Topics) }

// TopicConfigTable is the answer to 21 GET_ALL_TOPIC_CONFIG, a part of the body
// of 103 REGISTER_BROKER (upstream: TopicConfigAndMappingSerializeWrapper), and
// the content of topics.json.
type TopicConfigTable struct {
	Topics      map[string]TopicConfig
	DataVersion DataVersion

	// Static topics, as they came.
	MappingDataVersion *DataVersion
	MappingDetails     RawJSON
	MappingInfos       RawJSON
}

func (b *TopicConfigTable) members(o *object) {
	o.obj("dataVersion", &b.DataVersion)
	optObj[DataVersion](o, "mappingDataVersion", &b.MappingDataVersion)
	mapOf(o, "topicConfigTable", &b.Topics)
	o.raw("topicQueueMappingDetailMap", &b.MappingDetails)
	o.raw("topicQueueMappingInfoMap", &b.MappingInfos)
}

// GroupConfig is the configuration of a consumer group (upstream:
// SubscriptionGroupConfig): the body of 200, the answer to 352.
type GroupConfig struct {
	GroupName                    string
	ConsumeEnable                bool
	ConsumeFromMinEnable         bool
	ConsumeBroadcastEnable       bool
	ConsumeMessageOrderly        bool
	RetryQueueNums               int32
	RetryMaxTimes                int32
	RetryPolicy                  RawJSON
	BrokerID                     int64
	WhichBrokerWhenConsumeSlowly int64
	NotifyConsumerIDsChanged     bool
	GroupSysFlag                 int32
	ConsumeTimeoutMinute         int32
	SubscriptionDataSet          RawJSON
	Attributes                   map[string]string
}

// NewGroupConfig returns the configuration that a group has by default.
func NewGroupConfig(name string) GroupConfig {
	c := GroupConfig{GroupName: name}
	c.setDefaults()
	return c
}

func (b *GroupConfig) setDefaults() {
	b.ConsumeEnable, b.ConsumeFromMinEnable, b.ConsumeBroadcastEnable = true, true, true
	b.NotifyConsumerIDsChanged = true
	b.RetryQueueNums, b.RetryMaxTimes = 1, 16
	b.WhichBrokerWhenConsumeSlowly = 1
	b.ConsumeTimeoutMinute = 15
}

func (b *GroupConfig) members(o *object) {
	o.optStrMap("attributes", &b.Attributes)
	o.i64("brokerId", &b.BrokerID)
	o.boolean("consumeBroadcastEnable", &b.ConsumeBroadcastEnable)
	o.boolean("consumeEnable", &b.ConsumeEnable)
	o.boolean("consumeFromMinEnable", &b.ConsumeFromMinEnable)
	o.boolean("consumeMessageOrderly", &b.ConsumeMessageOrderly)
	o.i32("consumeTimeoutMinute", &b.ConsumeTimeoutMinute)
	o.str("groupName", &b.GroupName)
	o.raw("groupRetryPolicy", &b.RetryPolicy)
	o.i32("groupSysFlag", &b.GroupSysFlag)
	o.boolean("notifyConsumerIdsChangedEnable", &b.NotifyConsumerIDsChanged)
	o.i32("retryMaxTimes", &b.RetryMaxTimes)
	o.i32("retryQueueNums", &b.RetryQueueNums)
	o.raw("subscriptionDataSet", &b.SubscriptionDataSet)
	o.i64("whichBrokerWhenConsumeSlowly", &b.WhichBrokerWhenConsumeSlowly)
}

// GroupConfigList is the body of 225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.
type GroupConfigList struct{ Groups []GroupConfig }

func (b *GroupConfigList) members(o *object) { list(o, "groupConfigList", &b.Groups) }

// GroupConfigTable is the answer to 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG and
// the content of subscriptionGroup.json.
type GroupConfigTable struct {
	Groups         map[string]GroupConfig
	ForbiddenTable RawJSON // bits by group and topic
	DataVersion    DataVersion
}

func (b *GroupConfigTable) members(o *object) {
	o.obj("dataVersion", &b.DataVersion)
	o.raw("forbiddenTable", &b.ForbiddenTable)
	mapOf(o, "subscriptionGroupTable", &b.Groups)
}
