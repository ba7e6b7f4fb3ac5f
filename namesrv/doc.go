// Package namesrv is RocketMQ's name server: brokers register their topics
// with it, and clients ask it where a topic lies.
//
//	broker ── 103 every 30 s, 904 or 322 in between ──►┌───────────┐
//	                                                   │ routes    │◄── 105 ── client
//	admin ─── 205 216 217 327 ────────────────────────►│           │◄── 106 206 224 304 ── admin
//	                                                   ├───────────┤
//	admin ─── 100 101 102 219 ────────────────────────►│ KV config │──► kvConfig.json
//	                                                   └───────────┘
//
// Routes live in memory only: a broker that is silent for its time-out, or whose
// connection closes, disappears with its topics, and comes back with its next
// registration. KV config is saved before a change is answered.
//
// A broker is a name in a cluster with members, one for each id; id 0 is the
// master. The topics are those of the broker, not of a member: the master
// registers them, and without a master the member with the smallest id does.
// Members registered by brokers of 4.x never do.
//
// Everything that is registered is bounded in number and length; see bounds and
// names.go.
//
// All methods may be called by any number of goroutines.
//
// Upstream: the namesrv module, above all RouteInfoManager, KVConfigManager,
// DefaultRequestProcessor and ClientRequestProcessor.
package namesrv
