// Package javastore lets the genuine message store of Apache RocketMQ open,
// read and write store directories for the interop tests. Everything but this
// comment is behind the build tag interop.
package javastore
