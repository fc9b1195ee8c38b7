package planted

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/demo"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/internal/tripwire"
)

// weakness is a bug in a running deployment, in the database or in its processes, and the one line of the self-audit that must name it.
type weakness struct {
	name, line string
	bugs       []bug
	in         mutant // nothing where the bug is the database's
}

var weaknesses = []weakness{
	{"what is not granted is minted", "A16.1", []bug{{"mint", "WHEN g.consent_id IS NULL OR p_amount > g.max_amount", "WHEN p_amount > g.max_amount"}}, mutant{}},
	{"a held run is given away", "A16.5", []bug{{"claim", "(r.state = 'claimed' AND NOT again AND (r.lease_until > t OR r.inflight > 0))", "false"}}, mutant{}},
	{"a proof is good twice", "A16.6", []bug{{"spend_proof", "IF NOT FOUND THEN RAISE EXCEPTION 'proof_replayed' USING ERRCODE = 'NW409'; END IF;", ""}}, mutant{}},
	{"an ambiguous effect is minted again", "A16.9", []bug{{"mint", "x.digest = p_digest AND x.state = 'ambiguous'", "false"}}, mutant{}},
	{"a role accepts every registered profile", "A15.5", []bug{{"claim", "OR NOT accepted THEN", "THEN"}}, mutant{}},
	{"claims pass a closed gate", "A14.2", []bug{{"claim", "d := nw.admitting();", "SELECT * INTO d FROM nw.readiness_decision;"}},
		mutant{file: "authority/authority.go", old: "if d := a.Gate.Known(); !d.Open {", new: "if d := a.Gate.Known(); !d.Open && false {"}}, // which refuses early

	{"a guard that is absent is good enough", "A16.8", []bug{{"judge", "WHEN j.good >= j.needed THEN NULL", "WHEN j.good >= j.needed OR j.family = 'guards' THEN NULL"}}, mutant{}},
	{"a family is forgotten", "A14.1", []bug{{"always", "'audit', ", ""}}, mutant{}},
	{"an assertion's signature is not looked at", "A16.2", nil, mutant{file: "internal/jwks/token.go", old: "if !k.verify(p) {", new: `if !k.verify(p) && !strings.HasPrefix(p.Subject, "system:") {`}},
	{"a bearer scheme is taken", "A15.4", nil, mutant{file: "authority/capability/refusal.go", old: `if !strings.EqualFold(scheme, "DPoP") {`, new: `if !strings.EqualFold(scheme, "DPoP") && !strings.EqualFold(scheme, "Bearer") {`}},
	{"a capability is logged", "A12", nil, mutant{file: "internal/server/handlers.go", old: "\t\tvar in In\n\t\tif err := readJSON(r, &in)", new: "\t\ts.log.Info(\"a call\", \"token\", token.Reveal())\n\t\tvar in In\n\t\tif err := readJSON(r, &in)"}},
	{"a listener that nobody declared", "B18", nil, mutant{file: "cmd/nightwarrant/serve.go", old: "\ttasks, ctx := errgroup.WithContext(ctx)\n\tserveOn(ctx, tasks, public",
		new: "\tdebug, _, err := listen(ctx, fmt.Sprintf(\"127.0.0.1:%d\", admin.Addr().(*net.TCPAddr).Port+20), \"\")\n\tif err != nil {\n\t\treturn err\n\t}\n\tdefer debug.Close()\n\ttasks, ctx := errgroup.WithContext(ctx)\n\tserveOn(ctx, tasks, public"}},
	{"replicas publish different keys", "A11.1", nil, mutant{file: "internal/server/handlers.go", old: "_, _ = w.Write(set)", new: `nonce := w.Header().Get(api.HeaderNonce); _, _ = fmt.Fprintf(w, "%s%*s", set, 1+int(nonce[len(nonce)-5]), "")`}},
}

// Each weakness is planted in a deployment that passes its self-audit, and is named by its line and by no other.
func TestTripwire(t *testing.T) {
	if os.Getenv("NIGHTWARRANT_TRIPWIRE") == "" {
		t.Skip("audits a stack once for each weakness: make tripwire")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-planted-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL runs as another account
	sound := built(t, dir)
	s, err := demo.New(demo.Options{Binary: sound, Dir: dir, Env: func(string) string { return "" }, Lease: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	for _, step := range []func(context.Context) error{s.Start, s.Register, s.StartRest, func(ctx context.Context) error { return s.WaitOpen(ctx, 2*time.Minute) }} {
		require.NoError(t, step(ctx))
	}
	require.Empty(t, failed(t, s, sound), "the sound build is found guilty")
	running := sound
	for _, w := range weaknesses {
		t.Run(w.name, func(t *testing.T) {
			binary := sound
			if w.in.file != "" {
				binary = built(t, t.TempDir(), "-overlay", w.in.overlay(t))
			}
			if binary != running {
				require.NoError(t, s.Rebuild(ctx, binary))
				running = binary
			}
			defer weaken(ctx, t, s, w.bugs)()
			forget(t, s)
			assert.Equal(t, []string{w.line}, failed(t, s, binary))
		})
	}
}

func built(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	binary := filepath.Join(dir, "nightwarrant")
	c := testbinary.Go(t.Context(), "build", append(append([]string{"-o", binary}, flags...), "./cmd/nightwarrant")...)
	c.Dir = root
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// failed are the lines that did not hold.
func failed(t *testing.T, s *demo.Stack, binary string) (ids []string) {
	t.Helper()
	out, err := exec.Command(binary, "tripwire", "--config", s.Path("tripwire.yaml"), "--close-gate", "--json").Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		require.Equal(t, 1, e.ExitCode(), string(e.Stderr))
	} else {
		require.NoError(t, err)
	}
	var r tripwire.Report
	require.NoError(t, json.Unmarshal(out, &r), string(out))
	require.Greater(t, len(r.Lines), 20)
	require.Equal(t, err != nil, r.Failed())
	for _, l := range r.Lines {
		assert.NotEmpty(t, l.Evidence, l.ID)
		assert.NotEqual(t, tripwire.NotApplicable, l.Verdict, l.ID)
		if l.Verdict != tripwire.Pass {
			t.Logf("%s %s: %s", l.ID, l.Title, l.Evidence)
			ids = append(ids, l.ID)
		}
	}
	return ids
}

// forget empties the logs, so that what one weakness has written there is not another's.
func forget(t *testing.T, s *demo.Stack) {
	t.Helper()
	logs, err := filepath.Glob(s.Path("logs", "*"))
	require.NoError(t, err)
	for _, file := range logs {
		require.NoError(t, os.Truncate(file, 0))
	}
}

// weaken edits verbs in a stack's database. What it returns puts them back.
func weaken(ctx context.Context, t *testing.T, s *demo.Stack, bugs []bug) (restore func()) {
	t.Helper()
	c, err := pgx.Connect(ctx, s.Databases()[0])
	require.NoError(t, err)
	before := make([]string, len(bugs))
	for i, b := range bugs {
		require.NoError(t, c.QueryRow(ctx, `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'nw'::regnamespace AND proname = $1`, b.verb).Scan(&before[i]))
		require.Equal(t, 1, strings.Count(before[i], b.old), b.old)
		_, err := c.Exec(ctx, strings.Replace(before[i], b.old, b.new, 1))
		require.NoError(t, err)
	}
	return func() {
		for _, source := range before {
			_, err := c.Exec(ctx, source)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close(ctx))
	}
}
