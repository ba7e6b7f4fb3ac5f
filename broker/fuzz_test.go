package broker

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// fuzzed is a broker that lives as long as the fuzzing, or until it has grown.
type fuzzed struct {
	mu     sync.Mutex
	b      *Broker
	client *remoting.Client
	used   int
	panics chan string
}

// maxFuzzed is how many inputs one broker gets.
const maxFuzzed = 5000

func (z *fuzzed) get(t testing.TB) *remoting.Client {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.used++; z.b != nil && z.used < maxFuzzed {
		return z.client
	}
	z.stop(t)
	opts := Options{Dir: "/store", Config: NewConfig(), FS: memfs.New(), Store: smallStore(), Logger: slog.New(panicChan{z.panics})}
	opts.Config.ListenPort = 10911
	opts.Config.LongPolling, opts.Config.ShortPolling = false, time.Millisecond
	b, err := tryRig(opts)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, b: b}
	p := r.newPeerOf("c") // who answers what the broker asks
	z.b, z.client, z.used = b, p.client, 0
	return z.client
}

func (z *fuzzed) stop(t testing.TB) {
	if z.b != nil {
		z.client.Close() //nolint:errcheck // never fails
		stopBroker(t, z.b)
		z.b = nil
	}
}

// panicChan is a log handler that passes panics of handlers on.
type panicChan struct{ to chan string }

func (panicChan) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (w panicChan) WithAttrs([]slog.Attr) slog.Handler         { return w }
func (w panicChan) WithGroup(string) slog.Handler              { return w }
func (w panicChan) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panic") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += "\n" + a.String(); return true })
		select {
		case w.to <- text:
		default:
		}
	}
	return nil
}

// FuzzRequests sends any request to a broker: it is answered and nothing panics.
// The fields are names and values in turn, each ended by a NUL.
func FuzzRequests(f *testing.F) {
	seeds(f)
	z := &fuzzed{panics: make(chan string, 1)}
	f.Cleanup(func() { z.stop(f) })
	f.Fuzz(func(t *testing.T, code int32, ext, body []byte) {
		client := z.get(t)
		req := remoting.NewRequest(code, nil)
		parts := strings.Split(string(ext), "\x00")
		for i := 0; i+1 < len(parts) && i < 200; i += 2 {
			req.Ext.Set(parts[i], parts[i+1])
		}
		req.Body = body
		if code == remoting.ReqEndTransaction && strings.Trim(req.Ext.Value("commitOrRollback"), "+-0") == "" {
			t.Skip("an unknown outcome is not answered")
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		resp, err := client.Invoke(ctx, "broker", req)
		select {
		case text := <-z.panics:
			t.Fatal(text)
		default:
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remoting.AppendFrame(nil, resp); err != nil {
			t.Error(err)
		}
	})
}

// seeds adds recorded requests, two of each kind, and hand-made ones.
func seeds(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(wireDir, "*5.4.0__*.ndjson.gz"))
	if err != nil {
		f.Fatal(err)
	}
	n := make(map[int32]int)
	for _, file := range files {
		for _, l := range loadRecording(f, file) {
			if l.Dir != "c2s" || l.Kind == "response" || !l.ofBroker() || l.Kind == "undecodable" || l.Kind == "close" || n[l.Code] == 2 || l.BodyLen > 4096 {
				continue
			}
			n[l.Code]++
			var ext bytes.Buffer
			for name, v := range l.ext.All() {
				ext.WriteString(name + "\x00" + v + "\x00")
			}
			body, _ := l.content(f)
			f.Add(l.Code, ext.Bytes(), body)
		}
	}
	if len(n) < 25 {
		f.Fatalf("recordings have %d kinds of requests", len(n))
	}
	for _, props := range []string{"DELAY\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", "REPLY_TO_CLIENT\x01c\x02"} {
		for _, code := range []int32{remoting.ReqSendMessageV2, remoting.ReqSendReplyMessageV2} {
			f.Add(code, []byte("a\x00PG\x00b\x00T\x00c\x00TBW102\x00d\x004\x00e\x000\x00f\x004\x00g\x001\x00h\x000\x00i\x00"+props+"\x00"), []byte("body"))
		}
	}
	f.Add(remoting.ReqHeartBeat, []byte{}, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T","subString":"*"}]}]}`))
	f.Add(remoting.ReqGetConsumerRunningInfo, []byte("consumerGroup\x00G\x00clientId\x00c\x00jstackEnable\x00false\x00"), []byte{})
}
