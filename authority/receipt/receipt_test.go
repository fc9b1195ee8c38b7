package receipt_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/receipt"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// house is an authority whose log is numbered and signed when a test says so.
type house struct {
	*authoritytest.House
	t     *testing.T
	guard *authoritytest.Guard
	log   *sequencer.Sequencer
}

func newHouse(t *testing.T) *house {
	h := authoritytest.New(t)
	return &house{h, t, h.Guard(), sequencer.New(sequencer.Config{Pool: h.Pool, Key: h.Bundle.Auditor(), Who: sha256.Sum256([]byte("here")), Log: slog.New(slog.DiscardHandler)})}
}

// sign lets the log go on until everything is under a checkpoint.
func (h *house) sign() {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		_, err := h.log.Round(context.Background())
		require.NoError(h.t, err)
		return h.Count(`SELECT count(*) FROM nw.audit_waiting`) == 0 && h.Count(`SELECT count(*) FROM nw.audit_leaves`) == h.Count(`SELECT coalesce(max(size), 0) FROM nw.audit_checkpoints`)
	}, 30*time.Second, 50*time.Millisecond)
}

// effect takes an effect to its outcome.
func (h *house) effect(w *authoritytest.Holder, step, outcome string) {
	h.t.Helper()
	minted, attempt := w.Minted(step, step), authoritytest.NewAttempt()
	h.Into(h.guard.Admit(h.guard.Ask(w, minted, step, attempt)), nil)
	h.Into(h.guard.Settle(minted.Effect, attempt, outcome), nil)
}

// run takes a run of the task to its end: a change, one that was not made and one that was only granted.
func (h *house) run(task string) string {
	h.t.Helper()
	w := h.Claim(h.Plan(task))
	h.effect(w, "rent", api.Committed)
	h.effect(w, "tax", api.NotApplied)
	w.Minted("wage", "wage")
	h.Into(w.Settle("succeeded"), nil)
	return w.Run
}

func (h *house) get(who, path string) (out api.RunReceipt, err error) {
	err = h.Person(who).Do("GET", path, "", nil, &out)
	return out, err
}

func (h *house) receipt(run string) string {
	h.t.Helper()
	out, err := h.get(authoritytest.MemberName, api.PathRuns+"/"+run+"/receipt")
	require.NoError(h.t, err)
	require.Equal(h.t, run, out.Run)
	return out.Receipt
}

func (h *house) verify(signed string) (*receipt.Receipt, error) {
	return receipt.Verify(signed, h.Bundle, h.Bundle.Auditor().Verifier())
}

func (h *house) good(signed string) *receipt.Receipt {
	h.t.Helper()
	r, err := h.verify(signed)
	require.NoError(h.t, err)
	return r
}

// forge is a receipt that the authority's own key signs, after somebody has been at it.
func (h *house) forge(signed string, spoil func(r *receipt.Receipt)) string {
	h.t.Helper()
	r := h.good(signed)
	spoil(r)
	again, err := r.Sign(h.Bundle.SignerFor(keyhost.PurposeReceipt))
	require.NoError(h.t, err)
	return again
}

func TestOneRun(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	task := h.Consent(h.Task("close-the-day"))
	run := h.run(task)
	_, err := h.get(authoritytest.MemberName, api.PathRuns+"/"+run+"/receipt")
	assert.ErrorContains(t, err, string(api.ReceiptPending), "the log is not signed past its end")
	h.sign()

	r := h.good(h.receipt(run))
	assert.Equal(t, h.URL, r.Issuer)
	assert.Equal(t, run, r.Run.Reference)
	assert.Equal(t, task, r.Run.Task)
	assert.EqualValues(t, 1, r.Run.TaskRevision)
	assert.NotEmpty(t, r.Consent.SHA256)
	assert.Less(t, r.Consent.GivenUS, r.Run.PlannedUS)
	require.Len(t, r.Claims, 1)
	assert.EqualValues(t, 1, r.Claims[0].Fence)
	assert.Positive(t, r.Claims[0].Epoch)
	assert.Positive(t, r.Claims[0].Sequence)
	assert.EqualValues(t, 1, r.Claims[0].Incarnation)
	require.Len(t, r.Claims[0].Profiles, 1)
	assert.EqualValues(t, 1, r.Claims[0].Profiles[0].Revision)
	require.Len(t, r.Effects, 3)
	assert.Equal(t, []string{"committed", "not_applied", "lapsed"}, []string{r.Effects[0].Outcome, r.Effects[1].Outcome, r.Effects[2].Outcome})
	for _, e := range r.Effects {
		assert.Len(t, e.Guard, 43)
		assert.Len(t, e.SHA256, 43)
	}
	assert.Equal(t, "succeeded", r.Settlement.State)
	assert.EqualValues(t, 1, r.Settlement.Committed)
	assert.EqualValues(t, 3, r.Settlement.Steps)
	assert.Equal(t, h.good(h.receipt(run)).Checkpoint, r.Checkpoint, "the first checkpoint that covers it, for ever")

	again := h.good(h.receipt(h.anotherSigned(task)))
	assert.NotEqual(t, r.Checkpoint, again.Checkpoint)
	assert.Equal(t, r.Consent, again.Consent)
}

