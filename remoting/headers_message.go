package remoting

// SendMessageRequest is the header of 10 SEND_MESSAGE and 324
// SEND_REPLY_MESSAGE. SendMessageRequestV2 is the same with one-letter names;
// DecodeSendMessage reads either.
type SendMessageRequest struct {
	ProducerGroup         string
	Topic                 string
	DefaultTopic          string // template for a topic to be created, normally TBW102
	DefaultTopicQueueNums int32
	QueueID               int32 // negative: the broker chooses
	SysFlag               int32
	BornTimestamp         int64 // ms
	Flag                  int32
	Properties            string // name 0x01 value 0x02 …
	ReconsumeTimes        int32
	UnitMode              bool
	MaxReconsumeTimes     int32 // -1: not given
	Batch                 bool  // the body is a batch
}

func (h *SendMessageRequest) fields(v *fieldVisitor) {
	v.str("producerGroup", &h.ProducerGroup)
	v.str("topic", &h.Topic)
	v.str("defaultTopic", &h.DefaultTopic)
	v.i32("defaultTopicQueueNums", &h.DefaultTopicQueueNums)
	v.i32("queueId", &h.QueueID)
	v.i32("sysFlag", &h.SysFlag)
	v.i64("bornTimestamp", &h.BornTimestamp)
	v.i32("flag", &h.Flag)
	v.optStr("properties", &h.Properties)
	v.optI32("reconsumeTimes", &h.ReconsumeTimes, 0)
	v.optBool("unitMode", &h.UnitMode, false)
	v.optI32("maxReconsumeTimes", &h.MaxReconsumeTimes, -1)
	v.optBool("batch", &h.Batch, false)
}

// SendMessageRequestV2 is the header of 310 SEND_MESSAGE_V2, 320
// SEND_BATCH_MESSAGE and 325 SEND_REPLY_MESSAGE_V2.
type SendMessageRequestV2 struct{ SendMessageRequest }

func (h *SendMessageRequestV2) fields(v *fieldVisitor) {
	v.str("a", &h.ProducerGroup)
	v.str("b", &h.Topic)
	v.str("c", &h.DefaultTopic)
	v.i32("d", &h.DefaultTopicQueueNums)
	v.i32("e", &h.QueueID)
	v.i32("f", &h.SysFlag)
	v.i64("g", &h.BornTimestamp)
	v.i32("h", &h.Flag)
	v.optStr("i", &h.Properties)
	v.optI32("j", &h.ReconsumeTimes, 0)
	v.optBool("k", &h.UnitMode, false)
	v.optI32("l", &h.MaxReconsumeTimes, -1)
	v.optBool("m", &h.Batch, false)
}

// DecodeSendMessage reads the header of a send or reply request by its code.
func DecodeSendMessage(c *Command) (SendMessageRequest, error) {
	switch c.Code {
	case ReqSendMessage, ReqSendReplyMessage:
		var h SendMessageRequest
		err := DecodeHeader(c.Ext, &h)
		return h, err
	}
	if h, ok := decodeLetters(c.Ext); ok {
		return h, nil
	}
	var h SendMessageRequestV2
	err := DecodeHeader(c.Ext, &h)
	return h.SendMessageRequest, err
}

// decodeLetters reads the fields of a SendMessageRequestV2, of which brokers read
// more than of any other, in one pass. It leaves what is missing or malformed to
// DecodeHeader.
func decodeLetters(f Fields) (h SendMessageRequest, ok bool) {
	h.MaxReconsumeTimes = -1
	const mandatory = 1<<('h'-'a'+1) - 1 // a to h
	seen := 0
	for i := range f {
		if len(f[i].Name) != 1 {
			continue
		}
		c, s, ok := f[i].Name[0], f[i].Value, true
		switch c {
		case 'a':
			h.ProducerGroup = s
		case 'b':
			h.Topic = s
		case 'c':
			h.DefaultTopic = s
		case 'd':
			h.DefaultTopicQueueNums, ok = parseInt32(s)
		case 'e':
			h.QueueID, ok = parseInt32(s)
		case 'f':
			h.SysFlag, ok = parseInt32(s)
		case 'g':
			h.BornTimestamp, ok = parseInt(s, 64)
		case 'h':
			h.Flag, ok = parseInt32(s)
		case 'i':
			h.Properties = s
		case 'j':
			h.ReconsumeTimes, ok = parseInt32(s)
		case 'k':
			h.UnitMode = isTrue(s)
		case 'l':
			h.MaxReconsumeTimes, ok = parseInt32(s)
		case 'm':
			h.Batch = isTrue(s)
		default:
			continue
		}
		if !ok {
			return h, false
		}
		seen |= 1 << (c - 'a')
	}
	return h, seen&mandatory == mandatory
}

