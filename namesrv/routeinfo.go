package namesrv

import (
	"context"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// getRouteInfoByTopic answers 105 GET_ROUTEINFO_BY_TOPIC. Every client asks it
// for every topic each 30 s. It runs on the goroutine that reads the connection
// and waits for nothing but the route table.
func (s *Server) getRouteInfoByTopic(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.RouteInfoRequest](req)
	if err != nil {
		return nil, err
	}
	opts := s.options.Load()
	if opts.NeedWaitForService && time.Since(s.started) < time.Duration(opts.WaitSecondsForService)*time.Second {
		return nil, remoting.Errorf(remoting.CodeSystemError, "name server not ready")
	}
	orderConf := ""
	if opts.OrderMessageEnable {
		orderConf, _ = s.kv.get(orderNamespace, h.Topic)
	}
	body := s.routes.route(h.Topic, opts.SupportActingMaster, orderConf)
	if body == nil {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "No topic route info in name server for the topic: %s", clipped(h.Topic))
	}
	resp := success()
	resp.Body = body
	return resp, nil
}
