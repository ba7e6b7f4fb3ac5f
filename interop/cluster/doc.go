// Package cluster holds the tests in which genuine RocketMQ clients work with
// the servers of this module, and genuine Java servers with them in one
// cluster. They are behind the build tag interop and need, besides Go, a JDK
// (11 or later), Maven, Node.js and npm; each fetches what it needs by exact
// version once:
//
//	go test -tags interop -v -parallel 6 ./interop/cluster
//
// GANTRY_INTEROP_SERVER chooses the servers under test: gantry, which is the
// default, java-4.9.4 or java-5.4.0. With Java's the tests check themselves.
// GANTRY_INTEROP_BINARY names a binary of gantry to take instead of building
// one. With -artifacts the logs of servers and clients are kept.
//
// The client programs are in interop/clients. Each runs a scenario by name and
// checks what it got; TestClients prints which client passed which.
package cluster
