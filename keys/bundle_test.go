package keys

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ capability.Signer = (*Signer)(nil)
	_ capability.KeySet = (*Bundle)(nil)
)

// made is a bundle on disk.
type made struct{ dir, identity string }

func makeBundle(t testing.TB) made {
	t.Helper()
	root := t.TempDir()
	m := made{dir: filepath.Join(root, "bundle"), identity: filepath.Join(root, "identity")}
	require.NoError(t, NewIdentity(m.identity))
	_, err := Init(m.dir, m.identity)
	require.NoError(t, err)
	return m
}

func (m made) open(t testing.TB) *Bundle {
	t.Helper()
	b, err := Open(m.dir, m.identity)
	require.NoError(t, err)
	return b
}

func (m made) read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, name))
	require.NoError(t, err)
	return b
}

func (m made) write(t testing.TB, name string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, name), content, 0o600))
}

// unsealed returns the sealed part's plaintext; only a test may.
func (m made) unsealed(t testing.TB) []byte {
	t.Helper()
	id, err := readIdentity(m.identity)
	require.NoError(t, err)
	plain, err := unseal(m.read(t, secretsFile), id)
	require.NoError(t, err)
	return plain
}

func (m made) reseal(t testing.TB, plain []byte) {
	t.Helper()
	id, err := readIdentity(m.identity)
	require.NoError(t, err)
	sealed, err := seal(plain, id)
	require.NoError(t, err)
	m.write(t, secretsFile, sealed)
}

func requireMaterial(t testing.TB, err error, part string) {
	t.Helper()
	var m *MaterialError
	require.ErrorAs(t, err, &m)
	require.Contains(t, m.Sentence, part)
	require.NotContains(t, m.Sentence, "\n")
	require.Less(t, len(m.Sentence), 200)
}

func TestOpenRefusesAlteredPublicPart(t *testing.T) {
	t.Parallel()
	other := makeBundle(t).open(t).Identity()
	otherKey, err := dated(9, other.PublicKey)
	require.NoError(t, err)
	for name, alter := range map[string]func(p *publicPart){
		"cluster id":  func(p *publicPart) { p.ClusterID = encode(other.ClusterID[:]) },
		"generation":  func(p *publicPart) { p.Generation = 2 },
		"key":         func(p *publicPart) { p.KID, p.Key = otherKey.KID, otherKey.Key },
		"kid":         func(p *publicPart) { p.KID = otherKey.KID },
		"nonce check": func(p *publicPart) { p.NonceCheck = encode(other.NonceCheck[:]) },
		"provenance":  func(p *publicPart) { p.Provenance.Origin = "generated_in_module" },
		"planted key": func(p *publicPart) { p.Next = []publicKeys{{datedKey: otherKey}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := makeBundle(t)
			p, err := parsePublic(m.read(t, publicFile))
			require.NoError(t, err)
			alter(p)
			m.write(t, publicFile, canonicalOf(t, p))
			_, err = Open(m.dir, m.identity)
			requireMaterial(t, err, "not the one that was sealed")
		})
	}
}

