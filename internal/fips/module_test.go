package fips

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/testbinary"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatAFIPSDeploymentRunsIn(t *testing.T) {
	t.Parallel()
	good := Module{Enabled: true, Version: "v1.0.0", Build: "v1.0.0-c2097c7c"}
	require.Empty(t, good.Refusal())
	for name, c := range map[string]struct {
		change func(*Module)
		want   string
	}{
		"built without a module, enabled by GODEBUG": {func(m *Module) { m.Version, m.Build, m.Godebug = "latest", "", "on" }, ModuleUnpinned},
		"the tree's own state":                       {func(m *Module) { m.Version, m.Build = "latest", "latest" }, ModuleUnpinned},
		"a version that names no snapshot":           {func(m *Module) { m.Build = "v1.0.0" }, ModuleUnpinned},
		"another snapshot of that version":           {func(m *Module) { m.Build = "v1.0.0-00000000" }, ModuleUnpinned},
		"more than the snapshot's name":              {func(m *Module) { m.Build = "v1.0.0-c2097c7c0" }, ModuleUnpinned},
		"a snapshot of tomorrow":                     {func(m *Module) { m.Version, m.Build = "v1.99.0", "v1.99.0-c2097c7c" }, ModuleUnpinned},
		"switched off":                               {func(m *Module) { m.Enabled, m.Godebug = false, "off" }, ModuleDisabled},
		"off, although it says otherwise":            {func(m *Module) { m.Godebug = "off" }, ModuleDisabled},
		"not running":                                {func(m *Module) { m.Enabled = false }, ModuleDisabled},
		"nothing at all":                             {func(m *Module) { *m = Module{} }, ModuleDisabled},
	} {
		m := good
		c.change(&m)
		assert.Equal(t, c.want, m.Refusal(), name)
	}
}

func TestSetting(t *testing.T) {
	t.Parallel()
	for godebug, want := range map[string]string{
		"": "", "fips140=only": "only", "http2client=0,fips140=off": "off", "fips140=on,fips140=off": "off", "xfips140=off": "", "http2client=0, fips140=on": "on",
	} {
		assert.Equal(t, want, setting(godebug), godebug)
	}
}

func TestRunningIsThisProcess(t *testing.T) {
	t.Parallel()
	m, err := Running()
	require.NoError(t, err)
	assert.Equal(t, runtime.Version(), m.Go)
	assert.NotZero(t, m.BinarySHA256)
}

// What the real toolchain makes of each way to build and to start.
func TestBuilds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct{ gofips140, godebug, build, refusal string }{
		{"off", "", "", ModuleDisabled},
		{"off", "fips140=on", "", ModuleUnpinned},
		{"v1.0.0", "", "v1.0.0-c2097c7c", ""},
		{"v1.0.0", "fips140=only", "v1.0.0-c2097c7c", ""},
		{"v1.0.0", "fips140=off", "v1.0.0-c2097c7c", ModuleDisabled},
	} {
		binary := filepath.Join(dir, c.gofips140)
		if _, err := os.Stat(binary); err != nil {
			build := testbinary.Go(t.Context(), "build", "-o", binary, "./testdata/running")
			build.Env = append(build.Env, "GOFIPS140="+c.gofips140)
			out, err := build.CombinedOutput()
			require.NoError(t, err, string(out))
		}
		run := exec.Command(binary)
		run.Env = []string{"GODEBUG=" + c.godebug}
		out, err := run.Output()
		require.NoError(t, err, string(out))
		var said struct {
			Module
			Refusal string `json:"refusal"`
		}
		require.NoError(t, json.Unmarshal(out, &said))
		assert.Equal(t, c.refusal, said.Refusal, c)
		assert.Equal(t, c.build, said.Build, c)
	}
}
