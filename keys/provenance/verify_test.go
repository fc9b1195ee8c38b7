package provenance_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	. "github.com/nightwarrant/nightwarrant/keys/provenance"
	"github.com/nightwarrant/nightwarrant/keys/provenance/synthetic"
)

// situation is one way in which a deployment is wrong, and what it is refused with.
type situation struct {
	name string
	code Code
	step int
	do   func(t *testing.T, w *world)
}

func evidence(spoil func(*Evidence)) func(*testing.T, *world) {
	return func(_ *testing.T, w *world) { w.spoil = spoil }
}

func record(change func(*Record)) func(*testing.T, *world) {
	return func(_ *testing.T, w *world) { change(w.record) }
}

func snapshot(change func(*Snapshot)) func(*testing.T, *world) {
	return func(_ *testing.T, w *world) { change(w.snapshot) }
}

// certificate changes that of the token's module.
func certificate(change func(*Certificate)) func(*testing.T, *world) {
	return snapshot(func(s *Snapshot) { change(&s.Certificates[0]) })
}

func observed(change func(*keyhost.Observation)) func(*testing.T, *world) {
	return func(_ *testing.T, w *world) { change(&w.observation) }
}

func host(code keyhost.Code) func(*testing.T, *world) {
	return evidence(func(e *Evidence) {
		e.Observe = func(context.Context) (keyhost.Observation, error) {
			return keyhost.Observation{}, &keyhost.Error{Code: code, Why: "it says so"}
		}
	})
}

func signedBy(officers ...int) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		d, err := w.record.Spell()
		require.NoError(t, err)
		approvals := w.signed(t, d, officers...)
		w.spoil = func(e *Evidence) { e.Approvals = approvals }
	}
}

// respelled changes the approvals' file without signing anew.
func respelled(change func(*Approvals)) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		w.spoil = func(e *Evidence) {
			a, err := ParseApprovals(e.Approvals)
			require.NoError(t, err)
			change(a)
			e.Approvals, err = a.Spell()
			require.NoError(t, err)
		}
	}
}

func attesting(change func(t *testing.T, w *world)) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		w.record.Token.Provider = synthetic.Attesting().Provider
		w.attest(t, w.device, &w.key.PublicKey, OriginGenerated, false)
		change(t, w)
	}
}

