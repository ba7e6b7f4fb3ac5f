// Package gantry is a message store that keeps its data in the files of Apache
// RocketMQ: one commit log that all topics share, consume queues that say
// where each message of a queue lies, and a key index. A Java broker can open
// what it wrote, and it opens what a Java broker wrote.
//
//	store, err := gantry.Open(ctx, "orders", nil)
//	…
//	res, err := store.Put(ctx, &message.Message{
//		Topic:      "Orders",
//		Body:       []byte("4711"),
//		Properties: message.NewProperties("KEYS", "order-4711", "TAGS", "new"),
//	})
//	…
//	got, err := store.Get("Orders", 0, res.QueueOffset, gantry.GetOptions{})
//	hits, err := store.Query(ctx, "Orders", "order-4711", gantry.QueryOptions{})
//
// What a store directory holds:
//
//	commitlog/      messages of all topics, in the order they came
//	consumequeue/   per topic and queue id: position, size, tag hash of each message
//	index/          hash of topic and key: positions of the messages
//	checkpoint      up to where everything above is on stable storage
//	abort           exists while the store is open: the last stop was a crash
//	lock            held while the store is open
//
// A message becomes readable by queue and key a moment after Put returned: a
// single goroutine, the dispatcher, carries records from the log to queues and
// index in order. WaitReadable waits for it.
//
// A Store may be used by any number of goroutines. What is promised in a crash
// stands in docs/crash-safety.md, the layout of the code in ARCHITECTURE.md.
package gantry
