package document

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGoodDocumentsAreGood(t *testing.T) {
	t.Parallel()
	for kind, text := range good {
		d, err := ParseJSON([]byte(text))
		require.NoError(t, err, kind)
		assert.Equal(t, kind, d.Head().Kind)
		canonical, err := Canonical(d)
		require.NoError(t, err)
		assert.JSONEq(t, text, string(canonical), "nothing is added to or taken from a complete document")
		again, err := ParseJSON(canonical)
		require.NoError(t, err)
		assert.Equal(t, d, again)
	}
}

func TestDefaultsAreWrittenOut(t *testing.T) {
	t.Parallel()
	for kind, members := range map[string]map[string]string{
		KindGuard:  {"max_call_ms": `"max_call_ms":60000`, "provable": `"provable":false`},
		KindRole:   {"retired": `"retired":false`, "limits.max_steps": `"max_steps":10000`},
		KindPolicy: {"retired": `"retired":false`, "limits.max_steps": `"max_steps":10000`},
		KindTask:   {"dial": `"dial":"read"`, "grants.0.optional": `"optional":false`, "limits.steps": `"steps":1000`, "limits.repeats": `"repeats":3`},
	} {
		for member, want := range members {
			d, err := ParseJSON([]byte(edited(t, good[kind], member, absent{})))
			require.NoError(t, err)
			canonical, err := Canonical(d)
			require.NoError(t, err)
			assert.Contains(t, string(canonical), want)
		}
	}
	d, err := ParseJSON([]byte(edited(t, good[KindTask], "schedule", map[string]any{"cron": "0 1 * * *", "zone": "UTC"})))
	require.NoError(t, err)
	canonical, err := Canonical(d)
	require.NoError(t, err)
	assert.Contains(t, string(canonical), `"schedule":{"cron":"0 1 * * *","missed":"skip","zone":"UTC"}`)
}

func numbered(form string, n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = fmt.Sprintf(form, i)
	}
	return list
}

var wrongNames = []any{
	"", "-a", "a-", ".a", "a.", "A", "Sweeper", "a b", "a_b", "a/b", "*", "a*", "ä", "a\n", "\u202ea", "a\u200db", "a\x00", strings.Repeat("a", 65),
}

