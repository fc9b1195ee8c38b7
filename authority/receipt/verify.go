package receipt

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"reflect"

	"golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Verify checks a run receipt with the authority's keys and the audit log's,
// which must not come from the receipt. Every refusal is a *Fault.
func Verify(signed string, keys capability.KeySet, log note.Verifier) (*Receipt, error) {
	payload, generation, err := capability.VerifyReceipt(signed, keys)
	if err != nil {
		return nil, wrong(NotSigned, "%v", err)
	}
	r, ok := parse(payload)
	if !ok || r.Generation != generation || len(r.Records) > MaxRecords+1 {
		return nil, wrong(NotAReceipt, "the signed document is not a run receipt in its one spelling")
	}
	if err := r.inLog(log); err != nil {
		return nil, err
	}
	derived, err := Derive(r.Records)
	if err != nil {
		return nil, err
	}
	return r, r.says(derived)
}

// inLog: the checkpoint is of this cluster's log, and all the records are under it.
func (r *Receipt) inLog(log note.Verifier) error {
	cluster, err := base64.RawURLEncoding.DecodeString(r.Cluster)
	if err != nil || log.Name() != "nightwarrant/audit/"+hex.EncodeToString(cluster) {
		return wrong(CheckpointForeign, "the log's key is of another cluster")
	}
	if _, err := audit.OpenCheckpoint([]byte(r.Checkpoint), log); err != nil {
		return wrong(CheckpointForeign, "%v", err)
	}
	for _, record := range r.Records {
		if err := record.proof(r.Checkpoint).Check(log); err != nil {
			return wrong(RecordNotInLog, "record %d: %v", record.Leaf, err)
		}
	}
	return nil
}

// says holds what a receipt says against what its records say. What only the
// database knows is the signature's to vouch for.
func (r *Receipt) says(derived *Receipt) error {
	derived.adopt(r)
	for _, part := range []struct {
		name       string
		here, told any
	}{{"the run", r.Run, derived.Run}, {"the consent", r.Consent, derived.Consent}, {"the claims", r.Claims, derived.Claims}, {"the effects", r.Effects, derived.Effects},
		{"the settlement", r.Settlement, derived.Settlement}} {
		if !reflect.DeepEqual(part.here, part.told) {
			return wrong(StatementDiffers, "%s: the audit records say something else", part.name)
		}
	}
	return nil
}

// adopt takes over from a whole receipt what audit records do not say.
func (r *Receipt) adopt(whole *Receipt) {
	r.Run.Task, r.Run.TaskRevision, r.Run.NominalUS = whole.Run.Task, whole.Run.TaskRevision, whole.Run.NominalUS
	r.Settlement.Currency, r.Settlement.Steps = whole.Settlement.Currency, whole.Settlement.Steps
	for i := range min(len(r.Claims), len(whole.Claims)) {
		for j := range min(len(r.Claims[i].Profiles), len(whole.Claims[i].Profiles)) {
			p, q := &r.Claims[i].Profiles[j], whole.Claims[i].Profiles[j]
			p.Name, p.Revision = q.Name, q.Revision
		}
	}
	for i := range min(len(r.Effects), len(whole.Effects)) {
		e, f := &r.Effects[i], whole.Effects[i]
		e.Guard, e.Action, e.Resource, e.Currency = f.Guard, f.Action, f.Resource, f.Currency
	}
}

// WordOf is what a refusal of Verify names.
func WordOf(err error) Word {
	var f *Fault
	if errors.As(err, &f) {
		return f.What
	}
	return ""
}
