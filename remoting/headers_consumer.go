package remoting

// QueueRequest names a queue of a topic: the header of 31 GET_MIN_OFFSET and
// 32 GET_EARLIEST_MSG_STORETIME.
type QueueRequest struct {
	Topic   string
	QueueID int32
}

func (h *QueueRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
}

// MaxOffsetRequest is the header of 30 GET_MAX_OFFSET.
type MaxOffsetRequest struct {
	Topic     string
	QueueID   int32
	Committed bool // absent: true
}

func (h *MaxOffsetRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.optBool("committed", &h.Committed, true)
}

// SearchOffsetRequest is the header of 29 SEARCH_OFFSET_BY_TIMESTAMP.
type SearchOffsetRequest struct {
	Topic        string
	QueueID      int32
	Timestamp    int64  // ms
	BoundaryType string // lower or upper in any case; absent: lower
}

func (h *SearchOffsetRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i64("timestamp", &h.Timestamp)
	v.optStr("boundaryType", &h.BoundaryType)
}

// OffsetResponse answers 14, 29, 30 and 31.
type OffsetResponse struct{ Offset int64 }

func (h *OffsetResponse) fields(v *fieldVisitor) { v.i64("offset", &h.Offset) }

// TimestampResponse answers 32.
type TimestampResponse struct{ Timestamp int64 }

func (h *TimestampResponse) fields(v *fieldVisitor) { v.i64("timestamp", &h.Timestamp) }

// QueryOffsetRequest is the header of 14 QUERY_CONSUMER_OFFSET.
type QueryOffsetRequest struct {
	ConsumerGroup     string
	Topic             string
	QueueID           int32
	SetZeroIfNotFound bool // absent: true
}

func (h *QueryOffsetRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.optBool("setZeroIfNotFound", &h.SetZeroIfNotFound, true)
}

// UpdateOffsetRequest is the header of 15 UPDATE_CONSUMER_OFFSET.
type UpdateOffsetRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	CommitOffset  int64 // -1 from clients that never read the queue
}

func (h *UpdateOffsetRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i64("commitOffset", &h.CommitOffset)
}

// HeartbeatResponse answers 34 HEART_BEAT.
type HeartbeatResponse struct {
	SupportV2  string // "true", "false" or absent
	SubChanged string
}

func (h *HeartbeatResponse) fields(v *fieldVisitor) {
	v.optStr("IS_SUPPORT_HEART_BEAT_V2", &h.SupportV2)
	v.optStr("IS_SUB_CHANGE", &h.SubChanged)
}

// UnregisterClientRequest is the header of 35 UNREGISTER_CLIENT.
type UnregisterClientRequest struct {
	ClientID      string
	ProducerGroup string
	ConsumerGroup string
}

func (h *UnregisterClientRequest) fields(v *fieldVisitor) {
	v.str("clientID", &h.ClientID)
	v.optStr("producerGroup", &h.ProducerGroup)
	v.optStr("consumerGroup", &h.ConsumerGroup)
}

// ConsumerGroupRequest names a consumer group: the header of 38
// GET_CONSUMER_LIST_BY_GROUP, 40 NOTIFY_CONSUMER_IDS_CHANGED and 203
// GET_CONSUMER_CONNECTION_LIST.
type ConsumerGroupRequest struct{ ConsumerGroup string }

func (h *ConsumerGroupRequest) fields(v *fieldVisitor) { v.str("consumerGroup", &h.ConsumerGroup) }

// PopMessageRequest is the header of 200050 POP_MESSAGE.
type PopMessageRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	MaxMsgNums    int32
	InvisibleTime int64
	PollTime      int64
	BornTime      int64
	InitMode      int32
	ExpType       string
	Exp           string
	Order         bool
	AttemptID     string
}

func (h *PopMessageRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i32("maxMsgNums", &h.MaxMsgNums)
	v.i64("invisibleTime", &h.InvisibleTime)
	v.i64("pollTime", &h.PollTime)
	v.i64("bornTime", &h.BornTime)
	v.i32("initMode", &h.InitMode)
	v.optStr("expType", &h.ExpType)
	v.optStr("exp", &h.Exp)
	v.optBool("order", &h.Order, false)
	v.optStr("attemptId", &h.AttemptID)
}

// PopMessageResponse answers 200050.
type PopMessageResponse struct {
	PopTime         int64
	InvisibleTime   int64
	ReviveQid       int32
	RestNum         int64
	StartOffsetInfo string
	MsgOffsetInfo   string
	OrderCountInfo  string
}

func (h *PopMessageResponse) fields(v *fieldVisitor) {
	v.i64("popTime", &h.PopTime)
	v.i64("invisibleTime", &h.InvisibleTime)
	v.i32("reviveQid", &h.ReviveQid)
	v.i64("restNum", &h.RestNum)
	v.optStr("startOffsetInfo", &h.StartOffsetInfo)
	v.optStr("msgOffsetInfo", &h.MsgOffsetInfo)
	v.optStr("orderCountInfo", &h.OrderCountInfo)
}

// AckMessageRequest is the header of 200051 ACK_MESSAGE.
type AckMessageRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	ExtraInfo     string
	Offset        int64
}

func (h *AckMessageRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.str("extraInfo", &h.ExtraInfo)
	v.i64("offset", &h.Offset)
}

// PeekMessageRequest is the header of 200052 PEEK_MESSAGE.
type PeekMessageRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	MaxMsgNums    int32
}

func (h *PeekMessageRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i32("maxMsgNums", &h.MaxMsgNums)
}

// ChangeInvisibleTimeRequest is the header of 200053
// CHANGE_MESSAGE_INVISIBLETIME.
type ChangeInvisibleTimeRequest struct {
	AckMessageRequest
	InvisibleTime int64
}

func (h *ChangeInvisibleTimeRequest) fields(v *fieldVisitor) {
	h.AckMessageRequest.fields(v)
	v.i64("invisibleTime", &h.InvisibleTime)
}

// ChangeInvisibleTimeResponse answers 200053.
type ChangeInvisibleTimeResponse struct {
	PopTime       int64
	InvisibleTime int64
	ReviveQid     int32
}

func (h *ChangeInvisibleTimeResponse) fields(v *fieldVisitor) {
	v.i64("popTime", &h.PopTime)
	v.i64("invisibleTime", &h.InvisibleTime)
	v.i32("reviveQid", &h.ReviveQid)
}

// NotificationRequest is the header of 200054 NOTIFICATION.
type NotificationRequest struct {
	ConsumerGroup string
	Topic         string
	QueueID       int32
	PollTime      int64
	BornTime      int64
	Order         bool
	AttemptID     string
}

func (h *NotificationRequest) fields(v *fieldVisitor) {
	v.str("consumerGroup", &h.ConsumerGroup)
	v.str("topic", &h.Topic)
	v.i32("queueId", &h.QueueID)
	v.i64("pollTime", &h.PollTime)
	v.i64("bornTime", &h.BornTime)
	v.optBool("order", &h.Order, false)
	v.optStr("attemptId", &h.AttemptID)
}
