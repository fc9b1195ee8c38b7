package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	"github.com/nightwarrant/nightwarrant/keys/provenance"
	"github.com/nightwarrant/nightwarrant/keys/provenance/synthetic"
)

// officerKeys writes an officer's two files.
func officerKeys(t testing.TB, dir, name string) (private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	spki, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	private = write(t, dir, name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return private, write(t, dir, name+".pub.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})))
}

const snapshotFacts = `
source: https://csrc.nist.gov/projects/cryptographic-module-validation-program
certificates:
  - {number: 4711, status: active, standard: FIPS 140-3, overall_level: 3, vendor: Example, name: Example HSM, firmware: ["2.6"], environments: [Example appliance], sunset: "2099-01-01T00:00:00Z"}
  - {number: 5247, status: active, standard: FIPS 140-3, overall_level: 1, vendor: Geomys, name: Go Cryptographic Module, software: [v1.0.0], environments: [Debian 12 on x86_64], sunset: "2099-01-01T00:00:00Z"}
`

const recordFacts = `
days: 300
provider: PROVIDER
revocation_ref: https://example.test/withdrawn
ceremony: {origin: generated_in_module, at: "2026-11-01T10:00:00Z", id: ceremony 1, witnesses: [Anna A., Ben B.], transcript_file: FILE, statement_file: FILE}
module: {certificate: 4711, firmware: "2.6", tested_configuration: Example appliance, approved_mode: "FIPS mode: on", approved_mode_observed: by both witnesses, security_policy_file: FILE}
application: {certificate: 5247, version: v1.0.0, build: v1.0.0-c2097c7c, tested_configuration: Debian 12 on x86_64}
`

// ceremony is a folder of documents and of who signs them.
type ceremony struct {
	t                     testing.TB
	dir                   string
	anna, ben             string // private keys
	annaPublic, benPublic string
}

func newCeremony(t testing.TB) *ceremony {
	c := &ceremony{t: t, dir: t.TempDir()}
	c.anna, c.annaPublic = officerKeys(t, c.dir, "anna")
	c.ben, c.benPublic = officerKeys(t, c.dir, "ben")
	write(t, c.dir, "looked.yaml", snapshotFacts)
	env{}.good(t, "keys", "snapshot", "draft", "--facts", c.file("looked.yaml"), "-o", c.file("cmvp.json"))
	return c
}

func (c *ceremony) file(name string) string { return filepath.Join(c.dir, name) }

// sign has both officers sign: one here, and one with openssl.
func (c *ceremony) sign(what, name string) {
	c.t.Helper()
	approvals := c.file(name + ".approvals")
	env{}.good(c.t, "keys", what, "sign", c.file(name), "--approvals", approvals, "--officer", "anna", "--role", "security", "--key-file", c.anna)
	message := write(c.t, c.dir, "message", env{}.good(c.t, "keys", what, "sign", c.file(name), "--message"))
	out, err := exec.Command("openssl", "dgst", "-sha256", "-sign", c.ben, "-out", c.file("signature"), message).CombinedOutput()
	require.NoError(c.t, err, string(out))
	env{}.good(c.t, "keys", what, "sign", c.file(name), "--approvals", approvals, "--officer", "ben", "--role", "operations", "--signature", c.file("signature"), "--public-key", c.benPublic)
}

func (c *ceremony) officers() []string {
	return []string{"--officer", "anna:security:" + c.annaPublic, "--officer", "ben:operations:" + c.benPublic}
}

func TestSnapshotsAreSigned(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is needed: scripts/ensure-softhsm.sh installs it")
		}
		t.Skip("openssl is not installed")
	}
	c := newCeremony(t)
	verify := append([]string{"keys", "snapshot", "verify", c.file("cmvp.json"), "--approvals", c.file("cmvp.json.approvals")}, c.officers()...)
	env{}.run(t, verify...).bad(t, exitMisconfigured, "cannot be opened")
	c.sign("snapshot", "cmvp.json")
	assert.Contains(t, env{}.good(t, verify...), "signed, and fresh")
	assert.Contains(t, env{}.good(t, "keys", "snapshot", "show", c.file("cmvp.json")), "4711")

	r := env{}.run(t, append(verify, "--officer", "cleo:audit:"+c.annaPublic)...)
	r.bad(t, exitMisconfigured, "two officers have one id or one key")
	r = env{}.run(t, append(verify, "--threshold", "1")...)
	r.bad(t, exitMisconfigured, "at least two officers sign")

	text, err := os.ReadFile(c.file("cmvp.json"))
	require.NoError(t, err)
	changed := write(t, c.dir, "changed.json", strings.Replace(string(text), `"active"`, `"revoked"`, 1))
	verify[3] = changed
	r = env{}.run(t, append(verify, "--json")...)
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.out, `"PROVENANCE_SIGNATURE_INVALID"`)
	env{}.run(t, "keys", "snapshot", "draft", "--facts", c.file("looked.yaml"), "-o", changed).bad(t, exitFailed, "file exists")
}

