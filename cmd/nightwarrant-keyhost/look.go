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

// sight is an observation in the making, in a session that is nobody else's
// meanwhile, with the handle of each object that was seen.
type sight struct {
	keyhost.Observation
	handles []pkcs11.ObjectHandle
	token   *token
	session pkcs11.SessionHandle
	err     error // the first that says that nothing is known any more
}

// look asks the library and the token anew.
func (t *token) look(s pkcs11.SessionHandle, pairs []Pair) (*sight, error) {
	out := &sight{token: t, session: s}
	out.At = time.Now().UTC()
	var err error
	if out.Library, err = t.libraryNow(); err != nil {
		return nil, err
	}
	info, err := t.ctx.GetTokenInfo(t.slot)
	if err != nil {
		return nil, ckr(err, "the token has gone")
	}
	out.Token = keyhost.Token{Manufacturer: padded(info.ManufacturerID), Model: padded(info.Model), Serial: padded(info.SerialNumber), Label: padded(info.Label),
		HardwareVersion: version(info.HardwareVersion), FirmwareVersion: version(info.FirmwareVersion), Flags: uint64(info.Flags)}
	if out.Token.Serial != t.serial {
		return nil, refuse(keyhost.TokenIdentityMismatch, "another token is in the place of %s", t.serial)
	}
	for _, p := range pairs {
		out.under(p.Signing, keyhost.PairSigning)
		out.under(p.Nonce, keyhost.PairNonce)
	}
	if out.err == nil {
		out.err = out.Check()
	}
	return out, out.err
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
func (l *sight) under(id, purpose string) {
	raw, _ := hex.DecodeString(id) // Check has read it
	found := l.search(pkcs11.NewAttribute(pkcs11.CKA_ID, raw))
	for _, h := range found {
		if label := l.value(h, pkcs11.CKA_LABEL); len(label) > 0 {
			found = append(found, l.search(pkcs11.NewAttribute(pkcs11.CKA_LABEL, label))...)
		}
	}
	for _, h := range found {
		if slices.Contains(l.handles, h) {
			continue
		}
		if o, ok := l.object(h, purpose); ok {
			l.Keys, l.handles = append(l.Keys, o), append(l.handles, h)
		}
	}
}

func (l *sight) search(what *pkcs11.Attribute) []pkcs11.ObjectHandle {
	if l.err != nil {
		return nil
	}
	err := l.token.ctx.FindObjectsInit(l.session, []*pkcs11.Attribute{what})
	if err != nil {
		l.err = ckr(err, "objects cannot be looked for")
		return nil
	}
	found, _, err := l.token.ctx.FindObjects(l.session, keyhost.MaxObjects+1)
	if err := errors.Join(err, l.token.ctx.FindObjectsFinal(l.session)); err != nil {
		l.err = ckr(err, "objects cannot be looked for")
	} else if len(found) > keyhost.MaxObjects {
		l.err = refuse(keyhost.KeyAmbiguous, "more than %d objects have one name", keyhost.MaxObjects)
	}
	return found
}

// object is what the token says of one, when it is a key.
func (l *sight) object(h pkcs11.ObjectHandle, purpose string) (o keyhost.Object, isKey bool) {
	o = keyhost.Object{Purpose: purpose, ID: l.value(h, pkcs11.CKA_ID), Label: padded(string(l.value(h, pkcs11.CKA_LABEL))),
		Mechanisms: []string{}, Attributes: l.attributes(h)}
	switch native(l.value(h, pkcs11.CKA_CLASS)) {
	case pkcs11.CKO_PRIVATE_KEY:
		o.Class, o.ECParams, o.Mechanisms = keyhost.ClassPrivate, l.value(h, pkcs11.CKA_EC_PARAMS), l.signs(pkcs11.CKM_ECDSA)
	case pkcs11.CKO_SECRET_KEY:
		o.Class, o.Mechanisms = keyhost.ClassSecret, l.signs(pkcs11.CKM_SHA256_HMAC)
	case pkcs11.CKO_PUBLIC_KEY:
		o.Class, o.ECParams, o.Point = keyhost.ClassPublic, l.value(h, pkcs11.CKA_EC_PARAMS), unwrapped(l.value(h, pkcs11.CKA_EC_POINT))
	default:
		return o, false
	}
	o.ValueReadable = o.Class != keyhost.ClassPublic && len(l.value(h, pkcs11.CKA_VALUE)) > 0
	return o, true
}

// signs is the mechanism when the token signs by it.
func (l *sight) signs(mechanism uint) []string {
	info, err := l.token.ctx.GetMechanismInfo(l.token.slot, []*pkcs11.Mechanism{pkcs11.NewMechanism(mechanism, nil)})
	if err != nil || info.Flags&pkcs11.CKF_SIGN == 0 {
		return []string{}
	}
	return []string{fmt.Sprintf("0x%x", mechanism)}
}

// unsupported says of an attribute that the token has it not.
const unsupported = "unsupported"

// attributes are what the token says of an object's past.
func (l *sight) attributes(h pkcs11.ObjectHandle) map[string]string {
	out := map[string]string{"KEY_GEN_MECHANISM": mechanism(l.value(h, pkcs11.CKA_KEY_GEN_MECHANISM))}
	for name, kind := range map[string]uint{"LOCAL": pkcs11.CKA_LOCAL, "ALWAYS_SENSITIVE": pkcs11.CKA_ALWAYS_SENSITIVE, "NEVER_EXTRACTABLE": pkcs11.CKA_NEVER_EXTRACTABLE,
		"EXTRACTABLE": pkcs11.CKA_EXTRACTABLE, "SENSITIVE": pkcs11.CKA_SENSITIVE, "MODIFIABLE": pkcs11.CKA_MODIFIABLE, "COPYABLE": pkcs11.CKA_COPYABLE,
		"WRAP_WITH_TRUSTED": pkcs11.CKA_WRAP_WITH_TRUSTED} {
		switch v := l.value(h, kind); {
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

// gone are the errors after which nothing that a library says is about this token (keys.md §5.4); any other means
// that it has no such attribute.
var gone = []uint{pkcs11.CKR_OBJECT_HANDLE_INVALID, pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_DEVICE_REMOVED,
	pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED, pkcs11.CKR_GENERAL_ERROR}

// value is one attribute, or nothing where the token gives none.
func (l *sight) value(h pkcs11.ObjectHandle, kind uint) []byte {
	if l.err != nil {
		return nil
	}
	a, err := l.token.ctx.GetAttributeValue(l.session, h, []*pkcs11.Attribute{pkcs11.NewAttribute(kind, nil)})
	if e, ok := errors.AsType[pkcs11.Error](err); ok && slices.Contains(gone, uint(e)) {
		l.err = ckr(err, "the token does not show its keys")
	}
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
		if slices.ContainsFunc(out.descriptor.Pairs, func(p keyhost.Pair) bool { return bytes.Equal(p.PublicKey, k.Point) }) {
			return nil, refuse(keyhost.KeyAmbiguous, "two pairs have one public key")
		}
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
	l, err := t.lookAt(ctx, t.served.Load().pairs)
	if err != nil {
		return keyhost.Observation{}, err
	}
	return l.Observation, nil
}

// lookAt has some session look.
func (t *token) lookAt(ctx context.Context, pairs []Pair) (*sight, error) {
	var out *sight
	err := t.do(ctx, func(s pkcs11.SessionHandle) (err error) {
		out, err = t.look(s, pairs)
		return err
	})
	return out, err
}

// serve has the token serve other pairs from now on, when they are as they must be.
func (t *token) serve(ctx context.Context, pairs []Pair) error {
	l, err := t.lookAt(ctx, pairs)
	if err != nil {
		return err
	}
	keys, err := l.bind(pairs)
	if err == nil {
		t.served.Store(keys)
	}
	return err
}
