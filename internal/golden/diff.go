package golden

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gantrymq/gantry/message"
)

// Diff compares a message that we decoded with what Java says of it and
// returns the differences, one per line; "" means equal. Properties are
// compared as bytes; what a parser makes of them is DiffProperties.
func (m *Message) Diff(got *message.Ext) string {
	var d strings.Builder
	check := func(field string, want, got any) {
		if want != got {
			fmt.Fprintf(&d, "record %d: %s is %v, want %v\n", m.PhysicalOffset, field, got, want)
		}
	}
	check("physical offset", m.PhysicalOffset, got.PhysicalOffset)
	check("size", m.Size, got.StoreSize)
	check("magic", uint32(m.Magic), got.Magic)
	check("topic", m.Topic, got.Topic)
	check("queue id", m.QueueID, got.QueueID)
	check("queue offset", m.QueueOffset, got.QueueOffset)
	check("system flag", m.SysFlag, got.SysFlag)
	check("flag", m.Flag, got.Flag)
	check("born time", m.BornTimestamp, got.BornTimestamp)
	check("born host", unmap(m.BornHost), unmap(got.BornHost))
	check("store time", m.StoreTimestamp, got.StoreTimestamp)
	check("store host", unmap(m.StoreHost), unmap(got.StoreHost))
	check("reconsume times", m.ReconsumeTimes, got.ReconsumeTimes)
	check("prepared transaction offset", m.PreparedTransactionOffset, got.PreparedTransactionOffset)
	check("body length", int(m.BodyLength), len(got.Body))
	check("body CRC", m.BodyCRC, got.BodyCRC)
	check("body SHA-256", m.BodySHA256, Hash(sha256.Sum256(got.Body)))
	check("properties", fmt.Sprintf("%q", m.RawProperties), fmt.Sprintf("%q", string(got.Properties)))
	return d.String()
}

// DiffProperties compares what our parser made of a message's properties with
// what Java's made of them; "" means equal. Java returns null for a record
// without properties, so nil and empty are equal.
func (m *Message) DiffProperties(got map[string]string) string {
	var d strings.Builder
	for k, want := range m.Properties {
		if v, ok := got[k]; !ok {
			fmt.Fprintf(&d, "record %d: property %q is missing\n", m.PhysicalOffset, k)
		} else if v != want {
			fmt.Fprintf(&d, "record %d: property %q is %q, want %q\n", m.PhysicalOffset, k, v, want)
		}
	}
	for k, v := range got {
		if _, ok := m.Properties[k]; !ok {
			fmt.Fprintf(&d, "record %d: property %q (%q) is not known to Java\n", m.PhysicalOffset, k, v)
		}
	}
	return d.String()
}

// unmap makes the two spellings of an IPv4 address, and of no address, equal.
func unmap(a netip.AddrPort) netip.AddrPort {
	if !a.IsValid() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), a.Port())
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
