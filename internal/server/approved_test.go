package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// approving is a refund task below whose dial nothing is, with pre-approved keys.
func approving(h *authoritytest.House, name string, keys ...string) string {
	return strings.Replace(h.RefundTask(name, "effects: 10, spend: 100", keys...), "dial: high", "dial: low", 1)
}

// deletion is the effect of deleting rows of a table by a key.
func deletion(table, key string) api.Detail {
	return api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.delete"}, Locations: []string{authoritytest.GuardURI}, Identifier: "table:" + table,
		Parameters: json.RawMessage(`{"table":"` + table + `","key":` + key + `}`)}
}

func cancellation(payment string) api.Detail {
	return api.Detail{Type: api.DetailTypeEffect, Actions: []string{"payment.cancel"}, Locations: []string{authoritytest.PaymentsURI}, Identifier: "https://api.payments.example/payments/" + payment,
		Parameters: json.RawMessage(fmt.Sprintf(`{"payment":%q}`, payment))}
}

// asks mints an effect in a run of its own, and it must be asked for. Its owner says no.
func asks(t *testing.T, h *authoritytest.House, task string, d api.Detail, why string) {
	t.Helper()
	run := h.Plan(task)
	a := h.Claim(run).Ask("step", d)
	require.Equal(t, api.ApprovalRequired, a.Problem().Code, "%s: %s", why, a.Body)
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.effects WHERE state = 'minted' AND run_id = (SELECT id FROM nw.runs WHERE ref = $1)`, authoritytest.Raw(run)), "%s is minted", why)
	c := card(t, h, a.Problem().Decision)
	require.NoError(t, decide(h, authoritytest.MemberName, c.Decision, c.Digest, "deny"))
	assert.Equal(t, "failed", settled(t, h, h.Claim(run), "succeeded").State)
}

// passes mints an effect in a run of its own, and nobody is asked.
func passes(t *testing.T, h *authoritytest.House, task string, d api.Detail, why string) {
	t.Helper()
	cards := h.Count(`SELECT count(*) FROM nw.decisions`)
	w := h.Claim(h.Plan(task))
	a := w.Ask("step", d)
	require.Equal(t, http.StatusOK, a.Status, "%s: %s", why, a.Body)
	assert.Equal(t, cards, h.Count(`SELECT count(*) FROM nw.decisions`))
	assert.Equal(t, "succeeded", settled(t, h, w, "succeeded").State)
}

// B5: a pre-approved key is compared whole. Whatever is not exactly it is asked for.
func TestAnotherKeyAsks(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	rows := h.Consent(strings.Replace(h.Task("tidy"), `action: row.delete, resource: "table:entries"`, `action: row.delete, resource: "table:entries", pre_approved: [{key: {id: 7, state: "stale"}}]`, 1))
	for _, key := range []string{`{"id":7}`, `{"state":"stale"}`, `{"id":70,"state":"stale"}`, `{"id":"7","state":"stale"}`, `{"id":7,"state":"stale2"}`, `{"id":7,"state":"Stale"}`,
		`{"id":7,"state":""}`, `{"id":7,"state":true}`, `{"id":7,"state":"stale","more":1}`, `{"id":7,"state":"*"}`, `{"ident":7,"state":"stale"}`} {
		asks(t, h, rows, deletion("entries", key), key)
	}
	passes(t, h, rows, deletion("entries", `{ "state":"st\u0061le", "id": 7 }`), "the key, spelled otherwise")

	refunds := h.Consent(approving(h, "refunds", `{payment: p1}`, `{payment: p22}`))
	for _, payment := range []string{"p", "p10", "p11", "p2", "1p", "p221"} {
		asks(t, h, refunds, authoritytest.Refund(payment, 5), payment)
	}
	for _, payment := range []string{"p1", "p22"} {
		passes(t, h, refunds, authoritytest.Refund(payment, 5), payment)
	}
	other := authoritytest.Refund("p1", 80)
	other.Parameters = json.RawMessage(`{"payment":"p1","amount":80,"note":"what is not in the key is the run's to choose"}`)
	passes(t, h, refunds, other, "another amount, within its limits")
}

// A key counts in the consent that holds it, for its own action on its own resource, and nowhere else.
func TestAKeyOfSomethingElseDoesNotCount(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	keyed := h.Consent(approving(h, "keyed", `{payment: p1}`))
	unkeyed := h.Consent(approving(h, "unkeyed"))
	asks(t, h, unkeyed, authoritytest.Refund("p1", 5), "a key of another task of the same member")
	asks(t, h, keyed, cancellation("p1"), "the key of another action")

	tables := strings.Replace(h.Task("tables"), `  - {guard: ledger, action: row.delete, resource: "table:entries"}`, `  - {guard: ledger, action: row.delete, resource: "table:entries", pre_approved: [{key: {id: 7}}]}
  - {guard: ledger, action: row.delete, resource: "table:others"}`, 1)
	task := h.Consent(tables)
	asks(t, h, task, deletion("others", `{"id":7}`), "a key on another resource")
	passes(t, h, task, deletion("entries", `{"id":7}`), "the key on its own")

	// The next revision of the task has no key: what an earlier consent said is over.
	passes(t, h, keyed, authoritytest.Refund("p1", 5), "before")
	require.Equal(t, keyed, h.Consent(strings.Replace(approving(h, "keyed"), "\nrevision: 1\n", "\nrevision: 2\n", 1)))
	asks(t, h, keyed, authoritytest.Refund("p1", 5), "a key of an earlier consent")
}

// What an operator wrote without a key is never pre-approved: no consent can say so, and the database would not believe one that did.
func TestWhatCannotBePreApproved(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	cancels := strings.Replace(h.RefundTask("cancels", "effects: 10, spend: 100"), `/payments/p1"}`, `/payments/p1", pre_approved: [{payment: p1}]}`, 1)
	assert.Equal(t, api.InvalidDocument, codeOf(h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", []byte(cancels), nil)))
	for _, key := range []string{`{}`, `{payment: "*"}`, `{payment: P1}`, `{payment: 1}`, `{payment: p1, amount: 5}`, `[p1]`, `p1`} {
		assert.Equal(t, api.InvalidDocument, codeOf(h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", []byte(approving(h, "refunds", key)), nil)), key)
	}
	task := h.Consent(approving(h, "refunds", `{payment: p1}`))
	h.Exec(`INSERT INTO nw.consent_keys (consent_id, guard_id, action, resource, key) SELECT g.consent_id, g.guard_id, g.action, g.resource, k.key
		FROM nw.consent_keys k JOIN nw.consent_grants g ON g.consent_id = k.consent_id AND g.action <> k.action`)
	asks(t, h, task, cancellation("p1"), "an action without a key")
}

// B5: an operator can take a key out of a consent, with the authority of everything that was minted before. Nobody can put one in.
func TestAKeyCanOnlyBeWithdrawn(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	task := h.Consent(approving(h, "refunds", `{payment: p1}`, `{payment: p2}`))
	w := h.Claim(h.Plan(task))
	first := w.Refunded("p1", 5)
	exact := api.WithdrawRequest{Task: task, Guard: authoritytest.PaymentsName, Action: "refund.create", Resource: authoritytest.Refunds, Key: json.RawMessage(`{ "payment": "p1" }`)}
	withdraw := func(who string, change func(r *api.WithdrawRequest)) (api.Epoch, error) {
		r := exact
		change(&r)
		var epoch api.Epoch
		err := h.Person(who).JSON("POST", api.PathWithdraw, r, &epoch)
		return epoch, err
	}
	before := h.Consumed()
	for name, c := range map[string]struct {
		code   api.Code
		who    string
		change func(r *api.WithdrawRequest)
	}{
		"its owner, who can revoke":  {api.Forbidden, authoritytest.MemberName, func(*api.WithdrawRequest) {}},
		"somebody":                   {api.Forbidden, "member-2", func(*api.WithdrawRequest) {}},
		"another task":               {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Task = authoritytest.NewAttempt() }},
		"no task":                    {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Task = "x" }},
		"another guard":              {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Guard = authoritytest.GuardName }},
		"another action":             {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Action = "payment.cancel" }},
		"another resource":           {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Resource += "/p1" }},
		"a key that is not there":    {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Key = json.RawMessage(`{"payment":"p"}`) }},
		"what is no key":             {api.InvalidRequest, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Key = json.RawMessage(`{"payment":1.5}`) }},
		"a key without an object":    {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Key = json.RawMessage(`{}`) }},
		"a key of more than is said": {api.NotFound, authoritytest.OperatorName, func(r *api.WithdrawRequest) { r.Key = json.RawMessage(`{"payment":"p1","amount":5}`) }},
	} {
		_, err := withdraw(c.who, c.change)
		assert.Equal(t, c.code, codeOf(err), name)
		assert.Equal(t, before, h.Consumed(), name)
	}
	w.Refunded("p1", 5)

	epoch := h.Count(`SELECT activation_epoch FROM nw.lanes`)
	h.Close() // less is possible at any time
	h.See()
	out, err := withdraw(authoritytest.OperatorName, func(*api.WithdrawRequest) {})
	require.NoError(t, err)
	assert.Equal(t, api.Epoch{Task: task, ActivationEpoch: epoch + 1}, out)
	assert.Equal(t, epoch+1, h.Count(`SELECT activation_epoch FROM nw.lanes`))
	assert.Equal(t, "revoked", stateOf(t, h, w.Run).State, "what was minted before is dead")
	h.Open()
	refusedWith(t, h, api.AuthorityChanged, func() authoritytest.Answer { return w.Refund("p1", 5) })
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.effects WHERE ref = $1 AND state = 'lapsed'`, authoritytest.Raw(first.Effect)))
	_, err = withdraw(authoritytest.OperatorName, func(*api.WithdrawRequest) {})
	assert.Equal(t, api.NotFound, codeOf(err), "once")

	asks(t, h, task, authoritytest.Refund("p1", 5), "a key that was withdrawn")
	passes(t, h, task, authoritytest.Refund("p2", 5), "the other one")
	for _, sql := range []string{`UPDATE nw.consent_keys SET withdrawn_at = NULL`, `UPDATE nw.consent_keys SET key = sha256('p3') WHERE withdrawn_at IS NULL`, `DELETE FROM nw.consent_keys`} {
		_, err := h.Owner.Exec(t.Context(), sql)
		assert.ErrorContains(t, err, "NW001", sql)
	}
	for _, role := range []string{"nw_authority", "nw_operator", "nw_scheduler"} {
		_, err := h.DB.Pool(t, role).Exec(t.Context(), `INSERT INTO nw.consent_keys SELECT consent_id, guard_id, action, resource, sha256('p3') FROM nw.consent_keys`)
		assert.ErrorContains(t, err, "permission denied", role)
	}
}

