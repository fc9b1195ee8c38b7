package planted

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// mad is a replica that says whatever it likes to the verbs of an offer, as its own database role. Nothing that it does stays.
type mad struct {
	t     *testing.T
	h     *authoritytest.House
	offer api.Offer
	most  document.Consent
}

func gone(t *testing.T) mad {
	t.Helper()
	h := patient(t)
	h.Apply(strings.Replace(h.Task("tidy"), `action: row.delete, resource: "table:entries"`, `action: row.delete, resource: "table:entries", optional: true, pre_approved: [{key: {id: 7}}]`, 1))
	var offers api.Page[api.Offer]
	require.NoError(t, h.Person(authoritytest.MemberName).Do("GET", api.PathOffers, "", nil, &offers))
	most, err := document.ParseConsent(offers.Items[0].Most)
	require.NoError(t, err)
	return mad{t, h, offers.Items[0], most}
}

func (m mad) args(more ...any) []any {
	member := canonical.Digest(canonical.DomainMember, []byte(m.h.Platform.URL), []byte(authoritytest.MemberName))
	return append([]any{member[:], fixture.Random(), time.Now().Add(time.Hour), fixture.Random(), time.Now(), fixture.Random(), authoritytest.Raw(m.offer.Offer)}, more...)
}

// tries are what it attempts in one transaction; the last verdict counts. An error is a refusal as good as any.
func (m mad) tries(calls ...func(pgx.Tx) (string, error)) bool {
	m.t.Helper()
	ctx := context.Background()
	tx, err := m.h.Pool.Begin(ctx)
	require.NoError(m.t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing stays
	var verdict string
	for _, c := range calls {
		if verdict, err = c(tx); err != nil {
			return false
		}
	}
	return verdict == "ok"
}

func (m mad) narrow(c document.Consent) (func(pgx.Tx) (string, error), []byte) {
	m.t.Helper()
	body, err := canonical.CanonicalizeValue(c)
	require.NoError(m.t, err)
	digest := canonical.Digest(canonical.DomainOffer, body)
	return func(tx pgx.Tx) (verdict string, err error) {
		err = tx.QueryRow(context.Background(), `SELECT verdict FROM nw.narrow($1, $2, $3, $4, $5, $6, $7, $8, $9)`, m.args(digest[:], body)...).Scan(&verdict)
		return verdict, err
	}, digest[:]
}

func (m mad) yes(digest []byte, terms map[string]any) func(pgx.Tx) (string, error) {
	m.t.Helper()
	text, err := json.Marshal(terms)
	require.NoError(m.t, err)
	return func(tx pgx.Tx) (verdict string, err error) {
		ref := fixture.NewRef()
		err = tx.QueryRow(context.Background(), `SELECT verdict FROM nw.give_consent($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, clock_timestamp())`, m.args(digest, ref[:], string(text))...).Scan(&verdict)
		return verdict, err
	}
}

// termsOf are the lines of a consent to entries of the standard guard.
func termsOf(c document.Consent) map[string]any {
	of := func(domain, text string) string {
		d := canonical.Digest(domain, []byte(text))
		return hex.EncodeToString(d[:])
	}
	grants := []map[string]any{}
	for _, g := range c.Grants {
		line := map[string]any{"guard": of(canonical.DomainName, g.Guard), "action": of(canonical.DomainAction, g.Action), "resource": of(canonical.DomainResource, g.Resource), "risk": int(g.Risk), "max_amount": 0}
		if len(g.PreApproved) > 0 {
			line["keys"] = []string{of(canonical.DomainApproved, string(g.PreApproved[0]))}
		}
		grants = append(grants, line)
	}
	return map[string]any{"dial": int(c.Dial), "run_limit_ms": c.Limits.RuntimeS * 1000, "max_effects": c.Limits.Effects, "max_steps": c.Limits.Steps, "max_repeats": c.Limits.Repeats, "max_spend": 0,
		"effects_day": 0, "effects_month": 0, "spend_day": 0, "spend_month": 0, "member_spend_day": 0, "member_spend_month": 0, "silence": c.WhenMoreIsNeeded, "window_ms": c.DecisionWindowS * 1000,
		"not_before": c.NotBefore.Time(), "expires_at": c.Expires.Time(), "first_at": c.NotBefore.Time().Add(time.Second), "zone": of(canonical.DomainName, "zone"), "grants": grants}
}

// widening returns what a mad replica gets granted beyond the offer, by name.
func (m mad) widening() (got []string) {
	plain, err := document.ParseConsent(m.offer.Document)
	require.NoError(m.t, err)
	offered := authoritytest.Raw(m.offer.Digest)
	try := func(name string, calls ...func(pgx.Tx) (string, error)) {
		if m.tries(calls...) {
			got = append(got, name)
		}
	}
	for name, change := range map[string]func(*document.Consent){
		"limit":    func(c *document.Consent) { c.Limits.Effects++ },
		"runtime":  func(c *document.Consent) { c.Limits.RuntimeS++ },
		"money":    func(c *document.Consent) { c.Limits.Currency = "EUR" },
		"end":      func(c *document.Consent) { c.Expires++ },
		"dial":     func(c *document.Consent) { c.Dial++ },
		"required": func(c *document.Consent) { c.Grants = c.Grants[1:] },
		"resource": func(c *document.Consent) { c.Grants[1].Resource = "table:other" },
		"amount":   func(c *document.Consent) { c.Grants[0].MaxAmount = 1 },
		"key": func(c *document.Consent) {
			c.Grants[1].PreApproved = []json.RawMessage{json.RawMessage(`{"key":{"id":8}}`)}
		},
		"title": func(c *document.Consent) { c.Title = "Close the year" },
	} {
		c := m.most
		c.Grants = append([]document.ConsentGrant(nil), m.most.Grants...)
		change(&c)
		narrow, _ := m.narrow(c)
		try(name, narrow)
	}
	for name, change := range map[string]func(map[string]any){
		"lines: effects": func(x map[string]any) { x["max_effects"] = 99 },
		"lines: end":     func(x map[string]any) { x["expires_at"] = plain.Expires.Time().Add(time.Hour) },
		"lines: grants":  func(x map[string]any) { x["grants"] = termsOf(m.most)["grants"] },
	} {
		terms := termsOf(plain)
		change(terms)
		try(name, m.yes(offered, terms))
	}
	less, later := m.most, m.most
	less.Limits.Effects, later.Limits.Effects = 2, 3
	first, digest := m.narrow(less)
	second, _ := m.narrow(later)
	try("chosen before", first, second, m.yes(digest, termsOf(less)))
	return got
}

// Case 38, A1: nothing that was not offered is granted, whatever a replica says; and each rule that sees to it is needed.
func TestPlantedWidening(t *testing.T) {
	t.Parallel()
	m := gone(t)
	plain, err := document.ParseConsent(m.offer.Document)
	require.NoError(t, err)
	less, _ := m.narrow(m.most)
	require.True(t, m.tries(less), "what was offered can be chosen")
	require.True(t, m.tries(m.yes(authoritytest.Raw(m.offer.Digest), termsOf(plain))), "and agreed to")
	require.Empty(t, m.widening(), "the sound database is found guilty")
	for _, c := range []struct {
		name string
		bug  bug
	}{
		{"limit", bug{"limits_within", "ELSE coalesce((g->>f)::bigint, 0) <= coalesce((o->>f)::bigint, 0) END)", "ELSE true END)"}},
		{"money", bug{"limits_within", "    AND g->>'currency' IS NOT DISTINCT FROM o->>'currency'\n", ""}},
		{"end", bug{"within", " AND (g->>'expires')::timestamptz <= (o->>'expires')::timestamptz", ""}},
		{"dial", bug{"within", "nw.rank(g->>'dial') <= nw.rank(o->>'dial') AND ", ""}},
		{"required", bug{"within", "AND NOT EXISTS (SELECT FROM jsonb_array_elements(o->'grants') y WHERE NOT coalesce((y.value->>'optional')::boolean, false)", "AND NOT EXISTS (SELECT FROM jsonb_array_elements(o->'grants') y WHERE false"}},
		{"resource", bug{"grant_within", "g - ARRAY['max_amount', 'pre_approved'] = o - ARRAY['max_amount', 'pre_approved']", "g->'action' = o->'action'"}},
		{"amount", bug{"grant_within", "BETWEEN 0 AND coalesce((o->>'max_amount')::bigint, 0)", ">= 0"}},
		{"key", bug{"grant_within", "EXCEPT SELECT value FROM jsonb_array_elements(coalesce(o->'pre_approved', '[]'))", "WHERE false"}},
		{"title", bug{"within", "g - free = o - free AND ", ""}},
		{"lines: effects", bug{"says", "'max_effects', (l->>'effects')::bigint", "'max_effects', p_terms->'max_effects'"}},
		{"lines: end", bug{"says", " AND (c->>'expires')::timestamptz = (p_terms->>'expires_at')::timestamptz", ""}},
		{"lines: grants", bug{"says", "'grants', lines", "'grants', p_terms->'grants'"}},
		{"chosen before", bug{"give_consent", "p_digest NOT IN (o.digest, coalesce(o.variant, o.digest))", "NOT EXISTS (SELECT FROM documents WHERE documents.digest = p_digest)"}},
	} {
		var sound string
		require.NoError(t, m.h.Owner.QueryRow(context.Background(), `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'nw'::regnamespace AND proname = $1`, c.bug.verb).Scan(&sound))
		plant(t, m.h, []bug{c.bug})
		if c.name == "chosen before" {
			m.h.Exec(`ALTER TABLE nw.consents DISABLE TRIGGER consents_offered`) // which holds it by itself
		}
		got := m.widening()
		require.Contains(t, got, c.name, "the planted bug was not caught")
		m.h.Exec(sound)
	}
}