// An officer's key is the officer's alone, and a signature is of one document.
func TestSigningIsRefused(t *testing.T) {
	t.Parallel()
	c := newCeremony(t)
	open := write(t, c.dir, "open.pem", "")
	require.NoError(t, os.Chmod(open, 0o644))
	short := write(t, c.dir, "short", "no signature")
	bad := write(t, c.dir, "bad.json", `{"schema":"cmvp-snapshot/v1"}`)
	approvals := c.file("a")
	sign := func(changes ...string) []string {
		return append([]string{"keys", "snapshot", "sign", c.file("cmvp.json"), "--approvals", approvals, "--officer", "anna", "--role", "security"}, changes...)
	}
	for name, r := range map[string]struct {
		args     []string
		code     int
		sentence string
	}{
		"a key that others may read": {sign("--key-file", open), exitMisconfigured, "must be 0600"},
		"no private key":             {sign("--key-file", c.annaPublic), exitMisconfigured, "no P-256 private key"},
		"no signature":               {sign("--signature", short, "--public-key", c.annaPublic), exitMisconfigured, "no ECDSA signature"},
		"a signature without a key":  {sign("--signature", short), exitFailed, "public-key"},
		"nothing to sign with":       {sign(), exitFailed, "key-file"},
		"no officer":                 {[]string{"keys", "snapshot", "sign", c.file("cmvp.json"), "--key-file", c.anna}, exitMisconfigured, "are missing"},
		"no snapshot":                {[]string{"keys", "snapshot", "sign", bad, "--message"}, exitFailed, "is no snapshot"},
		"no record":                  {[]string{"keys", "provenance", "sign", c.file("cmvp.json"), "--message"}, exitFailed, "is no record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env{}.run(t, r.args...).bad(t, r.code, r.sentence)
		})
	}
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		mine := write(t, c.dir, "mine", "")
		require.NoError(t, os.Remove(mine))
		args := []string{"keys", "snapshot", "sign", c.file("cmvp.json"), "--approvals", mine, "--officer", "anna", "--role", "security", "--key-file", c.anna}
		env{}.good(t, args...)
		env{}.run(t, args...).bad(t, exitFailed, "signed already")
		other := write(t, c.dir, "other.yaml", strings.Replace(snapshotFacts, "4711", "4712", 1))
		env{}.good(t, "keys", "snapshot", "draft", "--facts", other, "-o", c.file("other.json"))
		args[3] = c.file("other.json")
		env{}.run(t, args...).bad(t, exitFailed, "another document")
	})
}

// softToken is a SoftHSM token behind the real key host.
type softToken struct {
	t      testing.TB
	dir    string
	binary string
	host   *exec.Cmd
	ended  chan struct{}
}