func TestFieldIsRefused(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	manyClaims := object{}
	for i := range 65 {
		manyClaims[fmt.Sprintf("/c%d", i)] = true
	}
	manyKeys := make([]any, 65)
	for i := range manyKeys {
		manyKeys[i] = object{"key": object{"id": i}}
	}
	wrongAmounts := []any{0, -1, -9007199254740991, 1_000_000_000_001, absent{}}
	wrongCurrencies := []any{"", "eur", "EU", "EURO", "€", " EUR", "EUR\n", "E1R", "*", absent{}}
	cases := []struct {
		kind, field, says string
		values            []any
	}{
		{KindClient, "kind", "must be one of the registry's kinds", []any{"", "client", "Clients", "Consent", 7, absent{}, object{}}},
		{KindClient, "name", "Client name must be 1 to 64 lower-case", wrongNames},
		{KindClient, "name", "name must be 1 to 64", []any{absent{}}},
		{KindClient, "name", "name must be a string, not an integer", []any{7}},
		{KindClient, "name", "name must be a string, not a list", []any{[]any{"a"}}},
		{KindClient, "title", "Client ledger title must be text with a letter", []any{"", " ", " a", "a ", "\u200d", "...", "\u2014", absent{}}},
		{KindClient, "title", "must not contain the control or invisible character U+", []any{
			"a\nb", "a\tb", "a\x00b", "a\u0085b", "a\x7fb", "a\u202eb", "a\u2066b", "a\u200eb", "a\u061cb", "a\u200bb", "a\ufeffb",
			"a\u2028b", "a\u00a0b", "a\u00adb", "a\u3164b", "a\u2800b", "a\u034fb", "a\U000e0041b", "a\ue000b", "a\x1b[31mb",
		}},
		{KindClient, "title", "must have at most 120 characters", []any{strings.Repeat("ä", 121)}},
		{KindClient, "title", "title must be a string, not true or false", []any{true}},
		{KindClient, "tilte", "Client ledger tilte is not a known field", []any{"x"}},
		{KindClient, "Title", "Title is not a known field", []any{"x"}},
		{KindClient, "Header", "Header is not a known field", []any{object{"name": "x"}}},

		{KindClient, "", `[""] is not a known field`, []any{object{"name": "x"}}},

		{KindProfile, "issuer", "issuer must be an absolute URL", []any{"", "https://\u00efssuer.example", "issuer.example", "/a", "https://", "https:issuer", "HTTPS://issuer.example", "https://issuer.example/%41", "https://issuer.example/" + strings.Repeat("a", 512), "https://[::1", absent{}}},
		{KindProfile, "issuer", "issuer must be https, or http on the loopback", []any{"http://issuer.example", "ftp://issuer.example", "http://10.0.0.1", "http://localhost.example", "javascript://localhost/a"}},
		{KindProfile, "issuer", "must have no user, query or fragment", []any{"https://u@issuer.example", "https://issuer.example/?a", "https://issuer.example?", "https://issuer.example/#a"}},
		{KindProfile, "issuer", "must have a host in lower case", []any{"https://Issuer.example", "https://issuer_a.example", "https://*.example"}},
		{KindProfile, "issuer", "must leave the default port out", []any{"https://issuer.example:443", "http://localhost:80/", "https://issuer.example:"}},
		{KindProfile, "issuer", "issuer must be spiffe:// and a trust domain", []any{"spiffe://", "spiffe:prod.example", "spiffe://prod.example/", "spiffe://prod.example/a", "spiffe://Prod.example", "spiffe://u@prod.example", "spiffe://prod.example:1", "spiffe://" + strings.Repeat("a", 256)}},
		{KindProfile, "issuer", "subject must be a SPIFFE id of the issuer's trust domain", []any{"spiffe://prod.example"}},
		{KindProfile, "subject", "subject must be between 1 and 256 bytes", []any{"", " a", strings.Repeat("a", 257), absent{}}},
		{KindProfile, "subject", "must be exact and must not contain U+", []any{"*", "system:serviceaccount:nightly:*", "a\u202eb", "a\nb"}},
		{KindProfile, "service_account", "subject must not stand beside service_account", []any{object{"namespace": "nightly", "name": "sweeper"}}},
		{KindProfile, "service_account", "is not a known field", []any{object{"namespace": "nightly", "name": "sweeper", "uid": "a"}}},
		{KindProfile, "claims", "must be named by a JSON pointer", []any{object{"a": "b"}, object{"": "b"}, object{"/": "b"}, object{"/a//b": "b"}, object{"/~": "b"}, object{"/~2": "b"}, object{"/*": "b"}, object{"/" + strings.Repeat("a", 256): "b"}}},
		{KindProfile, "claims", "must be exact", []any{object{"/a": "prefix*"}}},
		{KindProfile, "claims", "must be", []any{object{"/a": []any{"b"}}, object{"/a": object{"b": 1}}, []any{}, "x"}},
		{KindProfile, "claims", "claims must have at most 64 members", []any{manyClaims}},
		{KindProfile, "binding", "binding must be one of first_key, cnf, none", []any{"", "None", "any", absent{}}},
		{KindProfile, "max_lifetime_s", "must be between 1 and 86400", []any{0, -1, 86401, absent{}}},
		{KindProfile, "max_lifetime_s", "must be an integer, not a string", []any{"3600"}},

		{KindGuard, "catalogue", "catalogue must be one of postgres, http, model", []any{"", "Postgres", "mysql", absent{}}},
		{KindGuard, "uri", "uri must be https, or http on the loopback", []any{"http://orders.example/guard", "http://0.0.0.0/guard"}},
		{KindGuard, "uri", "must have no user, query or fragment", []any{"https://a:b@orders.example/guard", "https://orders.example/guard?a=b", "https://orders.example/guard#a"}},
		{KindGuard, "uri", "must have a plain path", []any{"https://orders.example/", "https://orders.example/guard/", "https://orders.example//guard", "https://orders.example/a/../b", "https://orders.example/./a", "https://orders.example/a;b"}},
		{KindGuard, "uri", "must be an absolute URL", []any{"", "orders.example", "https://orders.example/%2e%2e/a", "https://orders.example/a b", "https://orders.example/a*", "https://orders.example\\@evil.example/a", absent{}}},
		{KindGuard, "profile", "profile must be 1 to 64", []any{"", "*", absent{}}},
		{KindGuard, "provable", "provable must be true or false", []any{"true", 1}},
		{KindGuard, "max_call_ms", "must be between 1 and 600000", []any{0, -1, 600001}},
		{KindGuard, "kind", "one of the registry's kinds", []any{"postgres"}},
		{KindGuard, "operations", "operations must be a list", []any{object{}, "order.refund"}},

		{KindReporter, "families", "must list between 1 and 64", []any{[]any{}, absent{}, numbered("f%d", 65)}},
		{KindReporter, "families", "families[1] repeats \"mail\"", []any{[]any{"mail", "mail"}}},
		{KindReporter, "families", "families[1] must be 1 to 64", []any{[]any{"mail", "*"}}},
		{KindReporter, "families", "families[1] must be a string", []any{[]any{"mail", 1}}},
		{KindReporter, "families", "families must be a list", []any{"clock", object{}}},
		{KindReporter, "families", "families[0] must be a family of your own", []any{[]any{"clock"}, []any{"guards"}, []any{"directory"}}},
		{KindReporter, "profile", "profile must be", []any{""}},

		{KindRequirement, "name", "name must be readiness", []any{"", "default"}},
		{KindRequirement, "generation", "generation must be between 2 and", []any{0, 1, -1, absent{}}},
		{KindRequirement, "protocols", "protocols must list between 1 and 16", []any{[]any{}, absent{}}},
		{KindRequirement, "protocols", "protocols[0] must be between", []any{[]any{0}, []any{32768}}},
		{KindRequirement, "protocols", "protocols[1] repeats 1", []any{[]any{1, 1}}},
		{KindRequirement, "families", "families[0].family must be 1 to 64", []any{[]any{object{"family": "*", "minimum": 1}}}},
		{KindRequirement, "families", "families[0].minimum must be between", []any{[]any{object{"family": "queue", "minimum": 0}}, []any{object{"family": "queue", "minimum": 101}}}},
		{KindRequirement, "families", `families[1].family repeats "queue"`, []any{[]any{object{"family": "queue", "minimum": 1}, object{"family": "queue", "minimum": 2}}}},
		{KindRequirement, "models", "must be a digest", []any{[]any{"sha256:x"}, []any{""}}},
		{KindRequirement, "datasets", "datasets[1] repeats a digest", []any{[]any{strings.Repeat("A", 43), strings.Repeat("A", 43)}}},
		{KindRequirement, "profiles", "profiles[1] repeats", []any{[]any{"a", "a"}}},
		{KindRequirement, "closed_ms", "must be between 1000 and", []any{999, 60001}},
		{KindRequirement, "closed_max_ms", "closed_max_ms must be between 1000 and 60000", []any{999, 60001}},
		{KindRequirement, "rounds", "rounds must be between 3 and 100", []any{2, 0}},
		{KindProduct, "title", "title must be", []any{""}},
		{KindProduct, "profile", "profile must be", []any{absent{}}},
		{KindProduct, "families", "families[0] must be", []any{[]any{"A"}}},

		{KindRole, "client", "client must be", wrongNames},
		{KindRole, "revision", "revision must be between 1 and", []any{0, -1, 1000000001, absent{}}},
		{KindRole, "profiles", "profiles must list between 1 and 64", []any{[]any{}, absent{}, numbered("p%d", 65)}},
		{KindRole, "profiles", "profiles[0] must be", []any{[]any{"*"}, []any{""}}},
		{KindRole, "actions", "actions must list between 1 and 64", []any{[]any{}, absent{}}},
		{KindRole, "actions.1.action", "actions[1].action must be one exact action", []any{"", "*", "row.*", "row.", ".row", "Row.read", "row read", "row..read", "a.b.c.d.e", "row.read\n", absent{}}},
		{KindRole, "actions.1.guard", "actions[1].guard must be", wrongNames},
		{KindRole, "actions.1", "actions[1] repeats row.read at orders-db", []any{object{"guard": "orders-db", "action": "row.read"}}},
		{KindRole, "actions.1.any", "actions[1].any is not a known field", []any{true}},
		{KindRole, "limits.max_runtime_s", "limits.max_runtime_s must be between 1 and 604800", []any{0, -5, 604801, absent{}}},
		{KindRole, "limits.max_effects", "limits.max_effects must be between 1 and 10000", []any{0, 10001, absent{}}},
		{KindRole, "limits.max_steps", "limits.max_steps must be between 1 and 1000000", []any{0, -1, 1_000_001}},
		{KindRole, "limits.max_spend", "limits.max_spend must be between 1 and 1000000000000", wrongAmounts},
		{KindRole, "limits.max_spend", "integer", []any{"20000", 200.5, true}},
		{KindRole, "limits.currency", "limits.currency must be a currency's three capital letters, together with max_spend", wrongCurrencies},
		{KindRole, "limits.currency", "limits.currency must be a string", []any{978}},
		{KindRole, "limits.spend_day", "limits.spend_day is not a known field", []any{5}},
		{KindRole, "limits", "limits must be an object", []any{[]any{}, "none", 1}},
		{KindRole, "retired", "retired must be true or false", []any{"no", 0}},

		{KindPolicy, "dial_max", "dial_max does not hold: catalogue: a risk is", []any{"", "High", "medium"}},
		{KindPolicy, "dial_max", "dial_max must be a string", []any{2}},
		{KindPolicy, "revision", "revision must be", []any{0}},
		{KindPolicy, "limits.max_consent_days", "must be between 1 and 366", []any{0, 367, absent{}}},
		{KindPolicy, "limits.max_effects", "must be between", []any{0}},
		{KindPolicy, "limits.max_steps", "limits.max_steps must be between 1 and 1000000", []any{0, -1, 1_000_001}},
		{KindPolicy, "limits.max_spend", "limits.max_spend must be between 1 and 1000000000000", wrongAmounts},
		{KindPolicy, "limits.currency", "limits.currency must be a currency's three capital letters, together with max_spend", wrongCurrencies},
		{KindPolicy, "limits.member_spend_day", "limits.member_spend_day must be between 0 and 1000000000000", []any{-1, 1_000_000_000_001}},
		{KindPolicy, "limits.member_spend_month", "limits.member_spend_month must be between 0 and 1000000000000", []any{-1, 1_000_000_000_001}},
		{KindPolicy, "limits.member_spend_day", "integer", []any{"5", 0.5}},
		{KindPolicy, "limits.member_spend_week", "is not a known field", []any{5}},

		{KindTask, "client", "client must be", wrongNames},
		{KindTask, "role", "role must be", []any{"", "*", absent{}}},
		{KindTask, "role_revision", "role_revision must be", []any{0, absent{}}},
		{KindTask, "policy", "policy must be", []any{"", absent{}}},
		{KindTask, "policy_revision", "policy_revision must be", []any{-1}},
		{KindTask, "revision", "Task nightly-sweep revision must be", []any{0}},
		{KindTask, "owner", "owner.issuer must be", []any{absent{}, object{}}},
		{KindTask, "owner.subject", "owner.subject must be", []any{"", "*", "a\u202eb", absent{}}},
		{KindTask, "owner.email", "owner.email is not a known field", []any{"a@example.org"}},
		{KindTask, "title", "title must", []any{"", "Pay\u202eyap", strings.Repeat("a", 121)}},
		{KindTask, "dial", "dial does not hold", []any{"", "all"}},
		{KindTask, "schedule", "schedule does not hold: zone", []any{absent{}, object{}, object{"cron": "0 1 * * *"}, object{"cron": "0 1 * * *", "zone": "Local"}}},
		{KindTask, "schedule.cron", "names a date that no year has", []any{"0 0 30 2 *"}},
		{KindTask, "schedule.cron", "cron must be five fields", []any{"@daily", "TZ=UTC 0 1 * * *"}},
		{KindTask, "schedule.at", "exactly one of cron", []any{"2026-05-01T00:00:00Z"}},
		{KindTask, "schedule.at", "schedule.at does not hold: an instant must be written", []any{"2026-05-01", ""}},
		{KindTask, "schedule.missed", "missed must be skip or latest", []any{"all"}},
		{KindTask, "schedule.seconds", "schedule.seconds is not a known field", []any{1}},
		{KindTask, "grants", "grants must list between 1 and 64", []any{[]any{}, absent{}}},
		{KindTask, "grants.0.guard", "grants[0].guard must be", wrongNames},
		{KindTask, "grants.0.action", "grants[0].action must be", []any{"*", "row.*", "", absent{}}},
		{KindTask, "grants.0.resource", "grants[0].resource does not hold", []any{"", "*", "table:*", "orders", "table:a\n", absent{}}},
		{KindTask, "grants.1.max_amount", "grants[1].max_amount must be between", []any{0, -1, absent{}}},
		{KindTask, "grants.1.currency", "grants[1].currency must be", []any{"", "eur", "EURO", "€", "USD", absent{}}},
		{KindTask, "grants.0.max_amount", "grants[0].currency must be", []any{5}},
		{KindTask, "grants.2.optional", "grants[2].optional must be true or false", []any{"yes", 1}},
		{KindTask, "grants.2", "grants[2] repeats row.read on table:orders at orders-db", []any{object{"guard": "orders-db", "action": "row.read", "resource": "table:orders", "optional": true}}},
		{KindTask, "limits.runtime_s", "limits.runtime_s must be between", []any{0, 604801, absent{}}},
		{KindTask, "limits.effects", "limits.effects must be between", []any{0, 10001, absent{}}},
		{KindTask, "limits.steps", "limits.steps must be between 1 and 1000000", []any{0, -1, 1_000_001}},
		{KindTask, "limits.repeats", "limits.repeats must be between 1 and 100", []any{0, -1, 101}},
		{KindTask, "limits.spend", "limits.spend must be between 1 and 1000000000000", wrongAmounts},
		{KindTask, "limits.spend", "integer", []any{"100.00", 100.5}},
		{KindTask, "limits.currency", "limits.currency must be a currency's three capital letters, together with spend", wrongCurrencies},
		{KindTask, "limits.currency", "grants[1].currency must be that of limits.spend", []any{"USD"}},
		{KindTask, "limits.effects_day", "limits.effects_day must be between 0 and 10000000", []any{-1, 10_000_001}},
		{KindTask, "limits.effects_month", "limits.effects_month must be between 0 and 10000000", []any{-1, 10_000_001}},
		{KindTask, "limits.spend_day", "limits.spend_day must be between 0 and 1000000000000", []any{-1, 1_000_000_000_001}},
		{KindTask, "limits.spend_month", "limits.spend_month must be between 0 and 1000000000000", []any{-1, 1_000_000_000_001}},
		{KindTask, "limits.effects_week", "limits.effects_week is not a known field", []any{5}},
		{KindTask, "limits", "grants[1].currency must be that of limits.spend", []any{object{"runtime_s": 600, "effects": 20}}},
		{KindTask, "limits", "limits.spend_day needs a currency", []any{object{"runtime_s": 600, "effects": 20, "spend_day": 5}, object{"runtime_s": 600, "effects": 20, "spend_day": -5}}},
		{KindTask, "limits", "limits.spend_month needs a currency", []any{object{"runtime_s": 600, "effects": 20, "spend_month": 5}}},
		{KindTask, "grants.1.max_amount", "grants[1].max_amount must be between 1 and 1000000000000", wrongAmounts},
		{KindTask, "grants.2.pre_approved", "grants[2].pre_approved must be a list", []any{"all", true, object{"key": object{"state": "stale"}}}},
		{KindTask, "grants.2.pre_approved", "grants[2].pre_approved[0] must be an object", []any{[]any{"*"}, []any{1}, []any{true}, []any{[]any{}}}},
		{KindTask, "grants.2.pre_approved", "cannot be read", []any{[]any{nil}, []any{object{"key": nil}}, []any{object{"key": 1.5}}}},
		{KindTask, "grants.2.pre_approved", "grants[2].pre_approved[1] stands twice", []any{
			[]any{object{"key": object{"a": 1, "b": 2}}, object{"key": object{"b": 2, "a": 1}}}, []any{object{}, object{}},
		}},
		{KindTask, "grants.2.pre_approved", "grants[2].pre_approved must list at most 64 keys", []any{manyKeys}},
		{KindTask, "consent.days", "consent.days must be between 1 and 366", []any{0, 367, absent{}}},
		{KindTask, "consent.not_before", "consent.not_before does not hold", []any{"", "now", "2026-05-01T00:00:00+02:00", "1970-01-01T00:00:00Z"}},
		{KindTask, "lease", "lease is not a known field", []any{5}},
	}
	for _, c := range cases {
		for _, value := range c.values {
			text := edited(t, good[c.kind], c.field, value)
			d, err := ParseJSON([]byte(text))
			if assert.ErrorContains(t, err, c.says, "%s: %v", c.field, value) {
				oneSentence(t, err)
				assert.Nil(t, d)
			}
		}
	}
}