func (h *house) anotherSigned(task string) string {
	run := h.run(task)
	h.sign()
	return run
}

func TestWhoMayAsk(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	h.sign()
	mine, anyones := api.PathRuns+"/"+w.Run+"/receipt", api.PathAudit+"/runs/"+w.Run+"/receipt"
	for path, who := range map[string]string{mine: authoritytest.MemberName, anyones: authoritytest.AuditorName} {
		_, err := h.get(who, path)
		assert.ErrorContains(t, err, string(api.ReceiptPending), "it has not ended")
	}
	h.Into(w.Settle("failed"), nil)
	h.sign()
	_, err := h.get("member-2", mine)
	assert.ErrorContains(t, err, string(api.NotFound))
	_, err = h.get(authoritytest.OperatorName, mine)
	assert.ErrorContains(t, err, string(api.NotFound))
	_, err = h.get(authoritytest.MemberName, anyones)
	assert.ErrorContains(t, err, string(api.Forbidden))
	_, err = h.get(authoritytest.MemberName, api.PathRuns+"/nonsense/receipt")
	assert.ErrorContains(t, err, string(api.NotFound))
	for _, who := range []string{authoritytest.AuditorName, authoritytest.OperatorName} {
		out, err := h.get(who, anyones)
		require.NoError(t, err)
		assert.Equal(t, "failed", h.good(out.Receipt).Settlement.State)
	}
}

// Whatever is done to a receipt is named, and mostly without the signature's help.
func TestSpoiledReceipts(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	task := h.Consent(h.Task("close-the-day"))
	run := h.run(task)
	h.sign()
	signed := h.receipt(run)
	other := h.good(h.receipt(h.anotherSigned(task)))
	leafOf := func(r *receipt.Receipt, verb string) int {
		return slices.IndexFunc(r.Records, func(x receipt.Record) bool { return strings.Contains(x.Body, `"verb" : "`+verb+`"`) })
	}
	without := func(r *receipt.Receipt, verb string) {
		r.Records = slices.Delete(r.Records, leafOf(r, verb), leafOf(r, verb)+1)
	}
	for name, c := range map[string]struct {
		spoil func(r *receipt.Receipt)
		want  receipt.Word
	}{
		"an effect removed from what it says": {func(r *receipt.Receipt) { r.Effects = r.Effects[1:] }, receipt.StatementDiffers},
		"an effect removed with its records": {func(r *receipt.Receipt) {
			number := r.Effects[0].Number
			r.Effects = r.Effects[1:]
			r.Records = slices.DeleteFunc(r.Records, func(x receipt.Record) bool {
				var b struct{ Effect int64 }
				_ = json.Unmarshal([]byte(x.Body), &b)
				return b.Effect == number
			})
		}, receipt.EffectMissing},
		"an outcome removed":       {func(r *receipt.Receipt) { without(r, "settle_effect") }, receipt.EffectMissing},
		"a grant removed":          {func(r *receipt.Receipt) { without(r, "mint") }, receipt.RecordMissing},
		"an admission removed":     {func(r *receipt.Receipt) { without(r, "admit") }, receipt.RecordMissing},
		"the consent removed":      {func(r *receipt.Receipt) { without(r, "consent") }, receipt.RecordForeign},
		"the plan removed":         {func(r *receipt.Receipt) { without(r, "plan") }, receipt.RecordMissing},
		"the claim removed":        {func(r *receipt.Receipt) { without(r, "claim") }, receipt.StatementDiffers},
		"the end removed":          {func(r *receipt.Receipt) { without(r, "end_run") }, receipt.RecordMissing},
		"an outcome changed":       {func(r *receipt.Receipt) { r.Effects[1].Outcome = "committed" }, receipt.StatementDiffers},
		"an amount changed":        {func(r *receipt.Receipt) { r.Effects[0].Spent = 5 }, receipt.StatementDiffers},
		"a fence changed":          {func(r *receipt.Receipt) { r.Claims[0].Fence++ }, receipt.StatementDiffers},
		"a key changed":            {func(r *receipt.Receipt) { r.Claims[0].Thumbprint = r.Claims[0].Capability }, receipt.StatementDiffers},
		"the state changed":        {func(r *receipt.Receipt) { r.Settlement.State = "failed" }, receipt.StatementDiffers},
		"another run's reference":  {func(r *receipt.Receipt) { r.Run.Reference = other.Run.Reference }, receipt.StatementDiffers},
		"another consent":          {func(r *receipt.Receipt) { r.Consent.Reference = r.Run.Task }, receipt.StatementDiffers},
		"effects in another order": {func(r *receipt.Receipt) { r.Effects[0], r.Effects[1] = r.Effects[1], r.Effects[0] }, receipt.StatementDiffers},
		"records in another order": {func(r *receipt.Receipt) { r.Records[2], r.Records[3] = r.Records[3], r.Records[2] }, receipt.RecordsReordered},
		"a record twice":           {func(r *receipt.Receipt) { r.Records = slices.Insert(r.Records, 2, r.Records[2]) }, receipt.RecordsReordered},
		"a record edited": {func(r *receipt.Receipt) {
			r.Records[3].Body = strings.Replace(r.Records[3].Body, `"run" : `, `"run" : 1`, 1)
		}, receipt.RecordNotInLog},
		"a record under another number":      {func(r *receipt.Receipt) { r.Records[3].Leaf++ }, receipt.RecordNotInLog},
		"a record without its proof":         {func(r *receipt.Receipt) { r.Records[3].Hashes = nil }, receipt.RecordNotInLog},
		"another run's records and place":    {func(r *receipt.Receipt) { r.Records, r.Checkpoint = other.Records, other.Checkpoint }, receipt.StatementDiffers},
		"another run's record among its own": {func(r *receipt.Receipt) { r.Records = append(r.Records, other.Records[len(other.Records)-2]) }, receipt.RecordNotInLog},
		"another checkpoint of the log":      {func(r *receipt.Receipt) { r.Checkpoint = other.Checkpoint }, receipt.RecordNotInLog},
		"no checkpoint":                      {func(r *receipt.Receipt) { r.Checkpoint = "" }, receipt.CheckpointForeign},
		"a checkpoint that was edited":       {func(r *receipt.Receipt) { r.Checkpoint = strings.Replace(r.Checkpoint, "epoch ", "epoch 1", 1) }, receipt.CheckpointForeign},
		"another cluster":                    {func(r *receipt.Receipt) { r.Cluster = r.Run.Task }, receipt.CheckpointForeign},
		"another generation":                 {func(r *receipt.Receipt) { r.Generation++ }, receipt.NotAReceipt},
		"more records than a receipt has":    {func(r *receipt.Receipt) { r.Records = make([]receipt.Record, receipt.MaxRecords+2) }, receipt.NotAReceipt},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.verify(h.forge(signed, c.spoil))
			require.Error(t, err)
			assert.Equal(t, c.want, receipt.WordOf(err), err)
		})
	}

	stranger := newHouse(t)
	_, err := receipt.Verify(signed, stranger.Bundle, h.Bundle.Auditor().Verifier())
	assert.Equal(t, receipt.NotSigned, receipt.WordOf(err), "another authority's keys")
	_, err = receipt.Verify(signed, h.Bundle, stranger.Bundle.Auditor().Verifier())
	assert.Equal(t, receipt.CheckpointForeign, receipt.WordOf(err), "another log's key")
	last := signed[:len(signed)-3] + strings.Map(func(r rune) rune {
		if r == 'A' {
			return 'B'
		}
		return 'A'
	}, signed[len(signed)-3:])
	for _, bad := range []string{"", "a.b.c", strings.Replace(signed, ".", ".e", 1), last, signed + "."} {
		_, err := h.verify(bad)
		assert.Equal(t, receipt.NotSigned, receipt.WordOf(err))
	}
}

