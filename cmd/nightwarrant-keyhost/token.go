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
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// token is an open PKCS#11 token with its two keys. Each session belongs to one
// goroutine: a session that two use crashes some libraries.
type token struct {
	ctx        *pkcs11.Ctx
	slot       uint
	descriptor keyhost.Descriptor
	signing    pkcs11.ObjectHandle
	mac        pkcs11.ObjectHandle
	jobs       chan job
	workers    sync.WaitGroup
}

// job is one operation; its answer is sent once, to a channel that can hold it.
type job struct {
	mechanism uint
	object    pkcs11.ObjectHandle
	data      []byte
	done      chan<- outcome
}

type outcome struct {
	data []byte
	err  error
}

// Bounds of a token's use.
const (
	maxSessions = 16
	overrun     = 5 * time.Second // a call that lasts so long does not come back
)

// open loads the library, binds the token by its serial, logs in once and finds
// both keys. Every error is a *keyhost.Error.
func open(c *Config) (_ *token, err error) {
	t := &token{ctx: pkcs11.New(c.Module), jobs: make(chan job)}
	if t.ctx == nil {
		return nil, refuse(keyhost.TokenUnavailable, "the library %s cannot be loaded", c.Module)
	}
	if err := t.ctx.Initialize(); err != nil {
		t.ctx.Destroy()
		return nil, ckr(err, "the library does not start")
	}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err := t.describe(c); err != nil {
		return nil, err
	}
	first, err := t.login(c)
	if err != nil {
		return nil, err
	}
	if err := t.find(first, c); err != nil {
		return nil, err
	}
	return t, t.start(first, int(c.Sessions))
}

// describe finds the one token with the serial and keeps what it says of itself.
func (t *token) describe(c *Config) error {
	info, err := t.ctx.GetInfo()
	if err != nil {
		return ckr(err, "the library says nothing of itself")
	}
	file, err := os.ReadFile(c.Module)
	if err != nil {
		return refuse(keyhost.TokenUnavailable, "the library cannot be read")
	}
	sum := sha256.Sum256(file)
	t.descriptor.Library = keyhost.Library{Cryptoki: version(info.CryptokiVersion), Manufacturer: padded(info.ManufacturerID), Description: padded(info.LibraryDescription),
		Version: version(info.LibraryVersion), FileSHA256: hex.EncodeToString(sum[:]), EntryPoint: "C_GetFunctionList"}
	slots, err := t.ctx.GetSlotList(true)
	if err != nil {
		return ckr(err, "the library lists no slots")
	}
	found := 0
	for _, slot := range slots {
		i, err := t.ctx.GetTokenInfo(slot)
		if err != nil || padded(i.SerialNumber) != c.Serial {
			continue
		}
		found++
		t.slot = slot
		t.descriptor.Token = keyhost.Token{Manufacturer: padded(i.ManufacturerID), Model: padded(i.Model), Serial: padded(i.SerialNumber), Label: padded(i.Label),
			Hardware: version(i.HardwareVersion), Firmware: version(i.FirmwareVersion)}
		if i.Flags&(pkcs11.CKF_USER_PIN_COUNT_LOW|pkcs11.CKF_USER_PIN_FINAL_TRY|pkcs11.CKF_USER_PIN_LOCKED) != 0 {
			return refuse(keyhost.TokenPINAtRisk, "the token counts wrong PINs already; nothing was tried")
		}
	}
	switch {
	case found == 0 && len(slots) > 0:
		return refuse(keyhost.TokenIdentityMismatch, "no token here has the serial %s", c.Serial)
	case found == 0:
		return refuse(keyhost.TokenUnavailable, "there is no token")
	case found > 1:
		return refuse(keyhost.TokenIdentityMismatch, "two tokens say that they have the serial %s", c.Serial)
	}
	return nil
}

// login opens the first session and logs the process in, with one try.
func (t *token) login(c *Config) (pkcs11.SessionHandle, error) {
	session, err := t.ctx.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil {
		return 0, ckr(err, "no session can be opened")
	}
	err = t.ctx.Login(session, pkcs11.CKU_USER, c.PIN.Reveal())
	if err != nil && !errors.Is(err, pkcs11.Error(pkcs11.CKR_USER_ALREADY_LOGGED_IN)) {
		return 0, refuse(keyhost.TokenLoginRefused, "the token refuses the PIN (%s); it was tried once", name(err))
	}
	return session, nil
}

