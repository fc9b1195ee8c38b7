package model

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
	"github.com/nightwarrant/nightwarrant/guards/internal/processtest"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
)

const conformanceFile = `kind: model
base_url: %s/v1
currency: EUR
models: [{id: little, version: "2026-01-01", input_price: 10, output_price: 1000000}]
credential: {env: MODEL_KEY}
allow_private: [127.0.0.0/8]
timeout: 10s
`

// TestConformance runs the guard as it is shipped, in processes that are killed.
func TestConformance(t *testing.T) {
	provider := processtest.NewUpstream(t, modelserver.New(modelserver.Config{Key: key, Models: []string{little}}))
	guardtest.Run(t, guardtest.Guard{
		Start:   processtest.Program{Binary: testbinary.Nightwarrant(t), File: fmt.Sprintf(conformanceFile, provider.URL), Journal: true, Env: []string{"MODEL_KEY=" + key}}.Start,
		Effect:  func(n int) guardtest.Effect { return modelEffect(t, provider.URL+"/v1", n) },
		Applied: provider.Applied, HoldBefore: provider.HoldBefore, HoldAfter: provider.HoldAfter, Secrets: []string{key}, Kills: processtest.Kills,
	})
}

// modelEffect is a request of a stock client; every other one is a stream.
func modelEffect(t *testing.T, baseURL string, n int) guardtest.Effect {
	more := ""
	if n%2 == 0 {
		more = streamed
	}
	body := []byte(fmt.Sprintf(`{"model":"little","max_tokens":5,"messages":[{"role":"user","content":"effect-%d"}]%s}`, n, more))
	header := http.Header{HeaderMaxCost: {"50 EUR"}, HeaderRequest: {"text"}}
	params, err := parameters(baseURL, dialects[ChatComplete], header, body)
	assert.NoError(t, err)
	return guardtest.Effect{Action: ChatComplete, Resource: URL(baseURL, little), Parameters: params, Amount: 50, Currency: "EUR",
		Path: "/v1/chat/completions", Header: header, Body: body}
}