// P25: a run receipt is taken nowhere else, and nothing else is taken for one.
func TestOtherKindsAreNoReceipts(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	d, err := h.Authority.Readiness("challenge")
	require.NoError(t, err)
	for _, other := range []string{w.Token.Reveal(), h.guard.Token.Reveal(), d.Signed} {
		_, err := h.verify(other)
		assert.Equal(t, receipt.NotSigned, receipt.WordOf(err))
	}
	h.Into(w.Settle("succeeded"), nil)
	h.sign()
	signed := h.receipt(w.Run)
	h.good(signed)
	e := capability.Expectation{Issuer: h.URL, Now: time.Now(), Audience: h.URL}
	token := capability.Token(signed)
	_, err = capability.VerifyRun(token, h.Bundle, e)
	assert.ErrorContains(t, err, "the header is another kind's")
	_, err = capability.VerifyComponent(token, h.Bundle, e)
	assert.ErrorContains(t, err, "the header is another kind's")
	_, err = capability.VerifyEffect(token, h.Bundle, e)
	assert.ErrorContains(t, err, "the header is another kind's")
	_, err = capability.VerifyDecision(signed, h.Bundle, e, "challenge")
	assert.ErrorContains(t, err, "the header is another kind's")
	assert.Equal(t, api.InvalidToken, h.Send(h.Bearing(w.Key, token, "POST", api.PathRenew, api.RenewRequest{})).Problem().Code)
}

// No single record beside a consent makes a whole run.
func FuzzDerive(f *testing.F) {
	f.Add(`{"v":1,"verdict":"ok","verb":"plan","task":1,"run":2,"more":{"consent":"00","reference":"01"}}`)
	f.Add(`{"v":1,"verdict":"ok","verb":"end_run","task":1,"run":2,"more":{"state":"succeeded"}}`)
	f.Fuzz(func(t *testing.T, body string) {
		r, err := receipt.Derive([]receipt.Record{{Body: `{"v":1,"verdict":"ok","verb":"consent","task":1,"more":{"digest":"00","consent":"00"}}`}, {Leaf: 1, Body: body}})
		if err == nil {
			t.Fatalf("a run that has only %q is whole: %+v", body, r)
		}
	})
}
