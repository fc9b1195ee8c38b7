package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

const maxAnswer = 1 << 20 // bytes of a body that is read

// Origin asks the authority as its workers do, through whatever stands in
// front of it. A proof names the method and the URL that it is for (RFC 9449
// §4.2, htu and htm), so whatever a proxy changes of either shows.
type Origin struct {
	Issuer string
	HTTP   *http.Client
	Bound  time.Duration // how far a clock may be from the others
}

// Look asks for the metadata, the keys, a refusal under a good proof, the time
// and the decision.
func (o Origin) Look(ctx context.Context) []Finding {
	u, err := url.Parse(o.Issuer)
	if err != nil {
		return []Finding{bad("address", "Set issuer to the public origin.", "the issuer is no URL")}
	}
	found := []Finding{ok("address", "%s", o.Issuer)}
	if inClear(u, "https") {
		found[0] = bad("address", "End TLS in front of the authority, and set issuer to its https origin.", "%s is reached without TLS: capabilities would cross the network in clear", o.Issuer)
	}
	metadata, err := o.get(ctx, api.PathMetadata)
	if err != nil {
		return append(found, bad("metadata", "Route "+o.Issuer+" to the authority's `listen`, with its path unchanged, and look whether a replica serves.", "%s", err))
	}
	return append(found, o.metadata(metadata), o.keys(ctx), o.clock(metadata.Header), o.proof(ctx), o.fresh(ctx), o.decision(ctx))
}

type answer struct {
	*http.Response
	body []byte
}

func (o Origin) get(ctx context.Context, path string) (a answer, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.Issuer+path, nil)
	if err != nil {
		return a, err
	}
	client := *o.HTTP
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a.Response = response
	if a.body, err = io.ReadAll(io.LimitReader(a.Body, maxAnswer)); err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s%s is answered with status %d", o.Issuer, path, a.StatusCode)
	}
	return a, err
}

func (o Origin) metadata(a answer) Finding {
	var m struct {
		Issuer        string `json:"issuer"`
		TokenEndpoint string `json:"token_endpoint"`
	}
	switch err := json.Unmarshal(a.body, &m); {
	case err != nil:
		return bad("metadata", "Route "+api.PathMetadata+" to the authority.", "what answers there is not the authority")
	case m.Issuer != o.Issuer || m.TokenEndpoint != o.Issuer+api.PathToken:
		return bad("metadata", "Give every replica the same issuer: the origin that workers use.", "the replica that answers calls itself %q", m.Issuer)
	}
	return ok("metadata", "the replica that answers has this issuer")
}

func (o Origin) keys(ctx context.Context) Finding {
	const remedy = "Let the key set through unchanged, and roll one bundle out to every replica."
	first, err := o.get(ctx, api.PathJWKS)
	if err != nil {
		return bad("keys", remedy, "%s", err)
	}
	for range 8 { // several replicas answer in turn
		again, err := o.get(ctx, api.PathJWKS)
		if err != nil {
			return bad("keys", remedy, "%s", err)
		}
		if !bytes.Equal(first.body, again.body) {
			return bad("keys", remedy, "the key set differs from one answer to the next")
		}
	}
	return ok("keys", "the key set is the same each time")
}

// clock looks at the Date of an answer, which has whole seconds.
func (o Origin) clock(h http.Header) Finding {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return Finding{"clock", Unknown, "answers carry no Date, so that this machine's clock cannot be compared", "Let the Date header through."}
	}
	return judgeClock("clock", "the authority's", time.Since(date.Add(500*time.Millisecond)), o.Bound+time.Second)
}

// proof sends a request that is good but for its assertion.
func (o Origin) proof(ctx context.Context) Finding {
	client, err := o.client()
	if err != nil {
		return Finding{"proof", Unknown, err.Error(), ""}
	}
	err = client.PostForm(ctx, api.PathToken, noAssertion, new(json.RawMessage))
	refusal, _ := errors.AsType[*api.Refusal](err)
	switch {
	case refusal == nil:
		return bad("proof", "Let answers of the authority through with their status, body and Content-Type.", "a call is not answered by the authority: %v", err)
	case refusal.Code == api.UseDPoPNonce && client.Nonce() == "":
		return bad("proof", "Let the response headers DPoP-Nonce and WWW-Authenticate through.", "a proxy keeps the nonce that workers need")
	case refusal.Code == api.UseDPoPNonce:
		return bad("proof", "Roll one bundle out to every replica, and set the clocks.", "a nonce that was given out a moment ago is not taken")
	case refusal.Code == api.InvalidClient: // it came as far as the assertion
		return ok("proof", "a proof for this origin is taken")
	case refusal.Code == api.TooManyRequests || refusal.Code == api.Unavailable:
		return Finding{"proof", Unknown, "the authority has no time now", "Ask again."}
	}
	return bad("proof", "Let method, path, body and the header DPoP through unchanged, once, and set issuer to the origin that workers use.",
		"a good proof for %s is refused (%s): what arrives is not what was sent", o.Issuer+api.PathToken, refusal.Code)
}

