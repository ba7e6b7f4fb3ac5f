package gantry

// assumedMemory is taken where the system does not tell how much there is. It
// only steers how many messages a wire client gets at once.
const assumedMemory = 8 << 30

// Memory returns the machine's memory in bytes, most of which serves as page
// cache: what was written last is read without the disk.
func (s *Store) Memory() int64 { return s.memory }
