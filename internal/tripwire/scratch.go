package tripwire

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// role keeps its name over all audits, each of which has a revision of its own: a queue belongs to a name.
const role = "tripwire"

const (
	tick     = 100 * time.Millisecond
	patience = 90 * time.Second // with what takes longer than a lease of a minute
)

// scratch is what the audit has put into the deployment.
type scratch struct {
	revision int64  // of the role
	task     string // reference
	offer    api.Offer
	last     *hold
	entered  []api.RetireRequest
	left     string // what the audit says of it at the end
}

func newName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "tripwire-" + hex.EncodeToString(b[:])
}

// person is an operator or a member, as of now.
func (t *tripwire) person(h Holder) (Person, error) {
	envelope, err := t.token(h)
	return t.As(envelope, h.Key, t.http), err
}

// token is somebody's token, which must never be seen again.
func (t *tripwire) token(h Holder) (string, error) {
	if h.Token == nil {
		return "", reason("the configuration names nobody for this")
	}
	token, err := h.Token()
	if err == nil {
		t.heard.secret(token)
	}
	return token, err
}

// call calls as a person, with JSON or nothing.
func (t *tripwire) call(ctx context.Context, h Holder, method, path string, in, out any) error {
	p, err := t.person(h)
	if err != nil {
		return err
	}
	if in == nil {
		return p.Call(ctx, method, path, "", nil, out)
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return p.Call(ctx, method, path, "application/json", body, out)
}

func (t *tripwire) apply(ctx context.Context, documents string) error {
	p, err := t.person(t.Operator)
	if err != nil {
		return err
	}
	var applied api.Applied
	if err := p.Call(ctx, http.MethodPost, api.PathRegistry, "application/yaml", []byte(documents), &applied); err != nil {
		return err
	}
	for _, d := range applied.Documents {
		if d.Kind != document.KindTask {
			t.entered = append(t.entered, api.RetireRequest{Kind: d.Kind, Name: d.Name, Revision: d.Revision})
		}
	}
	return nil
}

// claims are those of a token that its issuer has signed for somebody else.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
	Issued  int64  `json:"iat"`
	Expires int64  `json:"exp"`
}

var errNoJWT = errors.New("a token is no JWT")

func claimsOf(token string) (c claims, err error) {
	_, err = read(token, &c)
	return c, err
}

// read reads what a token says, whoever has signed it, and returns its three parts.
func read(token string, claims any) (parts []string, err error) {
	parts = strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errNoJWT
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, claims) != nil {
		return nil, errNoJWT
	}
	return parts, nil
}

// begin registers what the audit needs and has its member say yes.
func (t *tripwire) begin(ctx context.Context) error {
	d, err := t.decision(ctx, t.Authority)
	if err != nil {
		return fmt.Errorf("the authority says nothing of its readiness: %w", err)
	}
	if !d.Open {
		return errors.New("admission is closed: nothing can be tried")
	}
	var page api.Page[api.Entry]
	err = t.call(ctx, t.Operator, http.MethodGet, api.PathRegistry+"/"+document.KindRole+"/"+role, nil, &page)
	if err != nil && !dpopclient.Refused(err, api.NotFound) {
		return fmt.Errorf("the operator was not heard: %w", err)
	}
	t.revision = 1
	if len(page.Items) > 0 {
		t.revision = page.Items[0].Revision + 1
	}
	documents, err := t.documents()
	if err != nil {
		return err
	}
	if err := t.apply(ctx, documents); err != nil {
		return fmt.Errorf("the scratch documents were not entered: %w", err)
	}
	if t.task, err = t.consent(ctx, t.name, 1); err != nil {
		return fmt.Errorf("the scratch task has no consent: %w", err)
	}
	t.offer, err = t.offered(ctx, t.name+"-b", 1)
	return err
}

