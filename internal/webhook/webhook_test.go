package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The vector of the Standard Webhooks libraries.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorAt = time.Unix(1614265330, 0)

func secretOf(t testing.TB, text string) Secret {
	t.Helper()
	s, err := ParseSecret(text)
	require.NoError(t, err)
	return s
}

func TestTheStandardVector(t *testing.T) {
	t.Parallel()
	h, s := http.Header{}, secretOf(t, vectorSecret)
	s.Sign(h, vectorID, vectorAt.Add(999*time.Millisecond), []byte(vectorBody))
	assert.Equal(t, http.Header{"Webhook-Id": {vectorID}, "Webhook-Timestamp": {"1614265330"}, "Webhook-Signature": {vectorSignature}}, h)
	require.NoError(t, Verify(h, []byte(vectorBody), vectorAt, s))
}

func TestSecretsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)), "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65)),
		vectorSecret + "\n", vectorSecret[:20] + "\n" + vectorSecret[20:], strings.Replace(vectorSecret, "r8", "_8", 1), "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 25))[:35] + "B="} {
		s, err := ParseSecret(text)
		require.ErrorIs(t, err, ErrSecret, text)
		assert.True(t, s.IsZero())
	}
}

func TestASecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	s := secretOf(t, vectorSecret)
	holder := struct {
		Public  Secret
		private Secret
	}{s, s}
	text, err := json.Marshal(map[string]any{"s": s})
	require.NoError(t, err)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", s, "h", holder)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(vectorSecret, prefix))
	require.NoError(t, err)
	for _, printed := range []string{fmt.Sprint(s), fmt.Sprintf("%#v %+v %x %s %d", s, s, s, s, s), fmt.Sprintf("%#v %+v %v", holder, holder, &holder), string(text), log.String(), s.String()} {
		for _, form := range []string{vectorSecret[len(prefix):], string(key), fmt.Sprintf("%x", key), fmt.Sprintf("%d", key[0:4])[1:10]} {
			assert.NotContains(t, printed, form)
		}
	}
}

// signed are the headers of a message that is good now.
func signed(t testing.TB, s Secret, now time.Time) http.Header {
	t.Helper()
	h := http.Header{}
	s.Sign(h, "one", now, []byte("body"))
	require.NoError(t, Verify(h, []byte("body"), now, s))
	return h
}

func TestMessagesThatAreRefused(t *testing.T) {
	t.Parallel()
	s, other, now := secretOf(t, vectorSecret), secretOf(t, "whsec_"+strings.Repeat("A", 32)), time.Now()
	for name, c := range map[string]struct {
		spoil func(h http.Header)
		want  error
	}{
		"no id":                    {func(h http.Header) { h.Del(HeaderID) }, ErrHeaders},
		"an empty id":              {func(h http.Header) { h.Set(HeaderID, "") }, ErrHeaders},
		"a long id":                {func(h http.Header) { h.Set(HeaderID, strings.Repeat("i", maxID+1)) }, ErrHeaders},
		"two ids":                  {func(h http.Header) { h.Add(HeaderID, "one") }, ErrHeaders},
		"two timestamps":           {func(h http.Header) { h.Add(HeaderTimestamp, h.Get(HeaderTimestamp)) }, ErrHeaders},
		"two lines of signatures":  {func(h http.Header) { h.Add(HeaderSignature, h.Get(HeaderSignature)) }, ErrHeaders},
		"no timestamp":             {func(h http.Header) { h.Del(HeaderTimestamp) }, ErrHeaders},
		"a fraction":               {func(h http.Header) { h.Set(HeaderTimestamp, h.Get(HeaderTimestamp)+".5") }, ErrHeaders},
		"another spelling":         {func(h http.Header) { h.Set(HeaderTimestamp, "+"+h.Get(HeaderTimestamp)) }, ErrHeaders},
		"more than a number holds": {func(h http.Header) { h.Set(HeaderTimestamp, strings.Repeat("9", 30)) }, ErrHeaders},
		"the end of time":          {func(h http.Header) { h.Set(HeaderTimestamp, "9223372036854775807") }, ErrTimestamp},
		"its beginning":            {func(h http.Header) { h.Set(HeaderTimestamp, "-9223372036854775808") }, ErrTimestamp},
		"another id":               {func(h http.Header) { h.Set(HeaderID, "two") }, ErrSignature},
		"another time":             {func(h http.Header) { h.Set(HeaderTimestamp, strconv.FormatInt(now.Unix()-1, 10)) }, ErrSignature},
		"no signature":             {func(h http.Header) { h.Set(HeaderSignature, "") }, ErrSignature},
		"another version":          {func(h http.Header) { h.Set(HeaderSignature, strings.Replace(h.Get(HeaderSignature), "v1,", "v1a,", 1)) }, ErrSignature},
		"a shorter signature":      {func(h http.Header) { h.Set(HeaderSignature, "v1,"+base64.StdEncoding.EncodeToString([]byte("x"))) }, ErrSignature},
		"another key":              {func(h http.Header) { other.Sign(h, "one", now, []byte("body")) }, ErrSignature},
		"another body":             {func(h http.Header) { s.Sign(h, "one", now, []byte("bodY")) }, ErrSignature},
		"too far down the list": {func(h http.Header) {
			h.Set(HeaderSignature, strings.Repeat("v1,AAAA ", maxSignatures)+h.Get(HeaderSignature))
		}, ErrSignature},
	} {
		h := signed(t, s, now)
		c.spoil(h)
		assert.ErrorIs(t, Verify(h, []byte("body"), now, s), c.want, name)
	}
	h := signed(t, s, now)
	assert.ErrorIs(t, Verify(h, []byte("body"), now), ErrSignature, "without any secret")
	assert.ErrorIs(t, Verify(h, []byte("body"), now, Secret{}), ErrSignature, "with one that is zero")
}

