package gantry

import "golang.org/x/sys/unix"

// physicalMemory returns the machine's memory in bytes.
func physicalMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return assumedMemory
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit))
}