// Whoever can seal (the recipient is public) still cannot make halves that do
// not belong together pass.
func TestOpenRefusesHalvesThatDoNotBelongTogether(t *testing.T) {
	t.Parallel()
	foreign := makeBundle(t)
	var theirs secretPart
	require.NoError(t, json.Unmarshal(foreign.unsealed(t), &theirs))
	for name, tc := range map[string]struct {
		alter func(p *publicPart, s *secretPart)
		part  string
	}{
		"signing key":       {func(_ *publicPart, s *secretPart) { s.SigningKey = theirs.SigningKey }, "signing key is not the one"},
		"nonce key":         {func(_ *publicPart, s *secretPart) { s.NonceKey = theirs.NonceKey }, "nonce key is not the one"},
		"provenance":        {func(p *publicPart, _ *secretPart) { p.Provenance.Origin = "elsewhere" }, "public part is malformed"},
		"kid":               {func(p *publicPart, _ *secretPart) { p.KID = p.KID[1:] + "A" }, "public part is malformed"},
		"cluster id short":  {func(p *publicPart, s *secretPart) { p.ClusterID, s.ClusterID = "AAAA", "AAAA" }, "public part is malformed"},
		"short scalar":      {func(_ *publicPart, s *secretPart) { s.SigningKey = "AAAA" }, "sealed part is malformed"},
		"zero scalar":       {func(_ *publicPart, s *secretPart) { s.SigningKey = encode(make([]byte, 32)) }, "sealed part is malformed"},
		"short nonce key":   {func(_ *publicPart, s *secretPart) { s.NonceKey = "AAAA" }, "sealed part is malformed"},
		"next without keys": {func(p *publicPart, _ *secretPart) { p.Next = []publicKeys{anyKeys(t, 2).public} }, "sealed part is malformed"},
		"keys without next": {func(_ *publicPart, s *secretPart) { s.Next = []secretKeys{s.secretKeys} }, "sealed part is malformed"},
		"same generation":   {addNext(anyKeys(t, 1)), "public part is malformed"},
		"no generation":     {addNext(anyKeys(t, 0)), "public part is malformed"},
		"the same key twice": {func(p *publicPart, s *secretPart) {
			p.Next, s.Next = []publicKeys{p.publicKeys}, []secretKeys{s.secretKeys}
			p.Next[0].Generation = 2
		}, "public part is malformed"},
		"the same nonce key twice": {func(p *publicPart, s *secretPart) {
			addNext(anyKeys(t, 2))(p, s)
			p.Next[0].NonceCheck, s.Next[0].NonceKey = p.NonceCheck, s.NonceKey
		}, "public part is malformed"},
		"next of another key": {func(p *publicPart, s *secretPart) {
			addNext(anyKeys(t, 2))(p, s)
			s.Next[0].SigningKey = s.SigningKey
		}, "signing key is not the one"},
		"next in the past": {func(p *publicPart, s *secretPart) {
			p.Generation, s.Generation = 5, 5
			addNext(anyKeys(t, 3))(p, s)
		}, "public part is malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := makeBundle(t)
			p, err := parsePublic(m.read(t, publicFile))
			require.NoError(t, err)
			var s secretPart
			require.NoError(t, json.Unmarshal(m.unsealed(t), &s))
			tc.alter(p, &s)
			public := canonicalOf(t, p)
			s.PublicSHA256 = publicDigest(public)
			m.write(t, publicFile, public)
			m.reseal(t, canonicalOf(t, s))
			_, err = Open(m.dir, m.identity)
			requireMaterial(t, err, tc.part)
		})
	}
}

func TestOpenRefusesOtherSpellings(t *testing.T) {
	t.Parallel()
	for name, respell := range map[string]func(s string) string{
		"unknown member":    func(s string) string { return strings.Replace(s, `{`, `{"a":1,`, 1) },
		"duplicate":         func(s string) string { return strings.Replace(s, `{`, `{"version":1,`, 1) },
		"other case":        func(s string) string { return strings.Replace(s, `"version"`, `"Version"`, 1) },
		"blank":             func(s string) string { return strings.Replace(s, `:`, `: `, 1) },
		"trailing line":     func(s string) string { return s + "\n" },
		"trailing document": func(s string) string { return s + "{}" },
		"absent member":     func(s string) string { return strings.Replace(s, `,"version":1`, ``, 1) },
		"null":              func(s string) string { return strings.Replace(s, `"next":[]`, `"next":null`, 1) },
		"later version":     func(s string) string { return strings.Replace(s, `"version":1`, `"version":2`, 1) },
		"generation zero":   func(s string) string { return strings.Replace(s, `"generation":1`, `"generation":0`, 1) },
		"empty":             func(string) string { return "" },
		"not JSON":          func(string) string { return "AGE-SECRET-KEY-1" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := makeBundle(t)
			was := string(m.read(t, publicFile))
			is := respell(was)
			require.NotEqual(t, was, is, "the case must change something")
			m.write(t, publicFile, []byte(is))
			_, err := Open(m.dir, m.identity)
			requireMaterial(t, err, "public part is malformed")
		})
	}
}

