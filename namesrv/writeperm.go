package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// wipeWritePerm answers 205 WIPE_WRITE_PERM_OF_BROKER: producers leave the broker
// alone until 327 or until it registers a new version of its topics.
func (s *Server) wipeWritePerm(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.BrokerNameRequest](req)
	if err != nil {
		return nil, err
	}
	n := s.routes.setPerms(h.BrokerName, func(perm int32) int32 { return perm &^ remoting.PermWrite })
	s.log.Info("write permission wiped", "broker", clipped(h.BrokerName), "topics", n)
	return successWith(&remoting.WipeWritePermResponse{WipeTopicCount: int32(n)}), nil
}

// addWritePerm answers 327 ADD_WRITE_PERM_OF_BROKER. As upstream, it makes every
// topic readable and writable, and nothing else, whatever it was before.
func (s *Server) addWritePerm(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.BrokerNameRequest](req)
	if err != nil {
		return nil, err
	}
	n := s.routes.setPerms(h.BrokerName, func(int32) int32 { return remoting.PermRead | remoting.PermWrite })
	s.log.Info("write permission added", "broker", clipped(h.BrokerName), "topics", n)
	return successWith(&remoting.AddWritePermResponse{AddTopicCount: int32(n)}), nil
}
