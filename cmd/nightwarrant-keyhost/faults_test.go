package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

var digest = sha256.Sum256([]byte("x"))

func sign(ctx context.Context, c *keyhost.Client) error {
	_, err := c.SignDigest(ctx, "01", keyhost.PurposeCapability, digest)
	return err
}

// Whatever happens to the token while it signs, no signature leaves that is none, the key host says so once and ends,
// and a new start verifies everything.
func TestASuspectTokenEndsTheKeyHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		happens func(s *shelf, p *process)
		code    int
		word    string
		then    func(s *shelf, config string) // a new start, and what it says
		mended  func(s *shelf)
	}{
		"the key is destroyed by somebody else": {
			func(s *shelf, _ *process) { s.tool("one", "--delete-object", "--type", "privkey", "--id", "01") }, exitSuspect, "TOKEN_UNAVAILABLE",
			func(s *shelf, config string) { s.exits(s.start(config), exitMisconfigured, "KEY_AMBIGUOUS") }, nil},
		"the token goes and comes back": {
			func(s *shelf, _ *process) { require.NoError(s, os.Rename(s.tokens(), s.tokens()+".away")) }, exitSuspect, "TOKEN_UNAVAILABLE",
			func(s *shelf, config string) { s.exits(s.start(config), exitSuspect, "TOKEN_UNAVAILABLE") },
			func(s *shelf) { require.NoError(s, os.Rename(s.tokens()+".away", s.tokens())) }},
		"the key host is killed": {
			func(s *shelf, p *process) { require.NoError(s, p.cmd.Process.Signal(syscall.SIGKILL)) }, -1, "", nil, func(*shelf) {}},
		"it is told to stop": {
			func(s *shelf, p *process) { require.NoError(s, p.cmd.Process.Signal(syscall.SIGTERM)) }, exitOK, "", nil, func(*shelf) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, serial := made(t)
			config := s.config(serial)
			p := s.start(config)
			client := s.client(p)
			d, err := client.Describe(t.Context())
			require.NoError(t, err)
			var all sync.WaitGroup
			var signed atomic.Int64
			for range 4 {
				all.Go(func() {
					for {
						signature, err := client.SignDigest(t.Context(), "01", keyhost.PurposeCapability, digest)
						if err != nil {
							assert.Equal(t, keyhost.TokenUnavailable, codeOf(err), "%v", err)
							return
						}
						verifies(t, d, digest, signature)
						signed.Add(1)
					}
				})
			}
			require.Eventually(t, func() bool { return signed.Load() > 20 }, within, time.Millisecond)
			c.happens(s, p)
			s.exits(p, c.code, c.word)
			all.Wait()
			if c.then != nil {
				c.then(s, config)
			}
			if c.mended != nil {
				c.mended(s)
				s.answers(client, s.start(config))
				require.NoError(t, sign(t.Context(), client))
			}
		})
	}
}

// A call into a library cannot be called off: a client waits as long as it says, and a host whose call does not come back ends.
func TestATokenThatIsSlow(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.shim()
	config := s.config(serial)
	p := s.start(config)
	c := s.client(p)
	late := func() keyhost.Code {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return codeOf(sign(ctx, c))
	}
	s.write("slow", "200")
	assert.Equal(t, keyhost.TokenUnavailable, late())
	require.NoError(t, c.Health(t.Context()), "it was slow, and is well")
	s.remove("slow")

	s.write("hang", "")
	assert.Equal(t, keyhost.TokenUnavailable, late())
	s.exits(p, exitSuspect, "KEY_CHALLENGE_TIMEOUT")
	s.exits(s.start(config), exitSuspect, "KEY_CHALLENGE_TIMEOUT")
	s.remove("hang")
	s.answers(c, s.start(config))
	require.NoError(t, sign(t.Context(), c))
}

// A stop waits for a library, but not for one that does not come back.
func TestInTime(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	assert.Equal(t, keyhost.KeyChallengeTimeout, codeOf(inTime(time.Millisecond, func() error {
		<-stuck
		return nil
	})))
	close(stuck)
	require.ErrorIs(t, inTime(within, func() error { return fs.ErrClosed }), fs.ErrClosed)
}

// More callers than sessions wait for each other, or are told to come back; no two use one session.
func TestManyCallersShareFewSessions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, text string }{
		"the configuration's bound":     {},
		"the token's bound":             {"most", "3"},
		"fewer than the token says":     {"room", "2"},
		"one is all that the token has": {"most", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, serial := made(t)
			s.shim()
			config := s.config(serial, "socket:", "sessions: 2\nsocket:")
			if c.file != "" {
				config = s.config(serial)
				s.write(c.file, c.text)
			}
			client := s.client(s.start(config))
			s.write("slow", "150")
			var all sync.WaitGroup
			var signed, busy atomic.Int64
			for range 30 {
				all.Go(func() {
					if err := sign(t.Context(), client); err != nil {
						assert.Equal(t, keyhost.KeyBusy, codeOf(err), "%v", err)
						busy.Add(1)
						return
					}
					signed.Add(1)
				})
			}
			all.Wait()
			assert.NotZero(t, signed.Load())
			assert.NotZero(t, busy.Load(), "30 callers need more than 2 seconds of 2 sessions")
			s.remove("slow")
			require.NoError(t, client.Health(t.Context()), "being busy is no fault")
		})
	}
	t.Run("another process has them all", func(t *testing.T) {
		t.Parallel()
		s, serial := made(t)
		s.shim()
		s.write("room", "0")
		s.exits(s.start(s.config(serial)), exitSuspect, "TOKEN_UNAVAILABLE: no session can be opened (CKR 0xb1)")
	})
}

