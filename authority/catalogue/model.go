package catalogue

import (
	"encoding/json"
	"errors"
	"slices"
)

// maxRequest bounds a request to a model that stands in the parameters, in
// bytes: its owner can be asked about it. A longer one is named by its digest.
const maxRequest = 48 << 10

// models are the actions of a guard before a language model. A call sends what
// the run knows to somebody else and costs money, so it is no reading.
var models = []Action{
	model("chat.complete", "Ask a model for the next message of a conversation"),
	model("response.create", "Ask a model for a response"),
}

// compiled is every catalogue. No mutation may be Read (mission B6).
var compiled = slices.Concat(rows, models)

func model(name, title string) Action {
	return Action{Kind: Model, Name: name, Risk: Low, Title: title, Schema: modelSchema, form: "model/v1", target: modelTarget}
}

// ModelCall is the parameters of an action of a model guard. The request is the
// very bytes of the body that is sent: as text, or named by digest and length.
type ModelCall struct {
	Model           string `json:"model"`             // URL of the model: base URL, /models/ and its id
	MaxOutputTokens int64  `json:"max_output_tokens"` // 1 to 1,000,000
	MaxCost         int64  `json:"max_cost"`          // minor units of Currency, what is reserved
	Currency        string `json:"currency"`
	Request         string `json:"request,omitempty"`
	RequestSHA256   string `json:"request_sha256,omitempty"` // base64url
	RequestBytes    int64  `json:"request_bytes,omitempty"`
}

var modelSchema = schemaOf(map[string]any{
	"model":             map[string]any{"type": "string", "maxLength": maxURL},
	"max_output_tokens": map[string]any{"type": "integer", "minimum": 1, "maximum": 1_000_000},
	"max_cost":          map[string]any{"type": "integer", "minimum": 1, "maximum": MaxAmount},
	"currency":          map[string]any{"type": "string", "pattern": currencyForm.String()},
	"request":           map[string]any{"type": "string", "minLength": 2, "maxLength": maxRequest},
	"request_sha256":    map[string]any{"type": "string", "pattern": "^[A-Za-z0-9_-]{43}$"},
	"request_bytes":     map[string]any{"type": "integer", "minimum": 1, "maximum": 16 << 20},
}, []string{"model", "max_output_tokens", "max_cost", "currency"})

var modelParameters = compileConstant(modelSchema)

func modelTarget(params json.RawMessage) (Target, error) {
	if err := modelParameters.check(params); err != nil {
		return Target{}, err
	}
	var c ModelCall
	if err := json.Unmarshal(params, &c); err != nil {
		return Target{}, errors.New("parameters cannot be read")
	}
	if err := checkURL(c.Model); err != nil {
		return Target{}, errors.New(`"model" must be the URL of a model`)
	}
	whole, digest := c.Request != "", c.RequestSHA256 != "" && c.RequestBytes > 0
	if whole == digest || whole && (c.RequestSHA256 != "" || c.RequestBytes != 0) || len(c.Request) > maxRequest {
		return Target{}, errors.New("the request must be given either as text or by its digest and length")
	}
	return Target{Resource: c.Model, Amount: c.MaxCost, Currency: c.Currency}, nil
}
