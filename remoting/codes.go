package remoting

import (
	"fmt"
	"slices"
)

// Request codes (upstream: RequestCode).
const (
	ReqSendMessage                      int32 = 10
	ReqPullMessage                      int32 = 11
	ReqQueryMessage                     int32 = 12
	ReqQueryConsumerOffset              int32 = 14
	ReqUpdateConsumerOffset             int32 = 15
	ReqUpdateAndCreateTopic             int32 = 17
	ReqUpdateAndCreateTopicList         int32 = 18
	ReqGetAllTopicConfig                int32 = 21
	ReqUpdateBrokerConfig               int32 = 25
	ReqGetBrokerConfig                  int32 = 26
	ReqGetBrokerRuntimeInfo             int32 = 28
	ReqSearchOffsetByTimestamp          int32 = 29
	ReqGetMaxOffset                     int32 = 30
	ReqGetMinOffset                     int32 = 31
	ReqGetEarliestMsgStoreTime          int32 = 32
	ReqViewMessageByID                  int32 = 33
	ReqHeartBeat                        int32 = 34
	ReqUnregisterClient                 int32 = 35
	ReqConsumerSendMsgBack              int32 = 36
	ReqEndTransaction                   int32 = 37
	ReqGetConsumerListByGroup           int32 = 38
	ReqCheckTransactionState            int32 = 39
	ReqNotifyConsumerIDsChanged         int32 = 40
	ReqLockBatchMQ                      int32 = 41
	ReqUnlockBatchMQ                    int32 = 42
	ReqGetAllConsumerOffset             int32 = 43
	ReqGetAllDelayOffset                int32 = 45
	ReqCheckClientConfig                int32 = 46
	ReqPutKVConfig                      int32 = 100
	ReqGetKVConfig                      int32 = 101
	ReqDeleteKVConfig                   int32 = 102
	ReqRegisterBroker                   int32 = 103
	ReqUnregisterBroker                 int32 = 104
	ReqGetRouteInfoByTopic              int32 = 105
	ReqGetBrokerClusterInfo             int32 = 106
	ReqUpdateAndCreateSubscriptionGroup int32 = 200
	ReqGetAllSubscriptionGroupConfig    int32 = 201
	ReqGetTopicStatsInfo                int32 = 202
	ReqGetConsumerConnectionList        int32 = 203
	ReqGetProducerConnectionList        int32 = 204
	ReqWipeWritePermOfBroker            int32 = 205
	ReqGetAllTopicListFromNameServer    int32 = 206
	ReqDeleteSubscriptionGroup          int32 = 207
	ReqGetConsumeStats                  int32 = 208
	ReqDeleteTopicInBroker              int32 = 215
	ReqDeleteTopicInNamesrv             int32 = 216
	ReqRegisterTopicInNamesrv           int32 = 217
	ReqGetKVListByNamespace             int32 = 219
	ReqResetConsumerClientOffset        int32 = 220
	ReqGetConsumerStatusFromClient      int32 = 221
	ReqInvokeBrokerToResetOffset        int32 = 222
	ReqInvokeBrokerToGetConsumerStatus  int32 = 223
	ReqGetTopicsByCluster               int32 = 224
	ReqUpdateSubscriptionGroupList      int32 = 225
	ReqQueryTopicConsumeByWho           int32 = 300
	ReqQueryConsumeTimeSpan             int32 = 303
	ReqGetSystemTopicListFromNS         int32 = 304
	ReqGetSystemTopicListFromBroker     int32 = 305
	ReqCleanExpiredConsumeQueue         int32 = 306
	ReqGetConsumerRunningInfo           int32 = 307
	ReqQueryCorrectionOffset            int32 = 308
	ReqConsumeMessageDirectly           int32 = 309
	ReqSendMessageV2                    int32 = 310
	ReqGetUnitTopicList                 int32 = 311
	ReqGetHasUnitSubTopicList           int32 = 312
	ReqGetHasUnitSubUnunitTopicList     int32 = 313
	ReqCloneGroupOffset                 int32 = 314
	ReqViewBrokerStatsData              int32 = 315
	ReqCleanUnusedTopic                 int32 = 316
	ReqGetBrokerConsumeStats            int32 = 317
	ReqUpdateNamesrvConfig              int32 = 318
	ReqGetNamesrvConfig                 int32 = 319
	ReqSendBatchMessage                 int32 = 320
	ReqQueryConsumeQueue                int32 = 321
	ReqQueryDataVersion                 int32 = 322
	ReqResumeCheckHalfMessage           int32 = 323
	ReqSendReplyMessage                 int32 = 324
	ReqSendReplyMessageV2               int32 = 325
	ReqPushReplyMessageToClient         int32 = 326
	ReqAddWritePermOfBroker             int32 = 327
	ReqGetAllProducerInfo               int32 = 328
	ReqDeleteExpiredCommitLog           int32 = 329
	ReqQueryTopicsByConsumer            int32 = 343
	ReqQuerySubscriptionByConsumer      int32 = 345
	ReqGetTopicConfig                   int32 = 351
	ReqGetSubscriptionGroupConfig       int32 = 352
	ReqUpdateAndGetGroupForbidden       int32 = 353
	ReqLitePullMessage                  int32 = 361
	ReqRecallMessage                    int32 = 370
	ReqQueryAssignment                  int32 = 400
	ReqSetMessageRequestMode            int32 = 401
	ReqBrokerHeartbeat                  int32 = 904
	ReqPopMessage                       int32 = 200050
	ReqAckMessage                       int32 = 200051
	ReqPeekMessage                      int32 = 200052
	ReqChangeMessageInvisibleTime       int32 = 200053
	ReqNotification                     int32 = 200054
	ReqPollingInfo                      int32 = 200055
	ReqBatchAckMessage                  int32 = 200151
)

