package guards

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

const (
	routePath = "/v1/transfers"
	letter    = `{"to":"alice","rate":1.5}`
)

// letters is a protocol of its own: the amount stands in a header, and the body may hold what parameters must not.
var letters = Route{
	Action: "transfer", MaxBody: 100, Header: http.Header{"X-Letters": {"yes"}},
	Read: func(h http.Header, body []byte) (json.RawMessage, error) {
		var l struct {
			To string `json:"to"`
		}
		if err := json.Unmarshal(body, &l); err != nil {
			return nil, err
		}
		if l.To == "" {
			return nil, api.Refusef(api.InvalidRequest, "Name somebody.")
		}
		return json.RawMessage(fmt.Sprintf(`{"to":%q,"cents":%s}`, l.To, h.Get("X-Cents"))), nil
	},
	Refusal: func(p api.Problem) any {
		return map[string]string{"letters": string(p.Code), "says": p.ErrorDescription}
	},
}

// newRoutes is a stand whose guard has a route.
func newRoutes(t *testing.T) *stand {
	t.Helper()
	s := newStand(t)
	s.guard = s.newGuard(t, func(c *Config) { c.Routes = map[string]Route{routePath: letters} })
	return s
}

func (s *stand) letter() (*http.Request, string) {
	params := json.RawMessage(`{"to":"alice","cents":7}`)
	token, ref := s.mint("transfer", authoritytest.Body{Resource: "account:alice", Parameters: params, Amount: 7, Currency: "EUR"})
	return s.send(token, letter), ref
}

func (s *stand) send(token capability.Token, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/ledger"+routePath, strings.NewReader(body))
	r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"DPoP " + token.Reveal()}, "X-Cents": {"7"},
		"Dpop": {s.worker.Proof("", token, func(p *capability.ProofParams) { p.URL = authoritytest.GuardURI + routePath })}}
	return r
}

func (s *stand) requireLetter(t *testing.T, r *http.Request, status int, code api.Code) authoritytest.Answer {
	t.Helper()
	answer := s.do(r)
	require.Equal(t, status, answer.Status, answer.Text)
	require.Contains(t, answer.Text, fmt.Sprintf(`"letters":%q`, code))
	require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
	require.Equal(t, "yes", answer.Header.Get("X-Letters"))
	return answer
}

func TestRouteThatLeadsNowhereIsNone(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for name, change := range map[string]func(path *string, r *Route){
		"an operation's path": func(path *string, _ *Route) { *path = "/operations/transfer" },
		"no slash":            func(path *string, _ *Route) { *path = "v1" },
		"a slash at its end":  func(path *string, _ *Route) { *path = "/v1/" },
		"dots":                func(path *string, _ *Route) { *path = "/v1/.." },
		"no such action":      func(_ *string, r *Route) { r.Action = "row.drop" },
		"nobody reads":        func(_ *string, r *Route) { r.Read = nil },
		"nobody refuses":      func(_ *string, r *Route) { r.Refusal = nil },
		"no bound":            func(_ *string, r *Route) { r.MaxBody = 0 },
	} {
		path, route := routePath, letters
		change(&path, &route)
		c := s.config(t)
		c.Routes = map[string]Route{path: route}
		_, err := New(c)
		require.ErrorContains(t, err, "is not a route", name)
	}
}

func TestRouteRefusesInItsOwnWords(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil  func(s *stand, r *http.Request)
		status int
		code   api.Code
	}{
		"no capability":    {func(_ *stand, r *http.Request) { r.Header.Del("Authorization") }, 401, api.InvalidToken},
		"a bearer":         {func(_ *stand, r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, 401, api.InvalidToken},
		"no proof":         {func(_ *stand, r *http.Request) { r.Header.Del("Dpop") }, 401, api.InvalidDPoPProof},
		"not JSON":         {func(_ *stand, r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415, api.UnsupportedMediaType},
		"compressed":       {func(_ *stand, r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, 415, api.UnsupportedMediaType},
		"a query":          {func(_ *stand, r *http.Request) { r.URL.RawQuery = "to=bob" }, 400, api.InvalidRequest},
		"another amount":   {func(_ *stand, r *http.Request) { r.Header.Set("X-Cents", "8") }, 403, api.EffectMismatch},
		"no amount":        {func(_ *stand, r *http.Request) { r.Header.Del("X-Cents") }, 400, api.InvalidRequest},
		"another body":     {func(_ *stand, r *http.Request) { r.Body = io.NopCloser(strings.NewReader(`{"to":"bob"}`)) }, 403, api.EffectMismatch},
		"a malformed body": {func(_ *stand, r *http.Request) { r.Body = io.NopCloser(strings.NewReader(`{`)) }, 400, api.InvalidRequest},
		"a large body":     {func(_ *stand, r *http.Request) { r.Body = io.NopCloser(strings.NewReader(strings.Repeat(" ", 101))) }, 413, api.PayloadTooLarge},
		"a long body":      {func(_ *stand, r *http.Request) { r.ContentLength = 1 << 40 }, 413, api.PayloadTooLarge},
		"a body that breaks": {func(_ *stand, r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), noBody{}))
		}, 400, api.InvalidRequest},
		"GET": {func(_ *stand, r *http.Request) { r.Method = http.MethodGet }, 405, api.MethodNotAllowed},
		"the ledger's no": {func(s *stand, _ *http.Request) { s.ledger.refuse = api.Refuse(api.CredentialUnavailable) }, 503,
			api.CredentialUnavailable},
		"the authority's no": {func(s *stand, _ *http.Request) { s.authority.Verdicts[api.PathAdmit] = api.ConsentEnded }, 410, api.ConsentEnded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRoutes(t)
			r, ref := s.letter()
			c.spoil(s, r)
			s.requireLetter(t, r, c.status, c.code)
			s.requireUntouched(t, ref)
		})
	}
}