// documents are what the scratch task rests on.
func (t *tripwire) documents() (string, error) {
	assertion, err := t.token(t.Workload)
	if err != nil {
		return "", err
	}
	c, err := claimsOf(assertion)
	if err != nil {
		return "", err
	}
	profile := ""
	if t.Profile == "" {
		profile = fmt.Sprintf("kind: AttestationProfile\nname: %s\nissuer: %q\nsubject: %q\nbinding: first_key\nmax_lifetime_s: %d\n---\n", t.name, c.Issuer, c.Subject, c.Expires-c.Issued)
	}
	return profile + fmt.Sprintf(`kind: Client
name: %[1]s
title: Self-audit
---
kind: Policy
name: %[1]s
revision: 1
dial_max: high
limits: {max_runtime_s: 600, max_effects: 10, max_consent_days: 1}
---
`, t.name) + t.roleDocument(), nil
}

func (t *tripwire) roleDocument() string {
	return fmt.Sprintf(`kind: WorkloadRole
name: %s
client: %s
revision: %d
profiles: [%s]
actions: [{guard: %[5]s, action: %[6]s}, {guard: %[5]s, action: %[7]s}]
limits: {max_runtime_s: 600, max_effects: 10}
`, role, t.name, t.revision, t.profile(), t.Guard.Name, t.Guard.Granted.Action, t.Guard.Denied.Action)
}

func (t *tripwire) profile() string { return cmp.Or(t.Profile, t.name) }

// taskDocument is a task that fires each second.
func (t *tripwire) taskDocument(name string, revision int) (string, error) {
	envelope, err := t.token(t.Member)
	if err != nil {
		return "", err
	}
	c, err := claimsOf(envelope)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`kind: Task
name: %[1]s
client: %[2]s
role: %[3]s
role_revision: %[4]d
policy: %[2]s
policy_revision: 1
revision: %[5]d
owner: {issuer: %[6]q, subject: %[7]q}
title: Self-audit %[5]d
schedule: {every_s: 1, anchor: "2026-01-01T00:00:00Z", zone: UTC}
dial: high
grants: [{guard: %[8]s, action: %[9]s, resource: %[10]q}]
limits: {runtime_s: 600, effects: 5}
consent: {days: 1}
`, name, t.name, role, t.revision, revision, c.Issuer, c.Subject, t.Guard.Name, t.Guard.Granted.Action, t.Guard.Granted.Resource), nil
}

// offered enters a revision of a task and finds its offer.
func (t *tripwire) offered(ctx context.Context, name string, revision int) (o api.Offer, err error) {
	text, err := t.taskDocument(name, revision)
	if err != nil {
		return o, err
	}
	if err := patient(ctx, func() error { return t.apply(ctx, text) }); err != nil {
		return o, err
	}
	var page api.Page[api.Offer]
	if err := t.call(ctx, t.Member, http.MethodGet, api.PathOffers, nil, &page); err != nil {
		return o, err
	}
	for _, o := range page.Items {
		c, err := document.ParseConsent(o.Document)
		if err == nil && o.State == "open" && c.Client == t.name && o.Offer != t.offer.Offer {
			return o, nil
		}
	}
	return o, errors.New("its owner is not asked for it")
}

func (t *tripwire) consent(ctx context.Context, name string, revision int) (task string, err error) {
	o, err := t.offered(ctx, name, revision)
	if err != nil {
		return "", err
	}
	return o.Task, patient(ctx, func() error { return t.accept(ctx, o) })
}

func (t *tripwire) accept(ctx context.Context, o api.Offer) error {
	return t.call(ctx, t.Member, http.MethodPost, api.PathOffers+"/"+o.Offer+"/consent", api.Answer{Digest: o.Digest}, &api.Consent{})
}

// hold is a run that the audit has claimed, as any worker does.
type hold struct {
	reference string
	client    *dpopclient.Client
	token     capability.Token
	lease     time.Duration
}

// client calls the authority by a key.
func (t *tripwire) client(k *capability.Key) *dpopclient.Client {
	return &dpopclient.Client{Key: k, BaseURL: t.Authority, HTTP: t.http, Timeout: 20 * time.Second, Now: t.Now}
}

// guard calls the guard by the key of a hold.
func (t *tripwire) guard(k *capability.Key, nonce string) *dpopclient.Client {
	c := t.client(k)
	c.BaseURL = t.Guard.URI
	c.SetNonce(nonce)
	return c
}

