// Package metadata is the state of a broker besides its messages: topics,
// consumer groups, consumer offsets and SQL filters, in memory and in
// upstream's files below ROOT/config (section 14 of the format).
//
//	topics.json             Topics   TopicConfigManager
//	subscriptionGroup.json  Groups   SubscriptionGroupManager
//	consumerOffset.json     Offsets  ConsumerOffsetManager
//	consumerFilter.json     Filters  ConsumerFilterManager
//
// Opening a directory that a Java broker of any version left takes its state
// over. Opening writes nothing. Save writes a file when its content changed
// since it was last read or written, and so that every crash leaves the old or
// the new content. Members that this package does not know are kept in the
// file, entry by entry; so are entries that cannot be served.
//
// A file that is missing, empty or damaged is replaced by its .bak, with an
// error in the log; when the .bak is no better, opening fails and changes
// nothing. The first Save after a fallback moves the damaged file to .damaged.
//
// Integer keys are written bare, {0:12}, as every release of Java writes them,
// members and entries in the order of their names.
//
// All types are safe for concurrent use. What Get and the like return is
// shared: it must not be changed, and does not change. Reads of topics, groups
// and filters take no lock.
package metadata
