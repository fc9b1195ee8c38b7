package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// maxLibrary bounds the file of a library.
const maxLibrary = 256 << 20

// digestOf is that of the library's file.
func digestOf(path string) (out keyhost.Digest, err error) {
	f, err := os.Open(path)
	if err != nil {
		return out, refuse(keyhost.TokenUnavailable, "the library cannot be read")
	}
	defer f.Close() //nolint:errcheck // it is only read
	h := sha256.New()
	if n, err := io.Copy(h, io.LimitReader(f, maxLibrary)); err != nil || n == maxLibrary {
		return out, refuse(keyhost.TokenUnavailable, "the library cannot be read")
	}
	h.Sum(out[:0])
	return out, nil
}

// sight is an observation with the handles of what was seen, in its order.
type sight struct {
	keyhost.Observation
	handles []pkcs11.ObjectHandle
}

// look asks the library and the token anew, in a session that is nobody else's meanwhile.
func (t *token) look(s pkcs11.SessionHandle, pairs []Pair) (out sight, err error) {
	out.At = time.Now().UTC()
	if out.Library, err = t.libraryNow(); err != nil {
		return out, err
	}
	info, err := t.ctx.GetTokenInfo(t.slot)
	if err != nil {
		return out, ckr(err, "the token has gone")
	}
	out.Token = keyhost.Token{Manufacturer: padded(info.ManufacturerID), Model: padded(info.Model), Serial: padded(info.SerialNumber), Label: padded(info.Label),
		HardwareVersion: version(info.HardwareVersion), FirmwareVersion: version(info.FirmwareVersion), Flags: uint64(info.Flags)}
	if out.Token.Serial != t.serial {
		return out, refuse(keyhost.TokenIdentityMismatch, "another token is in the place of %s", t.serial)
	}
	for _, p := range pairs {
		if err := t.under(s, &out, p.Signing, keyhost.PairSigning); err != nil {
			return out, err
		}
		if err := t.under(s, &out, p.Nonce, keyhost.PairNonce); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (t *token) libraryNow() (keyhost.Library, error) {
	info, err := t.ctx.GetInfo()
	if err != nil {
		return keyhost.Library{}, ckr(err, "the library says nothing of itself")
	}
	sum, err := digestOf(t.module)
	if err != nil {
		return keyhost.Library{}, err
	}
	if sum != t.loaded {
		return keyhost.Library{}, refuse(keyhost.TokenIdentityMismatch, "the library's file is not the one that was loaded")
	}
	return keyhost.Library{Cryptoki: version(info.CryptokiVersion), Manufacturer: padded(info.ManufacturerID), Description: padded(info.LibraryDescription),
		Version: version(info.LibraryVersion), File: filepath.Base(t.module), FileSHA256: sum, EntryPoint: "C_GetFunctionList"}, nil
}

// under adds the key objects of a CKA_ID, and those that share a label with one of them.
func (t *token) under(s pkcs11.SessionHandle, out *sight, id, purpose string) error {
	raw, _ := hex.DecodeString(id) // Check has read it
	found, err := t.search(s, pkcs11.NewAttribute(pkcs11.CKA_ID, raw))
	if err != nil {
		return err
	}
	for _, h := range found {
		label := t.value(s, h, pkcs11.CKA_LABEL)
		if len(label) == 0 {
			continue
		}
		namesakes, err := t.search(s, pkcs11.NewAttribute(pkcs11.CKA_LABEL, label))
		if err != nil {
			return err
		}
		for _, n := range namesakes {
			if !slices.Contains(found, n) {
				found = append(found, n)
			}
		}
	}
	for _, h := range found {
		if o, ok := t.object(s, h, purpose); ok && !slices.Contains(out.handles, h) {
			out.Keys, out.handles = append(out.Keys, o), append(out.handles, h)
		}
	}
	return nil
}

func (t *token) search(s pkcs11.SessionHandle, template ...*pkcs11.Attribute) ([]pkcs11.ObjectHandle, error) {
	if err := t.ctx.FindObjectsInit(s, template); err != nil {
		return nil, ckr(err, "objects cannot be looked for")
	}
	found, _, err := t.ctx.FindObjects(s, keyhost.MaxObjects+1)
	if err := errors.Join(err, t.ctx.FindObjectsFinal(s)); err != nil {
		return nil, ckr(err, "objects cannot be looked for")
	}
	if len(found) > keyhost.MaxObjects {
		return nil, refuse(keyhost.KeyAmbiguous, "more than %d objects have one name", keyhost.MaxObjects)
	}
	return found, nil
}

// object is what the token says of one, when it is a key.
func (t *token) object(s pkcs11.SessionHandle, h pkcs11.ObjectHandle, purpose string) (o keyhost.Object, isKey bool) {
	o = keyhost.Object{Purpose: purpose, ID: t.value(s, h, pkcs11.CKA_ID), Label: padded(string(t.value(s, h, pkcs11.CKA_LABEL))),
		Mechanisms: []string{}, Attributes: t.attributes(s, h)}
	switch class := native(t.value(s, h, pkcs11.CKA_CLASS)); class {
	case pkcs11.CKO_PRIVATE_KEY:
		o.Class, o.ECParams, o.Mechanisms = keyhost.ClassPrivate, t.value(s, h, pkcs11.CKA_EC_PARAMS), t.signs(pkcs11.CKM_ECDSA)
	case pkcs11.CKO_SECRET_KEY:
		o.Class, o.Mechanisms = keyhost.ClassSecret, t.signs(pkcs11.CKM_SHA256_HMAC)
	case pkcs11.CKO_PUBLIC_KEY:
		o.Class, o.ECParams, o.Point = keyhost.ClassPublic, t.value(s, h, pkcs11.CKA_EC_PARAMS), unwrapped(t.value(s, h, pkcs11.CKA_EC_POINT))
	default:
		return o, false
	}
	o.ValueReadable = o.Class != keyhost.ClassPublic && len(t.value(s, h, pkcs11.CKA_VALUE)) > 0
	return o, true
}

// signs is the mechanism when the token signs by it.
func (t *token) signs(mechanism uint) []string {
	info, err := t.ctx.GetMechanismInfo(t.slot, []*pkcs11.Mechanism{pkcs11.NewMechanism(mechanism, nil)})
	if err != nil || info.Flags&pkcs11.CKF_SIGN == 0 {
		return []string{}
	}
	return []string{fmt.Sprintf("0x%x", mechanism)}
}

// attributes are what the token says of an object's past.
func (t *token) attributes(s pkcs11.SessionHandle, h pkcs11.ObjectHandle) map[string]string {
	out := map[string]string{"KEY_GEN_MECHANISM": mechanism(t.value(s, h, pkcs11.CKA_KEY_GEN_MECHANISM))}
	for name, kind := range map[string]uint{"LOCAL": pkcs11.CKA_LOCAL, "ALWAYS_SENSITIVE": pkcs11.CKA_ALWAYS_SENSITIVE, "NEVER_EXTRACTABLE": pkcs11.CKA_NEVER_EXTRACTABLE,
		"EXTRACTABLE": pkcs11.CKA_EXTRACTABLE, "SENSITIVE": pkcs11.CKA_SENSITIVE, "MODIFIABLE": pkcs11.CKA_MODIFIABLE, "COPYABLE": pkcs11.CKA_COPYABLE,
		"WRAP_WITH_TRUSTED": pkcs11.CKA_WRAP_WITH_TRUSTED} {
		switch v := t.value(s, h, kind); {
		case len(v) != 1:
			out[name] = unsupported
		case v[0] != 0:
			out[name] = "true"
		default:
			out[name] = "false"
		}
	}
	return out
}

// unsupported says of an attribute that the token has it not.
const unsupported = "unsupported"

// value is one attribute, or nothing where the token gives none.
func (t *token) value(s pkcs11.SessionHandle, h pkcs11.ObjectHandle, kind uint) []byte {
	a, err := t.ctx.GetAttributeValue(s, h, []*pkcs11.Attribute{pkcs11.NewAttribute(kind, nil)})
	if err != nil || len(a) != 1 {
		return nil
	}
	return a[0].Value
}

// native is a CK_ULONG, as this machine has it.
func native(b []byte) (n uint64) {
	for _, x := range slices.Backward(b) {
		n = n<<8 | uint64(x)
	}
	return n
}

func mechanism(value []byte) string {
	switch n := native(value); {
	case len(value) != 8:
		return unsupported
	case n == 1<<64-1: // CK_UNAVAILABLE_INFORMATION
		return "unavailable"
	default:
		return fmt.Sprintf("0x%x", n)
	}
}

// unwrapped is a point without the OCTET STRING that some tokens put around it, as the standard says, and some do not.
func unwrapped(point []byte) []byte {
	var inner []byte
	if rest, err := asn1.Unmarshal(point, &inner); err == nil && len(rest) == 0 {
		return inner
	}
	return point
}

// oidP256 is the DER of the named curve prime256v1 (RFC 5480 §2.1.1.1).
var oidP256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}

// served are keys that a look has found in order.
type served struct {
	pairs      []Pair
	descriptor keyhost.Descriptor
	handles    map[string]pkcs11.ObjectHandle // of private and secret keys, by class and CKA_ID
}

// bind takes each key to be one object, not two, none of which can be read out.
func (l *sight) bind(pairs []Pair) (*served, error) {
	out := &served{pairs: pairs, handles: map[string]pkcs11.ObjectHandle{}}
	for _, p := range pairs {
		for _, want := range []struct{ what, class, id string }{
			{"the signing key", keyhost.ClassPrivate, p.Signing}, {"the nonce key", keyhost.ClassSecret, p.Nonce}} {
			i, err := l.one(want.what, want.class, want.id)
			if err != nil {
				return nil, err
			}
			if k := l.Keys[i]; k.Attributes["EXTRACTABLE"] != "false" {
				return nil, refuse(keyhost.KeyExtractable, "%s may leave the token", want.what)
			} else if k.ValueReadable {
				return nil, refuse(keyhost.KeyValueReadable, "%s can be read", want.what)
			}
			out.handles[want.class+want.id] = l.handles[i]
		}
		i, err := l.one("the public key", keyhost.ClassPublic, p.Signing)
		if err != nil {
			return nil, err
		}
		k := l.Keys[i]
		if _, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), k.Point); err != nil || !bytes.Equal(k.ECParams, oidP256) {
			return nil, refuse(keyhost.KeyCurveInvalid, "the public key is not a point of the named curve P-256")
		}
		out.descriptor.Pairs = append(out.descriptor.Pairs, keyhost.Pair{Signing: p.Signing, Nonce: p.Nonce, PublicKey: k.Point})
	}
	return out, nil
}

// one is the place of the only object of a class and CKA_ID.
func (l *sight) one(what, class, id string) (at int, err error) {
	n := 0
	for i, k := range l.Keys {
		if k.Class == class && hex.EncodeToString(k.ID) == id {
			at = i
			n++
		}
	}
	if n != 1 {
		return 0, refuse(keyhost.KeyAmbiguous, "%s is %d objects with CKA_ID %s, and must be one", what, n, id)
	}
	return at, nil
}

// Observe implements keyhost.Keys.
func (t *token) Observe(ctx context.Context) (keyhost.Observation, error) {
	var seen sight
	pairs := t.served.Load().pairs
	if _, err := t.do(ctx, func(s pkcs11.SessionHandle) (_ []byte, err error) {
		seen, err = t.look(s, pairs)
		return nil, err
	}); err != nil {
		return keyhost.Observation{}, err
	}
	return seen.Observation, nil
}
