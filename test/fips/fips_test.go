//go:build fips

// Package fips_test runs the product where FIPS is required, with a software
// token that only a test build takes, and shows what the shipped one refuses.
package fips_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/testbinary"
)

// modules are the snapshots to be tried; the first one is what is shipped.
func modules() []string {
	return strings.Fields(cmp.Or(os.Getenv("NIGHTWARRANT_FIPS_MODULES"), "v1.0.0 v1.26.0"))
}

// built builds a program with a snapshot.
func built(t *testing.T, dir, module, tags, program string, cgo string) string {
	t.Helper()
	out := filepath.Join(dir, program+"-"+module+"-"+cmp.Or(tags, "shipped"))
	c := testbinary.Go(t.Context(), "build", "-tags", tags, "-o", out, "github.com/nightwarrant/nightwarrant/cmd/"+program)
	c.Env = append(c.Env, "GOFIPS140="+module, "CGO_ENABLED="+cgo)
	text, err := c.CombinedOutput()
	require.NoError(t, err, string(text))
	return out
}

// place is a directory through which PostgreSQL's account may pass.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-fips-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL runs as another account
	return dir
}

// ran is what a command said.
type ran struct {
	code     int
	out, err string
}

func run(t *testing.T, within time.Duration, env []string, name string, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	var out, err bytes.Buffer
	c.Stdout, c.Stderr = &out, &err
	_ = c.Run() // the code tells
	require.NoError(t, ctx.Err(), "%s did not end: %s", name, err.String())
	return ran{c.ProcessState.ExitCode(), out.String(), err.String()}
}

const only = "GODEBUG=fips140=only"

// The whole story, in each snapshot, with nothing computed outside of it.
func TestTheWholeStory(t *testing.T) {
	for _, module := range modules() {
		t.Run(module, func(t *testing.T) {
			dir := place(t)
			synthetic := built(t, dir, module, "nightwarrant_synthetic", "nightwarrant", "0")
			keyHost := built(t, dir, module, "", "nightwarrant-keyhost", "1")
			began := time.Now()
			r := run(t, 10*time.Minute, []string{only}, synthetic, "demo", "--json", "--keep", filepath.Join(dir, "stack"), "--keyhost", keyHost, "--softhsm", testbinary.SoftHSM(t))
			require.Zero(t, r.code, r.out+r.err)
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			var summary struct {
				OK      bool `json:"ok"`
				Attacks []struct{}
			}
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &summary))
			assert.True(t, summary.OK)
			assert.Len(t, summary.Attacks, 9)
			t.Logf("the story took %s", time.Since(began).Round(time.Second))
			logs, err := filepath.Glob(filepath.Join(dir, "stack", "logs", "*.log"))
			require.NoError(t, err)
			for _, log := range logs {
				text, err := os.ReadFile(log)
				require.NoError(t, err)
				assert.NotContains(t, string(text), "panic", log)
				assert.NotContains(t, string(text), "fips140=only", log)
			}
			vouched(t, filepath.Join(dir, "stack"), synthetic)
		})
	}
}

// vouched looks at the report of the key that the story was told with, and has it refused by a program that is shipped.
func vouched(t *testing.T, stack, synthetic string) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(stack, "config", "replica-a.yaml"))
	require.NoError(t, err)
	assert.True(t, strings.Contains(string(config), "fips: required"), "what was run was held to it")
	assert.Contains(t, run(t, time.Minute, nil, synthetic, "version").out, "SYNTHETIC")
}

