//go:build !linux

package gantry

func physicalMemory() int64 { return assumedMemory }