var situations = []situation{
	{"the module is off", AppModuleDisabled, 1, func(_ *testing.T, w *world) { w.module.Enabled = false }},
	{"the module is switched off", AppModuleDisabled, 1, func(_ *testing.T, w *world) { w.module.Godebug = "off" }},
	{"the build has no snapshot", AppModuleUnpinned, 1, func(_ *testing.T, w *world) { w.module.Build = "latest" }},
	{"the build is of none that there is", AppModuleUnpinned, 1, func(_ *testing.T, w *world) { w.module.Build = "" }},
	{"the record is for another build", AppModuleUnpinned, 3, record(func(r *Record) { r.Application.Build = "v1.0.0-00000000" })},
	{"the recorded build is of another version", AppModuleUnpinned, 3, record(func(r *Record) { r.Application.Build = "v1.0.1-c2097c7c" })},
	{"the record is for another toolchain", AppModuleUnpinned, 3, record(func(r *Record) { r.Application.Go = "go1.26.7" })},
	{"the record is for other programs", AppModuleUnpinned, 3, record(func(r *Record) { r.Application.BinarySHA256 = []Hash{{8}} })},

	{"nothing but an algorithm", Missing, 2, evidence(func(e *Evidence) { e.Record, e.Approvals = nil, nil })},
	{"no record that parses", SignatureInvalid, 2, evidence(func(e *Evidence) { e.Record = []byte(`{"algorithm":"ES256","curve":"P-256"}`) })},
	{"a record with a space more", SignatureInvalid, 2, evidence(func(e *Evidence) { e.Record = append(e.Record, ' ') })},
	{"no signatures", SignatureInvalid, 2, evidence(func(e *Evidence) { e.Approvals = nil })},
	{"signatures of another document", SignatureInvalid, 2, evidence(func(e *Evidence) { e.Approvals = e.SnapshotApprovals })},
	{"an officer whom nobody knows", SignatureInvalid, 2, respelled(func(a *Approvals) { a.Approvals[0].Officer = "anne" })},
	{"an officer in another role", SignatureInvalid, 2, respelled(func(a *Approvals) { a.Approvals[0].Role = "audit" })},
	{"one officer's signature under another's name", SignatureInvalid, 2, respelled(func(a *Approvals) { a.Approvals[1].Signature = a.Approvals[0].Signature })},
	{"a good pair and a bad third", SignatureInvalid, 2, respelled(func(a *Approvals) {
		a.Approvals = append(a.Approvals, Approval{"cleo", "audit", a.Approvals[0].Signature})
	})},
	{"a signature that is none", SignatureInvalid, 2, respelled(func(a *Approvals) { a.Approvals[0].Signature = "AAAA" })},
	{"one officer", Threshold, 2, signedBy(2)},
	{"nobody", Threshold, 2, signedBy()},
	{"one officer twice", Threshold, 2, respelled(func(a *Approvals) { a.Approvals[1] = a.Approvals[0] })},
	{"a policy of one", Threshold, 2, func(_ *testing.T, w *world) { w.policy.Threshold = 1 }},
	{"a policy of more than there are", Threshold, 2, func(_ *testing.T, w *world) { w.policy.Threshold = 4 }},
	{"two officers with one key", Threshold, 2, func(_ *testing.T, w *world) {
		w.policy.Officers[2].PublicKey, w.officers[2] = w.policy.Officers[0].PublicKey, w.officers[0]
	}},
	{"two officers of one name", Threshold, 2, func(_ *testing.T, w *world) { w.policy.Officers[2].ID = "anna" }},
	{"another cluster", ScopeMismatch, 2, record(func(r *Record) { r.ClusterID = "01020300000000000000000000000001" })},
	{"another purpose", ScopeMismatch, 2, record(func(r *Record) { r.Purpose = "nonce-root" })},
	{"another key's record", KeyMismatch, 2, func(t *testing.T, w *world) {
		other := newKey(t)
		w.record.Key.SPKISHA256, w.record.Key.JWKThumbprint = spkiOf(t, &other.PublicKey), kidOf(t, &other.PublicKey)
	}},
	{"the thumbprint of another key", KeyMismatch, 2, func(t *testing.T, w *world) { w.record.Key.JWKThumbprint = kidOf(t, &newKey(t).PublicKey) }},
	{"nobody says which key signs", KeyMismatch, 2, evidence(func(e *Evidence) { e.PublicKey = nil })},
	{"another key in the token", KeyMismatch, 6, observedKey},
	{"past its end", Expired, 2, record(func(r *Record) { r.ExpiresAt = At(now) })},
	{"the key is past its end", Expired, 2, record(func(r *Record) { r.Key.NotAfter = at(-1) })},
	{"not begun", NotYetValid, 2, record(func(r *Record) { r.IssuedAt = at(1) })},
	{"the key has not begun", NotYetValid, 2, record(func(r *Record) { r.Key.NotBefore = At(now.Add(time.Second)) })},
	{"superseded", Superseded, 2, snapshot(func(s *Snapshot) { s.Withdrawn = withdrawn(WithdrawnSuperseded) })},
	{"revoked", Revoked, 2, snapshot(func(s *Snapshot) { s.Withdrawn = withdrawn(WithdrawnRevoked) })},
	{"another curve in the record", KeyCurveInvalid, 2, record(func(r *Record) { r.Key.Curve = "1.3.132.0.34" })},
	{"another algorithm in the record", KeyCurveInvalid, 2, record(func(r *Record) { r.Key.Algorithm = "ES384" })},

	{"no snapshot", EvidenceInsufficient, 3, evidence(func(e *Evidence) { e.Snapshot = nil })},
	{"a snapshot that one has signed", EvidenceInsufficient, 3, func(t *testing.T, w *world) {
		d, err := w.snapshot.Spell()
		require.NoError(t, err)
		one := w.signed(t, d, 0)
		w.spoil = func(e *Evidence) { e.SnapshotApprovals = one }
	}},
	{"a snapshot that was changed", EvidenceInsufficient, 3, evidence(func(e *Evidence) { e.Snapshot = []byte(strings.Replace(string(e.Snapshot), "active", "revoked", 1)) })},
	{"a snapshot of 31 days", ModuleStatusStale, 3, snapshot(func(s *Snapshot) { s.TakenAt = at(-31) })},
	{"a snapshot of 30 days and a second", ModuleStatusStale, 3, snapshot(func(s *Snapshot) { s.TakenAt = At(now.Add(-SnapshotLife - time.Second)) })},
	{"a snapshot of tomorrow", ModuleStatusStale, 3, snapshot(func(s *Snapshot) { s.TakenAt = at(1) })},
	{"a snapshot from before the record", ModuleStatusStale, 3, record(func(r *Record) { r.Module.StatusCheckedAt = at(-2) })},
	{"no certificate", ModuleNotValidated, 3, record(func(r *Record) { r.Module.Certificate = 0 })},
	{"a certificate that the snapshot has not", ModuleNotValidated, 3, certificate(func(c *Certificate) { c.Number = 4712 })},
	{"a module in process", ModuleNotValidated, 3, certificate(func(c *Certificate) { c.Status = StatusInProcess })},
	{"the program's module in process", ModuleNotValidated, 3, snapshot(func(s *Snapshot) { s.Certificates[1].Status = StatusInProcess })},
	{"historical", ModuleHistorical, 3, certificate(func(c *Certificate) { c.Status = StatusHistorical })},
	{"revoked by the CMVP", ModuleRevoked, 3, certificate(func(c *Certificate) { c.Status = StatusRevoked })},
	{"sunset", ModuleSunset, 3, certificate(func(c *Certificate) { c.Sunset = At(now) })},
	{"no sunset", ModuleSunset, 3, certificate(func(c *Certificate) { c.Sunset = Time{} })},
	{"FIPS 140-2", ModuleStandardObsolete, 3, certificate(func(c *Certificate) { c.Standard = Standard2 })},
	{"FIPS 140-2, and historical as all of them", ModuleStandardObsolete, 3, certificate(func(c *Certificate) { c.Standard, c.Status = Standard2, StatusHistorical })},
	{"a firmware that is not certified", ModuleVersionMismatch, 3, record(func(r *Record) { r.Module.Versions.Firmware = "2.6.2" })},
	{"no firmware where the certificate names one", ModuleVersionMismatch, 3, record(func(r *Record) { r.Module.Versions.Firmware = "" })},
	{"software where the certificate names none", ModuleVersionMismatch, 3, record(func(r *Record) { r.Module.Versions.Software = "1" })},
	{"the program's module of another version", ModuleVersionMismatch, 3, record(func(r *Record) { r.Application.Version = "v1.26.0" })},
	{"an environment that was not tested", ModuleConfigUntested, 3, record(func(r *Record) { r.Module.TestedConfiguration = "My laptop" })},
	{"the program in an environment that was not tested", ModuleConfigUntested, 3, record(func(r *Record) { r.Application.TestedConfiguration = "My laptop" })},
	{"nobody saw the approved mode", ModuleNotApprovedMode, 3, record(func(r *Record) { r.Module.ApprovedModeObserved = "" })},
	{"no indicator", ModuleNotApprovedMode, 3, record(func(r *Record) { r.Module.ApprovedMode = "" })},
	{"an indicator that says no", ModuleNotApprovedMode, 3, record(func(r *Record) { r.Module.ApprovedMode = "fips-mode 00" })},
	{"NSS by its ordinary entry", ModuleNotApprovedMode, 3, record(func(r *Record) { r.Token.Provider = "nss" })},
	{"a provider that nobody knows", EvidenceInsufficient, 3, record(func(r *Record) { r.Token.Provider = "best" })},
	{"SoftHSM by its own name", ProviderSoftwareToken, 3, record(func(r *Record) {
		r.Token.Provider, r.Token.Manufacturer, r.Token.Model = "pkcs11", "SoftHSM project", "SoftHSM v2"
	})},
	{"SoftHSM under a name without a profile", ProviderSoftwareToken, 3, record(func(r *Record) { r.Token.Provider, r.Token.Model = "softhsm", "SoftHSM v2" })},
	{"swtpm", ProviderSoftwareToken, 3, record(func(r *Record) { r.Token.Provider, r.Token.Manufacturer, r.Token.Model = "pkcs11", "IBM", "SW   TPM" })},
	{"a distribution's NSS", ProviderSoftwareToken, 3, record(func(r *Record) {
		r.Token.Provider, r.Token.Manufacturer, r.Token.LibraryVersion = "nss", "Mozilla Foundation", "3.87"
	})},

	{"the profile wants an attestation", AttestationMissing, 4, record(func(r *Record) { r.Token.Provider = synthetic.Attesting().Provider })},
	{"the attestation is not there", AttestationMissing, 4, attesting(func(_ *testing.T, w *world) { w.attestation = nil })},
	{"nothing checks that format", AttestationMissing, 4, attesting(func(_ *testing.T, w *world) { w.policy.Attestations = nil })},
	{"another root", AttestationChainInvalid, 4, attesting(func(t *testing.T, w *world) {
		other, err := synthetic.NewDevice("Somebody Else")
		require.NoError(t, err)
		w.attest(t, other, &w.key.PublicKey, OriginGenerated, false)
	})},
	{"an attestation that was not recorded", AttestationChainInvalid, 4, attesting(func(_ *testing.T, w *world) { w.record.Attestation.BlobSHA256 = Hash{1} })},
	{"recorded certificates that are others", AttestationChainInvalid, 4, attesting(func(_ *testing.T, w *world) { w.record.Attestation.ChainSHA256 = []Hash{{1}, {2}} })},
	{"a recorded root that is another", AttestationChainInvalid, 4, attesting(func(_ *testing.T, w *world) { w.record.Attestation.RootSHA256 = Hash{1} })},
	{"an attestation that has ended", AttestationChainInvalid, 4, attesting(func(t *testing.T, w *world) {
		late := now.AddDate(3, 0, 0)
		w.later(late)
	})},
	{"an attestation of another key", AttestationKeyMismatch, 4, attesting(func(t *testing.T, w *world) { w.attest(t, w.device, &newKey(t).PublicKey, OriginGenerated, false) })},
	{"the device says imported", AttestationImported, 4, attesting(func(t *testing.T, w *world) { w.attest(t, w.device, &w.key.PublicKey, OriginImported, false) })},
	{"the device says cloned, and the record generated", AttestationImported, 4, attesting(func(t *testing.T, w *world) { w.attest(t, w.device, &w.key.PublicKey, OriginCloned, false) })},
	{"the device says that it may leave", KeyExtractable, 4, attesting(func(t *testing.T, w *world) { w.attest(t, w.device, &w.key.PublicKey, OriginGenerated, true) })},
	{"an imported key", KeyImportedPlaintext, 4, record(func(r *Record) { r.Ceremony.Origin = OriginImported })},
	{"attributes alone", EvidenceInsufficient, 4, record(func(r *Record) { r.Ceremony.StatementSHA256 = Hash{} })},
	{"a ceremony without a transcript", EvidenceInsufficient, 4, record(func(r *Record) { r.Ceremony.TranscriptSHA256 = Hash{} })},
	{"a ceremony of one", EvidenceInsufficient, 4, record(func(r *Record) { r.Ceremony.Witnesses = []string{"Anna A.", "Anna A."} })},
	{"a ceremony of nobody", EvidenceInsufficient, 4, record(func(r *Record) { r.Ceremony.Witnesses = []string{"Anna A.", ""} })},
	{"a clone of no key", EvidenceInsufficient, 4, record(func(r *Record) { r.Ceremony.Origin = OriginCloned })},
	{"a clone where the profile has none", EvidenceInsufficient, 4, record(func(r *Record) { r.Token.Provider, r.Ceremony.Origin = "pkcs11", OriginCloned })},

	{"no token", EvidenceInsufficient, 5, evidence(func(e *Evidence) { e.Observe = nil })},
	{"an observation of an hour ago", EvidenceInsufficient, 5, observed(func(o *keyhost.Observation) { o.At = now.Add(-time.Hour) })},
	{"the token has gone", TokenUnavailable, 5, host(keyhost.TokenUnavailable)},
	{"the key host says what nobody knows", TokenUnavailable, 5, host("NEW_CODE")},
	{"the key host has no answer", TokenUnavailable, 5, evidence(func(e *Evidence) {
		e.Observe = func(context.Context) (keyhost.Observation, error) { return keyhost.Observation{}, errors.New("eof") }
	})},
	{"the PIN is refused", TokenLoginRefused, 5, host(keyhost.TokenLoginRefused)},
	{"the key host will not try the PIN", TokenPINAtRisk, 5, host(keyhost.TokenPINAtRisk)},
	{"the token counts wrong PINs", TokenPINAtRisk, 5, observed(func(o *keyhost.Observation) { o.Token.Flags |= 0x10000 })},
	{"the PIN is locked", TokenPINAtRisk, 5, observed(func(o *keyhost.Observation) { o.Token.Flags |= 0x40000 })},
	{"another token", TokenIdentityMismatch, 5, observed(func(o *keyhost.Observation) { o.Token.Serial = "0000000000000000" })},
	{"another label", TokenIdentityMismatch, 5, observed(func(o *keyhost.Observation) { o.Token.Label = "day" })},
	{"another model", TokenIdentityMismatch, 5, observed(func(o *keyhost.Observation) { o.Token.Model = "Example HSM 2" })},
	{"another library", TokenIdentityMismatch, 5, observed(func(o *keyhost.Observation) { o.Library.Description = "Example PKCS#11 proxy" })},
	{"another firmware", ModuleVersionMismatch, 5, observed(func(o *keyhost.Observation) { o.Token.FirmwareVersion = "2.7" })},
	{"another version of the library", ModuleVersionMismatch, 5, observed(func(o *keyhost.Observation) { o.Library.Version = "2.7" })},
	{"another file of the library", ModuleVersionMismatch, 5, observed(func(o *keyhost.Observation) { o.Library.FileSHA256 = [32]byte{10} })},
	{"another entry into the library", ModuleNotApprovedMode, 5, observed(func(o *keyhost.Observation) { o.Library.EntryPoint = "FC_GetFunctionList" })},

	{"no private object", KeyAmbiguous, 6, observed(func(o *keyhost.Observation) { o.Keys = o.Keys[1:] })},
	{"two private objects", KeyAmbiguous, 6, observed(func(o *keyhost.Observation) { o.Keys = append(o.Keys, o.Keys[0]) })},
	{"two public objects", KeyAmbiguous, 6, observed(func(o *keyhost.Observation) { o.Keys = append(o.Keys, o.Keys[1]) })},
	{"no nonce key", KeyAmbiguous, 6, observed(func(o *keyhost.Observation) { o.Keys = o.Keys[:2] })},
	{"another key of the same label", KeyAmbiguous, 6, observed(func(o *keyhost.Observation) {
		o.Keys[0].Label = "night"
		other := o.Keys[0]
		other.ID = []byte{7}
		o.Keys = append(o.Keys, other)
	})},
	{"the key host sees two", KeyAmbiguous, 5, host(keyhost.KeyAmbiguous)},
	{"explicit parameters", KeyCurveInvalid, 6, observed(func(o *keyhost.Observation) { o.Keys[1].ECParams = []byte{0x30, 0x81, 0xe0} })},
	{"a point that is not on the curve", KeyCurveInvalid, 6, observed(func(o *keyhost.Observation) { o.Keys[1].Point[64] ^= 1 })},
	{"no point", KeyCurveInvalid, 6, observed(func(o *keyhost.Observation) { o.Keys[1].Point = nil })},
	{"the key may leave", KeyExtractable, 6, observed(func(o *keyhost.Observation) { o.Keys[0].Attributes["EXTRACTABLE"] = "true" })},
	{"nobody says whether it may leave", KeyExtractable, 6, observed(func(o *keyhost.Observation) { delete(o.Keys[0].Attributes, "EXTRACTABLE") })},
	{"the nonce key may leave", KeyExtractable, 6, observed(func(o *keyhost.Observation) { o.Keys[2].Attributes["EXTRACTABLE"] = "true" })},
	{"the key can be read", KeyValueReadable, 6, observed(func(o *keyhost.Observation) { o.Keys[0].ValueReadable = true })},
	{"the nonce key can be read", KeyValueReadable, 6, observed(func(o *keyhost.Observation) { o.Keys[2].ValueReadable = true })},
	{"the token does not sign with it", KeyAttributesMismatch, 6, observed(func(o *keyhost.Observation) { o.Keys[0].Mechanisms = nil })},
	{"an imported key's attributes", KeyAttributesMismatch, 6, observed(func(o *keyhost.Observation) {
		for name, value := range map[string]string{"LOCAL": "false", "KEY_GEN_MECHANISM": "unavailable", "ALWAYS_SENSITIVE": "false", "NEVER_EXTRACTABLE": "false"} {
			o.Keys[0].Attributes[name] = value
		}
	})},
	{"an imported key's attributes, as recorded", KeyAttributesMismatch, 6, func(_ *testing.T, w *world) {
		w.observation.Keys[0].Attributes["LOCAL"], w.record.Attributes.Local = "false", "false"
	}},
	{"an attribute that is not as recorded", KeyAttributesMismatch, 6, observed(func(o *keyhost.Observation) { o.Keys[0].Attributes["COPYABLE"] = "false" })},
	{"an attribute that the token does not know", KeyAttributesMismatch, 6, observed(func(o *keyhost.Observation) { delete(o.Keys[0].Attributes, "NEVER_EXTRACTABLE") })},
	{"the nonce key was made elsewhere", KeyAttributesMismatch, 6, observed(func(o *keyhost.Observation) { o.Keys[2].Attributes["KEY_GEN_MECHANISM"] = "unavailable" })},

	{"another key signs", KeyChallengeFailed, 7, func(t *testing.T, w *world) {
		other := newKey(t)
		w.spoil = func(e *Evidence) {
			e.Challenge = func(_ context.Context, digest [32]byte) ([64]byte, error) { return signDigest(other, digest) }
		}
	}},
	{"something else is signed", KeyChallengeFailed, 7, func(_ *testing.T, w *world) {
		w.spoil = func(e *Evidence) {
			e.Challenge = func(context.Context, [32]byte) ([64]byte, error) { return signDigest(w.key, [32]byte{}) }
		}
	}},
	{"nobody signs", KeyChallengeFailed, 7, evidence(func(e *Evidence) { e.Challenge = nil })},
	{"the key host does not vouch for the signature", KeyChallengeFailed, 7, evidence(func(e *Evidence) {
		e.Challenge = func(context.Context, [32]byte) ([64]byte, error) {
			return [64]byte{}, &keyhost.Error{Code: keyhost.KeyChallengeFailed}
		}
	})},
	{"the token goes meanwhile", TokenUnavailable, 7, evidence(func(e *Evidence) {
		e.Challenge = func(context.Context, [32]byte) ([64]byte, error) {
			return [64]byte{}, &keyhost.Error{Code: keyhost.TokenUnavailable}
		}
	})},
	{"too late", KeyChallengeTimeout, 7, evidence(func(e *Evidence) {
		sign := e.Challenge
		e.Challenge = func(ctx context.Context, digest [32]byte) ([64]byte, error) {
			<-ctx.Done()
			return sign(ctx, digest)
		}
	})},
	{"another key is registered", AuthorityKeyDiverged, 8, func(t *testing.T, w *world) {
		other := newKey(t)
		w.spoil = func(e *Evidence) {
			e.Registered.PublicKey, e.Registered.KID = &other.PublicKey, kidOf(t, &other.PublicKey)
		}
	}},
	{"another record is registered", AuthorityKeyDiverged, 8, evidence(func(e *Evidence) { e.Registered.ProvenanceDigest[0] ^= 1 })},
	{"another cluster is registered", AuthorityKeyDiverged, 8, evidence(func(e *Evidence) { e.Registered.ClusterID[0] ^= 1 })},
	{"nothing is registered", AuthorityKeyDiverged, 8, evidence(func(e *Evidence) { e.Registered = Registered{} })},
}

