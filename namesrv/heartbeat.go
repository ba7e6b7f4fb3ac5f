package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// brokerHeartbeat answers 904 BROKER_HEARTBEAT.
func (s *Server) brokerHeartbeat(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.BrokerHeartbeatRequest](req)
	if err != nil {
		return nil, err
	}
	s.routes.touch(h.ClusterName, h.BrokerName, h.BrokerAddr)
	return success(), nil
}

// queryDataVersion answers 322 QUERY_DATA_VERSION, by which a broker asks whether
// it has to register again. It is a sign of life as well; brokers of 5.x that
// want nothing else send it oneway.
func (s *Server) queryDataVersion(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.BrokerIdentity](req)
	if err != nil {
		return nil, err
	}
	var theirs remoting.DataVersion
	if err := remoting.DecodeBody(req.Body, &theirs); err != nil {
		return nil, err
	}
	s.routes.touch(h.ClusterName, h.BrokerName, h.BrokerAddr)
	ours, ok := s.routes.version(h.ClusterName, h.BrokerName, h.BrokerAddr)
	resp := successWith(&remoting.QueryDataVersionResponse{Changed: !ok || ours != theirs})
	if ok {
		resp.Body = remoting.EncodeBody(&ours)
	}
	return resp, nil
}