func TestOpenRefusesBrokenSeal(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	good := m.read(t, secretsFile)
	for name, content := range map[string][]byte{
		"empty": {}, "truncated": good[:len(good)-1], "extended": append(bytes.Clone(good), 0),
		"flipped": flip(good, len(good)-20), "plain": m.unsealed(t),
	} {
		m.write(t, secretsFile, content)
		_, err := Open(m.dir, m.identity)
		require.Error(t, err, name)
		requireMaterial(t, err, "does not open the bundle's seal")
	}
	m.write(t, secretsFile, good)
	for name, plain := range map[string]string{
		"unknown member": `{"a":1,` + string(m.unsealed(t))[1:],
		"duplicate":      `{"version":1,` + string(m.unsealed(t))[1:],
		"not an object":  `[]`,
	} {
		m.reseal(t, []byte(plain))
		_, err := Open(m.dir, m.identity)
		require.Error(t, err, name)
		requireMaterial(t, err, "sealed part is malformed")
	}
}

func TestOpenRefusesOtherIdentity(t *testing.T) {
	t.Parallel()
	m, other := makeBundle(t), makeBundle(t)
	_, err := Open(m.dir, other.identity)
	requireMaterial(t, err, "does not open the bundle's seal")
}

func TestOpenRefusesOpenModes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		file string
		mode fs.FileMode
		ok   bool
	}{
		{"identity", 0o640, false}, {"identity", 0o604, false}, {"identity", 0o620, false}, {"identity", 0o601, false},
		{"identity", 0o600, true}, {"identity", 0o400, true},
		{secretsFile, 0o604, false}, {secretsFile, 0o620, false}, {secretsFile, 0o640, true}, {secretsFile, 0o400, true},
		{publicFile, 0o664, false}, {publicFile, 0o646, false}, {publicFile, 0o644, true}, {publicFile, 0o444, true},
	} {
		t.Run(fmt.Sprintf("%s %04o", tc.file, tc.mode), func(t *testing.T) {
			t.Parallel()
			m := makeBundle(t)
			path := filepath.Join(m.dir, tc.file)
			if tc.file == "identity" {
				path = m.identity
			}
			require.NoError(t, os.Chmod(path, tc.mode))
			_, err := Open(m.dir, m.identity)
			if tc.ok {
				require.NoError(t, err)
				return
			}
			requireMaterial(t, err, "is open to others")
		})
	}
}

func TestOpenRefusesWhatIsNotAFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{publicFile, secretsFile} {
		m := makeBundle(t)
		require.NoError(t, os.Remove(filepath.Join(m.dir, name)))
		_, err := Open(m.dir, m.identity)
		requireMaterial(t, err, "cannot be read")
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.NoError(t, os.Mkdir(filepath.Join(m.dir, name), 0o700))
		_, err = Open(m.dir, m.identity)
		requireMaterial(t, err, "not a regular file")
	}
	m := makeBundle(t)
	m.write(t, publicFile, make([]byte, maxFile+1))
	_, err := Open(m.dir, m.identity)
	requireMaterial(t, err, "too large")
	_, err = Open(filepath.Join(m.dir, "absent", "absent"), m.identity)
	requireMaterial(t, err, "cannot be found")
}

func TestIdentityMustLieOutside(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	inside := filepath.Join(m.dir, "identity")
	content, err := os.ReadFile(m.identity)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(inside, content, 0o600))
	linkIn, linkDir, hidden := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b"), filepath.Join(m.dir, "link")
	require.NoError(t, os.Symlink(inside, linkIn))
	require.NoError(t, os.Symlink(m.dir, linkDir))
	require.NoError(t, os.Symlink(m.identity, hidden))
	for _, identity := range []string{inside, linkIn, filepath.Join(linkDir, "identity"), filepath.Join(linkDir, "link"), hidden, filepath.Join(m.dir, "..", "bundle", "identity")} {
		_, err = Open(m.dir, identity)
		requireMaterial(t, err, "inside the bundle directory")
		_, err = Open(linkDir, identity)
		requireMaterial(t, err, "inside the bundle directory")
		_, err = Init(m.dir, identity)
		requireMaterial(t, err, "inside the bundle directory")
	}
	_, err = Open(linkDir, m.identity)
	require.NoError(t, err)
	beside := m.dir + "-identity" // a common prefix is not inside
	require.NoError(t, os.WriteFile(beside, content, 0o600))
	_, err = Open(m.dir, beside)
	require.NoError(t, err)
}

