package provenance

import (
	"errors"
	"slices"
	"time"
)

// What a certificate of the CMVP can be.
const (
	StatusActive     = "active"
	StatusHistorical = "historical"
	StatusRevoked    = "revoked"
	StatusInProcess  = "in_process" // not validated
)

// The standards of certificates; only the first one counts.
const (
	Standard3 = "FIPS 140-3"
	Standard2 = "FIPS 140-2"
)

// How old a snapshot may be.
const (
	SnapshotLife  = 30 * 24 * time.Hour
	snapshotAlarm = 20 * 24 * time.Hour
)

// Why a record counts no more.
const (
	WithdrawnRevoked    = "revoked"
	WithdrawnSuperseded = "superseded"
)

// Snapshot is what officers saw at the CMVP, and which records they have
// withdrawn: both must be fresh, and are signed together.
type Snapshot struct {
	Schema       string        `json:"schema"` // cmvp-snapshot/v1
	TakenAt      Time          `json:"taken_at"`
	Source       string        `json:"source"` // where they looked
	Certificates []Certificate `json:"certificates"`
	Withdrawn    []Withdrawal  `json:"withdrawn"`
}

// Certificate is one of the CMVP.
type Certificate struct {
	Number               int64    `json:"number"`
	Status               string   `json:"status"`
	Standard             string   `json:"standard"`
	Level                int64    `json:"overall_level"`
	Vendor               string   `json:"vendor"`
	Name                 string   `json:"name"`
	Hardware             []string `json:"hardware"` // versions
	Firmware             []string `json:"firmware"`
	Software             []string `json:"software"`
	Environments         []string `json:"environments"` // tested, or affirmed by the vendor
	Caveat               string   `json:"caveat"`
	SecurityPolicySHA256 Hash     `json:"security_policy_sha256"`
	Sunset               Time     `json:"sunset"`
}

// Withdrawal ends a record before its time.
type Withdrawal struct {
	RecordID string `json:"record_id"`
	Why      string `json:"why"` // revoked or superseded
	At       Time   `json:"at"`
}

// ParseSnapshot reads a snapshot: canonical, complete and within bounds.
func ParseSnapshot(b []byte) (*Snapshot, Document, error) {
	var s Snapshot
	d, err := parse(b, &s, DomainSnapshot)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, Document{}, err
	}
	return &s, d, nil
}

// Spell is the snapshot's one spelling.
func (s *Snapshot) Spell() (Document, error) {
	if err := s.check(); err != nil {
		return Document{}, err
	}
	return spell(s, DomainSnapshot)
}

func (s *Snapshot) check() error {
	switch {
	case s.Schema != SnapshotSchema:
		return errors.New("schema is not " + SnapshotSchema)
	case s.TakenAt.IsZero() || s.Source == "":
		return errors.New("taken_at or source is missing")
	}
	numbers := map[int64]bool{}
	for _, c := range s.Certificates {
		if numbers[c.Number] {
			return errors.New("a certificate stands twice")
		}
		numbers[c.Number] = true
		if err := c.check(); err != nil {
			return err
		}
	}
	for _, w := range s.Withdrawn {
		if !id128.MatchString(w.RecordID) || w.Why != WithdrawnRevoked && w.Why != WithdrawnSuperseded || w.At.IsZero() {
			return errors.New("a withdrawn record has no record_id, no time or neither was revoked nor superseded")
		}
	}
	return bounded([]string{s.Source}, len(s.Certificates), len(s.Withdrawn))
}

func (c Certificate) check() error {
	switch {
	case c.Number < 1 || !slices.Contains([]string{StatusActive, StatusHistorical, StatusRevoked, StatusInProcess}, c.Status):
		return errors.New("a certificate has no number or no status that there is")
	case c.Standard != Standard3 && c.Standard != Standard2:
		return errors.New("a certificate is of no standard that there is")
	}
	return bounded(slices.Concat([]string{c.Vendor, c.Name, c.Caveat}, c.Hardware, c.Firmware, c.Software, c.Environments),
		len(c.Hardware), len(c.Firmware), len(c.Software), len(c.Environments))
}

// certificate is the one of that number.
func (s *Snapshot) certificate(number int64) (Certificate, bool) {
	i := slices.IndexFunc(s.Certificates, func(c Certificate) bool { return c.Number == number })
	if i < 0 {
		return Certificate{}, false
	}
	return s.Certificates[i], true
}

// withdrawn tells why a record counts no more; empty when it counts.
func (s *Snapshot) withdrawn(record string) string {
	i := slices.IndexFunc(s.Withdrawn, func(w Withdrawal) bool { return w.RecordID == record })
	if i < 0 {
		return ""
	}
	return s.Withdrawn[i].Why
}

// fresh tells that a snapshot is of the last 30 days.
func (s *Snapshot) fresh(now time.Time) *Refusal {
	if age := now.Sub(s.TakenAt.Time); age < 0 || age > SnapshotLife {
		return refuse(ModuleStatusStale, "the snapshot of the CMVP is of %s; it must be of the last 30 days", s.TakenAt.Format(time.DateOnly))
	}
	return nil
}

func (p Policy) signedSnapshot(text, approvals []byte) (*Snapshot, *Refusal) {
	s, d, err := ParseSnapshot(text)
	if err != nil {
		return nil, refuse(SignatureInvalid, "this is no snapshot that could have been signed: %s", err)
	}
	if err := p.Check(); err != nil {
		return nil, refuse(Threshold, "the officers of the configuration cannot decide: %s", err)
	}
	return s, p.approved(d, approvals)
}

// VerifySnapshot holds a snapshot against its signatures and its age.
func (p Policy) VerifySnapshot(text, approvals []byte) error {
	s, r := p.signedSnapshot(text, approvals)
	if r == nil {
		r = s.fresh(p.Now())
	}
	if r != nil {
		return r
	}
	return nil
}
