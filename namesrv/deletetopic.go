package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// deleteTopic answers 216 DELETE_TOPIC_IN_NAMESRV. A broker that still has the
// topic brings it back with its next registration.
func (s *Server) deleteTopic(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.DeleteTopicRequest](req)
	if err != nil {
		return nil, err
	}
	s.routes.deleteTopic(h.Topic, h.ClusterName)
	s.log.Info("topic deleted", "topic", clipped(h.Topic), "cluster", clipped(h.ClusterName))
	return success(), nil
}
