package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// token is an open PKCS#11 token with the keys that it serves.
type token struct {
	ctx            *pkcs11.Ctx
	module, serial string
	loaded         keyhost.Digest // of the module's file
	slot           uint
	served         atomic.Pointer[served]
	sessions       chan pkcs11.SessionHandle // that are free: one that two use at once crashes some libraries
	open           int                       // as many there are
	lost           chan error                // why nothing is known of the token any more
}

// Bounds of a token's use.
const (
	maxSessions = 16
	overrun     = 5 * time.Second // a call that lasts so long does not come back
)

// open loads the library, binds the token by its serial, logs in once and finds
// all keys. Every error is a *keyhost.Error.
func open(c *Config) (_ *token, err error) {
	t := &token{module: c.Module, serial: c.Serial, sessions: make(chan pkcs11.SessionHandle, maxSessions), lost: make(chan error, 1)}
	if t.loaded, err = digestOf(c.Module); err != nil {
		return nil, err
	}
	if t.ctx = pkcs11.New(c.Module); t.ctx == nil {
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
	if err := t.find(); err != nil {
		return nil, err
	}
	first, err := t.login(c)
	if err != nil {
		return nil, err
	}
	seen, err := t.look(first, c.Keys)
	if err != nil {
		return nil, err
	}
	keys, err := seen.bind(c.Keys)
	if err != nil {
		return nil, err
	}
	t.served.Store(keys)
	return t, t.start(first, int(c.Sessions))
}

// find finds the one token with the serial. No PIN is tried where wrong ones are counted already.
func (t *token) find() error {
	slots, err := t.ctx.GetSlotList(true)
	if err != nil {
		return ckr(err, "the library lists no slots")
	}
	found := 0
	for _, slot := range slots {
		info, err := t.ctx.GetTokenInfo(slot)
		if err != nil || padded(info.SerialNumber) != t.serial {
			continue
		}
		found++
		t.slot = slot
		if info.Flags&(pkcs11.CKF_USER_PIN_COUNT_LOW|pkcs11.CKF_USER_PIN_FINAL_TRY|pkcs11.CKF_USER_PIN_LOCKED) != 0 {
			return refuse(keyhost.TokenPINAtRisk, "the token counts wrong PINs already; nothing was tried")
		}
	}
	switch {
	case found == 0 && len(slots) > 0:
		return refuse(keyhost.TokenIdentityMismatch, "no token here has the serial %s", t.serial)
	case found == 0:
		return refuse(keyhost.TokenUnavailable, "there is no token")
	case found > 1:
		return refuse(keyhost.TokenIdentityMismatch, "two tokens say that they have the serial %s", t.serial)
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
	if info, err := t.ctx.GetSessionInfo(session); err != nil || info.State != pkcs11.CKS_RO_USER_FUNCTIONS {
		return 0, refuse(keyhost.TokenLoginRefused, "the token has not logged in, and does not say why")
	}
	return session, nil
}

// start opens the other sessions. The first one is logged in, and so are all.
func (t *token) start(first pkcs11.SessionHandle, sessions int) error {
	info, err := t.ctx.GetTokenInfo(t.slot)
	if err != nil {
		return ckr(err, "the token has gone")
	}
	n := min(sessions, maxSessions)
	if most := int64(info.MaxSessionCount); most > 0 { // 0: without a bound, -1: unknown
		n = max(1, min(n, int(most-1)))
	}
	t.sessions <- first
	for t.open = 1; t.open < n; t.open++ {
		s, err := t.ctx.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION)
		if errors.Is(err, pkcs11.Error(pkcs11.CKR_SESSION_COUNT)) {
			break // fewer than it said
		}
		if err != nil {
			return ckr(err, "no session can be opened")
		}
		t.sessions <- s
	}
	return nil
}

// do runs in a session that is nobody else's meanwhile. A call into the library cannot be called off: when it lasts
// too long, nothing can be done but to end.
func (t *token) do(ctx context.Context, run func(pkcs11.SessionHandle) error) error {
	var s pkcs11.SessionHandle
	select {
	case s = <-t.sessions:
	case <-ctx.Done():
		return refuse(keyhost.KeyBusy, "every session of the token is at work")
	}
	late := time.AfterFunc(overrun, func() { t.lose(refuse(keyhost.KeyChallengeTimeout, "the token does not answer")) })
	err := run(s)
	late.Stop()
	t.sessions <- s
	return err
}

// lose ends the key host, for the first reason that there is.
func (t *token) lose(why error) {
	select {
	case t.lost <- why:
	default:
	}
}

// sign has some session sign with the key of a class and CKA_ID.
func (t *token) sign(ctx context.Context, mechanism uint, key string, data []byte) (out []byte, err error) {
	object, ok := t.served.Load().handles[key]
	if !ok {
		return nil, refuse(keyhost.KeyUnknown, "no key of that name is served")
	}
	err = t.do(ctx, func(s pkcs11.SessionHandle) error {
		err := t.ctx.SignInit(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(mechanism, nil)}, object)
		if err == nil {
			out, err = t.ctx.Sign(s, data)
		}
		if err != nil {
			return ckr(err, "the token does not sign")
		}
		return nil
	})
	return out, err
}

// Describe implements keyhost.Keys.
func (t *token) Describe() keyhost.Descriptor { return t.served.Load().descriptor }

// SignDigest implements keyhost.Keys.
func (t *token) SignDigest(ctx context.Context, key string, digest [32]byte) (out [64]byte, err error) {
	data, err := t.sign(ctx, pkcs11.CKM_ECDSA, keyhost.ClassPrivate+key, digest[:])
	if err == nil && len(data) != len(out) {
		err = refuse(keyhost.KeyChallengeFailed, "the token's signature has %d bytes", len(data))
	}
	copy(out[:], data)
	return out, err
}

// MAC implements keyhost.Keys.
func (t *token) MAC(ctx context.Context, key string, message []byte) (out [32]byte, err error) {
	data, err := t.sign(ctx, pkcs11.CKM_SHA256_HMAC, keyhost.ClassSecret+key, message)
	if err == nil && len(data) != len(out) {
		err = refuse(keyhost.KeyChallengeFailed, "the token's MAC has %d bytes", len(data))
	}
	copy(out[:], data)
	return out, err
}

// close ends the library, once each session is free.
func (t *token) close() {
	for range t.open {
		<-t.sessions
	}
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