type noBody struct{}

func (noBody) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestRefusalOfARouteHasItsSentence(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	r, ref := s.letter()
	r.Body = io.NopCloser(strings.NewReader(`{}`))
	require.Contains(t, s.requireLetter(t, r, 400, api.InvalidRequest).Text, "Name somebody.")
	s.requireUntouched(t, ref)
}

// TestBodyOfARouteIsReadForNobodyElse: it may be large, and is read only for who holds a capability and its key.
func TestBodyOfARouteIsReadForNobodyElse(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	read := false
	for _, spoil := range []func(r *http.Request){
		func(r *http.Request) { r.Header.Set("Authorization", "DPoP a.b.c") },
		func(r *http.Request) { r.Header.Set("Dpop", authoritytest.NewWorker(s.authority).Proof("", "x")) },
	} {
		r, ref := s.letter()
		r.Body = io.NopCloser(readerFunc(func([]byte) (int, error) { read = true; return 0, io.EOF }))
		spoil(r)
		require.Equal(t, http.StatusUnauthorized, s.do(r).Status)
		s.requireUntouched(t, ref)
	}
	require.False(t, read)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestProofIsForOneEntry: the same effect has two entries, and a proof for one is none for the other.
func TestProofIsForOneEntry(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	params := json.RawMessage(`{"to":"alice","cents":7}`)
	body := authoritytest.Body{Resource: "account:alice", Parameters: params, Amount: 7, Currency: "EUR"}
	token, ref := s.mint("transfer", body)
	r := s.send(token, letter)
	r.Header.Set("Dpop", s.worker.Proof("transfer", token))
	s.requireLetter(t, r, 401, api.InvalidDPoPProof)
	own := s.worker.Request("transfer", token, body)
	own.Header.Set("Dpop", s.send(token, letter).Header.Get("Dpop"))
	require.Equal(t, api.InvalidDPoPProof, s.do(own).Problem.Code)
	s.requireUntouched(t, ref)
}

func TestRouteChallengesForANonce(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	r, ref := s.letter()
	s.authority.Forget()
	answer := s.requireLetter(t, r, 401, api.UseDPoPNonce)
	require.True(t, strings.HasPrefix(answer.Challenge[0], `DPoP error="use_dpop_nonce", `))
	s.requireUntouched(t, ref)
	s.worker.Nonce = answer.Header.Get(api.HeaderNonce)
	again := s.send(capability.Token(strings.TrimPrefix(r.Header.Get("Authorization"), "DPoP ")), letter)
	require.Equal(t, http.StatusOK, s.do(again).Status)
}

func TestRouteAnswersWithTheResultAlone(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	r, ref := s.letter()
	answer := s.do(r)
	require.Equal(t, http.StatusOK, answer.Status, answer.Text)
	require.JSONEq(t, `{"rows":1}`, answer.Text)
	require.Equal(t, ref, answer.Header.Get(HeaderEffect))
	require.Equal(t, "committed", answer.Header.Get(HeaderOutcome))
	require.NotEmpty(t, answer.Header.Get(api.HeaderNonce))
	require.Equal(t, "committed", s.authority.Effect(ref).State)
	require.Equal(t, letter, string(s.ledger.applied[0].Body))
	require.JSONEq(t, `{"to":"alice","cents":7}`, string(s.ledger.applied[0].Params))
	require.Empty(t, s.authority.Wrong)
}

func TestRouteTellsEveryEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ending Ending
		status int
		code   api.Code
	}{
		"not applied":           {Ending{Outcome: NotApplied, Reason: api.TooManyRequests}, 429, api.TooManyRequests},
		"not applied, no code":  {Ending{Outcome: NotApplied}, 503, api.Unavailable},
		"ambiguous":             {Ending{Outcome: Ambiguous, Evidence: &api.Evidence{Answered: api.AnsweredTimeout}}, 409, api.EffectAmbiguous},
		"committed, no answer":  {Ending{Outcome: Committed}, 409, api.EffectSettled},
		"not an answer to give": {Ending{Outcome: Ambiguous, Result: json.RawMessage(`{"a":1}`)}, 409, api.EffectAmbiguous},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRoutes(t)
			s.ledger.end = func(Admitted) (Ending, error, bool) { return c.ending, nil, true }
			r, ref := s.letter()
			answer := s.requireLetter(t, r, c.status, c.code)
			require.Equal(t, ref, answer.Header.Get(HeaderEffect))
			require.Equal(t, string(c.ending.Outcome), answer.Header.Get(HeaderOutcome))
			require.Equal(t, string(c.ending.Outcome), s.authority.Effect(ref).State)
		})
	}
}