// Response codes (upstream: ResponseCode).
const (
	CodeSuccess                   int32 = 0
	CodeSystemError               int32 = 1
	CodeSystemBusy                int32 = 2
	CodeRequestCodeNotSupported   int32 = 3
	CodeFlushDiskTimeout          int32 = 10
	CodeSlaveNotAvailable         int32 = 11
	CodeFlushSlaveTimeout         int32 = 12
	CodeMessageIllegal            int32 = 13
	CodeServiceNotAvailable       int32 = 14
	CodeNoPermission              int32 = 16
	CodeTopicNotExist             int32 = 17
	CodePullNotFound              int32 = 19
	CodePullRetryImmediately      int32 = 20
	CodePullOffsetMoved           int32 = 21
	CodeQueryNotFound             int32 = 22
	CodeSubscriptionParseFailed   int32 = 23
	CodeSubscriptionNotExist      int32 = 24
	CodeSubscriptionNotLatest     int32 = 25
	CodeSubscriptionGroupNotExist int32 = 26
	CodeFilterDataNotExist        int32 = 27
	CodeFilterDataNotLatest       int32 = 28
	CodeInvalidParameter          int32 = 29
	CodeNoBuyerID                 int32 = 204
	CodeNotInCurrentUnit          int32 = 205
	CodeConsumerNotOnline         int32 = 206
	CodeConsumeMsgTimeout         int32 = 207
	CodeNoMessage                 int32 = 208
	CodePollingFull               int32 = 209
	CodePollingTimeout            int32 = 210
	CodeBrokerNotExist            int32 = 211
	CodeFlowControl               int32 = 215
	CodeNotLeaderForQueue         int32 = 501
	CodeIllegalOperation          int32 = 604
	CodeGoAway                    int32 = 1500
)

// CodeInfo is a line of the code tables.
type CodeInfo struct {
	Code int32
	Name string // upstream's

	// Retriable is set for a response after which a producer tries again,
	// as upstream's Java producer does.
	Retriable bool
}

