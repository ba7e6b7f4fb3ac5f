// Package tool holds what the commands do, as functions: messages as text and
// as JSON and back, RocketMQ's properties files, times and sizes as people
// write them, long input line by line.
package tool
