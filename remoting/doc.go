// Package remoting speaks RocketMQ's TCP protocol: the frame, the two header
// encodings, the typed fields and bodies of its commands, and connections,
// servers and clients that carry them. It knows nothing of stores.
//
// A frame, integers big-endian:
//
//	0        4        8                 8+h              4+total
//	+--------+--------+-----------------+----------------+
//	| total  | type,h | header, h bytes | body           |
//	+--------+--------+-----------------+----------------+
//
//	total   bytes after this word: 4 + h + length of the body
//	type    8 bits: 0 a JSON header, 1 a binary one ("ROCKETMQ")
//	h       24 bits: length of the header
//
// A JSON header is one object:
//
//	{"code":11,"extFields":{"topic":"T"},"flag":0,"language":"GO",
//	 "opaque":5,"remark":"…","serializeTypeCurrentRPC":"JSON","version":479}
//
// A binary header:
//
//	i16 code | u8 language | i16 version | i32 opaque | i32 flag
//	i32 length, remark | i32 length, entries
//	entry: i16 length, name | i32 length, value
//
// Requests may be pipelined and answered in any order: opaque, chosen by who
// asks, pairs them. Both sides of a connection may ask; bit 0 of flag tells an
// answer from a request, bit 1 marks a request that wants no answer.
//
// Everything that comes from a peer is taken for hostile. What is refused, and
// at which bound, is in limits.go; docs/remoting.md has it on one page.
//
// Commands and typed headers are plain values without locks. Server, Client
// and Conn may be used by any number of goroutines.
//
// Upstream: RemotingCommand, RemotingSerializable, NettyRemotingServer and
// NettyRemotingClient, in its remoting module.
package remoting
