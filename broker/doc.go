// Package broker is RocketMQ's message broker on a gantry.Store: it answers the
// requests of producers, consumers and tools, registers its topics with name
// servers, and keeps topics, groups and consumer offsets in upstream's files
// beside the messages.
//
//	b, err := broker.Start(ctx, broker.Options{Dir: "data", Config: cfg})
//	…
//	err = b.Shutdown(ctx)
//
// One file holds the requests of one kind: send.go 10, 310 and 320, pull.go 11
// and 361, offset.go 14 and 15, and so on; handlers.go lists them all.
//
// A Broker may be used by any number of goroutines.
//
// Upstream: BrokerController and the processors of its broker module.
package broker
