package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// registerTopic answers 217 REGISTER_TOPIC_IN_NAMESRV: a single topic, of brokers
// that are known.
func (s *Server) registerTopic(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.TopicRequest](req)
	if err != nil {
		return nil, err
	}
	var body remoting.TopicRouteData
	if err := remoting.DecodeBody(req.Body, &body); err != nil {
		return nil, err
	}
	for _, q := range body.QueueDatas {
		if err := checkQueues(h.Topic, q, s.routes.bounds); err != nil {
			return nil, err
		}
	}
	if !s.routes.registerTopic(h.Topic, body.QueueDatas) {
		return nil, remoting.Errorf(remoting.CodeSystemError, "the name server has no room for further topics")
	}
	return success(), nil
}
