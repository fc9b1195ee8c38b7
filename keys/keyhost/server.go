package keyhost

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"sync"
	"time"
)

// Keys are a token's. Every error of theirs is an *Error.
type Keys interface {
	Describe() Descriptor
	// Observe looks at the token and at the keys, now.
	Observe(ctx context.Context) (Observation, error)
	// SignDigest returns r ‖ s.
	SignDigest(ctx context.Context, key string, digest [32]byte) ([64]byte, error)
	MAC(ctx context.Context, key string, message []byte) ([32]byte, error)
}

// Server answers who may ask.
type Server struct {
	Keys     Keys
	UIDs     []int    // users whose processes may ask
	Purposes []string // that are signed for
	Log      *slog.Logger

	publics sync.Map // *ecdsa.PublicKey by point
}

// Bounds of a server.
const (
	maxConns     = 256
	questionTime = time.Second // for one question
	idleTime     = 10 * time.Minute
)

// Serve has every key sign a challenge, and only then listens. It answers until ctx ends, or until the token is
// suspect: then it returns that, and the process must end and start anew.
func (s *Server) Serve(ctx context.Context, listen func() (*net.UnixListener, error)) error {
	if err := s.Challenge(ctx); err != nil {
		return err
	}
	l, err := listen()
	if err != nil {
		return err
	}
	ctx, suspect := context.WithCancelCause(ctx)
	defer suspect(nil)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var open sync.WaitGroup
	defer open.Wait()
	places := make(chan struct{}, maxConns)
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			suspect(err)
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		}
		select {
		case places <- struct{}{}:
			open.Go(func() {
				defer func() { <-places }()
				s.converse(ctx, conn, suspect)
			})
		default:
			_ = conn.Close()
		}
	}
}

// converse answers the questions of one connection. What is asked when the end comes is answered still.
func (s *Server) converse(ctx context.Context, conn *net.UnixConn, suspect context.CancelCauseFunc) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	uid, err := peer(conn)
	if err != nil || !slices.Contains(s.UIDs, uid) {
		s.Log.LogAttrs(ctx, slog.LevelWarn, "a process of another user asked for keys", slog.Int("uid", uid))
		return
	}
	in := newLink(conn)
	for {
		var q question
		if conn.SetReadDeadline(time.Now().Add(idleTime)) != nil || ctx.Err() != nil || receive(in, &q) != nil {
			return
		}
		a, err := s.answer(ctx, q)
		sent := conn.SetWriteDeadline(time.Now().Add(questionTime)) == nil && send(conn, a) == nil
		// A client that has waited long enough has gone, and the token is no better for it.
		if e, ok := errors.AsType[*Error](err); ok && e.Suspect() && ctx.Err() == nil {
			s.Log.LogAttrs(ctx, slog.LevelError, "the token is suspect", slog.String("code", string(e.Code)), slog.String("why", e.Why))
			suspect(e)
			return
		}
		if !sent {
			return
		}
	}
}

func (s *Server) answer(ctx context.Context, q question) (a answer, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), questionTime)
	defer cancel()
	switch q.Op {
	case opDescribe:
		d := s.Keys.Describe()
		a.Descriptor = &d
	case opSign:
		a.Data, err = s.sign(ctx, q)
	case opMAC:
		var mac [32]byte
		mac, err = s.Keys.MAC(ctx, q.Key, q.Data)
		a.Data = mac[:]
	case opHealth:
		err = s.Challenge(ctx)
	case opObserve:
		var o Observation
		o, err = s.Keys.Observe(ctx)
		a.Observation = &o
	default:
		err = &Error{RequestMalformed, "there is no such question"}
	}
	if err != nil {
		a = answer{Code: TokenUnavailable}
		if e, ok := errors.AsType[*Error](err); ok {
			a.Code, a.Why = e.Code, e.Why
		}
	}
	return a, err
}

func (s *Server) sign(ctx context.Context, q question) ([]byte, error) {
	if len(q.Data) != sha256.Size {
		return nil, &Error{RequestMalformed, "a digest has 32 bytes"}
	}
	if !slices.Contains(s.Purposes, q.Purpose) {
		return nil, &Error{PurposeRefused, "the key has no such purpose"}
	}
	for _, p := range s.Keys.Describe().Pairs {
		if p.Signing == q.Key {
			signature, err := s.verified(ctx, p, [32]byte(q.Data))
			return signature[:], err
		}
	}
	return nil, &Error{KeyUnknown, "no signing key of that name is served"}
}

// verified has a digest signed and lets the signature out only when it is one.
func (s *Server) verified(ctx context.Context, p Pair, digest [32]byte) ([64]byte, error) {
	public, err := s.public(p.PublicKey)
	if err != nil {
		return [64]byte{}, err
	}
	signature, err := s.Keys.SignDigest(ctx, p.Signing, digest)
	if err != nil {
		return [64]byte{}, err
	}
	r, t := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	if !ecdsa.Verify(public, digest[:], r, t) {
		return [64]byte{}, &Error{KeyChallengeFailed, "the token gave a signature that its key has not made"}
	}
	return signature, nil
}

func (s *Server) public(point []byte) (*ecdsa.PublicKey, error) {
	if known, ok := s.publics.Load(string(point)); ok {
		return known.(*ecdsa.PublicKey), nil
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, &Error{KeyCurveInvalid, "the key is not a point of P-256"}
	}
	s.publics.Store(string(point), public)
	return public, nil
}

// Challenge has every signing key sign what can be no JWS: a digest over a domain and randomness.
func (s *Server) Challenge(ctx context.Context) error {
	for _, p := range s.Keys.Describe().Pairs {
		var random [32]byte
		_, _ = rand.Read(random[:]) // never fails (crypto/rand)
		if _, err := s.verified(ctx, p, sha256.Sum256(append([]byte("nightwarrant/keyhost-challenge/v1\x00"), random[:]...))); err != nil {
			return err
		}
	}
	return nil
}
