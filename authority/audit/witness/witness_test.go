package witness_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/audittest"
	"github.com/nightwarrant/nightwarrant/authority/audit/witness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const origin = "nightwarrant/audit/test"

// log is a log that a client has.
type log struct {
	*testing.T
	key     audittest.Key
	records []audit.Digest
	resumed audit.Resumption
	made    []audit.Cosignature
}

func (l *log) grow(word string, n int) *log {
	for range n {
		l.records = append(l.records, sha256.Sum256(fmt.Append(nil, word, len(l.records))))
	}
	return l
}

func (l *log) checkpoint(size int) audit.Checkpoint {
	tree := &audit.Tree{}
	tree.Append(l.records[:size]...)
	return audit.Checkpoint{Origin: origin, Size: int64(size), Root: tree.Root(), At: time.Date(2026, 11, 30, 10, 0, size, 0, time.UTC), Incarnation: 1 + l.resumed.Number, Epoch: 1, Resumed: l.resumed}
}

func (l *log) sign(size int) []byte {
	l.Helper()
	signed, err := audit.Sign(l.checkpoint(size), l.key)
	require.NoError(l, err)
	return signed
}

func (l *log) Consistency(_ context.Context, old, size int64) (tlog.TreeProof, error) {
	return tlog.ProveTree(size, old, &audit.Nodes{Read: func(leaves []int64) (all []audit.Stretch, err error) {
		for _, leaf := range leaves {
			all = append(all, audit.Stretch{Digests: l.records[:leaf+1]})
		}
		return all, nil
	}})
}

func (l *log) Cosigned(_ context.Context, _ audit.Checkpoint, made audit.Cosignature) error {
	l.made = append(l.made, made)
	return nil
}

// house is a witness of a log.
type house struct {
	*log
	secret string
	public audit.Witness
	file   string
	http   *httptest.Server
}

var start = time.Date(2026, 11, 30, 11, 0, 0, 0, time.UTC)

func newHouse(t *testing.T) *house {
	t.Parallel()
	secret, public, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(t, err)
	h := &house{log: (&log{T: t, key: audittest.NewKey(t, origin)}).grow("record", 50), secret: secret, public: public, file: filepath.Join(t.TempDir(), "state")}
	h.open()
	return h
}

// newHouseOf is another witness of the same log.
func newHouseOf(of *house) *house {
	h := &house{log: of.log, secret: of.secret, public: of.public, file: filepath.Join(of.TempDir(), "state")}
	h.open()
	return h
}

// open starts the witness anew, from its file.
func (h *house) open() {
	h.Helper()
	s, err := h.server()
	require.NoError(h, err)
	if h.http != nil {
		h.http.Close()
	}
	h.http = httptest.NewServer(s)
	h.Cleanup(h.http.Close)
}

func (h *house) server() (*witness.Server, error) {
	h.Helper()
	cosigner, err := audit.NewCosigner(h.secret, func() time.Time { return start })
	require.NoError(h, err)
	return witness.NewServer(witness.Config{Key: cosigner, Logs: []note.Verifier{h.key.Verifier}, File: h.file, Log: slog.New(slog.DiscardHandler)})
}

func (h *house) client(l *log) *witness.Client {
	transport := &http.Transport{}
	h.Cleanup(transport.CloseIdleConnections)
	return witness.NewClient(h.http.URL, h.public, h.key.Verifier, l, transport)
}

// post sends a request as it is.
func (h *house) post(body string) (status int, kind, text string) {
	h.Helper()
	req, err := http.NewRequestWithContext(h.Context(), http.MethodPost, h.http.URL+"/add-checkpoint", strings.NewReader(body))
	require.NoError(h, err)
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	require.NoError(h, err)
	out, err := io.ReadAll(answer.Body)
	require.NoError(h, errors.Join(err, answer.Body.Close()))
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(out)
}

func (h *house) request(old, size int) string {
	body := fmt.Sprintf("old %d\n", old)
	if old > 0 && old < size {
		proof, err := h.Consistency(h.Context(), int64(old), int64(size))
		require.NoError(h, err)
		for _, x := range proof {
			body += x.String() + "\n"
		}
	}
	return body + "\n" + string(h.sign(size))
}

