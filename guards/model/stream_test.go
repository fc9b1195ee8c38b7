package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/scrub"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
)

// TestStreamThatBreaksOffIsCommitted: that the provider began to answer proves that the call happened (A10 has nothing to
// hold back), and not how much it used: all that was reserved is charged. The worker is told that the end is missing.
func TestStreamThatBreaksOffIsCommitted(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]modelserver.Fault{
		"cut": modelserver.Broken, "ended too early": modelserver.Undone, "endless": modelserver.Endless, "stopped": modelserver.Slow,
	} {
		for _, a := range []ask{chat(5, streamed), response(5, `,"stream":true`)} {
			t.Run(name+a.path, func(t *testing.T) {
				t.Parallel()
				s := newStand(t, func(c *Config) { c.MaxAnswer, c.Timeout = 64<<10, time.Second })
				s.provider.Set(fault)
				got := s.do(t, a)
				require.Equal(t, http.StatusOK, got.StatusCode, got.text)
				require.Contains(t, got.text, `"code":"answer_incomplete"`)
				require.NotContains(t, got.text, "[DONE]")
				require.Equal(t, "committed", got.Trailer.Get(guards.HeaderOutcome))
				e := s.effect(got.ref)
				require.Equal(t, api.Committed, e.State)
				require.True(t, e.Spent == nil || *e.Spent == 50, "all that was reserved")
				s.requireQuiet(t, got)
			})
		}
	}
}

// TestSilentProviderIsAmbiguous: it took the request, and nobody knows more.
func TestSilentProviderIsAmbiguous(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *Config) { c.Timeout = time.Second })
	s.provider.Set(modelserver.Silent)
	got := s.do(t, chat(5, streamed))
	require.Equal(t, http.StatusConflict, got.StatusCode)
	require.Equal(t, string(api.EffectAmbiguous), got.code())
	e := s.effect(got.ref)
	require.Equal(t, api.Ambiguous, e.State)
	require.Equal(t, api.AnsweredTimeout, e.Evidence.Answered)
}

func TestErrorInAStreamIsNormalised(t *testing.T) {
	t.Parallel()
	for _, a := range []ask{chat(5, ""), chat(5, streamed), response(5, ""), response(5, `,"stream":true`)} {
		s := newStand(t)
		s.provider.Set(modelserver.Complaining)
		got := s.do(t, a)
		require.Equal(t, http.StatusOK, got.StatusCode, got.text)
		require.Contains(t, got.text, `"code":"provider_error"`)
		require.NotContains(t, got.text, "detail")
		require.Equal(t, api.Committed, s.effect(got.ref).State)
		s.requireQuiet(t, got)
	}
}

// TestAnotherModelIsNotPassedOn: what a model answers that nobody consented to and readiness does not require stays here. The
// call has happened and is charged; the guard makes no other and reports itself, which closes admission (A14).
func TestAnotherModelIsNotPassedOn(t *testing.T) {
	t.Parallel()
	for _, a := range []ask{chat(5, ""), chat(5, streamed), response(5, ""), response(5, `,"stream":true`)} {
		s := newStand(t)
		_, err := s.ledger.Probe(t.Context())
		require.NoError(t, err)
		s.provider.Set(modelserver.Other)
		got := s.do(t, a)
		require.Equal(t, http.StatusConflict, got.StatusCode, got.text)
		require.Equal(t, string(api.EffectSettled), got.code())
		require.NotContains(t, got.text, "answer of a")
		require.Equal(t, api.Committed, s.effect(got.ref).State)
		require.Contains(t, s.log.String(), "another model")
		_, err = s.ledger.Probe(t.Context())
		require.ErrorIs(t, err, guards.ErrSettings)

		s.provider.Set(modelserver.None)
		again := s.do(t, a)
		require.Equal(t, http.StatusServiceUnavailable, again.StatusCode, again.text)
		require.Equal(t, "minted", s.effect(again.ref).State)
		require.Equal(t, 1, s.provider.Asked())
	}
}