func TestIdentityFileHoldsExactlyOneX25519Identity(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	one, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	hybrid, err := age.GenerateHybridIdentity()
	require.NoError(t, err)
	for name, content := range map[string]string{
		"empty": "", "comment": "# nothing\n", "two": one.String() + "\n" + one.String() + "\n",
		"hybrid": hybrid.String(), "recipient": one.Recipient().String(), "broken": one.String()[:60] + "SECRETSECRET",
	} {
		path := filepath.Join(t.TempDir(), "identity")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := Open(m.dir, path)
		requireMaterial(t, err, "age")
		assert.NotContains(t, fullText(err), "SECRETSECRET", name)
		_, err = Init(filepath.Join(t.TempDir(), "bundle"), path)
		requireMaterial(t, err, "age")
	}
}

func TestInitNeverOverwrites(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	before := m.open(t).Identity()
	_, err := Init(m.dir, m.identity)
	requireMaterial(t, err, "never overwritten")
	require.Equal(t, before, m.open(t).Identity())

	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "note"), nil, 0o600))
	_, err = Init(root, m.identity)
	requireMaterial(t, err, "never overwritten")

	require.Error(t, NewIdentity(m.identity))
	require.Equal(t, before, m.open(t).Identity())

	_, err = Init(filepath.Join(t.TempDir(), "absent", "bundle"), m.identity)
	requireMaterial(t, err, "cannot be found")
}

// Of many racing initialisations one wins, and its bundle is whole.
func TestInitRace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	identity := filepath.Join(root, "identity")
	require.NoError(t, NewIdentity(identity))
	dir := filepath.Join(root, "bundle")
	type result struct {
		id  Identity
		err error
	}
	results := make(chan result)
	for range 8 {
		go func() {
			id, err := Init(dir, identity)
			results <- result{id, err}
		}()
	}
	var won []Identity
	for range 8 {
		if r := <-results; r.err == nil {
			won = append(won, r.id)
		}
	}
	require.Len(t, won, 1)
	require.Equal(t, won[0], made{dir, identity}.open(t).Identity())
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, left, 2, "nothing temporary stays")
}

func TestInitIntoEmptyDirectory(t *testing.T) {
	t.Parallel()
	identity := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, NewIdentity(identity))
	dir := t.TempDir()
	id, err := Init(dir, identity)
	require.NoError(t, err)
	require.Equal(t, id, made{dir, identity}.open(t).Identity())
	for name, mode := range map[string]fs.FileMode{identity: 0o600, filepath.Join(dir, secretsFile): 0o600, dir: 0o700 | fs.ModeDir} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), name)
	}
}

func TestNothingPlainOnDisk(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	spelled := spellings(secretsOf(t, m))
	require.NoError(t, filepath.WalkDir(filepath.Dir(m.dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, s := range spelled {
			require.NotContains(t, string(content), s, path)
		}
		return err
	}))
}

func TestIdentityIsWhatTheStoreCompares(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	a, b := m.open(t), m.open(t)
	require.Equal(t, a.Identity(), b.Identity())
	require.NoError(t, a.Prove(b.Identity()))
	require.EqualValues(t, 1, a.Identity().Generation)
	require.Len(t, a.Identity().KID, 43)
	jkt, err := capability.JKT(a.Identity().PublicKey)
	require.NoError(t, err)
	require.Equal(t, jkt.String(), a.Identity().KID)
	require.Equal(t, a.JWKS(), b.JWKS(), "byte-equal on all replicas")
}

func TestProveRefusesEveryDifference(t *testing.T) {
	t.Parallel()
	b := makeBundle(t).open(t)
	other := makeBundle(t).open(t).Identity()
	for part, alter := range map[string]func(i *Identity){
		"another cluster":    func(i *Identity) { i.ClusterID = other.ClusterID },
		"another generation": func(i *Identity) { i.Generation++ },
		"signing key":        func(i *Identity) { i.PublicKey = other.PublicKey },
		"signing key is":     func(i *Identity) { i.PublicKey = nil },
		"signing":            func(i *Identity) { i.KID = other.KID },
		"nonce key":          func(i *Identity) { i.NonceCheck = other.NonceCheck },
		"provenance":         func(i *Identity) { i.ProvenanceDigest = other.ProvenanceDigest },
	} {
		registered := b.Identity()
		alter(&registered)
		requireMaterial(t, b.Prove(registered), part)
	}
	requireMaterial(t, b.Prove(Identity{}), "another cluster")
}