// A key frees an effect from asking and from nothing else: every ceiling and every grant hold for it.
func TestAKeyIsNoBudget(t *testing.T) {
	t.Parallel()
	h := spending(t, "member_spend_day: 60")
	w := h.Claim(h.Plan(h.Consent(approving(h, "refunds", `{payment: p1}`))))
	stopped(t, h, "spend", func() authoritytest.Answer { return w.Ask("a", authoritytest.Refund("p1", 101)) })
	stopped(t, h, "member_spend_day", func() authoritytest.Answer { return w.Ask("a", authoritytest.Refund("p1", 61)) })
	for n := range 3 {
		require.Equal(t, http.StatusOK, w.Ask(fmt.Sprintf("k%d", n), authoritytest.Refund("p1", 20)).Status)
	}
	stopped(t, h, "repeats", func() authoritytest.Answer { return w.Ask("k3", authoritytest.Refund("p1", 20)) })
	assert.EqualValues(t, 3, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'mint' AND verdict = 'ok' AND (convert_from(body, 'UTF8')::json->'more'->>'approved') IS NOT NULL`),
		"which key allowed an effect is on record")
}

// B5, B6: an operation that nobody registered does not exist, at no guard, for no role, in no run.
func TestUnregisteredOperationsDoNotExist(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	apply := func(yaml string) api.Code {
		return codeOf(h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", []byte(yaml), nil))
	}
	role := "kind: WorkloadRole\nname: wide\nclient: books\nrevision: 1\nprofiles: [bookkeeper]\nactions: [{guard: GUARD, action: ACTION}]\nlimits: {max_runtime_s: 60, max_effects: 1}\n"
	for guard, action := range map[string]string{"payments": "refund.delete", "ledger": "refund.create", "nobody": "refund.create"} {
		assert.Equal(t, api.InvalidDocument, apply(strings.NewReplacer("GUARD", guard, "ACTION", action).Replace(role)), action)
	}
	assert.Equal(t, api.InvalidDocument, apply(strings.Replace(h.RefundTask("wide", "effects: 1, spend: 10"), "action: payment.cancel", "action: payment.stop", 1)))
	w := refunder(h, "refunds", "effects: 10, spend: 100")
	refund := authoritytest.Refund("p1", 5)
	for _, action := range []string{"refund.delete", "refund", "refund.create ", "Refund.create", "refund.create.now", "row.append", "row.delete", "refund.abroad", "*", ""} {
		d := refund
		d.Actions = []string{action}
		if action == "refund.abroad" { // registered, and in the role, but not in the consent
			d.Identifier, d.Currency, d.Parameters = d.Identifier+"/usd", "USD", json.RawMessage(`{"payment":"p1","amount":5}`)
		}
		refusedWith(t, h, api.NotGranted, func() authoritytest.Answer { return w.Ask("a", d) })
	}
	d := refund
	d.Locations = []string{authoritytest.GuardURI} // not at this guard
	refusedWith(t, h, api.NotGranted, func() authoritytest.Answer { return w.Ask("a", d) })
	refusedWith(t, h, api.NotGranted, func() authoritytest.Answer { return w.Ask("a", cancellation("p2")) }) // a destination that the consent does not name
	assert.Equal(t, http.StatusOK, w.Ask("a", cancellation("p1")).Status)
}

// Parameters that do not fit their schema, or name another destination, are refused before anything is consumed and before anybody is asked.
func TestParametersThatDoNotFit(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	for _, dial := range []string{"high", "low"} {
		w := h.Claim(h.Plan(h.Consent(strings.Replace(h.RefundTask("refunds-"+dial, "effects: 10, spend: 100"), "dial: high", "dial: "+dial, 1))))
		for _, parameters := range []string{`{}`, `{"payment":"p1"}`, `{"amount":5}`, `{"payment":1,"amount":5}`, `{"payment":"P1","amount":5}`, `{"payment":"","amount":5}`, `{"payment":"p1/../p2","amount":5}`,
			`{"payment":"abcdefghijklmnopq","amount":5}`, `{"payment":"p1\n","amount":5}`, `{"payment":["p1"],"amount":5}`, `{"payment":null,"amount":5}`, `{"payment":"p1","amount":true}`,
			`{"payment":"p1","amount":5,"note":7}`, `{"payment":"p1","amount":5,"note":"` + strings.Repeat("n", 65) + `"}`, `{"payment":"p1","amount":5,"more":1}`, `{"payment":"p1","amount":5,"Amount":5}`,
			`{"payment":"p1","amount":5,"amount":5}`, `{"payment":"p1","payment":"p2","amount":5}`, `{"payment":"p1","amount":5,"note":"\ud800"}`, `[]`, `"p1"`, `null`, `5`} {
			d := authoritytest.Refund("p1", 5)
			d.Parameters = json.RawMessage(parameters)
			refusedWith(t, h, api.InvalidAuthorizationDetails, func() authoritytest.Answer { return w.Ask("a", d) })
		}
		for _, resource := range []string{"", authoritytest.Refunds + "/", authoritytest.Refunds + "?a=1", "https://api.payments.example/refunds/../refunds", "https://evil.example/refunds", "http://api.payments.example/refunds"} {
			d := authoritytest.Refund("p1", 5)
			d.Identifier = resource
			refusedWith(t, h, api.InvalidAuthorizationDetails, func() authoritytest.Answer { return w.Ask("a", d) })
		}
		for _, payment := range []string{"", ".", "..", "p1/x", "p1%2fx", "p1?x", "p1#x", "*", strings.Repeat("p", 255)} {
			d := cancellation("p1")
			d.Parameters = json.RawMessage(fmt.Sprintf(`{"payment":%q}`, payment))
			refusedWith(t, h, api.InvalidAuthorizationDetails, func() authoritytest.Answer { return w.Ask("a", d) })
		}
	}
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.decisions`)+h.Count(`SELECT count(*) FROM nw.effects`)+h.Count(`SELECT count(*) FROM nw.arguments`))
}
