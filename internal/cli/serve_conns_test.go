package cli

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/remoting"
)

// certificate writes a certificate for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	s := newServerBench(t).serve("--tls-cert", cert, "--tls-key", key, "--tls-required")
	for _, args := range [][]string{{"--tls-ca", cert}, {"--tls-skip-verify"}} {
		s.must(exitOK, append([]string{"send", "Orders", "--body", "x"}, args...)...)
	}
	out := s.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "2", "--json", "--tls-ca", cert)
	if n := len(jsonLines[tool.Message](t, out)); n != 2 {
		t.Errorf("%d messages", n)
	}
	for name, args := range map[string][]string{
		"plain": nil, "unknown certificate": {"--tls"}, "no such file": {"--tls-ca", cert + ".none"}, "no certificate": {"--tls-ca", key},
	} {
		if got := s.ask(append([]string{"send", "Orders", "--body", "x"}, args...)...); got.code != exitFailed || got.stdout != "" {
			t.Errorf("%s: exit code %d, %q", name, got.code, got.stdout)
		}
	}
}

// TestBrokerTLS: a broker registers with a name server that takes TLS only.
func TestBrokerTLS(t *testing.T) {
	cert, key := certificate(t)
	b := newServerBench(t)
	names := b.server("namesrv", "--data", "/names", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-required")
	s := b.server("broker", "--namesrv", names.at.NameServer, "--data", "/data", "--listen", "127.0.0.1:0",
		"--tls-cert", cert, "--tls-key", key, "--tls-required", "--tls-ca", cert)
	args := []string{"--namesrv", names.at.NameServer, "--tls-ca", cert}
	b.must(exitOK, append([]string{"send", "Orders", "--body", "x"}, args...)...)
	b.must(exitOK, append([]string{"receive", "Orders", "--from-earliest", "-n", "1"}, args...)...)
	if got := s.stop(); got.code != exitOK || strings.Contains(got.stderr, "not registered") {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
	if got := b.run("broker", "--namesrv", names.at.NameServer, "--data", "/data", "--tls-ca", cert+".none"); got.code != exitFailed || !strings.Contains(got.stderr, "--tls-ca") {
		t.Errorf("no such file: exit code %d\n%s", got.code, got.stderr)
	}
}

// TestProxyProtocol: a broker that requires the preamble serves those that send
// it, and believes it.
func TestProxyProtocol(t *testing.T) {
	s := newServerBench(t).serve("--proxy-protocol", "required", "-v")
	for _, tc := range []struct {
		preamble string
		served   bool
	}{
		{"PROXY TCP4 203.0.113.7 127.0.0.1 4711 10911\r\n", true},
		{"", false},
	} {
		nc, err := net.Dial("tcp", s.at.Broker)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		frame, err := remoting.AppendFrame([]byte(tc.preamble), remoting.NewRequest(remoting.ReqGetBrokerConfig, nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write(frame); err != nil {
			t.Fatal(err)
		}
		_, err = bufio.NewReader(nc).ReadByte()
		if served := err == nil; served != tc.served {
			t.Errorf("with %q: served %v, %v", tc.preamble, served, err)
		}
	}
	if got := s.stop(); !strings.Contains(got.stderr, "203.0.113.7:4711") {
		t.Errorf("the address of the preamble is not in the log\n%s", got.stderr)
	}
}

// TestClosedWhileServing: a client that is cut off by the end of the server gets
// an error, and the server ends all the same.
func TestClosedWhileServing(t *testing.T) {
	b := newServerBench(t)
	s := b.serve()
	s.must(exitOK, "send", "Orders", "--body", "x")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := make(chan outcome, 1)
	first := &lockedBuffer{lines: make(chan string, 1)}
	go func() {
		a := &app{console: newConsole(first, new(lockedBuffer)), fs: b.fs, now: time.Now}
		got <- outcome{code: a.main(ctx, []string{"receive", "Orders", "--from-earliest", "--namesrv", s.at.NameServer})}
	}()
	<-first.lines // it holds pulls now, or is about to
	if out := s.stop(); out.code != exitOK {
		t.Errorf("exit code %d\n%s", out.code, out.stderr)
	}
	cancel()
	if out := <-got; out.code != exitOK { // it has printed what there was
		t.Errorf("exit code %d", out.code)
	}
	if out := b.must(exitOK, "store", "info", "/data"); !strings.Contains(out, "stopped cleanly") {
		t.Error(fmt.Sprint(out))
	}
}
