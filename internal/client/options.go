package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// Times that upstream's clients use (section 9).
const (
	defaultTimeout    = 3 * time.Second
	routeInterval     = 30 * time.Second
	heartbeatInterval = 30 * time.Second
)

// Options are the options of a Client. Zero fields have the defaults.
type Options struct {
	// NameServers are the addresses host:port of the name servers. An element
	// may hold several, separated by semicolons. There must be one at least.
	NameServers []string
	// ClientID is what brokers know this client by. "" makes one of the
	// address, the process id and a random number. Two clients of a group
	// must not have the same.
	ClientID string
	// Timeout bounds one request to one server unless its ctx ends sooner.
	// 0 means 3 s.
	Timeout time.Duration
	// DialTimeout bounds connecting. 0 means 3 s.
	DialTimeout time.Duration
	// Dial connects. nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is the configuration of TLS; nil does without.
	TLS *tls.Config
	// Header is the encoding of our requests' headers.
	Header remoting.HeaderType
	// Credentials sign the requests, unless they are empty.
	Credentials Credentials
	// MaxInFlight and MaxInFlightBytes bound what all producers of the client
	// have sent and not yet got an answer for: messages or batches, and
	// their bytes. Who would send more waits. 0 means 4096 and 32 MiB.
	MaxInFlight      int
	MaxInFlightBytes int64
	// Logger is told what nobody else is told: nil discards it.
	Logger *slog.Logger
}

// Most that a connection of package remoting carries before it refuses or
// closes; what is in flight has to stay below.
const (
	maxInFlight      = 8192
	maxInFlightBytes = 48 << 20
)

// withDefaults returns o completed, or says what contradicts.
func (o Options) withDefaults() (Options, error) {
	var servers []string
	for _, text := range o.NameServers {
		for addr := range strings.SplitSeq(text, ";") {
			if addr = strings.TrimSpace(addr); addr == "" {
				continue
			}
			if _, _, err := net.SplitHostPort(addr); err != nil {
				return o, fmt.Errorf("name server %q: %w", addr, err)
			}
			servers = append(servers, addr)
		}
	}
	if len(servers) == 0 {
		return o, errors.New("no name server")
	}
	o.NameServers = servers
	if o.ClientID == "" {
		o.ClientID = fmt.Sprintf("%s@%d#%08x", localIP(), os.Getpid(), randomUint32())
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 4096
	}
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = 32 << 20
	}
	switch {
	case o.Timeout < 0 || o.DialTimeout < 0:
		return o, errors.New("a timeout is negative")
	case o.MaxInFlight < 0 || o.MaxInFlight > maxInFlight:
		return o, fmt.Errorf("MaxInFlight %d is not within 1 and %d", o.MaxInFlight, maxInFlight)
	case o.MaxInFlightBytes < 0 || o.MaxInFlightBytes > maxInFlightBytes:
		return o, fmt.Errorf("MaxInFlightBytes %d is not within 1 and %d", o.MaxInFlightBytes, maxInFlightBytes)
	case (o.Credentials.AccessKey == "") != (o.Credentials.SecretKey == ""):
		return o, errors.New("an access key needs a secret key, and the reverse")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// localIP is the first address of this machine that is not a loopback one,
// IPv4 before IPv6. It is part of ids only, nobody dials it.
func localIP() netip.Addr {
	found := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return found
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if ip := p.Addr().Unmap(); ip.Is4() {
			return ip
		} else if found.IsLoopback() {
			found = ip
		}
	}
	return found
}

func randomUint32() uint32 {
	var b [4]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	return binary.BigEndian.Uint32(b[:])
}
