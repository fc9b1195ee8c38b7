package dev

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/directory"
)

// A member of the running directory is let go and taken back, over SCIM, by whoever has the file.
func TestTheDirectoryLetsGo(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	d := &Directory{}
	require.NoError(t, config.Parse("f", []byte("listen: "+freePort(t)+"\ntoken_file: "+token+"\nmembers: [{subject: m, email: m@people.example}, {subject: n}]\n"), d, noEnv))
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- RunDirectory(ctx, d, slog.New(slog.NewTextHandler(signal(func() { close(ready) }), nil)))
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(30 * time.Second):
		t.Fatal("it is not ready")
	}
	s, err := directory.NewSCIM(directory.Config{URL: d.URL(), Issuer: "i", Timeout: directory.MaxTimeout, Token: func() (directory.Secret, error) { return config.ReadSecret(token) }})
	require.NoError(t, err)
	defer s.Close()
	is := func(want directory.Answer) {
		t.Helper()
		var got directory.Answer
		require.Eventually(t, func() bool { // a busy machine may be too slow for the bound
			got, _ = s.Member(t.Context(), "i", "m")
			return got == want
		}, 10*time.Second, 10*time.Millisecond)
	}
	is(directory.Present)
	require.NoError(t, d.SetActive(t.Context(), "m", false))
	is(directory.Absent)
	require.NoError(t, d.SetActive(t.Context(), "m", true))
	is(directory.Present)
	require.ErrorContains(t, d.SetActive(t.Context(), "nobody", false), "0 members")
	d.token = "another"
	require.ErrorContains(t, d.SetActive(t.Context(), "m", false), "status 401")
	cancel()
	require.NoError(t, <-ended)
}

func TestWrongDirectories(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	good := "listen: 127.0.0.1:9400\ntoken_file: " + token + "\nmembers: [{subject: m}]\n"
	require.NoError(t, config.Parse("f", []byte(good), &Directory{}, noEnv))
	for _, change := range [][2]string{{"127.0.0.1:9400", "0.0.0.0:9400"}, {"127.0.0.1:9400", "127.0.0.1:0"}, {"127.0.0.1:9400", "x"}, {token, token + "-absent"}, {"subject: m", "subject: \"\""}, {"[{", "[{subject: m}, {"}} {
		var e *config.Error
		require.ErrorAs(t, config.Parse("f", []byte(strings.Replace(good, change[0], change[1], 1)), &Directory{}, noEnv), &e, "%v", change)
		assert.NotContains(t, e.Error(), "secret")
	}
}
