package scrub

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNoUsualEncodingGetsThrough(t *testing.T) {
	t.Parallel()
	require.Greater(t, len(encodings), 12)
	s := set(t, secret)
	for name, encode := range encodings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encoded := encode(secret)
			for _, around := range [][2]string{{"", ""}, {"before ", " after"}, {`{"a":"`, `","b":1}`}, {"&amp;%20", `\n%`}, {"A", "A"}, {"%", ";"}, {`\`, "="}, {"&#", "&"}} {
				for _, sizes := range [][]int{{1 << 20}, {1}, {2}, {7, 1, 3}} {
					out := scrubbed(t, s, around[0]+encoded+around[1], sizes...)
					require.Contains(t, out, Marker, "%q", around)
					require.NotContains(t, out, encoded)
					require.False(t, shows(out, secret, 2), out)
				}
			}
		})
	}
}

// The whole of what was spelled is gone, and nothing else.
func TestOnlyTheSecretIsCut(t *testing.T) {
	t.Parallel()
	s := set(t, secret)
	for name, encode := range encodings {
		if strings.Contains(name, "base64 of") || strings.Contains(name, "in base64") || name == "base64 in percent" {
			continue // what else was encoded stays
		}
		encoded := encode(secret)
		want := "before " + Marker + " after"
		if strings.Contains(name, "colons") {
			want = "before " + Marker + ": after"
		}
		out := scrubbed(t, s, "before "+encoded+" after", 5)
		assert.Equal(t, want, strings.ReplaceAll(out, "=", ""), name) // padding says nothing
	}
}

func TestTheSecretOfUserAndPassword(t *testing.T) {
	t.Parallel()
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
		s := set(t, encoding.EncodeToString([]byte("alice:correct horse")))
		require.Equal(t, "as "+Marker+" here", scrubbed(t, s, "as correct horse here"))
		require.NotContains(t, scrubbed(t, s, base64.StdEncoding.EncodeToString([]byte("bob:correct horse"))), "Y29ycmVjdCBob3JzZ")
	}
	_, err := New([]byte(base64.StdEncoding.EncodeToString([]byte("alice:short"))))
	require.ErrorIs(t, err, ErrSecret)
}

func TestTextWithoutSecretsIsUntouched(t *testing.T) {
	t.Parallel()
	s := set(t, secret, "another-secret")
	for _, text := range []string{
		"", "a", "%", `\`, "&", "&amp;&lt;%41%zz\\u00zz", secret[:len(secret)-1], secret[1:], strings.Repeat("sk_live/", 1000),
		strings.Repeat("%25", 5000), strings.Repeat(`\`, 5000), strings.Repeat("&amp;", 5000), "another_secret", "another-secre",
	} {
		require.Equal(t, text, scrubbed(t, s, text, 3))
	}
	empty := &Set{}
	require.Equal(t, secret, scrubbed(t, empty, secret))
}

func TestSecretsThatTouchOrOverlap(t *testing.T) {
	t.Parallel()
	s := set(t, "abcdefgh", "efghijkl", "aaaaaaaaa")
	for text, want := range map[string]string{
		"-abcdefghijkl-":                   "-" + Marker + "-",
		"abcdefghabcdefgh":                 Marker + Marker,
		"abcdefgh efghijkl":                Marker + " " + Marker,
		"abcdabcdefgh":                     "abcd" + Marker,
		strings.Repeat("a", 8):             strings.Repeat("a", 8),
		"b" + strings.Repeat("a", 5000):    "b" + Marker,
		strings.Repeat("a", 5000) + "bcde": Marker + "bcde",
	} {
		for _, size := range []int{1, 3, 4096} {
			require.Equal(t, want, scrubbed(t, s, text, size))
			whole, found := s.Bytes([]byte(text))
			require.Equal(t, want, string(whole))
			require.Equal(t, strings.Contains(want, Marker), found)
		}
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, MinSecret - 1, MaxSecret + 1} {
		_, err := New(bytes.Repeat([]byte("x"), n))
		require.ErrorIs(t, err, ErrSecret)
	}
	for _, n := range []int{MinSecret, MaxSecret} {
		_, err := New(bytes.Repeat([]byte("x"), n))
		require.NoError(t, err)
	}
}

func TestASetDoesNotPrint(t *testing.T) {
	t.Parallel()
	s := set(t, "hush-hush-hush")
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.Equal(t, "(secrets)", fmt.Sprintf(format, s))
	}
}

func TestErrorsComeAfterTheText(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	s := set(t, "abcdefgh")
	out, err := io.ReadAll(s.Reader(io.MultiReader(strings.NewReader("x abcdefg"), iotest.ErrReader(broken))))
	require.ErrorIs(t, err, broken)
	require.Equal(t, "x abcdefg", string(out))
	require.NoError(t, iotest.TestReader(s.Reader(strings.NewReader("x abcdefgh y")), []byte("x "+Marker+" y")))
}

func TestWriter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := set(t, "abcdefgh").Writer(&out)
	for _, part := range []string{"x abc", "", "defgh y abcd"} {
		n, err := io.WriteString(w, part)
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.True(t, w.Found())
	require.NotContains(t, out.String(), "abcd")
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.Equal(t, "x "+Marker+" y abcd", out.String())
	_, err := w.Write([]byte("more"))
	require.Error(t, err)

	failing := set(t, "abcdefgh").Writer(iotest.TruncateWriter(errWriter{}, 0))
	_, _ = failing.Write([]byte("x"))
	require.NoError(t, failing.Close())
	broken := set(t, "abcdefgh").Writer(errWriter{})
	_, err = broken.Write([]byte("xyz"))
	require.Error(t, err)
	require.Error(t, broken.Close())
}

type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

// Whatever a body says, what is held back is bounded by the secret.
func TestMemoryIsFlat(t *testing.T) {
	t.Parallel()
	monotone := strings.Repeat("a", 64)
	for name, body := range map[string]string{
		"the secret's beginning": secret[:len(secret)-1],
		"one letter":             "a",
		"backslashes":            `\`,
		"percents":               "%25",
		"entities":               "&amp;",
		"line breaks":            "\r\n",
		"base64 and breaks":      "YWFh\r\n",
		"hex":                    "61:",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := set(t, secret, monotone).Reader(io.LimitReader(&endless{text: body}, 8*piece))
			most, into := 0, make([]byte, piece)
			for {
				if _, err := r.Read(into); err != nil || r.machine == nil {
					break
				}
				most = max(most, len(r.machine.raw), cap(r.out)-piece, len(r.machine.cuts))
			}
			require.Less(t, most, 20<<10)
		})
	}
}

type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[e.at]
		e.at = (e.at + 1) % len(e.text)
	}
	return len(p), nil
}

func TestProperties(t *testing.T) {
	t.Parallel()
	names := make([]string, 0, len(encodings))
	for name := range encodings {
		names = append(names, name)
	}
	text := rapid.StringMatching(`[ -~\n\\%&;#x"=]{0,40}`)
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[ -~é]{8,60}`).Draw(t, "secret")
		s, err := New([]byte(secret))
		if err != nil {
			t.Skip(err)
		}
		encoded := encodings[rapid.SampledFrom(names).Draw(t, "encoding")](secret)
		body := text.Draw(t, "before") + encoded + text.Draw(t, "after")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 30), 1, 5).Draw(t, "sizes")
		out := scrubbed(t, s, body, sizes...)
		if strings.Contains(out, encoded) || shows(out, secret, 1) {
			t.Fatalf("%q came through", out)
		}
		if whole := scrubbed(t, s, body); whole != out {
			t.Fatalf("%q in one piece and %q in several", whole, out)
		}
	})
}

func TestOtherTextStays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[A-Za-z0-9_-]{16,60}`).Draw(t, "secret")
		body := rapid.StringMatching(`[ -~\n\\%&;]{0,200}`).Draw(t, "body")
		if out := scrubbed(t, set(t, secret), body); out != body {
			t.Fatalf("%q became %q", body, out)
		}
	})
}

