package authoritytest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Body is what a worker sends to a guard.
type Body struct {
	Resource   string          `json:"resource"`
	Parameters json.RawMessage `json:"parameters"`
	Amount     int64           `json:"amount,omitempty"`
	Currency   string          `json:"currency,omitempty"`
}

// Worker is one honest holder of a key; tests spoil its requests.
type Worker struct {
	Key   *capability.Key
	Nonce string // the last that the guard gave
}

// NewWorker makes a worker that has a first nonce, as a mint answer brings one.
func NewWorker(a *Authority) *Worker {
	key, err := capability.GenerateKey()
	if err != nil {
		panic(err)
	}
	return &Worker{Key: key, Nonce: a.Nonce(GuardURI)}
}

// EffectOf is the effect of a body.
func EffectOf(action string, b Body) capability.Effect {
	digest, _, err := capability.ParamsDigest(b.Parameters)
	if err != nil {
		panic(err)
	}
	return capability.Effect{Guard: GuardURI, Action: action, Resource: b.Resource, ParamsDigest: digest, Amount: b.Amount, Currency: b.Currency}
}

// Proof makes a proof for an action.
func (w *Worker) Proof(action string, token capability.Token, changes ...func(*capability.ProofParams)) string {
	p := capability.ProofParams{Method: http.MethodPost, URL: GuardURI + "/operations/" + action, Nonce: w.Nonce, AccessToken: token, Now: time.Now()}
	for _, change := range changes {
		change(&p)
	}
	proof, err := capability.NewProof(w.Key, p)
	if err != nil {
		panic(err)
	}
	return proof
}

// Request makes a request to the guard.
func (w *Worker) Request(action string, token capability.Token, body any) *http.Request {
	encoded, ok := body.([]byte)
	if !ok {
		encoded, _ = json.Marshal(body)
	}
	r := httptest.NewRequest(http.MethodPost, "/ledger/operations/"+action, bytes.NewReader(encoded))
	r.Host = "internal.example:8443" // never believed
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "DPoP "+token.Reveal())
	r.Header.Set("DPoP", w.Proof(action, token))
	return r
}

// Answer is what came back.
type Answer struct {
	Status    int
	Header    http.Header
	Text      string
	Problem   api.Problem
	Effect    string          `json:"effect"`
	Outcome   string          `json:"outcome"`
	Result    json.RawMessage `json:"result"`
	Reason    api.Code        `json:"reason"`
	Challenge []string
}

// Do sends a request and remembers the nonce that it brings.
func (w *Worker) Do(guard http.Handler, r *http.Request) Answer {
	recorder := httptest.NewRecorder()
	guard.ServeHTTP(recorder, r)
	a := Answer{Status: recorder.Code, Header: recorder.Header(), Text: recorder.Body.String(), Challenge: recorder.Header().Values("WWW-Authenticate")}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(recorder.Body.Bytes(), &a.Problem)
	} else {
		_ = json.Unmarshal(recorder.Body.Bytes(), &a)
	}
	if nonce := a.Header.Get(api.HeaderNonce); nonce != "" {
		w.Nonce = nonce
	}
	return a
}
