package provenance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// Bounds of what a token is waited for, and of how old its word may be.
const (
	observeTime   = 5 * time.Second
	challengeTime = 2 * time.Second
	observedAge   = time.Minute
)

const domainChallenge = "nightwarrant/provenance-challenge/v1"

// evidence is step 4: an attestation (A) or a ceremony (B) says that the key was made inside.
func (v *verification) evidence(context.Context) *Refusal {
	profile, r := v.profile()
	if r != nil {
		return r
	}
	if v.record.Ceremony.Origin == OriginImported {
		return refuse(KeyImportedPlaintext, "the record says that the key was outside of a module")
	}
	if _, ok := profile.signing(v.record.Ceremony.Origin); !ok {
		return refuse(EvidenceInsufficient, "the profile of %q takes no key that was %s", profile.Provider, v.record.Ceremony.Origin)
	}
	if want := profile.Attestation; want != "" && v.record.Attestation.Format != want {
		return refuse(AttestationMissing, "the profile of %q demands an attestation of the format %q", profile.Provider, want)
	}
	if v.record.Attestation.Format != "" {
		if r := v.attested(); r != nil {
			return r
		}
		v.report.EvidenceClasses = append(v.report.EvidenceClasses, "A")
	}
	if v.record.Ceremony.complete() {
		v.report.EvidenceClasses = append(v.report.EvidenceClasses, "B")
	}
	if len(v.report.EvidenceClasses) == 0 {
		return refuse(EvidenceInsufficient, "there is neither a device's attestation nor a ceremony of two witnesses with its transcript and the provider's statement")
	}
	return nil
}

// complete tells that a ceremony is evidence of class B.
func (c Ceremony) complete() bool {
	persons := slices.Compact(slices.Sorted(slices.Values(c.Witnesses)))
	return len(persons) >= 2 && !slices.Contains(persons, "") && c.ID != "" && !c.At.IsZero() && !c.TranscriptSHA256.IsZero() && !c.StatementSHA256.IsZero() &&
		(c.Origin == OriginGenerated || c.SourceRecordID != "")
}

// attested holds the attestation against the record.
func (v *verification) attested() *Refusal {
	want := v.record.Attestation
	verifier, ok := v.policy.Attestations[want.Format]
	switch {
	case !ok:
		return refuse(AttestationMissing, "nothing here can check an attestation of the format %q", want.Format)
	case len(v.given.Attestation) == 0:
		return refuse(AttestationMissing, "the attestation that the record names is not there")
	case want.BlobSHA256 != sha256.Sum256(v.given.Attestation):
		return refuse(AttestationChainInvalid, "the attestation is not the recorded one")
	}
	a, err := verifier.Verify(v.given.Attestation, v.now)
	switch {
	case err != nil:
		return refuse(AttestationChainInvalid, "the attestation is not good: %s", err)
	case a.Root != want.RootSHA256 || !slices.Equal(a.Chain, want.ChainSHA256):
		return refuse(AttestationChainInvalid, "the attestation leads over other certificates or to another root than the recorded ones")
	case v.record.Key.SPKISHA256 != sha256.Sum256(a.SPKI):
		return refuse(AttestationKeyMismatch, "the attestation is of another key")
	case a.Origin != v.record.Ceremony.Origin:
		return refuse(AttestationImported, "the device says that the key is %s", a.Origin)
	case a.Extractable:
		return refuse(KeyExtractable, "the device says that the key may leave it")
	}
	return nil
}

