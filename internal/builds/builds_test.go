package builds

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNothingIsSaidByTheZeroBuild(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []any{nil, nil, nil, nil}, Build{Go: "go1.26.3", Module: "v1.0.0-c2097c7c", FIPS: true}.Columns())
}

// No text of a process reaches the database as it is.
func TestTextFromOutsideBecomesKnownOrNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "off", "off": "off", "latest": "latest", "v1.0.0-c2097c7c": "v1.0.0-c2097c7c", "v1.26.0": "v1.26.0",
		"v1.0.0-C2097C7C": "unknown", "v1.0.0-c2097c7c0": "unknown", "v1.0.0-c2097c7c\n": "unknown", "V1.0.0": "unknown", "'; DROP": "unknown", "inprocess": "unknown", "v1.0": "unknown",
	} {
		assert.Equal(t, want, Build{Binary: [32]byte{1}, Module: text}.Columns()[2], text)
	}
	for text, want := range map[string]any{
		"go1.26.3": int32(12603), "go1.26": int32(12600), "go1.5.10": int32(10510), "": nil, "devel go1.27-abcdef": nil, "go1.27rc1": nil, "go1.26.3 X:jsonv2": nil, "go2.0": nil, "go1.100": nil,
	} {
		assert.Equal(t, want, Build{Binary: [32]byte{1}, Go: text}.Columns()[1], text)
	}
	assert.Equal(t, "go1.26.3", GoRelease(12603))
}

func TestRunning(t *testing.T) {
	t.Parallel()
	b, err := Running()
	require.NoError(t, err)
	assert.NotZero(t, b.Binary)
	assert.Equal(t, runtime.Version(), b.Go)
}

func FuzzColumns(f *testing.F) {
	f.Add("go1.26.3", "v1.0.0-c2097c7c")
	f.Add("devel", "latest")
	f.Fuzz(func(t *testing.T, release, module string) {
		c := Build{Binary: [32]byte{1}, Go: release, Module: module}.Columns()
		if n, ok := c[1].(int32); ok && GoRelease(n) != release && GoRelease(n) != release+".0" && n%100 > 9 {
			t.Errorf("%q became %d", release, n)
		}
		if got := c[2].(string); got != module && got != "off" && got != "unknown" || len(got) > 21 {
			t.Errorf("%q became %q", module, got)
		}
	})
}