func withdrawn(why string) []Withdrawal {
	return []Withdrawal{{"00112233445566778899aabbccddeeff", why, at(-4)}}
}

// observedKey has the token show another key than the one that signs.
func observedKey(t *testing.T, w *world) {
	point, err := newKey(t).PublicKey.Bytes()
	require.NoError(t, err)
	w.observation.Keys[1].Point = point
}

// later has everything happen later, with documents that are as fresh as they were.
func (w *world) later(when time.Time) {
	d := when.Sub(now)
	w.policy.Now = func() time.Time { return when }
	w.observation.At = when
	for _, t := range []*Time{&w.record.IssuedAt, &w.record.ExpiresAt, &w.record.Key.NotBefore, &w.record.Key.NotAfter, &w.snapshot.TakenAt, &w.snapshot.Certificates[0].Sunset, &w.snapshot.Certificates[1].Sunset} {
		*t = At(t.Add(d))
	}
}

// Each situation is refused with exactly its code, at its step, and nothing is accepted.
func TestEachSituationIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // no deadline is waited for
				w := newWorld(t)
				s.do(t, w)
				r := w.verify(t)
				require.NotNil(t, r.Refusal, "it was accepted")
				assert.Equal(t, s.code, r.Refusal.Code, r.Refusal)
				assert.Equal(t, s.step, r.Refusal.Step, r.Refusal)
				assert.NotEmpty(t, r.Refusal.Detail)
				refusedWhole(t, r)
			})
		})
	}
}

