package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// frozenProperties are those that 318 may not touch; upstream's
// configBlackList and what it adds.
var frozenProperties = map[string]bool{"configBlackList": true, "configStorePath": true, "kvConfigPath": true, "rocketmqHome": true}

// updateConfig answers 318 UPDATE_NAMESRV_CONFIG. All of it takes effect, or
// nothing does; what takes effect is forgotten when the server stops.
// Properties that have no meaning here are ignored, as upstream ignores those
// that it does not know.
func (s *Server) updateConfig(_ context.Context, c *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	fields, err := remoting.ParseProperties(req.Body)
	if err != nil {
		return nil, err
	}
	s.configMu.Lock()
	defer s.configMu.Unlock()
	opts := *s.options.Load()
	for name, value := range fields.All() {
		if frozenProperties[name] {
			return nil, remoting.Errorf(remoting.CodeNoPermission, "Can not update config in black list.")
		}
		p := findProperty(name)
		if p == nil || p.get(&opts) == value {
			continue
		}
		if !p.live {
			return nil, remoting.Errorf(remoting.CodeSystemError, "%s does not change while the name server runs", name)
		}
		if _, err := opts.SetProperty(name, value); err != nil {
			return nil, err
		}
	}
	s.options.Store(&opts)
	s.log.Info("properties changed", "text", clipped(string(req.Body)), "remote", c.RemoteAddr())
	return success(), nil
}

// getConfig answers 319 GET_NAMESRV_CONFIG.
func (s *Server) getConfig(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	opts := s.options.Load()
	var fields remoting.Fields
	for i := range properties {
		fields.Set(properties[i].name, properties[i].get(opts))
	}
	resp := success()
	resp.Body = remoting.AppendProperties(nil, fields)
	return resp, nil
}
