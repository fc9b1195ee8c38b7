package receipt

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// body is an audit record as the verbs write it; what a verb does not write is absent.
type body struct {
	Version int64  `json:"v"`
	AtUS    int64  `json:"at"`
	Verb    string `json:"verb"`
	Verdict string `json:"verdict"`
	Task    int64  `json:"task"`
	Run     int64  `json:"run"`
	Effect  int64  `json:"effect"`
	More    more   `json:"more"`
}

type more struct {
	Reference   string  `json:"reference"`
	Consent     string  `json:"consent"`
	Digest      string  `json:"digest"`
	Epoch       int64   `json:"epoch"`
	Readiness   int64   `json:"readiness"`
	Sequence    int64   `json:"sequence"`
	Incarnation int64   `json:"incarnation"`
	Activation  int64   `json:"activation"`
	Fence       int64   `json:"fence"`
	Key         string  `json:"key"`
	Capability  string  `json:"capability"`
	Assertion   string  `json:"assertion"`
	Profiles    []int64 `json:"profiles"`
	Again       bool    `json:"again"`
	Effect      string  `json:"effect"`
	Amount      int64   `json:"amount"`
	Settled     string  `json:"settled"`
	Attempt     string  `json:"attempt"`
	Admission   int64   `json:"admission"`
	Outcome     string  `json:"outcome"`
	Spent       int64   `json:"spent"`
	State       string  `json:"state"`
	Committed   int64   `json:"committed"`
	NotApplied  int64   `json:"not_applied"`
	Ambiguous   int64   `json:"ambiguous"`
}

// Derive is what audit records of one run and its consent say, by rising leaf:
// a receipt without what only the database knows. Of records that do not fit
// together it says which one.
func Derive(records []Record) (*Receipt, error) {
	d := derivation{Receipt: Receipt{Claims: []Claim{}, Effects: []Effect{}, Records: records}}
	for i, r := range records {
		if i > 0 && r.Leaf <= records[i-1].Leaf {
			return nil, wrong(RecordsReordered, "record %d does not come after record %d", r.Leaf, records[i-1].Leaf)
		}
		var b body
		if json.Unmarshal([]byte(r.Body), &b) != nil || b.Version != 1 || b.Verdict != "ok" {
			return nil, wrong(RecordForeign, "record %d is not one of a run", r.Leaf)
		}
		if err := d.take(r.Leaf, b); err != nil {
			return nil, err
		}
	}
	return &d.Receipt, d.whole()
}

type derivation struct {
	Receipt
	agreed string // the consent by which the run was planned
	ended  bool
}

func (d *derivation) take(leaf int64, b body) error {
	if b.Verb == "consent" {
		return d.consent(leaf, b)
	}
	if d.Consent.SHA256 == "" || d.ended && b.Verb != "settle_run" || b.Task != d.Run.TaskNumber || d.Run.Number != 0 && b.Run != d.Run.Number || b.Run == 0 {
		return wrong(RecordForeign, "record %d (%s) is of another run", leaf, b.Verb)
	}
	if (b.Verb == "plan") != (d.Run.Number == 0) {
		return wrong(RecordMissing, "a run is planned once and first, and record %d (%s) says otherwise", leaf, b.Verb)
	}
	switch b.Verb {
	case "plan":
		d.agreed = b.More.Consent
		d.Run.Reference, d.Run.Number, d.Run.PlannedUS, d.Run.ActivationEpoch, d.Run.Leaf = spell(b.More.Reference), b.Run, b.AtUS, b.More.Activation, leaf
	case "claim":
		d.claim(leaf, b)
	case "mint":
		d.mint(leaf, b)
	case "admit", "settle_effect", "expire_effect":
		return d.effect(leaf, b)
	case "end_run":
		m := b.More
		d.ended = true
		d.Settlement = Settlement{State: m.State, Fence: m.Fence, Committed: m.Committed, NotApplied: m.NotApplied, Ambiguous: m.Ambiguous, Spent: m.Spent, EndedUS: b.AtUS, Leaf: leaf}
	}
	return nil
}

func (d *derivation) consent(leaf int64, b body) error {
	if d.Consent.SHA256 != "" {
		return wrong(RecordForeign, "record %d is of another consent", leaf)
	}
	d.Run.TaskNumber = b.Task
	d.Consent = Consent{Reference: spell(b.More.Consent), SHA256: spell(b.More.Digest), ActivationEpoch: b.More.Epoch, GivenUS: b.AtUS, Leaf: leaf}
	return nil
}

