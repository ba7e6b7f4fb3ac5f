package gantry

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/message"
)

// TestLiveOpens opens a store again and again beside a writer that makes new
// files all the time: each time it opens at once, and holds every message that
// was put before.
func TestLiveOpens(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), dir, &Options{
		CommitLogFileSize: 1 << 16, ConsumeQueueFileSize: 400, IndexSlots: 16, IndexEntries: 200, DiskWarningPercent: 100, DiskCleanForciblyPercent: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(i int) error {
		_, err := s.Put(context.Background(), &message.Message{
			Topic: fmt.Sprintf("T%d", i%3), QueueID: int32(i / 3 % 2), Body: []byte(strings.Repeat("x", i%200)),
			Properties: message.NewProperties("KEYS", fmt.Sprintf("k%d", i)),
		})
		return err
	}
	const before = 600
	for i := range before {
		if err := put(i); err != nil {
			t.Fatal(err)
		}
	}
	rounds := make(chan int)
	var writer sync.WaitGroup
	writer.Go(func() {
		for from := range rounds {
			for i := range 100 {
				if err := put(from + i); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer writer.Wait()
	defer close(rounds)
	for i := range 40 {
		rounds <- before + 100*i
		r, err := Open(t.Context(), dir, &Options{ReadOnly: true, Live: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range r.Recovery().Warnings {
			t.Error(w)
		}
		for q := range 6 {
			topic, id := fmt.Sprintf("T%d", q%3), int32(q/3)
			got := 0
			for off := message.QueueOffset(0); got < before/6; {
				res, err := r.Get(topic, id, off, GetOptions{Max: 200})
				if err != nil || len(res.Records) == 0 {
					t.Fatalf("%s/%d offset %d: %v, %v", topic, id, off, res.Status, err)
				}
				got, off = got+len(res.Records), res.NextOffset
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
