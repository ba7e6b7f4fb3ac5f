package remoting

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

var makeTLS = sync.OnceValues(func() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(100 * 365 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}}}, nil
})

// testTLS is a configuration with a certificate for 127.0.0.1.
func testTLS(t *testing.T) *tls.Config {
	t.Helper()
	c, err := makeTLS()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func clientTLS(t *testing.T) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(testTLS(t).Certificates[0].Leaf)
	return &tls.Config{RootCAs: pool}
}

func TestTLS(t *testing.T) {
	s := startServer(t, ServerOptions{Options: Options{TLS: testTLS(t)}})
	t.Run("both on one port", func(t *testing.T) {
		for _, config := range []*tls.Config{nil, clientTLS(t)} {
			cl := NewClient(ClientOptions{Options: Options{TLS: config}, Timeout: patience})
			defer cl.Close() //nolint:errcheck // never fails
			for _, size := range []int{0, 100, 3 << 20} {
				resp, err := cl.Invoke(context.Background(), s.addr, &Command{Code: codeEcho, Body: make([]byte, size)})
				if err != nil || len(resp.Body) != size {
					t.Errorf("TLS %v: %v", config != nil, err)
				}
			}
			c := receive(t, s.conns, "connection")
			if (c.TLS() != nil) != (config != nil) {
				t.Errorf("TLS state %v", c.TLS())
			}
		}
	})
	t.Run("shutdown says goodbye", func(t *testing.T) {
		s := startServer(t, ServerOptions{Options: Options{TLS: testTLS(t)}})
		nc, err := tls.Dial("tcp", s.addr, clientTLS(t))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close() //nolint:errcheck // the end
		p := &rawPeer{t: t, nc: nc}
		p.send(request(codeEcho, 1, ""))
		p.read()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		p.closed()
	})
	t.Run("unknown authority", func(t *testing.T) {
		cl := NewClient(ClientOptions{Options: Options{TLS: &tls.Config{}}})
		defer cl.Close() //nolint:errcheck // never fails
		if _, err := cl.Invoke(context.Background(), s.addr, &Command{Code: codeEcho}); err == nil || !strings.Contains(err.Error(), "TLS handshake") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("garbage behind the first byte", func(t *testing.T) {
		p := dialRaw(t, s.addr)
		p.send([]byte("\x16 this is no handshake, however long it may be"))
		p.closed()
	})
	t.Run("required", func(t *testing.T) {
		s := startServer(t, ServerOptions{Options: Options{TLS: testTLS(t)}, TLSRequired: true})
		p := dialRaw(t, s.addr)
		p.send(request(codeEcho, 1, ""))
		p.closed()
	})
	t.Run("not configured", func(t *testing.T) {
		s := startServer(t, ServerOptions{})
		if _, err := tls.Dial("tcp", s.addr, clientTLS(t)); err == nil {
			t.Error("connected")
		}
	})
	if _, err := NewServer(ServerOptions{TLSRequired: true}); err == nil {
		t.Error("TLS required without a configuration")
	}
}

func proxy2(command, family byte, data string) string {
	return proxySignature + string([]byte{command, family, byte(len(data) >> 8), byte(len(data))}) + data
}

func TestProxy(t *testing.T) {
	v6 := string(netip.MustParseAddr("2001:db8::1").AsSlice()) + strings.Repeat("\x00", 16) + "\x12\x34\x00\x50"
	const v4 = "\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb"
	for _, tt := range []struct {
		name     string
		preamble string
		want     string // remote address; "" our own, "close" a closed connection
	}{
		{"none", "", ""},
		{"line, IPv4", "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", "192.0.2.1:56324"},
		{"line, IPv6", "PROXY TCP6 2001:db8::1 2001:db8::2 4660 443\r\n", "[2001:db8::1]:4660"},
		{"line, unknown", "PROXY UNKNOWN ffff:f...f:ffff 65535\r\n", ""},
		{"line, wrong family", "PROXY TCP4 2001:db8::1 2001:db8::2 4660 443\r\n", "close"},
		{"line, no port", "PROXY TCP4 192.0.2.1 198.51.100.2\r\n", "close"},
		{"line, port out of range", "PROXY TCP4 192.0.2.1 198.51.100.2 65536 443\r\n", "close"},
		{"line, no address", "PROXY TCP4 localhost 198.51.100.2 1 443\r\n", "close"},
		{"line, UDP", "PROXY UDP4 192.0.2.1 198.51.100.2 56324 443\r\n", "close"},
		{"line, other word", "PROXX TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", "close"},
		{"line without end", "PROXY TCP4 " + strings.Repeat("1", maxProxyLine), "close"},
		{"POST", "POST / HTTP/1.1\r\n", "close"},
		{"binary, IPv4", proxy2(0x21, 0x11, v4), "192.0.2.1:56324"},
		{"binary, IPv4 and more", proxy2(0x21, 0x11, v4+strings.Repeat("\x04", maxProxyData-len(v4))), "192.0.2.1:56324"},
		{"binary, IPv6", proxy2(0x21, 0x21, v6), "[2001:db8::1]:4660"},
		{"binary, local", proxy2(0x20, 0x00, "whatever"), ""},
		{"binary, UNIX socket", proxy2(0x21, 0x31, strings.Repeat("x", 216)), ""},
		{"binary, short IPv4", proxy2(0x21, 0x11, v4[:11]), "close"},
		{"binary, short IPv6", proxy2(0x21, 0x21, v6[:35]), "close"},
		{"binary, version 1", proxy2(0x11, 0x11, v4), "close"},
		{"binary, other command", proxy2(0x22, 0x11, v4), "close"},
		{"binary, too long", proxySignature + "\x21\x11\xff\xff", "close"},
		{"binary, other signature", "\r\n\r\n\x00\r\nQUIX\n\x21\x11\x00\x0c" + v4, "close"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startServer(t, ServerOptions{Proxy: ProxyOptional, Options: Options{TLS: testTLS(t)}})
			p := dialRaw(t, s.addr)
			p.send([]byte(tt.preamble), request(codeEcho, 1, ""))
			if tt.want == "close" {
				p.closed()
				return
			}
			p.read()
			want := tt.want
			if want == "" {
				want = p.nc.LocalAddr().String()
			}
			if got := *s.last.Load(); got != want {
				t.Errorf("remote address %s, want %s", got, want)
			}
		})
	}
	t.Run("before TLS", func(t *testing.T) {
		s := startServer(t, ServerOptions{Proxy: ProxyRequired, Options: Options{TLS: testTLS(t)}, TLSRequired: true})
		p := dialRaw(t, s.addr)
		p.send([]byte("PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n"))
		config := clientTLS(t)
		config.ServerName = "127.0.0.1"
		secure := &rawPeer{t: t, nc: tls.Client(p.nc, config)}
		secure.send(request(codeEcho, 1, ""))
		secure.read()
		if got := *s.last.Load(); got != "192.0.2.1:56324" {
			t.Errorf("remote address %s", got)
		}
	})
	t.Run("required", func(t *testing.T) {
		s := startServer(t, ServerOptions{Proxy: ProxyRequired})
		p := dialRaw(t, s.addr)
		p.send(request(codeEcho, 1, ""))
		p.closed()
	})
	t.Run("off", func(t *testing.T) {
		s := startServer(t, ServerOptions{})
		p := dialRaw(t, s.addr)
		p.send([]byte("PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n"))
		p.closed()
	})
	t.Run("trust", func(t *testing.T) {
		for prefix, trusted := range map[string]bool{"127.0.0.0/8": true, "10.0.0.0/8": false} {
			s := startServer(t, ServerOptions{Proxy: ProxyOptional, TrustedProxies: []netip.Prefix{netip.MustParsePrefix(prefix)}})
			p := dialRaw(t, s.addr)
			p.send([]byte("PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n"), request(codeEcho, 1, ""))
			if trusted {
				p.read()
			} else {
				p.closed()
			}
		}
	})
}
