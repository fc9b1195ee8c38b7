package server_test

import (
	"encoding/base64"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

func rawURL(s string) ([]byte, error) { return base64.RawURLEncoding.DecodeString(s) }

func callOf(h *authoritytest.House, proof string) authority.Call {
	return authority.Call{Proof: proof, Method: "POST", URL: h.URL + api.PathNonces}
}
