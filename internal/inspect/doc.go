// Package inspect reads store directories as they lie on the disk, of Java and
// of Gantry: it finds messages, compares stores, and shows files byte by byte.
// It opens what gantry.Open refuses. Files are opened for reading only and read
// with ReadAt, without mapping, lock or recovery, so that it can also run
// beside a broker.
//
// Nothing that is read is believed: lengths are held against the file before
// anything is allocated by them, and work is bounded by the sizes of the files.
//
// Scan finds messages. Mostly it reads the log from start to end, past damage:
// where no record begins it searches for the next valid one, and reports the
// range between. A range behind which only older records follow is no damage
// but the end of the log; what was there before it was cut. Where a topic's
// consume queues or the key index lead to few enough messages, these are read
// one by one instead, and the log only where queues and index do not reach. As
// soon as an entry of them turns out not to fit its record they are no longer
// believed, and the rest of the log is read.
//
// All functions may be called concurrently; what they call back is called from
// one goroutine at a time.
package inspect
