// Package plugfs is a real file system with a plug to pull, for tests: a store
// runs on it through the operating system, with true mappings, page cache and
// msync, and a power cut takes what the kernel had not handed over, and what it
// had handed over without a sync, away (package memfs decides about that part).
//
// It is a FUSE file system that a process of its own serves: a page fault holds
// up the thread that it happens on, and a Go process that serves its own page
// faults would soon have no thread left to do it with. That process is the test
// binary once more, so whoever uses the package calls Daemon first thing in
// TestMain.
//
// It needs Linux on 64 bits (go-fuse does not compile for others), /dev/fuse and
// the right to mount.
package plugfs
