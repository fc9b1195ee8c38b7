package demo_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/demo"
	"github.com/nightwarrant/nightwarrant/internal/leaks"
	"github.com/nightwarrant/nightwarrant/internal/leaks/leakstest"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/internal/tripwire"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// The whole story, on real processes: it holds, the nine attacks are refused, and nothing that it leaves behind (logs, tables of both
// databases, the queue's files, metrics, what was said) holds a token, a proof or a key.
func TestTheWholeStory(t *testing.T) {
	if _, _, err := localstack.FindPostgres(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-story-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL runs as another account
	binary := testbinary.Nightwarrant(t)

	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	defer cancel()
	var said bytes.Buffer
	var left struct {
		tables  [][]byte
		metrics []byte
	}
	told := map[string]int{} // what owners have heard, by type
	options := demo.Options{Binary: binary, Dir: dir, Env: os.Getenv, Lease: 2 * time.Second, Before: func(s *demo.Stack) {
		assert.Equal(t, []string{"A14.1"}, weakened(ctx, t, s, binary))
		for _, url := range s.Databases() {
			text, err := leaks.Database(ctx, url)
			assert.NoError(t, err)
			left.tables = append(left.tables, text)
		}
		left.metrics = s.Metrics(ctx)
		for _, m := range s.Heard() {
			told[m.Type]++
		}
	}}
	summary, err := demo.Story(ctx, options, &said)
	require.NoError(t, err, said.String())
	assert.True(t, summary.OK, said.String())
	assert.Equal(t, summary.Effects.Committed, summary.AppliedRows+summary.Approvals.Applied+summary.Spend.Calls, "what happened is what is recorded")
	assert.Len(t, summary.Attacks, 9)
	for _, a := range summary.Attacks {
		assert.True(t, a.Refused && a.Name != "" && a.Code != "", "%+v", a)
	}
	assert.EqualValues(t, summary.Effects.Ambiguous, told[notify.TypeAmbiguous], "owners hear of each effect that nobody knows about")
	assert.Positive(t, told[notify.TypeRunEnded])
	if os.Getenv(demo.EnvNATS) == "" {
		assert.Empty(t, summary.Closing.Skipped)
		assert.Zero(t, summary.Closing.Admitted)
		assert.Zero(t, summary.Closing.Applied)
		assert.Positive(t, summary.Closing.ClosedMS)
		assert.Positive(t, summary.Closing.Reopened)
	}

	known := append(append(leakstest.Material(t, filepath.Join(dir, "keys", "bundle"), filepath.Join(dir, "keys", "identity")), passwords(t, dir)...), scalars(t, dir)...)
	require.GreaterOrEqual(t, len(known), 10)
	logs, err := leaks.Files(filepath.Join(dir, "logs"), known...)
	require.NoError(t, err)
	assert.Empty(t, logs)
	queue, err := leaks.Files(filepath.Join(dir, "nats"), known...)
	require.NoError(t, err)
	assert.Empty(t, queue)
	if os.Getenv(demo.EnvDatabase) == "" {
		told, err := leaks.Files(filepath.Join(dir, "postgres", "postgres.log"), known...)
		require.NoError(t, err)
		assert.Empty(t, told)
	}
	require.Len(t, left.tables, 2)
	for _, text := range left.tables {
		assert.NotEmpty(t, text)
		assert.Empty(t, leaks.Search("tables", text, known...))
	}
	assert.Contains(t, string(left.metrics), "nightwarrant_requests_total")
	assert.Empty(t, leaks.Search("metrics", left.metrics, known...))
	assert.Empty(t, leaks.Search("what was said", said.Bytes(), known...))
}

// weakened has decisions forget a family, and returns the lines of the self-audit that name it. test/planted plants more.
func weakened(ctx context.Context, t *testing.T, s *demo.Stack, binary string) (failed []string) {
	t.Helper()
	c, err := pgx.Connect(ctx, s.Databases()[0])
	require.NoError(t, err)
	defer c.Close(ctx)
	var sound string
	require.NoError(t, c.QueryRow(ctx, `SELECT pg_get_functiondef('nw.always'::regproc)`).Scan(&sound))
	weak := strings.Replace(sound, "'audit', ", "", 1)
	require.NotEqual(t, sound, weak)
	_, err = c.Exec(ctx, weak)
	require.NoError(t, err)
	out, err := exec.CommandContext(ctx, binary, "tripwire", "--config", s.Path("tripwire.yaml"), "--json").Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 1, exit.ExitCode(), string(exit.Stderr))
	_, err = c.Exec(ctx, sound)
	require.NoError(t, err)
	var r tripwire.Report
	require.NoError(t, json.Unmarshal(out, &r), string(out))
	for _, l := range r.Lines {
		if l.Verdict == tripwire.Fail {
			failed = append(failed, l.ID)
		}
	}
	return failed
}

func passwords(t *testing.T, dir string) (all [][]byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "passwords.json"))
	require.NoError(t, err)
	var of map[string]string
	require.NoError(t, json.Unmarshal(text, &of))
	for _, p := range of {
		all = append(all, []byte(p))
	}
	return all
}

// scalars are the private keys of the issuers and of the people, who keep them in files.
func scalars(t *testing.T, dir string) (all [][]byte) {
	t.Helper()
	for _, of := range []string{"issuer", "idp", "people"} {
		files, err := os.ReadDir(filepath.Join(dir, of))
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(dir, of, f.Name()))
			require.NoError(t, err)
			block, _ := pem.Decode(text)
			if block == nil || block.Type != "PRIVATE KEY" {
				continue
			}
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			require.NoError(t, err)
			switch key := key.(type) {
			case *ecdsa.PrivateKey:
				scalar, err := key.Bytes()
				require.NoError(t, err)
				all = append(all, scalar)
			case *rsa.PrivateKey:
				all = append(all, key.D.Bytes(), key.Primes[0].Bytes())
			}
		}
	}
	require.GreaterOrEqual(t, len(all), 4, "the keys of the issuers and of the people were not understood")
	return all
}
