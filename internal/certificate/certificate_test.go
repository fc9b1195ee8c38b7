package certificate

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a directory with a certificate and its key.
type site struct{ certificate, key string }

// place writes a certificate of that name for a key.
func (s site) place(t *testing.T, name string, key crypto.Signer) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"night.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	replace(t, s.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	replace(t, s.certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	made, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return made
}

// replace puts a new file in the place of the old, as whoever renews certificates does.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", content, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func newSite(t *testing.T) site {
	t.Helper()
	dir := t.TempDir()
	return site{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
}

func p256(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// handshake shakes hands with a listener and returns what the client saw.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(io.Discard, c) // shakes hands first
	}()
	defer func() { l.Close(); <-done }()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer c.Close()
	return c.ConnectionState(), nil
}

func trusting(root *x509.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(root)
	return &tls.Config{RootCAs: roots, ServerName: "night.example"}
}

func TestWhatAListenerAgreesTo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	root := s.place(t, "one", p256(t))
	p, err := Open(s.certificate, s.key, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	state, err := handshake(t, p.TLS(), trusting(root))
	require.NoError(t, err)
	assert.EqualValues(t, tls.VersionTLS13, state.Version)

	for name, c := range map[string]struct {
		change func(*tls.Config)
		ok     bool
	}{
		"TLS 1.2, AES": {func(c *tls.Config) { c.MaxVersion, c.CipherSuites = tls.VersionTLS12, suites[:1] }, true},
		"P-256":        {func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP256} }, true},
		"TLS 1.1":      {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, false},
		"TLS 1.2, ChaCha": {func(c *tls.Config) {
			c.MaxVersion = tls.VersionTLS12
			c.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}
		}, false},
		"TLS 1.2, CBC": {func(c *tls.Config) {
			c.MaxVersion = tls.VersionTLS12
			c.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
		}, false},
		"X25519 alone":       {func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519} }, false},
		"another's roots":    {func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }, false},
		"for another server": {func(c *tls.Config) { c.ServerName = "day.example" }, false},
	} {
		client := trusting(root)
		c.change(client)
		_, err := handshake(t, p.TLS(), client)
		assert.Equal(t, c.ok, err == nil, "%s: %v", name, err)
	}
}

func TestACertificateIsRenewedWithoutARestart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.place(t, "first", p256(t))
	var said bytes.Buffer
	p, err := Open(s.certificate, s.key, slog.New(slog.NewTextHandler(&said, nil)))
	require.NoError(t, err)
	now := time.Now()
	p.now = func() time.Time { return now }
	config := p.TLS()
	shows := func() *x509.Certificate {
		got, err := config.GetCertificate(nil)
		require.NoError(t, err)
		return got.Leaf
	}
	second := s.place(t, "second", p256(t))
	assert.True(t, first.Equal(shows()), "looked at a moment ago")
	now = now.Add(every)
	assert.True(t, second.Equal(shows()))

	// half of a renewal, and then nothing at all
	key, err := os.ReadFile(s.key)
	require.NoError(t, err)
	s.place(t, "third", p256(t))
	replace(t, s.key, key)
	now = now.Add(every)
	assert.True(t, second.Equal(shows()), "a certificate with another's key is not used")
	require.NoError(t, os.Remove(s.key))
	now = now.Add(every)
	assert.True(t, second.Equal(shows()))
	assert.Contains(t, said.String(), "the one before is used")
	assert.NotContains(t, said.String(), "PRIVATE")
	fourth := s.place(t, "fourth", p256(t))
	now = now.Add(every)
	assert.True(t, fourth.Equal(shows()))
}

func TestCertificatesThatAreRefused(t *testing.T) {
	t.Parallel()
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	require.NoError(t, err)
	good, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	s := newSite(t)
	s.place(t, "good", good)
	_, err = Open(s.certificate, s.key, nil)
	require.NoError(t, err)
	for name, spoil := range map[string]func(s site) error{
		"Ed25519":             func(s site) error { s.place(t, "x", edwards); return nil },
		"P-224":               func(s site) error { s.place(t, "x", p224); return nil },
		"a key for a group":   func(s site) error { return os.Chmod(s.key, 0o640) },
		"a key for all":       func(s site) error { return os.Chmod(s.key, 0o644) },
		"others may write":    func(s site) error { return os.Chmod(s.certificate, 0o666) },
		"no key":              func(s site) error { return os.Remove(s.key) },
		"no certificate":      func(s site) error { return os.Remove(s.certificate) },
		"not a file":          func(s site) error { return os.Rename(s.certificate, filepath.Join(t.TempDir(), "x")) },
		"text":                func(s site) error { return os.WriteFile(s.key, []byte("hush"), 0o600) },
		"too large":           func(s site) error { return os.WriteFile(s.certificate, make([]byte, maxFile+1), 0o600) },
		"the other way round": func(s site) error { s.key, s.certificate = s.certificate, s.key; return os.Remove(s.key) },
	} {
		s := newSite(t)
		s.place(t, "one", p256(t))
		require.NoError(t, spoil(s), name)
		_, err := Open(s.certificate, s.key, nil)
		require.Error(t, err, name)
		assert.NotContains(t, err.Error(), "hush", name)
	}
}