func parseInt32(s string) (int32, bool) {
	n, ok := parseInt(s, 32)
	return int32(n), ok
}

// SendTopic is the topic of a send or reply request, without the rest of it
// being looked at; "" if there is none.
func SendTopic(c *Command) string {
	switch c.Code {
	case ReqSendMessage, ReqSendReplyMessage:
		return c.Ext.Value("topic")
	}
	return c.Ext.Value("b")
}

// SendMessageResponse answers 10, 310, 320, 324 and 325 with codes 0, 10, 11
// and 12.
type SendMessageResponse struct {
	MsgID         string // offset message id; of a batch, all of them with commas
	QueueID       int32
	QueueOffset   int64
	TransactionID string
	BatchUniqID   string
	RecallHandle  string
	MsgRegion     string
	TraceOn       string // "true", "false" or absent
}

func (h *SendMessageResponse) fields(v *fieldVisitor) {
	v.optStr("MSG_REGION", &h.MsgRegion)
	v.optStr("TRACE_ON", &h.TraceOn)
	v.str("msgId", &h.MsgID)
	v.i32("queueId", &h.QueueID)
	v.i64("queueOffset", &h.QueueOffset)
	v.optStr("transactionId", &h.TransactionID)
	v.optStr("batchUniqId", &h.BatchUniqID)
	v.optStr("recallHandle", &h.RecallHandle)
}

// Bits of PullMessageRequest.SysFlag.
const (
	PullCommitOffset int32 = 1 << 0 // commit CommitOffset besides
	PullSuspend      int32 = 1 << 1 // the request may be held
	PullSubscription int32 = 1 << 2 // use the subscription of the request
	PullClassFilter  int32 = 1 << 3
	PullLite         int32 = 1 << 4
)

// PullMessageRequest is the header of 11 PULL_MESSAGE and 361
// LITE_PULL_MESSAGE.
type PullMessageRequest struct {
	ConsumerGroup        string
	Topic                string
	QueueID              int32
	QueueOffset          int64
	MaxMsgNums           int32
	SysFlag              int32
	CommitOffset         int64
	SuspendTimeoutMillis int64
	SubVersion           int64
	Subscription         string
	ExpressionType       string // absent counts as TAG
	MaxMsgBytes          int32  // 0: not given
	RequestSource        int32  // -1: not given
	ProxyForwardClientID string
}

func (h *PullMessageRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i64("queueOffset", &h.QueueOffset)
	v.i32("maxMsgNums", &h.MaxMsgNums)
	v.i32("sysFlag", &h.SysFlag)
	v.i64("commitOffset", &h.CommitOffset)
	v.i64("suspendTimeoutMillis", &h.SuspendTimeoutMillis)
	v.optStr("subscription", &h.Subscription)
	v.i64("subVersion", &h.SubVersion)
	v.optStr("expressionType", &h.ExpressionType)
	v.optI32("maxMsgBytes", &h.MaxMsgBytes, 0)
	v.optI32("requestSource", &h.RequestSource, -1)
	v.optStr("proxyFrowardClientId", &h.ProxyForwardClientID) // upstream's spelling
}