func TestAWitnessSignsWhatGoesOn(t *testing.T) {
	h := newHouse(t)
	for _, step := range [][2]int{{0, 0}, {0, 7}, {7, 7}, {7, 8}, {8, 33}, {33, 50}} {
		status, _, line := h.post(h.request(step[0], step[1]))
		require.Equal(t, http.StatusOK, status, line)
		made, err := h.public.Of(append(h.sign(step[1]), line...))
		require.NoError(t, err)
		assert.Equal(t, start, made.At())
		h.open() // what was answered is remembered
	}
	text, err := os.ReadFile(h.file)
	require.NoError(t, err)
	kept, err := audit.ReadAnchors(strings.NewReader(string(text)))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	c, err := audit.OpenCheckpoint(kept[0], h.key.Verifier)
	require.NoError(t, err)
	assert.EqualValues(t, 50, c.Size)
}

func TestAWitnessRefuses(t *testing.T) {
	h := newHouse(t)
	status, _, _ := h.post(h.request(0, 20))
	require.Equal(t, http.StatusOK, status)
	before, err := os.ReadFile(h.file)
	require.NoError(t, err)
	other := (&log{T: t, key: h.key}).grow("other", 50)
	foreign := &log{T: t, key: audittest.NewKey(t, origin), records: h.records}
	elsewhere, err := audit.Sign(audit.Checkpoint{Origin: "another/log", Root: (&audit.Tree{}).Root()}, audittest.NewKey(t, "another/log"))
	require.NoError(t, err)
	proof := func(l *log) string {
		body, _, _ := strings.Cut((&house{log: l}).request(20, 30), "\n\n")
		return body + "\n\n"
	}
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"nothing":                            {"", http.StatusBadRequest},
		"no old size":                        {"\n" + string(h.sign(30)), http.StatusBadRequest},
		"an old size with a zero":            {"old 020\n\n" + string(h.sign(30)), http.StatusBadRequest},
		"a negative old size":                {"old -1\n\n" + string(h.sign(30)), http.StatusBadRequest},
		"a hash that is none":                {"old 20\nAAAA\n\n" + string(h.sign(30)), http.StatusBadRequest},
		"too many hashes":                    {"old 20\n" + strings.Repeat(tlog.Hash{}.String()+"\n", 64) + "\n" + string(h.sign(30)), http.StatusBadRequest},
		"an old size beyond":                 {"old 31\n\n" + string(h.sign(30)), http.StatusBadRequest},
		"an unknown log":                     {"old 0\n\n" + string(elsewhere), http.StatusNotFound},
		"another key":                        {"old 20\n\n" + string(foreign.sign(20)), http.StatusForbidden},
		"no signature":                       {"old 20\n\n" + strings.Split(string(h.sign(20)), "—")[0], http.StatusForbidden},
		"from the beginning":                 {h.request(0, 30), http.StatusConflict},
		"from a size that it has not":        {h.request(19, 30), http.StatusConflict},
		"an older one":                       {h.request(10, 10), http.StatusConflict},
		"another root for its size":          {"old 20\n\n" + string(other.sign(20)), http.StatusConflict},
		"no proof":                           {"old 20\n\n" + string(h.sign(30)), http.StatusUnprocessableEntity},
		"a proof for its size":               {"old 20\n" + tlog.Hash{}.String() + "\n\n" + string(h.sign(20)), http.StatusUnprocessableEntity},
		"a proof of another log":             {proof(other) + string(h.sign(30)), http.StatusUnprocessableEntity},
		"another log with its own proof":     {proof(other) + string(other.sign(30)), http.StatusUnprocessableEntity},
		"another log with the proof of this": {proof(h.log) + string(other.sign(30)), http.StatusUnprocessableEntity},
		"too much":                           {strings.Repeat("x", 17<<10), http.StatusRequestEntityTooLarge},
	} {
		status, kind, text := h.post(c.body)
		assert.Equal(t, c.status, status, "%s: %s", name, text)
		assert.NotContains(t, text, "—", name)
		if status == http.StatusConflict {
			assert.Equal(t, "text/x.tlog.size", kind, name)
			assert.Equal(t, "20\n", text, name)
		}
	}
	after, err := os.ReadFile(h.file)
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after))
}

