package server

import (
	"context"
	"net/http"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

func product(method, path, id, summary string, in, out any, refusals ...api.Code) openapi.Operation {
	return openapi.Operation{Method: method, Path: path, ID: id, Summary: summary, Tag: "products", Access: openapi.Component, In: in, Out: out, Refusals: codes(refusals, []api.Code{api.BootSuperseded})}
}

func (s *Server) products() {
	start := gated(product("POST", api.PathOffers, "startOffer", "Ask one person about one task", aStart, api.StartedOffer{Offer: aReference, Page: "https://authority.example/offers/" + aReference},
		api.Forbidden, api.InvalidAuthorizationDetails, api.InvalidDocument, api.RevisionImmutable, api.RevisionStale, api.OfferEnded, api.TooManyOffers, api.Retired))
	start.Text = "The same question again has the same offer. A later revision of a task replaces the one before: its consent ends at once, and runs begin again with the yes to this one."
	openapi.Hand(s.api, start, body(s, s.authority.StartOffer))
	openapi.Hand(s.api, product("GET", api.PathOffers+"/{reference}/answer", "getAnswer", "What came of an offer that you have started", nil,
		api.OfferAnswer{Offer: aReference, Task: aReference, State: "accepted", ExpiresAt: aDay, Consent: aReference}, api.NotFound), about(s, s.authority.OfferAnswer))
	openapi.Hand(s.api, product("POST", api.PathOffers+"/{reference}/withdraw", "withdrawOffer", "Take back an offer that waits for its answer", nil, done{}, api.NotFound, api.OfferEnded),
		about(s, func(ctx context.Context, c authority.Call, token capability.Token, ref string) (done, error) {
			return done{}, s.authority.WithdrawOffer(ctx, c, token, ref)
		}))
	openapi.Hand(s.api, product("GET", api.PathConsents+"/{reference}/state", "getConsentState", "Whether a consent to an offer of yours holds, and exactly what was granted", nil,
		api.ConsentState{Consent: aReference, Task: aReference, Digest: aDigest, State: "active", ActivationEpoch: 3, GivenAt: aDay, ExpiresAt: aDay.AddDate(0, 3, 0), Document: aDocument}, api.NotFound),
		about(s, s.authority.ConsentState))
	openapi.Hand(s.api, product("POST", api.PathConsents+"/{reference}/end", "endConsent", "Revoke a consent to an offer of yours; the answer comes when the new epoch is committed", nil, anEpoch, api.NotFound, api.ConsentEnded),
		about(s, s.authority.EndConsent))
}

// about is a component's call about one thing, without a body.
func about[Out any](s *Server, act func(context.Context, authority.Call, capability.Token, string) (Out, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, token, err := s.bearer(r)
		if err != nil {
			return err
		}
		out, err := act(r.Context(), c, token, r.PathValue("reference"))
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, out)
	}
}