func TestInputIsRefused(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	for _, text := range []string{
		``, `null`, `[]`, `"a"`, `{}`, `{"kind":"Client"`, good[KindClient] + `{}`, `{"kind":"Client","kind":"Client","name":"a","title":"b"}`,
		`{"kind":"Client","name":"a","title":null}`, `{"kind":"Policy","name":"a","revision":1.0}`, `{"kind":"Policy","name":"a","revision":1e3}`,
		`{"kind":"Policy","name":"a","revision":9007199254740993}`, "{\"kind\":\"Client\",\"name\":\"a\",\"title\":\"\xff\"}",
		`{"kind":"Client","name":"a","title":"\ud800"}`, deep, `{"kind":"Client","name":"a","title":"` + strings.Repeat("a", 1<<17) + `"}`,
	} {
		d, err := ParseJSON([]byte(text))
		if assert.Error(t, err, "%.80s", text) {
			oneSentence(t, err)
			assert.Nil(t, d)
		}
	}
}

func TestGoodFieldIsTaken(t *testing.T) {
	t.Parallel()
	cases := []struct {
		kind, field string
		values      []any
	}{
		{KindClient, "name", []any{"a", "7", "a.b-c", strings.Repeat("a", 64)}},
		{KindClient, "title", []any{"Zürich \u2013 Nächte", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f468\u200d\U0001f469\u200d\U0001f467 family", "a <b> & 'c' \"d\"", strings.Repeat("ä", 120)}},
		{KindProfile, "issuer", []any{"https://issuer.example", "https://issuer.example/", "https://10.0.0.1:8443", "http://127.0.0.1:9000/a", "http://[::1]:9000", "http://localhost"}},
		{KindProfile, "subject", []any{"spiffe://example.org/ns/a", "a b", "auth0|123"}},
		{KindProfile, "claims", []any{absent{}, map[string]any{"/a~1b/c~0d": "x y", "/n": -5, "/f": false}}},
		{KindGuard, "uri", []any{"https://orders.example", "https://orders.example/a/b.c", "http://127.0.0.1:7000/guard"}},
		{KindProduct, "families", []any{absent{}, []any{}, []any{"credentials"}}},
		{KindTask, "consent.not_before", []any{absent{}}},
		{KindTask, "grants.0.resource", []any{"operation:create-issue"}},
		{KindTask, "grants.2.pre_approved", []any{absent{}, []any{}, []any{map[string]any{}}}},
		{KindTask, "limits.effects_day", []any{absent{}, 0, 10_000_000}},
		{KindTask, "limits.spend_month", []any{absent{}, 0, 1_000_000_000_000}},
		{KindTask, "limits.spend", []any{1, 1_000_000_000_000}},
		{KindRole, "limits", []any{map[string]any{"max_runtime_s": 1, "max_effects": 1}}},
		{KindPolicy, "limits", []any{map[string]any{"max_runtime_s": 1, "max_effects": 1, "max_consent_days": 1}}},
		{KindGuard, "operations", []any{absent{}, []any{}}},
	}
	for _, c := range cases {
		for _, value := range c.values {
			d, err := ParseJSON([]byte(edited(t, good[c.kind], c.field, value)))
			if assert.NoError(t, err, "%s: %v", c.field, value) {
				_, err := DigestOf(d)
				assert.NoError(t, err)
			}
		}
	}
}