// A replica with the right public identity but another private key is caught by
// the signature, whatever the comparison says.
func TestProveSigns(t *testing.T) {
	t.Parallel()
	b, other := makeBundle(t).open(t), makeBundle(t).open(t)
	forged := *b
	forged.current.signers = other.current.signers
	requireMaterial(t, forged.Prove(b.Identity()), "signing key is not the registered one")
	forged.current.signers = func(string) *Signer {
		return &Signer{sign: func([32]byte) ([64]byte, error) { return [64]byte{}, errSigning }}
	}
	err := forged.Prove(b.Identity())
	requireMaterial(t, err, "cannot sign")
	require.ErrorIs(t, err, errSigning)
}

func TestChallenge(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	a, b, foreign := m.open(t), m.open(t), makeBundle(t).open(t)
	challenge := [32]byte{1, 2, 3}
	sig, mac, err := a.Challenge(challenge)
	require.NoError(t, err)
	require.NoError(t, b.VerifyChallenge(challenge, sig, mac))
	requireMaterial(t, foreign.VerifyChallenge(challenge, sig, mac), "another key bundle")
	require.Error(t, b.VerifyChallenge([32]byte{1, 2, 4}, sig, mac))
	sig[40] ^= 1
	require.Error(t, b.VerifyChallenge(challenge, sig, mac))
	sig[40] ^= 1
	mac[0] ^= 1
	require.Error(t, b.VerifyChallenge(challenge, sig, mac))
	mac[0] ^= 1
	require.NoError(t, b.VerifyChallenge(challenge, sig, mac))
	check := b.Identity().NonceCheck
	require.NotEqual(t, check, mac, "the check value proves nothing to a challenge")
}

func TestSignerSignsWhatVerifies(t *testing.T) {
	t.Parallel()
	b := makeBundle(t).open(t)
	digest := sha256.Sum256([]byte("signed"))
	sig, err := b.Signer().SignES256(digest)
	require.NoError(t, err)
	public, generation, ok := b.Key(b.Signer().KeyID())
	require.True(t, ok)
	require.EqualValues(t, 1, generation)
	r, s := new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])
	require.True(t, ecdsa.Verify(public, digest[:], r, s))
	_, _, ok = b.Key("")
	require.False(t, ok)
	_, _, ok = b.Key(b.Signer().KeyID() + "A")
	require.False(t, ok)
}

// A signature that does not verify never leaves.
func TestSignerHoldsBackFaultySignatures(t *testing.T) {
	t.Parallel()
	mine, err := newMaterial()
	require.NoError(t, err)
	theirs, err := newMaterial()
	require.NoError(t, err)
	faulty := *mine.private
	faulty.PublicKey = theirs.private.PublicKey
	sig, err := signES256(&faulty, [32]byte{1})
	require.ErrorIs(t, err, errSigning)
	require.Zero(t, sig)
}

func TestJWKSIsWhatLibrariesRead(t *testing.T) {
	t.Parallel()
	b := makeBundle(t).open(t)
	var set jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal(b.JWKS(), &set))
	require.Len(t, set.Keys, 1)
	k := set.Keys[0]
	require.True(t, k.Valid() && k.IsPublic())
	require.Equal(t, "ES256", k.Algorithm)
	require.Equal(t, "sig", k.Use)
	require.Equal(t, b.Identity().KID, k.KeyID)
	require.True(t, b.Identity().PublicKey.Equal(k.Key))
	var raw struct{ Keys []map[string]any }
	require.NoError(t, json.Unmarshal(b.JWKS(), &raw))
	require.Len(t, raw.Keys[0], 8)
	require.EqualValues(t, 1, raw.Keys[0]["generation"])
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	b := m.open(t)
	spelled := spellings(secretsOf(t, m))
	type nested struct {
		B  *Bundle
		b  Bundle
		S  *Signer
		s  Signer
		N  *Nonces
		n  Nonces
		mk macKey
	}
	for _, v := range []any{b, *b, b.Signer(), *b.Signer(), b.Nonces(), *b.Nonces(), b.nonces, b.nonces[0],
		nested{b, *b, b.Signer(), *b.Signer(), b.Nonces(), *b.Nonces(), b.nonces[0].macKey}} {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
			fmt.Fprintf(&out, verb, v)
		}
		text, _ := json.Marshal(v)
		out.Write(text)
		_ = gob.NewEncoder(&out).Encode(v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		for _, s := range spelled {
			require.NotContains(t, out.String(), s, "%T", v)
		}
	}
}