// refusedWhole holds a report of a refusal to what it may say.
func refusedWhole(t testing.TB, r Report) {
	t.Helper()
	assert.False(t, r.Accepted())
	assert.False(t, r.Good())
	assert.Error(t, r.Err())
	assert.Zero(t, r.GoodUntil)
	require.Len(t, r.Steps, 9)
	assert.False(t, r.Steps[8].OK, "the last step is good when all are")
	for i, s := range r.Steps {
		assert.Equal(t, i+1, s.Number)
		assert.False(t, s.OK && s.Code != "")
		assert.True(t, s.OK || s.Detail != "")
	}
	assert.LessOrEqual(t, len(r.Refusal.Detail), 240)
}

// What is refused before anything is looked at, and by others in this package's words.
var elsewhere = map[Code]error{
	KeyLocalForbidden:     Required(false, true),
	Missing:               Required(true, false),
	DependencyNotApproved: NotApproved("the database wants md5"),
}

// A code without a situation is a promise that nothing keeps.
func TestEveryCodeHasASituation(t *testing.T) {
	t.Parallel()
	made := map[Code]bool{}
	for _, s := range situations {
		made[s.code] = true
	}
	for code, err := range elsewhere {
		r, ok := errors.AsType[*Refusal](err)
		require.True(t, ok, code)
		assert.Equal(t, code, r.Code)
		made[code] = true
	}
	for _, code := range All() {
		assert.True(t, made[code], "nothing makes %s", code)
		delete(made, code)
	}
	assert.Empty(t, made, "codes that All does not list")
	assert.NoError(t, Required(true, true))
	assert.Error(t, Required(false, false))
}