// find binds both keys: each is one object, not two, and none can be read out.
func (t *token) find(s pkcs11.SessionHandle, c *Config) (err error) {
	if t.signing, err = t.one(s, "the signing key", pkcs11.CKO_PRIVATE_KEY, c.KeyID); err != nil {
		return err
	}
	if t.mac, err = t.one(s, "the nonce key", pkcs11.CKO_SECRET_KEY, c.MACKeyID); err != nil {
		return err
	}
	public, err := t.one(s, "the public key", pkcs11.CKO_PUBLIC_KEY, c.KeyID)
	if err != nil {
		return err
	}
	t.descriptor.KeyID, t.descriptor.MACKeyID = c.KeyID, c.MACKeyID
	t.descriptor.Key, t.descriptor.MACKey = t.attributes(s, t.signing), t.attributes(s, t.mac)
	for what, o := range map[string]pkcs11.ObjectHandle{"the signing key": t.signing, "the nonce key": t.mac} {
		if t.flag(s, o, pkcs11.CKA_EXTRACTABLE) != "false" {
			return refuse(keyhost.KeyExtractable, "%s may leave the token", what)
		}
		if a, err := t.ctx.GetAttributeValue(s, o, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_VALUE, nil)}); err == nil && len(a) > 0 && len(a[0].Value) > 0 {
			return refuse(keyhost.KeyValueReadable, "%s can be read", what)
		}
	}
	t.descriptor.PublicKey, err = t.point(s, public)
	return err
}

// one finds the only object of a class and CKA_ID.
func (t *token) one(s pkcs11.SessionHandle, what string, class uint, id string) (pkcs11.ObjectHandle, error) {
	raw, err := hex.DecodeString(id)
	if err != nil {
		return 0, refuse(keyhost.KeyAmbiguous, "%s has no CKA_ID", what)
	}
	template := []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, class), pkcs11.NewAttribute(pkcs11.CKA_ID, raw)}
	if err := t.ctx.FindObjectsInit(s, template); err != nil {
		return 0, ckr(err, "objects cannot be looked for")
	}
	found, _, err := t.ctx.FindObjects(s, 3)
	if err := errors.Join(err, t.ctx.FindObjectsFinal(s)); err != nil {
		return 0, ckr(err, "objects cannot be looked for")
	}
	if len(found) != 1 {
		return 0, refuse(keyhost.KeyAmbiguous, "%s is %d objects with CKA_ID %s, and must be one", what, len(found), id)
	}
	return found[0], nil
}

// oidP256 is the DER of the named curve prime256v1 (RFC 5480 §2.1.1.1).
var oidP256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}

// point is the public key, which must be on the named curve.
func (t *token) point(s pkcs11.SessionHandle, o pkcs11.ObjectHandle) ([]byte, error) {
	a, err := t.ctx.GetAttributeValue(s, o, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, nil), pkcs11.NewAttribute(pkcs11.CKA_EC_POINT, nil)})
	if err != nil || len(a) != 2 {
		return nil, refuse(keyhost.KeyCurveInvalid, "the public key is no elliptic one")
	}
	point := a[1].Value
	var inner []byte // some tokens wrap it into an OCTET STRING, as the standard says, and some do not
	if rest, err := asn1.Unmarshal(point, &inner); err == nil && len(rest) == 0 {
		point = inner
	}
	if _, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point); err != nil || !bytes.Equal(a[0].Value, oidP256) {
		return nil, refuse(keyhost.KeyCurveInvalid, "the public key is not a point of the named curve P-256")
	}
	return point, nil
}

// attributes are what the token says of an object's past.
func (t *token) attributes(s pkcs11.SessionHandle, o pkcs11.ObjectHandle) map[string]string {
	out := map[string]string{}
	for name, kind := range map[string]uint{"LOCAL": pkcs11.CKA_LOCAL, "ALWAYS_SENSITIVE": pkcs11.CKA_ALWAYS_SENSITIVE, "NEVER_EXTRACTABLE": pkcs11.CKA_NEVER_EXTRACTABLE,
		"EXTRACTABLE": pkcs11.CKA_EXTRACTABLE, "SENSITIVE": pkcs11.CKA_SENSITIVE, "MODIFIABLE": pkcs11.CKA_MODIFIABLE, "COPYABLE": pkcs11.CKA_COPYABLE,
		"WRAP_WITH_TRUSTED": pkcs11.CKA_WRAP_WITH_TRUSTED} {
		out[name] = t.flag(s, o, kind)
	}
	out["KEY_GEN_MECHANISM"] = "unsupported"
	if a, err := t.ctx.GetAttributeValue(s, o, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_KEY_GEN_MECHANISM, nil)}); err == nil && len(a) == 1 && len(a[0].Value) == 8 {
		out["KEY_GEN_MECHANISM"] = mechanism(a[0].Value)
	}
	return out
}

