package broker

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// versionDesc is what tools show as the broker's version: that of the protocol,
// as they know no other.
const versionDesc = "V5_3_3"

// statsData answers 315 VIEW_BROKER_STATS_DATA.
func (b *Broker) statsData(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.StatsDataRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	c := b.stats.find(h.StatsName, h.StatsKey)
	if c == nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "The stats <%s> <%s> not exist", h.StatsName, h.StatsKey)
	}
	return bodyResponse(c.data()), nil
}

// find returns the counter that upstream knows by a name and a key: a topic, or
// topic@group.
func (s *stats) find(name, key string) *counter {
	switch name {
	case "BROKER_PUT_NUMS":
		return &s.puts
	case "BROKER_GET_NUMS":
		return &s.gets
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t := s.topics[key]; t != nil {
		switch name {
		case "TOPIC_PUT_NUMS":
			return &t.puts
		case "TOPIC_PUT_SIZE":
			return &t.bytes
		}
	}
	topic, group, _ := strings.Cut(key, "@")
	if g := s.groups[groupTopic{group, topic}]; g != nil {
		switch name {
		case "GROUP_GET_NUMS":
			return &g.gets
		case "GROUP_GET_SIZE":
			return &g.bytes
		case "SNDBCK_PUT_NUMS":
			return &g.sentBack
		}
	}
	return nil
}

// runtimeInfo answers 28 GET_BROKER_RUNTIME_INFO. Tools read the names; there
// are no thread pools here, so their queues are empty.
func (b *Broker) runtimeInfo(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	st := b.store.Stats()
	_, ratio, capacity := b.diskUse()
	active := strconv.FormatBool(b.config().BrokerPermission&remoting.PermWrite != 0 && st.Failure == nil && !st.DiskFull)
	earliest, err := b.store.EarliestTime()
	if err != nil {
		earliest = 0
	}
	puts, gets := b.stats.puts.sum.Load(), b.stats.gets.sum.Load()
	average := 0.0
	if st.Puts > 0 {
		average = float64(st.PutBytes) / float64(st.Puts)
	}
	found, missed := b.stats.gets.rates(), b.stats.missed.rates()
	total := found
	for i := range total {
		total[i] += missed[i]
	}
	up := time.Since(b.start)
	table := map[string]string{
		"bootTimestamp":                   decimal(b.start.UnixMilli()),
		"brokerActive":                    active,
		"brokerVersion":                   decimal(int64(remoting.CurrentVersion)),
		"brokerVersionDesc":               versionDesc,
		"commitLogDirCapacity":            capacity,
		"commitLogDiskRatio":              ratio,
		"consumeQueueDiskRatio":           ratio,
		"commitLogMaxOffset":              decimal(int64(st.EndOffset)),
		"commitLogMinOffset":              decimal(int64(st.MinOffset)),
		"dispatchBehindBytes":             decimal(int64(st.EndOffset - st.DispatchedTo)),
		"dispatchMaxBuffer":               "0",
		"earliestMessageTimeStamp":        decimal(earliest),
		"getFoundTps":                     threeRates(found),
		"getMessageEntireTimeMax":         "0",
		"getMissTps":                      threeRates(missed),
		"getTotalTps":                     threeRates(total),
		"getTransferedTps":                threeRates(found), // 4.x
		"getTransferredTps":               threeRates(found),
		"msgGetTotalTodayNow":             decimal(gets),
		"msgPutTotalTodayNow":             decimal(puts),
		"pageCacheLockTimeMills":          "0",
		"putLatency99":                    "0",
		"putLatency999":                   "0",
		"putMessageAverageSize":           strconv.FormatFloat(average, 'f', -1, 64),
		"putMessageDistributeTime":        "",
		"putMessageEntireTimeMax":         "0",
		"putMessageFailedTimes":           decimal(b.stats.failedPuts.Load()),
		"putMessageSizeTotal":             decimal(st.PutBytes),
		"putMessageTimesTotal":            decimal(max(st.Puts, 1)),
		"putTps":                          threeRates(b.stats.puts.rates()),
		"remainHowManyDataToFlush":        fmt.Sprintf("%d B", st.EndOffset-st.FlushedOffset),
		"remainTransientStoreBufferNumbs": "2147483647",
		"runtime": fmt.Sprintf("[ %d days, %d hours, %d minutes, %d seconds ]",
			int(up.Hours())/24, int(up.Hours())%24, int(up.Minutes())%60, int(up.Seconds())%60),
		"startAcceptSendRequestTimeStamp": "0",
		"timerCongestNum":                 "0",
		"timerDequeueTps":                 "0.0",
		"timerEnqueueTps":                 "0.0",
		"timerOffsetBehind":               "0",
		"timerReadBehind":                 "0",
	}
	table["commitLogDiskRatio_"+filepath.Join(b.opts.Dir, "commitlog")] = ratio
	levels, _ := b.store.Delays()
	for _, l := range levels {
		table["scheduleMessageOffset_"+strconv.Itoa(l.Level)] = fmt.Sprintf("%d,%d", l.Next, l.End)
	}
	m := &b.stats.mornings
	m.mu.Lock()
	table["msgPutTotalTodayMorning"], table["msgPutTotalYesterdayMorning"] = decimal(m.today.puts), decimal(m.yesterday.puts)
	table["msgGetTotalTodayMorning"], table["msgGetTotalYesterdayMorning"] = decimal(m.today.gets), decimal(m.yesterday.gets)
	m.mu.Unlock()
	for _, pool := range []string{"send", "pull", "query", "litePull", "ack"} {
		table[pool+"ThreadPoolQueueSize"] = "0"
		table[pool+"ThreadPoolQueueCapacity"] = "10000"
		table[pool+"ThreadPoolQueueHeadWaitTimeMills"] = "0"
	}
	table["EndTransactionQueueSize"], table["EndTransactionThreadPoolQueueCapacity"] = "0", "10000"
	return bodyResponse(&remoting.KVTable{Table: table}), nil
}

func threeRates(r [3]float64) string {
	return fmt.Sprintf("%s %s %s", rate(r[0]), rate(r[1]), rate(r[2]))
}

// rate prints as Java does: with a point.
func rate(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// diskUse returns what the file system of the store has in use: in bytes, as a
// ratio and in words.
func (b *Broker) diskUse() (used int64, ratio, capacity string) {
	u, err := b.opts.FS.DiskUsage(b.opts.Dir)
	if err != nil {
		return 0, "-1.0", "unknown"
	}
	const gib = 1 << 30
	return u.Used, strconv.FormatFloat(u.Ratio(), 'f', 4, 64),
		fmt.Sprintf("Total : %.1f GiB, Free : %.1f GiB.", float64(u.Total)/gib, float64(u.Free)/gib)
}
