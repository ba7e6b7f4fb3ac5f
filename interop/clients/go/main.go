// Command interop runs one scenario with the Go v2 client against the cluster
// behind a name server, checks what came back, prints one line of JSON and
// exits 0 if all was right. Topic and group names end in SUFFIX, so that runs
// do not disturb each other.
//
//	interop NAMESRV SCENARIO [SUFFIX]
//
// INTEROP_BROKER_NAME names the broker (default broker-a), INTEROP_BROKER its
// address for the scenario admin.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var scenarios = map[string]func(*kit){
	"producer": produce, "producer-errors": produceErrors, "producer-keys": produceKeys, "consumer-tags": tags, "consumer-sql": sql, "consumer-from": from,
	"consumer-retry": retry, "consumer-broadcast": broadcast, "consumer-rebalance": rebalance, "consumer-orderly": orderly,
	"pull": pull, "transaction": transaction, "request-reply": requestReply, "request-reply-emptybody": requestReplyEmpty, "admin": adminCalls,
	"load": load, "readback": readback,
}

var stdout struct {
	sync.Mutex
	*json.Encoder
}

func emit(line any) {
	stdout.Lock()
	defer stdout.Unlock()
	if stdout.Encoder == nil {
		stdout.Encoder = json.NewEncoder(os.Stdout)
	}
	must(stdout.Encode(line))
}

func main() {
	rlog.SetLogLevel("error")
	if len(os.Args) < 3 || scenarios[os.Args[2]] == nil {
		fmt.Fprintln(os.Stderr, "usage: interop NAMESRV SCENARIO [SUFFIX]")
		for s := range scenarios {
			fmt.Fprintln(os.Stderr, " ", s)
		}
		os.Exit(2)
	}
	suffix := strconv.FormatInt(time.Now().UnixMilli(), 36)
	if len(os.Args) > 3 {
		suffix = os.Args[3]
	}
	k := &kit{ns: os.Args[1], suffix: suffix, facts: map[string]any{}}
	begin := time.Now()
	var failure error
	func() {
		defer func() {
			if r := recover(); r != nil {
				var ok bool
				if failure, ok = r.(error); !ok {
					failure = errors.New(fmt.Sprint(r))
				}
			}
		}()
		scenarios[os.Args[2]](k)
	}()
	k.close()
	out := map[string]any{"client": "go", "scenario": os.Args[2], "suffix": suffix, "ok": failure == nil,
		"ms": time.Since(begin).Milliseconds(), "facts": k.facts}
	if failure != nil {
		out["error"] = failure.Error()
	}
	emit(out)
	if failure != nil {
		os.Exit(1)
	}
}