// What a program builds is checked like what a person writes.
func TestBuiltDocumentIsChecked(t *testing.T) {
	t.Parallel()
	profile := of[*AttestationProfile](t, KindProfile)
	for _, value := range []any{nil, 3.5, 7, []string{"a"}, int64(1) << 53} {
		profile.Claims = map[string]any{"/a": value}
		_, err := Canonical(profile)
		assert.ErrorContains(t, err, `claims["/a"] must be`)
	}
	for _, d := range []Document{
		&Client{Header{KindClient, "a"}, "a\xffb"}, &Client{Header{KindGuard, "a"}, "a"}, &Client{Header{"", "a"}, "a"}, &Client{},
		&Policy{Header: Header{KindPolicy, "a"}, Revision: 1, DialMax: 9}, &Task{}, &Guard{}, &WorkloadRole{}, &Reporter{}, &Product{}, &AttestationProfile{},
	} {
		assert.Error(t, d.Validate())
		_, err := Canonical(d)
		assert.Error(t, err)
		_, err = DigestOf(d)
		assert.Error(t, err)
	}
	task := of[*Task](t, KindTask)
	task.Schedule.Missed, task.Schedule.WindowS = "", 0
	assert.ErrorContains(t, task.Validate(), "schedule.missed must be written out")
}

