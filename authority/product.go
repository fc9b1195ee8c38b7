package authority

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// StartOffer asks one person about one task of a product's client. What the
// product may offer at all, the operator has written; who may answer is fixed
// here, so that the link is worth nothing to anybody else.
func (a *Authority) StartOffer(ctx context.Context, c Call, token capability.Token, r api.StartOffer) (api.StartedOffer, error) {
	g, p, err := a.caller(c, token)
	if err != nil {
		return api.StartedOffer{}, err
	}
	if err := a.refuseEarly(); err != nil {
		return api.StartedOffer{}, err
	}
	if _, err := a.standing(p); err != nil {
		return api.StartedOffer{}, err
	}
	i, way, err := a.asking(ctx, g, r)
	if err != nil {
		return api.StartedOffer{}, a.misasked(ctx, p, err)
	}
	offer, err := a.offerTask(ctx, g, p, i, way)
	if err != nil {
		return api.StartedOffer{}, err
	}
	return api.StartedOffer{Offer: encode(offer), Page: a.page(offer)}, nil
}

// misasked audits a question that no verb needs to see, as those are that the verb refuses.
func (a *Authority) misasked(ctx context.Context, p spent, err error) error {
	if r, ok := invalidDocument(err).(*api.Refusal); ok {
		return a.noteRefusal(ctx, "offer", p, r)
	}
	return err
}

// asking makes the task and the way back of a product's question.
func (a *Authority) asking(ctx context.Context, g component, r api.StartOffer) (item, way, error) {
	s := a.registry.now()
	d, ok := find[*document.Product](s, document.KindProduct, s.byName[g.name], 1)
	if !ok || g.kind != "product" {
		return item{}, way{}, api.Refuse(api.Forbidden)
	}
	back, err := wayBack(d.Offers, r)
	if err != nil {
		return item{}, way{}, err
	}
	if r.For.Issuer == "" {
		r.For.Issuer = a.Envelopes.Issuer()
	}
	if r.For.Issuer != a.Envelopes.Issuer() {
		return item{}, way{}, api.Refusef(api.InvalidRequest, "for.issuer must be the platform's identity provider: nobody else could answer.")
	}
	if len(r.Details) != 1 {
		return item{}, way{}, api.Refusef(api.InvalidAuthorizationDetails, "Send exactly one authorization detail that describes one task.")
	}
	task, err := document.TaskOfDetail(r.Details[0], d.Offers.Client, document.Owner{Issuer: r.For.Issuer, Subject: r.For.Subject})
	if err != nil {
		return item{}, way{}, err
	}
	if err := d.Offers.May(task); err != nil {
		return item{}, way{}, api.Refuse(api.Forbidden)
	}
	now, err := a.databaseTime(ctx)
	if err != nil {
		return item{}, way{}, err
	}
	i, err := applying{a, s, now}.item(ctx, task)
	return i, back, err
}

// way is where a person's answer returns to, as it is stored.
type way struct {
	digest [32]byte
	body   []byte
}

// returning is a way back. Its canonical form is a document, because state is
// the product's own text.
type returning struct {
	URI   string `json:"return_uri"`
	State string `json:"state"`
}

const longestState = 256

