package guards

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// metadata is the protected resource's (RFC 9728 §2, RFC 9396 §10).
type metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	DPoPAlgorithms       []string `json:"dpop_signing_alg_values_supported"`
	DPoPRequired         bool     `json:"dpop_bound_access_tokens_required"`
	DetailsTypes         []string `json:"authorization_details_types_supported"`
}

func (g *Guard) serveMetadata(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		g.refuse(w, r, nil, api.Refuse(api.MethodNotAllowed))
		return
	}
	g.write(w, http.StatusOK, "application/json", metadata{
		Resource: g.config.URI, AuthorizationServers: []string{g.config.Issuer},
		DPoPAlgorithms: []string{"ES256"}, DPoPRequired: true, DetailsTypes: []string{capability.DetailType},
	})
}

// refuse writes a problem document (RFC 9457), or what a route has instead. A challenge without a nonce to go on with would be a dead end.
func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, route *Route, err error) {
	refusal, ok := errors.AsType[*api.Refusal](err)
	if !ok {
		g.log.Error("a request failed", "error", err)
		refusal = api.Refuse(api.Internal)
	}
	if refusal.Code == api.UseDPoPNonce && g.nonces.fresh(r.Context()) == "" {
		refusal = api.Refuse(api.Unavailable)
	}
	status := statusOf(refusal.Code)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", g.challenge(refusal))
	}
	if wait := refusal.Wait(); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	}
	problem := refusal.Problem(status)
	if route != nil {
		g.write(w, status, "application/json", route.Refusal(problem))
		return
	}
	g.write(w, status, "application/problem+json", problem)
}

// statusOf: at a resource what is wrong with a proof is answered by a challenge (RFC 9449 §7.1, §9).
func statusOf(c api.Code) int {
	switch c {
	case api.UseDPoPNonce, api.InvalidDPoPProof, api.ProofReplayed:
		return http.StatusUnauthorized
	}
	return c.Status()
}

// challenge is the only one of an answer, with error first: clients of RFC 9449 §9 look for exactly that. A request
// without credentials is told no error (RFC 6750 §3.1).
func (g *Guard) challenge(refusal *api.Refusal) string {
	rest := `algs="ES256", resource_metadata="` + g.metadataURL() + `"`
	if refusal == errNoCredential {
		return "DPoP " + rest
	}
	return `DPoP error="` + refusal.Code.OAuthError() + `", ` + rest
}

func (g *Guard) metadataURL() string {
	return g.config.URI[:len(g.config.URI)-len(g.path)] + api.PathResource + g.path
}

func (g *Guard) write(w http.ResponseWriter, status int, mediaType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		g.log.Error("an answer cannot be encoded", "error", err)
		status, body = http.StatusInternalServerError, nil
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writePatience)) // it may have taken long; where there is a connection
	g.writeHeader(w, status, mediaType)
	_, _ = w.Write(body)
}

func (g *Guard) writeHeader(w http.ResponseWriter, status int, mediaType string) {
	h := w.Header()
	if nonce := g.nonces.get(); nonce != "" {
		h.Set(api.HeaderNonce, nonce)
	}
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Access-Control-Expose-Headers", "DPoP-Nonce, WWW-Authenticate, "+HeaderEffect+", "+HeaderOutcome)
	w.WriteHeader(status)
}