// One wrong PIN is one try: the next start finds it counted, and tries nothing, however right the PIN is by then.
func TestAPINIsTriedOnce(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.shim()
	s.write("wrong", "999999")
	s.exits(s.start(s.config(serial, "/pin\n", "/wrong\n")), exitMisconfigured, "TOKEN_LOGIN_REFUSED")
	assert.Equal(t, 1, s.logins())
	s.exits(s.start(s.config(serial)), exitMisconfigured, "TOKEN_PIN_AT_RISK")
	assert.Equal(t, 1, s.logins())
	s.tool("one", "--list-objects") // a person logs in, and the count is 0 again
	c := s.client(s.start(s.config(serial)))
	assert.Equal(t, 2, s.logins())
	require.NoError(t, c.Health(t.Context()))

	for _, flag := range []string{"0x10000", "0x20000", "0x40000"} { // CKF_USER_PIN_COUNT_LOW, _FINAL_TRY, _LOCKED
		s.write("flags", flag)
		s.exits(s.start(s.config(serial, "/s\n", "/other\n")), exitMisconfigured, "TOKEN_PIN_AT_RISK")
	}
	assert.Equal(t, 2, s.logins())
	o, err := c.Observe(t.Context())
	require.NoError(t, err)
	assert.Equal(t, uint64(0x4042d), o.Token.Flags, "a host that runs shows the flags of now")
}

// A fault of the token's that only verification finds.
func TestAWrongSignatureDoesNotLeave(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.shim()
	config := s.config(serial)
	p := s.start(config)
	c := s.client(p)
	s.write("lie", "")
	assert.Equal(t, keyhost.KeyChallengeFailed, codeOf(sign(t.Context(), c)))
	s.exits(p, exitMisconfigured, "KEY_CHALLENGE_FAILED")
	s.exits(s.start(config), exitMisconfigured, "KEY_CHALLENGE_FAILED")
}

// Whichever error a library gives where it signs or shows a key, nothing is believed after it.
func TestErrorsOfTheLibrary(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.shim()
	config := s.config(serial)
	for _, c := range []struct{ file, ckr string }{{"fail", "0x32"}, {"fail", "0x7"}, {"blind", "0x82"}, {"blind", "0x101"}, {"blind", "0x5"}} {
		p := s.start(config)
		client := s.client(p)
		s.write(c.file, c.ckr)
		_, err := client.Observe(t.Context())
		if c.file == "fail" {
			require.NoError(t, err)
			err = client.Health(t.Context())
		}
		assert.Equal(t, keyhost.TokenUnavailable, codeOf(err), "%s %s", c.file, c.ckr)
		s.exits(p, exitSuspect, "CKR "+c.ckr)
		s.remove(c.file)
	}
}

// The same label on another token means nothing, and neither does the slot.
func TestATokenIsItsSerial(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	other := newShelf(t)
	another := other.token("one")
	other.keys("one")
	require.NotEqual(t, serial, another)
	moved, err := filepath.Glob(filepath.Join(other.tokens(), "*"))
	require.NoError(t, err)
	require.Len(t, moved, 1)
	own, err := filepath.Glob(filepath.Join(s.tokens(), "*"))
	require.NoError(t, err)
	require.NoError(t, os.Rename(moved[0], filepath.Join(s.tokens(), filepath.Base(moved[0]))))
	p := s.start(s.config(serial))
	c := s.client(p)
	o, err := c.Observe(t.Context())
	require.NoError(t, err)
	assert.Equal(t, serial, o.Token.Serial)
	assert.Len(t, o.Keys, 3)

	require.NoError(t, os.RemoveAll(own[0]))
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(sign(t.Context(), c)))
	s.exits(p, exitSuspect, "TOKEN_UNAVAILABLE")
	s.exits(s.start(s.config(serial)), exitMisconfigured, "TOKEN_IDENTITY_MISMATCH")
	s.answers(c, s.start(s.config(another)))
}

// A library that is replaced while it is used is another one.
func TestALibraryIsTheFileThatWasLoaded(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.shim()
	p := s.start(s.config(serial))
	c := s.client(p)
	text, err := os.ReadFile(s.module)
	require.NoError(t, err)
	s.write("new.so", string(text)+"\x00")
	require.NoError(t, os.Rename(filepath.Join(s.dir, "new.so"), s.module))
	_, err = c.Observe(t.Context())
	assert.Equal(t, keyhost.TokenIdentityMismatch, codeOf(err))
	s.exits(p, exitMisconfigured, "TOKEN_IDENTITY_MISMATCH")
}