// served is the guard behind a real connection.
func (s *stand) served(t *testing.T, r *http.Request) *http.Response {
	t.Helper()
	server := httptest.NewServer(s.guard)
	t.Cleanup(server.Close)
	sent, err := http.NewRequestWithContext(t.Context(), r.Method, server.URL+r.URL.Path, r.Body)
	require.NoError(t, err)
	sent.Header = r.Header
	answer, err := server.Client().Do(sent)
	require.NoError(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

func TestRouteAnswersWhileItIsApplied(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	goOn := make(chan struct{})
	s.ledger.end = func(a Admitted) (Ending, error, bool) {
		a.Reply.Begin("text/event-stream")
		_, _ = io.WriteString(a.Reply, "data: 1\n\n")
		<-goOn
		_, _ = io.WriteString(a.Reply, "data: 2\n\n")
		spent := int64(3)
		return Ending{Outcome: Committed, Spent: &spent, Result: json.RawMessage(`{"not":"told"}`)}, nil, true
	}
	r, ref := s.letter()
	answer := s.served(t, r)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	require.Equal(t, ref, answer.Header.Get(HeaderEffect))
	require.Empty(t, answer.Header.Get(HeaderOutcome))
	body := bufio.NewReader(answer.Body)
	line, err := body.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: 1\n", line)
	require.Equal(t, "admitted", s.authority.Effect(ref).State)
	close(goOn)
	rest, err := io.ReadAll(body)
	require.NoError(t, err)
	require.Equal(t, "\ndata: 2\n\n", string(rest))
	require.Equal(t, "committed", answer.Trailer.Get(HeaderOutcome))
	require.Equal(t, "committed", s.authority.Effect(ref).State)
	require.Equal(t, int64(3), *s.authority.Effect(ref).Spent)
}

// TestWorkerThatHangsUpIsStillSettled: what it does not read is dropped.
func TestWorkerThatHangsUpIsStillSettled(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	gone := make(chan struct{})
	s.ledger.end = func(a Admitted) (Ending, error, bool) {
		a.Reply.Begin("text/event-stream")
		_, _ = io.WriteString(a.Reply, "data: 1\n\n")
		<-gone
		for range 1000 {
			if n, err := a.Reply.Write(make([]byte, 10000)); n != 10000 || err != nil {
				return Ending{}, errors.New("a reply never fails"), true
			}
		}
		return Ending{Outcome: Committed}, nil, true
	}
	r, ref := s.letter()
	answer := s.served(t, r)
	_, err := answer.Body.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	close(gone)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, s.authority.Await(ctx, func() bool { return s.authority.Effects[ref].State == "committed" }))
}

// slowWorker takes nine seconds for each piece, which is just in time.
type slowWorker struct {
	*httptest.ResponseRecorder
	writes int
}

func (w *slowWorker) Write(p []byte) (int, error) {
	w.writes++
	time.Sleep(9 * time.Second)
	return w.ResponseRecorder.Write(p)
}

// TestWorkerThatReadsSlowlyIsGivenUp: a slot is not its to keep.
func TestWorkerThatReadsSlowlyIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &slowWorker{ResponseRecorder: httptest.NewRecorder()}
		r := &reply{w: w}
		for range 1000 {
			n, err := r.Write([]byte("data: 1\n\n"))
			require.NoError(t, err)
			require.Equal(t, 9, n)
		}
		require.Equal(t, 4, w.writes)
	})
}

// TestAnswerThatBrokeOffNamesNoOutcome: nobody knows it yet, and nothing is added to what was begun.
func TestAnswerThatBrokeOffNamesNoOutcome(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"an error": func() error { return errors.New("lost") },
		"a panic":  func() error { panic("lost") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRoutes(t)
			s.ledger.end = func(a Admitted) (Ending, error, bool) {
				a.Reply.Begin("text/event-stream")
				_, _ = io.WriteString(a.Reply, "data: 1\n\n")
				return Ending{}, fail(), true
			}
			r, ref := s.letter()
			answer := s.served(t, r)
			body, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			require.Equal(t, "data: 1\n\n", string(body))
			require.Empty(t, answer.Trailer.Get(HeaderOutcome))
			require.Equal(t, "admitted", s.authority.Effect(ref).State)
			require.Len(t, s.guard.orphans(), 1, "the sweep will find out")
		})
	}
}

func TestRouteOfAnotherNameIsNotFound(t *testing.T) {
	t.Parallel()
	s := newRoutes(t)
	for _, path := range []string{"/ledger/v1/transfers/", "/ledger/v1/Transfers", "/v1/transfers", "/ledger//v1/transfers", "/ledger/v1%2Ftransfers"} {
		r, ref := s.letter()
		r.URL.Path, r.URL.RawPath = strings.ReplaceAll(path, "%2F", "/"), path
		require.Equal(t, api.NotFound, s.do(r).Problem.Code, path)
		s.requireUntouched(t, ref)
	}
}