// noAssertion identifies nobody.
var noAssertion = url.Values{"grant_type": {"client_credentials"}, "client_id": {"doctor"},
	"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}, "client_assertion": {"doctor"}}

func (o Origin) client() (*dpopclient.Client, error) {
	key, err := capability.GenerateKey()
	if err != nil {
		return nil, err
	}
	return &dpopclient.Client{Key: key, HTTP: o.HTTP, BaseURL: o.Issuer, Timeout: patience}, nil
}

// fresh wants another nonce each time: an answer that somebody kept gives away an old one.
func (o Origin) fresh(ctx context.Context) Finding {
	client, err := o.client()
	if err != nil {
		return Finding{"caches", Unknown, err.Error(), ""}
	}
	seen := map[string]bool{}
	for range 3 {
		_ = client.PostForm(ctx, api.PathToken, noAssertion, new(json.RawMessage)) // what it says is looked at elsewhere
		if nonce := client.Nonce(); nonce == "" || seen[nonce] {
			return bad("caches", "Cache no answer of the authority.", "the same nonce came twice, or none: something answers in the authority's place")
		}
		seen[client.Nonce()] = true
	}
	return ok("caches", "each answer is new")
}

func (o Origin) decision(ctx context.Context) Finding {
	a, err := o.get(ctx, api.PathReadiness)
	var d api.Decision
	if err == nil {
		err = json.Unmarshal(a.body, &d)
	}
	if err != nil {
		return bad("readiness", "Look into the replicas' logs.", "there is no decision: %s", err)
	}
	if d.Open {
		return ok("readiness", "admission is open, epoch %d", d.Epoch)
	}
	var why []string
	for _, f := range d.Families {
		if !f.Good {
			why = append(why, fmt.Sprintf("%s (%s, %d of %d good)", f.Family, f.Reason, f.Instances, f.Required))
		}
	}
	if len(why) == 0 {
		why = d.Reasons
	}
	return warn("readiness", "Start what is absent, and see `nightwarrant readiness` and the logs of what is unhealthy.", "admission is closed: %s", strings.Join(why, "; "))
}

// judgeClock says how far another clock is from ours.
func judgeClock(check, whose string, off, bound time.Duration) Finding {
	off = off.Round(time.Millisecond)
	switch far := off.Abs(); {
	case far > bound:
		return bad(check, "Synchronize the clocks (chrony, systemd-timesyncd) of both machines.", "%s clock and this machine's are %s apart, more than %s", whose, far, bound)
	case far > bound/2:
		return warn(check, "Synchronize the clocks before they drift further.", "%s clock and this machine's are %s apart; %s is allowed", whose, far, bound)
	default:
		return ok(check, "%s clock is within %s of this machine's", whose, far)
	}
}

// Guard asks a guard what it is.
type Guard struct {
	URI       string
	Authority string // its issuer
	HTTP      *http.Client
}

// Look wants the guard's metadata to name the URI that it was found by: proofs
// and capabilities are for exactly that one (RFC 9728 §3.3).
func (g Guard) Look(ctx context.Context) []Finding {
	u, err := url.Parse(g.URI)
	if err != nil {
		return []Finding{bad("address", "Set uri to the URI that workers use.", "its URI is no URL")}
	}
	found := ok("address", "%s", g.URI)
	if inClear(u, "https") {
		found = bad("address", "End TLS in front of the guard.", "%s is reached without TLS", g.URI)
	}
	a, err := Origin{Issuer: u.Scheme + "://" + u.Host, HTTP: g.HTTP}.get(ctx, api.PathResource+u.Path)
	if err != nil {
		return []Finding{found, bad("metadata", "Route "+g.URI+" and "+api.PathResource+u.Path+" to the guard's `listen`, with the path unchanged, and look whether it serves.", "the guard does not answer: %v", err)}
	}
	return []Finding{found, g.metadata(a)}
}

func (g Guard) metadata(a answer) Finding {
	var m struct {
		Resource    string   `json:"resource"`
		Authorities []string `json:"authorization_servers"`
	}
	err := json.Unmarshal(a.body, &m)
	switch {
	case err != nil || m.Resource == "":
		return bad("metadata", "Route the guard's origin to the guard.", "what answers there is no guard")
	case m.Resource != g.URI:
		return bad("metadata", "Give all replicas of the guard the registered URI, which workers use.", "the guard that answers calls itself %q", m.Resource)
	case len(m.Authorities) != 1 || m.Authorities[0] != g.Authority:
		return bad("metadata", "Set authority to the issuer, on every replica of the guard.", "the guard that answers asks another authority")
	case a.Header.Get(api.HeaderNonce) == "":
		return bad("metadata", "Let the response headers DPoP-Nonce and WWW-Authenticate through.", "answers come without a nonce: a proxy keeps it, or the guard has none from its authority")
	}
	return ok("metadata", "the guard that answers has this URI, its authority and a nonce")
}

// Pages looks at the console as browsers do.
type Pages struct {
	Origin string
	HTTP   *http.Client
}

// Look wants an answer with the headers that protect its reader.
func (p Pages) Look(ctx context.Context) []Finding {
	a, err := Origin{Issuer: p.Origin, HTTP: p.HTTP}.get(ctx, "/")
	switch {
	case a.Response == nil:
		return []Finding{bad("", "Route "+p.Origin+" to the authority's `listen`.", "the pages do not answer: %v", err)}
	case a.StatusCode >= 500:
		return []Finding{bad("", "Look into the replicas' logs.", "the pages answer with status %d", a.StatusCode)}
	case a.StatusCode == http.StatusSeeOther && strings.HasPrefix(strings.TrimPrefix(a.Header.Get("Location"), p.Origin), "/login"):
		return []Finding{ok("", "%s asks who somebody is", p.Origin)}
	case !strings.Contains(a.Header.Get("Content-Security-Policy"), "default-src"):
		return []Finding{bad("", "Let Content-Security-Policy and the other headers of answers through, and route "+p.Origin+" to the authority.", "an answer has lost its Content-Security-Policy, or is not the console's")}
	}
	return []Finding{ok("", "%s answers with its policy", p.Origin)}
}
