package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

var errDisabled = remoting.Errorf(remoting.CodeSystemError, "disable")

// getAllTopics answers 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER.
func (s *Server) getAllTopics(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	if s.options.Load().DisableAllTopicList {
		return nil, errDisabled
	}
	return successBody(&remoting.TopicList{TopicList: s.routes.topicNames(everyTopic)}), nil
}

// getTopicsByCluster answers 224 GET_TOPICS_BY_CLUSTER; of a cluster that nobody
// knows the list is empty.
func (s *Server) getTopicsByCluster(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	if s.options.Load().DisableTopicList {
		return nil, errDisabled
	}
	h, err := decode[remoting.ClusterRequest](req)
	if err != nil {
		return nil, err
	}
	return successBody(&remoting.TopicList{TopicList: s.routes.topicsOfCluster(h.Cluster)}), nil
}

// getSystemTopics answers 304 GET_SYSTEM_TOPIC_LIST_FROM_NS. Tools ask the broker
// at the address for further ones.
func (s *Server) getSystemTopics(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	names, addr := s.routes.systemTopics()
	return successBody(&remoting.TopicList{TopicList: names, BrokerAddr: addr}), nil
}

// getUnitTopics answers 311 GET_UNIT_TOPIC_LIST, 312 GET_HAS_UNIT_SUB_TOPIC_LIST
// and 313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.
func (s *Server) getUnitTopics(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	if s.options.Load().DisableTopicList {
		return nil, errDisabled
	}
	match := withFlags(topicFlagUnit, topicFlagUnit)
	switch req.Code {
	case remoting.ReqGetHasUnitSubTopicList:
		match = withFlags(topicFlagUnitSub, topicFlagUnitSub)
	case remoting.ReqGetHasUnitSubUnunitTopicList:
		match = withFlags(topicFlagUnit|topicFlagUnitSub, topicFlagUnitSub)
	}
	return successBody(&remoting.TopicList{TopicList: s.routes.topicNames(match)}), nil
}