// What a witness cannot keep it does not sign, and goes on from what it has kept.
func TestAWitnessKeepsBeforeItAnswers(t *testing.T) {
	h := newHouse(t)
	status, _, _ := h.post(h.request(0, 20))
	require.Equal(t, http.StatusOK, status)
	dir := filepath.Dir(h.file)
	require.NoError(t, os.Rename(dir, dir+".gone"))
	status, _, text := h.post(h.request(20, 30))
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.NotContains(t, text, "—")
	require.NoError(t, os.Rename(dir+".gone", dir))
	status, _, _ = h.post(h.request(20, 25))
	assert.Equal(t, http.StatusOK, status)
}

func TestAStateThatIsNotOursIsRefused(t *testing.T) {
	h := newHouse(t)
	status, _, _ := h.post(h.request(0, 20))
	require.Equal(t, http.StatusOK, status)
	good, err := os.ReadFile(h.file)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"junk":             "junk\n",
		"not signed by us": string(audit.AnchorLine(h.sign(20))),
		"edited":           strings.Replace(string(good), `\n20\n`, `\n19\n`, 1),
		"another log":      strings.Replace(string(good), origin, "another", 1),
	} {
		require.NoError(t, os.WriteFile(h.file, []byte(text), 0o600))
		_, err := h.server()
		require.Error(t, err, name)
	}
}

func TestClient(t *testing.T) {
	h := newHouse(t)
	c := h.client(h.log)
	for _, size := range []int{0, 10, 10, 31, 50} {
		require.NoError(t, c.Anchor(t.Context(), h.sign(size)))
	}
	require.Len(t, h.made, 5)

	late := h.client(h.log) // knows nothing of what the witness has
	shown, err := late.Newest(t.Context(), h.sign(50))
	require.NoError(t, err)
	assert.Equal(t, h.sign(50), shown)

	other := (&log{T: t, key: h.key}).grow("other", 60)
	for name, c := range map[string]struct {
		client *witness.Client
		signed []byte
	}{
		"an older checkpoint":             {h.client(h.log), h.sign(40)},
		"nothing":                         {h.client(h.log), h.sign(0)},
		"as many records of another log":  {h.client(other), other.sign(50)},
		"more records of another log":     {h.client(other), other.sign(60)},
		"the same, from who knows better": {late, h.sign(49)},
	} {
		require.ErrorIs(t, c.client.Anchor(t.Context(), c.signed), audit.ErrDiffers, name)
	}
	assert.Empty(t, other.made)
}

// A witness is believed when its key has signed, and else is nobody.
func TestClientBelievesNoOtherAnswer(t *testing.T) {
	h := newHouse(t)
	_, stranger, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(t, err)
	c := witness.NewClient(h.http.URL, stranger, h.key.Verifier, h.log, &http.Transport{DisableKeepAlives: true})
	require.ErrorContains(t, c.Anchor(t.Context(), h.sign(10)), "no signature of its key")

	for name, answer := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"an old signature": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(audit.SignatureLine("witness.example/w1", h.public.KeyHash(), make([]byte, 72))))
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, h.http.URL+"/add-checkpoint", http.StatusTemporaryRedirect)
		},
		"a conflict of no size": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/x.tlog.size")
			w.WriteHeader(http.StatusConflict)
		},
		"one size after the other": func() http.HandlerFunc {
			n := 0
			return func(w http.ResponseWriter, _ *http.Request) {
				n++
				w.Header().Set("Content-Type", "text/x.tlog.size")
				w.WriteHeader(http.StatusConflict)
				_, _ = fmt.Fprintf(w, "%d\n", n)
			}
		}(),
	} {
		s := httptest.NewServer(answer)
		c := witness.NewClient(s.URL+"/", h.public, h.key.Verifier, h.log, &http.Transport{DisableKeepAlives: true})
		require.Error(t, c.Anchor(t.Context(), h.sign(10)), name)
		s.Close()
		require.Error(t, c.Anchor(t.Context(), h.sign(10)), "nobody there")
	}
	assert.Empty(t, h.made)
}

