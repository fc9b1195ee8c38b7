package provenance

import (
	"slices"
	"strings"
	"time"
)

// Profile says what the attributes of one provider's tokens mean: one word of
// PKCS#11 is true in one library and wrong in another (keys.md §2.2, §2.3).
// Profiles are compiled in.
type Profile struct {
	Provider    string
	EntryPoint  string      // by which the library is in its approved mode
	Signing     Attributes  // of a key that was generated inside; an empty one may be anything
	Nonce       Attributes  // of the nonce key, likewise
	Cloned      *Attributes // of a signing key that another token handed over under wrap; nil: there is no such
	Attestation string      // format that a device must have signed; empty: a ceremony will do
	Software    bool        // its tokens are software: for tests, and in no profile that is shipped
}

// Verifier checks the attestations of one format, without any network.
type Verifier interface {
	// Verify returns what a device has signed of a key, when the chain of the blob leads at that time to a root that is pinned.
	Verify(blob []byte, at time.Time) (Attested, error)
}

// Attested is what a device has signed.
type Attested struct {
	SPKI        []byte // of the key, DER (RFC 5280 §4.1.2.7)
	Origin      string // one of the origins of a record
	Extractable bool   // it may leave by any way that is no recorded cloning
	Chain       []Hash // of the certificates, leaf first
	Root        Hash   // of the root's SubjectPublicKeyInfo
}

// generated are the attributes of a key that was made inside and never left, as
// the standard defines them (PKCS#11 2.40 §4.4, §4.9).
func generated(mechanism string) Attributes {
	return Attributes{Local: "true", KeyGenMechanism: mechanism, AlwaysSensitive: "true", NeverExtractable: "true", Extractable: "false", Sensitive: "true"}
}

// Mechanisms that make the two keys: CKM_EC_KEY_PAIR_GEN, CKM_GENERIC_SECRET_KEY_GEN.
const (
	mechanismEC     = "0x1040"
	mechanismSecret = "0x350"
)

// Profiles are those that are shipped.
func Profiles() []Profile {
	standard := Profile{Provider: "pkcs11", EntryPoint: "C_GetFunctionList", Signing: generated(mechanismEC), Nonce: generated(mechanismSecret)}
	// NSS is in its approved mode by its entry point, and says of a key that it made itself that it did not (keys.md §2.3).
	nss := Profile{Provider: "nss", EntryPoint: "FC_GetFunctionList", Signing: generated("unsupported"), Nonce: generated("unsupported")}
	nss.Signing.Local, nss.Nonce.Local = "false", "false"
	return []Profile{standard, nss}
}

// software tokens that are known. What is not here is not vouched for: that is
// what the record and the certificate are for.
var software = []struct{ manufacturer, model, library string }{
	{manufacturer: "softhsm"}, {model: "softhsm"},
	{manufacturer: "ibm", model: "sw"}, // swtpm, behind tpm2-pkcs11
	{model: "sw "},
	{manufacturer: "ibm", model: "soft"}, // opencryptoki
	{manufacturer: "kryoptic"},
	{manufacturer: "mozilla", library: "3."}, // NSS as distributions build it; certificates name vendors' builds
}

// isSoftware tells a token that is known to be software by what it, or the record, calls it.
func isSoftware(manufacturer, model, library string) bool {
	begins := func(s, with string) bool { return strings.HasPrefix(strings.ToLower(s), with) }
	for _, s := range software {
		if begins(manufacturer, s.manufacturer) && begins(model, s.model) && begins(library, s.library) {
			return true
		}
	}
	return false
}

// of is the profile that a record names.
func profileOf(all []Profile, provider string) (Profile, bool) {
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Provider == provider })
	if i < 0 {
		return Profile{}, false
	}
	return all[i], true
}

// signing are the attributes that a signing key of that origin must have.
func (p Profile) signing(origin string) (Attributes, bool) {
	switch {
	case origin == OriginGenerated:
		return p.Signing, true
	case p.Cloned != nil && (origin == OriginCloned || origin == OriginUnwrapped):
		return *p.Cloned, true
	}
	return Attributes{}, false
}

// differs names the first attribute that is not as wanted; what is wanted empty may be anything.
func differs(want, have Attributes) string {
	for _, a := range []struct{ name, want, have string }{
		{"LOCAL", want.Local, have.Local}, {"KEY_GEN_MECHANISM", want.KeyGenMechanism, have.KeyGenMechanism}, {"ALWAYS_SENSITIVE", want.AlwaysSensitive, have.AlwaysSensitive},
		{"NEVER_EXTRACTABLE", want.NeverExtractable, have.NeverExtractable}, {"EXTRACTABLE", want.Extractable, have.Extractable}, {"SENSITIVE", want.Sensitive, have.Sensitive},
		{"MODIFIABLE", want.Modifiable, have.Modifiable}, {"COPYABLE", want.Copyable, have.Copyable}, {"WRAP_WITH_TRUSTED", want.WrapWithTrusted, have.WrapWithTrusted},
	} {
		if a.want != "" && a.want != a.have {
			return a.name
		}
	}
	return ""
}
