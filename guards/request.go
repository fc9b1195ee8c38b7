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
	entry
	http  *http.Request
	token capability.Token
	proof string
	body  operationBody // of the guards' own spelling
	raw   []byte        // of a route
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
func read(r *http.Request, e entry) (*request, error) {
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
	req := &request{entry: e, http: r, token: token, proof: proof}
	if e.route != nil {
		return req, nil
	}
	body, err := req.readBody(canonical.MaxSize)
	if err != nil {
		return nil, err
	}
	req.body, err = parseBody(body)
	return req, err
}

func (r *request) readBody(most int) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(r.http.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" || len(r.http.Header.Values("Content-Encoding")) > 0 {
		return nil, api.Refuse(api.UnsupportedMediaType)
	}
	if r.http.URL.RawQuery != "" {
		return nil, errMalformed
	}
	if r.http.ContentLength > int64(most) {
		return nil, api.Refuse(api.PayloadTooLarge)
	}
	body, err := io.ReadAll(io.LimitReader(r.http.Body, int64(most)+1))
	if err != nil {
		return nil, errMalformed
	}
	if len(body) > most {
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
	if params, err = r.parameters(); err != nil {
		return e, nil, err
	}
	digest, params, err := capability.ParamsDigest(params)
	if err != nil {
		return e, nil, errMalformed
	}
	target, err := g.config.Operations[r.action](params)
	e = capability.Effect{Guard: g.config.URI, Action: r.action, Resource: target.Resource, ParamsDigest: digest, Amount: target.Amount, Currency: target.Currency}
	if err != nil || r.route == nil && target != r.body.target() || e.Check() != nil {
		return e, nil, errMalformed
	}
	return e, params, nil
}

func (b operationBody) target() Target {
	return Target{Resource: b.resource, Amount: b.amount, Currency: b.currency}
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
		Method: http.MethodPost, URL: g.config.URI + r.path, AccessToken: r.token,
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
