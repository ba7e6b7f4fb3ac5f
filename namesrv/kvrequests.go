package namesrv

import (
	"context"

	"github.com/gantrymq/gantry/remoting"
)

// putKVConfig answers 100 PUT_KV_CONFIG.
func (s *Server) putKVConfig(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.PutKVRequest](req)
	if err != nil {
		return nil, err
	}
	if err := s.kv.put(h.Namespace, h.Key, h.Value); err != nil {
		return nil, err
	}
	return success(), nil
}

// getKVConfig answers 101 GET_KV_CONFIG.
func (s *Server) getKVConfig(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.KVRequest](req)
	if err != nil {
		return nil, err
	}
	value, ok := s.kv.get(h.Namespace, h.Key)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeQueryNotFound, "No config item, Namespace: %s Key: %s", clipped(h.Namespace), clipped(h.Key))
	}
	return successWith(&remoting.KVResponse{Value: value}), nil
}

// deleteKVConfig answers 102 DELETE_KV_CONFIG. A key that is not there is deleted
// already.
func (s *Server) deleteKVConfig(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.KVRequest](req)
	if err != nil {
		return nil, err
	}
	if err := s.kv.remove(h.Namespace, h.Key); err != nil {
		return nil, err
	}
	return success(), nil
}

// getKVListByNamespace answers 219 GET_KVLIST_BY_NAMESPACE.
func (s *Server) getKVListByNamespace(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.NamespaceRequest](req)
	if err != nil {
		return nil, err
	}
	entries, ok := s.kv.namespace(h.Namespace)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeQueryNotFound, "No config item, Namespace: %s", clipped(h.Namespace))
	}
	return successBody(&remoting.KVTable{Table: entries}), nil
}
