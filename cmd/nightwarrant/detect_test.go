package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// Whatever becomes of the projected bundle, a replica that still has it in
// memory says so, and stops saying so when it is back.
func TestProjectedMaterialIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	other, _ := trusting(t)
	for name, spoil := range map[string]func(bundle, identity string) error{
		"taken away":  func(bundle, _ string) error { return os.RemoveAll(bundle) },
		"emptied":     func(bundle, _ string) error { return os.Remove(filepath.Join(bundle, "secrets.age")) },
		"no identity": func(_, identity string) error { return os.Remove(identity) },
		"open to all": func(_, identity string) error { return os.Chmod(identity, 0o644) },
		"cut":         func(bundle, _ string) error { return os.Truncate(filepath.Join(bundle, "secrets.age"), 100) },
		"another seal": func(bundle, _ string) error {
			return copyFile(filepath.Join(other.config.Keys.Dir, "secrets.age"), filepath.Join(bundle, "secrets.age"))
		},
		"exchanged": func(bundle, identity string) error {
			return errors.Join(os.RemoveAll(bundle), os.CopyFS(bundle, os.DirFS(other.config.Keys.Dir)), private(bundle), copyFile(other.config.Keys.IdentityFile, identity))
		},
		"the next generation": func(bundle, identity string) error {
			both, alone := bundle+".both", bundle+".alone"
			_, err := keys.Prepare(bundle, identity, both, 1, 1, nil)
			_, err2 := keys.Trim(both, identity, alone, 2, nil)
			return errors.Join(err, err2, os.RemoveAll(bundle), os.Rename(alone, bundle))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, s := trusting(t)
			saved := t.TempDir()
			require.NoError(t, os.CopyFS(saved, os.DirFS(s.dir)))
			require.Equal(t, readiness.Good, reasonOf(r.lookAtSigning(t.Context())))
			require.NoError(t, spoil(r.config.Keys.Dir, r.config.Keys.IdentityFile))
			assert.Equal(t, readiness.Material, reasonOf(r.lookAtSigning(t.Context())))
			assert.Equal(t, readiness.Good, reasonOf(r.lookAtNonces(t.Context())), "the keys in memory are the same")

			require.NoError(t, errors.Join(os.RemoveAll(s.dir), os.CopyFS(s.dir, os.DirFS(saved)), private(s.dir)))
			assert.Equal(t, readiness.Good, reasonOf(r.lookAtSigning(t.Context())))
		})
	}
}

// private gives back the modes that a copy has not.
func private(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		return err
	})
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, content, 0o600))
}

// A bundle that was prepared for a rotation is the same bundle. Whoever rolls it
// out exchanges the directory as a whole, in the middle of a look or not, and
// closes nothing.
func TestASuccessorIsTheSameUntilItIsActivated(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	now, next := filepath.Join(s.dir, "now"), filepath.Join(s.dir, "next")
	require.NoError(t, os.Rename(r.config.Keys.Dir, now))
	_, err := keys.Prepare(now, r.config.Keys.IdentityFile, next, 1, 1, nil)
	require.NoError(t, err)
	project := func(target string) {
		link := filepath.Join(s.dir, "link")
		assert.NoError(t, errors.Join(os.Symlink(target, link), os.Rename(link, r.config.Keys.Dir)))
	}
	project(now)
	for range 20 {
		for _, target := range []string{next, now} {
			exchanged := make(chan struct{})
			go func() { defer close(exchanged); project(target) }()
			assert.Equal(t, readiness.Good, reasonOf(r.lookAtSigning(t.Context())))
			<-exchanged
		}
	}
}

// An issuer that is gone is seen in the time that the operator chose, and an
// issuer that is back soon after; nobody has to present a token for that.
func TestAnIssuerThatIsGone(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	r.config.Assertion.Freshness = config.Freshness{Refresh: config.Duration(time.Second), MaxStale: config.Duration(time.Second)}
	require.NoError(t, r.trust())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.workloads.Run(ctx) }()
	look := func(want string) {
		t.Helper()
		var last string
		require.Eventually(t, func() bool {
			last = reasonOf(r.lookAtAttestation(ctx, []string{s.workloads.URL}))
			return last == want
		}, testWithin, 10*time.Millisecond, "want %s, last %s", want, &last)
	}
	look(readiness.Good)
	for _, answer := range []http.HandlerFunc{
		http.NotFound,
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) },
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		s.workloads.Serve(answer)
		look(readiness.Unreachable)
		s.workloads.Serve(nil)
		look(readiness.Good)
	}
	stop()
	<-done
	look(readiness.Stale) // nobody refreshes any more, and nothing failed
}

// A profile whose issuer this replica does not trust could be proved at other
// replicas only: that is no platform that is ready.
func TestAProfileOfAnIssuerThatIsNotTrusted(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	now := time.Now().Unix()
	_, err := r.assertions.Verify(t.Context(), s.workloads.Token(map[string]any{"sub": "x", "aud": s.url, "iat": now, "exp": now + 60}))
	require.NoError(t, err)
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtAttestation(t.Context(), []string{s.workloads.URL, s.workloads.URL})))
	for _, foreign := range []string{jwkstest.New(t).URL, s.workloads.URL + "/", "", s.platform.URL} {
		assert.Equal(t, readiness.Profile, reasonOf(r.lookAtAttestation(t.Context(), []string{s.workloads.URL, foreign})), foreign)
	}
}

