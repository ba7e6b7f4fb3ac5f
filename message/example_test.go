package message_test

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gantrymq/gantry/message"
)

// A message is encoded first; what is known only when its place in the log is
// known is filled in afterwards.
func Example() {
	enc := message.Encoder{}
	rec, err := enc.Append(nil, &message.Message{
		Topic:      "TopicTest",
		QueueID:    3,
		Body:       []byte("hello rocketmq"),
		Properties: message.NewProperties(message.PropKeys, "key1", message.PropTags, "TagA"),
		StoreHost:  netip.MustParseAddrPort("127.0.0.1:10911"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	enc.Patch(rec, 7, 94, 1704067201234)

	v, err := message.Check(rec, 94, message.CheckOptions{BodyCRC: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(v.Topic(), v.QueueID, v.QueueOffset, string(v.Body()))
	fmt.Println(v.OffsetID(), v.TagsCode(nil))
	// Output:
	// TopicTest 3 7 hello rocketmq
	// 7F00000100002A9F000000000000005E 2598919
}

func ExampleEncoder_Append_refused() {
	_, err := new(message.Encoder).Append(nil, &message.Message{Topic: "TopicTest", Body: make([]byte, 5<<20)})
	fmt.Println(errors.Is(err, message.ErrMessageIllegal))
	fmt.Println(err)
	// Output:
	// true
	// message illegal: body: 5242880 bytes, limit 4194304
}

func ExampleProperties() {
	p := message.Properties("KEYS\x01a b\x02TAGS\x01\x02")
	tags, ok := p.Get(message.PropTags) // an empty value is none
	fmt.Printf("%q %v\n", tags, ok)
	for key := range p.Keys() {
		fmt.Println(key)
	}
	fmt.Printf("%q\n", p.Set(message.PropTags, "TagA"))
	// Output:
	// "" false
	// a
	// b
	// "KEYS\x01a b\x02TAGS\x01TagA\x02"
}

func ExampleParseOffsetID() {
	host, phy, err := message.ParseOffsetID("7F00000100002A9F000000000000005E")
	fmt.Println(host, phy, err)
	// Output: 127.0.0.1:10911 94 <nil>
}

func ExampleSplitBatch() {
	body, _ := message.AppendBatchItem(nil, message.BatchItem{Body: []byte("first")})
	body, _ = message.AppendBatchItem(body, message.BatchItem{Body: []byte("second")})
	for item, err := range message.SplitBatch(body) {
		fmt.Println(string(item.Body), err)
	}
	// Output:
	// first <nil>
	// second <nil>
}
