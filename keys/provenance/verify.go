package provenance

import (
	"context"
	"crypto/ecdsa"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// Policy is who and what is believed. It has no exceptions.
type Policy struct {
	ClusterID    [16]byte
	Officers     []Officer
	Threshold    int // of officers, at least two
	Profiles     []Profile
	Attestations map[string]Verifier // by format
	Now          func() time.Time
}

// Check refuses a policy that nothing could satisfy, or anybody alone.
func (p Policy) Check() error { return p.checkOfficers() }

// Evidence is what is held against a policy. What is absent counts as bad.
type Evidence struct {
	Record, Approvals           []byte // files
	Snapshot, SnapshotApprovals []byte
	Attestation                 []byte           // what a device has signed; the record names its format
	Module                      fips.Module      // of the program that uses the key
	PublicKey                   *ecdsa.PublicKey // of the key that signs here
	Replica                     [32]byte         // who asks, for the challenge
	Registered                  Registered
	Observe                     func(context.Context) (keyhost.Observation, error)
	Challenge                   func(ctx context.Context, digest [32]byte) (signature [64]byte, err error)
}

// Registered is what the database holds of the key.
type Registered struct {
	ClusterID        [16]byte
	KID              string
	PublicKey        *ecdsa.PublicKey
	ProvenanceDigest [32]byte // of the record
}

// Report is what became of each step.
type Report struct {
	RecordID        string    `json:"record_id"`
	Digest          Hash      `json:"digest"` // of the record: the provenance digest of the key bundle
	Steps           []Step    `json:"steps"`
	EvidenceClasses []string  `json:"evidence_classes"` // A attestation, B ceremony, C live token
	CheckedAt       time.Time `json:"checked_at"`
	GoodUntil       time.Time `json:"good_until"` // the first end of record, key, snapshot and certificates; zero when refused
	Warnings        []string  `json:"warnings"`
	Refusal         *Refusal  `json:"refusal,omitempty"` // the first one
}

// Step is one of the nine of keys.md §3.5.
type Step struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Code   Code   `json:"code,omitempty"`
	Detail string `json:"detail"`
}

// Accepted tells that all nine steps were taken and none refused.
func (r Report) Accepted() bool { return r.Good() && len(r.Steps) == len(steps) }

// Good tells that no step that was taken refused.
func (r Report) Good() bool { return r.Refusal == nil && len(r.Steps) > 0 }

// Err is the first refusal, or nil.
func (r Report) Err() error {
	if r.Refusal == nil {
		return nil
	}
	return r.Refusal
}

type check struct {
	name string
	look func(*verification, context.Context) *Refusal
}

// steps in the order of keys.md §3.5.
var steps = []check{
	{"application module", (*verification).module},
	{"record", (*verification).scope},
	{"validation", (*verification).validation},
	{"evidence", (*verification).evidence},
	{"token", (*verification).token},
	{"key object", (*verification).object},
	{"challenge", (*verification).challenge},
	{"registered identity", (*verification).registered},
	{"runtime", (*verification).runtime},
}

// Verify takes all nine steps. A step that refuses does not hide what later ones
// find; but nothing is judged of a record that is not signed.
func (p Policy) Verify(ctx context.Context, e Evidence) Report {
	return p.verify(ctx, e, 0, len(steps))
}

// VerifyDocuments takes the steps that need no token and no program of the
// deployment: record, validation and evidence. It never comes to Accepted.
func (p Policy) VerifyDocuments(ctx context.Context, e Evidence) Report {
	return p.verify(ctx, e, 1, 4)
}

func (p Policy) verify(ctx context.Context, e Evidence, from, to int) Report {
	v := &verification{policy: p, given: e, now: p.Now().UTC(), live: to == len(steps)}
	v.report = Report{EvidenceClasses: []string{}, Warnings: []string{}, CheckedAt: v.now}
	v.read()
	for i, c := range steps[from:to] {
		v.take(ctx, from+i+1, c)
	}
	if v.report.Refusal == nil {
		v.report.GoodUntil = v.until
	}
	return v.report
}

// take takes one step.
func (v *verification) take(ctx context.Context, number int, c check) {
	s := Step{Number: number, Name: c.name}
	if number > 2 && v.record == nil {
		s.Detail = "not reached: there is no record that was signed"
	} else if r := c.look(v, ctx); r != nil {
		s.Code, s.Detail = r.Code, r.Detail
		if v.report.Refusal == nil {
			v.report.Refusal = &Refusal{r.Code, number, r.Detail}
		}
	} else {
		s.OK, s.Detail = true, v.detail
	}
	v.detail = ""
	v.report.Steps = append(v.report.Steps, s)
}