func wayBack(o document.Offering, r api.StartOffer) (way, error) {
	if !slices.Contains(o.ReturnURIs, r.ReturnURI) {
		return way{}, api.Refusef(api.InvalidRequest, "return_uri must be one of the registered addresses, exactly.")
	}
	if r.State == "" || len(r.State) > longestState || !plain(r.State) {
		return way{}, api.Refusef(api.InvalidRequest, "state must be 1 to %d visible ASCII characters.", longestState)
	}
	body, err := canonical.CanonicalizeValue(returning{r.ReturnURI, r.State})
	return way{canonical.Digest(canonical.DomainDocument, body), body}, err
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// returnTo is the link by which a person goes back to the product: the address
// as registered, with the product's state, the offer's reference and who
// answers (RFC 9207). It says nothing of the answer, which the product asks for.
func (a *Authority) returnTo(offer, back []byte) string {
	var r returning
	if back == nil || json.Unmarshal(back, &r) != nil {
		return ""
	}
	return r.URI + "?" + url.Values{"state": {r.State}, "offer": {encode(offer)}, "iss": {a.Issuer}}.Encode()
}

// page is where a person sees an offer.
func (a *Authority) page(offer []byte) string {
	origin := a.Pages
	if origin == "" {
		origin = a.Issuer
	}
	return origin + "/offers/" + encode(offer)
}

// args are the first arguments of every verb that a component's capability opens.
func (g component) args(p spent, more ...any) []any {
	return append([]any{g.name[:], g.instance[:], g.boot, p.key[:], p.nonceAt, p.digest[:]}, more...)
}

func (a *Authority) offerTask(ctx context.Context, g component, p spent, i item, w way) (offer []byte, err error) {
	text, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	err = a.call(ctx, "offer", p, `SELECT verdict, offer FROM nw.offer_task($1, $2, $3, $4, $5, $6, $7, $8, $9)`, g.args(p, string(text), w.digest[:], w.body), nil, &offer)
	return offer, err
}

// OfferAnswer tells a product what came of an offer that it has started.
func (a *Authority) OfferAnswer(ctx context.Context, c Call, token capability.Token, reference string) (api.OfferAnswer, error) {
	g, p, offer, err := a.ofProduct(c, token, reference)
	if err != nil {
		return api.OfferAnswer{}, err
	}
	out := api.OfferAnswer{Offer: reference}
	var task, consent []byte
	err = a.call(ctx, "present", p, `SELECT verdict, task, coalesce(standing, ''), coalesce(until, 'epoch'), consent FROM nw.product_offer($1, $2, $3, $4, $5, $6, $7)`,
		g.args(p, offer), nil, &task, &out.State, &out.ExpiresAt, &consent)
	out.Task, out.Consent, out.ExpiresAt = encode(task), encode(consent), out.ExpiresAt.UTC()
	return out, err
}

// WithdrawOffer takes back an offer that waits for its answer.
func (a *Authority) WithdrawOffer(ctx context.Context, c Call, token capability.Token, reference string) error {
	g, p, offer, err := a.ofProduct(c, token, reference)
	if err != nil {
		return err
	}
	return a.call(ctx, "offer", p.regardless(), `SELECT verdict FROM nw.product_withdraw($1, $2, $3, $4, $5, $6, $7)`, g.args(p, offer), nil)
}

// ConsentState tells a product whether a consent to an offer of its own holds,
// and exactly what was granted.
func (a *Authority) ConsentState(ctx context.Context, c Call, token capability.Token, reference string) (api.ConsentState, error) {
	g, p, consent, err := a.ofProduct(c, token, reference)
	if err != nil {
		return api.ConsentState{}, err
	}
	out := api.ConsentState{Consent: reference}
	var task, digest, body []byte
	var given, until time.Time
	err = a.call(ctx, "present", p, `SELECT verdict, task, digest, coalesce(standing, ''), coalesce(epoch, 0), coalesce(given_at, 'epoch'), coalesce(until, 'epoch'), body
		FROM nw.product_consent($1, $2, $3, $4, $5, $6, $7)`, g.args(p, consent), nil, &task, &digest, &out.State, &out.ActivationEpoch, &given, &until, &body)
	out.Task, out.Digest, out.GivenAt, out.ExpiresAt, out.Document = encode(task), encode(digest), given.UTC(), until.UTC(), body
	return out, err
}

// EndConsent revokes a consent to an offer of the product's own. It returns when
// the new epoch is committed.
func (a *Authority) EndConsent(ctx context.Context, c Call, token capability.Token, reference string) (api.Epoch, error) {
	g, p, consent, err := a.ofProduct(c, token, reference)
	if err != nil {
		return api.Epoch{}, err
	}
	var out api.Epoch
	var task []byte
	err = a.call(ctx, "revoke", p.regardless(), `SELECT verdict, task, coalesce(epoch, 0) FROM nw.product_revoke($1, $2, $3, $4, $5, $6, $7)`, g.args(p, consent), nil, &task, &out.ActivationEpoch)
	out.Task = encode(task)
	return out, err
}

// ofProduct is who asks about something of a product's.
func (a *Authority) ofProduct(c Call, token capability.Token, reference string) (component, spent, []byte, error) {
	g, p, err := a.caller(c, token)
	if err != nil {
		return component{}, spent{}, nil, err
	}
	ref, err := named(reference)
	return g, p, ref, err
}
