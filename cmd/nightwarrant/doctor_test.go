package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/doctor"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// An installation of which only the issuers and the directory are up: each that
// is not is named, with what to do, and no secret.
func TestDoctor(t *testing.T) {
	t.Parallel()
	s := newSite(t, unreachable)
	r := env{}.run(t, "doctor", "--json", "--authority-config", s.file, "--scheduler-config", filepath.Join(s.dir, "absent"))
	assert.Equal(t, exitFailed, r.code)
	assert.NotContains(t, r.out+r.err, "hunter2")
	found := diagnosis(t, r)
	for check, want := range map[string]doctor.Verdict{
		"authority.file": doctor.OK, "authority.trust": doctor.OK, "authority.assertion": doctor.OK, "authority.envelope": doctor.OK, "authority.directory": doctor.OK,
		"authority.database.connection": doctor.Bad, "authority.bundle": doctor.Bad, "authority.metadata": doctor.Bad, "scheduler.file": doctor.Bad,
	} {
		assert.Equal(t, want, found[check].Verdict, check)
		assert.Equal(t, want == doctor.Bad, found[check].Remedy != "", check)
	}
	env{}.run(t, "doctor").bad(t, exitFailed, "at least one of the flags")
	env{}.run(t, "doctor", "--authority-config", s.file, "--roots", s.file).bad(t, exitMisconfigured, "no PEM certificate")
}

// The bundle is held against what is registered.
func TestDoctorHoldsTheBundleAgainstTheDatabase(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s, other := newSite(t, db.URL("nw_authority")), newSite(t, unreachable)
	bundle := func() doctor.Finding {
		return diagnosis(t, env{}.run(t, "doctor", "--json", "--authority-config", s.file))["authority.bundle"]
	}
	assert.Contains(t, bundle().What, "no bundle is registered")
	other.register(t, db)
	assert.Contains(t, bundle().What, "belongs to another cluster")
}

func diagnosis(t *testing.T, r result) map[string]doctor.Finding {
	t.Helper()
	var all []doctor.Finding
	require.NoError(t, json.Unmarshal([]byte(r.out), &all), r.err)
	found := map[string]doctor.Finding{}
	for _, f := range all {
		found[f.Check] = f
	}
	return found
}