// token is step 5: the token, and the library in front of it, are the recorded ones.
func (v *verification) token(ctx context.Context) *Refusal {
	o, r := v.observe(ctx)
	if r != nil {
		return r
	}
	profile, r := v.profile()
	t := v.record.Token
	switch {
	case o.Token.Flags&pinAtRisk != 0:
		return refuse(TokenPINAtRisk, "the token counts wrong PINs, or is locked")
	case !slices.Contains(t.Serials, o.Token.Serial) || o.Token.Label != t.Label:
		return refuse(TokenIdentityMismatch, "the token with serial %q and label %q is not the recorded one", o.Token.Serial, o.Token.Label)
	case o.Token.Manufacturer != t.Manufacturer || o.Token.Model != t.Model || o.Library.Manufacturer != t.LibraryManufacturer || o.Library.Description != t.LibraryDescription:
		return refuse(TokenIdentityMismatch, "the token or its library calls itself otherwise than recorded")
	case r != nil:
		return r
	case !profile.Software && isSoftware(o.Token.Manufacturer, o.Token.Model, o.Library.Version):
		return refuse(ProviderSoftwareToken, "%s is a software token", o.Token.Model)
	case o.Library.EntryPoint != t.EntryPoint:
		return refuse(ModuleNotApprovedMode, "the library is entered by %s, and its approved mode by %s", o.Library.EntryPoint, t.EntryPoint)
	case o.Library.Cryptoki != t.Cryptoki || o.Library.Version != t.LibraryVersion || o.Token.HardwareVersion != t.Hardware || o.Token.FirmwareVersion != t.Firmware:
		return refuse(ModuleVersionMismatch, "the token or its library has another version than recorded")
	case !slices.Contains(t.LibrarySHA256, Hash(o.Library.FileSHA256)):
		return refuse(ModuleVersionMismatch, "the library's file is none of the recorded ones")
	}
	v.detail = t.Model + " " + o.Token.Serial
	return nil
}

// pinAtRisk is CKF_USER_PIN_COUNT_LOW, CKF_USER_PIN_FINAL_TRY and CKF_USER_PIN_LOCKED.
const pinAtRisk = 0x10000 | 0x20000 | 0x40000

// observe has the token looked at, once.
func (v *verification) observe(ctx context.Context) (*keyhost.Observation, *Refusal) {
	if v.observed != nil || v.unobserved != nil {
		return v.observed, v.unobserved
	}
	if v.given.Observe == nil {
		v.unobserved = refuse(EvidenceInsufficient, "the token is not there to be looked at")
		return nil, v.unobserved
	}
	ctx, cancel := context.WithTimeout(ctx, observeTime)
	defer cancel()
	o, err := v.given.Observe(ctx)
	switch age := v.policy.Now().Sub(o.At); {
	case err != nil:
		v.unobserved = hostRefusal(err)
	case age < -observedAge || age > observedAge:
		v.unobserved = refuse(EvidenceInsufficient, "what is known of the token is not of now")
	default:
		v.observed = &o
	}
	return v.observed, v.unobserved
}

// hostRefusal is a key host's refusal as ours; what it cannot say is a token that is not there.
func hostRefusal(err error) *Refusal {
	e, ok := errors.AsType[*keyhost.Error](err)
	if ok && slices.Contains(All(), Code(e.Code)) {
		return refuse(Code(e.Code), "the key host refuses: %s", e.Why)
	}
	return refuse(TokenUnavailable, "the key host does not show the token: %s", err)
}

// object is step 6: the key is one pair of objects, and what it should be.
func (v *verification) object(ctx context.Context) *Refusal {
	o, r := v.observe(ctx)
	if r != nil {
		return r
	}
	profile, r := v.profile()
	if r != nil {
		return r
	}
	private, r := only(o.Keys, keyhost.ClassPrivate, v.record.Token.KeyID)
	if r != nil {
		return r
	}
	public, r := only(o.Keys, keyhost.ClassPublic, v.record.Token.KeyID)
	if r != nil {
		return r
	}
	nonce, r := only(o.Keys, keyhost.ClassSecret, v.record.Token.NonceKeyID)
	if r != nil {
		return r
	}
	if r := v.public(public); r != nil {
		return r
	}
	want, _ := profile.signing(v.record.Ceremony.Origin)
	if r := kept("the signing key", private, v.record.Attributes, want, mechanismECDSA); r != nil {
		return r
	}
	if r := kept("the nonce key", nonce, v.record.NonceAttributes, profile.Nonce, mechanismHMAC); r != nil {
		return r
	}
	v.report.EvidenceClasses = append(v.report.EvidenceClasses, "C")
	return nil
}

