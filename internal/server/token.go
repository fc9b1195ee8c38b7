package server

import (
	"io"
	"mime"
	"net/http"
	"net/url"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// token is the token endpoint (RFC 6749 §3.2): component, claim and mint.
func (s *Server) token(w http.ResponseWriter, r *http.Request) error {
	form, err := readForm(r)
	if err != nil {
		return err
	}
	if len(r.Header.Values(api.HeaderProof)) == 0 {
		return api.Refusef(api.InvalidRequest, "Send a DPoP proof: every token of this server is bound to a key.")
	}
	if len(r.Header.Values("Authorization")) != 0 {
		return api.Refusef(api.InvalidClient, "Authenticate with client_assertion in the body only.")
	}
	c, err := s.call(r)
	if err != nil {
		return err
	}
	answer, err := s.grant(r, c, form)
	if err != nil {
		return err
	}
	w.Header().Set("Pragma", "no-cache")
	return writeJSON(w, http.StatusOK, answer)
}

func (s *Server) grant(r *http.Request, c authority.Call, form map[string]string) (api.TokenResponse, error) {
	if want := form["requested_token_type"]; want != "" && want != api.TokenTypeAccess {
		return api.TokenResponse{}, api.Refusef(api.InvalidRequest, "Only access tokens are issued here.")
	}
	switch {
	case form["grant_type"] == api.GrantClientCredentials:
		assertion, err := clientAssertion(form)
		if err != nil {
			return api.TokenResponse{}, err
		}
		return s.authority.Component(r.Context(), c, form["client_id"], assertion)
	case form["grant_type"] != api.GrantTokenExchange:
		return api.TokenResponse{}, api.Refuse(api.UnsupportedGrantType)
	case form["subject_token_type"] == api.TokenTypeRunReference:
		assertion, err := clientAssertion(form)
		if err != nil {
			return api.TokenResponse{}, err
		}
		return s.authority.Claim(r.Context(), c, form["subject_token"], form["client_id"], assertion)
	case form["subject_token_type"] == api.TokenTypeAccess:
		if form["audience"] != "" && form["audience"] != form["resource"] {
			return api.TokenResponse{}, api.Refuse(api.InvalidTarget)
		}
		return s.authority.Mint(r.Context(), c, authority.MintRequest{Token: capability.Token(form["subject_token"]), Resource: form["resource"],
			Details: form["authorization_details"], Key: form["effect_key"], RepeatOf: form["repeat_of"]})
	}
	return api.TokenResponse{}, api.Refuse(api.InvalidGrant)
}

// clientAssertion is the projected token as client authentication (RFC 7523 §2.2).
func clientAssertion(form map[string]string) (authority.ClientAssertion, error) {
	a := authority.ClientAssertion{Type: form["client_assertion_type"], Token: capability.Token(form["client_assertion"])}
	if a.Token == "" || a.Type != api.AssertionJWTBearer && a.Type != api.AssertionJWTSPIFFE {
		return authority.ClientAssertion{}, api.Refuse(api.InvalidClient)
	}
	return a, nil
}

// readForm reads a form in which no parameter stands twice (RFC 6749 §3.2).
func readForm(r *http.Request) (map[string]string, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/x-www-form-urlencoded" {
		return nil, api.Refuse(api.UnsupportedMediaType)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, refusalOrBad(err)
	}
	values, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, api.Refuse(api.InvalidRequest)
	}
	form := make(map[string]string, len(values))
	for name, all := range values {
		if len(all) != 1 {
			return nil, api.Refusef(api.InvalidRequest, "A parameter stands twice in the form.")
		}
		form[name] = all[0]
	}
	return form, nil
}
