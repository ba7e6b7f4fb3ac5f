package message

import (
	"fmt"
	"math"
)

// DefaultDelayLevels is RocketMQ's default of messageDelayLevel.
const DefaultDelayLevels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

// unknownDelay is the delay of a level that the table does not have, in ms.
const unknownDelay = 1000

// DelayLevels is a table of delays; level n is its n-th item, from 1. The zero
// value has no levels. It is not stored anywhere: the store must be opened with
// the table it was written with. Values do not change after parsing.
type DelayLevels struct {
	ms []int64
}

// ParseDelayLevels reads a messageDelayLevel: numbers with a unit s, m, h or d,
// one blank between them. Anything else is an error.
func ParseDelayLevels(s string) (DelayLevels, error) {
	var d DelayLevels
	for item := range Split(s, ' ') {
		unit := int64(0)
		if item != "" {
			switch item[len(item)-1] {
			case 's':
				unit = 1000
			case 'm':
				unit = 60 * 1000
			case 'h':
				unit = 60 * 60 * 1000
			case 'd':
				unit = 24 * 60 * 60 * 1000
			}
		}
		if unit == 0 {
			return DelayLevels{}, fmt.Errorf("message delay levels: item %d, %q, of %q is no number with a unit s, m, h or d", len(d.ms)+1, item, s)
		}
		n, ok := parseInt(item[:len(item)-1], 64)
		if !ok || n < 0 || n > math.MaxInt64/unit {
			return DelayLevels{}, fmt.Errorf("message delay levels: item %d, %q, of %q is no number of a usable size", len(d.ms)+1, item, s)
		}
		d.ms = append(d.ms, n*unit)
	}
	if len(d.ms) == 0 { // only blanks
		return DelayLevels{}, fmt.Errorf("message delay levels: none in %q", s)
	}
	return d, nil
}

// Max returns the highest level.
func (d DelayLevels) Max() int { return len(d.ms) }

// Delay returns the delay of a level in ms: that of the highest level for all
// above it, 1000 for a level that there is not.
func (d DelayLevels) Delay(level int) int64 {
	level = min(level, len(d.ms))
	if level < 1 {
		return unknownDelay
	}
	return d.ms[level-1]
}
