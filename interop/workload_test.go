//go:build interop

package interop

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/message"
)

// longTopic needs the second record format, which 4.9 does not know.
var longTopic = "%RETRY%" + strings.Repeat("longer-than-a-byte-can-count-", 7)

// kinds is the number of kinds that workload goes through.
const kinds = 14

// workload returns the messages of put i: several make a batch. They depend on
// the arguments alone. wide adds what 4.9 cannot read.
func workload(seed int64, i int, wide bool) []*message.Message {
	key := fmt.Sprintf("go%d-%d", seed, i)
	unique := fmt.Sprintf("7F00000100002A9E%08X%08X", seed, i)
	body := func(n int) []byte {
		text := fmt.Sprintf("from Go, seed %d, message %d - ", seed, i)
		return []byte(strings.Repeat(text, n/len(text)+1)[:n])
	}
	m := &message.Message{
		Topic: "InteropA", QueueID: int32(i % 3), Flag: int32(i), Body: body(100), BornTimestamp: 1_700_000_000_000 + int64(i),
		BornHost: netip.MustParseAddrPort("10.1.2.3:40000"), StoreHost: netip.MustParseAddrPort("127.0.0.1:10911"),
	}
	properties := func(pairs ...string) { m.Properties = message.NewProperties(pairs...) }
	switch i % kinds {
	case 0:
		properties("KEYS", key+" common", "TAGS", "TagA")
	case 1:
		m.Body = []byte{}
	case 2:
		m.Topic, m.ReconsumeTimes = "InteropB", 3
		properties("KEYS", key, "UNIQ_KEY", unique, "TAGS", "TagB")
	case 3:
		m.BornHost, m.StoreHost = netip.MustParseAddrPort("[2001:db8::17]:40017"), netip.MustParseAddrPort("[2001:db8::5]:10911")
		properties("KEYS", key, "TAGS", "TagC")
	case 4:
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		w.Write(body(5000)) // into memory: cannot fail
		w.Close()
		m.Topic, m.Body, m.SysFlag = "InteropB", b.Bytes(), message.Compressed
		properties("KEYS", key, "UNIQ_KEY", unique)
	case 5:
		m.Body = body(20_000 + i*37%9000)
		properties("KEYS", key, "TAGS", "long")
	case 6:
		m.SysFlag = message.TxPrepared
		properties("KEYS", key, "TRAN_MSG", "true", "PGROUP", "pg")
	case 7:
		m.SysFlag = message.TxCommit
		properties("KEYS", key, "TRAN_MSG", "true", "PGROUP", "pg")
	case 8:
		var batch []*message.Message
		for k := range 3 {
			item := *m
			item.Topic, item.Flag, item.Body = "InteropB", int32(k), body(30+k)
			item.Properties = message.NewProperties("KEYS", fmt.Sprintf("%s.%d", key, k))
			if k > 0 {
				item.Properties = item.Properties.Set("TAGS", fmt.Sprintf("batch%d", k))
			}
			batch = append(batch, &item)
		}
		return batch
	case 9:
		m.Topic = "Thema-für-键"
		properties("KEYS", fmt.Sprintf("键%d %s", seed, key), "TAGS", "标签", "colour", "grün 🟢")
	case 10:
		m.SysFlag = message.TxRollback
		properties("KEYS", key, "TRAN_MSG", "true", "PGROUP", "pg")
	case 11:
		properties("KEYS", key, "UNIQ_KEY", unique, "TAGS", "TagD", "DELAY", "18")
	case 12:
		m.Topic = "%RETRY%interop"
		if wide {
			m.Topic = longTopic
		}
		properties("KEYS", key, "RETRY_TOPIC", "InteropA", "UNIQ_KEY", unique)
	default:
		properties("KEYS", "  "+key+"  twice twice ", "TAGS", "")
	}
	return []*message.Message{m}
}

// checkSent compares what Java reads with what was put and promised.
func checkSent(t *testing.T, o *golden.Observation, a ack, wide bool) {
	t.Helper()
	at := a.PhysicalOffset
	for k, sent := range workload(a.Seed, a.I, wide) {
		got := o.Message(at)
		if got == nil {
			t.Errorf("seed %d put %d: Java has no message at %d", a.Seed, a.I, at)
			return
		}
		const hostBits = message.BornHostV6 | message.StoreHostV6
		check := func(field string, want, got any) {
			t.Helper()
			if want != got {
				t.Errorf("seed %d put %d.%d: Java reads %s %v, sent was %v", a.Seed, a.I, k, field, got, want)
			}
		}
		check("topic", a.Topic, got.Topic)
		check("queue id", a.QueueID, got.QueueID)
		if sent.SysFlag.Queued() {
			check("queue offset", a.QueueOffset+message.QueueOffset(k), got.QueueOffset)
		}
		check("store time", a.StoreTimestamp, got.StoreTimestamp)
		check("message id", strings.Split(a.MsgID, ",")[k], got.ID)
		check("flag", sent.Flag, got.Flag)
		check("system flag", sent.SysFlag, got.SysFlag&^hostBits)
		check("born time", sent.BornTimestamp, got.BornTimestamp)
		check("born host", sent.BornHost, got.BornHost)
		check("store host", sent.StoreHost, got.StoreHost)
		check("reconsume times", sent.ReconsumeTimes, got.ReconsumeTimes)
		check("body", golden.Hash(sha256.Sum256(sent.Body)), got.BodySHA256)
		for name, value := range sent.Properties.All() {
			if v, ok := got.Properties[name]; value != "" && (!ok || v != value) {
				t.Errorf("seed %d put %d.%d: Java reads property %s %q, sent was %q", a.Seed, a.I, k, name, v, value)
			}
		}
		at += message.PhysicalOffset(got.Size)
	}
}

// history is what was promised so far, by us and by Java.
type history struct {
	wide bool
	ours []ack
	java []golden.Put
}

// questions asks about everything in the history.
func (h *history) questions(version string) questions {
	q := newQuestions(golden.CompareVersions(version, "5.4.0") >= 0)
	for _, a := range h.ours {
		for k, m := range workload(a.Seed, a.I, h.wide) {
			q.queue(a.Topic, a.QueueID, a.QueueOffset+message.QueueOffset(k), a.StoreTimestamp)
			for key := range m.Keys() {
				q.key(a.Topic, key)
			}
			if u := m.UniqKey(); u != "" {
				q.key(a.Topic, u)
			}
			if tags := m.Tags(); tags != "" {
				q.tag(a.Topic, tags)
			}
		}
		q.lookup(a.PhysicalOffset)
	}
	for _, p := range h.java {
		q.queue(p.Topic, p.QueueID, p.LogicsOffset, p.StoreTimestamp)
		for _, key := range strings.Fields(p.Sent.Keys) {
			q.key(p.Topic, key)
		}
		q.lookup(p.PhysicalOffset)
	}
	return q
}
