package check

// rule is one invariant of section 20 of the format, or one of the few that
// section 20 takes for granted (io.read, store.empty, store.foreign).
type rule struct {
	number   string   // of section 20; a letter tells parts of one number apart
	name     string   // Finding.Rule
	severity Severity // as section 20 has it; a finding may be milder
	what     string   // the invariant
	meaning  string   // what a violation means for messages
	repair   string   // what mends it
}

// What mends things. The commands are those of the command line contract.
const (
	repairLog    = "gantry store repair --out NEW keeps every intact record at its place"
	repairQueues = "gantry store rebuild --queues --out NEW derives the queues from the log"
	repairIndex  = "gantry store rebuild --index --out NEW derives the index from the log"
	repairOpen   = "opening the store mends it; gantry store recover --dry-run shows how"
	repairFile   = "bring the file back from a copy, or gantry store repair --out NEW"
	repairNone   = "nothing to do"
	repairHand   = "move the file away by hand"
	repairConfig = "put a good copy in place of the file while the broker is stopped"
	repairBroker = "the broker corrects it when it runs"
)

// The rules in the order of section 20.
var (
	ruleLogName = &rule{"1", "log.name", Error,
		"commit log file names are 20 ASCII digits and multiples of the file size",
		"the file is not part of the log, so the messages in it cannot be found", repairFile}
	ruleLogLength = &rule{"1a", "log.length", Error,
		"all commit log files have the configured length",
		"a Java broker does not start; what was cut off is lost", repairFile}
	ruleLogGap = &rule{"2", "log.gap", Warning,
		"commit log files follow each other without a gap",
		"the messages of the missing files are lost", repairFile}
	ruleLogRecord = &rule{"3", "log.record", Error,
		"records follow each other, and each complete file ends with a blank record",
		"the messages in the damaged range are lost, and a Java broker cuts the log there, with everything behind it", repairLog}
	ruleLogTorn = &rule{"3a", "log.torn", Error,
		"the last record is complete",
		"the message was being written when the store stopped; it is cut off at the next start", repairOpen}
	ruleLogSize = &rule{"4", "log.size", Error,
		"a record's total size equals the size that its fields add up to",
		"the message cannot be read, and a Java broker cuts the log there", repairLog}
	ruleLogPosition = &rule{"5", "log.position", Error,
		"a record's physical offset is its position",
		"the record stands where it was not written to: a file was moved, swapped or restored to the wrong name", repairLog}
	ruleLogBodyCRC = &rule{"6", "log.bodycrc", Error,
		"a record's body has the CRC that the record states",
		"the message's body is damaged, and a Java broker cuts the log there when it recovers", repairLog}
	ruleLogPropCRC = &rule{"7", "log.propcrc", Error,
		"a property CRC is the record's last property and matches",
		"some field of the message is damaged", repairLog}
	ruleLogTime = &rule{"8", "log.time", Warning,
		"store times are positive and do not decrease; birth is not far behind them",
		"the broker's clock was set back: queries by time may miss messages", repairNone}
	ruleLogTopic = &rule{"9", "log.topic", Error,
		"a record's topic is valid text, of at most 127 bytes in version 1",
		"the message was acknowledged but cannot be read; a Java broker dispatches nothing behind it and cuts the log there", repairLog}
	ruleLogProperties = &rule{"10", "log.properties", Error,
		"a record's properties can be parsed",
		"readers do not see these properties", repairNone}
	ruleLogSysFlag = &rule{"11", "log.sysflag", Error,
		"ports are in range and the system flag has known bits only",
		"some field of the record's head is damaged", repairLog}
	ruleLogPrepared = &rule{"12", "log.prepared", Error,
		"a commit record points at its half message",
		"the transaction's two records do not belong together", repairNone}
	ruleLogTail = &rule{"13", "log.tail", Warning,
		"behind the end of the log there are only zeros",
		"bytes of unknown origin: no message, but not what a store leaves there either", repairOpen}
	ruleLogStale = &rule{"13a", "log.stale", Info,
		"no old records stand behind the end of the log",
		"leftovers of a log that was cut here; they are overwritten, or would come back after a crash of a Java broker", repairOpen}

	ruleQueueFiles = &rule{"14", "queue.files", Error,
		"queue files have proper names, the configured length and no gaps",
		"a Java broker does not start, or the messages of the missing part cannot be consumed", repairQueues}
	ruleQueueEnd = &rule{"15", "queue.end", Error,
		"a queue's units end at one point",
		"units behind a hole are not seen: the queue ends at the hole", repairQueues}
	ruleQueueFill = &rule{"16", "queue.fill", Error,
		"fill units stand only before a queue's first unit",
		"the slot leads to no message; a Java consumer skips the rest of the log file there", repairQueues}
	ruleQueuePointer = &rule{"17", "queue.pointer", Error,
		"each unit points at the start of a record",
		"consumers get nothing, or wrong bytes, for this queue offset", repairQueues}
	ruleQueueSize = &rule{"18", "queue.size", Error,
		"a unit has the size of its record",
		"consumers get the message cut or with foreign bytes", repairQueues}
	ruleQueueOwner = &rule{"19", "queue.owner", Error,
		"a unit's record belongs to this topic, queue and offset",
		"consumers get a message of another queue or offset", repairQueues}
	ruleQueueTransaction = &rule{"20", "queue.transaction", Error,
		"no unit points at a prepared or rolled back message",
		"consumers get a message that was never committed", repairQueues}
	ruleQueueTags = &rule{"21", "queue.tags", Error,
		"a unit has the tags code of its record",
		"consumers that filter by tag miss the message; a delayed message comes at the wrong time", repairQueues}
	ruleQueueOrder = &rule{"22", "queue.order", Error,
		"positions in a queue increase",
		"messages come in the wrong order or twice", repairQueues}
	ruleQueueAhead = &rule{"22a", "queue.ahead", Error,
		"no unit lies behind the end of the log",
		"the queue knows of messages that the log does not have: the log was cut", repairOpen}
	ruleQueueMissing = &rule{"23", "queue.missing", Error,
		"every message in the log has its unit",
		"the message is in the log but no consumer gets it", repairQueues}
	ruleQueueExpired = &rule{"24", "queue.expired", Warning,
		"units of deleted messages stand only at the front of a queue",
		"the queue is kept for its offset only", repairNone}
	ruleQueueShared = &rule{"25", "queue.shared", Error,
		"no two queues contain the same record",
		"two queues deliver the same message", repairQueues}
	ruleQueueExt = &rule{"26", "queue.ext", Error,
		"extension addresses lead to the unit of the same message",
		"consumers with a tag or SQL filter may miss the message", repairQueues}
	ruleQueueBatch = &rule{"27", "queue.batch", Error,
		"units of a batch queue match their records and follow each other",
		"consumers miss messages of the batch or get them twice", repairQueues}
	ruleQueueType = &rule{"28", "queue.type", Warning,
		"a queue's folder fits the topic's configuration",
		"a Java broker refuses to start when the type differs; queue ids outside the topic's range are not consumed", repairConfig}

	ruleIndexFile = &rule{"29", "index.file", Error,
		"an index file's name is a date, its length that of slots and entries",
		"keys in this file are not found", repairIndex}
	ruleIndexCount = &rule{"30", "index.count", Error,
		"an index file's header counts fit its content",
		"keys in this file are not found, or new ones are lost", repairIndex}
	ruleIndexSlot = &rule{"31", "index.slot", Error,
		"each slot holds the newest entry of its chain",
		"keys of this slot are not found", repairIndex}
	ruleIndexChain = &rule{"32", "index.chain", Error,
		"the chains lead through every entry once, downwards",
		"keys further along the chain are not found", repairIndex}
	ruleIndexOrder = &rule{"33", "index.order", Error,
		"positions in an index file do not decrease and fit its header",
		"the entry leads to a wrong message", repairIndex}
	ruleIndexKey = &rule{"34", "index.key", Error,
		"each index entry belongs to a key of its record",
		"the message is not found by its key, or found by a foreign one", repairIndex}
	ruleIndexAhead = &rule{"34a", "index.ahead", Warning,
		"no index entry lies behind the end of the log",
		"the index knows of messages that the log does not have", repairOpen}
	ruleIndexSeconds = &rule{"35", "index.seconds", Warning,
		"an index entry has the time of its record",
		"queries for a time window may miss the message", repairIndex}
	ruleIndexTimes = &rule{"36", "index.times", Warning,
		"an index file's header has the times of its first and last entry",
		"queries for a time window may miss messages of this file", repairIndex}
	ruleIndexMissing = &rule{"37", "index.missing", Info,
		"every message between an index file's first and last is in it by each of its keys",
		"the messages are not found by key; after a crash of a Java broker that is normal", repairIndex}

	ruleCheckpointFormat = &rule{"38", "checkpoint.format", Error,
		"the checkpoint has 4096 bytes, times that are not negative, and zeros behind its fields",
		"the next start after a crash reads the whole log", repairOpen}
	ruleCheckpointValues = &rule{"39", "checkpoint.values", Warning,
		"the checkpoint is not ahead of the data",
		"the next start after a crash may begin too late and leave messages without unit or key", repairOpen}
	ruleAbort = &rule{"40", "store.abort", Info,
		"the store was closed properly",
		"the broker crashed or is running; the next start recovers", repairOpen}

	ruleConfigJSON = &rule{"41", "config.json", Error,
		"each configuration file, or its .bak, can be read",
		"the broker starts without these settings or offsets", repairConfig}
	ruleConfigTopics = &rule{"42", "config.topics", Warning,
		"topics with queues are configured, and consumer offsets name topics that exist",
		"the topic cannot be consumed, or an offset belongs to nothing", repairConfig}
	ruleConfigOffsets = &rule{"43", "config.offsets", Warning,
		"consumer offsets lie within their queues",
		"the group starts at another offset than it had: messages are skipped or repeated", repairBroker}
	ruleConfigDelay = &rule{"44", "config.delay", Warning,
		"delivery offsets of the delay levels lie within their queues",
		"delayed messages are delivered again or not at all", repairBroker}
	ruleTimerWheel = &rule{"45", "timer.wheel", Error,
		"timer wheel and timer log fit each other and the commit log",
		"timed messages are not delivered at their time", "remove timerwheel, timerlog and config/timercheck: a Java broker makes them anew from the timer topic"}
	ruleTimerCheck = &rule{"46", "timer.check", Warning,
		"the timer's progress lies within its files",
		"timed messages are delivered again or not at all", repairBroker}
	ruleTransactionOp = &rule{"47", "transaction.op", Warning,
		"each transaction op message names half messages that exist",
		"the half message is checked with its producer again", repairNone}
	ruleCompaction = &rule{"48", "compaction.files", Error,
		"compaction logs and their queues fit each other",
		"the compacted topic cannot be consumed completely", "remove the folder compaction: a Java broker compacts anew from the commit log as far as it reaches"}
	ruleEpoch = &rule{"49", "epoch.file", Warning,
		"the epoch file is complete and its entries increase",
		"the broker takes the .bak file, or synchronises with its master from the start", repairBroker}
	ruleLeftover = &rule{"50", "store.leftover", Info,
		"only known files lie in the store directory",
		"no message depends on it", repairHand}

	ruleRead = &rule{"-", "io.read", Error,
		"every byte of the store can be read",
		"the disk does not give these bytes; they count as zeros here", "copy the store to a good disk, then gantry store repair --out NEW"}
	ruleEmpty = &rule{"-", "store.empty", Error,
		"a store with queues or an index has a commit log",
		"the log is gone or not mounted; a Java broker would delete all queues at its next start", "mount or restore commitlog before anything else"}
	ruleForeign = &rule{"-", "store.foreign", Info,
		"the store keeps its data in files that this program knows",
		"RocksDB, DLedger and tiered storage are not looked into", repairNone}
)