func newSoftToken(t testing.TB) *softToken {
	t.Helper()
	library := testbinary.SoftHSM(t)
	s := &softToken{t: t, dir: t.TempDir(), binary: testbinary.Keyhost(t)}
	require.NoError(t, os.Mkdir(filepath.Join(s.dir, "tokens"), 0o700))
	write(t, s.dir, "softhsm2.conf", "directories.tokendir = "+filepath.Join(s.dir, "tokens")+"\nlog.level = ERROR\n")
	s.run("softhsm2-util", "--init-token", "--free", "--label", "night", "--pin", "123456", "--so-pin", "12345678")
	tool := []string{"--module", library, "--token-label", "night", "--login", "--pin", "123456"}
	s.run("pkcs11-tool", append(tool, "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--usage-sign", "--sensitive")...)
	s.run("pkcs11-tool", append(tool, "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive")...)
	serial := regexp.MustCompile(`serial num\s*:\s*([0-9a-f]{16})`).FindStringSubmatch(s.run("pkcs11-tool", "--module", library, "--list-token-slots"))
	require.Len(t, serial, 2)
	me, err := user.Current()
	require.NoError(t, err)
	write(t, s.dir, "pin", "123456")
	write(t, s.dir, "keyhost.yaml", fmt.Sprintf("module: %s\nserial: %s\nkeys: [{signing: \"01\", nonce: \"02\"}]\npin_file: %s\nsocket: %s\nusers: [%s]\n", library, serial[1], filepath.Join(s.dir, "pin"), s.socket(), me.Username))
	s.start()
	return s
}

func (s *softToken) socket() string { return filepath.Join(s.dir, "s") }

func (s *softToken) run(name string, args ...string) string {
	s.t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "SOFTHSM2_CONF="+filepath.Join(s.dir, "softhsm2.conf"))
	out, err := c.CombinedOutput()
	require.NoError(s.t, err, string(out))
	return string(out)
}

func (s *softToken) start() {
	s.t.Helper()
	var said bytes.Buffer
	s.host, s.ended = exec.Command(s.binary, "--config", filepath.Join(s.dir, "keyhost.yaml")), make(chan struct{})
	s.host.Env, s.host.Stderr = append(os.Environ(), "SOFTHSM2_CONF="+filepath.Join(s.dir, "softhsm2.conf")), &said
	require.NoError(s.t, s.host.Start())
	go func(c *exec.Cmd, ended chan struct{}) {
		_ = c.Wait()
		close(ended)
	}(s.host, s.ended)
	s.t.Cleanup(s.kill)
	c := keyhost.NewClient(s.socket(), os.Getuid())
	defer c.Close()
	require.Eventually(s.t, func() bool {
		select {
		case <-s.ended:
			return true
		default:
			return c.Health(s.t.Context()) == nil
		}
	}, testWithin, 10*time.Millisecond)
	select {
	case <-s.ended:
		require.FailNow(s.t, "the key host has ended", said.String())
	default:
	}
}

func (s *softToken) kill() {
	_ = s.host.Process.Kill()
	<-s.ended
}

