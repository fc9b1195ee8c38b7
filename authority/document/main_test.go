package document

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// good holds one good document of every kind.
var good = map[string]string{
	KindProfile: `{"kind":"AttestationProfile","name":"cluster-a","issuer":"https://issuer.example/a","subject":"system:serviceaccount:nightly:sweeper",
		"claims":{"/kubernetes.io/namespace":"nightly","/email_verified":true,"/level":3},"binding":"first_key","max_lifetime_s":3600}`,
	KindClient: `{"kind":"Client","name":"ledger","title":"Ledger"}`,
	KindGuard: `{"kind":"Guard","name":"orders-db","title":"Orders database","catalogue":"postgres","uri":"https://orders.example:8443/guard",
		"profile":"cluster-a","provable":true,"max_call_ms":5000,"operations":[{"action":"order.refund","title":"Refund an order","resource":"table:refunds",
		"parameters":{"type":"object","properties":{"order":{"type":"string","pattern":"^[a-z0-9-]{1,36}$"},"minor":{"type":"integer","minimum":1},"note":{"type":"string"}},
			"required":["order","minor"],"additionalProperties":false},"key":["order"],"amount":"minor","currency":"EUR"}]}`,
	KindReporter:    `{"kind":"Reporter","name":"probe","title":"Probe","profile":"cluster-a","families":["mail","printing"]}`,
	KindRequirement: `{"kind":"Requirement","name":"readiness","generation":2,"protocols":[1],"families":[{"family":"queue","minimum":2}],"models":["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],"profiles":["cluster-a"],"closed_ms":1000,"closed_max_ms":60000,"rounds":3}`,
	KindProduct:     `{"kind":"Product","name":"ledger-web","title":"Ledger on the web","profile":"cluster-a"}`,
	KindRole: `{"kind":"WorkloadRole","name":"sweeper","client":"ledger","revision":3,"profiles":["cluster-a"],
		"actions":[{"guard":"orders-db","action":"row.read"},{"guard":"orders-db","action":"row.append"},{"guard":"orders-db","action":"row.delete"},
			{"guard":"orders-db","action":"order.refund"}],
		"limits":{"max_runtime_s":900,"max_effects":50,"max_steps":2000,"max_spend":20000,"currency":"EUR"},"retired":false}`,
	KindPolicy: `{"kind":"Policy","name":"standard","revision":2,"dial_max":"low",
		"limits":{"max_runtime_s":3600,"max_effects":100,"max_steps":3000,"max_spend":30000,"currency":"EUR","member_spend_day":50000,"member_spend_month":90000,"max_consent_days":90},"retired":false}`,
	KindTask: `{"kind":"Task","name":"nightly-sweep","client":"ledger","role":"sweeper","role_revision":3,"policy":"standard","policy_revision":2,"revision":1,
		"owner":{"issuer":"https://id.example","subject":"a8f5f167"},"title":"Close the day's orders",
		"schedule":{"cron":"30 2 * * *","zone":"Europe/Berlin","missed":"latest","window_s":3600},"dial":"read",
		"grants":[{"guard":"orders-db","action":"row.read","resource":"table:orders","optional":false},
			{"guard":"orders-db","action":"row.append","resource":"table:closings","max_amount":5000,"currency":"EUR","optional":false},
			{"guard":"orders-db","action":"row.delete","resource":"table:drafts","optional":true,"pre_approved":[{"key":{"state":"stale"}}]}],
		"limits":{"runtime_s":600,"effects":20,"steps":500,"repeats":2,"spend":10000,"currency":"EUR",
			"effects_day":40,"effects_month":400,"spend_day":15000,"spend_month":60000},"consent":{"not_before":"2026-05-01T00:00:00Z","days":30},"when_more_is_needed":"stop","decision_window_s":3600}`,
}

func document(t testing.TB, kind string) Document {
	t.Helper()
	d, err := ParseJSON([]byte(good[kind]))
	require.NoError(t, err)
	return d
}

func of[D Document](t testing.TB, kind string) D {
	t.Helper()
	d, ok := document(t, kind).(D)
	require.True(t, ok)
	return d
}

// absent removes a member in [edited].
type absent struct{}

// edited returns the JSON of a good document with one member, named by a path
// with dots, set to a value.
func edited(t testing.TB, in, path string, value any) string {
	t.Helper()
	var root any
	require.NoError(t, json.Unmarshal([]byte(in), &root))
	steps := strings.Split(path, ".")
	at := root
	for _, step := range steps[:len(steps)-1] {
		at = child(t, at, step)
	}
	last := steps[len(steps)-1]
	switch at := at.(type) {
	case map[string]any:
		if at[last] = value; value == (absent{}) {
			delete(at, last)
		}
	case []any:
		at[last[0]-'0'] = value
	default:
		t.Fatalf("no %s", path)
	}
	out, err := json.Marshal(root)
	require.NoError(t, err)
	return string(out)
}

func child(t testing.TB, at any, step string) any {
	t.Helper()
	if list, ok := at.([]any); ok {
		return list[step[0]-'0']
	}
	object, ok := at.(map[string]any)
	require.True(t, ok, step)
	return object[step]
}

// oneSentence checks that an error can be shown to a person.
func oneSentence(t testing.TB, err error) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Less(t, len(err.Error()), 500)
	for _, r := range err.Error() {
		assert.True(t, visible(r), "%q holds %U", err, r)
	}
}
