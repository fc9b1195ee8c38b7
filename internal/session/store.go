package session

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/keys"
)

const (
	domainSeal = "nightwarrant/session-seal/v1"
	maxSealed  = 4096
	sqlRefusal = "NW409" // a verb that undid itself
)

// Marks make and know again what only holders of the key bundle can have made. *keys.Nonces does.
type Marks interface {
	Mint(audience string) string
	Open(mark, audience string) (keys.Nonce, error)
}

// record is what a session holds. The times are the database's and are not part of what is sealed.
type record struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
	Mark    string `json:"mark"` // a replica that holds the bundle wrote it, for this token and this member
	Left    *Left  `json:"left,omitempty"`
	Woken   bool   `json:"woken,omitempty"` // this request has kept it awake, as one does now and then
}

// store keeps sessions in PostgreSQL, for scs. A token never reaches the
// database: the row is found by its digest, and is opened with it. A session is
// written once, when it begins, so that no request can bring an ended one back.
type store struct {
	pool       *pgxpool.Pool
	marks      Marks
	idle, life time.Duration
}

type (
	beginningKey struct{}
	awakeKey     struct{}
	everywhere   struct{}
)

// CommitCtx begins a session of the Arrival in ctx.
func (s *store) CommitCtx(ctx context.Context, token string, b []byte, _ time.Time) error {
	from, ok := ctx.Value(beginningKey{}).(Arrival)
	if !ok {
		return errors.New("session: a session is written only when it begins")
	}
	digest, member, envelope := digestOf(token), from.Who.Member(), from.Who.Digest()
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	r.Mark = s.marks.Mint(markFor(digest, member))
	plain, err := json.Marshal(r)
	if err != nil {
		return err
	}
	sealed, err := seal(token, digest, plain)
	if err != nil {
		return err
	}
	if len(sealed) > maxSealed {
		return api.Refuse(api.InvalidEnvelope)
	}
	var verdict string
	_, err = pg.Call(ctx, s.pool, `SELECT nw.begin_session($1, $2, $3, $4, $5, $6, $7, $8, $9)`, []any{digest[:], member[:], sealed, envelope[:], from.Who.Expires(),
		from.Attempt[:], from.Until, s.idle.Milliseconds(), s.life.Milliseconds()}, &verdict)
	return refusal(verdict, err)
}

// FindCtx finds a session that lasts. What cannot be opened or was not written by
// one of us is none.
func (s *store) FindCtx(ctx context.Context, token string) ([]byte, bool, error) {
	digest := digestOf(token)
	awake, _ := ctx.Value(awakeKey{}).(bool)
	var member, sealed []byte
	var idle, end *time.Time
	var left Left
	var woken bool
	if _, err := pg.Call(ctx, s.pool, `SELECT * FROM nw.find_session($1, $2)`, []any{digest[:], awake}, &member, &sealed, &idle, &end, &left.Now, &woken); err != nil {
		return nil, false, refusal("", err)
	}
	if sealed == nil || len(member) != 32 || idle == nil || end == nil {
		return nil, false, nil
	}
	left.Idle, left.End = *idle, *end
	plain, err := unseal(token, digest, sealed)
	if err != nil {
		return nil, false, nil //nolint:nilerr // what cannot be opened is no session
	}
	var r record
	if json.Unmarshal(plain, &r) != nil || canonical.Digest(canonical.DomainMember, []byte(r.Issuer), []byte(r.Subject)) != [32]byte(member) {
		return nil, false, nil //nolint:nilerr // what does not decode either
	}
	if _, err := s.marks.Open(r.Mark, markFor(digest, [32]byte(member))); err != nil {
		return nil, false, nil //nolint:nilerr // nor is what none of us wrote
	}
	r.Left, r.Woken = &left, woken
	b, err := json.Marshal(r)
	return b, err == nil, err
}

// DeleteCtx ends a session; with everywhere in ctx all of its member's.
func (s *store) DeleteCtx(ctx context.Context, token string) error {
	digest := digestOf(token)
	all, _ := ctx.Value(everywhere{}).(bool)
	var ended int64
	_, err := pg.Call(ctx, s.pool, `SELECT nw.end_session($1, $2)`, []any{digest[:], all}, &ended)
	return refusal("ok", err)
}

// scs asks for these too, and never calls them.
var errContext = errors.New("session: a context is needed")

func (s *store) Find(string) ([]byte, bool, error)      { return nil, false, errContext }
func (s *store) Commit(string, []byte, time.Time) error { return errContext }
func (s *store) Delete(string) error                    { return errContext }
func (s *store) expire(ctx context.Context) (n int64, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.expire_sessions(1000)`, nil, &n)
	return n, err
}

// refusal is what a verb's verdict or its error means to whoever asked.
func refusal(verdict string, err error) error {
	var e *pgconn.PgError
	switch {
	case err == nil && (verdict == "ok" || verdict == ""):
		return nil
	case err == nil:
		return api.Refuse(api.Code(verdict))
	case errors.As(err, &e) && e.Code == sqlRefusal:
		return api.Refuse(api.Code(e.Message))
	}
	return fmt.Errorf("%w: %w", api.Refuse(api.Unavailable), err)
}

func markFor(digest, member [32]byte) string {
	return "nightwarrant/session/v1 " + hex.EncodeToString(digest[:]) + " " + hex.EncodeToString(member[:])
}

// aead is keyed by the token, so that neither the database nor its copies can be
// read. Each key seals once.
func aead(token string) (cipher.AEAD, error) {
	key := canonical.Digest(domainSeal, []byte(token))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func seal(token string, digest [32]byte, plain []byte) ([]byte, error) {
	a, err := aead(token)
	if err != nil {
		return nil, err
	}
	return a.Seal(nil, nil, plain, digest[:]), nil //nolint:gosec // the AEAD makes its nonce itself
}

func unseal(token string, digest [32]byte, sealed []byte) ([]byte, error) {
	a, err := aead(token)
	if err != nil {
		return nil, err
	}
	return a.Open(nil, nil, sealed, digest[:])
}

// codec is how scs spells a record.
type codec struct{}

const keyRecord = "record"

func (codec) Encode(_ time.Time, values map[string]any) ([]byte, error) {
	r, ok := values[keyRecord].(record)
	if !ok || len(values) != 1 {
		return nil, errors.New("session: a session holds a record and nothing else")
	}
	return json.Marshal(r)
}

func (codec) Decode(b []byte) (time.Time, map[string]any, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r.Left == nil {
		return time.Time{}, nil, errors.New("session: a record cannot be read")
	}
	return r.Left.End, map[string]any{keyRecord: r}, nil
}