// PullMessageResponse answers 11 and 361 with codes 0, 19, 20 and 21.
type PullMessageResponse struct {
	SuggestWhichBrokerID int64
	NextBeginOffset      int64
	MinOffset            int64
	MaxOffset            int64
	OffsetDelta          int64
	TopicSysFlag         int32
	GroupSysFlag         int32
	ForbiddenType        int32
}

func (h *PullMessageResponse) fields(v *fieldVisitor) {
	v.i64("suggestWhichBrokerId", &h.SuggestWhichBrokerID)
	v.i64("nextBeginOffset", &h.NextBeginOffset)
	v.i64("minOffset", &h.MinOffset)
	v.i64("maxOffset", &h.MaxOffset)
	v.optI64("offsetDelta", &h.OffsetDelta, 0)
	v.optI32("topicSysFlag", &h.TopicSysFlag, 0)
	v.optI32("groupSysFlag", &h.GroupSysFlag, 0)
	v.optI32("forbiddenType", &h.ForbiddenType, 0)
}

// QueryMessageRequest is the header of 12 QUERY_MESSAGE.
type QueryMessageRequest struct {
	Topic          string
	Key            string
	MaxNum         int32
	BeginTimestamp int64
	EndTimestamp   int64
	UniqueKeyQuery bool   // Key is the UNIQ_KEY property
	IndexType      string // K or U, from 5.x clients
	LastKey        string
}

func (h *QueryMessageRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.str("key", &h.Key)
	v.i32("maxNum", &h.MaxNum)
	v.i64("beginTimestamp", &h.BeginTimestamp)
	v.i64("endTimestamp", &h.EndTimestamp)
	v.optBool("_UNIQUE_KEY_QUERY", &h.UniqueKeyQuery, false)
	v.optStr("indexType", &h.IndexType)
	v.optStr("lastKey", &h.LastKey)
}

// QueryMessageResponse answers 12 with codes 0 and 22.
type QueryMessageResponse struct {
	IndexLastUpdateTimestamp int64
	IndexLastUpdatePhyOffset int64
}

func (h *QueryMessageResponse) fields(v *fieldVisitor) {
	v.i64("indexLastUpdateTimestamp", &h.IndexLastUpdateTimestamp)
	v.i64("indexLastUpdatePhyoffset", &h.IndexLastUpdatePhyOffset)
}

// ViewMessageRequest is the header of 33 VIEW_MESSAGE_BY_ID.
type ViewMessageRequest struct {
	Offset int64 // in the commit log
	Topic  string
}

func (h *ViewMessageRequest) fields(v *fieldVisitor) {
	v.optStr("topic", &h.Topic)
	v.i64("offset", &h.Offset)
}

// SendBackRequest is the header of 36 CONSUMER_SEND_MSG_BACK.
type SendBackRequest struct {
	Offset            int64 // in the commit log
	Group             string
	DelayLevel        int32 // 0: by the number of tries; negative: to the dead letters
	OriginMsgID       string
	OriginTopic       string
	UnitMode          bool
	MaxReconsumeTimes int32 // -1: not given
}

func (h *SendBackRequest) fields(v *fieldVisitor) {
	v.i64("offset", &h.Offset)
	v.str("group", &h.Group)
	v.i32("delayLevel", &h.DelayLevel)
	v.optStr("originMsgId", &h.OriginMsgID)
	v.optStr("originTopic", &h.OriginTopic)
	v.optBool("unitMode", &h.UnitMode, false)
	v.optI32("maxReconsumeTimes", &h.MaxReconsumeTimes, -1)
}

// Values of EndTransactionRequest.CommitOrRollback: the transaction bits of a
// message's sysFlag.
const (
	TransactionUnknown  int32 = 0
	TransactionCommit   int32 = 8
	TransactionRollback int32 = 12
)

// EndTransactionRequest is the header of 37 END_TRANSACTION.
type EndTransactionRequest struct {
	Topic                string
	ProducerGroup        string
	TranStateTableOffset int64 // of the half message in its queue
	CommitLogOffset      int64
	CommitOrRollback     int32
	FromTransactionCheck bool
	MsgID                string
	TransactionID        string
}