func FuzzScrub(f *testing.F) {
	for _, encode := range encodings {
		f.Add([]byte("before "+encode(secret)+" after"), uint8(3))
	}
	f.Add([]byte(`\\\\\\\\u0041%2525&amp;amp;`), uint8(1))
	s := set(f, secret, "aaaaaaaa", "ab%41&amp;\\x")
	f.Fuzz(func(t *testing.T, body []byte, size uint8) {
		out := scrubbed(t, s, string(body), int(size)+1)
		if out != scrubbed(t, s, string(body)) {
			t.Fatalf("%q depends on the pieces", out)
		}
		for _, one := range []string{secret, "aaaaaaaa", "ab%41&amp;\\x"} {
			if strings.Contains(out, one) {
				t.Fatalf("%q came through", out)
			}
		}
		if !strings.Contains(out, Marker) && out != string(body) {
			t.Fatalf("%q became %q", body, out)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	var body strings.Builder
	for body.Len() < 1<<20 {
		fmt.Fprintf(&body, `{"id":"%016x","name":"item %d","price":%d,"note":"a \"quoted\" word\nand https://example.com/%d?a=b&c=d"},`,
			random.Uint64(), random.IntN(1000), random.IntN(100000), random.IntN(1000))
	}
	token := "sk_live_" + strings.Repeat("51H8xK2eZvKYlo2C", 3)
	for name, text := range map[string]string{
		"json 1 MiB": body.String(), "json 4 KiB": body.String()[:4<<10], "escapes 1 MiB": strings.Repeat(`\"%41&amp;`, 100000), "backslashes 64 KiB": strings.Repeat(`\`, 64<<10),
	} {
		for kind, s := range map[string]*Set{"56 bytes": set(b, token), "4096 bytes": set(b, strings.Repeat(token, 80)[:4096])} {
			b.Run(name+", secret of "+kind, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					_, _ = io.Copy(io.Discard, s.Reader(strings.NewReader(text)))
				}
			})
		}
	}
}

func BenchmarkBytes(b *testing.B) {
	s := set(b, "sk_live_51H8xK2eZvKYlo2C")
	text := []byte(`{"id":"p-1","state":"paid","owner":{"name":"` + strings.Repeat("Bob ", 100) + `"},"lines":[{"id":1},{"id":2}]}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Bytes(text)
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = New([]byte("sk_live_51H8xK2eZvKYlo2C51H8xK2eZvKYlo2C"))
	}
}