func (t *token) flag(s pkcs11.SessionHandle, o pkcs11.ObjectHandle, kind uint) string {
	a, err := t.ctx.GetAttributeValue(s, o, []*pkcs11.Attribute{pkcs11.NewAttribute(kind, nil)})
	if err != nil || len(a) != 1 || len(a[0].Value) != 1 {
		return "unsupported"
	}
	return map[bool]string{true: "true", false: "false"}[a[0].Value[0] != 0]
}

func mechanism(native []byte) string {
	var n uint64
	for i := len(native) - 1; i >= 0; i-- { // CK_ULONG, as this machine has it
		n = n<<8 | uint64(native[i])
	}
	if n == 1<<64-1 {
		return "unavailable"
	}
	return fmt.Sprintf("0x%x", n)
}

// start gives each session its goroutine. The first one is logged in, and so are all.
func (t *token) start(first pkcs11.SessionHandle, sessions int) error {
	info, err := t.ctx.GetTokenInfo(t.slot)
	if err != nil {
		return ckr(err, "the token has gone")
	}
	n := min(sessions, maxSessions)
	if most := int64(info.MaxRwSessionCount); most > 1 && most < int64(n) {
		n = int(most - 1)
	}
	all := []pkcs11.SessionHandle{first}
	for len(all) < n {
		s, err := t.ctx.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION)
		if errors.Is(err, pkcs11.Error(pkcs11.CKR_SESSION_COUNT)) {
			break // fewer than it said
		}
		if err != nil {
			return ckr(err, "no session can be opened")
		}
		all = append(all, s)
	}
	for _, s := range all {
		t.workers.Go(func() { t.work(s) })
	}
	return nil
}

func (t *token) work(s pkcs11.SessionHandle) {
	for j := range t.jobs {
		err := t.ctx.SignInit(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(j.mechanism, nil)}, j.object)
		var data []byte
		if err == nil {
			data, err = t.ctx.Sign(s, j.data)
		}
		j.done <- outcome{data, err}
	}
}

// do has some session do one operation.
func (t *token) do(ctx context.Context, mechanism uint, o pkcs11.ObjectHandle, data []byte) ([]byte, error) {
	done := make(chan outcome, 1)
	select {
	case t.jobs <- job{mechanism, o, data, done}:
	case <-ctx.Done():
		return nil, refuse(keyhost.KeyBusy, "every session of the token is at work")
	}
	late := time.NewTimer(overrun)
	defer late.Stop()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, ckr(r.err, "the token does not sign")
		}
		return r.data, nil
	case <-late.C: // a call into the library cannot be called off
		return nil, refuse(keyhost.KeyChallengeTimeout, "the token does not answer")
	}
}

// Describe implements keyhost.Keys.
func (t *token) Describe() keyhost.Descriptor { return t.descriptor }

// SignDigest implements keyhost.Keys.
func (t *token) SignDigest(ctx context.Context, digest [32]byte) (out [64]byte, err error) {
	data, err := t.do(ctx, pkcs11.CKM_ECDSA, t.signing, digest[:])
	if err == nil && len(data) != len(out) {
		err = refuse(keyhost.KeyChallengeFailed, "the token's signature has %d bytes", len(data))
	}
	copy(out[:], data)
	return out, err
}

// MAC implements keyhost.Keys.
func (t *token) MAC(ctx context.Context, message []byte) (out [32]byte, err error) {
	data, err := t.do(ctx, pkcs11.CKM_SHA256_HMAC, t.mac, message)
	if err == nil && len(data) != len(out) {
		err = refuse(keyhost.KeyChallengeFailed, "the token's MAC has %d bytes", len(data))
	}
	copy(out[:], data)
	return out, err
}

// close ends the library. Whoever has asked has had an answer.
func (t *token) close() {
	close(t.jobs)
	t.workers.Wait()
	_ = t.ctx.Finalize()
	t.ctx.Destroy()
}

func refuse(code keyhost.Code, format string, args ...any) *keyhost.Error {
	return &keyhost.Error{Code: code, Why: fmt.Sprintf(format, args...)}
}

// ckr is a failure of the library. Whatever it was, the token is suspect.
func ckr(err error, what string) *keyhost.Error {
	return refuse(keyhost.TokenUnavailable, "%s (%s)", what, name(err))
}

// name is a CKR code without what a library may have put beside it.
func name(err error) string {
	if e, ok := errors.AsType[pkcs11.Error](err); ok {
		return fmt.Sprintf("CKR 0x%x", uint(e))
	}
	return "unknown"
}

// padded takes the padding off a fixed field: blanks, and NUL bytes where a library writes those.
func padded(s string) string { return strings.TrimRight(s, " \x00") }

func version(v pkcs11.Version) string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }
