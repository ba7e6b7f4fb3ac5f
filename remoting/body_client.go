package remoting

import "cmp"

// Bodies of clients: heartbeats, membership, queue locks.

// ConsumeType says who drives consumption.
type ConsumeType int8

const (
	ConsumeActively  ConsumeType = iota // pull
	ConsumePassively                    // push
	ConsumePop
)

var consumeTypes = []string{"CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"}

func (t ConsumeType) String() string { return enumName(consumeTypes, int(t)) }

// MessageModel says whether the members of a group share the messages.
type MessageModel int8

const (
	Broadcasting MessageModel = iota
	Clustering
)

var messageModels = []string{"BROADCASTING", "CLUSTERING"}

func (m MessageModel) String() string { return enumName(messageModels, int(m)) }

// ConsumeFrom says where a group starts that has no offset.
type ConsumeFrom int8

const (
	FromLastOffset  ConsumeFrom = 0
	FromFirstOffset ConsumeFrom = 4
	FromTimestamp   ConsumeFrom = 5
)

var consumeFroms = []string{
	"CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET",
	"CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
}

func (f ConsumeFrom) String() string { return enumName(consumeFroms, int(f)) }

func enumName(names []string, i int) string {
	if i >= 0 && i < len(names) {
		return names[i]
	}
	return "null"
}

// Heartbeat is the body of 34 HEART_BEAT.
type Heartbeat struct {
	ClientID    string
	Producers   []ProducerData
	Consumers   []ConsumerData
	Fingerprint int32 // 0: not given
	WithoutSub  bool  // the subscriptions are those of the last heartbeat
}

func (b *Heartbeat) members(o *object) {
	o.str("clientID", &b.ClientID)
	list(o, "consumerDataSet", &b.Consumers)
	o.i32("heartbeatFingerprint", &b.Fingerprint)
	list(o, "producerDataSet", &b.Producers)
	o.boolean("withoutSub", &b.WithoutSub)
}

// ProducerData names a producer group.
type ProducerData struct{ GroupName string }

func (b *ProducerData) members(o *object) { o.str("groupName", &b.GroupName) }

// ConsumerData is one consumer of a client. An enum is -1 where the peer gave
// none or one that nobody knows.
type ConsumerData struct {
	GroupName     string
	Type          ConsumeType
	Model         MessageModel
	From          ConsumeFrom
	Subscriptions []Subscription
	UnitMode      bool
}

func (b *ConsumerData) setDefaults() { b.Type, b.Model, b.From = -1, -1, -1 }

func (b *ConsumerData) members(o *object) {
	enum(o, "consumeFromWhere", &b.From, consumeFroms)
	enum(o, "consumeType", &b.Type, consumeTypes)
	o.str("groupName", &b.GroupName)
	enum(o, "messageModel", &b.Model, messageModels)
	list(o, "subscriptionDataSet", &b.Subscriptions)
	o.boolean("unitMode", &b.UnitMode)
}

// Expression types of a Subscription.
const (
	ExpressionTag   = "TAG"
	ExpressionSQL92 = "SQL92"
)

// Subscription is what a group wants of a topic (upstream: SubscriptionData).
type Subscription struct {
	Topic           string
	SubString       string // "*", "a || b", or an SQL92 expression
	Tags            []string
	Codes           []int32 // Java hash codes of Tags
	SubVersion      int64   // ms or ns; only to compare within a group
	ExpressionType  string  // TAG if the peer gave none
	ClassFilterMode bool
}

func (b *Subscription) members(o *object) {
	expressionType := cmp.Or(b.ExpressionType, ExpressionTag)
	o.boolean("classFilterMode", &b.ClassFilterMode)
	o.i32s("codeSet", &b.Codes)
	o.str("expressionType", &expressionType)
	b.ExpressionType = cmp.Or(expressionType, ExpressionTag)
	o.str("subString", &b.SubString)
	o.i64("subVersion", &b.SubVersion)
	o.strs("tagsSet", &b.Tags)
	o.str("topic", &b.Topic)
}

// ConsumerList is the answer to 38 GET_CONSUMER_LIST_BY_GROUP.
type ConsumerList struct{ ConsumerIDs []string }

func (b *ConsumerList) members(o *object) { o.strs("consumerIdList", &b.ConsumerIDs) }

// CheckClient is the body of 46 CHECK_CLIENT_CONFIG.
type CheckClient struct {
	ClientID     string
	Group        string
	Namespace    string
	Subscription Subscription
}

func (b *CheckClient) members(o *object) {
	o.str("clientId", &b.ClientID)
	o.str("group", &b.Group)
	o.optStr("namespace", &b.Namespace)
	o.obj("subscriptionData", &b.Subscription)
}

// LockBatch is the body of 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ.
type LockBatch struct {
	ConsumerGroup  string
	ClientID       string
	Queues         []MessageQueue
	OnlyThisBroker bool
}

func (b *LockBatch) members(o *object) {
	o.str("clientId", &b.ClientID)
	o.str("consumerGroup", &b.ConsumerGroup)
	list(o, "mqSet", &b.Queues)
	o.boolean("onlyThisBroker", &b.OnlyThisBroker)
}

// LockBatchResult is the answer to 41.
type LockBatchResult struct{ Locked []MessageQueue }

func (b *LockBatchResult) members(o *object) { list(o, "lockOKMQSet", &b.Locked) }

// ConsumeDirectlyResult is the answer of a client to 309
// CONSUME_MESSAGE_DIRECTLY.
type ConsumeDirectlyResult struct {
	Order          bool
	AutoCommit     bool
	Result         ConsumeResult
	Remark         string
	SpentTimeMills int64
}

// ConsumeResult is what a listener made of a message.
type ConsumeResult int8

const (
	ConsumedSuccess ConsumeResult = iota
	ConsumedLater
	ConsumedRollback
	ConsumedCommit
	ConsumedException
	ConsumedNull
)

var consumeResults = []string{"CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL"}

func (r ConsumeResult) String() string { return enumName(consumeResults, int(r)) }

func (b *ConsumeDirectlyResult) setDefaults() { b.Result = -1 }

func (b *ConsumeDirectlyResult) members(o *object) {
	o.boolean("autoCommit", &b.AutoCommit)
	enum(o, "consumeResult", &b.Result, consumeResults)
	o.boolean("order", &b.Order)
	o.optStr("remark", &b.Remark)
	o.i64("spentTimeMills", &b.SpentTimeMills)
}

// ConsumerRunningInfo is the answer of a client to 307
// GET_CONSUMER_RUNNING_INFO. A broker passes it on untouched; this is for
// tools.
type ConsumerRunningInfo struct {
	Properties      map[string]string
	Subscriptions   []Subscription
	MQTable         map[MessageQueue]ProcessQueueInfo
	MQPopTable      RawJSON
	StatusTable     map[string]ConsumeStatus // by topic
	UserConsumeInfo map[string]string
	Jstack          string
}

func (b *ConsumerRunningInfo) members(o *object) {
	o.optStr("jstack", &b.Jstack)
	o.raw("mqPopTable", &b.MQPopTable)
	queueObjects(o, "mqTable", &b.MQTable)
	o.strMap("properties", &b.Properties)
	mapOf(o, "statusTable", &b.StatusTable)
	list(o, "subscriptionSet", &b.Subscriptions)
	o.optStrMap("userConsumerInfo", &b.UserConsumeInfo)
}