// Mechanisms by which the keys are used: CKM_ECDSA, CKM_SHA256_HMAC.
const (
	mechanismECDSA = "0x1041"
	mechanismHMAC  = "0x251"
)

// only finds the one object of a class and CKA_ID; no other may have its label, either.
func only(all []keyhost.Object, class, id string) (found keyhost.Object, _ *Refusal) {
	n := 0
	for _, k := range all {
		if k.Class == class && hex.EncodeToString(k.ID) == id {
			found = k
			n++
		}
	}
	for _, k := range all {
		if k.Class == class && k.Label != "" && k.Label == found.Label && !bytes.Equal(k.ID, found.ID) {
			n++
		}
	}
	if n != 1 {
		return found, refuse(KeyAmbiguous, "%d %s objects have the CKA_ID %s or its label, and must be one", n, class, id)
	}
	return found, nil
}

// namedP256 is the DER of the named curve prime256v1 (RFC 5480 §2.1.1.1).
var namedP256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}

func (v *verification) public(k keyhost.Object) *Refusal {
	point, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), k.Point)
	switch {
	case err != nil || !bytes.Equal(k.ECParams, namedP256):
		return refuse(KeyCurveInvalid, "the public key is no point of the named curve P-256")
	case !v.record.Key.is(point):
		return refuse(KeyMismatch, "the token's public key is not the recorded one")
	}
	return nil
}

// kept holds what a token says of a key against the record, and the record against the profile.
func kept(what string, k keyhost.Object, recorded, profile Attributes, mechanism string) *Refusal {
	shown := AttributesOf(k.Attributes)
	switch {
	case k.ValueReadable:
		return refuse(KeyValueReadable, "%s can be read", what)
	case shown.Extractable != "false":
		return refuse(KeyExtractable, "%s may leave the token", what)
	case !slices.Contains(k.Mechanisms, mechanism):
		return refuse(KeyAttributesMismatch, "the token does not use %s by %s", what, mechanism)
	}
	if name := differs(profile, recorded); name != "" {
		return refuse(KeyAttributesMismatch, "%s of %s is recorded otherwise than its profile wants", name, what)
	}
	if name := differs(recorded, shown); name != "" {
		return refuse(KeyAttributesMismatch, "%s of %s is not as recorded", name, what)
	}
	return nil
}

// challenge is step 7: the recorded key signs what nobody could have had signed before, in time.
func (v *verification) challenge(ctx context.Context) *Refusal {
	if v.given.Challenge == nil || !v.record.Key.is(v.given.PublicKey) {
		return refuse(KeyChallengeFailed, "nobody signs for the recorded key")
	}
	var fresh [40]byte
	rand.Read(fresh[:32])
	binary.BigEndian.PutUint64(fresh[32:], uint64(v.now.UnixNano()))
	digest := canonical.Digest(domainChallenge, v.policy.ClusterID[:], v.given.Replica[:], fresh[:])
	ctx, cancel := context.WithTimeout(ctx, challengeTime)
	defer cancel()
	signature, err := v.given.Challenge(ctx, digest)
	switch {
	case ctx.Err() != nil:
		return refuse(KeyChallengeTimeout, "the challenge was not signed within %s", challengeTime)
	case err != nil:
		return hostRefusal(err)
	case !verifies(v.given.PublicKey, digest, signature):
		return refuse(KeyChallengeFailed, "the challenge was not signed by the recorded key")
	}
	return nil
}

// registered is step 8: the database holds this key, with this record.
func (v *verification) registered(context.Context) *Refusal {
	is := v.given.Registered
	if is.ClusterID != v.policy.ClusterID || is.KID != v.record.Key.JWKThumbprint || !v.record.Key.is(is.PublicKey) || is.ProvenanceDigest != v.report.Digest {
		return refuse(AuthorityKeyDiverged, "the database holds another key, or this key with another record")
	}
	return nil
}