// What is watched has to be there when a process starts.
func TestWatchedPathsExist(t *testing.T) {
	t.Parallel()
	s := newSite(t, unreachable)
	absent := filepath.Join(s.dir, "absent")
	env{}.run(t, "serve", "--config", s.with(t, "instance: one", "instance: one\ndisk: {paths: ["+absent+"]}")).
		bad(t, exitMisconfigured, "disk.paths cannot be watched: disk: \""+absent+"\" cannot be examined")
	r := env{}.run(t, "serve", "--config", s.with(t, "instance: one", "instance: one\ndisk: {paths: ["+s.dir+"], min_free_mb: 1048576}"))
	assert.Equal(t, exitFailed, r.code, "a disk that is full is reported, and is no mistake of the file: %s", r.err)
	file := write(t, t.TempDir(), "scheduler.yaml", schedulerConfig(t, unreachable, "nats://127.0.0.1:1", "x", "http://127.0.0.1:1", "127.0.0.1:1")+"disk: {paths: ["+absent+"]}\n")
	env{}.run(t, "scheduler", "--config", file).bad(t, exitMisconfigured, "disk.paths cannot be watched")
}

// What a replica found out at its start it finds out while it runs, too.
func TestServeReportsWhatChangesWhileItRuns(t *testing.T) {
	t.Parallel()
	db := teststack.DurableCluster(t)
	s := newSite(t, db.URL("nw_authority"))
	require.Equal(t, exitOK, s.register(t, db).code)
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.with(t, "instance: one", "instance: one\ndisk: {paths: ["+s.dir+"], min_free_mb: 1, min_free_percent: 1}"))
	owner := db.Pool(t, teststack.Owner)
	reported := func(family, want string) {
		t.Helper()
		var last string
		require.Eventually(t, func() bool {
			err := owner.QueryRow(t.Context(), `SELECT reason FROM nw.readiness_reports WHERE family = $1`, family).Scan(&last)
			return err == nil && last == want
		}, testWithin, 20*time.Millisecond, "%s: want %s, last %s", family, want, &last)
	}
	reported("store", readiness.Good)
	reported("signing", readiness.Good)
	reported("audit", readiness.Good)
	_, err := owner.Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	require.NoError(t, err)
	reported("store", readiness.Schema)
	require.NoError(t, os.Rename(filepath.Join(s.dir, "bundle"), filepath.Join(s.dir, "away")))
	reported("signing", readiness.Material)
	_, err = owner.Exec(t.Context(), `DELETE FROM goose_db_version WHERE version_id = 9999`)
	require.NoError(t, err)
	reported("store", readiness.Good)
	require.NoError(t, os.Rename(filepath.Join(s.dir, "away"), filepath.Join(s.dir, "bundle")))
	reported("signing", readiness.Good)
	assert.Equal(t, exitOK, r.end(), r.log)
}

// A lost stream or consumer closes and stays lost until an operator has made it
// again: by hand, or by starting a scheduler anew. The schedulers that run need
// no restart for that.
func TestAnOperatorHealsTheQueue(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	h.Apply(authoritytest.Registry(h.Workloads.URL))
	server := teststack.NATS(t)
	_, password, _ := strings.Cut(strings.TrimPrefix(server.URL(teststack.Admin), "nats://"), ":")
	password, host, _ := strings.Cut(password, "@")
	secret := write(t, t.TempDir(), "password", password)
	file := write(t, t.TempDir(), "scheduler.yaml", schedulerConfig(t, h.DB.URL("nw_scheduler"), "nats://"+host, password, server.MonitorURL(), "127.0.0.1:1"))
	scheduler := env{}.start(t, `"msg":"running"`, "scheduler", "--config", file)
	reported := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return h.Count(`SELECT count(*) FROM nw.readiness_reports r JOIN nw.instances i ON i.id = r.instance_id AND i.boot = r.boot WHERE r.family = 'queue' AND r.reason = '`+want+`'`) == 1
		}, testWithin, 20*time.Millisecond, "%s\n%s", want, scheduler.log)
	}
	reported("good")
	conn, err := nats.Connect(server.URL(teststack.Admin))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	apply := []string{"admin", "nats-config", "--apply", "--nats-url", "nats://" + host, "--nats-user", teststack.Admin, "--nats-password-file", secret}
	operator := env{config.EnvDatabaseURL: h.DB.URL("nw_operator")}

	require.NoError(t, js.DeleteStream(t.Context(), queue.Stream))
	reported("settings")
	operator.good(t, apply...)
	reported("good")

	deleteConsumers(t, js)
	reported("settings")
	operator.good(t, apply...)
	reported("good")

	deleteConsumers(t, js)
	reported("settings")
	assert.Equal(t, exitOK, scheduler.end(), scheduler.log)
	scheduler = env{}.start(t, `"msg":"running"`, "scheduler", "--config", file)
	reported("good")
	assert.Equal(t, exitOK, scheduler.end(), scheduler.log)
}

// deleteConsumers deletes every queue's consumer, of which there is one at least.
func deleteConsumers(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	stream, err := js.Stream(t.Context(), queue.Stream)
	require.NoError(t, err)
	deleted := 0
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if strings.HasPrefix(name, "q_") {
			require.NoError(t, stream.DeleteConsumer(t.Context(), name))
			deleted++
		}
	}
	require.Positive(t, deleted)
}
