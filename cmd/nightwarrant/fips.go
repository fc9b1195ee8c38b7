package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	tlspair "github.com/nightwarrant/nightwarrant/internal/certificate"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// inModule refuses to run a process whose file requires FIPS and that does not
// compute in a validated module.
func inModule(document any) error {
	if f, is := document.(interface{ FIPSRequired() bool }); !is || !f.FIPSRequired() {
		return nil
	}
	m, err := fips.Running()
	if err != nil {
		return err
	}
	switch code := m.Refusal(); code {
	case "":
		return nil
	case fips.ModuleDisabled:
		return refusedInFIPS(code, "fips is required, and the Go module of this process is not in FIPS mode: it was built without one, or GODEBUG switches it off")
	default:
		return refusedInFIPS(code, "fips is required, and this program was not built with a validated snapshot of the Go module (GOFIPS140=v1.0.0)")
	}
}

// refusedInFIPS is a misconfiguration: only a person can mend it.
func refusedInFIPS(code, sentence string) error {
	return &config.Error{Sentence: code + ": " + sentence}
}

// listenTLS is listen for a public listener that may end TLS itself.
func listenTLS(ctx context.Context, address, admin string, t config.TLS, log *slog.Logger) (public, operators net.Listener, err error) {
	if !t.Is() {
		return listen(ctx, address, admin)
	}
	pair, err := tlspair.Open(t.CertificateFile, t.KeyFile, log)
	if err != nil {
		return nil, nil, config.Wrong("tls", "cannot be used: %s", err)
	}
	if public, operators, err = listen(ctx, address, admin); err != nil {
		return nil, nil, err
	}
	return tls.NewListener(public, pair.TLS()), operators, nil
}

// clientWith trusts the certificates of a file alone; nil for the defaults of
// whoever uses it, where there is none.
func clientWith(key, rootsFile string) (*http.Client, error) {
	if rootsFile == "" {
		return nil, nil
	}
	roots, err := rootsOf(rootsFile)
	if err != nil {
		return nil, config.Wrong(key, "cannot be used: %s", err)
	}
	t := withoutProxy()
	t.TLSClientConfig = onlyRoots(roots)
	t.ResponseHeaderTimeout = 5 * time.Second
	return &http.Client{Transport: t}, nil
}

func onlyRoots(roots *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
}

// queueOptions are what a connection to the queue has beyond a user: roots of
// its own and, where fips is required, a look at each server first.
func queueOptions(urls, key, rootsFile string, required bool) (options []nats.Option, err error) {
	if rootsFile != "" {
		roots, err := rootsOf(rootsFile)
		if err != nil {
			return nil, config.Wrong(key, "cannot be used: %s", err)
		}
		options = append(options, nats.Secure(onlyRoots(roots)))
	}
	if !required {
		return options, nil
	}
	return append(options, nats.SetCustomDialer(fips.QueueDialer{})), approvedQueues(urls)
}

// approvedQueues asks each server that is there: the connection itself would say
// only that there was none.
func approvedQueues(urls string) error {
	for one := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(one)
		if err != nil {
			continue
		}
		port := u.Port()
		if port == "" {
			port = "4222"
		}
		conn, err := fips.QueueDialer{}.Dial("tcp", net.JoinHostPort(u.Hostname(), port))
		if refused, is := errors.AsType[*fips.Refused](err); is {
			return refusedInFIPS(refused.Code, refused.Sentence)
		}
		if err == nil {
			_ = conn.Close() // it was only looked at
		}
	}
	return nil
}
