package demo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"regexp"
	"strings"
	"time"
)

// Token has the stack's keys made in a PKCS#11 token, vouched for by two
// officers who are made for it, and everything required that FIPS requires. Only
// a binary of the synthetic profile takes a software token.
type Token struct {
	KeyHost string // binary of nightwarrant-keyhost
	Library string // of SoftHSM
}

// officers of the demo, by id.
var officers = map[string]string{"anna": "security", "ben": "operations"}

// whenFIPS are lines of a file that are there with a token only.
func (s *Stack) whenFIPS(lines string) string {
	if s.token == nil {
		return ""
	}
	return lines
}

const fipsRequired = "fips: required\n"

// keysConfig is what a replica is told of its keys.
func (s *Stack) keysConfig() string {
	lines := "  dir: " + s.path("keys", "bundle") + "\n  identity_file: " + s.path("keys", "identity") + "\n"
	if s.token == nil {
		return "keys:\n" + lines
	}
	lines += "  host: {socket: " + s.path("keyhost.sock") + "}\n  provenance:\n    records: [{file: " + s.path("keys", "record.json") + ", approvals: " + s.path("keys", "record.json.approvals") +
		"}]\n    snapshot: " + s.path("keys", "cmvp.json") + "\n    snapshot_approvals: " + s.path("keys", "cmvp.json.approvals") + "\n    officers:\n"
	for id, role := range officers {
		lines += fmt.Sprintf("      - {id: %s, role: %s, key_file: %s}\n", id, role, s.path("keys", id+".pub.pem"))
	}
	return fipsRequired + "keys:\n" + lines
}

// makeToken makes the token with its keys, and starts the key host.
func (s *Stack) makeToken(ctx context.Context) error {
	if err := os.MkdirAll(s.path("token"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(s.path("softhsm2.conf"), []byte("directories.tokendir = "+s.path("token")+"\nobjectstore.backend = file\n"), 0o600); err != nil {
		return err
	}
	pin := s.passwords[tokenPIN]
	if err := os.WriteFile(s.path("keys", "pin"), []byte(pin), 0o600); err != nil {
		return err
	}
	pkcs11 := []string{"pkcs11-tool", "--module", s.token.Library, "--token-label", "demo", "--login", "--pin", pin}
	for _, command := range [][]string{
		{"softhsm2-util", "--init-token", "--free", "--label", "demo", "--pin", pin, "--so-pin", pin},
		append(pkcs11, "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--usage-sign", "--sensitive"),
		append(pkcs11, "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive"),
	} {
		if _, err := s.softHSM(ctx, command...); err != nil {
			return err
		}
	}
	return s.startKeyHost(ctx)
}

func (s *Stack) softHSM(ctx context.Context, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // a tool of this machine's packages
	c.Env = append(environment(), "SOFTHSM2_CONF="+s.path("softhsm2.conf"))
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command[0], err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

var serialLine = regexp.MustCompile(`Serial number:\s+([0-9a-f]{16})`)

func (s *Stack) startKeyHost(ctx context.Context) error {
	slots, err := s.softHSM(ctx, "softhsm2-util", "--show-slots")
	if err != nil {
		return err
	}
	serial := serialLine.FindStringSubmatch(slots)
	if serial == nil {
		return errors.New("the token has no serial number")
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	text := "module: " + s.token.Library + "\nserial: " + serial[1] + "\nkeys: [{signing: \"01\", nonce: \"02\"}]\npin_file: " + s.path("keys", "pin") +
		"\nsocket: " + s.path("keyhost.sock") + "\nusers: [" + me.Username + "]\n"
	if err := os.WriteFile(s.path("config", "keyhost.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	c, err := s.startProgram(s.token.KeyHost, "keyhost", []string{"SOFTHSM2_CONF=" + s.path("softhsm2.conf")}, "--config", s.path("config", "keyhost.yaml"))
	if err != nil {
		return err
	}
	return until(ctx, 20*time.Second, "the key host", func() (bool, error) {
		select {
		case <-c.done:
			return false, fmt.Errorf("the key host has ended: %w; see %s", c.err, s.path("logs", "keyhost.log"))
		default:
		}
		_, err := os.Stat(s.path("keyhost.sock"))
		return err == nil, nil
	})
}

const cmvpFacts = `source: https://csrc.nist.gov/projects/cryptographic-module-validation-program
certificates:
  - {number: 1, status: active, standard: FIPS 140-3, overall_level: 1, vendor: Nobody, name: A software token, firmware: ["2.6"], environments: [this machine], sunset: "2099-01-01T00:00:00Z"}
  - {number: 5247, status: active, standard: FIPS 140-3, overall_level: 1, vendor: Geomys, name: Go Cryptographic Module, software: [v1.0.0, v1.26.0], environments: [this machine], sunset: "2099-01-01T00:00:00Z"}
`

const keyFacts = `days: 90
provider: synthetic
revocation_ref: https://platform.demo/withdrawn
ceremony: {origin: generated_in_module, at: "AT", id: demo, witnesses: [Anna, Ben], transcript_file: FILE, statement_file: FILE}
module: {certificate: 1, firmware: "2.6", tested_configuration: this machine, approved_mode: none, approved_mode_observed: nobody looked, security_policy_file: FILE}
application: {certificate: 5247, version: VERSION, tested_configuration: this machine}
`

// vouch has the snapshot and the record drafted, and both officers sign each.
func (s *Stack) vouch(ctx context.Context) error {
	for id := range officers {
		if err := s.officer(id); err != nil {
			return err
		}
	}
	facts := strings.NewReplacer("AT", time.Now().UTC().Format(time.RFC3339), "FILE", s.path("keys", "looked.yaml"), "VERSION", fips140.Version()).Replace(keyFacts)
	for name, text := range map[string]string{"looked.yaml": cmvpFacts, "facts.yaml": facts} {
		if err := os.WriteFile(s.path("keys", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if _, err := s.run(ctx, "keys", "snapshot", "draft", "--facts", s.path("keys", "looked.yaml"), "-o", s.path("keys", "cmvp.json")); err != nil {
		return err
	}
	if _, err := s.run(ctx, "keys", "provenance", "draft", "--keyhost", s.path("keyhost.sock"), "--facts", s.path("keys", "facts.yaml"), "--snapshot", s.path("keys", "cmvp.json"),
		"-o", s.path("keys", "record.json")); err != nil {
		return err
	}
	for what, file := range map[string]string{"snapshot": "cmvp.json", "provenance": "record.json"} {
		for id, role := range officers {
			if _, err := s.run(ctx, "keys", what, "sign", s.path("keys", file), "--approvals", s.path("keys", file+".approvals"), "--officer", id, "--role", role,
				"--key-file", s.path("keys", id+".pem")); err != nil {
				return err
			}
		}
	}
	return nil
}

// officer makes an officer's two files.
func (s *Stack) officer(id string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(s.path("keys", id+".pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
		os.WriteFile(s.path("keys", id+".pub.pem"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))
}