func TestModelMayAnswerUnderAListedName(t *testing.T) {
	t.Parallel()
	for _, a := range []ask{chat(5, ""), chat(5, streamed), response(5, `,"stream":true`)} {
		s := newStand(t, func(c *Config) {
			c.Models = map[string]Model{little: {Version: version, Price: price, Answers: []string{"little-2026-01-01"}}}
		})
		s.provider.Set(modelserver.Dated)
		got := s.do(t, a)
		require.Contains(t, got.text, "little-2026-01-01")
		s.requireSpent(t, got, 6)
	}
}

// TestCredentialIsKeptOutOfAnswers: the provider says it in twelve ways.
func TestCredentialIsKeptOutOfAnswers(t *testing.T) {
	t.Parallel()
	for _, a := range []ask{chat(20, ""), chat(20, streamed), response(20, ""), response(20, `,"stream":true`)} {
		s := newStand(t)
		s.provider.Set(modelserver.Echo)
		got := s.do(t, a)
		require.Equal(t, http.StatusOK, got.StatusCode, got.text)
		said := got.text + unescaped(t, got.text)
		for _, encoding := range modelserver.Encodings(key) {
			require.NotContains(t, said, encoding)
		}
		require.GreaterOrEqual(t, strings.Count(got.text, scrub.Marker), 12)
		require.Contains(t, s.log.String(), "held the credential")
		require.NotContains(t, s.log.String(), key)
	}
}

// unescaped is every string of an answer as its reader gets it.
func unescaped(t *testing.T, text string) string {
	var all strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		line, _ = strings.CutPrefix(line, "data: ")
		decoder := json.NewDecoder(strings.NewReader(line))
		for {
			token, err := decoder.Token()
			if err != nil {
				break
			}
			if s, ok := token.(string); ok {
				all.WriteString(s + " ")
			}
		}
	}
	require.NotEmpty(t, all.String())
	return all.String()
}

// TestWorkerThatHangsUpPaysAllTheSame: the call goes on, and is settled for what it used.
func TestWorkerThatHangsUpPaysAllTheSame(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.provider.Set(modelserver.Slow)
	a := chat(5, streamed)
	token, ref := s.mint(t, a)
	answer, err := s.served.Client().Do(s.request(t, a, token))
	require.NoError(t, err)
	_, err = bufio.NewReader(answer.Body).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	for s.effect(ref).State == "admitted" {
		s.provider.Let()
	}
	s.requireSpent(t, guardAnswer(ref), 6)
}

func guardAnswer(ref string) answer { return answer{ref: ref} }

// TestManyPresentationsAreOneCall: one capability, sixty-four requests at once.
func TestManyPresentationsAreOneCall(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := chat(5, "")
	token, ref := s.mint(t, a)
	var requests []*http.Request
	for range 64 {
		requests = append(requests, s.request(t, a, token))
	}
	var group sync.WaitGroup
	statuses := make(chan int, len(requests))
	for _, r := range requests {
		group.Go(func() {
			answer, err := s.served.Client().Do(r)
			if assert.NoError(t, err) {
				statuses <- answer.StatusCode
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		})
	}
	group.Wait()
	close(statuses)
	count := map[int]int{}
	for status := range statuses {
		count[status]++
	}
	require.Equal(t, 1, count[http.StatusOK], "%v", count)
	require.Equal(t, 1, s.provider.Asked())
	s.requireSpent(t, guardAnswer(ref), 6)
	require.Empty(t, s.authority.Wrong)
}

// TestManyCallsAreEachChargedOnce: what the provider counted is what is charged, in sum and one by one.
func TestManyCallsAreEachChargedOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	var group sync.WaitGroup
	refs := make(chan string, 64)
	for i := range cap(refs) {
		a := chat(1+i%9, "")
		if i%2 == 0 {
			a = chat(1+i%9, streamed)
		}
		token, ref := s.mint(t, a)
		r := s.request(t, a, token)
		group.Go(func() {
			answer, err := s.served.Client().Do(r)
			if !assert.NoError(t, err) {
				return
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			assert.Equal(t, http.StatusOK, answer.StatusCode)
			refs <- ref
		})
	}
	group.Wait()
	close(refs)
	var charged, used int64
	for ref := range refs {
		require.Equal(t, api.Committed, s.effect(ref).State)
		charged += *s.effect(ref).Spent
	}
	require.Len(t, s.provider.Calls(), 64)
	for _, u := range s.provider.Calls() {
		used += price.cost(usage{u.Input, u.Output})
	}
	require.Equal(t, used, charged)
	require.Empty(t, s.authority.Wrong)
}

// discard is a reply that counts, and looks at the memory that is in use.
type discard struct {
	bytes int
	most  uint64
}

func (d *discard) Begin(string) {}
func (d *discard) Write(p []byte) (int, error) {
	if d.bytes>>18 != (d.bytes+len(p))>>18 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		d.most = max(d.most, m.HeapAlloc)
	}
	d.bytes += len(p)
	return len(p), nil
}

