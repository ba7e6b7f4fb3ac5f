package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// getBrokerClusterInfo answers 106 GET_BROKER_CLUSTER_INFO.
func (s *Server) getBrokerClusterInfo(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	return successBody(s.routes.clusterInfo()), nil
}
