package remoting

// Bodies of the name server.

// Bits of QueueData.Perm and TopicConfig.Perm.
const (
	PermPriority int32 = 1 << 3
	PermRead     int32 = 1 << 2
	PermWrite    int32 = 1 << 1
	PermInherit  int32 = 1 << 0
)

// TopicRouteData is the answer to 105 GET_ROUTEINFO_BY_TOPIC.
type TopicRouteData struct {
	OrderTopicConf            string // "broker-a:4;broker-b:4", only when order messages are enabled
	QueueDatas                []QueueData
	BrokerDatas               []BrokerData
	FilterServerTable         map[string][]string
	TopicQueueMappingByBroker RawJSON // of static topics
}

func (b *TopicRouteData) members(o *object) {
	list(o, "brokerDatas", &b.BrokerDatas)
	o.strsByText("filterServerTable", &b.FilterServerTable)
	o.optStr("orderTopicConf", &b.OrderTopicConf)
	list(o, "queueDatas", &b.QueueDatas)
	o.raw("topicQueueMappingByBroker", &b.TopicQueueMappingByBroker)
}

// QueueData says how many queues of a topic a broker has.
type QueueData struct {
	BrokerName     string
	ReadQueueNums  int32
	WriteQueueNums int32
	Perm           int32
	TopicSysFlag   int32
}

func (b *QueueData) members(o *object) {
	o.str("brokerName", &b.BrokerName)
	o.i32("perm", &b.Perm)
	o.i32("readQueueNums", &b.ReadQueueNums)
	o.i32("topicSysFlag", &b.TopicSysFlag)
	o.i32("writeQueueNums", &b.WriteQueueNums)
}

// BrokerData has the addresses of a broker and its replicas by broker id.
type BrokerData struct {
	Cluster            string
	BrokerName         string
	BrokerAddrs        map[int64]string // ip:port; 0 is the master
	ZoneName           string
	EnableActingMaster bool
}

func (b *BrokerData) members(o *object) {
	o.addrs("brokerAddrs", &b.BrokerAddrs)
	o.str("brokerName", &b.BrokerName)
	o.str("cluster", &b.Cluster)
	o.boolean("enableActingMaster", &b.EnableActingMaster)
	o.optStr("zoneName", &b.ZoneName)
}

// ClusterInfo is the answer to 106 GET_BROKER_CLUSTER_INFO.
type ClusterInfo struct {
	BrokerAddrTable  map[string]BrokerData // by broker name
	ClusterAddrTable map[string][]string   // broker names by cluster
}

func (b *ClusterInfo) members(o *object) {
	mapOf(o, "brokerAddrTable", &b.BrokerAddrTable)
	o.strsByText("clusterAddrTable", &b.ClusterAddrTable)
}

// TopicList is the answer to 206, 224, 304, 305, 311–313 and 343.
type TopicList struct {
	TopicList  []string
	BrokerAddr string
}

func (b *TopicList) members(o *object) {
	o.optStr("brokerAddr", &b.BrokerAddr)
	o.strs("topicList", &b.TopicList)
}

// KVTable is the answer to 28 GET_BROKER_RUNTIME_INFO, 103 REGISTER_BROKER and
// 219 GET_KVLIST_BY_NAMESPACE.
type KVTable struct{ Table map[string]string }

func (b *KVTable) members(o *object) { o.strMap("table", &b.Table) }