// ProcessQueueInfo is what a consumer holds of one queue.
type ProcessQueueInfo struct {
	CommitOffset            int64
	CachedMsgMinOffset      int64
	CachedMsgMaxOffset      int64
	CachedMsgCount          int32
	CachedMsgSizeInMiB      int32
	TransactionMsgMinOffset int64
	TransactionMsgMaxOffset int64
	TransactionMsgCount     int32
	Locked                  bool
	TryUnlockTimes          int64
	LastLockTimestamp       int64
	Dropped                 bool
	LastPullTimestamp       int64
	LastConsumeTimestamp    int64
}

func (b *ProcessQueueInfo) members(o *object) {
	o.i32("cachedMsgCount", &b.CachedMsgCount)
	o.i64("cachedMsgMaxOffset", &b.CachedMsgMaxOffset)
	o.i64("cachedMsgMinOffset", &b.CachedMsgMinOffset)
	o.i32("cachedMsgSizeInMiB", &b.CachedMsgSizeInMiB)
	o.i64("commitOffset", &b.CommitOffset)
	o.boolean("droped", &b.Dropped) // upstream's spelling
	o.i64("lastConsumeTimestamp", &b.LastConsumeTimestamp)
	o.i64("lastLockTimestamp", &b.LastLockTimestamp)
	o.i64("lastPullTimestamp", &b.LastPullTimestamp)
	o.boolean("locked", &b.Locked)
	o.i32("transactionMsgCount", &b.TransactionMsgCount)
	o.i64("transactionMsgMaxOffset", &b.TransactionMsgMaxOffset)
	o.i64("transactionMsgMinOffset", &b.TransactionMsgMinOffset)
	o.i64("tryUnlockTimes", &b.TryUnlockTimes)
}

// ConsumeStatus has the rates of a consumer for one topic.
type ConsumeStatus struct {
	ConsumeFailedMsgs int64
	ConsumeFailedTPS  float64
	ConsumeOKTPS      float64
	ConsumeRT         float64
	PullRT            float64
	PullTPS           float64
}

func (b *ConsumeStatus) members(o *object) {
	o.i64("consumeFailedMsgs", &b.ConsumeFailedMsgs)
	o.f64("consumeFailedTPS", &b.ConsumeFailedTPS)
	o.f64("consumeOKTPS", &b.ConsumeOKTPS)
	o.f64("consumeRT", &b.ConsumeRT)
	o.f64("pullRT", &b.PullRT)
	o.f64("pullTPS", &b.PullTPS)
}

// QueryAssignment is the body of 400 QUERY_ASSIGNMENT.
type QueryAssignment struct {
	Topic         string
	ConsumerGroup string
	ClientID      string
	StrategyName  string
	MessageModel  MessageModel
}

func (b *QueryAssignment) setDefaults() { b.MessageModel = -1 }

func (b *QueryAssignment) members(o *object) {
	o.str("clientId", &b.ClientID)
	o.str("consumerGroup", &b.ConsumerGroup)
	enum(o, "messageModel", &b.MessageModel, messageModels)
	o.optStr("strategyName", &b.StrategyName)
	o.str("topic", &b.Topic)
}

// Assignments is the answer to 400.
type Assignments struct{ Queues []QueueAssignment }

func (b *Assignments) members(o *object) { list(o, "messageQueueAssignments", &b.Queues) }

// QueueAssignment says how a consumer gets at a queue.
type QueueAssignment struct {
	Queue MessageQueue
	Mode  string // PULL or POP
}

func (b *QueueAssignment) members(o *object) {
	o.obj("messageQueue", &b.Queue)
	o.str("mode", &b.Mode)
}

// RequestMode is the body of 401 SET_MESSAGE_REQUEST_MODE.
type RequestMode struct {
	Topic            string
	ConsumerGroup    string
	Mode             string // PULL or POP
	PopShareQueueNum int32
}

func (b *RequestMode) members(o *object) {
	o.str("consumerGroup", &b.ConsumerGroup)
	o.str("mode", &b.Mode)
	o.i32("popShareQueueNum", &b.PopShareQueueNum)
	o.str("topic", &b.Topic)
}