func (h *EndTransactionRequest) fields(v *fieldVisitor) {
	v.optStr("topic", &h.Topic)
	v.str("producerGroup", &h.ProducerGroup)
	v.i64("tranStateTableOffset", &h.TranStateTableOffset)
	v.i64("commitLogOffset", &h.CommitLogOffset)
	v.i32("commitOrRollback", &h.CommitOrRollback)
	v.optBool("fromTransactionCheck", &h.FromTransactionCheck, false)
	v.str("msgId", &h.MsgID)
	v.optStr("transactionId", &h.TransactionID)
}

// CheckTransactionRequest is the header of 39 CHECK_TRANSACTION_STATE, which
// the broker sends.
type CheckTransactionRequest struct {
	Topic                string
	TranStateTableOffset int64
	CommitLogOffset      int64
	MsgID                string
	TransactionID        string
	OffsetMsgID          string
	BrokerName           string
}

func (h *CheckTransactionRequest) fields(v *fieldVisitor) {
	v.optStr("topic", &h.Topic)
	v.i64("tranStateTableOffset", &h.TranStateTableOffset)
	v.i64("commitLogOffset", &h.CommitLogOffset)
	v.optStr("msgId", &h.MsgID)
	v.optStr("transactionId", &h.TransactionID)
	v.optStr("offsetMsgId", &h.OffsetMsgID)
	v.optStr("bname", &h.BrokerName)
}

// ReplyMessageRequest is the header of 326 PUSH_REPLY_MESSAGE_TO_CLIENT, which
// the broker sends.
type ReplyMessageRequest struct {
	ProducerGroup         string
	Topic                 string
	DefaultTopic          string
	DefaultTopicQueueNums int32
	QueueID               int32
	SysFlag               int32
	BornTimestamp         int64
	Flag                  int32
	Properties            string
	ReconsumeTimes        int32
	UnitMode              bool
	BornHost              string // ip:port
	StoreHost             string // ip:port
	StoreTimestamp        int64
}

func (h *ReplyMessageRequest) fields(v *fieldVisitor) {
	v.str("producerGroup", &h.ProducerGroup)
	v.str("topic", &h.Topic)
	v.str("defaultTopic", &h.DefaultTopic)
	v.i32("defaultTopicQueueNums", &h.DefaultTopicQueueNums)
	v.i32("queueId", &h.QueueID)
	v.i32("sysFlag", &h.SysFlag)
	v.i64("bornTimestamp", &h.BornTimestamp)
	v.i32("flag", &h.Flag)
	v.optStr("properties", &h.Properties)
	v.optI32("reconsumeTimes", &h.ReconsumeTimes, 0)
	v.optBool("unitMode", &h.UnitMode, false)
	v.str("bornHost", &h.BornHost)
	v.str("storeHost", &h.StoreHost)
	v.i64("storeTimestamp", &h.StoreTimestamp)
}

// ResumeCheckRequest is the header of 323 RESUME_CHECK_HALF_MESSAGE.
type ResumeCheckRequest struct {
	Topic string
	MsgID string
}

func (h *ResumeCheckRequest) fields(v *fieldVisitor) {
	v.optStr("topic", &h.Topic)
	v.optStr("msgId", &h.MsgID)
}

// RecallMessageRequest is the header of 370 RECALL_MESSAGE.
type RecallMessageRequest struct {
	ProducerGroup string
	Topic         string
	RecallHandle  string
}

func (h *RecallMessageRequest) fields(v *fieldVisitor) {
	v.optStr("producerGroup", &h.ProducerGroup)
	v.str("topic", &h.Topic)
	v.str("recallHandle", &h.RecallHandle)
}

// RecallMessageResponse answers 370.
type RecallMessageResponse struct {
	MsgID     string
	MsgRegion string
}

func (h *RecallMessageResponse) fields(v *fieldVisitor) {
	v.optStr("MSG_REGION", &h.MsgRegion)
	v.str("msgId", &h.MsgID)
}