// queued waits for a run of the scratch task that has not ended.
func (t *tripwire) queued(ctx context.Context) (reference string, err error) {
	err = until(ctx, "a run of the scratch task", func() (bool, error) {
		var page api.Page[api.Run]
		if err := t.call(ctx, t.Member, http.MethodGet, api.PathRuns+"?task="+url.QueryEscape(t.task), nil, &page); err != nil {
			return false, err
		}
		i := slices.IndexFunc(page.Items, func(r api.Run) bool { return r.EndedAt == nil && r.State == "queued" })
		if i < 0 {
			i = slices.IndexFunc(page.Items, func(r api.Run) bool { return r.EndedAt == nil })
		}
		if i >= 0 {
			reference = page.Items[i].Run
		}
		return i >= 0, nil
	})
	return reference, err
}

// next claims a run, and waits for one as long as another has its lease.
func (t *tripwire) next(ctx context.Context) (h *hold, err error) {
	err = until(ctx, "a hold on a run", func() (bool, error) {
		reference, err := t.queued(ctx)
		if err != nil {
			return false, err
		}
		h, err = t.claim(ctx, reference, t.Workload)
		return err == nil, err
	})
	return h, err
}

func (t *tripwire) claim(ctx context.Context, reference string, by Holder) (*hold, error) {
	assertion, err := t.token(by)
	if err != nil {
		return nil, err
	}
	h := &hold{reference: reference, client: t.client(by.Key)}
	out, err := t.exchange(ctx, h.client, claimForm(reference, assertion))
	if err != nil {
		return nil, err
	}
	h.token, h.lease = capability.Token(out.AccessToken), time.Duration(out.ExpiresIn)*time.Second
	if out.Run != nil {
		h.lease = time.Duration(out.Run.LeaseMS) * time.Millisecond
	}
	t.last = h
	return h, nil
}

// exchange asks the token endpoint.
func (t *tripwire) exchange(ctx context.Context, c *dpopclient.Client, form url.Values) (out api.TokenResponse, err error) {
	err = c.PostForm(ctx, api.PathToken, form, &out)
	t.heard.secret(out.AccessToken)
	return out, err
}

func claimForm(reference, assertion string) url.Values {
	return url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {reference}, "subject_token_type": {api.TokenTypeRunReference},
		"client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {assertion}}
}

// mint names an effect under a hold.
func (t *tripwire) mint(ctx context.Context, h *hold, key string, e Effect) (api.TokenResponse, error) {
	return t.exchange(ctx, h.client, t.mintForm(h.token.Reveal(), key, e))
}

func (t *tripwire) mintForm(token, key string, e Effect) url.Values {
	details, _ := json.Marshal([]api.Detail{{Type: api.DetailTypeEffect, Actions: []string{e.Action}, Locations: []string{t.Guard.URI}, Identifier: e.Resource, Parameters: e.Parameters}}) // checked JSON
	return url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {token}, "subject_token_type": {api.TokenTypeAccess},
		"resource": {t.Guard.URI}, "authorization_details": {string(details)}, "effect_key": {key}}
}

// operate presents an effect capability to the guard.
func (t *tripwire) operate(ctx context.Context, h *hold, token, nonce string, e Effect) error {
	return t.guard(h.client.Key, nonce).JSON(ctx, http.MethodPost, "/operations/"+e.Action, capability.Token(token), map[string]any{"resource": e.Resource, "parameters": e.Parameters}, nil)
}

func (t *tripwire) renew(ctx context.Context, h *hold) error {
	var out api.TokenResponse
	err := h.client.JSON(ctx, http.MethodPost, api.PathRenew, h.token, api.RenewRequest{}, &out)
	if err == nil {
		t.heard.secret(out.AccessToken)
		h.token = capability.Token(out.AccessToken)
	}
	return err
}

// give settles a run, so that the next one can come. One that cannot be settled runs out.
func (t *tripwire) give(ctx context.Context, h *hold) {
	_ = h.client.JSON(ctx, http.MethodPost, api.PathSettleRun, h.token, api.SettleRunRequest{Result: "failed"}, nil) // see above
}

