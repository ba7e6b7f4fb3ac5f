package check

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// config is what the rest of the check needs of the configuration files.
type config struct {
	topics     map[string]topicConfig
	haveTopics bool // topics.json could be read
	// removed are topics whose queues Gantry removed: records before the
	// position are in none.
	removed map[string]int64
}

// topicConfig is what is needed of one topic.
type topicConfig struct {
	read, write int32
	batch       bool
}

// removedTopics is Gantry's own file.
const removedTopics = "config/removedTopics.json"

// maxTopics bounds the memory for topics.json.
const maxTopics = 1_000_000

// loadJSON reads config file rel, or its .bak: rule 41. start makes a visitor
// for one attempt, so that half of a damaged file leaves no trace; done takes
// over what the last visitor saw. It reports whether there was something.
func (c *checker) loadJSON(s *sink, rel string, start func() (visit func([]string, jsonValue), done func())) bool {
	type attempt struct {
		exists bool
		err    error
	}
	try := func(rel string) attempt {
		data, ok := c.slurp(s, c.path(rel), maxJSONSize, ruleConfigJSON)
		if !ok {
			return attempt{}
		}
		if len(bytes.TrimSpace(data)) == 0 {
			return attempt{true, errors.New("empty")}
		}
		visit, done := start()
		if err := parseJSON(data, visit); err != nil {
			return attempt{true, err}
		}
		done()
		return attempt{exists: true}
	}
	main := try(rel)
	if main.exists && main.err == nil {
		return true
	}
	bak := try(rel + ".bak")
	off := int64(0)
	var je *jsonError
	if errors.As(main.err, &je) {
		off = je.offset
	}
	why := "missing"
	if main.err != nil {
		why = main.err.Error()
	}
	switch {
	case !main.exists && !bak.exists:
		return false
	case bak.exists && bak.err == nil:
		s.addAs(ruleConfigJSON, Warning, rel, off, "%s; its .bak can be read and is used", why)
		return true
	case !bak.exists:
		s.add(ruleConfigJSON, rel, off, "%s, and there is no .bak", why)
	default:
		s.add(ruleConfigJSON, rel, off, "%s, and the .bak is no better: %v", why, bak.err)
	}
	return false
}

// ignore is a visitor for files that only have to be readable.
func ignore() (visit func([]string, jsonValue), done func()) {
	return func([]string, jsonValue) {}, func() {}
}

// readConfig reads the topics, which decide about the kinds of queues.
func (c *checker) readConfig() error {
	s := c.movingSink()
	defer s.flush()
	const table = "topicConfigTable"
	c.config.haveTopics = c.loadJSON(s, "config/topics.json", func() (func([]string, jsonValue), func()) {
		topics := map[string]topicConfig{}
		visit := func(path []string, v jsonValue) {
			if len(path) < 2 || path[0] != table {
				return
			}
			t, known := topics[path[1]]
			if !known && len(topics) >= maxTopics {
				return
			}
			switch {
			case len(path) == 3 && path[2] == "readQueueNums":
				n, _ := v.integer()
				t.read = int32(n)
			case len(path) == 3 && path[2] == "writeQueueNums":
				n, _ := v.integer()
				t.write = int32(n)
			case len(path) == 4 && path[2] == "attributes" && path[3] == "queue.type":
				t.batch = v.text == "BatchCQ"
			}
			topics[path[1]] = t
		}
		return visit, func() { c.config.topics = topics }
	})
	c.loadJSON(s, removedTopics, func() (func([]string, jsonValue), func()) {
		removed := map[string]int64{}
		visit := func(path []string, v jsonValue) {
			if len(path) == 2 && path[0] == "removedTopics" && len(removed) < maxTopics {
				removed[path[1]], _ = v.integer()
			}
		}
		return visit, func() { c.config.removed = removed }
	})
	return nil
}

// isSystemTopic reports whether brokers know a topic without configuration.
func isSystemTopic(name string) bool {
	switch name {
	case message.ScheduleTopic, message.HalfTopic, message.OpHalfTopic, "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC",
		"TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC":
		return true
	}
	return strings.HasPrefix(name, message.SystemPrefix)
}

// checkConfig is rules 41 to 44: the files can be read, and topics, offsets
// and queues fit each other.
func (c *checker) checkConfig() error {
	s := c.movingSink()
	defer s.flush()
	dir := filepath.Join(c.dir, "config")
	done := map[string]bool{"topics.json": true, filepath.Base(removedTopics): true}
	for _, e := range c.list(s, dir) {
		if e.IsDir() {
			s.add(ruleForeign, "config/"+e.Name, 0, "a folder in config: settings in RocksDB")
			continue
		}
		name := strings.TrimSuffix(e.Name, ".bak")
		switch {
		case done[name]:
		case strings.HasSuffix(name, ".json") || name == "timermetrics" || name == "transactionMetrics":
			done[name] = true
			c.configFile(s, name)
		case name == "timercheck" || name == "broker.properties" || name == "plain_acl.yml":
		default:
			s.add(ruleLeftover, "config/"+e.Name, 0, "no release makes this")
		}
		if c.ctx.Err() != nil {
			return c.ctx.Err()
		}
	}
	c.checkTopicFolders(s)
	return nil
}

