package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Metadata is the issuer's metadata (RFC 8414 §2).
type Metadata struct {
	Issuer          string   `json:"issuer"`
	TokenEndpoint   string   `json:"token_endpoint"`
	Keys            string   `json:"jwks_uri"`
	ResponseTypes   []string `json:"response_types_supported"`
	GrantTypes      []string `json:"grant_types_supported"`
	AuthMethods     []string `json:"token_endpoint_auth_methods_supported"`
	AuthAlgorithms  []string `json:"token_endpoint_auth_signing_alg_values_supported"`
	ProofAlgorithms []string `json:"dpop_signing_alg_values_supported"`
	DetailTypes     []string `json:"authorization_details_types_supported"`
}

// KeySet is a JWK set (RFC 7517 §5).
type KeySet struct {
	Keys []map[string]any `json:"keys"`
}

func metadataOf(origin string) Metadata {
	return Metadata{Issuer: origin, TokenEndpoint: origin + api.PathToken, Keys: origin + api.PathJWKS,
		ResponseTypes: []string{}, GrantTypes: []string{api.GrantClientCredentials, api.GrantTokenExchange},
		AuthMethods: []string{"private_key_jwt"}, AuthAlgorithms: []string{"RS256", "ES256"}, ProofAlgorithms: []string{"ES256"},
		DetailTypes: []string{api.DetailTypeEffect}}
}

func (s *Server) metadata(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Cache-Control", "public, max-age=60")
	return writeJSON(w, http.StatusOK, metadataOf(s.origin))
}

func (s *Server) jwks(w http.ResponseWriter, r *http.Request) error {
	set, keep, err := s.authority.JWKS(r.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(keep.Seconds())))
	w.Header().Set("Content-Type", "application/jwk-set+json")
	_, _ = w.Write(set) // the caller may be gone
	return nil
}

// body makes the handler of a /v1 call that has a capability, a JSON body and a JSON answer.
func body[In, Out any](s *Server, act func(context.Context, authority.Call, capability.Token, In) (Out, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, token, err := s.bearer(r)
		if err != nil {
			return err
		}
		var in In
		if err := readJSON(r, &in); err != nil {
			return err
		}
		out, err := act(r.Context(), c, token, in)
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, out)
	}
}

func (s *Server) nonces(ctx context.Context, c authority.Call, token capability.Token, r api.NoncesRequest) (api.Nonces, error) {
	return s.authority.Nonces(ctx, c, token, r.Count)
}

func (s *Server) unsettled(w http.ResponseWriter, r *http.Request) error {
	c, token, err := s.bearer(r)
	if err != nil {
		return err
	}
	out, err := s.authority.Unsettled(r.Context(), c, token)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) effect(w http.ResponseWriter, r *http.Request) error {
	c, token, err := s.bearer(r)
	if err != nil {
		return err
	}
	out, err := s.authority.EffectStatus(r.Context(), c, token, r.PathValue("reference"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *Server) report(w http.ResponseWriter, r *http.Request) error {
	c, token, err := s.bearer(r)
	if err != nil {
		return err
	}
	var in api.Report
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if err := s.authority.Report(r.Context(), c, token, r.PathValue("family"), in); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readJSON reads one strict JSON object. An empty body is an empty object.
func readJSON(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return refusalOrBad(err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return api.Refuse(api.UnsupportedMediaType)
	}
	if canonical.Decode(text, into) != nil {
		return api.Refusef(api.InvalidRequest, "The body must be one JSON object with exactly the members that the API reference names.")
	}
	return nil
}

// refusalOrBad keeps a body that was too large apart from one that broke off.
func refusalOrBad(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return err
	}
	return api.Refuse(api.InvalidRequest)
}
