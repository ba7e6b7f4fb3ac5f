//go:build race

package consumequeue

const raceEnabled = true