// A log that an operator has resumed is another one, which must give up what the witness has seen of the first.
func TestAWitnessHoldsAResumptionAgainstWhatItSaw(t *testing.T) {
	h := newHouse(t)
	require.NoError(t, h.client(h.log).Anchor(t.Context(), h.sign(40)))
	lost := h.checkpoint(40)
	resume := func(number, lostSize int64, root tlog.Hash) *log {
		l := &log{T: t, key: h.key, records: append([]audit.Digest{}, h.records[:20]...), resumed: audit.Resumption{Number: number, From: 20, Lost: lostSize, LostRoot: root}}
		return l.grow("after", 10)
	}
	for name, l := range map[string]*log{
		"less":         resume(2, 39, h.checkpoint(39).Root),
		"another root": resume(2, 40, h.checkpoint(39).Root),
	} {
		require.ErrorIs(t, h.client(l).Anchor(t.Context(), l.sign(25)), audit.ErrDiffers, name)
		require.ErrorIs(t, h.client(l).Anchor(t.Context(), l.sign(0)), audit.ErrDiffers, name)
	}
	second := resume(2, 40, lost.Root)
	require.NoError(t, h.client(second).Anchor(t.Context(), second.sign(0)))
	require.NoError(t, h.client(second).Anchor(t.Context(), second.sign(25)))
	h.open()
	require.NoError(t, h.client(second).Anchor(t.Context(), second.sign(30)))
	require.ErrorIs(t, h.client(h.log).Anchor(t.Context(), h.sign(50)), audit.ErrDiffers, "the first log does not go on")
	moved := resume(2, 41, lost.Root)
	require.ErrorIs(t, h.client(moved).Anchor(t.Context(), moved.sign(30)), audit.ErrDiffers, "another decision under the same number")

	// A decision under which nothing was signed, and that is made again for more.
	again := newHouseOf(h)
	require.NoError(t, again.client(h.log).Anchor(t.Context(), h.sign(30)))
	early := resume(2, 35, lost.Root)
	require.NoError(t, again.client(early).Anchor(t.Context(), early.sign(0)))
	better := resume(3, 40, lost.Root)
	require.NoError(t, again.client(better).Anchor(t.Context(), better.sign(25)))

	third := resume(5, 30, second.checkpoint(30).Root)
	third.resumed.LostOf = 2
	require.NoError(t, h.client(third).Anchor(t.Context(), third.sign(28)))

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.http.URL+"/checkpoints", nil)
	require.NoError(t, err)
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	all, err := audit.ReadAnchors(answer.Body)
	require.NoError(t, errors.Join(err, answer.Body.Close()))
	assert.Len(t, all, 3, "one of each log, as an anchor")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	secret, public, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(t, err)
	again, err := audit.NewWitness(public.String())
	require.NoError(t, err)
	assert.Equal(t, public, again)
	_, _, err = audit.GenerateCosigner("a name")
	require.Error(t, err)
	_, log, err := note.GenerateKey(rand.Reader, "witness.example/w1")
	require.NoError(t, err)
	for _, bad := range []string{"", "x", log, secret, public.String() + "=", strings.Replace(public.String(), "w1", "w2", 1), strings.ToUpper(public.String())} {
		_, err := audit.NewWitness(bad)
		require.Error(t, err, bad)
	}
	for _, bad := range []string{"", public.String(), secret + "A", strings.Replace(secret, "w1", "w2", 1)} {
		_, err := audit.NewCosigner(bad, time.Now)
		require.Error(t, err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("old 0\n\n" + origin + "\n0\n" + tlog.Hash{}.String() + "\n\n")
	f.Add("old 20\n" + tlog.Hash{}.String() + "\n\nx")
	secret, _, err := audit.GenerateCosigner("witness.example/w1")
	require.NoError(f, err)
	cosigner, err := audit.NewCosigner(secret, time.Now)
	require.NoError(f, err)
	_, public, err := note.GenerateKey(rand.Reader, origin)
	require.NoError(f, err)
	log, err := note.NewVerifier(public)
	require.NoError(f, err)
	s, err := witness.NewServer(witness.Config{Key: cosigner, Logs: []note.Verifier{log}, File: filepath.Join(f.TempDir(), "state"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/add-checkpoint", strings.NewReader(body)))
		require.NotEqual(t, http.StatusOK, w.Code, "nobody has the log's key")
	})
}