func TestGoodEvidenceIsAccepted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do      func(*testing.T, *world)
		classes []string
	}{
		"a ceremony":                       {func(*testing.T, *world) {}, []string{"B", "C"}},
		"a hardware token by the standard": {record(func(r *Record) { r.Token.Provider = "pkcs11" }), []string{"B", "C"}},
		"a device's attestation":           {attesting(func(_ *testing.T, w *world) { w.record.Ceremony.StatementSHA256 = Hash{} }), []string{"A", "C"}},
		"both":                             {attesting(func(*testing.T, *world) {}), []string{"A", "B", "C"}},
		"all officers":                     {signedBy(0, 1, 2), []string{"B", "C"}},
		"a clone": {func(_ *testing.T, w *world) {
			w.record.Ceremony.Origin, w.record.Ceremony.SourceRecordID = OriginCloned, "ffeeddccbbaa99887766554433221100"
			for name, value := range map[string]string{"LOCAL": "false", "ALWAYS_SENSITIVE": "false", "NEVER_EXTRACTABLE": "false"} {
				w.observation.Keys[0].Attributes[name] = value
			}
			w.record.Attributes = AttributesOf(w.observation.Keys[0].Attributes)
		}, []string{"B", "C"}},
		"this very program": {record(func(r *Record) { r.Application.BinarySHA256, r.Application.Go = []Hash{{1}, {7}}, "go1.26.8" }), []string{"B", "C"}},
		"another record was withdrawn": {snapshot(func(s *Snapshot) {
			s.Withdrawn = []Withdrawal{{"ffeeddccbbaa99887766554433221100", WithdrawnRevoked, at(-4)}}
		}), []string{"B", "C"}},
		"an older pair lies in the same token": {observed(func(o *keyhost.Observation) {
			o.Keys = append(o.Keys, keyhost.Object{Class: keyhost.ClassPrivate, ID: []byte{9}})
		}), []string{"B", "C"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c.do(t, w)
			r := w.verify(t)
			require.NoError(t, r.Err())
			assert.True(t, r.Accepted())
			assert.Equal(t, c.classes, r.EvidenceClasses)
			assert.Len(t, r.Steps, 9)
			assert.Equal(t, w.snapshot.TakenAt.Add(SnapshotLife), r.GoodUntil)
			assert.Empty(t, r.Warnings)
			assert.Equal(t, w.record.RecordID, r.RecordID)
		})
	}
}

func TestWhatEndsSoonIsWarnedOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.snapshot.TakenAt, w.record.ExpiresAt, w.record.Module.StatusCheckedAt = at(-21), at(59), at(-40)
	r := w.verify(t)
	require.True(t, r.Accepted(), r.Refusal)
	require.Len(t, r.Warnings, 2)
	assert.Contains(t, r.Warnings[0], "rotate the key")
	assert.Contains(t, r.Warnings[1], "21 days old")
}

// Documents alone are never accepted, and are judged without a token.
func TestDocumentsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.evidence(t)
	e.Observe, e.Challenge, e.PublicKey, e.Registered = nil, nil, nil, Registered{}
	e.Module.Enabled = false
	r := w.policy.VerifyDocuments(t.Context(), e)
	assert.True(t, r.Good(), r.Refusal)
	assert.False(t, r.Accepted())
	assert.Equal(t, []string{"B"}, r.EvidenceClasses)
	require.Len(t, r.Steps, 3)

	e.PublicKey = &newKey(t).PublicKey
	r = w.policy.VerifyDocuments(t.Context(), e)
	require.NotNil(t, r.Refusal)
	assert.Equal(t, KeyMismatch, r.Refusal.Code)
	assert.False(t, Report{}.Accepted() || Report{}.Good(), "nothing is no report")
}

