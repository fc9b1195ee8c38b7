package guards

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// request is a worker's request, read and well-formed; nothing in it is verified.
type request struct {
	action string
	token  capability.Token
	proof  string
	body   operationBody
}

// operationBody is the body of POST …/operations/{action}.
type operationBody struct {
	resource   string
	parameters json.RawMessage
	amount     int64
	currency   string
}

var (
	errNoCredential = api.Refuse(api.InvalidToken) // RFC 6750 §3.1: nothing was sent, so the challenge names no error
	errMalformed    = api.Refuse(api.InvalidRequest)
)

// read takes everything that is acted on from the request, bounded, and refuses everything else in it (protocol P19).
func read(r *http.Request, action string) (*request, error) {
	token, err := capability.HeaderToken(r.Header)
	if errors.Is(err, capability.ErrNoToken) {
		return nil, errNoCredential
	}
	if err != nil {
		return nil, refusalOf(err)
	}
	proof, err := capability.HeaderProof(r.Header)
	if err != nil {
		return nil, refusalOf(err)
	}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	parsed, err := parseBody(body)
	if err != nil {
		return nil, err
	}
	return &request{action: action, token: token, proof: proof, body: parsed}, nil
}

func readBody(r *http.Request) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" || len(r.Header.Values("Content-Encoding")) > 0 {
		return nil, api.Refuse(api.UnsupportedMediaType)
	}
	if r.URL.RawQuery != "" {
		return nil, errMalformed
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, canonical.MaxSize+1))
	if err != nil {
		return nil, errMalformed
	}
	if len(body) > canonical.MaxSize {
		return nil, api.Refuse(api.PayloadTooLarge)
	}
	return body, nil
}

// parseBody wants resource and parameters, knows amount and currency, and refuses any other member, any member given
// twice and anything that two readers could read in two ways.
func parseBody(body []byte) (b operationBody, err error) {
	err = canonical.Members(body, func(name []byte, v canonical.Value) error {
		ok := false
		switch string(name) {
		case "resource":
			b.resource, ok = v.Text()
		case "parameters":
			b.parameters, ok = json.RawMessage(v.Raw), v.IsObject()
		case "amount":
			b.amount, ok = v.Int()
		case "currency":
			b.currency, ok = v.Text()
		}
		if !ok {
			return errMalformed
		}
		return nil
	})
	if err != nil || b.resource == "" || b.parameters == nil {
		return operationBody{}, errMalformed
	}
	return b, nil
}

// effect is what this request asks for, spelled by the guard: the capability is compared with it and never read for it.
func (g *Guard) effect(r *request) (e capability.Effect, params json.RawMessage, err error) {
	e = capability.Effect{Guard: g.config.URI, Action: r.action, Resource: r.body.resource, Amount: r.body.amount, Currency: r.body.currency}
	if e.ParamsDigest, params, err = capability.ParamsDigest(r.body.parameters); err != nil {
		return e, nil, errMalformed
	}
	target, err := g.config.Operations[r.action](params)
	if err != nil || target != (Target{Resource: e.Resource, Amount: e.Amount, Currency: e.Currency}) || e.Check() != nil {
		return e, nil, errMalformed
	}
	return e, params, nil
}

// The guard holds no nonce key (protocol P32): it challenges a proof without a nonce by itself, and one whose nonce the
// authority finds stale.
var (
	errNoNonce    = api.Refuse(api.UseDPoPNonce)
	errStaleNonce = api.Refuse(api.UseDPoPNonce)
)

// prove checks that whoever sent this request holds the capability's key (RFC 9449 §7.1). The URL is the registered one;
// Host and forwarded headers are not read.
func (g *Guard) prove(r *request, c *capability.EffectClaims) (*capability.Proof, error) {
	proof, err := capability.CheckProof(r.proof, capability.Expect{
		Method: http.MethodPost, URL: g.config.URI + operations + r.action, AccessToken: r.token,
		Holder: c.Confirmation.JKT, Now: g.config.Now(),
		Nonce: func(nonce string) error {
			if nonce == "" {
				return errNoNonce
			}
			return nil
		},
	})
	return proof, refusalOf(err)
}

// refusalOf gives the leaf's errors their codes.
func refusalOf(err error) error {
	proofError, ok := errors.AsType[*capability.ProofError](err)
	if !ok {
		return err
	}
	switch proofError.Code {
	case capability.CodeInvalidRequest:
		return errMalformed
	case capability.CodeInvalidToken:
		return api.Refuse(api.InvalidToken)
	default:
		return api.Refuse(api.InvalidDPoPProof)
	}
}
