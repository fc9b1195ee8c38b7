package receipt_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func (h *house) hand() *pgxpool.Pool { return h.DB.Pool(h.t, "nw_operator") }

func (h *house) export(fromCut bool) *audit.Bundle {
	h.t.Helper()
	var out bytes.Buffer
	export := sequencer.Export
	if fromCut {
		export = sequencer.ExportFromCut
	}
	_, err := export(context.Background(), h.hand(), h.Bundle.Auditor().Verifier(), &out)
	require.NoError(h.t, err)
	b, err := audit.ReadBundle(&out, nil)
	require.NoError(h.t, err)
	return b
}

func (h *house) whole(b *audit.Bundle, anchors [][]byte) *audit.Report {
	h.t.Helper()
	r, err := audit.Verify(b, h.Bundle.Auditor().Verifier(), anchors)
	require.NoError(h.t, err)
	require.True(h.t, r.OK(), r.Findings)
	return r
}

func (h *house) found(query string) (n int) {
	h.t.Helper()
	var page api.AuditPage
	require.NoError(h.t, h.Person(authoritytest.AuditorName).Do("GET", api.PathAudit+"?"+query, "", nil, &page))
	return len(page.Items)
}

// Who somebody is can be taken out of the log, and everything that was signed stays good.
func TestRedaction(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	task := h.Consent(h.Task("close-the-day"))
	require.NoError(t, h.Person(authoritytest.MemberName).JSON("PUT", api.PathNotices, api.NoticeSettings{}, nil))
	run := h.run(task)
	h.sign()
	before := h.receipt(run)
	member := canonical.Digest(canonical.DomainMember, []byte(h.Platform.URL), []byte(authoritytest.MemberName))
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.audit WHERE strpos(convert_from(body, 'UTF8'), $1) > 0`, hex.EncodeToString(member[:])), "no row says who it is about")
	named := h.Count(`SELECT count(*) FROM nw.audit_disclosures WHERE value = $1`, member[:])
	require.GreaterOrEqual(t, named, int64(2))
	r := h.whole(h.export(false), nil)
	assert.Zero(t, r.Redacted)
	all := r.Disclosed
	search := "verb=notice&member=" + base64.RawURLEncoding.EncodeToString(member[:])
	assert.Equal(t, 1, h.found(search), "auditors find it as long as it is disclosed")

	ctx := context.Background()
	_, err := sequencer.Redact(ctx, h.hand(), member, nil, "because")
	require.Error(t, err, "a reason of the list")
	n, err := sequencer.Redact(ctx, h.hand(), [32]byte{1}, nil, "erasure")
	require.NoError(t, err)
	assert.Zero(t, n, "of somebody else")
	n, err = sequencer.Redact(ctx, h.hand(), member, []int64{-1}, "erasure")
	require.NoError(t, err)
	assert.Zero(t, n, "of rows that are not theirs")
	n, err = sequencer.Redact(ctx, h.hand(), member, nil, "erasure")
	require.NoError(t, err)
	assert.Equal(t, named, n)
	assert.Zero(t, h.found(search))
	assert.Equal(t, 1, h.found("verb=redact"), "and that is on record")
	assert.Equal(t, 1, h.found("verb=notice"), "the row is there")

	h.sign()
	r = h.whole(h.export(false), nil)
	assert.Equal(t, named, r.Redacted)
	assert.Equal(t, all-named, r.Disclosed)
	h.good(before)
	h.good(h.receipt(run))
}

func (h *house) refusedSQL(sql string, args ...any) {
	h.t.Helper()
	_, err := h.Owner.Exec(context.Background(), sql, args...)
	require.Error(h.t, err, sql)
}

// age has everything in the log have happened four hundred days ago, under a checkpoint of that time.
func (h *house) age() (size int64) {
	h.t.Helper()
	b := h.export(false)
	c, err := audit.OpenCheckpoint(b.Checkpoints[len(b.Checkpoints)-1], h.Bundle.Auditor().Verifier())
	require.NoError(h.t, err)
	c.At = c.At.Add(-400 * 24 * time.Hour)
	signature, err := h.Bundle.Auditor().Sign([]byte(c.Text()))
	require.NoError(h.t, err)
	h.Exec(`INSERT INTO nw.audit_checkpoints (size, at, root, edge, incarnation, epoch, signature)
		SELECT size, $2, root, edge, incarnation, epoch, $3 FROM nw.audit_checkpoints WHERE size = $1 LIMIT 1`, c.Size, c.At, signature)
	super := h.DB.Pool(h.t, teststack.Superuser)
	_, err = super.Exec(context.Background(), `SET session_replication_role = replica; UPDATE nw.audit SET at = at - interval '400 days'; RESET session_replication_role`)
	require.NoError(h.t, err)
	return c.Size
}

// Old rows go, once somebody else has them; proofs of everything stay, and so does what a standing consent rests on.
func TestRetention(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	task := h.Consent(h.Task("close-the-day"))
	first := h.run(task)
	h.sign()
	size := h.age()
	second := h.run(task)
	h.sign()
	early := h.receipt(first)
	key := h.Bundle.Auditor().Verifier()
	b := h.export(false)
	anchors := b.Checkpoints
	h.whole(b, anchors)
	ctx, day := context.Background(), time.Now().Add(-200*24*time.Hour)

	_, err := sequencer.PlanPrune(ctx, h.hand(), day)
	require.ErrorIs(t, err, sequencer.ErrNoPeriod)
	least, kept, err := sequencer.Keep(ctx, h.hand(), 184)
	require.NoError(t, err)
	assert.False(t, kept, "less than the law wants")
	assert.Equal(t, 185, least)
	_, kept, err = sequencer.Keep(ctx, h.hand(), 190)
	require.NoError(t, err)
	assert.True(t, kept)
	_, err = sequencer.PlanPrune(ctx, h.hand(), time.Now().Add(-189*24*time.Hour))
	require.ErrorIs(t, err, sequencer.ErrTooYoung)
	_, err = sequencer.PlanPrune(ctx, h.hand(), time.Now().Add(-500*24*time.Hour))
	require.ErrorIs(t, err, sequencer.ErrNothing)
	plan, err := sequencer.PlanPrune(ctx, h.hand(), day)
	require.NoError(t, err)
	require.Equal(t, size, plan.Size)
	require.NoError(t, b.Keeps(plan.From, plan.Size, plan.Root, key, anchors))
	require.Error(t, b.Keeps(plan.From, plan.Size, plan.Root, key, nil), "no anchor")
	require.Error(t, b.Keeps(plan.From, plan.Size, [32]byte{1}, key, anchors), "another tree")
	require.Error(t, b.Keeps(plan.From, 1000, plan.Root, key, anchors), "an older export")

	before := h.Count(`SELECT count(*) FROM nw.audit`)
	h.refusedSQL(`DELETE FROM nw.audit`)
	h.refusedSQL(`SELECT nw.audit_prune($1, $2, sha256('x'), 10)`, day, size)
	h.refusedSQL(`SELECT nw.audit_prune($1, $2, $3, 10)`, time.Now(), size, plan.Root[:])
	h.refusedSQL(`SELECT nw.audit_prune($1, $2, $3, 10000)`, day.Add(-300*24*time.Hour), size, plan.Root[:])
	assert.Equal(t, before, h.Count(`SELECT count(*) FROM nw.audit`))

	rows, err := sequencer.Prune(ctx, h.hand(), plan)
	require.NoError(t, err)
	assert.Equal(t, size-1, rows, "all but the consent that stands")
	_, err = sequencer.PlanPrune(ctx, h.hand(), day)
	require.ErrorIs(t, err, sequencer.ErrNothing)
	h.refusedSQL(`DELETE FROM nw.audit WHERE verb = 'prune'`)
	h.sign()

	r := h.whole(h.export(false), anchors)
	assert.Equal(t, size-1, r.Gone)
	later := h.export(true)
	r = h.whole(later, anchors)
	assert.Equal(t, size, r.From)
	p, err := later.Prove(size+1, key)
	require.NoError(t, err)
	require.NoError(t, p.Check(key))
	require.Error(t, later.Keeps(0, size, plan.Root, key, anchors), "what was pruned is not in it")
	assert.Error(t, h.export(false).Keeps(0, size, plan.Root, key, anchors), "nor here")

	h.good(early)
	_, err = h.get(authoritytest.MemberName, api.PathRuns+"/"+first+"/receipt")
	assert.ErrorContains(t, err, string(api.ReceiptGone))
	assert.Equal(t, task, h.good(h.receipt(second)).Run.Task, "a later run of the same consent has its receipt")
	assert.Positive(t, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'prune'`))
	sealed := false
	require.NoError(t, h.Owner.QueryRow(ctx, `SELECT sealed FROM nw.audit_health()`).Scan(&sealed))
	assert.True(t, sealed)
}
