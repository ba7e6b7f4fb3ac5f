package remoting

// Bodies of administration: statistics and what is connected.

// Connection is a client that is connected to a broker.
type Connection struct {
	ClientID   string
	ClientAddr string // ip:port
	Language   Language
	Version    int32
}

func (b *Connection) members(o *object) {
	o.str("clientAddr", &b.ClientAddr)
	o.str("clientId", &b.ClientID)
	o.language("language", &b.Language)
	o.i32("version", &b.Version)
}

// ConsumerConnection is the answer to 203 GET_CONSUMER_CONNECTION_LIST.
type ConsumerConnection struct {
	Connections       []Connection
	SubscriptionTable map[string]Subscription // by topic
	Type              ConsumeType
	Model             MessageModel
	From              ConsumeFrom
}

func (b *ConsumerConnection) setDefaults() { b.Type, b.Model, b.From = -1, -1, -1 }

func (b *ConsumerConnection) members(o *object) {
	list(o, "connectionSet", &b.Connections)
	enum(o, "consumeFromWhere", &b.From, consumeFroms)
	enum(o, "consumeType", &b.Type, consumeTypes)
	enum(o, "messageModel", &b.Model, messageModels)
	mapOf(o, "subscriptionTable", &b.SubscriptionTable)
}

// ProducerConnection is the answer to 204 GET_PRODUCER_CONNECTION_LIST.
type ProducerConnection struct{ Connections []Connection }

func (b *ProducerConnection) members(o *object) { list(o, "connectionSet", &b.Connections) }

// ProducerTable is the answer to 328 GET_ALL_PRODUCER_INFO.
type ProducerTable struct{ Data map[string][]ProducerInfo } // by group

func (b *ProducerTable) members(o *object) { listsByText(o, "data", &b.Data) }

// ProducerInfo is one producer of a ProducerTable.
type ProducerInfo struct {
	ClientID            string
	RemoteIP            string
	Language            Language
	Version             int32
	LastUpdateTimestamp int64
}

func (b *ProducerInfo) members(o *object) {
	o.str("clientId", &b.ClientID)
	o.language("language", &b.Language)
	o.i64("lastUpdateTimestamp", &b.LastUpdateTimestamp)
	o.str("remoteIP", &b.RemoteIP)
	o.i32("version", &b.Version)
}

// GroupList is the answer to 300 QUERY_TOPIC_CONSUME_BY_WHO.
type GroupList struct{ Groups []string }

func (b *GroupList) members(o *object) { o.strs("groupList", &b.Groups) }

// TopicStats is the answer to 202 GET_TOPIC_STATS_INFO.
type TopicStats struct {
	OffsetTable map[MessageQueue]TopicOffset
	TopicPutTPS float64
}

func (b *TopicStats) members(o *object) {
	queueObjects(o, "offsetTable", &b.OffsetTable)
	o.f64("topicPutTps", &b.TopicPutTPS)
}

// TopicOffset has the ends of one queue.
type TopicOffset struct {
	MinOffset           int64
	MaxOffset           int64
	LastUpdateTimestamp int64 // ms
}

func (b *TopicOffset) members(o *object) {
	o.i64("lastUpdateTimestamp", &b.LastUpdateTimestamp)
	o.i64("maxOffset", &b.MaxOffset)
	o.i64("minOffset", &b.MinOffset)
}

// ConsumeStats is the answer to 208 GET_CONSUME_STATS.
type ConsumeStats struct {
	OffsetTable map[MessageQueue]ConsumeOffset
	ConsumeTPS  float64
}

func (b *ConsumeStats) members(o *object) {
	o.f64("consumeTps", &b.ConsumeTPS)
	queueObjects(o, "offsetTable", &b.OffsetTable)
}

// ConsumeOffset is how far a group has come in one queue.
type ConsumeOffset struct {
	BrokerOffset   int64
	ConsumerOffset int64
	PullOffset     int64
	LastTimestamp  int64 // store time of the last message consumed, ms; 0: none
}

func (b *ConsumeOffset) members(o *object) {
	o.i64("brokerOffset", &b.BrokerOffset)
	o.i64("consumerOffset", &b.ConsumerOffset)
	o.i64("lastTimestamp", &b.LastTimestamp)
	o.i64("pullOffset", &b.PullOffset)
}

// BrokerConsumeStats is the answer to 317 GET_BROKER_CONSUME_STATS: a list of
// maps with one group each.
type BrokerConsumeStats struct {
	BrokerAddr        string
	Groups            []GroupConsumeStats
	TotalDiff         int64
	TotalInflightDiff int64
}

func (b *BrokerConsumeStats) members(o *object) {
	o.str("brokerAddr", &b.BrokerAddr)
	list(o, "consumeStatsList", &b.Groups)
	o.i64("totalDiff", &b.TotalDiff)
	o.i64("totalInflightDiff", &b.TotalInflightDiff)
}

// GroupConsumeStats is an element of a BrokerConsumeStats.
type GroupConsumeStats struct {
	Group string
	Stats []ConsumeStats
}