func (c *checker) configFile(s *sink, name string) {
	rel := "config/" + name
	switch name {
	case "consumerOffset.json", "lmqConsumerOffset.json":
		// The findings of an attempt that fails halfway are dropped.
		c.loadJSON(s, rel, func() (func([]string, jsonValue), func()) {
			found := c.movingSink()
			return func(path []string, v jsonValue) { c.consumerOffset(found, rel, path, v) }, func() { found.flush() }
		})
	case "delayOffset.json":
		c.loadJSON(s, rel, func() (func([]string, jsonValue), func()) {
			found := c.movingSink()
			return func(path []string, v jsonValue) { c.delayOffset(found, rel, path, v) }, func() { found.flush() }
		})
	default:
		c.loadJSON(s, rel, ignore)
	}
}

// checkTopicFolders is the first part of rule 42.
func (c *checker) checkTopicFolders(s *sink) {
	if !c.config.haveTopics {
		return
	}
	names := make([]string, 0, len(c.queues.topics))
	for name := range c.queues.topics {
		if _, ok := c.config.topics[name]; !ok && !message.IsLight(name) && !isSystemTopic(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		s.add(ruleConfigTopics, dirQueue+"/"+name, 0, "the topic has queues but is not in topics.json")
	}
}

// consumerOffset looks at one value of the consumer offsets: rules 42 and 43.
func (c *checker) consumerOffset(s *sink, rel string, path []string, v jsonValue) {
	if len(path) < 2 || v.kind == jsonNull {
		return
	}
	var topicName string
	id := int32(0)
	switch {
	case path[0] == "offsetTable":
		name, group, ok := strings.Cut(path[1], "@")
		if len(path) == 2 {
			if !ok || name == "" || group == "" || strings.Contains(group, "@") {
				s.add(ruleConfigTopics, rel, v.offset, "key %s is not topic@group", quoteShort(path[1]))
			} else if !c.topicExists(name) {
				s.add(ruleConfigTopics, rel, v.offset, "topic %s of key %s does not exist", quoteShort(name), quoteShort(path[1]))
			}
			return
		}
		n, err := strconv.ParseInt(path[2], 10, 32)
		if len(path) != 3 || !ok {
			return
		}
		if err != nil || n < 0 {
			s.add(ruleConfigOffsets, rel, v.offset, "%s: %s is no queue id", quoteShort(path[1]), quoteShort(path[2]))
			return
		}
		topicName, id = name, int32(n)
	case path[0] == "lmqOffsetTable" && len(path) == 2:
		name, _, ok := strings.Cut(path[1], "@")
		if !ok {
			s.add(ruleConfigTopics, rel, v.offset, "key %s is not topic@group", quoteShort(path[1]))
			return
		}
		topicName = name
	default:
		return
	}
	off, ok := v.integer()
	if !ok {
		s.add(ruleConfigOffsets, rel, v.offset, "%s queue %d: %s is no offset", quoteShort(path[1]), id, quoteShort(v.text))
		return
	}
	end := c.queueEnd(topicName, id)
	if t, known := c.config.topics[topicName]; known && off > 0 && id >= max(t.read, t.write) && c.queues.topics[topicName] == nil {
		s.add(ruleConfigOffsets, rel, v.offset, "%s: the topic has no queue %d", quoteShort(path[1]), id)
		return
	}
	if off < 0 || off > end && !c.rocksQueues && !c.live && !c.abort {
		s.add(ruleConfigOffsets, rel, v.offset, "%s queue %d: offset %d, but the queue ends at %d", quoteShort(path[1]), id, off, end)
	} else if off > end && c.abort && !c.live {
		s.addAs(ruleConfigOffsets, Info, rel, v.offset, "%s queue %d: offset %d, but the queue ends at %d before recovery", quoteShort(path[1]), id, off, end)
	}
}

// queueEnd is the offset behind a queue's last unit, 0 without such a queue.
func (c *checker) queueEnd(name string, id int32) int64 {
	t := c.queues.topics[name]
	if t == nil {
		return 0
	}
	q := c.queueFor(t, id)
	if q == nil {
		return 0
	}
	return q.max
}

// topicExists reports whether offsets of a topic belong to something.
func (c *checker) topicExists(name string) bool {
	if !c.config.haveTopics || c.queues.topics[name] != nil || isSystemTopic(name) {
		return true
	}
	if _, ok := c.config.topics[name]; ok {
		return true
	}
	return strings.HasPrefix(name, message.RetryPrefix) || strings.HasPrefix(name, message.LightPrefix)
}

// delayOffset looks at one value of delayOffset.json: rule 44.
func (c *checker) delayOffset(s *sink, rel string, path []string, v jsonValue) {
	if len(path) != 2 || path[0] != "offsetTable" {
		return
	}
	level, err := strconv.ParseInt(path[1], 10, 32)
	if err != nil || level < 1 || c.o.DelayLevels != "" && int(level) > c.delays.Max() {
		s.add(ruleConfigDelay, rel, v.offset, "%s is no delay level", quoteShort(path[1]))
		return
	}
	off, ok := v.integer()
	if !ok || off < 0 {
		s.add(ruleConfigDelay, rel, v.offset, "level %d: %s is no offset", level, quoteShort(v.text))
		return
	}
	t := c.queues.topics[message.ScheduleTopic]
	end := int64(0)
	if t != nil {
		if q := t.find(int32(level-1), consumequeue.Simple); q != nil {
			end = q.max
		}
	}
	if off > end && !c.rocksQueues && !c.live {
		sev := Warning
		if c.abort {
			sev = Info
		}
		s.addAs(ruleConfigDelay, sev, rel, v.offset, "level %d: offset %d, but queue %d of %s ends at %d", level, off, level-1, message.ScheduleTopic, end)
	}
}

func itoa(n int64) string { return fmt.Sprint(n) }