// Of a record that nobody has signed nothing is said; of one that is merely too old, everything.
func TestOtherFindingsAreNotHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.record.ExpiresAt = at(-1)
	w.observation.Token.Serial = "0"
	r := w.verify(t)
	assert.Equal(t, Expired, r.Steps[1].Code)
	assert.Equal(t, TokenIdentityMismatch, r.Steps[4].Code)
	assert.True(t, r.Steps[6].OK)

	signedBy(0)(t, w)
	r = w.verify(t)
	assert.Equal(t, Threshold, r.Refusal.Code)
	for _, s := range r.Steps[2:8] {
		assert.False(t, s.OK)
		assert.Empty(t, s.Code, "nothing is judged that nobody has signed")
	}
}

// No bit of what was signed, or of who signed it, can be changed; every seventh byte stands for all.
func TestNoBitCanBeChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	whole := w.evidence(t)
	require.True(t, w.policy.Verify(t.Context(), whole).Accepted())
	for name, of := range map[string]func(*Evidence) *[]byte{
		"record": func(e *Evidence) *[]byte { return &e.Record }, "approvals": func(e *Evidence) *[]byte { return &e.Approvals },
		"snapshot": func(e *Evidence) *[]byte { return &e.Snapshot }, "its approvals": func(e *Evidence) *[]byte { return &e.SnapshotApprovals },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := 0; i < len(*of(&whole)); i += 7 {
				e := whole
				p := of(&e)
				*p = slices.Clone(*p)
				(*p)[i] ^= 1 << (i % 8)
				assert.False(t, w.policy.VerifyDocuments(t.Context(), e).Good(), "byte %d", i)
			}
		})
	}
}

