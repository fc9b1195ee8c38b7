package authority

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/receipt"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// receiptWithin bounds how long the proofs of one run receipt may take.
const receiptWithin = 10 * time.Second

// RunReceipt is the run receipt of a finished run that acted as the member.
func (a *Authority) RunReceipt(ctx context.Context, m Actor, run string) (api.RunReceipt, error) {
	return a.runReceipt(ctx, m, own(m), run)
}

// AnyRunReceipt is that of anybody's run, for operators and auditors.
func (a *Authority) AnyRunReceipt(ctx context.Context, m Actor, run string) (none api.RunReceipt, err error) {
	if err := m.auditing(); err != nil {
		return none, err
	}
	return a.runReceipt(ctx, m, anyones(m), run)
}

func (a *Authority) runReceipt(ctx context.Context, m Actor, who seen, run string) (out api.RunReceipt, err error) {
	ctx, cancel := context.WithTimeout(ctx, receiptWithin)
	defer cancel()
	ref, err := named(run)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return out, err
	}
	row, err := a.receiptRow(ctx, who, ref)
	if err != nil {
		return out, err
	}
	r, err := row.receipt()
	if err != nil {
		return out, fmt.Errorf("the audit records of a run: %w", err)
	}
	keys := a.Keys()
	log := sequencer.Store{Pool: a.Pool, Key: keys.Auditor()}
	checkpoint, err := log.Over(ctx, row.last)
	if err != nil {
		return out, unavailable(err)
	}
	if err := r.Prove(checkpoint, log.Key.Verifier(), log.Nodes(ctx)); err != nil {
		return out, fmt.Errorf("prove the audit records of a run: %w", err)
	}
	id := keys.Identity()
	r.Issuer, r.IssuedAt, r.Generation, r.Cluster = a.Issuer, a.Now().Unix(), id.Generation, encode(id.ClusterID[:])
	out.Run = run
	out.Receipt, err = r.Sign(keys.SignerFor(keyhost.PurposeReceipt))
	return out, err
}

// receiptRow is what the database knows for a run receipt.
type receiptRow struct {
	revision, steps int64
	task            []byte
	nominal         time.Time
	currency        string
	effects         []effectNames
	profiles        []receipt.Profile
	records         []receipt.Record
	last            int64 // of records, in the log
}

// effectNames are digests that stand in no audit record.
type effectNames struct {
	Number                  int64
	Guard, Action, Resource string // hex
}

func (a *Authority) receiptRow(ctx context.Context, who seen, run []byte) (row receiptRow, err error) {
	var verdict string
	var revision, steps, last *int64
	var nominal *time.Time
	var currency *string
	var effects, profiles, records []byte
	err = a.look(ctx, `SELECT verdict, task, revision, nominal_at, steps, currency, effects, profiles, records, last FROM nw.show_receipt($1, $2, $3, $4)`,
		[]any{who.member[:], who.all, run, receipt.MaxRecords + 1}, &verdict, &row.task, &revision, &nominal, &steps, &currency, &effects, &profiles, &records, &last)
	if err != nil {
		return row, err
	}
	if verdict != "ok" {
		return row, api.Refuse(api.Code(verdict))
	}
	row.revision, row.steps, row.nominal, row.currency, row.last = *revision, *steps, *nominal, deref(currency), *last
	for _, part := range []struct {
		text []byte
		into any
	}{{effects, &row.effects}, {profiles, &row.profiles}, {records, &row.records}} {
		if part.text == nil {
			continue
		}
		if err := json.Unmarshal(part.text, part.into); err != nil {
			return row, err
		}
	}
	return row, nil
}

// receipt derives what the audit records say, and adds what they do not.
func (row receiptRow) receipt() (*receipt.Receipt, error) {
	r, err := receipt.Derive(row.records)
	if err != nil {
		return nil, err
	}
	r.Run.Task, r.Run.TaskRevision, r.Run.NominalUS = encode(row.task), row.revision, row.nominal.UnixMicro()
	r.Settlement.Steps, r.Settlement.Currency = row.steps, row.currency
	names := map[int64]effectNames{}
	for _, e := range row.effects {
		names[e.Number] = e
	}
	for i := range r.Effects {
		e := &r.Effects[i]
		n := names[e.Number]
		e.Guard, e.Action, e.Resource, e.Currency = unhex(n.Guard), unhex(n.Action), unhex(n.Resource), row.currency
	}
	profiles := map[int64]receipt.Profile{}
	for _, p := range row.profiles {
		profiles[p.Number] = p
	}
	for _, c := range r.Claims {
		for i := range c.Profiles {
			p := profiles[c.Profiles[i].Number]
			c.Profiles[i].Name, c.Profiles[i].Revision = unhex(p.Name), p.Revision
		}
	}
	return r, nil
}

// unhex spells what the database gave as hex.
func unhex(h string) string {
	b, _ := hex.DecodeString(h) // of our own making
	return encode(b)
}
