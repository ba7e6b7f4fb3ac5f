package sqlfilter

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
)

// Bloom is the Bloom filter in which a record of the consume queue extension
// notes the consumer groups whose expression matched it when it was
// dispatched (RocketMQ: BloomFilter; store-format.md section 14.5). The zero
// Bloom is not usable.
type Bloom struct {
	size   int // bits, a multiple of 8
	hashes int // bits set for a group
}

// The defaults of upstream's maxErrorRateOfBloomFilter and
// expectConsumerNumUseFilter: 112 bits, 3 of them for each group.
const (
	DefaultErrorRate      = 20 // per cent
	DefaultExpectedGroups = 32
)

// maxBloomBits is how many bits fit into a unit of the consume queue
// extension: its size is a positive int16 and 20 bytes are taken.
const maxBloomBits = (math.MaxInt16 - 20) * 8

// NewBloom returns the filter that has errorRate per cent of false hits when
// it holds expectedGroups groups. Other values give other positions: a store
// must go on with the values it was written with.
func NewBloom(errorRate, expectedGroups int) (Bloom, error) {
	if errorRate < 1 || errorRate > 99 {
		return Bloom{}, errors.New("error rate of the Bloom filter must be between 1 and 99 per cent")
	}
	if expectedGroups < 1 || expectedGroups > maxBloomBits {
		return Bloom{}, errors.New("expected groups of the Bloom filter out of range")
	}
	// Half of the bits are to be set in the end. Operands and their order are
	// upstream's, as are the roundings that follow from them.
	rate := float64(errorRate) / 100
	hashes := int(math.Ceil(math.Log(rate) / math.Log(0.5)))
	perGroup := math.Log(1/rate) / math.Log(2)
	size := int(math.Ceil(float64(expectedGroups) * perGroup * (math.Log(math.E) / math.Log(2))))
	size = (size + 7) / 8 * 8
	if size > maxBloomBits {
		return Bloom{}, errors.New("bit map of the Bloom filter does not fit into a consume queue extension unit")
	}
	return Bloom{size: size, hashes: hashes}, nil
}

// Bits returns the length of a bit map in bits (bitNum in consumerFilter.json,
// bitMapLengthConsumeQueueExt in the store's configuration).
func (b Bloom) Bits() int { return b.size }

// Hashes returns how many positions a group has.
func (b Bloom) Hashes() int { return b.hashes }

// Positions returns the bits of a consumer group on a topic (bitPos in
// consumerFilter.json), in order of computation; some may be equal.
func (b Bloom) Positions(group, topic string) []int {
	h := murmur3([]byte(group + "#" + topic))
	first, step := int32(h), int32(h>>32)
	positions := make([]int, b.hashes)
	for i := range positions {
		c := first + int32(i+1)*step
		if c < 0 {
			c = ^c
		}
		positions[i] = int(c) % b.size
	}
	return positions
}

// Valid reports whether the numbers from a consumerFilter.json belong to this
// filter. Upstream discards the whole file if those of one group do not.
func (b Bloom) Valid(bitNum int, positions []int) bool {
	if bitNum != b.size || len(positions) != b.hashes {
		return false
	}
	for _, pos := range positions {
		if pos < 0 || pos >= b.size {
			return false
		}
	}
	return true
}

// NewBitMap returns an empty bit map.
func (b Bloom) NewBitMap() []byte { return make([]byte, b.size/8) }

// Set notes in a bit map from NewBitMap that the expression of the group with
// these valid positions matches.
func (b Bloom) Set(bitMap []byte, positions []int) {
	for _, pos := range positions {
		bitMap[pos/8] |= 1 << (pos % 8)
	}
}

// MayMatch reports whether the expression of the group with these positions
// may match the record with this bit map; false means that it did not match
// when the record was dispatched. It is true for a bit map of another length,
// and so for none.
//
// A bit map knows the expressions that the groups had at dispatch: the caller
// must not ask for records stored before the group's filter was born.
func (b Bloom) MayMatch(bitMap []byte, positions []int) bool {
	if len(bitMap)*8 != b.size || !b.Valid(b.size, positions) {
		return true
	}
	for _, pos := range positions {
		if bitMap[pos/8]&(1<<(pos%8)) == 0 {
			return false
		}
	}
	return true
}

// The constants of MurmurHash3 x64 128.
const (
	murmurC1 = 0x87c37b91114253d5
	murmurC2 = 0x4cf5ad432745937f
	murmurN1 = 0x52dce729
	murmurN2 = 0x38495ab5
	murmurF1 = 0xff51afd7ed558ccd
	murmurF2 = 0xc4ceb9fe1a85ec53
)

// murmur3 returns the first 64 bits of MurmurHash3 x64 128 with seed 0.
func murmur3(data []byte) uint64 {
	var h1, h2 uint64
	n := uint64(len(data))
	for ; len(data) >= 16; data = data[16:] {
		h1 ^= murmurLow(binary.LittleEndian.Uint64(data))
		h1 = (bits.RotateLeft64(h1, 27)+h2)*5 + murmurN1
		h2 ^= murmurHigh(binary.LittleEndian.Uint64(data[8:]))
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + murmurN2
	}
	if len(data) > 0 { // the rest, filled up with zeros
		var tail [16]byte
		copy(tail[:], data)
		h1 ^= murmurLow(binary.LittleEndian.Uint64(tail[:]))
		h2 ^= murmurHigh(binary.LittleEndian.Uint64(tail[8:]))
	}
	h1 ^= n
	h2 ^= n
	h1 += h2
	h2 += h1
	return murmurFinal(h1) + murmurFinal(h2)
}

func murmurLow(k uint64) uint64  { return bits.RotateLeft64(k*murmurC1, 31) * murmurC2 }
func murmurHigh(k uint64) uint64 { return bits.RotateLeft64(k*murmurC2, 33) * murmurC1 }

func murmurFinal(h uint64) uint64 {
	h = (h ^ h>>33) * murmurF1
	h = (h ^ h>>33) * murmurF2
	return h ^ h>>33
}
