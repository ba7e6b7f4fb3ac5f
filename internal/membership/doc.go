// Package membership knows who is connected to a broker: producer groups and
// consumer groups with their connections, what the consumer groups subscribe
// to, and which client holds the lock of which queue (upstream:
// ProducerManager, ConsumerManager, ConsumerGroupInfo,
// ClientHousekeepingService, RebalanceLockManager). All of it is in memory and
// made of what clients say; nothing is stored.
//
// A Registry takes the heartbeats (34), the farewells (35) and the closing of
// connections, forgets who is silent, and has NOTIFY_CONSUMER_IDS_CHANGED (40)
// sent. Its Members, Producers and Locks answer questions.
//
// # Rules
//
// A member of a group is a client id on a connection; a client id occurs once
// in a group. When the same id speaks on another connection, that connection
// takes its place, and the closing of the earlier one no longer matters. A
// group exists as long as it has members. Its subscriptions belong to the group
// and not to the member that sent them: they stay when that one leaves, and go
// with the last member, so that a lone consumer whose connection breaks is
// unknown until its next heartbeat.
//
// A heartbeat replaces the topics of its group: new ones are added, known ones
// replaced when their subVersion is larger, others dropped. Members of one group
// that disagree therefore take turns, as upstream.
//
// # Heartbeats without subscriptions
//
// With heartbeat V2 a client sends its subscriptions only when their
// fingerprint has changed, or when the broker asks for them by IS_SUB_CHANGE.
// A group remembers the fingerprint of the heartbeat that its subscriptions
// are those of. A heartbeat with another one is answered IS_SUB_CHANGE=true.
// So is a heartbeat without subscriptions for a group that has none from it,
// as after a restart of the broker or when the last connection broke; upstream
// says false there, and the group stays without subscriptions.
//
// # Bounds
//
// Clients may be hostile. The length of names and lists is bounded by
// constants, what one connection and what all of them may keep in memory by
// Options. A heartbeat beyond a bound changes nothing and gets an error that
// names the field. A heartbeat that adds nothing is never refused, so that one
// client at a bound does not expire others.
//
// All types may be used concurrently. Callbacks are called without locks held.
package membership
