package gantrytest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry/remoting"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStart: one call gives a pair that routes to itself, two pairs do not
// disturb each other, and nothing is left running.
func TestStart(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("pair", func(t *testing.T) {
		a, b := Start(t), Start(t)
		if a.Addr == b.Addr || a.NameServer == b.NameServer {
			t.Fatalf("two pairs share addresses: %v, %v", a, b)
		}
		client := remoting.NewClient(remoting.ClientOptions{})
		defer client.Close()
		for _, p := range []*Pair{a, b} {
			resp, err := client.Invoke(t.Context(), p.NameServer, remoting.NewRequest(remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: "TBW102"}))
			if err != nil || resp.Code != remoting.CodeSuccess {
				t.Fatalf("route: %v, %v", resp, err)
			}
			var route remoting.TopicRouteData
			if err := remoting.DecodeBody(resp.Body, &route); err != nil {
				t.Fatal(err)
			}
			if got := route.BrokerDatas[0].BrokerAddrs[0]; got != p.Addr {
				t.Errorf("route names %s, want %s", got, p.Addr)
			}
		}
		a.Stop()
		a.Stop()
	})
	goleak.VerifyNone(t, before)
}
