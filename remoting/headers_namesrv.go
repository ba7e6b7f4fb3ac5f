package remoting

// Headers of requests to the name server.

// RouteInfoRequest is the header of 105 GET_ROUTEINFO_BY_TOPIC.
type RouteInfoRequest struct {
	Topic                  string
	AcceptStandardJSONOnly bool
}

func (h *RouteInfoRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.optBool("acceptStandardJsonOnly", &h.AcceptStandardJSONOnly, false)
}

// ClusterRequest is the header of 224 GET_TOPICS_BY_CLUSTER.
type ClusterRequest struct{ Cluster string }

func (h *ClusterRequest) fields(v *fieldVisitor) { v.str("cluster", &h.Cluster) }

// PutKVRequest is the header of 100 PUT_KV_CONFIG.
type PutKVRequest struct{ Namespace, Key, Value string }

func (h *PutKVRequest) fields(v *fieldVisitor) {
	v.str("namespace", &h.Namespace)
	v.str("key", &h.Key)
	v.str("value", &h.Value)
}

// KVRequest is the header of 101 GET_KV_CONFIG and 102 DELETE_KV_CONFIG.
type KVRequest struct{ Namespace, Key string }

func (h *KVRequest) fields(v *fieldVisitor) {
	v.str("namespace", &h.Namespace)
	v.str("key", &h.Key)
}

// KVResponse answers 101.
type KVResponse struct{ Value string }

func (h *KVResponse) fields(v *fieldVisitor) { v.str("value", &h.Value) }

// NamespaceRequest is the header of 219 GET_KVLIST_BY_NAMESPACE.
type NamespaceRequest struct{ Namespace string }

func (h *NamespaceRequest) fields(v *fieldVisitor) { v.str("namespace", &h.Namespace) }

// DeleteTopicRequest is the header of 216 DELETE_TOPIC_IN_NAMESRV.
type DeleteTopicRequest struct {
	Topic       string
	ClusterName string
}

func (h *DeleteTopicRequest) fields(v *fieldVisitor) {
	v.str("topic", &h.Topic)
	v.optStr("clusterName", &h.ClusterName)
}

// BrokerNameRequest is the header of 205 WIPE_WRITE_PERM_OF_BROKER and 327
// ADD_WRITE_PERM_OF_BROKER.
type BrokerNameRequest struct{ BrokerName string }

func (h *BrokerNameRequest) fields(v *fieldVisitor) { v.str("brokerName", &h.BrokerName) }

// WipeWritePermResponse answers 205.
type WipeWritePermResponse struct{ WipeTopicCount int32 }

func (h *WipeWritePermResponse) fields(v *fieldVisitor) { v.i32("wipeTopicCount", &h.WipeTopicCount) }

// AddWritePermResponse answers 327.
type AddWritePermResponse struct{ AddTopicCount int32 }

func (h *AddWritePermResponse) fields(v *fieldVisitor) { v.i32("addTopicCount", &h.AddTopicCount) }

// BrokerIdentity names a broker: the header of 104 UNREGISTER_BROKER and 322
// QUERY_DATA_VERSION.
type BrokerIdentity struct {
	BrokerName  string
	BrokerAddr  string
	ClusterName string
	BrokerID    int64 // 0 is the master
}

func (h *BrokerIdentity) fields(v *fieldVisitor) {
	v.str("brokerName", &h.BrokerName)
	v.str("brokerAddr", &h.BrokerAddr)
	v.str("clusterName", &h.ClusterName)
	v.i64("brokerId", &h.BrokerID)
}

// RegisterBrokerRequest is the header of 103 REGISTER_BROKER.
type RegisterBrokerRequest struct {
	BrokerIdentity
	HAServerAddr           string
	HeartbeatTimeoutMillis int64 // 0: not given
	EnableActingMaster     bool
	Compressed             bool
	BodyCRC32              int32 // BodyCRC of the body; 0: not checked
}

func (h *RegisterBrokerRequest) fields(v *fieldVisitor) {
	h.BrokerIdentity.fields(v)
	v.str("haServerAddr", &h.HAServerAddr)
	v.optI64("heartbeatTimeoutMillis", &h.HeartbeatTimeoutMillis, 0)
	v.optBool("enableActingMaster", &h.EnableActingMaster, false)
	v.optBool("compressed", &h.Compressed, false)
	v.optI32("bodyCrc32", &h.BodyCRC32, 0)
}

// RegisterBrokerResponse answers 103.
type RegisterBrokerResponse struct {
	HAServerAddr string
	MasterAddr   string
}

func (h *RegisterBrokerResponse) fields(v *fieldVisitor) {
	v.optStr("haServerAddr", &h.HAServerAddr)
	v.optStr("masterAddr", &h.MasterAddr)
}

// QueryDataVersionResponse answers 322.
type QueryDataVersionResponse struct{ Changed bool }

func (h *QueryDataVersionResponse) fields(v *fieldVisitor) { v.boolean("changed", &h.Changed) }

// BrokerHeartbeatRequest is the header of 904 BROKER_HEARTBEAT.
type BrokerHeartbeatRequest struct {
	ClusterName            string
	BrokerAddr             string
	BrokerName             string
	BrokerID               int64 // -1: not given
	HeartbeatTimeoutMillis int64 // 0: not given
}

func (h *BrokerHeartbeatRequest) fields(v *fieldVisitor) {
	v.str("clusterName", &h.ClusterName)
	v.str("brokerAddr", &h.BrokerAddr)
	v.str("brokerName", &h.BrokerName)
	v.optI64("brokerId", &h.BrokerID, -1)
	v.optI64("heartbeatTimeoutMillis", &h.HeartbeatTimeoutMillis, 0)
}
