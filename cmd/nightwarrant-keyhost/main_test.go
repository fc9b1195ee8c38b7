package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// The tests run the key host as what it is, a process: this test binary itself.
const asProcess = "NIGHTWARRANT_TEST_KEYHOST"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const (
	pin    = "123456"
	within = 30 * time.Second
)

// library is SoftHSM's: a software token, for tests.
func library(t testing.TB) string {
	t.Helper()
	for _, file := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so", "/usr/lib/aarch64-linux-gnu/softhsm/libsofthsm2.so"} {
		if _, err := os.Stat(file); err == nil {
			if _, err := exec.LookPath("pkcs11-tool"); err == nil {
				return file
			}
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("SoftHSM2 and opensc are needed: scripts/ensure-softhsm.sh installs them")
	}
	t.Skip("SoftHSM2 and opensc are not installed")
	return ""
}

// shelf is a directory of software tokens.
type shelf struct {
	testing.TB
	dir, library string
}

func newShelf(t testing.TB) *shelf {
	s := &shelf{t, t.TempDir(), library(t)}
	require.NoError(t, os.Mkdir(s.tokens(), 0o700))
	s.write("softhsm2.conf", "directories.tokendir = "+s.tokens()+"\nobjectstore.backend = file\nlog.level = ERROR\n")
	return s
}

func (s *shelf) tokens() string { return filepath.Join(s.dir, "tokens") }

func (s *shelf) write(name, text string) string {
	s.Helper()
	file := filepath.Join(s.dir, name)
	require.NoError(s, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func (s *shelf) env() []string {
	return append(os.Environ(), "SOFTHSM2_CONF="+filepath.Join(s.dir, "softhsm2.conf"), asProcess+"=1")
}

func (s *shelf) run(name string, args ...string) string {
	s.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = s.env()
	out, err := cmd.CombinedOutput()
	require.NoError(s, err, "%s", out)
	return string(out)
}

// token makes one and returns its serial.
func (s *shelf) token(label string) string {
	s.Helper()
	s.run("softhsm2-util", "--init-token", "--free", "--label", label, "--pin", pin, "--so-pin", "654321")
	out := s.run("softhsm2-util", "--show-slots")
	m := regexp.MustCompile(`Serial number:\s+(\S+)\s+Initialized:\s+yes\s+User PIN init\.:\s+yes\s+Label:\s+` + label).FindStringSubmatch(out)
	require.NotNil(s, m, out)
	return m[1]
}

func (s *shelf) tool(label string, args ...string) {
	s.Helper()
	s.run("pkcs11-tool", append([]string{"--module", s.library, "--token-label", label, "--login", "--pin", pin}, args...)...)
}

// keys makes both keys in a token.
func (s *shelf) keys(label string) {
	s.Helper()
	s.tool(label, "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--usage-sign", "--sensitive")
	s.tool(label, "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive")
}

func (s *shelf) socket() string { return filepath.Join(s.dir, "s") }

// config is the key host's file.
func (s *shelf) config(serial string, changed ...string) string {
	s.Helper()
	s.write("pin", pin)
	text := fmt.Sprintf("module: %s\nserial: %s\nkeys: [{signing: \"01\", nonce: \"02\"}]\npin_file: %s\nsocket: %s\nusers: [%s]\n", s.library, serial, filepath.Join(s.dir, "pin"), s.socket(), me(s))
	for i := 0; i < len(changed); i += 2 {
		require.Contains(s, text, changed[i])
		text = strings.Replace(text, changed[i], changed[i+1], 1)
	}
	return s.write("keyhost.yaml", text)
}

func me(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	require.NoError(t, err)
	return u.Username
}

// process is a running key host.
type process struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	ended  chan struct{}
}

func (s *shelf) start(config string) *process {
	s.Helper()
	p := &process{exec.Command(os.Args[0], "--config", config), &bytes.Buffer{}, make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = s.env(), p.stderr
	require.NoError(s, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	s.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// exits waits for the end of a key host and holds it to its code and its word.
func (s *shelf) exits(p *process, code int, word string) {
	s.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		require.Fail(s, "the key host does not end")
	}
	assert.Equal(s, code, p.cmd.ProcessState.ExitCode(), p.stderr)
	assert.Contains(s, p.stderr.String(), word)
	assert.NotContains(s, p.stderr.String(), pin)
}

// client waits until the key host answers.
func (s *shelf) client(p *process) *keyhost.Client {
	s.Helper()
	c := keyhost.NewClient(s.socket(), os.Getuid())
	s.Cleanup(func() { _ = c.Close() })
	s.answers(c, p)
	return c
}

func (s *shelf) answers(c *keyhost.Client, p *process) {
	s.Helper()
	ended := false
	require.Eventually(s, func() bool {
		select {
		case <-p.ended:
			ended = true
		default:
		}
		return ended || c.Health(s.Context()) == nil
	}, within, 10*time.Millisecond)
	require.False(s, ended, "the key host has ended: %s", p.stderr)
}

func codeOf(err error) keyhost.Code {
	e, _ := errors.AsType[*keyhost.Error](err)
	if e == nil {
		return ""
	}
	return e.Code
}

func verifies(t testing.TB, d keyhost.Descriptor, digest [32]byte, signature [64]byte) {
	t.Helper()
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), d.Pairs[0].PublicKey)
	require.NoError(t, err)
	assert.True(t, ecdsa.Verify(public, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])))
}