// No walk over the values, exported or not, meets a secret.
func TestSecretsCannotBeWalkedInto(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	b := m.open(t)
	seen := map[uintptr]bool{}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		require.NotEqual(t, reflect.TypeFor[ecdsa.PrivateKey](), v.Type())
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() && !seen[v.Pointer()] {
				seen[v.Pointer()] = true
				walk(v.Elem())
			}
		case reflect.Interface:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.Slice, reflect.Array:
			if v.Type().Elem().Kind() == reflect.Uint8 {
				raw := make([]byte, v.Len())
				for i := range raw {
					raw[i] = byte(v.Index(i).Uint())
				}
				for _, s := range secretsOf(t, m) {
					require.False(t, bytes.Contains(raw, s))
				}
				return
			}
			for i := range v.Len() {
				walk(v.Index(i))
			}
		}
	}
	walk(reflect.ValueOf(b))
	walk(reflect.ValueOf(b.Nonces()))
	require.Greater(t, len(seen), 2)
}

func TestErrorsHoldNoMaterial(t *testing.T) {
	t.Parallel()
	m := makeBundle(t)
	text, err := os.ReadFile(m.identity)
	require.NoError(t, err)
	key := string(text[bytes.Index(text, []byte("AGE-SECRET-KEY-")):])
	require.NoError(t, os.WriteFile(m.identity, []byte(key+"junk"+key), 0o600))
	_, err = Open(m.dir, m.identity)
	require.NotContains(t, fullText(err), strings.TrimSpace(key)[15:40])
}

func FuzzParsePublic(f *testing.F) {
	m := makeBundle(f)
	f.Add(m.read(f, publicFile))
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := parsePublic(in)
		if err != nil {
			return
		}
		require.Equal(t, in, canonicalOf(t, p), "one spelling")
		_, _ = p.identities()
	})
}

func canonicalOf(t testing.TB, v any) []byte {
	t.Helper()
	b, err := canonical.CanonicalizeValue(v)
	require.NoError(t, err)
	return b
}

func anyKeys(t testing.TB, number int64) halves {
	t.Helper()
	h, err := newGeneration(number, nil)
	require.NoError(t, err)
	return h
}

// addNext adds a generation to both halves of a bundle.
func addNext(h halves) func(*publicPart, *secretPart) {
	return func(p *publicPart, s *secretPart) {
		secrets, err := h.keys.encode()
		if err != nil {
			panic(err)
		}
		p.Next, s.Next = []publicKeys{h.public}, []secretKeys{secrets}
	}
}

func flip(b []byte, at int) []byte {
	out := bytes.Clone(b)
	out[at] ^= 1
	return out
}

// secretsOf are the raw secrets of a bundle.
func secretsOf(t testing.TB, m made) [][]byte {
	t.Helper()
	var s secretPart
	require.NoError(t, json.Unmarshal(m.unsealed(t), &s))
	keys, err := s.secretKeys.keys(false)
	require.NoError(t, err)
	scalar, err := keys.private.Bytes()
	require.NoError(t, err)
	require.Len(t, scalar, 32)
	return [][]byte{scalar, keys.nonce}
}

// spellings are the usual encodings of secrets, without their ends, which a
// longer encoding could change.
func spellings(secrets [][]byte) []string {
	var out []string
	for _, s := range secrets {
		decimal := fmt.Sprint(s)
		out = append(out, string(s), hex.EncodeToString(s)[:40], strings.ToUpper(hex.EncodeToString(s))[:40],
			base64.StdEncoding.EncodeToString(s)[:38], base64.RawURLEncoding.EncodeToString(s)[:38],
			new(big.Int).SetBytes(s).String(), decimal[1:len(decimal)-1])
	}
	return out
}

// fullText is everything that an error chain would write into a log.
func fullText(err error) string {
	var out strings.Builder
	for ; err != nil; err = errors.Unwrap(err) {
		fmt.Fprintf(&out, "%v %+v\n", err, err)
	}
	return out.String()
}