func TestTheWindow(t *testing.T) {
	t.Parallel()
	s, now := secretOf(t, vectorSecret), time.Unix(1_800_000_000, 0)
	h := signed(t, s, now)
	for away, want := range map[time.Duration]error{Window: nil, -Window: nil, Window + time.Second: ErrTimestamp, -Window - time.Second: ErrTimestamp} {
		assert.Equal(t, want, Verify(h, []byte("body"), now.Add(away), s), away)
	}
}

// While a secret is exchanged, either end may have both.
func TestExchangingTheSecret(t *testing.T) {
	t.Parallel()
	older, newer, now := secretOf(t, vectorSecret), secretOf(t, "whsec_"+strings.Repeat("B", 32)), time.Now()
	h := signed(t, older, now)
	require.ErrorIs(t, Verify(h, []byte("body"), now, newer), ErrSignature)
	require.NoError(t, Verify(h, []byte("body"), now, newer, older))
	both := h.Get(HeaderSignature) + " " + signed(t, newer, now).Get(HeaderSignature)
	h.Set(HeaderSignature, both)
	require.NoError(t, Verify(h, []byte("body"), now, newer))
	require.NoError(t, Verify(h, []byte("body"), now, older))
}

// What is signed is good, and nothing that differs in one bit is.
func TestOneBit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), minKey, maxKey).Draw(t, "key")
		s, err := ParseSecret(prefix + base64.StdEncoding.EncodeToString(key))
		require.NoError(t, err)
		id, body := rapid.StringMatching(`[a-zA-Z0-9_-]{1,40}`).Draw(t, "id"), rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
		at := time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "at"), 0)
		h := http.Header{}
		s.Sign(h, id, at, body)
		require.NoError(t, Verify(h, body, at, s))
		spoiled := bytes.Clone(body)
		spoiled[rapid.IntRange(0, len(body)-1).Draw(t, "where")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		require.ErrorIs(t, Verify(h, spoiled, at, s), ErrSignature)
	})
}

func TestHandler(t *testing.T) {
	t.Parallel()
	s, now := secretOf(t, vectorSecret), time.Now()
	var taken []string
	fails := errors.New("the disk is full, at /secret/place")
	var answer error
	h := Handler(s, func() time.Time { return now }, func(id string, body []byte) error {
		taken = append(taken, id+" "+string(body))
		return answer
	})
	post := func(method string, body []byte, headers http.Header) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "/", bytes.NewReader(body))
		r.Header = headers
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	assert.Equal(t, http.StatusNoContent, post("POST", []byte("body"), signed(t, s, now)).Code)
	assert.Equal(t, []string{"one body"}, taken)
	for name, w := range map[string]*httptest.ResponseRecorder{
		"another body": post("POST", []byte("bodY"), signed(t, s, now)), "no headers": post("POST", []byte("body"), http.Header{}),
		"too long": post("POST", make([]byte, maxBody+1), signed(t, s, now)),
	} {
		assert.Equal(t, http.StatusBadRequest, w.Code, name)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, post("GET", nil, signed(t, s, now)).Code)
	assert.Len(t, taken, 1)
	answer = fails
	w := post("POST", []byte("body"), signed(t, s, now))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.NotContains(t, w.Body.String(), "disk")
}

func FuzzVerify(f *testing.F) {
	s, err := ParseSecret(vectorSecret)
	require.NoError(f, err)
	f.Add(vectorID, "1614265330", vectorSignature, []byte(vectorBody))
	f.Add("", "", "", []byte{})
	f.Add("x", "-1", "v1, v1,= v1,g0hM v2,x", []byte("y"))
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		h := http.Header{HeaderID: {id}, HeaderTimestamp: {timestamp}, HeaderSignature: {signature}}
		if Verify(h, body, vectorAt, s) != nil {
			return
		}
		seconds, err := strconv.ParseInt(timestamp, 10, 64)
		require.NoError(t, err)
		again := http.Header{}
		s.Sign(again, id, time.Unix(seconds, 0), body)
		require.Contains(t, signature, again.Get(HeaderSignature), "what is accepted carries the one good signature")
	})
}

func FuzzParseSecret(f *testing.F) {
	f.Add(vectorSecret)
	f.Add("whsec_")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		require.Equal(t, err != nil, s.IsZero())
		if err == nil {
			require.True(t, strings.HasPrefix(text, prefix))
		}
	})
}
