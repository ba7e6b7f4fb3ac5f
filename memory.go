package gantry

// assumedMemory is taken where the system does not tell how much there is. It
// only steers how many messages a wire client gets at once.
const assumedMemory = 8 << 30