// From a live token to a verdict, through the commands that officers use. The
// profiles that are shipped refuse SoftHSM whatever officers sign; one for tests
// shows that nothing else stands in the way.
func TestARecordOfALiveToken(t *testing.T) {
	t.Parallel()
	s := newSoftToken(t)
	c := newCeremony(t)
	c.sign("snapshot", "cmvp.json")
	facts := strings.NewReplacer("FILE", c.file("cmvp.json"), "PROVIDER", synthetic.Provider).Replace(recordFacts)
	write(t, c.dir, "facts.yaml", facts)
	draft := []string{"keys", "provenance", "draft", "--keyhost", s.socket(), "--facts", c.file("facts.yaml"), "--snapshot", c.file("cmvp.json"), "-o", c.file("record.json")}
	env{}.run(t, append(draft, "--key-id", "07")...).bad(t, exitMisconfigured, "must name one of the 1 signing keys")
	assert.Contains(t, env{}.good(t, draft...), "Officers sign it")
	shown := env{}.good(t, "keys", "provenance", "show", c.file("record.json"))
	assert.Contains(t, shown, "SoftHSM v2")
	cluster := regexp.MustCompile(`(?m)^cluster +([0-9a-f]{32})$`).FindStringSubmatch(shown)
	require.Len(t, cluster, 2, shown)

	verify := append([]string{"keys", "provenance", "verify", c.file("record.json"), "--approvals", c.file("record.json.approvals"), "--snapshot", c.file("cmvp.json"),
		"--snapshot-approvals", c.file("cmvp.json.approvals"), "--cluster", cluster[1], "--json"}, c.officers()...)
	env{}.run(t, verify...).bad(t, exitMisconfigured, "cannot be opened")
	c.sign("provenance", "record.json")
	refused := func(code provenance.Code, args ...string) {
		t.Helper()
		r := env{}.run(t, args...)
		assert.Equal(t, exitFailed, r.code, r.err)
		var report provenance.Report
		require.NoError(t, json.Unmarshal([]byte(r.out), &report), r.out)
		require.NotNil(t, report.Refusal)
		assert.Equal(t, code, report.Refusal.Code, report.Refusal)
	}
	refused(provenance.ProviderSoftwareToken, verify...)
	elsewhere := append([]string{}, verify...)
	elsewhere[11] = strings.Repeat("0", 32)
	refused(provenance.ScopeMismatch, elsewhere...)

	// the bundle, and a replica that has its keys from it
	db := teststack.Database(t)
	site := newSite(t, db.URL("nw_authority"))
	place := []string{"--keyhost", s.socket(), "--dir", filepath.Join(site.dir, "token"), "--identity-file", filepath.Join(site.dir, "identity")}
	env{}.run(t, append([]string{"keys", "init", "--provenance", c.file("cmvp.json")}, place...)...).bad(t, exitMisconfigured, "is no record")
	assert.Contains(t, env{}.good(t, append([]string{"keys", "init", "--provenance", c.file("record.json")}, place...)...), cluster[1])
	env{}.good(t, append([]string{"keys", "register", "--database-url", db.URL("nw_operator")}, place...)...)
	host := "/token, host: {socket: " + s.socket() + "}"
	bare := site.with(t, "/bundle,", host+",")
	env{}.run(t, "serve", "--config", bare).bad(t, exitMisconfigured, "PROVENANCE_MISSING")
	configured := site.with(t, "/bundle,", host+", provenance: "+strings.NewReplacer("DIR", c.dir).Replace(
		"{records: [{file: DIR/record.json, approvals: DIR/record.json.approvals}], snapshot: DIR/cmvp.json, snapshot_approvals: DIR/cmvp.json.approvals, "+
			"officers: [{id: anna, role: security, key_file: DIR/anna.pub.pem}, {id: ben, role: operations, key_file: DIR/ben.pub.pem}]},"))
	env{}.run(t, "serve", "--config", configured).bad(t, exitMisconfigured, "nightwarrant: APP_MODULE_DISABLED: ")
	refused(provenance.AppModuleDisabled, "keys", "provenance", "verify", "--json", "--config", configured)

	vouchedFor(t, s, c, configured, filepath.Join(site.dir, "token"), filepath.Join(site.dir, "identity"))
}

