package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func jwt(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(payload)) + "." + encode([]byte("signature"))
}

func written(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credential")
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

func TestUnusableCredentials(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                            "is blank",
		"\n":                          "is blank",
		"  \t ":                       "is blank",
		"short-1":                     "between 8 and 4096 bytes",
		strings.Repeat("x", 4097):     "between 8 and 4096 bytes",
		strings.Repeat("x", 9000):     "larger than 8192 bytes",
		"hush-hush\r\nX-Admin: yes":   "one line of visible ASCII",
		"hush-hush\nhush-hush\n":      "one line of visible ASCII",
		" hush-hush":                  "one line of visible ASCII",
		"hush-hush \n":                "one line of visible ASCII",
		"hush\x00hush":                "one line of visible ASCII",
		"hüsch-hüsch":                 "one line of visible ASCII",
		jwt(`{"exp":1764417604}`):     "has expired",
		jwt(`{"exp":0}`):              "has expired",
		jwt(`{"exp":-1.5}`):           "has expired",
		`{"value":"hush-hush"}`:       "value and expires_at",
		`{"value":"hush-hush","a":1}`: "value and expires_at",
		`{"value":`:                   "value and expires_at",
		`{"value":"hush-hush","expires_at":"2026-11-29T12:00:05Z"}`:                         "has expired",
		`{"value":"","expires_at":"2027-11-29T12:00:05Z"}`:                                  "is blank",
		`{"value":"hush-hush","expires_at":"2027-11-29T12:00:05Z"} {}`:                      "more than one object",
		`{"value":"hush-hush","expires_at":"soon"}`:                                         "value and expires_at",
		`{"value":"` + jwt(`{"exp":1764417604}`) + `","expires_at":"2027-11-29T12:00:05Z"}`: "has expired",
	} {
		_, err := Get(t.Context(), File(written(t, text, 0o600)), now)
		require.ErrorIs(t, err, ErrUnavailable, "%.100q", text)
		require.ErrorContains(t, err, says, "%.100q", text)
		require.NotContains(t, err.Error(), "hush")
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestFilesThatAreNotTrusted(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for path, says := range map[string]string{
		"/nowhere/at/all":              "cannot be opened",
		t.TempDir():                    "is not a regular file",
		pipe:                           "is not a regular file",
		written(t, "hush-hush", 0o644): "mode 0644",
		written(t, "hush-hush", 0o604): "mode 0604",
		written(t, "hush-hush", 0o660): "mode 0660",
		written(t, "hush-hush", 0o700): "mode 0700",
	} {
		_, err := Get(t.Context(), File(path), now)
		require.ErrorIs(t, err, ErrUnavailable, path)
		require.ErrorContains(t, err, says, path)
		require.NotContains(t, err.Error(), "hush")
	}
}

func TestUsableCredentials(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"hush-hush":     "hush-hush",
		"hush-hush\n":   "hush-hush",
		"hush hush\r\n": "hush hush",
		`{"value":"hush-hush","expires_at":"2026-11-29T12:00:06Z"}`: "hush-hush",
		jwt(`{"exp":1795953606}`):                                   jwt(`{"exp":1795953606}`),
		jwt(`{}`):                                                   jwt(`{}`),
		"not.a.token":                                               "not.a.token",
		"not.bm90.token":                                            "not.bm90.token",
	} {
		for _, mode := range []os.FileMode{0o600, 0o400, 0o440, 0o640} {
			c, err := Get(t.Context(), File(written(t, text, mode)), now)
			require.NoError(t, err, text)
			require.Equal(t, want, c.Value.Reveal())
		}
	}
}

func TestAFileIsReadAnew(t *testing.T) {
	t.Parallel()
	path := written(t, "first-one", 0o600)
	p := File(path)
	for _, value := range []string{"first-one", "second-one"} {
		require.NoError(t, os.WriteFile(path, []byte(value), 0o600))
		c, err := Get(t.Context(), p, now)
		require.NoError(t, err)
		require.Equal(t, value, c.Value.Reveal())
	}
	require.NoError(t, os.Remove(path))
	_, err := Get(t.Context(), p, now)
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestEnvironment(t *testing.T) {
	t.Setenv("NW_TEST_CREDENTIAL", "hush-hush")
	c, err := Get(t.Context(), Env("NW_TEST_CREDENTIAL"), now)
	require.NoError(t, err)
	require.Equal(t, "hush-hush", c.Value.Reveal())
	t.Setenv("NW_TEST_CREDENTIAL", "{}")
	for name, says := range map[string]string{"NW_TEST_CREDENTIAL": "value and expires_at", "NW_TEST_NOT_SET": "is not set"} {
		_, err = Get(t.Context(), Env(name), now)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, says)
	}
}

type broken struct{}

func (broken) Credential(context.Context) (Credential, error) {
	return Credential{}, errors.New("the vault is sealed")
}

func TestAnotherProvider(t *testing.T) {
	t.Parallel()
	_, err := Get(t.Context(), broken{}, now)
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "sealed")
}

func TestASecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	c := Credential{Value: "hush-hush"}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb, c.Value)
		fmt.Fprintf(&out, verb, c)
		fmt.Fprintf(&out, verb, &c)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "value", c.Value, "credential", c)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "value", c.Value, "credential", c)
	text, err := json.Marshal(c)
	require.NoError(t, err)
	for _, hush := range []string{"hush", "68757368"} {
		assert.NotContains(t, out.String(), hush)
		assert.NotContains(t, string(text), hush)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"hush-hush\n", `{"value":"hush-hush","expires_at":"2027-11-29T12:00:05Z"}`, jwt(`{"exp":1e300}`), jwt(`{"exp":1}`)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text)
		if err != nil || c.check(now) != nil {
			return
		}
		if strings.ContainsAny(c.Value.Reveal(), "\r\n\x00") || len(c.Value) < minValue {
			t.Fatalf("%q would be sent", c.Value.Reveal())
		}
	})
}
