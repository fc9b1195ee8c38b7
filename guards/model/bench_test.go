package model

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/scrub"
)

// A request is read twice: before the authority is asked and before it is sent.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			body := fmt.Appendf(nil, `{"model":"little","max_tokens":5,"messages":[{"role":"user","content":%q}]}`, strings.Repeat("Good morning. ", size/14))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := dialects[ChatComplete].read(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// An answer of 4 KiB, through the scrubber and the list of members.
func BenchmarkAnswer(b *testing.B) {
	s, c, set := newBench(b)
	text := fmt.Appendf(nil, `{"id":"1","object":"chat.completion","model":"little","choices":[{"index":0,"message":{"role":"assistant","content":%q}}],`+
		`"usage":{"prompt_tokens":5,"completion_tokens":900,"total_tokens":905}}`, strings.Repeat("Good night. ", 4096/12))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if got := s.ledger.whole(c, set.Reader(bytes.NewReader(text))); got.result == nil {
			b.Fatal(got.trouble)
		}
	}
}

// One event of a stream.
func BenchmarkEvent(b *testing.B) {
	s, c, set := newBench(b)
	const event = `data: {"id":"1","object":"chat.completion.chunk","model":"little","choices":[{"index":0,"delta":{"content":"word "}}]}` + "\n\n"
	text := strings.Repeat(event, b.N) + "data: [DONE]\n\n"
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	b.ResetTimer()
	s.ledger.stream(c, &sink{}, set.Reader(strings.NewReader(text)))
}

type sink struct{ io.Writer }

func (*sink) Begin(string)                {}
func (*sink) Write(p []byte) (int, error) { return len(p), nil }

// A whole call on loopback: guard, provider, and an authority in memory.
func BenchmarkCall(b *testing.B) {
	s := newStand(b)
	a := chat(5, "")
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		token, ref := s.mint(b, a)
		r := s.request(b, a, token)
		b.StartTimer()
		if got := s.send(b, r, ref); got.StatusCode != 200 {
			b.Fatal(got.text)
		}
	}
}

// The ledger alone, without the exchange: everything that is read, and both commits of the journal.
func BenchmarkLedger(b *testing.B) {
	s := newStand(b)
	body := []byte(chat(5, "").body)
	params, err := parameters(s.config.BaseURL, dialects[ChatComplete], chat(5, "").header(), body)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		a := guards.Attempt{Effect: guards.NewRef(), ID: guards.NewRef(), Action: ChatComplete, Params: params, Body: body}
		if err := s.ledger.Intend(b.Context(), a); err != nil {
			b.Fatal(err)
		}
		if _, err := s.ledger.read(a); err != nil {
			b.Fatal(err)
		}
		admitted := guards.Admitted{Attempt: a, Lane: guards.NewRef(), Fence: 1, Left: func() time.Duration { return time.Minute }}
		if _, err := s.ledger.journal.Once(admitted, func() guards.Ending { return guards.Ending{Outcome: guards.Committed} }); err != nil {
			b.Fatal(err)
		}
	}
}

func newBench(b *testing.B) (*stand, *call, *scrub.Set) {
	s := newStand(b)
	set, err := scrub.New([]byte(key))
	require.NoError(b, err)
	return s, &call{model: s.ledger.models[URL(s.config.BaseURL, little)], dialect: dialects[ChatComplete]}, set
}
