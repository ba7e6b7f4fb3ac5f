package namesrv_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gantrymq/gantry/namesrv"
	"github.com/gantrymq/gantry/remoting"
)

// A name server, a broker that registers with it, and a client that asks where
// a topic lies.
func Example() {
	ctx := context.Background()
	ns, err := namesrv.Start(ctx, namesrv.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Shutdown(ctx) //nolint:errcheck // nothing is left to be lost

	client := remoting.NewClient(remoting.ClientOptions{})
	defer client.Close() //nolint:errcheck // never fails
	ask := func(req *remoting.Command) *remoting.Command {
		resp, err := client.Invoke(ctx, ns.Addr().String(), req)
		if err == nil {
			err = resp.Err()
		}
		if err != nil {
			log.Fatal(err)
		}
		return resp
	}

	register := remoting.NewRequest(remoting.ReqRegisterBroker, &remoting.RegisterBrokerRequest{
		BrokerIdentity: remoting.BrokerIdentity{ClusterName: "DefaultCluster", BrokerName: "broker-a", BrokerAddr: "127.0.0.1:10911"},
		HAServerAddr:   "127.0.0.1:10912",
	})
	topics := map[string]remoting.TopicConfig{}
	for _, name := range []string{"TBW102", "Orders"} {
		topics[name] = remoting.TopicConfig{TopicName: name, ReadQueueNums: 4, WriteQueueNums: 4, Perm: remoting.PermRead | remoting.PermWrite}
	}
	register.Body = remoting.EncodeBody(&remoting.RegisterBroker{Topics: remoting.TopicConfigTable{Topics: topics}})
	ask(register)

	resp := ask(remoting.NewRequest(remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: "Orders"}))
	var route remoting.TopicRouteData
	if err := remoting.DecodeBody(resp.Body, &route); err != nil {
		log.Fatal(err)
	}
	for _, q := range route.QueueDatas {
		fmt.Printf("%s has %d queues\n", q.BrokerName, q.WriteQueueNums)
	}
	// Output: broker-a has 4 queues
}