// rules lists every rule, for the package's tests and Rules.
var rules = []*rule{
	ruleLogName, ruleLogLength, ruleLogGap, ruleLogRecord, ruleLogTorn, ruleLogSize, ruleLogPosition, ruleLogBodyCRC,
	ruleLogPropCRC, ruleLogTime, ruleLogTopic, ruleLogProperties, ruleLogSysFlag, ruleLogPrepared, ruleLogTail, ruleLogStale,
	ruleQueueFiles, ruleQueueEnd, ruleQueueFill, ruleQueuePointer, ruleQueueSize, ruleQueueOwner, ruleQueueTransaction,
	ruleQueueTags, ruleQueueOrder, ruleQueueAhead, ruleQueueMissing, ruleQueueExpired, ruleQueueShared, ruleQueueExt,
	ruleQueueBatch, ruleQueueType,
	ruleIndexFile, ruleIndexCount, ruleIndexSlot, ruleIndexChain, ruleIndexOrder, ruleIndexKey, ruleIndexAhead,
	ruleIndexSeconds, ruleIndexTimes, ruleIndexMissing,
	ruleCheckpointFormat, ruleCheckpointValues, ruleAbort,
	ruleConfigJSON, ruleConfigTopics, ruleConfigOffsets, ruleConfigDelay, ruleTimerWheel, ruleTimerCheck,
	ruleTransactionOp, ruleCompaction, ruleEpoch, ruleLeftover,
	ruleRead, ruleEmpty, ruleForeign,
}

// Rule describes one invariant that Run checks.
type Rule struct {
	Number   string // in section 20 of the format, "-" when it is not there
	Name     string // as in Finding.Rule
	Severity Severity
	What     string // the invariant in one line
	Meaning  string // what a violation means for messages
	Repair   string // what mends it
}

// Rules returns all rules in the order of section 20.
func Rules() []Rule {
	list := make([]Rule, len(rules))
	for i, r := range rules {
		list[i] = Rule{r.number, r.name, r.severity, r.what, r.meaning, r.repair}
	}
	return list
}