func (d *derivation) claim(leaf int64, b body) {
	m := b.More
	c := Claim{Leaf: leaf, AtUS: b.AtUS, Again: m.Again, Epoch: m.Readiness, Sequence: m.Sequence, Incarnation: m.Incarnation, ActivationEpoch: m.Activation, Fence: m.Fence,
		Thumbprint: spell(m.Key), Capability: spell(m.Capability), Assertion: spell(m.Assertion), Profiles: []Profile{}}
	for _, number := range m.Profiles {
		c.Profiles = append(c.Profiles, Profile{Number: number})
	}
	d.Claims = append(d.Claims, c)
}

// mint makes an effect known, or renews what was granted of it. A question for
// the outcome of a settled one grants nothing.
func (d *derivation) mint(leaf int64, b body) {
	m := b.More
	if m.Settled != "" {
		return
	}
	e := d.find(b.Effect)
	if e == nil {
		d.Effects = append(d.Effects, Effect{Number: b.Effect})
		e = &d.Effects[len(d.Effects)-1]
	}
	e.Reference, e.SHA256, e.Amount, e.Fence, e.Outcome, e.MintedUS, e.MintedLeaf = spell(m.Reference), spell(m.Effect), m.Amount, m.Fence, "lapsed", b.AtUS, leaf
}

func (d *derivation) find(number int64) *Effect {
	if i := slices.IndexFunc(d.Effects, func(e Effect) bool { return e.Number == number }); i >= 0 {
		return &d.Effects[i]
	}
	return nil
}

func (d *derivation) effect(leaf int64, b body) error {
	e, m := d.find(b.Effect), b.More
	switch {
	case e == nil:
		return wrong(RecordMissing, "record %d (%s) is of an effect that no record minted", leaf, b.Verb)
	case b.Verb == "admit" && m.Again:
		return nil
	case (b.Verb == "admit") != (e.Attempt == "") || e.SettledLeaf != 0:
		return wrong(RecordMissing, "an effect is admitted and settled once, and record %d (%s) says otherwise", leaf, b.Verb)
	case b.Verb == "admit":
		e.Outcome, e.Admission, e.Attempt, e.AdmittedUS, e.AdmitLeaf = "", m.Admission, spell(m.Attempt), b.AtUS, leaf
	case b.Verb == "settle_effect":
		e.Outcome, e.Spent, e.SettledUS, e.SettledLeaf = m.Outcome, m.Spent, b.AtUS, leaf
	default:
		e.Outcome, e.Spent, e.SettledUS, e.SettledLeaf = "ambiguous", e.Amount, b.AtUS, leaf // all that was reserved is charged
	}
	return nil
}

// whole holds the effects against what the end of the run counted: one that was
// left out shows, whoever signed.
func (d *derivation) whole() error {
	if !d.ended {
		return wrong(RecordMissing, "no record says how the run ended")
	}
	if spell(d.agreed) != d.Consent.Reference {
		return wrong(RecordForeign, "the run was planned under another consent")
	}
	n := map[string]int64{}
	var spent int64
	for _, e := range d.Effects {
		n[e.Outcome]++
		spent += e.Spent
	}
	s := d.Settlement
	if n[""] > 0 || n["committed"] != s.Committed || n["not_applied"] != s.NotApplied || n["ambiguous"] != s.Ambiguous || spent != s.Spent {
		return wrong(EffectMissing, "the end of the run counted %d committed, %d not applied, %d ambiguous and %d spent, and the effects here do not", s.Committed, s.NotApplied, s.Ambiguous, s.Spent)
	}
	return nil
}

// spell is a digest or reference of an audit record in the receipt's spelling; what is none stays as it is.
func spell(h string) string {
	b, err := hex.DecodeString(h)
	if err != nil {
		return h
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// Fault is one thing that is wrong with a receipt.
type Fault struct {
	What Word   `json:"what"`
	Why  string `json:"why"`
}

// Word names what is wrong.
type Word string

// What Verify tells apart.
const (
	NotSigned         Word = "not_signed"         // by a key of that set, or not a run receipt
	NotAReceipt       Word = "not_a_receipt"      // signed, but malformed
	CheckpointForeign Word = "checkpoint_foreign" // not signed by the log's key, or another cluster's
	RecordNotInLog    Word = "record_not_in_log"  // edited, or proved against another checkpoint
	RecordsReordered  Word = "records_reordered"
	RecordForeign     Word = "record_foreign" // of another run, or consent
	RecordMissing     Word = "record_missing"
	EffectMissing     Word = "effect_missing"
	StatementDiffers  Word = "statement_differs" // what it says is not what its records say
)

func (f *Fault) Error() string { return string(f.What) + ": " + f.Why }

func wrong(w Word, format string, args ...any) *Fault {
	return &Fault{w, fmt.Sprintf(format, args...)}
}