// end takes back what was entered, and looks whether it is gone.
func (t *tripwire) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	var all error
	if t.task != "" {
		all = errors.Join(t.findings(ctx), t.revoke(ctx))
	}
	for _, e := range slices.Backward(t.entered) {
		all = errors.Join(all, t.retire(ctx, e))
	}
	return errors.Join(all, t.gone(ctx))
}

// retire ends a revision, unless that was done.
func (t *tripwire) retire(ctx context.Context, e api.RetireRequest) error {
	err := t.call(ctx, t.Operator, http.MethodPost, api.PathRetire, e, &api.Retirement{})
	if err == nil || dpopclient.Refused(err, api.Retired) {
		return nil
	}
	return fmt.Errorf("%s %s was not retired: %w", e.Kind, e.Name, err)
}

// revoke ends the scratch consent and cuts its task off, in whichever state they are.
func (t *tripwire) revoke(ctx context.Context) error {
	err := t.call(ctx, t.Member, http.MethodPost, api.PathTasks+"/"+t.task+"/revoke", nil, &api.Epoch{})
	if dpopclient.Refused(err, api.ConsentEnded) {
		err = nil
	}
	return errors.Join(err, t.call(ctx, t.Operator, http.MethodPost, api.PathTasks+"/"+t.task+"/cut-off", nil, &api.Epoch{}))
}

// findings records that what the audit made ambiguous did not happen: it was never applied.
func (t *tripwire) findings(ctx context.Context) error {
	var page api.Page[api.AmbiguousEffect]
	if err := t.call(ctx, t.Member, http.MethodGet, api.PathFindings, nil, &page); err != nil {
		return err
	}
	var all error
	for _, e := range page.Items {
		if e.Task == t.task && e.Finding == "" {
			all = errors.Join(all, t.call(ctx, t.Member, http.MethodPost, api.PathFindings, api.Finding{Effect: e.Effect, Finding: "did_not"}, &api.Finding{}))
		}
	}
	return all
}

// gone says that nothing of the audit can act any more.
func (t *tripwire) gone(ctx context.Context) error {
	for _, e := range t.entered {
		var page api.Page[api.Entry]
		if err := t.call(ctx, t.Operator, http.MethodGet, api.PathRegistry+"/"+e.Kind+"/"+e.Name, nil, &page); err != nil {
			return err
		}
		if slices.ContainsFunc(page.Items, func(one api.Entry) bool { return one.Revision == e.Revision && one.State != "retired" }) {
			return fmt.Errorf("%s %s is still there", e.Kind, e.Name)
		}
	}
	if t.task == "" {
		return nil
	}
	var task api.TaskDetail
	if err := t.call(ctx, t.Member, http.MethodGet, api.PathTasks+"/"+t.task, nil, &task); err != nil {
		return err
	}
	if task.Consented || task.Offer != "" {
		return errors.New("the scratch task has a consent or an open offer still")
	}
	err := until(ctx, "the end of every scratch run", func() (bool, error) {
		var page api.Page[api.Run]
		err := t.call(ctx, t.Member, http.MethodGet, api.PathRuns+"?task="+url.QueryEscape(t.task), nil, &page)
		return err == nil && !slices.ContainsFunc(page.Items, func(r api.Run) bool { return r.EndedAt == nil }), err
	})
	if err != nil {
		return err
	}
	t.left = fmt.Sprintf("%d scratch documents are retired, the consent of task %s is over and the task cut off, and no run of it is left", len(t.entered), t.task)
	if t.last == nil {
		return nil
	}
	said, err := allRefused(attempt{"the last capability", func() error { return t.renew(ctx, t.last) },
		[]api.Code{api.AuthorityChanged, api.ConsentEnded, api.RunEnded, api.UnknownRun, api.LeaseLost, api.FenceStale}})
	t.left += "; " + said
	return err
}

// patient does something that a closing which passes may refuse.
func patient(ctx context.Context, f func() error) (err error) {
	_ = until(ctx, "", func() (bool, error) { // err says more
		err = f()
		return !inconclusive(err), err
	})
	return err
}

// until asks again and again until f says yes. A refusal may pass.
func until(ctx context.Context, what string, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	wait := time.NewTicker(tick)
	defer wait.Stop()
	for {
		ok, err := f()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s did not come about within %s", what, patience), err)
		case <-wait.C:
		}
	}
}
