// Package check judges a store directory: whether every byte is what the format
// says, whether log, queues, index and the small files agree, and what it means
// for messages where they do not. It is what gantry store verify runs, and what
// every store test ends in (package checktest).
//
// It works on any directory, of Java or of Gantry, also on one that
// gantry.Open refuses. It only opens files for reading and reads with ReadAt:
// no mapping, no lock, nothing created. Nothing in the directory is believed
// before it was checked: no allocation is made by a length that a file states,
// and all work is bounded by the size of the files.
//
// # How it goes
//
// First the names: which files there are and how long. Then the index files,
// each for itself. Then the log, files in parallel, each record once: is it
// valid, does its queue have its unit, does the index have its keys. Entries
// of the index are in the order of the log, so comparing them is a merge. Units
// are looked up in batches, queue by queue, so that a queue is opened once for
// many records. Then the queues, again in parallel: is their order right, and
// does every unit belong to a record. The log counted, for each queue file,
// the units that a record owns; where the count equals the number of units
// nothing more needs to be looked at, elsewhere each unit's record is read.
// Memory does not depend on the number of messages: some 16 MiB for each
// worker, and some 200 bytes for each queue.
//
// Damage and a torn end are told apart: a range without valid records is damage
// when valid records follow that are no older than those before it, and the end
// of the log otherwise. Records behind damage are live; they are compared with
// queues and index like all others.
//
// Unflushed data may be missing after a crash. Where the file abort exists,
// rules 13, 22a and 23 are therefore milder. Where somebody holds the lock the
// store changes while it is read: what belongs to that is only information.
//
// # Rules
//
// The number is that of section 20 of the format; a letter tells parts of a
// number apart. The severity is the rule's own; a finding may be milder, and
// says so itself.
//
//	1    log.name            error    commit log file names are 20 ASCII digits and multiples of the file size
//	1a   log.length          error    all commit log files have the configured length
//	2    log.gap             warning  commit log files follow each other without a gap
//	3    log.record          error    records follow each other, and each complete file ends with a blank record
//	3a   log.torn            error    the last record is complete
//	4    log.size            error    a record's total size equals the size that its fields add up to
//	5    log.position        error    a record's physical offset is its position
//	6    log.bodycrc         error    a record's body has the CRC that the record states
//	7    log.propcrc         error    a property CRC is the record's last property and matches
//	8    log.time            warning  store times are positive and do not decrease; birth is not far behind them
//	9    log.topic           error    a record's topic is valid text, of at most 127 bytes in version 1
//	10   log.properties      error    a record's properties can be parsed
//	11   log.sysflag         error    ports are in range and the system flag has known bits only
//	12   log.prepared        error    a commit record points at its half message
//	13   log.tail            warning  behind the end of the log there are only zeros
//	13a  log.stale           info     no old records stand behind the end of the log
//	14   queue.files         error    queue files have proper names, the configured length and no gaps
//	15   queue.end           error    a queue's units end at one point
//	16   queue.fill          error    fill units stand only before a queue's first unit
//	17   queue.pointer       error    each unit points at the start of a record
//	18   queue.size          error    a unit has the size of its record
//	19   queue.owner         error    a unit's record belongs to this topic, queue and offset
//	20   queue.transaction   error    no unit points at a prepared or rolled back message
//	21   queue.tags          error    a unit has the tags code of its record
//	22   queue.order         error    positions in a queue increase
//	22a  queue.ahead         error    no unit lies behind the end of the log
//	23   queue.missing       error    every message in the log has its unit
//	24   queue.expired       warning  units of deleted messages stand only at the front of a queue
//	25   queue.shared        error    no two queues contain the same record
//	26   queue.ext           error    extension addresses lead to the unit of the same message
//	27   queue.batch         error    units of a batch queue match their records and follow each other
//	28   queue.type          warning  a queue's folder fits the topic's configuration
//	29   index.file          error    an index file's name is a date, its length that of slots and entries
//	30   index.count         error    an index file's header counts fit its content
//	31   index.slot          error    each slot holds the newest entry of its chain
//	32   index.chain         error    the chains lead through every entry once, downwards
//	33   index.order         error    positions in an index file do not decrease and fit its header
//	34   index.key           error    each index entry belongs to a key of its record
//	34a  index.ahead         warning  no index entry lies behind the end of the log
//	35   index.seconds       warning  an index entry has the time of its record
//	36   index.times         warning  an index file's header has the times of its first and last entry
//	37   index.missing       info     every message between an index file's first and last is in it by each of its keys
//	38   checkpoint.format   error    the checkpoint has 4096 bytes, times that are not negative, and zeros behind its fields
//	39   checkpoint.values   warning  the checkpoint is not ahead of the data
//	40   store.abort         info     the store was closed properly
//	41   config.json         error    each configuration file, or its .bak, can be read
//	42   config.topics       warning  topics with queues are configured, and consumer offsets name topics that exist
//	43   config.offsets      warning  consumer offsets lie within their queues
//	44   config.delay        warning  delivery offsets of the delay levels lie within their queues
//	45   timer.wheel         error    timer wheel and timer log fit each other and the commit log
//	46   timer.check         warning  the timer's progress lies within its files
//	47   transaction.op      warning  each transaction op message names half messages that exist
//	48   compaction.files    error    compaction logs and their queues fit each other
//	49   epoch.file          warning  the epoch file is complete and its entries increase
//	50   store.leftover      info     only known files lie in the store directory
//	-    io.read             error    every byte of the store can be read
//	-    store.empty         error    a store with queues or an index has a commit log
//	-    store.foreign       info     the store keeps its data in files that this program knows
//
// Where this is milder than section 20, undamaged stores of Java are the
// reason: they have unknown system flag bits (11), properties that no reader
// sees (10), retry topics with characters outside the legal set (9), commit
// records that point at a prepared record of an ordinary topic (12), and an
// abort file (40); of a queue with only deleted messages Java 4.9 is told as a
// warning (24), because only 4.9 misreads it. Fill units behind a queue's first
// unit are Gantry's mark for a lost message when their tags code is not zero.
package check
