package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// A replica's log, exported and checked by somebody who has only the key and what an anchor kept.
func TestAuditLogIsCheckedWithoutUs(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	require.Equal(t, exitOK, s.register(t, db).code)
	anchors := filepath.Join(t.TempDir(), "anchors")
	s.file = s.with(t, "instance: one\n", "instance: one\naudit: {anchors: ["+anchors+"]}\n")
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	hand := env{"NIGHTWARRANT_DATABASE_URL": db.URL("nw_operator")}
	super := db.Pool(t, teststack.Superuser)
	hand.good(t, "gate", "close", "--why", "drill")
	require.Eventually(t, func() bool {
		var covered bool
		err := super.QueryRow(t.Context(), `SELECT (SELECT max(size) FROM nw.audit_checkpoints) = (SELECT count(*) FROM nw.audit)`).Scan(&covered)
		return err == nil && covered
	}, testWithin, 50*time.Millisecond)
	assert.Equal(t, exitOK, r.end(), r.log)

	key := strings.TrimSpace(hand.good(t, "audit", "key"))
	assert.Regexp(t, `^nightwarrant/audit/[0-9a-f]{32}\+[0-9a-f]{8}\+\S+$`, key)
	file := filepath.Join(t.TempDir(), "log")
	assert.Regexp(t, `^\d+ records are in `, hand.good(t, "audit", "export", "--out", file))
	hand.run(t, "audit", "export", "--out", file).bad(t, exitFailed, "exists")
	out := env{}.good(t, "audit", "verify", file, "--key", key, "--anchors", anchors)
	assert.Contains(t, out, "Nothing is wrong.")
	assert.NotContains(t, out, "No anchor")
	assert.Contains(t, env{}.good(t, "audit", "verify", file, "--key", key), "No anchor was given")

	proof := filepath.Join(t.TempDir(), "proof")
	require.NoError(t, os.WriteFile(proof, []byte(env{}.good(t, "audit", "prove", file, "--key", key, "--record", "0")), 0o600))
	assert.Equal(t, "Record 0 is in the log.\n", env{}.good(t, "audit", "verify", proof, "--proof", "--key", key))
	env{}.run(t, "audit", "prove", file, "--key", key, "--record", "99999").bad(t, exitFailed, "no such record")
	env{}.run(t, "audit", "verify", file, "--key", "x+1+y").bad(t, exitMisconfigured, "--key")

	refused := func(tamper string, args ...string) {
		t.Helper()
		r := env{}.run(t, append([]string{"audit", "verify", "--key", key}, args...)...)
		assert.Equal(t, exitFailed, r.code)
		assert.Equal(t, "nightwarrant: the log was tampered with: "+tamper+"\n", r.err)
		assert.Contains(t, r.out, "TAMPERED "+tamper)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	head, _, _ := strings.Cut(string(text), "\n")
	empty := write(t, t.TempDir(), "log", head+"\n")
	refused("deleted_all", empty, "--anchors", anchors)
	env{}.good(t, "audit", "verify", empty, "--key", key)
	refused("edited", write(t, t.TempDir(), "log", strings.Replace(string(text), `\"verb\"`, `\"verv\"`, 1)))
}
