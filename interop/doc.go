// Package interop holds the tests in which the genuine Java message store and
// this one work on the same directories. They are behind the build tag interop
// because they need a JDK (11 or later) and Maven, which fetches the RocketMQ
// artifacts by version. Java sleeps most of the time, so more tests than there
// are CPUs should run at once:
//
//	go test -tags interop -parallel 6 ./interop/...
//
// Artifacts and compiled classes are kept outside the repository, in
// $GANTRY_INTEROP_CACHE or, without it, in gantry/interop below the user's
// cache directory (about 150 MB). After the first run no network is needed.
//
// Package javastore drives Java; the Java program is in interop/java.
package interop