// only is the one object of a class.
func only(t testing.TB, o keyhost.Observation, class string) keyhost.Object {
	t.Helper()
	var found []keyhost.Object
	for _, k := range o.Keys {
		if k.Class == class {
			found = append(found, k)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// What a host shows of its token is what the token says now, not what it said at the start.
func TestAnObservation(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	serial := s.token("one")
	s.keys("one")
	c := s.client(s.start(s.config(serial)))
	o, err := c.Observe(t.Context())
	require.NoError(t, err)
	file, err := os.ReadFile(s.library)
	require.NoError(t, err)
	assert.Equal(t, keyhost.Library{Cryptoki: "2.40", Manufacturer: "SoftHSM", Description: "Implementation of PKCS11", Version: "2.6", File: "libsofthsm2.so",
		FileSHA256: sha256.Sum256(file), EntryPoint: "C_GetFunctionList"}, o.Library)
	assert.Equal(t, keyhost.Token{Manufacturer: "SoftHSM project", Model: "SoftHSM v2", Serial: serial, Label: "one", HardwareVersion: "2.6", FirmwareVersion: "2.6", Flags: 0x42d}, o.Token)
	assert.WithinDuration(t, time.Now(), o.At, within)
	require.Len(t, o.Keys, 3)

	d, err := c.Describe(t.Context())
	require.NoError(t, err)
	generated := map[string]string{"LOCAL": "true", "ALWAYS_SENSITIVE": "true", "NEVER_EXTRACTABLE": "true", "EXTRACTABLE": "false", "SENSITIVE": "true",
		"MODIFIABLE": "true", "COPYABLE": "true", "WRAP_WITH_TRUSTED": "false", "KEY_GEN_MECHANISM": "0x1040"}
	assert.Equal(t, keyhost.Object{Purpose: keyhost.PairSigning, Class: keyhost.ClassPrivate, ID: []byte{1}, Mechanisms: []string{"0x1041"}, Attributes: generated,
		ECParams: oidP256}, only(t, o, keyhost.ClassPrivate))
	public := only(t, o, keyhost.ClassPublic)
	assert.Equal(t, d.Pairs[0].PublicKey, public.Point)
	assert.Equal(t, oidP256, public.ECParams)
	secret := only(t, o, keyhost.ClassSecret)
	assert.Equal(t, keyhost.PairNonce, secret.Purpose)
	assert.Equal(t, []string{"0x251"}, secret.Mechanisms)
	assert.Equal(t, "0x350", secret.Attributes["KEY_GEN_MECHANISM"])
	assert.False(t, secret.ValueReadable)

	s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--usage-sign", "--sensitive")
	o, err = c.Observe(t.Context())
	require.NoError(t, err)
	assert.Len(t, o.Keys, 5, "two keys of one name are shown, both")
}

func TestKeysOfAToken(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	serial := s.token("one")
	s.keys("one")
	c := s.client(s.start(s.config(serial)))
	d, err := c.Describe(t.Context())
	require.NoError(t, err)
	digest := sha256.Sum256([]byte("what is signed"))
	for _, purpose := range []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt, keyhost.PurposeChallenge} {
		signature, err := c.SignDigest(t.Context(), "01", purpose, digest)
		require.NoError(t, err)
		verifies(t, d, digest, signature)
	}
	_, err = c.SignDigest(t.Context(), "01", "checkpoint", digest)
	assert.Equal(t, keyhost.PurposeRefused, codeOf(err))

	mac, err := c.MAC(t.Context(), "02", []byte("nonce"))
	require.NoError(t, err)
	again, err := c.MAC(t.Context(), "02", []byte("nonce"))
	require.NoError(t, err)
	other, err := c.MAC(t.Context(), "02", []byte("another"))
	require.NoError(t, err)
	assert.Equal(t, mac, again)
	assert.NotEqual(t, mac, other)
}

// More callers than sessions wait for each other, or are told to come back; no two use one session.
func TestManyCallersShareFewSessions(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	serial := s.token("one")
	s.keys("one")
	p := s.start(s.config(serial, "socket:", "sessions: 2\nsocket:"))
	c := s.client(p)
	d, err := c.Describe(t.Context())
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			digest := sha256.Sum256([]byte{byte(i)})
			signature, err := c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
			if err != nil {
				assert.Equal(t, keyhost.KeyBusy, codeOf(err))
				return
			}
			verifies(t, d, digest, signature)
		})
	}
	all.Wait()
	require.NoError(t, c.Health(t.Context()))
}

func TestWhatIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(s *shelf)
		change  []string
		code    int
		word    string
	}{
		"a wrong PIN": {func(s *shelf) { s.keys("one") }, []string{"/pin\n", "/wrong\n"}, exitMisconfigured, "TOKEN_LOGIN_REFUSED: the token refuses the PIN (CKR 0xa0); it was tried once"},
		"another token of the same label": {func(s *shelf) {
			s.keys("one")
		}, []string{"serial: ", "serial: f"}, exitMisconfigured, "TOKEN_IDENTITY_MISMATCH"},
		"no library":   {func(*shelf) {}, []string{"libsofthsm2.so", "libnone.so"}, exitSuspect, "TOKEN_UNAVAILABLE"},
		"no keys":      {func(*shelf) {}, nil, exitMisconfigured, "KEY_AMBIGUOUS: the signing key is 0 objects"},
		"no nonce key": {func(s *shelf) { s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01") }, nil, exitMisconfigured, "KEY_AMBIGUOUS: the nonce key is 0 objects"},
		"two keys":     {func(s *shelf) { s.keys("one"); s.keys("one") }, nil, exitMisconfigured, "KEY_AMBIGUOUS: the signing key is 2 objects"},
		"another curve": {func(s *shelf) {
			s.tool("one", "--keypairgen", "--key-type", "EC:secp384r1", "--id", "01", "--sensitive")
			s.tool("one", "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive")
		}, nil, exitMisconfigured, "KEY_CURVE_INVALID"},
		"an extractable": {func(s *shelf) {
			s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--extractable")
			s.tool("one", "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive")
		}, nil, exitMisconfigured, "KEY_EXTRACTABLE"},
		"an unknown key of the file": {func(*shelf) {}, []string{"keys:", "slot: 0\nkeys:"}, exitMisconfigured, "slot"},
		"too many sessions":          {func(*shelf) {}, []string{"users:", "sessions: 17\nusers:"}, exitMisconfigured, "must be between 1 and 16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShelf(t)
			serial := s.token("one")
			c.prepare(s)
			s.write("wrong", "999999")
			s.exits(s.start(s.config(serial, c.change...)), c.code, c.word)
			_, err := os.Stat(s.socket())
			assert.ErrorIs(t, err, os.ErrNotExist, "nothing listened")
		})
	}
}

// Attributes separate a key that was put in from one that was made inside; they prove neither.
func TestAnImportedKeyIsSeen(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	serial := s.token("one")
	s.tool("one", "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive")
	key := filepath.Join(s.dir, "key.pem")
	s.run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
	s.run("softhsm2-util", "--import", key, "--token", "one", "--label", "x", "--id", "01", "--pin", pin)
	o, err := s.client(s.start(s.config(serial))).Observe(t.Context())
	require.NoError(t, err)
	private := only(t, o, keyhost.ClassPrivate)
	assert.Equal(t, "false", private.Attributes["EXTRACTABLE"], "this says nothing")
	assert.Equal(t, "false", private.Attributes["LOCAL"])
	assert.Equal(t, "false", private.Attributes["NEVER_EXTRACTABLE"])
	assert.Equal(t, "unavailable", private.Attributes["KEY_GEN_MECHANISM"])
}

