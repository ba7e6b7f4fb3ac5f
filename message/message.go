// Package message is the vocabulary of a store: messages, their properties and
// ids, and the commit log record as bytes. It does no I/O. Everything is a
// value or a pure function and may be used concurrently; byte slices that a
// function returns alias its argument where its comment says so.
package message

import "net/netip"

// PhysicalOffset is a byte position in the commit log, across all its files
// (RocketMQ: physical offset, commitLogOffset).
type PhysicalOffset int64

// QueueOffset is the ordinal of a message within one topic and queue id
// (RocketMQ: queueOffset, logical offset).
type QueueOffset int64

// TagsCode is what a consume queue unit keeps for filtering: the hash of the
// tag, for delayed messages the time of delivery in ms, or the address of an
// extension unit (RocketMQ: tagsCode).
type TagsCode int64

// Message is a message to be stored (RocketMQ: MessageExtBrokerInner). The
// zero value of every field but Topic is allowed.
type Message struct {
	Topic   string
	QueueID int32
	Flag    int32 // of the application, opaque
	SysFlag SysFlag
	// Body is stored as it is: compressing it, and setting the flag that says
	// so, is the sender's work. The store does not keep or change the slice.
	Body       []byte
	Properties Properties

	BornTimestamp  int64          // ms since 1970, set by the sender
	BornHost       netip.AddrPort // the sender; the zero value is stored as 0.0.0.0:0
	StoreHost      netip.AddrPort // the broker; likewise
	ReconsumeTimes int32
	// PreparedTransactionOffset is the position of the half message that a
	// commit record belongs to, else 0.
	PreparedTransactionOffset PhysicalOffset
}

// Ext is a stored message (RocketMQ: MessageExt).
type Ext struct {
	Message
	QueueOffset    QueueOffset
	PhysicalOffset PhysicalOffset
	StoreTimestamp int64 // ms since 1970
	StoreSize      int32 // of the whole record
	Magic          uint32
	BodyCRC        uint32
}

// SysFlag is a record's system flag (RocketMQ: MessageSysFlag). Unknown bits
// are kept.
type SysFlag int32

// The bits of SysFlag; section 3.3 of the format.
const (
	Compressed   SysFlag = 0x1
	MultiTags    SysFlag = 0x2
	TxPrepared   SysFlag = 0x4
	TxCommit     SysFlag = 0x8
	TxRollback   SysFlag = 0xC // also the mask of the transaction type
	BornHostV6   SysFlag = 0x10
	StoreHostV6  SysFlag = 0x20
	NeedUnwrap   SysFlag = 0x40
	InnerBatch   SysFlag = 0x80
	compressMask SysFlag = 0x700
)

// Transaction returns the transaction type: 0, TxPrepared, TxCommit or
// TxRollback.
func (f SysFlag) Transaction() SysFlag { return f & TxRollback }

// Properties is a message's property string as it is stored and sent:
// name 0x01 value 0x02 name 0x01 value 0x02 … (section 4.3 of the format). It
// is kept as received, never rebuilt from a map, because the parser of
// upstream drops pairs that the bytes still hold.
type Properties string

// Names of properties that a store reads or writes (RocketMQ: MessageConst).
const (
	PropKeys                  = "KEYS"
	PropTags                  = "TAGS"
	PropWait                  = "WAIT"
	PropDelay                 = "DELAY"
	PropUniqKey               = "UNIQ_KEY"
	PropRealTopic             = "REAL_TOPIC"
	PropRealQueueID           = "REAL_QID"
	PropInnerNum              = "INNER_NUM"
	PropInnerBase             = "INNER_BASE"
	PropInnerMultiDispatch    = "INNER_MULTI_DISPATCH"
	PropInnerMultiQueueOffset = "INNER_MULTI_QUEUE_OFFSET"
	PropDupInfo               = "DUP_INFO"
	PropCRC32                 = "__CRC32#"
	PropTimerDelaySec         = "TIMER_DELAY_SEC"
	PropTimerDelayMS          = "TIMER_DELAY_MS"
	PropTimerDeliverMS        = "TIMER_DELIVER_MS"
	PropTransactionPrepared   = "TRAN_MSG"
	PropProducerGroup         = "PGROUP"
	PropCluster               = "CLUSTER"
	PropMsgRegion             = "MSG_REGION"
	PropTraceSwitch           = "TRACE_ON"
	PropShardingKey           = "__SHARDINGKEY"
	PropStartDeliverTime      = "__STARTDELIVERTIME"
	PropPopCheckPoint         = "POP_CK"
)

// Topics with a meaning for the store (section 17 of the format).
const (
	ScheduleTopic = "SCHEDULE_TOPIC_XXXX"
	HalfTopic     = "RMQ_SYS_TRANS_HALF_TOPIC"
	OpHalfTopic   = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
	RetryPrefix   = "%RETRY%"
	DLQPrefix     = "%DLQ%"
	LightPrefix   = "%LMQ%"
	SystemPrefix  = "rmq_sys_"
	TimerTopic    = "rmq_sys_wheel_timer"
)
