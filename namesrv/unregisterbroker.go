package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// unregisterBroker answers 104 UNREGISTER_BROKER. Cluster and id do not count,
// as upstream: the name and the address say which member is meant.
func (s *Server) unregisterBroker(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.BrokerIdentity](req)
	if err != nil {
		return nil, err
	}
	s.routes.unregister(h.BrokerName, h.BrokerAddr)
	return success(), nil
}
