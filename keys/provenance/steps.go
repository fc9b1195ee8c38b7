package provenance

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// verification is one pass over the evidence.
type verification struct {
	policy   Policy
	given    Evidence
	now      time.Time
	live     bool // the token is there to be looked at
	report   Report
	detail   string
	until    time.Time
	record   *Record // that was signed
	unsigned *Refusal
	snapshot *Snapshot // that was signed
	unsound  *Refusal

	observed   *keyhost.Observation
	unobserved *Refusal
}

// read reads both documents; of what was not signed nothing is kept.
func (v *verification) read() {
	if v.unsigned = v.readRecord(); v.unsigned != nil {
		v.record = nil
	}
	if v.unsound = v.readSnapshot(); v.unsound != nil {
		v.snapshot = nil
	}
}

func (v *verification) readRecord() *Refusal {
	if len(v.given.Record) == 0 {
		return refuse(Missing, "there is no record of where the key comes from")
	}
	if err := v.policy.Check(); err != nil {
		return refuse(Threshold, "the officers of the configuration cannot decide: %s", err)
	}
	r, d, err := ParseRecord(v.given.Record)
	if err != nil {
		return refuse(SignatureInvalid, "this is no record that could have been signed: %s", err)
	}
	v.record, v.report.RecordID, v.report.Digest = r, r.RecordID, d.Digest
	return v.policy.approved(d, v.given.Approvals)
}

func (v *verification) readSnapshot() *Refusal {
	s, r := v.policy.signedSnapshot(v.given.Snapshot, v.given.SnapshotApprovals)
	if r != nil {
		return refuse(EvidenceInsufficient, "there is no signed snapshot of the CMVP: %s", r)
	}
	v.snapshot = s
	return nil
}

// ends notes when something that was found good will end.
func (v *verification) ends(t time.Time) {
	if v.until.IsZero() || t.Before(v.until) {
		v.until = t
	}
}

// module is step 1: the program's own module.
func (v *verification) module(context.Context) *Refusal {
	m := v.given.Module
	if code := m.Refusal(); code != "" {
		return refuse(Code(code), "this program was built with GOFIPS140=%q, and its module is %s", m.Build, map[bool]string{true: "on", false: "off"}[m.Enabled])
	}
	v.detail = m.Build
	return nil
}

// scope is step 2: the record is signed, for this cluster and key, and in force.
func (v *verification) scope(context.Context) *Refusal {
	if v.unsigned != nil {
		return v.unsigned
	}
	r := v.record
	switch {
	case r.ClusterID != hex.EncodeToString(v.policy.ClusterID[:]):
		return refuse(ScopeMismatch, "the record is for another cluster")
	case r.Purpose != PurposeSigning:
		return refuse(ScopeMismatch, "the record is for a key of the purpose %q", r.Purpose)
	case r.Key.Algorithm != "ES256" || r.Key.Curve != "1.2.840.10045.3.1.7":
		return refuse(KeyCurveInvalid, "the record is for a key of another algorithm or curve")
	case v.live && !r.Key.is(v.given.PublicKey) || v.given.PublicKey != nil && !r.Key.is(v.given.PublicKey):
		return refuse(KeyMismatch, "the record is for another key than the one that signs")
	}
	return v.inForce()
}

func (v *verification) inForce() *Refusal {
	r := v.record
	switch {
	case v.now.Before(r.IssuedAt.Time) || v.now.Before(r.Key.NotBefore.Time):
		return refuse(NotYetValid, "the record or its key begins later than now")
	case !v.now.Before(r.ExpiresAt.Time) || !v.now.Before(r.Key.NotAfter.Time):
		return refuse(Expired, "the record or its key has ended")
	}
	if v.snapshot != nil {
		switch v.snapshot.withdrawn(r.RecordID) {
		case WithdrawnRevoked:
			return refuse(Revoked, "officers have revoked the record")
		case WithdrawnSuperseded:
			return refuse(Superseded, "officers have put another record in its place")
		}
	}
	v.ends(r.ExpiresAt.Time)
	v.ends(r.Key.NotAfter.Time)
	if left := v.until.Sub(v.now); left < recordAlarm {
		v.report.Warnings = append(v.report.Warnings, fmt.Sprintf("the record ends on %s: rotate the key before", v.until.Format(time.DateOnly)))
	}
	v.detail = "signed by " + fmt.Sprint(v.policy.Threshold) + " officers or more"
	return nil
}

// recordAlarm is how long before its end a record is warned of.
const recordAlarm = 60 * 24 * time.Hour

// is tells whether a public key is the recorded one.
func (k Key) is(public *ecdsa.PublicKey) bool {
	if public == nil {
		return false
	}
	spki, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return false
	}
	jkt, err := capability.JKT(public)
	return err == nil && k.SPKISHA256 == sha256.Sum256(spki) && k.JWKThumbprint == jkt.String()
}

