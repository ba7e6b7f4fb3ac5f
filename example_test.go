package gantry_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
)

// tempDir returns a directory for an example, and what removes it.
func tempDir() (dir string, remove func()) {
	parent, err := os.MkdirTemp("", "gantry-example")
	if err != nil {
		log.Fatal(err)
	}
	return filepath.Join(parent, "store"), func() { os.RemoveAll(parent) }
}

func Example() {
	dir, remove := tempDir()
	defer remove()
	ctx := context.Background()
	store, err := gantry.Open(ctx, dir, &gantry.Options{Flush: gantry.FlushSync})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	_, err = store.Put(ctx, &message.Message{
		Topic:      "Orders",
		Body:       []byte("one bicycle"),
		Properties: message.NewProperties("KEYS", "order-4711", "TAGS", "new"),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.WaitDispatched(ctx); err != nil { // until queues and index know it
		log.Fatal(err)
	}
	hits, err := store.Query(ctx, "Orders", "order-4711", gantry.QueryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", hits[0].Body)
	// Output: one bicycle
}

// A consumer reads a queue from where it stopped and waits for more.
func ExampleStore_Get() {
	dir, remove := tempDir()
	defer remove()
	ctx := context.Background()
	store, err := gantry.Open(ctx, dir, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for i := range 3 {
		m := &message.Message{Topic: "Jobs", Body: fmt.Appendf(nil, "job %d", i)}
		if _, err := store.Put(ctx, m); err != nil {
			log.Fatal(err)
		}
	}
	for next := message.QueueOffset(0); next < 3; {
		if err := store.WaitReadable(ctx, "Jobs", 0, next); err != nil {
			log.Fatal(err)
		}
		res, err := store.Get("Jobs", 0, next, gantry.GetOptions{})
		if err != nil {
			log.Fatal(err)
		}
		msgs, err := res.Messages()
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range msgs {
			fmt.Printf("%d: %s\n", m.QueueOffset, m.Body)
		}
		next = res.NextOffset
	}
	// Output:
	// 0: job 0
	// 1: job 1
	// 2: job 2
}