// No profile that is shipped takes a software token, by whatever name it goes.
func TestShippedProfilesTakeNoSoftware(t *testing.T) {
	t.Parallel()
	for _, p := range Profiles() {
		assert.False(t, p.Software, p.Provider)
		assert.Equal(t, "false", p.Signing.Extractable)
		assert.Equal(t, "true", p.Signing.NeverExtractable)
		assert.Equal(t, "true", p.Nonce.NeverExtractable)
		assert.Nil(t, p.Cloned)
	}
	for _, token := range []keyhost.Token{{Manufacturer: "SoftHSM project", Model: "SoftHSM v2"}, {Manufacturer: "Somebody", Model: "SoftHSM v3"}, {Manufacturer: "IBM", Model: "SW   TPM"}, {Manufacturer: "IBM", Model: "Soft"}, {Manufacturer: "Kryoptic Project", Model: "FIPS"}} {
		t.Run(fmt.Sprint(token.Manufacturer, " ", token.Model), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.record.Token.Provider = "pkcs11" // the record lies about what it is: the token says it
			w.observation.Token.Manufacturer, w.observation.Token.Model = token.Manufacturer, token.Model
			w.record.Token.Manufacturer, w.record.Token.Model = token.Manufacturer, token.Model
			r := w.verify(t)
			require.NotNil(t, r.Refusal)
			assert.Equal(t, ProviderSoftwareToken, r.Refusal.Code)
			assert.Equal(t, ProviderSoftwareToken, r.Steps[4].Code)
		})
	}
}

// What is asked to be signed is never twice the same, and no JWS.
func TestChallengesAreFresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := map[[32]byte]bool{}
	e := w.evidence(t)
	sign := e.Challenge
	e.Challenge = func(ctx context.Context, digest [32]byte) ([64]byte, error) {
		seen[digest] = true
		return sign(ctx, digest)
	}
	for range 20 {
		require.True(t, w.policy.Verify(t.Context(), e).Accepted())
	}
	assert.Len(t, seen, 20)
}

func TestAReportIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.record.ExpiresAt = at(-1)
	text, err := json.Marshal(w.verify(t))
	require.NoError(t, err)
	var got Report
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Equal(t, Expired, got.Refusal.Code)
	assert.False(t, got.Accepted())
	assert.Contains(t, string(text), `"evidence_classes":["B","C"]`)
}

// An officer's signature does not count for another document, nor another officer's for this one.
func TestApprove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d, err := w.record.Spell()
	require.NoError(t, err)
	other, err := w.snapshot.Spell()
	require.NoError(t, err)
	signature, err := Sign(d, w.officers[0])
	require.NoError(t, err)
	a := NewApprovals(d)
	require.Error(t, a.Approve(other, w.policy.Officers[0], signature))
	require.Error(t, a.Approve(d, w.policy.Officers[1], signature))
	require.NoError(t, a.Approve(d, w.policy.Officers[0], signature))
	require.Error(t, a.Approve(d, w.policy.Officers[0], signature), "twice")

	// what is signed is SHA-256 of the message, so that any program can sign it
	r, s, err := ecdsa.Sign(rand.Reader, w.officers[1], sum(d.Message()))
	require.NoError(t, err)
	var raw [64]byte
	r.FillBytes(raw[:32])
	s.FillBytes(raw[32:])
	require.NoError(t, a.Approve(d, w.policy.Officers[1], raw))
	assert.Equal(t, elliptic.P256(), w.officers[1].Curve)
}