// What a FIPS deployment refuses, each by itself, with its code.
func TestRefusals(t *testing.T) {
	dir := place(t)
	module := modules()[0]
	shipped := built(t, dir, module, "", "nightwarrant", "0")
	plain := built(t, dir, "off", "", "nightwarrant", "0")
	synthetic := built(t, dir, module, "nightwarrant_synthetic", "nightwarrant", "0")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	bundle, identity := filepath.Join(dir, "bundle"), filepath.Join(dir, "identity")
	require.Zero(t, run(t, time.Minute, nil, shipped, "keys", "init", "--dir", bundle, "--identity-file", identity).code)
	officer := write("officer.pub.pem", "") // nobody gets as far as reading it
	authority := "fips: required\ndatabase_url: postgres://u:hush@127.0.0.1:1/n\nissuer: http://127.0.0.1:1\nlisten: 127.0.0.1:0\nassertion: {issuers: [{url: \"http://127.0.0.1:2\"}]}\n" +
		"envelope: {issuer: {url: \"http://127.0.0.1:3\"}, audience: a}\ndirectory: {url: \"http://127.0.0.1:4\", token_file: " + officer + "}\n"
	sealed := authority + "keys: {dir: " + bundle + ", identity_file: " + identity + "}\n"
	host := "keys:\n  dir: " + bundle + "\n  identity_file: " + identity + "\n  host: {socket: " + filepath.Join(dir, "none.sock") + "}\n"
	recorded := host + "  provenance: {records: [{file: /none, approvals: /none}], snapshot: /none, snapshot_approvals: /none, officers: [{id: a, role: b, key_file: " + officer + "}, {id: c, role: d, key_file: " + officer + "}]}\n"
	model := "fips: required\nkind: http\n"
	for name, c := range map[string]struct {
		binary, env, config, code string
		command                   []string
	}{
		"a program without a module":                {plain, "", authority + recorded, "APP_MODULE_DISABLED", []string{"serve"}},
		"one that GODEBUG switched on":              {plain, "GODEBUG=fips140=on", authority + recorded, "APP_MODULE_UNPINNED", []string{"serve"}},
		"one that GODEBUG switched off":             {shipped, "GODEBUG=fips140=off", authority + recorded, "APP_MODULE_DISABLED", []string{"serve"}},
		"keys that the bundle seals":                {shipped, "", sealed, "KEY_LOCAL_FORBIDDEN_IN_FIPS", []string{"serve"}},
		"sealed keys beside a key host":             {shipped, "", authority + recorded, "KEY_LOCAL_FORBIDDEN_IN_FIPS", []string{"serve"}},
		"sealed keys, under fips140=only":           {shipped, only, authority + recorded, "KEY_LOCAL_FORBIDDEN_IN_FIPS", []string{"serve"}},
		"a key of which nobody has signed":          {shipped, "", authority + host, "PROVENANCE_MISSING", []string{"serve"}},
		"a database URL that asks for md5":          {shipped, only, strings.Replace(authority, "1/n\n", "1/n?require_auth=md5\n", 1) + recorded, "DEP_NON_APPROVED_ALGORITHM", []string{"serve"}},
		"a production cluster, by a test's program": {synthetic, "", strings.Replace(sealed, "fips: required\n", "", 1), "synthetic profile", []string{"serve"}},
		"anything else than required":               {shipped, "", strings.Replace(model, "required", "preferred", 1), "must be required", []string{"guard"}},
	} {
		path := write("config.yaml", c.config)
		r := run(t, 2*time.Minute, []string{cmp.Or(c.env, "GODEBUG=")}, c.binary, append(c.command, "--config", path)...)
		assert.Equal(t, 78, r.code, "%s: %s", name, r.err)
		assert.Contains(t, r.err, c.code, name)
		assert.NotContains(t, r.err, "hush", name)
		assert.NotContains(t, r.err, "panic", name)
		assert.Equal(t, 1, strings.Count(r.err, "\n"), "%s: one sentence: %s", name, r.err)
	}
}

// A release is built with the validated module and without the synthetic profile, or not at all.
func TestReleases(t *testing.T) {
	dir := place(t)
	check, err := filepath.Abs("../../scripts/check-release.sh")
	require.NoError(t, err)
	module := modules()[0]
	if module == "v1.0.0" {
		assert.Zero(t, run(t, time.Minute, nil, "sh", check, built(t, dir, module, "", "nightwarrant", "0")).code)
	}
	for binary, why := range map[string]string{
		built(t, dir, "off", "", "nightwarrant", "0"):                        "GOFIPS140",
		built(t, dir, module, "nightwarrant_synthetic", "nightwarrant", "0"): "software token",
	} {
		r := run(t, time.Minute, nil, "sh", check, binary)
		assert.NotZero(t, r.code, why)
		assert.Contains(t, r.err, why)
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	r := run(t, time.Minute, nil, "make", "-C", root, "release", "RELEASE_TAGS=nightwarrant_synthetic")
	assert.NotZero(t, r.code)
	assert.Contains(t, r.err, "no release takes a software token")
}
