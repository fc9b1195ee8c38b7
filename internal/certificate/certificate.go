// Package certificate ends TLS at a listener of ours, with a certificate that is
// read anew when its files change.
package certificate

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	maxFile = 256 << 10
	every   = time.Second // between two looks at the files
	minRSA  = 2048        // SP 800-131A §3
)

// suites of TLS 1.2 (SP 800-52 §3.3.1); those of TLS 1.3 are not chosen.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
}

// Pair is a certificate with its key. It is safe for concurrent use.
type Pair struct {
	certificate, key string
	log              *slog.Logger
	now              func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	seen    [2]version
	looked  time.Time
}

// version tells a file's contents from others that it had.
type version struct {
	size     int64
	modified time.Time
	inode    uint64
}

// Open reads both files, PEM: the chain from the leaf up, and its key, which
// only its owner may read (mode 0600 or 0400).
func Open(certificateFile, keyFile string, log *slog.Logger) (*Pair, error) {
	p := &Pair{certificate: certificateFile, key: keyFile, log: log, now: time.Now}
	p.looked = p.now()
	return p, p.read()
}

// TLS is what a listener needs: TLS 1.2 with approved suites, or newer.
func (p *Pair) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: suites, NextProtos: []string{"h2", "http/1.1"},
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.CurveP256, tls.CurveP384, tls.CurveP521},
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.latest(), nil },
	}
}

// latest looks at the files from time to time. A certificate that cannot be read
// is not used, and the one before goes on.
func (p *Pair) latest() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); now.Sub(p.looked) >= every {
		p.looked = now
		if err := p.read(); err != nil {
			p.log.Error("the certificate cannot be read anew; the one before is used", "error", err)
		}
	}
	return p.current
}

// read loads the pair unless both files are as they were.
func (p *Pair) read() error {
	chain, first, err := file(p.certificate, 0o022)
	if err != nil {
		return err
	}
	key, second, err := file(p.key, 0o177)
	if err != nil {
		return err
	}
	defer clear(key)
	seen := [2]version{first, second}
	if p.current != nil && seen == p.seen {
		return nil
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return fmt.Errorf("%.100q and %.100q are no certificate and its key", p.certificate, p.key) // the cause may quote them
	}
	if err := approved(&pair); err != nil {
		return err
	}
	p.current, p.seen = &pair, seen
	return nil
}

// approved refuses keys that a FIPS deployment may not have (FIPS 186-5).
func approved(pair *tls.Certificate) error {
	switch public := pair.Leaf.PublicKey.(type) {
	case *rsa.PublicKey:
		if public.N.BitLen() >= minRSA {
			return nil
		}
	case *ecdsa.PublicKey:
		if public.Curve.Params().BitSize >= 256 {
			return nil
		}
	}
	return errors.New("the certificate's key must be of P-256, P-384 or P-521, or RSA of at least 2048 bits")
}

// file reads a small regular file whose mode has none of the forbidden bits. The
// mode is read from the open file, so that it is this file's.
func file(path string, forbidden fs.FileMode) ([]byte, version, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, version{}, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, version{}, err
	case !info.Mode().IsRegular():
		return nil, version{}, fmt.Errorf("%.100q is not a regular file", path)
	case info.Mode().Perm()&forbidden != 0:
		return nil, version{}, fmt.Errorf("%.100q is open to others (mode %04o)", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%.100q is larger than %d bytes", path, maxFile)
	}
	v := version{size: info.Size(), modified: info.ModTime()}
	if s, is := info.Sys().(*syscall.Stat_t); is {
		v.inode = s.Ino
	}
	return text, v, err
}
