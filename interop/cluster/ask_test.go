//go:build interop

package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// ask sends one request to a server and returns its answer, whatever its code.
func ask(t *testing.T, addr string, code int32, h remoting.Header, body []byte) (*remoting.Command, error) {
	t.Helper()
	cl := remoting.NewClient(remoting.ClientOptions{})
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req := remoting.NewRequest(code, h)
	req.Body = body
	return cl.Invoke(ctx, addr, req)
}

// must asks what has to succeed.
func must(t *testing.T, addr string, code int32, h remoting.Header, body []byte) *remoting.Command {
	t.Helper()
	c, err := ask(t, addr, code, h, body)
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		t.Fatalf("%s to %s: %v", remoting.RequestName(code), addr, err)
	}
	return c
}

// answerCode asks what may be refused and returns the code of the answer.
func answerCode(t *testing.T, addr string, code int32, h remoting.Header, body []byte) int32 {
	t.Helper()
	c, err := ask(t, addr, code, h, body)
	if err != nil {
		t.Fatalf("%s to %s: %v", remoting.RequestName(code), addr, err)
	}
	return c.Code
}

// brokers returns the addresses of the masters that a name server knows, by
// their names.
func brokers(t *testing.T, namesrv string) (map[string]string, error) {
	t.Helper()
	c, err := ask(t, namesrv, remoting.ReqGetBrokerClusterInfo, nil, nil)
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		return nil, err
	}
	var info remoting.ClusterInfo
	if err := remoting.DecodeBody(c.Body, &info); err != nil {
		return nil, err
	}
	m := make(map[string]string)
	for name, b := range info.BrokerAddrTable {
		m[name] = b.BrokerAddrs[0]
	}
	return m, nil
}

// registered reports whether a name server has a broker and the route of its
// template topic.
func registered(t *testing.T, namesrv, name, addr string) (bool, error) {
	all, err := brokers(t, namesrv)
	if err != nil || all[name] != addr {
		return false, fmt.Errorf("brokers %v, %v", all, err)
	}
	names, err := routed(t, namesrv, "TBW102")
	return slices.Contains(names, name), fmt.Errorf("TBW102 on %q, %v", names, err)
}

// routed returns the names of the brokers that have a topic.
func routed(t *testing.T, namesrv, topic string) ([]string, error) {
	c, err := ask(t, namesrv, remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: topic, AcceptStandardJSONOnly: true}, nil)
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		return nil, err
	}
	var route remoting.TopicRouteData
	if err := remoting.DecodeBody(c.Body, &route); err != nil {
		return nil, err
	}
	var names []string
	for _, b := range route.BrokerDatas {
		names = append(names, b.BrokerName)
	}
	slices.Sort(names)
	return names, nil
}

// gone waits until a name server does not know a broker.
func gone(t *testing.T, limit time.Duration, namesrv, name string) {
	t.Helper()
	begin := time.Now()
	await(t, limit, name+" to leave "+namesrv, func() (bool, error) {
		all, err := brokers(t, namesrv)
		_, known := all[name]
		return err == nil && !known, fmt.Errorf("brokers %v, %v", all, err)
	})
	names, err := routed(t, namesrv, "TBW102")
	if slices.Contains(names, name) {
		t.Errorf("%s has left, but TBW102 is routed to %q (%v)", name, names, err)
	}
	t.Logf("%s left %s after %v", name, namesrv, time.Since(begin).Round(time.Millisecond))
}
