package namesrv

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry/remoting"
)

func TestSetProperty(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		want        Options
		known       bool
		err         string
	}{
		{"orderMessageEnable", "true", Options{OrderMessageEnable: true}, true, ""},
		{"supportActingMaster", "true", Options{SupportActingMaster: true}, true, ""},
		{"deleteTopicWithBrokerRegistration", "true", Options{DeleteTopicWithBrokerRegistration: true}, true, ""},
		{"needWaitForService", "true", Options{NeedWaitForService: true}, true, ""},
		{"enableTopicList", "true", Options{}, true, ""},
		{"enableTopicList", "false", Options{DisableTopicList: true}, true, ""},
		{"enableAllTopicList", "false", Options{DisableAllTopicList: true}, true, ""},
		{"returnOrderTopicConfigToBroker", "false", Options{DisableReturnOrderTopicConfig: true}, true, ""},
		{"waitSecondsForService", "10", Options{WaitSecondsForService: 10}, true, ""},
		{"scanNotActiveBrokerInterval", "2500", Options{ScanNotActiveBrokerInterval: 2500 * time.Millisecond}, true, ""},
		{"serverChannelMaxIdleTimeSeconds", "60", Options{Limits: remoting.Limits{IdleTimeout: time.Minute}}, true, ""},
		{"listenPort", "9877", Options{Listen: ":9877"}, true, ""},
		{"bindAddress", "127.0.0.1", Options{Listen: "127.0.0.1:9876"}, true, ""},
		{"bindAddress", "::1", Options{Listen: "[::1]:9876"}, true, ""},
		{"productEnvName", "test", Options{ProductEnvName: "test"}, true, ""},
		{"serverWorkerThreads", "8", Options{}, false, ""},
		{"orderMessageEnable", "yes", Options{}, true, "neither true nor false"},
		{"waitSecondsForService", "-1", Options{}, true, "not a number from"},
		{"scanNotActiveBrokerInterval", "99999999999999999999", Options{}, true, "not a number from"},
		{"listenPort", "65536", Options{}, true, "not a number from"},
		{"productEnvName", "a\nb=c", Options{}, true, "control characters"},
		{"kvConfigPath", "/x", Options{}, true, "cannot be set"},
	} {
		t.Run(tc.name+"="+tc.value, func(t *testing.T) {
			var got Options
			known, err := got.SetProperty(tc.name, tc.value)
			if known != tc.known || !matches(err, tc.err) {
				t.Errorf("known %v, error %v; want %v, %q", known, err, tc.known, tc.err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(Options{}, "Logger", "FS", "TLS")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if p := findProperty(tc.name); err == nil && known && p.get(&got) != tc.value {
				t.Errorf("shown as %q", p.get(&got))
			}
		})
	}
}

func (tc *testClient) config() string {
	tc.t.Helper()
	return string(tc.ok(remoting.ReqGetNamesrvConfig, nil, nil).Body)
}

func TestConfigRequests(t *testing.T) {
	tc := startTest(t, Options{})
	tc.register(brokerA())
	before := tc.config()
	_, port, _ := strings.Cut(tc.addr, ":")
	for _, line := range []string{"listenPort=" + port, "bindAddress=127.0.0.1", "enableTopicList=true", "scanNotActiveBrokerInterval=5000", "waitSecondsForService=45"} {
		if !strings.Contains(before, line+"\n") {
			t.Errorf("no line %s in\n%s", line, before)
		}
	}
	for _, c := range []struct {
		name, text string
		code       int32
		remark     string
	}{
		{"empty", "", 0, ""},
		{"unknown", "serverWorkerThreads=8\nx=y", 0, ""},
		{"as it is", "listenPort=" + port, 0, ""},
		{"black list", "orderMessageEnable=true\nkvConfigPath=/x", remoting.CodeNoPermission, "black list"},
		{"black list, not ours", "rocketmqHome=/x", remoting.CodeNoPermission, "black list"},
		{"fixed", "orderMessageEnable=true\nlistenPort=1", remoting.CodeSystemError, "listenPort does not change"},
		{"malformed", "supportActingMaster=true\norderMessageEnable=1", remoting.CodeSystemError, "neither true nor false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := tc.call(remoting.ReqUpdateNamesrvConfig, nil, []byte(c.text))
			if resp.Code != c.code || !strings.Contains(resp.Remark, c.remark) {
				t.Errorf("%v, want code %d with %q", resp, c.code, c.remark)
			}
			if diff := cmp.Diff(before, tc.config()); diff != "" {
				t.Errorf("configuration changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestConfigTakesEffect: what 318 changes shows in the next answers.
func TestConfigTakesEffect(t *testing.T) {
	for _, c := range []struct {
		property string
		code     int32
		h        remoting.Header
		remark   string
	}{
		{"enableAllTopicList=false", remoting.ReqGetAllTopicListFromNameServer, nil, "disable"},
		{"enableTopicList=false", remoting.ReqGetTopicsByCluster, &remoting.ClusterRequest{Cluster: "C"}, "disable"},
		{"enableTopicList=false", remoting.ReqGetUnitTopicList, nil, "disable"},
		{"needWaitForService=true", remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: "T1"}, "name server not ready"},
	} {
		t.Run(c.property, func(t *testing.T) {
			tc := startTest(t, Options{})
			tc.register(brokerA())
			tc.ok(c.code, c.h, nil)
			tc.ok(remoting.ReqUpdateNamesrvConfig, nil, []byte(c.property))
			wantCode(t, tc.call(c.code, c.h, nil).Err(), remoting.CodeSystemError, c.remark)
			if got := tc.config(); !strings.Contains(got, c.property+"\n") {
				t.Errorf("configuration\n%s", got)
			}
		})
	}
}

// TestActingMasterTakesEffect: routes that are cached follow the property.
func TestActingMasterTakesEffect(t *testing.T) {
	tc := startTest(t, Options{})
	b := brokerA().at(1, "127.0.0.1:10921")
	b.acting = true
	tc.register(b)
	for _, c := range []struct {
		value string
		id    int64
	}{{"false", 1}, {"true", 0}, {"false", 1}} {
		tc.ok(remoting.ReqUpdateNamesrvConfig, nil, []byte("supportActingMaster="+c.value))
		r, err := askRoute(t, tc, "T1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[int64]string{c.id: b.addr}, r.BrokerDatas[0].BrokerAddrs); diff != "" {
			t.Errorf("supportActingMaster=%s (-want +got):\n%s", c.value, diff)
		}
	}
}
