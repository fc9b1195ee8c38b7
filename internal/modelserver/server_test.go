package modelserver

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-little-0123456789"

func newServer(t *testing.T) (*Server, *httptest.Server) {
	t.Helper()
	s := New(Config{Key: key, Models: []string{"little"}})
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Let()
		h.CloseClientConnections()
		h.Close()
	})
	return s, h
}

func call(t *testing.T, h *httptest.Server, method, path, body, bearer string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", bearer)
	client := *h.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := client.Do(r)
	if err != nil {
		return nil, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return answer, string(text) + " … " + err.Error()
	}
	return answer, string(text)
}

const (
	chatBody     = `{"model":"little","max_tokens":3,"messages":[{"role":"user","content":"hello"}]}`
	streamBody   = `{"model":"little","max_tokens":3,"messages":[],"stream":true,"stream_options":{"include_usage":true}}`
	responseBody = `{"model":"little","max_output_tokens":3,"input":"hello"}`
)

func TestKeyIsRequired(t *testing.T) {
	t.Parallel()
	s, h := newServer(t)
	for _, bearer := range []string{"", "Bearer", "Bearer ", "Bearer wrong", key, "Basic " + key, "bearer " + key} {
		for _, path := range []string{"/v1/models", "/v1/chat/completions", "/elsewhere"} {
			answer, _ := call(t, h, http.MethodPost, path, chatBody, bearer)
			require.Equal(t, http.StatusUnauthorized, answer.StatusCode, "%q", bearer)
		}
	}
	require.Zero(t, s.Asked())
}

func TestWhatIsNoCallIsRefused(t *testing.T) {
	t.Parallel()
	s, h := newServer(t)
	for body, status := range map[string]int{"": 400, "{": 400, `{"model":"large"}`: 404, `{}`: 404} {
		answer, _ := call(t, h, http.MethodPost, "/v1/chat/completions", body, "Bearer "+key)
		require.Equal(t, status, answer.StatusCode, body)
	}
	require.Empty(t, s.Calls())
}

func TestSameCallHasTheSameAnswer(t *testing.T) {
	t.Parallel()
	s, h := newServer(t)
	for path, body := range map[string]string{"/v1/chat/completions": chatBody, "/v1/responses": responseBody} {
		answer, first := call(t, h, http.MethodPost, path, body, "Bearer "+key)
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Contains(t, first, "The answer of")
		_, second := call(t, h, http.MethodPost, path, body, "Bearer "+key)
		require.Equal(t, first, second)
	}
	require.Len(t, s.Calls(), 4)
	for _, c := range s.Calls() {
		require.Equal(t, int64(3), c.Output)
		require.Positive(t, c.Input)
	}
	_, list := call(t, h, http.MethodGet, "/v1/models", "", "Bearer "+key)
	require.Contains(t, list, `"id":"little"`)
}

func TestStreamTellsItsUsage(t *testing.T) {
	t.Parallel()
	s, h := newServer(t)
	answer, text := call(t, h, http.MethodPost, "/v1/chat/completions", streamBody, "Bearer "+key)
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	require.True(t, strings.HasSuffix(text, "data: [DONE]\n\n"))
	usage, err := json.Marshal(chatUsage(s.Calls()[0]))
	require.NoError(t, err)
	require.Contains(t, text, string(usage))
	_, text = call(t, h, http.MethodPost, "/v1/responses", strings.Replace(responseBody, "{", `{"stream":true,`, 1), "Bearer "+key)
	require.Contains(t, text, "event: response.completed\n")
	require.Contains(t, text, `"input_tokens"`)
}

func TestFaultsAreFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  Fault
		body   string
		status int // 0: no answer
		says   string
	}{
		"unauthorized": {Unauthorized, chatBody, 401, key},
		"limited":      {Limited, chatBody, 429, Secrets[0]},
		"failing":      {Failing, chatBody, 500, Secrets[1]},
		"overloaded":   {Overloaded, chatBody, 503, key},
		"moved":        {Moved, chatBody, 307, ""},
		"hung up":      {HangUp, chatBody, 0, "EOF"},
		"broken":       {Broken, chatBody, 200, "unexpected EOF"},
		"cut":          {Broken, streamBody, 200, "unexpected EOF"},
		"undone":       {Undone, streamBody, 200, "data: "},
		"no usage":     {NoUsage, chatBody, 200, "choices"},
		"zero":         {ZeroUsage, chatBody, 200, `"total_tokens":0`},
		"negative":     {NegativeUsage, chatBody, 200, `"prompt_tokens":-5`},
		"absurd":       {AbsurdUsage, chatBody, 200, `"prompt_tokens":4503599627370496`},
		"overrun":      {Overrun, chatBody, 200, `"completion_tokens":300`},
		"other":        {Other, chatBody, 200, "cheaper-model"},
		"dated":        {Dated, chatBody, 200, "little-2026-01-01"},
		"garbage":      {Garbage, chatBody, 200, "<html>"},
		"complaint":    {Complaining, chatBody, 200, Secrets[0]},
		"in a stream":  {Complaining, streamBody, 200, Secrets[0]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, h := newServer(t)
			s.Set(c.fault)
			answer, text := call(t, h, http.MethodPost, "/v1/chat/completions", c.body, "Bearer "+key)
			require.Contains(t, text, c.says)
			if c.status == 0 {
				require.Nil(t, answer)
				return
			}
			require.Equal(t, c.status, answer.StatusCode)
			switch c.fault {
			case NoUsage:
				require.NotContains(t, text, "usage")
			case Undone:
				require.NotContains(t, text, "[DONE]")
			}
		})
	}
}

func TestHeldCallsAreLetGo(t *testing.T) {
	t.Parallel()
	s, h := newServer(t)
	s.Set(Slow)
	done := make(chan string)
	go func() {
		_, text := call(t, h, http.MethodPost, "/v1/chat/completions", streamBody, "Bearer "+key)
		done <- text
	}()
	for {
		s.Let()
		select {
		case text := <-done:
			require.Contains(t, text, "[DONE]")
			return
		default:
		}
	}
}

func TestKeyIsSaidInTwelveWays(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	for _, e := range Encodings(key + "/+ ") {
		said[e] = true
	}
	require.Len(t, said, 12)
	s, h := newServer(t)
	s.Set(Echo)
	_, text := call(t, h, http.MethodPost, "/v1/chat/completions", chatBody, "Bearer "+key)
	require.Contains(t, text, key)
}
