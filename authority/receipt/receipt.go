// Package receipt is the run receipt: one signed document that ties a finished
// run together, from the consent over each claim and effect to its settlement,
// and shows for each audit record behind it that it is in the signed log
// (mission B14). Whoever has one checks it without us.
//
// What the audit records say is derived from them, here and by whoever
// verifies: a receipt says nothing else about it. What they do not say (the
// names behind digests, steps, currency) stands on the signature alone.
package receipt

import (
	"bytes"
	"encoding/base64"
	"encoding/json"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// MaxRecords bounds the audit records of one receipt, beside that of the consent.
const MaxRecords = 2000

// Receipt is the payload of a run receipt. Digests and thumbprints are base64url
// of 32 bytes, references of 16; instants are microseconds since 1970 by the
// database's clock; amounts are minor units of Currency.
type Receipt struct {
	Issuer     string     `json:"iss"`
	IssuedAt   int64      `json:"iat"`        // seconds since 1970, by the authority's clock
	Generation int64      `json:"generation"` // of the key that signed it
	Cluster    string     `json:"cluster"`
	Run        Run        `json:"run"`
	Consent    Consent    `json:"consent"`
	Claims     []Claim    `json:"claims"`
	Effects    []Effect   `json:"effects"`
	Settlement Settlement `json:"settlement"`
	Records    []Record   `json:"records"`    // by rising leaf
	Checkpoint string     `json:"checkpoint"` // signed by the log's key, over all the records
}

// Run is what ran.
type Run struct {
	Reference       string `json:"reference"`
	Number          int64  `json:"number"` // by which audit records name it
	Task            string `json:"task"`
	TaskNumber      int64  `json:"task_number"`
	TaskRevision    int64  `json:"task_revision"`
	NominalUS       int64  `json:"nominal_us"`
	PlannedUS       int64  `json:"planned_us"`
	ActivationEpoch int64  `json:"activation_epoch"`
	Leaf            int64  `json:"leaf"` // of the record that planned it
}

// Consent is the yes that it rests on.
type Consent struct {
	Reference       string `json:"reference"`
	SHA256          string `json:"sha256"`           // of the consent's document
	ActivationEpoch int64  `json:"activation_epoch"` // with which it began
	GivenUS         int64  `json:"given_us"`
	Leaf            int64  `json:"leaf"`
}

// Claim is one admission of a worker's hold on the run: the decision by which it
// was admitted, and what it gave.
type Claim struct {
	Leaf            int64     `json:"leaf"`
	AtUS            int64     `json:"at_us"`
	Again           bool      `json:"again"` // the same hold, whose answer was lost
	Epoch           int64     `json:"epoch"` // of the readiness decision, with its sequence and incarnation
	Sequence        int64     `json:"sequence"`
	Incarnation     int64     `json:"incarnation"`
	ActivationEpoch int64     `json:"activation_epoch"`
	Fence           int64     `json:"fence"`
	Thumbprint      string    `json:"thumbprint"` // of the worker's key (RFC 7638)
	Capability      string    `json:"capability_sha256"`
	Assertion       string    `json:"assertion_sha256"`
	Profiles        []Profile `json:"profiles"` // that the assertion satisfied
}

// Profile is a revision of an attestation profile.
type Profile struct {
	Number   int64  `json:"number"`
	Name     string `json:"name"` // digest
	Revision int64  `json:"revision"`
}

// Effect is one exact effect: what was granted, and what became of it. An effect
// that was not admitted has lapsed.
type Effect struct {
	Reference   string `json:"reference"`
	Number      int64  `json:"number"`
	SHA256      string `json:"effect_sha256"` // of the exact effect
	Guard       string `json:"guard"`         // digest of the name
	Action      string `json:"action_sha256"`
	Resource    string `json:"resource_sha256"`
	Outcome     string `json:"outcome"` // committed, not_applied, ambiguous or lapsed
	Amount      int64  `json:"amount"`  // reserved
	Spent       int64  `json:"spent"`   // charged
	Currency    string `json:"currency"`
	Fence       int64  `json:"fence"`
	MintedUS    int64  `json:"minted_us"` // the last time
	MintedLeaf  int64  `json:"minted_leaf"`
	Admission   int64  `json:"admission"` // its number; zero when there was none, like what follows
	Attempt     string `json:"attempt"`
	AdmittedUS  int64  `json:"admitted_us"`
	AdmitLeaf   int64  `json:"admitted_leaf"`
	SettledUS   int64  `json:"settled_us"`
	SettledLeaf int64  `json:"settled_leaf"`
}

// Settlement is how the run ended.
type Settlement struct {
	State      string `json:"state"`
	Fence      int64  `json:"fence"`
	Committed  int64  `json:"committed"`
	NotApplied int64  `json:"not_applied"`
	Ambiguous  int64  `json:"ambiguous"`
	Spent      int64  `json:"spent"`
	Currency   string `json:"currency"`
	Steps      int64  `json:"steps"`
	EndedUS    int64  `json:"ended_us"`
	Leaf       int64  `json:"leaf"`
}

// Record is an audit record with the proof that it is in the log (RFC 9162 §2.1.3).
type Record struct {
	Leaf   int64            `json:"leaf"`
	Body   string           `json:"body"` // as it was written; a record of the tree is its SHA-256
	Hashes tlog.RecordProof `json:"hashes"`
}

// Sign signs a receipt.
func (r *Receipt) Sign(s capability.Signer) (string, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return capability.SignReceipt(s, payload)
}

// parse reads a payload in the one spelling that Sign gives it, so that no member
// can be missing, unknown, given twice or in another case.
func parse(payload []byte) (*Receipt, bool) {
	r := new(Receipt)
	if json.Unmarshal(payload, r) != nil {
		return nil, false
	}
	spelled, err := json.Marshal(r)
	return r, err == nil && bytes.Equal(spelled, payload)
}

// proof is the record's, under a checkpoint.
func (r Record) proof(checkpoint string) audit.Proof {
	digest := audit.DigestOf(r.Body)
	return audit.Proof{Leaf: r.Leaf, Digest: base64.RawURLEncoding.EncodeToString(digest[:]), Body: r.Body, Hashes: r.Hashes, Checkpoint: checkpoint}
}

// Prove adds to each record its proof under a checkpoint that key has signed.
func (r *Receipt) Prove(checkpoint []byte, key note.Verifier, reader tlog.HashReader) error {
	for i := range r.Records {
		p, err := audit.Prove(reader, checkpoint, key, r.Records[i].Leaf, r.Records[i].Body)
		if err != nil {
			return err
		}
		r.Records[i].Hashes = p.Hashes
	}
	r.Checkpoint = string(checkpoint)
	return nil
}
