// Package client is a RocketMQ client: producers, consumers, queries and plain
// requests, over the remoting protocol. It serves the command line, benchmarks
// and end-to-end tests, and speaks to Java name servers and brokers as to ours.
//
//	Client     one identity: a client id, routes, connections, heartbeats
//	Producer   sends: one by one, batches, transactions, requests and replies
//	Consumer   a member of a group: its share of the queues, handled by a func
//
// A Client and everything made from it may be used by any number of
// goroutines. Each waiting call ends with its ctx; Close of any of them waits
// for the goroutines that it owns. Everything that a name server or broker
// sends is taken for hostile: counts and sizes are checked before memory is
// taken for them.
//
// Upstream: MQClientInstance, DefaultMQProducerImpl, DefaultMQPushConsumerImpl,
// in its client module; sections 6 to 9 of the protocol.
package client