// vouchedFor is what a replica does while it runs, in a program of a validated
// module: which the test's own is not.
func vouchedFor(t *testing.T, s *softToken, c *ceremony, file, dir, identity string) {
	a := &config.Authority{}
	require.NoError(t, config.Load(file, a, os.Getenv))
	v, err := vouchingOf(a.Keys, [32]byte{1})
	require.NoError(t, err)
	v.module = fips.Module{Enabled: true, Version: "v1.0.0", Build: "v1.0.0-c2097c7c"}
	host := keyhost.NewClient(s.socket(), os.Getuid())
	bundle, err := keys.OpenWith(dir, identity, host)
	require.NoError(t, err)
	require.NoError(t, host.Close())
	id, recorded := recordedNow(bundle)
	require.True(t, recorded)
	require.Error(t, v.health(id), "nothing is known")

	r := v.verify(t.Context(), id)
	require.NotNil(t, r.Refusal)
	assert.Equal(t, provenance.ProviderSoftwareToken, r.Refusal.Code)
	assert.Equal(t, provenance.ProviderSoftwareToken, r.Steps[4].Code, "the token itself says it, too")
	require.Error(t, v.health(id))

	v.policy.Profiles = append(provenance.Profiles(), synthetic.Profile())
	require.NoError(t, (&replica{config: a, vouching: v}).startVouched(t.Context(), bundle))
	assert.True(t, v.was(id).Accepted())
	assert.Equal(t, []string{"B", "C"}, v.was(id).EvidenceClasses)
	require.NoError(t, v.health(id))
	require.ErrorContains(t, (&replica{config: a}).startVouched(t.Context(), bundle), "PROVENANCE_MISSING")

	log := &watched{want: "\x00", seen: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		v.run(ctx, slog.New(slog.NewJSONHandler(log, nil)), func() *keys.Bundle { return bundle })
		close(done)
	}()
	defer func() {
		cancel()
		<-done
	}()
	becomes := func(code provenance.Code) {
		t.Helper()
		require.Eventually(t, func() bool {
			r := v.was(id).Refusal
			return code == "" && r == nil || r != nil && r.Code == code
		}, testWithin, 20*time.Millisecond, "%s", code)
	}
	// A withdrawn record is noticed without a restart, and so is a token that goes and comes back.
	kept, err := os.ReadFile(c.file("cmvp.json"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(c.file("cmvp.json")))
	v.age()
	becomes(provenance.EvidenceInsufficient)
	require.NoError(t, os.WriteFile(c.file("cmvp.json"), kept, 0o600))
	becomes("")
	s.kill()
	v.age()
	becomes(provenance.TokenUnavailable)
	s.start()
	becomes("")
	assert.Contains(t, log.String(), `"code":"TOKEN_UNAVAILABLE"`)
	assert.Contains(t, log.String(), "the key's provenance is good")
}

// age has the next look not wait for its time.
func (v *vouching) age() {
	v.lock.Lock()
	defer v.lock.Unlock()
	for digest, r := range v.reports {
		r.at = r.at.Add(-time.Hour)
		v.reports[digest] = r
	}
}

// A word that is too old is none.
func TestSilenceIsNoWord(t *testing.T) {
	t.Parallel()
	id := keys.Identity{ProvenanceDigest: sha256.Sum256(nil)}
	v := &vouching{reports: map[[32]byte]vouched{id.ProvenanceDigest: {Report: provenance.Report{Steps: make([]provenance.Step, 9)}, at: time.Now().Add(-silence - time.Second)}}}
	require.ErrorContains(t, v.health(id), "last verified")
	v.reports[id.ProvenanceDigest] = vouched{Report: v.reports[id.ProvenanceDigest].Report, at: time.Now()}
	require.NoError(t, v.health(id))
	require.Error(t, v.health(keys.Identity{}))
}

// A key without a record is refused where FIPS is required, and only there.
func TestAKeyWithoutARecordInFIPS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	identity := filepath.Join(dir, "identity")
	require.NoError(t, keys.NewIdentity(identity))
	_, err := keys.Init(filepath.Join(dir, "bundle"), identity)
	require.NoError(t, err)
	bundle, err := keys.Open(filepath.Join(dir, "bundle"), identity)
	require.NoError(t, err)
	r := &replica{config: &config.Authority{}}
	require.NoError(t, r.startVouched(t.Context(), bundle))
	r.config.Mode = "required"
	require.ErrorContains(t, r.startVouched(t.Context(), bundle), "PROVENANCE_MISSING")
}
