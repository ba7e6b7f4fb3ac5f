package message

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

// Sizes of an offset message id before it becomes hex, by kind of address.
const (
	idSizeV4 = hostV4 + 8
	idSizeV6 = hostV6 + 8
)

// OffsetID returns the id that says where a message is: the broker's address as
// in the record, then the physical offset, in upper-case hex; 32 characters for
// IPv4, 56 for IPv6 (RocketMQ: offsetMsgId, MessageDecoder.createMessageId).
func OffsetID(storeHost netip.AddrPort, phy PhysicalOffset) string {
	var raw [idSizeV6]byte
	host, _, _ := planHost(storeHost, 0, StoreHostV6)
	n := putHost(raw[:], host)
	binary.BigEndian.PutUint64(raw[n:], uint64(phy))
	return upperHex(raw[:n+8])
}

func upperHex(raw []byte) string {
	const digits = "0123456789ABCDEF"
	var buf [2 * idSizeV6]byte
	out := buf[:0]
	for _, b := range raw {
		out = append(out, digits[b>>4], digits[b&0xF])
	}
	return string(out)
}

// ParseOffsetID is the reverse of OffsetID. It takes lower-case digits too.
// Errors are *FormatError.
func ParseOffsetID(id string) (netip.AddrPort, PhysicalOffset, error) {
	if len(id) != 2*idSizeV4 && len(id) != 2*idSizeV6 {
		return netip.AddrPort{}, 0, badFormat(fieldID, int64(len(id)), "characters, neither 32 nor", 2*idSizeV6)
	}
	var buf [idSizeV6]byte
	n, err := hex.Decode(buf[:], []byte(id))
	if err != nil {
		return netip.AddrPort{}, 0, &FormatError{Field: fieldID, Reason: "is not hexadecimal"}
	}
	raw := buf[:n]
	if port := int32(binary.BigEndian.Uint32(raw[n-12:])); port < 0 || port > math.MaxUint16 {
		return netip.AddrPort{}, 0, badFormat(fieldID+" port", int64(port), "is not within 0 and", math.MaxUint16)
	}
	phy := int64(binary.BigEndian.Uint64(raw[n-8:]))
	if phy < 0 {
		return netip.AddrPort{}, 0, badFormat(fieldID+" offset", phy, "is below", 0)
	}
	return hostAt(raw, n == idSizeV6), PhysicalOffset(phy), nil
}

// MsgID returns the message's offset id.
func (e *Ext) MsgID() string { return OffsetID(e.StoreHost, e.PhysicalOffset) }

// UniqKeys makes the ids that senders, and brokers for senders that do not, put
// into UNIQ_KEY (RocketMQ: MessageClientIDSetter). It may be used concurrently.
type UniqKeys struct {
	fixed string // address, pid and instance in hex
	loc   *time.Location
	seq   atomic.Uint32
}

// NewUniqKeys returns a generator. Ids of two generators in one process differ
// if their instance does. Months begin by loc, nil meaning time.Local.
func NewUniqKeys(ip netip.Addr, pid int, instance uint32, loc *time.Location) *UniqKeys {
	if loc == nil {
		loc = time.Local
	}
	var raw []byte
	if ip = ip.Unmap(); ip.Is6() {
		a := ip.As16()
		raw = append(raw, a[:]...)
	} else {
		if !ip.IsValid() {
			ip = netip.IPv4Unspecified()
		}
		a := ip.As4()
		raw = append(raw, a[:]...)
	}
	raw = binary.BigEndian.AppendUint16(raw, uint16(pid))
	raw = binary.BigEndian.AppendUint32(raw, instance)
	return &UniqKeys{fixed: upperHex(raw), loc: loc}
}

// Next returns a new id for the time now, ms since 1970. Up to 65536 ids within
// one ms differ.
func (u *UniqKeys) Next(now int64) string {
	t := time.UnixMilli(now).In(u.loc)
	month := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, u.loc)
	var raw [6]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now-month.UnixMilli()))
	binary.BigEndian.PutUint16(raw[4:], uint16(u.seq.Add(1)))
	var b strings.Builder
	b.Grow(len(u.fixed) + 2*len(raw))
	b.WriteString(u.fixed)
	b.WriteString(upperHex(raw[:]))
	return b.String()
}
