package main

import (
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sumnote "golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// A run's owner gets its receipt, and checks it with nothing but two public keys.
func TestRunReceiptIsCheckedWithoutUs(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	dir := t.TempDir()
	me := env{envEnvelope: write(t, dir, "envelope", h.Envelope(authoritytest.MemberName)), envKey: filepath.Join(dir, "key"), "NIGHTWARRANT_AUTHORITY": h.URL}
	me.run(t, "receipt", "get", w.Run).bad(t, exitFailed, "ask again later")
	h.Into(w.Settle("succeeded"), nil)
	log := sequencer.New(sequencer.Config{Pool: h.Pool, Key: h.Bundle.Auditor(), Who: sha256.Sum256([]byte("here")), Log: slog.New(slog.DiscardHandler)})
	require.Eventually(t, func() bool {
		_, err := log.Round(t.Context())
		return err == nil && h.Count(`SELECT count(*) FROM nw.audit_waiting`) == 0 && h.Count(`SELECT count(*) FROM nw.audit`) == h.Count(`SELECT coalesce(max(size), 0) FROM nw.audit_checkpoints`)
	}, testWithin, 50*time.Millisecond)

	file := write(t, dir, "run.jwt", me.good(t, "receipt", "get", w.Run))
	jwks := write(t, dir, "keys.json", string(h.Send(h.Request("GET", api.PathJWKS, "", nil)).Body))
	id := h.Bundle.Identity()
	key, err := sumnote.NewEd25519VerifierKey(h.Bundle.Auditor().Name(), id.AuditKey[:])
	require.NoError(t, err)
	out := env{}.good(t, "receipt", "verify", file, "--jwks", jwks, "--audit-key", key)
	assert.Contains(t, out, "Run "+w.Run)
	assert.Contains(t, out, "Nothing is wrong.")

	text := me.good(t, "receipt", "get", w.Run)
	spoiled := write(t, dir, "spoiled.jwt", strings.Replace(text, ".e", ".f", 1))
	env{}.run(t, "receipt", "verify", spoiled, "--jwks", jwks, "--audit-key", key).bad(t, exitFailed, "not_signed")
	env{}.run(t, "receipt", "verify", file, "--jwks", file, "--audit-key", key).bad(t, exitMisconfigured, "--jwks")
	env{}.run(t, "receipt", "verify", file, "--jwks", jwks, "--audit-key", "x").bad(t, exitMisconfigured, "--audit-key")
	other, err := sumnote.NewEd25519VerifierKey("nightwarrant/audit/other", id.AuditKey[:])
	require.NoError(t, err)
	env{}.run(t, "receipt", "verify", file, "--jwks", jwks, "--audit-key", other).bad(t, exitFailed, "checkpoint_foreign")
	me.run(t, "receipt", "get", w.Run, "--auditor").bad(t, exitFailed, "role")
}

// How long records stay and who they are about is an operator's, and never less than the law wants.
func TestKeepingAndRedacting(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Consent(h.Task("close-the-day"))
	hand := env{"NIGHTWARRANT_DATABASE_URL": h.DB.URL("nw_operator")}
	hand.run(t, "audit", "keep", "--days", "30").bad(t, exitMisconfigured, "185")
	assert.Contains(t, hand.good(t, "audit", "keep", "--days", "400"), "400 days")
	who := []string{"audit", "redact", "--of-issuer", h.Platform.URL, "--of-subject", authoritytest.MemberName, "--reason"}
	hand.run(t, append(who, "whim")...).bad(t, exitMisconfigured, "--reason")
	assert.Contains(t, hand.good(t, append(who, "erasure")...), "1 records do not say")
	assert.Contains(t, hand.good(t, append(who, "erasure")...), "0 records do not say")
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'redact' AND convert_from(body, 'UTF8')::json->'more'->'with'->>'reason' = 'erasure'`))
}