// validation is step 3: both modules are validated, as the signed snapshot says.
func (v *verification) validation(context.Context) *Refusal {
	if v.unsound != nil {
		return v.unsound
	}
	s := v.snapshot
	age := v.now.Sub(s.TakenAt.Time)
	switch r := s.fresh(v.now); {
	case r != nil:
		return r
	case s.TakenAt.Before(v.record.Module.StatusCheckedAt.Time):
		return refuse(ModuleStatusStale, "the snapshot is older than what the record was made from")
	case age > snapshotAlarm:
		v.report.Warnings = append(v.report.Warnings, fmt.Sprintf("the snapshot of the CMVP is %d days old: sign a new one before it is 30", int(age.Hours()/24)))
	}
	v.ends(s.TakenAt.Add(SnapshotLife))
	m, a := v.record.Module, v.record.Application
	if r := v.certified("the token's module", m.Certificate, m.Versions, m.TestedConfiguration); r != nil {
		return r
	}
	if r := v.certified("the program's module", a.Certificate, Versions{Software: a.Version}, a.TestedConfiguration); r != nil {
		return r
	}
	if r := v.application(); r != nil {
		return r
	}
	return v.approvedMode()
}

// application holds the program that runs against the recorded one.
func (v *verification) application() *Refusal {
	a, m := v.record.Application, v.given.Module
	switch {
	case !strings.HasPrefix(a.Build, a.Version+"-") && !(fips.Synthetic && a.Build == a.Version): // v1.26.0, without a certificate, has no digest in its name
		return refuse(AppModuleUnpinned, "the recorded build %q is none of the certified version %q", a.Build, a.Version)
	case !v.live:
		return nil
	case m.Build != a.Build || a.Go != "" && m.Go != a.Go:
		return refuse(AppModuleUnpinned, "this program was built with %q by %s, and recorded is %q", m.Build, m.Go, a.Build)
	case len(a.BinarySHA256) > 0 && !slices.Contains(a.BinarySHA256, Hash(m.BinarySHA256)):
		return refuse(AppModuleUnpinned, "this program is none of the recorded ones")
	}
	return nil
}

// certified holds one module against its certificate.
func (v *verification) certified(what string, number int64, have Versions, environment string) *Refusal {
	c, ok := v.snapshot.certificate(number)
	switch {
	case !ok || c.Status == StatusInProcess:
		return refuse(ModuleNotValidated, "%s has no certificate in the snapshot; a tested algorithm and a module in process are none", what)
	case c.Status == StatusRevoked:
		return refuse(ModuleRevoked, "certificate %d of %s is revoked", number, what)
	case c.Standard != Standard3:
		return refuse(ModuleStandardObsolete, "certificate %d of %s is of %s", number, what, c.Standard)
	case c.Status != StatusActive:
		return refuse(ModuleHistorical, "certificate %d of %s is historical", number, what)
	case !v.now.Before(c.Sunset.Time):
		return refuse(ModuleSunset, "certificate %d of %s has had its sunset", number, what)
	case have == Versions{} || !c.has(have):
		return refuse(ModuleVersionMismatch, "certificate %d does not name the version of %s", number, what)
	case !slices.Contains(c.Environments, environment):
		return refuse(ModuleConfigUntested, "certificate %d does not name the environment of %s", number, what)
	}
	v.ends(c.Sunset.Time)
	return nil
}

// has tells that each version that is spoken of is one of the certificate's, and
// that of each kind that it names one is spoken of.
func (c Certificate) has(v Versions) bool {
	named := func(version string, all []string) bool {
		return version == "" && len(all) == 0 || slices.Contains(all, version)
	}
	return named(v.Hardware, c.Hardware) && named(v.Firmware, c.Firmware) && named(v.Software, c.Software)
}

// approvedMode wants the officers' word, and the way into the library that its profile knows.
func (v *verification) approvedMode() *Refusal {
	m, t := v.record.Module, v.record.Token
	profile, r := v.profile()
	switch {
	case r != nil:
		return r
	case t.EntryPoint != profile.EntryPoint:
		return refuse(ModuleNotApprovedMode, "%s is entered by %s, and its approved mode by %s", t.Provider, t.EntryPoint, profile.EntryPoint)
	case m.ApprovedMode == "" || m.ApprovedModeObserved == "" || slices.Contains(notApproved, m.ApprovedMode):
		return refuse(ModuleNotApprovedMode, "nothing shows that the token's module is in its approved mode")
	}
	return nil
}

// profile is the one that the record names; a software token has none that is shipped.
func (v *verification) profile() (Profile, *Refusal) {
	t := v.record.Token
	profile, ok := profileOf(v.policy.Profiles, t.Provider)
	switch {
	case !profile.Software && isSoftware(t.Manufacturer, t.Model, t.LibraryVersion):
		return Profile{}, refuse(ProviderSoftwareToken, "%s is a software token", t.Model)
	case !ok:
		return Profile{}, refuse(EvidenceInsufficient, "no profile says what the attributes of %q mean", t.Provider)
	}
	return profile, nil
}

// notApproved are indicators that say that a module is not in its approved mode.
var notApproved = []string{"fips-mode 00"} // YubiHSM

// runtime is step 9: what was good now is looked at again while the program runs.
func (v *verification) runtime(context.Context) *Refusal {
	if r := v.report.Refusal; r != nil {
		return refuse(r.Code, "step %d refuses", r.Step)
	}
	v.detail = "good until " + v.until.Format(time.RFC3339) + " at most, and looked at again every " + Interval.String()
	return nil
}

// Interval is how often a running program takes all the steps again.
const Interval = 10 * time.Second