// Whatever happens to the token, the key host says so once and ends; a new start verifies everything.
func TestASuspectTokenEndsTheKeyHost(t *testing.T) {
	t.Parallel()
	digest := sha256.Sum256([]byte("x"))
	t.Run("the key is destroyed by somebody else", func(t *testing.T) {
		t.Parallel()
		s := newShelf(t)
		serial := s.token("one")
		s.keys("one")
		p := s.start(s.config(serial))
		c := s.client(p)
		s.tool("one", "--delete-object", "--type", "privkey", "--id", "01")
		_, err := c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
		assert.Equal(t, keyhost.TokenUnavailable, codeOf(err))
		s.exits(p, exitSuspect, "TOKEN_UNAVAILABLE")
		s.exits(s.start(s.config(serial)), exitMisconfigured, "KEY_AMBIGUOUS")
	})
	t.Run("the token goes and comes back", func(t *testing.T) {
		t.Parallel()
		s := newShelf(t)
		serial := s.token("one")
		s.keys("one")
		p := s.start(s.config(serial))
		c := s.client(p)
		require.NoError(t, os.Rename(s.tokens(), s.tokens()+".away"))
		_, err := c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
		assert.Equal(t, keyhost.TokenUnavailable, codeOf(err))
		s.exits(p, exitSuspect, "TOKEN_UNAVAILABLE")
		s.exits(s.start(s.config(serial)), exitSuspect, "TOKEN_UNAVAILABLE")
		require.NoError(t, os.Rename(s.tokens()+".away", s.tokens()))
		s.answers(c, s.start(s.config(serial)))
		_, err = c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
		require.NoError(t, err)
	})
	t.Run("the key host is killed", func(t *testing.T) {
		t.Parallel()
		s := newShelf(t)
		serial := s.token("one")
		s.keys("one")
		p := s.start(s.config(serial))
		c := s.client(p)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
		<-p.ended
		_, err := c.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
		assert.Equal(t, keyhost.TokenUnavailable, codeOf(err))
		s.answers(c, s.start(s.config(serial)))
	})
	t.Run("it is told to stop", func(t *testing.T) {
		t.Parallel()
		s := newShelf(t)
		serial := s.token("one")
		s.keys("one")
		p := s.start(s.config(serial))
		s.client(p)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		s.exits(p, exitOK, "")
	})
}

func TestOtherUsersAreNotAnswered(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	serial := s.token("one")
	s.keys("one")
	p := s.start(s.config(serial, "users: ["+me(s)+"]", "users: [nobody]"))
	c := keyhost.NewClient(s.socket(), os.Getuid())
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", s.socket())
		return err == nil && conn.Close() == nil
	}, within, 10*time.Millisecond)
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(c.Health(t.Context())))
	stranger := keyhost.NewClient(s.socket(), os.Getuid()+1)
	assert.ErrorContains(t, stranger.Health(t.Context()), "it runs as user")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	s.exits(p, exitOK, "another user")
}

// What the way through the key host costs, against the same library asked directly, by 16 callers.
func BenchmarkSigning(b *testing.B) {
	s := newShelf(b)
	serial := s.token("one")
	s.keys("one")
	file := s.config(serial)
	digest := sha256.Sum256([]byte("x"))
	parallel := func(b *testing.B, sign func(context.Context) error) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				require.NoError(b, sign(b.Context()))
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "signs/s")
	}
	b.Run("key host", func(b *testing.B) {
		p := s.start(file)
		c := s.client(p)
		b.ResetTimer()
		parallel(b, func(ctx context.Context) error {
			_, err := c.SignDigest(ctx, "01", keyhost.PurposeCapability, digest)
			return err
		})
	})
	b.Run("direct", func(b *testing.B) {
		b.Setenv("SOFTHSM2_CONF", filepath.Join(s.dir, "softhsm2.conf"))
		t, err := open(&Config{Module: s.library, Serial: serial, Keys: []Pair{{"01", "02"}}, PIN: pin, Sessions: 8})
		require.NoError(b, err)
		defer t.close()
		b.ResetTimer()
		parallel(b, func(ctx context.Context) error {
			_, err := t.SignDigest(ctx, "01", digest)
			return err
		})
	})
}
