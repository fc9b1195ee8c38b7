package authority

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// entry is one registered document.
type entry struct {
	id       int64
	revision int64
	active   bool
	doc      document.Document
	actions  map[string]catalogue.Action // of a guard, by name
}

// snapshot is a copy of the registry. It is used to find which registered
// thing a caller means, and to refuse; whether that thing may still be used is
// decided by the verb, which reads the row.
type snapshot struct {
	byName   map[[32]byte]string // names that digests stand for
	profiles []profile           // active ones
	entries  map[key]entry
	queues   map[string][]byte // by workload role
}

type key struct {
	kind, name string
	revision   int64
}

type profile struct {
	id int64
	attestation.Profile
}

// registry holds the last snapshot.
type registry struct{ last atomic.Pointer[snapshot] }

func (r *registry) now() *snapshot { return r.last.Load() }

// refresh reads the registry as it stands.
func (r *registry) refresh(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rows, err := pool.Query(ctx, `SELECT id, kind, revision, state = 'active', body, queue FROM nw.entries()`)
	if err != nil {
		return err
	}
	s := &snapshot{byName: map[[32]byte]string{}, entries: map[key]entry{}, queues: map[string][]byte{}}
	var e entry
	var kind string
	var body, queue []byte
	_, err = pgx.ForEachRow(rows, []any{&e.id, &kind, &e.revision, &e.active, &body, &queue}, func() error {
		return s.add(e, body, queue)
	})
	if err != nil {
		return err
	}
	r.last.Store(s)
	return nil
}

func (s *snapshot) add(e entry, body, queue []byte) (err error) {
	if e.doc, err = document.ParseJSON(body); err != nil {
		return fmt.Errorf("a registered document does not parse: %w", err)
	}
	h := e.doc.Head()
	s.byName[nameDigest(h.Name)] = h.Name
	s.entries[key{h.Kind, h.Name, e.revision}] = e
	switch d := e.doc.(type) {
	case *document.Guard:
		if e.actions, err = d.Actions(); err != nil {
			return fmt.Errorf("a registered guard's actions do not hold: %w", err)
		}
		s.entries[key{h.Kind, h.Name, e.revision}] = e
	case *document.AttestationProfile:
		if e.active {
			s.profiles = append(s.profiles, profile{e.id, profileOf(d)})
		}
	case *document.WorkloadRole:
		s.queues[d.Name] = append([]byte(nil), queue...)
	}
	return nil
}

func profileOf(d *document.AttestationProfile) attestation.Profile {
	p := attestation.Profile{Name: d.Name, Issuer: d.Issuer, Subject: d.Subject, RequiredClaims: d.Claims, Binding: attestation.Binding(d.Binding),
		MaxLifetime: time.Duration(d.MaxLifetimeS) * time.Second}
	if d.ServiceAccount != (document.ServiceAccount{}) {
		account := attestation.ServiceAccount(d.ServiceAccount)
		p.ServiceAccount = &account
	}
	return p
}

func (s *snapshot) name(digest []byte) string {
	if name, ok := s.byName[[32]byte(digest)]; ok {
		return name
	}
	return encode(digest)
}

// find returns an active document of a kind, or the zero value of its type.
func find[D document.Document](s *snapshot, kind, name string, revision int64) (d D, ok bool) {
	e := s.entries[key{kind, name, revision}]
	d, ok = e.doc.(D)
	return d, ok && e.active
}

func nameDigest(name string) [32]byte {
	return canonical.Digest(canonical.DomainName, []byte(name))
}

func actionDigest(action string) [32]byte {
	return canonical.Digest(canonical.DomainAction, []byte(action))
}

func resourceDigest(resource string) [32]byte {
	return canonical.Digest(canonical.DomainResource, []byte(resource))
}

// uriDigest names a guard by its URI, which is its audience.
func uriDigest(uri string) [32]byte {
	return canonical.Digest(canonical.DomainReference, []byte(uri))
}

func currencyDigest(currency string) *[32]byte {
	if currency == "" {
		return nil
	}
	d := canonical.Digest(canonical.DomainName, []byte(currency))
	return &d
}

// actionsAt returns what the active guard of that URI can do.
func (s *snapshot) actionsAt(uri string) (map[string]catalogue.Action, bool) {
	for k, e := range s.entries {
		if g, ok := e.doc.(*document.Guard); ok && k.kind == document.KindGuard && e.active && g.URI == uri {
			return e.actions, true
		}
	}
	return nil, false
}