// endless is a stream of n bytes of events.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	const chunk = `data: {"id":"1","model":"little","choices":[{"index":0,"delta":{"content":"word "}}]}` + "\n\n"
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p, chunk)
	if n < len(chunk) {
		return 0, errors.New("the test reads too little at once")
	}
	e.left -= n
	return n, nil
}

func TestMemoryIsFlat(t *testing.T) {
	s := newStand(t)
	set, err := scrub.New([]byte(key))
	require.NoError(t, err)
	c := &call{model: s.ledger.models[URL(s.config.BaseURL, little)], dialect: dialects[ChatComplete]}
	peak := func(bytes int) uint64 {
		d := &discard{}
		got := s.ledger.stream(c, d, set.Reader(&endless{bytes}))
		require.True(t, got.partial)
		require.GreaterOrEqual(t, d.bytes, bytes)
		return d.most
	}
	small := peak(1 << 19)
	require.Less(t, peak(2<<20), small+1<<20)
}

func TestEventsAreRead(t *testing.T) {
	t.Parallel()
	from := bufio.NewReader(strings.NewReader(": hello\n\nevent: a\nid: 7\nretry: 1\ndata: 1\n\ndata:2\r\n\r\ndata: 3\ndata: 4\n\nevent: lost\n\ndata\n\nnothing: at all\ndata: 5"))
	var all []string
	var err error
	for err == nil {
		var e event
		if e, err = next(from); err == nil {
			all = append(all, fmt.Sprintf("%s=%s", e.name, e.data))
		}
	}
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"a=1", "=2", "=3\n4", "lost="}, all)
}

func TestEventThatIsTooLargeEndsTheStream(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"data: " + strings.Repeat("x", maxEvent), strings.Repeat("data: x\n", maxEvent/8+1), strings.Repeat(": x\n", maxEvent/4+1)} {
		_, err := next(bufio.NewReader(strings.NewReader(text)))
		require.ErrorIs(t, err, errEvent)
	}
}

func FuzzStream(f *testing.F) {
	for _, seed := range []string{"data: {\"model\":\"little\"}\n\ndata: [DONE]\n\n", "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"little\",\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}}\n\n",
		"data: {\"error\":{\"message\":\"x\"}}\n\n", "data: {\"a\":\r1}\n\n", "data: 1\n\n", "\n\n\n", "data: {\"model\":\"other\"}\n\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, responses := range []bool{false, true} {
			var out recording
			s := &streaming{reader: &reader{names: []string{little}, most: maxEvent}, responses: responses, to: &out}
			_ = s.run(bufio.NewReader(bytes.NewReader(text)))
			for line := range bytes.SplitSeq(out.Bytes(), []byte("\n")) {
				data, ok := bytes.CutPrefix(line, []byte("data: "))
				if !ok {
					require.True(t, len(line) == 0 || bytes.HasPrefix(line, []byte("event: ")), "%q", line)
					continue
				}
				require.True(t, string(data) == "[DONE]" || json.Valid(data), "%q", data)
				require.NotContains(t, string(data), "\r")
			}
		}
	})
}

type recording struct{ bytes.Buffer }

func (*recording) Begin(string) {}