func TestDigestsTellDocumentsApart(t *testing.T) {
	t.Parallel()
	seen := map[Digest]string{}
	for kind := range good {
		digest, err := DigestOf(document(t, kind))
		require.NoError(t, err)
		assert.Empty(t, seen[digest])
		seen[digest] = kind
	}
	spaced, err := ParseJSON([]byte("\n " + strings.ReplaceAll(good[KindClient], ",", " ,\n")))
	require.NoError(t, err)
	digest, err := DigestOf(spaced)
	require.NoError(t, err)
	assert.Equal(t, KindClient, seen[digest], "the spelling does not count")
	assert.Equal(t, "38rh1ElfdlO0uQtqj9im6flQOpIl5tPNeYyDto1VKfY", digest.String())
}

func TestDigestHasOneSpelling(t *testing.T) {
	t.Parallel()
	var d Digest
	for i := range d {
		d[i] = byte(250 + i)
	}
	text, err := json.Marshal(d)
	require.NoError(t, err)
	var back Digest
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, d, back)
	plain := d.String()
	assert.Len(t, plain, 43)
	last := plain[:42] + string(plain[42]+1) // the same bytes to a lenient reader
	for _, bad := range []string{"", plain[:42], plain + "=", plain + "A", last, plain[:20] + "\n" + plain[20:], strings.Replace(plain, "_", "/", 1) + "+", plain[:42] + "*"} {
		kept := d
		assert.Error(t, kept.UnmarshalText([]byte(bad)), bad)
		assert.Equal(t, d, kept)
	}
}