// Attributes separate a key that was put in from one that was made inside; they prove neither.
func TestAnImportedKeyIsSeen(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.put(s.made("key.pem"), "05")
	o, err := s.client(s.start(s.config(serial, `signing: "01"`, `signing: "05"`))).Observe(t.Context())
	require.NoError(t, err)
	a := only(t, o, keyhost.ClassPrivate).Attributes
	assert.Equal(t, "false", a["EXTRACTABLE"], "this says nothing")
	assert.Equal(t, "false", a["LOCAL"])
	assert.Equal(t, "false", a["NEVER_EXTRACTABLE"])
	assert.Equal(t, "unavailable", a["KEY_GEN_MECHANISM"])
}

// Who can write a software token's file makes an imported key look like one that never was outside, without a PIN:
// what a token says of its keys is no evidence (keys.md §2.2).
func TestForgedAttributesAreNotTold(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	s.put(s.made("key.pem"), "05")
	forged := 0
	require.NoError(t, filepath.WalkDir(s.tokens(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".object" || filepath.Base(path) == "token.object" {
			return err
		}
		text, err := os.ReadFile(path)
		imported := attribute(0x166, 2, 1<<64-1)                                                        // CKA_KEY_GEN_MECHANISM = CK_UNAVAILABLE_INFORMATION
		if err != nil || !bytes.Contains(text, attribute(0, 2, 3)) || !bytes.Contains(text, imported) { // CKA_CLASS = CKO_PRIVATE_KEY
			return err
		}
		for _, kind := range []uint64{0x163, 0x164, 0x165} { // CKA_LOCAL, CKA_NEVER_EXTRACTABLE, CKA_ALWAYS_SENSITIVE
			text = bytes.Replace(text, append(attribute(kind, 1), 0), append(attribute(kind, 1), 0xff), 1)
		}
		text = bytes.Replace(text, imported, attribute(0x166, 2, 0x1040), 1)
		forged++
		return os.WriteFile(path, text, 0o600)
	}))
	require.Equal(t, 1, forged)
	o, err := s.client(s.start(s.config(serial, `signing: "01"`, `signing: "05"`))).Observe(t.Context())
	require.NoError(t, err)
	assert.Equal(t, generated, only(t, o, keyhost.ClassPrivate).Attributes)
}

// attribute is how SoftHSM's file has one: its type, the kind of its value (1 a bool, 2 an integer) and the value.
func attribute(numbers ...uint64) (out []byte) {
	for _, n := range numbers {
		out = binary.BigEndian.AppendUint64(out, n)
	}
	return out
}

// A generation more is served without a new start, once it is as it must be; until then everything is as it was.
func TestKeysAreReadAnew(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	config := s.config(serial)
	p := s.start(config)
	c := s.client(p)
	again := func(pairs string) {
		s.config(serial, `[{signing: "01", nonce: "02"}]`, pairs)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	}
	serves := func(n int) keyhost.Descriptor {
		var d keyhost.Descriptor
		require.Eventually(t, func() (ok bool) {
			var err error
			d, err = c.Describe(t.Context())
			return err == nil && len(d.Pairs) == n
		}, within, time.Millisecond)
		return d
	}
	both := `[{signing: "01", nonce: "02"}, {signing: "0A", nonce: "0b"}]`
	again(both)
	require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "KEY_AMBIGUOUS") }, within, time.Millisecond)
	serves(1)
	s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "0a", "--usage-sign", "--sensitive")
	s.tool("one", "--keygen", "--key-type", "GENERIC:32", "--id", "0b", "--usage-sign", "--sensitive")
	again(both)
	d := serves(2)
	assert.Equal(t, "0a", d.Pairs[1].Signing)
	for i, key := range []string{"01", "0a"} {
		signature, err := c.SignDigest(t.Context(), key, keyhost.PurposeCapability, digest)
		require.NoError(t, err)
		verifies(t, keyhost.Descriptor{Pairs: d.Pairs[i:]}, digest, signature)
	}
	first, err := c.MAC(t.Context(), "02", []byte("m"))
	require.NoError(t, err)
	second, err := c.MAC(t.Context(), "0b", []byte("m"))
	require.NoError(t, err)
	assert.NotEqual(t, first, second)
	o, err := c.Observe(t.Context())
	require.NoError(t, err)
	assert.Len(t, o.Keys, 6)

	again(`[{signing: "0a", nonce: "0b"}]`)
	serves(1)
	assert.Equal(t, keyhost.KeyUnknown, codeOf(sign(t.Context(), c)))
	_, err = c.MAC(t.Context(), "02", []byte("m"))
	assert.Equal(t, keyhost.KeyUnknown, codeOf(err))
	s.write("keyhost.yaml", fmt.Sprintf("%s\nsessions: 99\n", "junk: 1"))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "junk") }, within, time.Millisecond)
	serves(1)

	s.config(serial)
	require.NoError(t, os.RemoveAll(s.tokens()))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	s.exits(p, exitSuspect, "TOKEN_UNAVAILABLE")
}
