// Package sqlfilter compares internal/sqlfilter with RocketMQ's filter module:
// random expressions are compiled and evaluated by both. See package interop
// for what is needed to run it.
package sqlfilter