// requestCodes is ordered by code. It also names codes that nobody here
// handles, for logs and tools.
var requestCodes = []CodeInfo{
	{ReqSendMessage, "SEND_MESSAGE", false},
	{ReqPullMessage, "PULL_MESSAGE", false},
	{ReqQueryMessage, "QUERY_MESSAGE", false},
	{ReqQueryConsumerOffset, "QUERY_CONSUMER_OFFSET", false},
	{ReqUpdateConsumerOffset, "UPDATE_CONSUMER_OFFSET", false},
	{ReqUpdateAndCreateTopic, "UPDATE_AND_CREATE_TOPIC", false},
	{ReqUpdateAndCreateTopicList, "UPDATE_AND_CREATE_TOPIC_LIST", false},
	{ReqGetAllTopicConfig, "GET_ALL_TOPIC_CONFIG", false},
	{ReqUpdateBrokerConfig, "UPDATE_BROKER_CONFIG", false},
	{ReqGetBrokerConfig, "GET_BROKER_CONFIG", false},
	{ReqGetBrokerRuntimeInfo, "GET_BROKER_RUNTIME_INFO", false},
	{ReqSearchOffsetByTimestamp, "SEARCH_OFFSET_BY_TIMESTAMP", false},
	{ReqGetMaxOffset, "GET_MAX_OFFSET", false},
	{ReqGetMinOffset, "GET_MIN_OFFSET", false},
	{ReqGetEarliestMsgStoreTime, "GET_EARLIEST_MSG_STORETIME", false},
	{ReqViewMessageByID, "VIEW_MESSAGE_BY_ID", false},
	{ReqHeartBeat, "HEART_BEAT", false},
	{ReqUnregisterClient, "UNREGISTER_CLIENT", false},
	{ReqConsumerSendMsgBack, "CONSUMER_SEND_MSG_BACK", false},
	{ReqEndTransaction, "END_TRANSACTION", false},
	{ReqGetConsumerListByGroup, "GET_CONSUMER_LIST_BY_GROUP", false},
	{ReqCheckTransactionState, "CHECK_TRANSACTION_STATE", false},
	{ReqNotifyConsumerIDsChanged, "NOTIFY_CONSUMER_IDS_CHANGED", false},
	{ReqLockBatchMQ, "LOCK_BATCH_MQ", false},
	{ReqUnlockBatchMQ, "UNLOCK_BATCH_MQ", false},
	{ReqGetAllConsumerOffset, "GET_ALL_CONSUMER_OFFSET", false},
	{ReqGetAllDelayOffset, "GET_ALL_DELAY_OFFSET", false},
	{ReqCheckClientConfig, "CHECK_CLIENT_CONFIG", false},
	{50, "UPDATE_AND_CREATE_ACL_CONFIG", false},
	{51, "DELETE_ACL_CONFIG", false},
	{52, "GET_BROKER_CLUSTER_ACL_INFO", false},
	{53, "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", false},
	{54, "GET_BROKER_CLUSTER_ACL_CONFIG", false},
	{ReqPutKVConfig, "PUT_KV_CONFIG", false},
	{ReqGetKVConfig, "GET_KV_CONFIG", false},
	{ReqDeleteKVConfig, "DELETE_KV_CONFIG", false},
	{ReqRegisterBroker, "REGISTER_BROKER", false},
	{ReqUnregisterBroker, "UNREGISTER_BROKER", false},
	{ReqGetRouteInfoByTopic, "GET_ROUTEINFO_BY_TOPIC", false},
	{ReqGetBrokerClusterInfo, "GET_BROKER_CLUSTER_INFO", false},
	{ReqUpdateAndCreateSubscriptionGroup, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", false},
	{ReqGetAllSubscriptionGroupConfig, "GET_ALL_SUBSCRIPTIONGROUP_CONFIG", false},
	{ReqGetTopicStatsInfo, "GET_TOPIC_STATS_INFO", false},
	{ReqGetConsumerConnectionList, "GET_CONSUMER_CONNECTION_LIST", false},
	{ReqGetProducerConnectionList, "GET_PRODUCER_CONNECTION_LIST", false},
	{ReqWipeWritePermOfBroker, "WIPE_WRITE_PERM_OF_BROKER", false},
	{ReqGetAllTopicListFromNameServer, "GET_ALL_TOPIC_LIST_FROM_NAMESERVER", false},
	{ReqDeleteSubscriptionGroup, "DELETE_SUBSCRIPTIONGROUP", false},
	{ReqGetConsumeStats, "GET_CONSUME_STATS", false},
	{ReqDeleteTopicInBroker, "DELETE_TOPIC_IN_BROKER", false},
	{ReqDeleteTopicInNamesrv, "DELETE_TOPIC_IN_NAMESRV", false},
	{ReqRegisterTopicInNamesrv, "REGISTER_TOPIC_IN_NAMESRV", false},
	{ReqGetKVListByNamespace, "GET_KVLIST_BY_NAMESPACE", false},
	{ReqResetConsumerClientOffset, "RESET_CONSUMER_CLIENT_OFFSET", false},
	{ReqGetConsumerStatusFromClient, "GET_CONSUMER_STATUS_FROM_CLIENT", false},
	{ReqInvokeBrokerToResetOffset, "INVOKE_BROKER_TO_RESET_OFFSET", false},
	{ReqInvokeBrokerToGetConsumerStatus, "INVOKE_BROKER_TO_GET_CONSUMER_STATUS", false},
	{ReqGetTopicsByCluster, "GET_TOPICS_BY_CLUSTER", false},
	{ReqUpdateSubscriptionGroupList, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", false},
	{ReqQueryTopicConsumeByWho, "QUERY_TOPIC_CONSUME_BY_WHO", false},
	{ReqQueryConsumeTimeSpan, "QUERY_CONSUME_TIME_SPAN", false},
	{ReqGetSystemTopicListFromNS, "GET_SYSTEM_TOPIC_LIST_FROM_NS", false},
	{ReqGetSystemTopicListFromBroker, "GET_SYSTEM_TOPIC_LIST_FROM_BROKER", false},
	{ReqCleanExpiredConsumeQueue, "CLEAN_EXPIRED_CONSUMEQUEUE", false},
	{ReqGetConsumerRunningInfo, "GET_CONSUMER_RUNNING_INFO", false},
	{ReqQueryCorrectionOffset, "QUERY_CORRECTION_OFFSET", false},
	{ReqConsumeMessageDirectly, "CONSUME_MESSAGE_DIRECTLY", false},
	{ReqSendMessageV2, "SEND_MESSAGE_V2", false},
	{ReqGetUnitTopicList, "GET_UNIT_TOPIC_LIST", false},
	{ReqGetHasUnitSubTopicList, "GET_HAS_UNIT_SUB_TOPIC_LIST", false},
	{ReqGetHasUnitSubUnunitTopicList, "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST", false},
	{ReqCloneGroupOffset, "CLONE_GROUP_OFFSET", false},
	{ReqViewBrokerStatsData, "VIEW_BROKER_STATS_DATA", false},
	{ReqCleanUnusedTopic, "CLEAN_UNUSED_TOPIC", false},
	{ReqGetBrokerConsumeStats, "GET_BROKER_CONSUME_STATS", false},
	{ReqUpdateNamesrvConfig, "UPDATE_NAMESRV_CONFIG", false},
	{ReqGetNamesrvConfig, "GET_NAMESRV_CONFIG", false},
	{ReqSendBatchMessage, "SEND_BATCH_MESSAGE", false},
	{ReqQueryConsumeQueue, "QUERY_CONSUME_QUEUE", false},
	{ReqQueryDataVersion, "QUERY_DATA_VERSION", false},
	{ReqResumeCheckHalfMessage, "RESUME_CHECK_HALF_MESSAGE", false},
	{ReqSendReplyMessage, "SEND_REPLY_MESSAGE", false},
	{ReqSendReplyMessageV2, "SEND_REPLY_MESSAGE_V2", false},
	{ReqPushReplyMessageToClient, "PUSH_REPLY_MESSAGE_TO_CLIENT", false},
	{ReqAddWritePermOfBroker, "ADD_WRITE_PERM_OF_BROKER", false},
	{ReqGetAllProducerInfo, "GET_ALL_PRODUCER_INFO", false},
	{ReqDeleteExpiredCommitLog, "DELETE_EXPIRED_COMMITLOG", false},
	{ReqQueryTopicsByConsumer, "QUERY_TOPICS_BY_CONSUMER", false},
	{ReqQuerySubscriptionByConsumer, "QUERY_SUBSCRIPTION_BY_CONSUMER", false},
	{ReqGetTopicConfig, "GET_TOPIC_CONFIG", false},
	{ReqGetSubscriptionGroupConfig, "GET_SUBSCRIPTIONGROUP_CONFIG", false},
	{ReqUpdateAndGetGroupForbidden, "UPDATE_AND_GET_GROUP_FORBIDDEN", false},
	{354, "CHECK_ROCKSDB_CQ_WRITE_PROGRESS", false},
	{ReqLitePullMessage, "LITE_PULL_MESSAGE", false},
	{ReqRecallMessage, "RECALL_MESSAGE", false},
	{ReqQueryAssignment, "QUERY_ASSIGNMENT", false},
	{ReqSetMessageRequestMode, "SET_MESSAGE_REQUEST_MODE", false},
	{513, "UPDATE_AND_CREATE_STATIC_TOPIC", false},
	{ReqBrokerHeartbeat, "BROKER_HEARTBEAT", false},
	{907, "GET_BROKER_HA_STATUS", false},
	{908, "RESET_MASTER_FLUSH_OFFSET", false},
	{1007, "GET_BROKER_EPOCH_CACHE", false},
	{2001, "UPDATE_COLD_DATA_FLOW_CTR_CONFIG", false},
	{2002, "REMOVE_COLD_DATA_FLOW_CTR_CONFIG", false},
	{2003, "GET_COLD_DATA_FLOW_CTR_INFO", false},
	{2004, "SET_COMMITLOG_READ_MODE", false},
	{3001, "AUTH_CREATE_USER", false},
	{3002, "AUTH_UPDATE_USER", false},
	{3003, "AUTH_DELETE_USER", false},
	{3004, "AUTH_GET_USER", false},
	{3005, "AUTH_LIST_USER", false},
	{3006, "AUTH_CREATE_ACL", false},
	{3007, "AUTH_UPDATE_ACL", false},
	{3008, "AUTH_DELETE_ACL", false},
	{3009, "AUTH_GET_ACL", false},
	{3010, "AUTH_LIST_ACL", false},
	{5001, "SWITCH_TIMER_ENGINE", false},
	{ReqPopMessage, "POP_MESSAGE", false},
	{ReqAckMessage, "ACK_MESSAGE", false},
	{ReqPeekMessage, "PEEK_MESSAGE", false},
	{ReqChangeMessageInvisibleTime, "CHANGE_MESSAGE_INVISIBLETIME", false},
	{ReqNotification, "NOTIFICATION", false},
	{ReqPollingInfo, "POLLING_INFO", false},
	{200056, "POP_ROLLBACK", false},
	{ReqBatchAckMessage, "BATCH_ACK_MESSAGE", false},
}

// responseCodes is ordered by code.
var responseCodes = []CodeInfo{
	{CodeSuccess, "SUCCESS", false},
	{CodeSystemError, "SYSTEM_ERROR", true},
	{CodeSystemBusy, "SYSTEM_BUSY", true},
	{CodeRequestCodeNotSupported, "REQUEST_CODE_NOT_SUPPORTED", false},
	{CodeFlushDiskTimeout, "FLUSH_DISK_TIMEOUT", false},
	{CodeSlaveNotAvailable, "SLAVE_NOT_AVAILABLE", false},
	{CodeFlushSlaveTimeout, "FLUSH_SLAVE_TIMEOUT", false},
	{CodeMessageIllegal, "MESSAGE_ILLEGAL", false},
	{CodeServiceNotAvailable, "SERVICE_NOT_AVAILABLE", true},
	{CodeNoPermission, "NO_PERMISSION", true},
	{CodeTopicNotExist, "TOPIC_NOT_EXIST", true},
	{CodePullNotFound, "PULL_NOT_FOUND", false},
	{CodePullRetryImmediately, "PULL_RETRY_IMMEDIATELY", false},
	{CodePullOffsetMoved, "PULL_OFFSET_MOVED", false},
	{CodeQueryNotFound, "QUERY_NOT_FOUND", false},
	{CodeSubscriptionParseFailed, "SUBSCRIPTION_PARSE_FAILED", false},
	{CodeSubscriptionNotExist, "SUBSCRIPTION_NOT_EXIST", false},
	{CodeSubscriptionNotLatest, "SUBSCRIPTION_NOT_LATEST", false},
	{CodeSubscriptionGroupNotExist, "SUBSCRIPTION_GROUP_NOT_EXIST", false},
	{CodeFilterDataNotExist, "FILTER_DATA_NOT_EXIST", false},
	{CodeFilterDataNotLatest, "FILTER_DATA_NOT_LATEST", false},
	{CodeInvalidParameter, "INVALID_PARAMETER", false},
	{200, "TRANSACTION_SHOULD_COMMIT", false},
	{201, "TRANSACTION_SHOULD_ROLLBACK", false},
	{202, "TRANSACTION_STATE_UNKNOW", false},
	{203, "TRANSACTION_STATE_GROUP_WRONG", false},
	{CodeNoBuyerID, "NO_BUYER_ID", true},
	{CodeNotInCurrentUnit, "NOT_IN_CURRENT_UNIT", true},
	{CodeConsumerNotOnline, "CONSUMER_NOT_ONLINE", false},
	{CodeConsumeMsgTimeout, "CONSUME_MSG_TIMEOUT", false},
	{CodeNoMessage, "NO_MESSAGE", false},
	{CodePollingFull, "POLLING_FULL", false},
	{CodePollingTimeout, "POLLING_TIMEOUT", false},
	{CodeBrokerNotExist, "BROKER_NOT_EXIST", false},
	{CodeFlowControl, "FLOW_CONTROL", false},
	{CodeNotLeaderForQueue, "NOT_LEADER_FOR_QUEUE", false},
	{CodeIllegalOperation, "ILLEGAL_OPERATION", false},
	{CodeGoAway, "GO_AWAY", true},
}

// RequestCodes returns the table of request codes, ordered by code.
func RequestCodes() []CodeInfo { return slices.Clone(requestCodes) }

// ResponseCodes returns the table of response codes, ordered by code.
func ResponseCodes() []CodeInfo { return slices.Clone(responseCodes) }

// RequestName returns upstream's name of a request code, or REQUEST_n.
func RequestName(code int32) string { return codeName(requestCodes, code, "REQUEST") }

// ResponseName returns upstream's name of a response code, or RESPONSE_n.
func ResponseName(code int32) string { return codeName(responseCodes, code, "RESPONSE") }

// Retriable reports whether a producer tries again after an answer with code.
func Retriable(code int32) bool {
	i, ok := findCode(responseCodes, code)
	return ok && responseCodes[i].Retriable
}

func codeName(table []CodeInfo, code int32, kind string) string {
	if i, ok := findCode(table, code); ok {
		return table[i].Name
	}
	return fmt.Sprintf("%s_%d", kind, code)
}

func findCode(table []CodeInfo, code int32) (int, bool) {
	return slices.BinarySearchFunc(table, code, func(c CodeInfo, code int32) int { return int(c.Code) - int(code) })
}