func (b *GroupConsumeStats) members(o *object) {
	if o.out != nil {
		list(o, b.Group, &b.Stats)
		return
	}
	if len(o.found) == 0 {
		return
	}
	name := o.found[0].name
	b.Group = string(repair(nil, name))
	list(o, string(name), &b.Stats)
}

// TimeSpans is the answer to 303 QUERY_CONSUME_TIME_SPAN.
type TimeSpans struct{ Spans []TimeSpan }

func (b *TimeSpans) members(o *object) { list(o, "consumeTimeSpanSet", &b.Spans) }

// TimeSpan has the store times of one queue, in ms.
type TimeSpan struct {
	Queue            MessageQueue
	MinTimeStamp     int64
	MaxTimeStamp     int64
	ConsumeTimeStamp int64
	DelayTime        int64
}

func (b *TimeSpan) members(o *object) {
	o.i64("consumeTimeStamp", &b.ConsumeTimeStamp)
	o.i64("delayTime", &b.DelayTime)
	o.i64("maxTimeStamp", &b.MaxTimeStamp)
	o.obj("messageQueue", &b.Queue)
	o.i64("minTimeStamp", &b.MinTimeStamp)
}

// StatsData is the answer to 315 VIEW_BROKER_STATS_DATA.
type StatsData struct{ Minute, Hour, Day StatsItem }

func (b *StatsData) members(o *object) {
	o.obj("statsDay", &b.Day)
	o.obj("statsHour", &b.Hour)
	o.obj("statsMinute", &b.Minute)
}

// StatsItem is a sum, a rate and an average over some time.
type StatsItem struct {
	Sum   int64
	TPS   float64
	AvgPT float64
}

func (b *StatsItem) members(o *object) {
	o.f64("avgpt", &b.AvgPT)
	o.i64("sum", &b.Sum)
	o.f64("tps", &b.TPS)
}

// QueueContent is the answer to 321 QUERY_CONSUME_QUEUE.
type QueueContent struct {
	Subscription  *Subscription
	FilterData    string
	Units         []QueueUnit
	MaxQueueIndex int64
	MinQueueIndex int64
}

func (b *QueueContent) members(o *object) {
	o.optStr("filterData", &b.FilterData)
	o.i64("maxQueueIndex", &b.MaxQueueIndex)
	o.i64("minQueueIndex", &b.MinQueueIndex)
	list(o, "queueData", &b.Units)
	optObj[Subscription](o, "subscriptionData", &b.Subscription)
}

// QueueUnit is a consume queue unit in a QueueContent.
type QueueUnit struct {
	PhysicOffset   int64
	PhysicSize     int32
	TagsCode       int64
	ExtendDataJSON string
	BitMap         string
	Eval           bool
	Msg            string
}

func (b *QueueUnit) members(o *object) {
	o.optStr("bitMap", &b.BitMap)
	o.boolean("eval", &b.Eval)
	o.optStr("extendDataJson", &b.ExtendDataJSON)
	o.optStr("msg", &b.Msg)
	o.i64("physicOffset", &b.PhysicOffset)
	o.i32("physicSize", &b.PhysicSize)
	o.i64("tagsCode", &b.TagsCode)
}

// SubscriptionAnswer is the answer to 345 QUERY_SUBSCRIPTION_BY_CONSUMER.
type SubscriptionAnswer struct {
	Group        string
	Topic        string
	Subscription *Subscription
}

func (b *SubscriptionAnswer) members(o *object) {
	o.str("group", &b.Group)
	optObj[Subscription](o, "subscriptionData", &b.Subscription)
	o.str("topic", &b.Topic)
}

// GroupForbidden is the answer to 353 UPDATE_AND_GET_GROUP_FORBIDDEN.
type GroupForbidden struct {
	Group    string
	Topic    string
	Readable bool
}

func (b *GroupForbidden) members(o *object) {
	o.str("group", &b.Group)
	o.boolean("readable", &b.Readable)
	o.str("topic", &b.Topic)
}

// CorrectionOffsets is the answer to 308 QUERY_CORRECTION_OFFSET.
type CorrectionOffsets struct{ Offsets map[int32]int64 } // by queue id

func (b *CorrectionOffsets) members(o *object) { o.offsets("correctionOffsets", &b.Offsets) }

// ConsumerOffsets is the answer to 43 GET_ALL_CONSUMER_OFFSET and the content
// of consumerOffset.json.
type ConsumerOffsets struct {
	DataVersion *DataVersion
	OffsetTable map[string]map[int32]int64 // queue id → offset, by topic@group
}

func (b *ConsumerOffsets) members(o *object) {
	optObj[DataVersion](o, "dataVersion", &b.DataVersion)
	o.offsetsByText("offsetTable", &b.OffsetTable)
}

// DelayOffsets is the answer to 45 GET_ALL_DELAY_OFFSET and the content of
// delayOffset.json.
type DelayOffsets struct {
	DataVersion *DataVersion
	OffsetTable map[int32]int64 // by delay level
}

func (b *DelayOffsets) members(o *object) {
	optObj[DataVersion](o, "dataVersion", &b.DataVersion)
	o.offsets("offsetTable", &b.OffsetTable)
}
