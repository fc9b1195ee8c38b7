package client

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/elapsed"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

const issuer = "https://authority.example"

// signer is a generation of the authority's key.
type signer struct {
	*capability.Key
	kid        string
	generation int64
}

func newSigner(t *testing.T, generation int64) signer {
	t.Helper()
	key, err := capability.GenerateKey()
	require.NoError(t, err)
	return signer{key, key.KeyID(), generation}
}

func (s signer) KeyID() string { return s.kid }

func (s signer) jwk() map[string]any {
	point, _ := s.Public().Bytes()
	return map[string]any{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": s.KeyID(), "generation": s.generation,
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:])}
}

// stand is a client and the authority that it asks, without a network between them, on clocks that only the test moves.
type stand struct {
	*Client
	t *testing.T

	mu         sync.Mutex
	now        time.Time
	up         time.Duration // since boot
	key        signer
	published  []signer
	decision   capability.DecisionClaims // what is answered; the challenge is the caller's
	challenges []string
	keysAsked  int
	// spoil changes an answer before it leaves, and roundTrip stands in for the network.
	spoil     func(answer *api.Decision, challenge string)
	roundTrip func(r *http.Request, answer func() *http.Response) (*http.Response, error)
}

func newStand(t *testing.T, changes ...func(*Config)) *stand {
	t.Helper()
	s := &stand{t: t, now: time.Now().Round(0), key: newSigner(t, 1), decision: open(1, 1, 1)}
	s.published = []signer{s.key}
	s.Client = s.newClient(changes...)
	return s
}

// newClient is another process of the product.
func (s *stand) newClient(changes ...func(*Config)) *Client {
	s.t.Helper()
	c := Config{Issuer: issuer, HTTP: &http.Client{Transport: s}, Now: func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	}}
	for _, change := range changes {
		change(&c)
	}
	client, err := New(c)
	require.NoError(s.t, err)
	client.watch = func() elapsed.Watch { return elapsed.StartOn(client.config.Now, s.sinceBoot) }
	return client
}

func (s *stand) sinceBoot() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

// open is an open decision of that place in the order.
func open(incarnation, epoch, sequence int64) capability.DecisionClaims {
	c := capability.DecisionClaims{Open: true, Incarnation: incarnation, Epoch: epoch, Sequence: sequence, Requirement: 1, ValidMS: 1800, SinceUnixMS: 1,
		InputsSHA256: strings.Repeat("A", 43)}
	for _, f := range always {
		c.Families = append(c.Families, capability.DecidedFamily{Family: f, Good: true, Instances: 1, Required: 1})
	}
	return c
}

// closed is a closed decision of that place in the order.
func closed(incarnation, epoch, sequence int64, reasons ...string) capability.DecisionClaims {
	c := open(incarnation, epoch, sequence)
	c.Open, c.ValidMS, c.Reasons = false, 0, reasons
	return c
}

func (s *stand) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// put lets something be answered from now on.
func (s *stand) put(change func(s *stand)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// asks sends one question and tells what the client makes of the answer.
func (s *stand) asks() State {
	s.ask(s.t.Context())
	return s.State()
}

func (s *stand) requireOpen() {
	s.t.Helper()
	state := s.asks()
	require.True(s.t, state.Open(), state.Why())
}

// RoundTrip is the network.
func (s *stand) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	roundTrip := s.roundTrip
	s.mu.Unlock()
	answer := func() *http.Response { return s.serve(r) }
	if roundTrip != nil {
		return roundTrip(r, answer)
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return answer(), nil
}

func (s *stand) serve(r *http.Request) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Scheme + "://" + r.URL.Host + r.URL.Path {
	case issuer + api.PathJWKS:
		s.keysAsked++
		keys := []any{}
		for _, k := range s.published {
			keys = append(keys, k.jwk())
		}
		return answerWith(http.StatusOK, map[string]any{"keys": keys})
	case issuer + api.PathReadiness:
		challenge := r.URL.Query().Get("challenge")
		s.challenges = append(s.challenges, challenge)
		c := s.decision
		c.Challenge = challenge
		a := api.Decision{Open: c.Open, Challenge: challenge, Families: []api.FamilyState{}, Signed: s.sign(c)}
		if s.spoil != nil {
			s.spoil(&a, challenge)
		}
		return answerWith(http.StatusOK, a)
	}
	return answerWith(http.StatusNotFound, map[string]any{})
}

// sign signs a decision as of now. Callers hold the lock.
func (s *stand) sign(c capability.DecisionClaims) string {
	life := capability.MaxDecisionLife
	if c.Open {
		life = time.Duration(c.ValidMS) * time.Millisecond
	}
	if c.Issuer == "" {
		c.Issuer = issuer
	}
	if c.IssuedAt == 0 {
		c.IssuedAt, c.Expires = s.now.Unix(), s.now.Add(life).Unix()
	}
	signed, err := capability.SignDecision(s.key, s.key.generation, c)
	require.NoError(s.t, err)
	return signed
}

func answerWith(status int, body any) *http.Response {
	text, ok := body.(string)
	if !ok {
		encoded, _ := json.Marshal(body)
		text = string(encoded)
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(text)))}
}
