package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/client"
)

const (
	// namesrvEnv is the environment variable that upstream's clients look at.
	namesrvEnv = "NAMESRV_ADDR"
	// namesrvSetting is the property that says the same.
	namesrvSetting = "namesrvAddr"
)

// clientFlags are the flags of the commands that ask servers.
type clientFlags struct {
	namesrv    string
	tls        bool
	ca         string
	skipVerify bool
}

func (f *clientFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.namesrv, "namesrv", "", "name servers, `ADDR[;ADDR]` (default: "+namesrvEnv+" in the environment, else "+defaultNamesrvListen+")")
	f.addTLS(cmd, "use TLS")
}

// addTLS adds the flags of tlsConfig; use says what for.
func (f *clientFlags) addTLS(cmd *cobra.Command, use string) {
	fl := cmd.Flags()
	fl.BoolVar(&f.tls, "tls", false, use)
	fl.StringVar(&f.ca, "tls-ca", "", use+", and trust the certificates in this PEM `file` instead of the system's")
	fl.BoolVar(&f.skipVerify, "tls-skip-verify", false, use+", and trust anybody")
}

// connect returns a client of the cluster. Close it.
func (a *app) connect(f *clientFlags) (*client.Client, error) {
	settings, given, err := a.settings()
	if err != nil {
		return nil, err
	}
	if err := a.unusedSettings(settings, given, map[string]bool{namesrvSetting: true}); err != nil {
		return nil, err
	}
	o := client.Options{Logger: a.logger(slog.LevelWarn)}
	if o.TLS, err = f.tlsConfig(); err != nil {
		return nil, err
	}
	addr, from := defaultNamesrvListen, ""
	for _, source := range []struct{ name, addr string }{
		{"--namesrv", f.namesrv}, {namesrvSetting, settings[namesrvSetting]}, {namesrvEnv, os.Getenv(namesrvEnv)},
	} {
		if source.addr != "" {
			addr, from = source.addr, source.name
			break
		}
	}
	o.NameServers = []string{addr}
	c, err := client.New(o)
	if err != nil {
		return nil, usagef("%s: %v", from, err)
	}
	return c, nil
}

// unanswered is failed for an error of a client.
func unanswered(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("%w: no server listens there; \"gantry serve\" starts one, --namesrv names another", err)
	}
	return failed(err)
}

func (f *clientFlags) tlsConfig() (*tls.Config, error) {
	if !f.tls && f.ca == "" && !f.skipVerify {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.skipVerify}
	if f.ca == "" {
		return c, nil
	}
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, failed(fmt.Errorf("--tls-ca: %w", err))
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, failed(fmt.Errorf("--tls-ca %s: no certificate in it", f.ca))
	}
	return c, nil
}
