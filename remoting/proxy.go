package remoting

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ProxyMode says whether connections may or must begin with a PROXY preamble,
// by which a load balancer tells the address of the real peer (HAProxy's
// protocol, versions 1 and 2).
type ProxyMode uint8

const (
	ProxyOff      ProxyMode = iota // a preamble is a broken frame
	ProxyOptional                  // with or without
	ProxyRequired                  // connections without one are closed
)

// Version 1 is a line of at most maxProxyLine bytes:
//
//	PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n
//
// Version 2 is binary, integers big-endian:
//
//	12 bytes signature | u8 version<<4, command | u8 family<<4, transport
//	u16 length | length bytes: addresses, ports, further data
const (
	maxProxyLine   = 107
	proxySignature = "\r\n\r\n\x00\r\nQUIT\n"
	proxyHeadLen   = 16
	// maxProxyData bounds what a version 2 preamble carries. Addresses need
	// up to 36 bytes; the rest is data about TLS and the like.
	maxProxyData = 2 << 10
	inet4Data    = 12 // two addresses and two ports
	inet6Data    = 36
)

// mayBeProxy reports whether c can begin a preamble. No frame begins so, since
// its length would be far beyond the limit.
func mayBeProxy(c byte) bool { return c == 'P' || c == proxySignature[0] }

// readProxy reads the preamble at the start of the connection and returns the
// address of the real peer, the zero value if the preamble names none.
func (f *frameReader) readProxy() (peer netip.AddrPort, err error) {
	if err := f.fill(1); err != nil {
		return peer, err
	}
	if f.buffered()[0] == 'P' {
		return f.readProxyLine()
	}
	if err := f.fill(proxyHeadLen); err != nil {
		return peer, err
	}
	head := f.buffered()[:proxyHeadLen]
	if string(head[:len(proxySignature)]) != proxySignature {
		return peer, frameErrorf("not a PROXY preamble")
	}
	n := int(binary.BigEndian.Uint16(head[14:]))
	command, family := head[12], head[13]
	if n > maxProxyData {
		return peer, frameErrorf("PROXY preamble with %d bytes of data exceeds %d", n, maxProxyData)
	}
	if err := f.fill(proxyHeadLen + n); err != nil {
		return peer, err
	}
	data := f.buffered()[proxyHeadLen : proxyHeadLen+n]
	f.r += proxyHeadLen + n
	return parseProxy2(command, family, data)
}

func parseProxy2(command, family byte, data []byte) (peer netip.AddrPort, err error) {
	switch command {
	case 0x20: // LOCAL: the balancer itself, for instance a health check
		return peer, nil
	case 0x21: // PROXY
	default:
		return peer, frameErrorf("PROXY preamble of version and command %#x", command)
	}
	switch family {
	case 0x11: // TCP over IPv4
		if len(data) < inet4Data {
			return peer, frameErrorf("PROXY preamble with %d bytes of addresses", len(data))
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(data)), binary.BigEndian.Uint16(data[8:])), nil
	case 0x21: // TCP over IPv6
		if len(data) < inet6Data {
			return peer, frameErrorf("PROXY preamble with %d bytes of addresses", len(data))
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(data)).Unmap(), binary.BigEndian.Uint16(data[32:])), nil
	}
	return peer, nil // UNIX sockets, UDP, unspecified: nothing we could use
}

// readProxyLine reads a version 1 preamble. A line that does not end within
// maxProxyLine bytes is refused.
func (f *frameReader) readProxyLine() (peer netip.AddrPort, err error) {
	for n := 1; ; n++ {
		if n > maxProxyLine {
			return peer, frameErrorf("PROXY line exceeds %d bytes", maxProxyLine)
		}
		if err := f.fill(n); err != nil {
			return peer, err
		}
		if b := f.buffered()[:n]; bytes.HasSuffix(b, []byte("\r\n")) {
			f.r += n
			peer, err = parseProxyLine(string(b[:n-2]))
			if err != nil {
				return peer, &FrameError{Reason: "PROXY line", Err: err}
			}
			return peer, nil
		}
	}
}

func parseProxyLine(line string) (peer netip.AddrPort, err error) {
	p := strings.Split(line, " ")
	if p[0] != "PROXY" || len(p) < 2 {
		return peer, fmt.Errorf("%q", line)
	}
	switch p[1] {
	case "UNKNOWN":
		return peer, nil
	case "TCP4", "TCP6":
	default:
		return peer, fmt.Errorf("protocol %q", p[1])
	}
	if len(p) != 6 {
		return peer, fmt.Errorf("%d parts", len(p))
	}
	addr, err := netip.ParseAddr(p[2])
	if err != nil {
		return peer, err
	}
	if addr.Is4() != (p[1] == "TCP4") || addr.Zone() != "" {
		return peer, fmt.Errorf("address %q for %s", p[2], p[1])
	}
	port, err := strconv.ParseUint(p[4], 10, 16)
	if err != nil {
		return peer, err
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}
