package planted

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutant is a bug in Go: the text that is there, once, what stands in its place, and the tests of one package that must fail with it.
type mutant struct {
	file, old, new string
	pkg, tests     string
}

var mutants = map[string]mutant{
	"a cached open is used to admit": {"authority/store.go", `case err == nil && verdict == "ok":`, `case err == nil && (verdict == "ok" || verdict == "admission_closed" && a.Gate.Known().Open):`,
		"./test/planted", "TestAnOpenCopyAdmitsNothing"},
	"a cached open that never grows old": {"readiness/readiness.go", "if age > MaxCacheAge || d.Valid <= 0 {", "if d.Valid <= 0 {",
		"./readiness", "TestASuspendedMachineKnowsNothing"},
	"an expired decision is renewed by asking again": {"readiness/readiness.go", "\td.Valid -= age\n", "",
		"./readiness", "TestACopyRunsOut"},
	"an older answer replaces a newer one": {"readiness/readiness.go", "old.Incarnation == next.Incarnation && old.Sequence > next.Sequence || ", "",
		"./readiness", "TestAfterALoss"},
	"retry after a commit error": {"internal/pg/outcome.go", "\treturn c.outcome(c.conn.QueryRow(ctx, sql, args...).Scan(dest...))\n",
		"\toutcome, err := c.outcome(c.conn.QueryRow(ctx, sql, args...).Scan(dest...))\n\tif outcome == Ambiguous {\n\t\treturn c.Call(ctx, sql, args, dest...)\n\t}\n\treturn outcome, err\n",
		"./internal/pg", "TestCallWithAnAnswerThatCannotBeReadIsAmbiguous"},
	"a commit error is a no": {"internal/pg/outcome.go", "\treturn Ambiguous\n", "\treturn NotApplied\n",
		"./internal/pg", "TestCallWhoseBackendIsKilledIsAmbiguous|TestClassify"},
	"a product takes an older decision": {"readiness/client/client.go", "case c.newest != nil && d.Older(c.newest):", "case false:",
		"./readiness/client", "TestOlderDecisionsAreIgnored"},
	"a product counts from the answer": {"readiness/client/client.go", "asked: watch,", "asked: map[bool]elapsed.Watch{true: c.watch(), false: watch}[true],",
		"./readiness/client", "TestTimeOfTheAnswerCounts"},
	"a product's state that does not end": {"readiness/client/state.go", "return s.open && s.asked.Elapsed() < s.valid", "return s.open",
		"./readiness/client", "TestStateEndsByItself"},
	"a later end is less": {"authority/document/narrow.go", "case c.Expires > most.Expires:", "case false:",
		"./authority/document", "TestAChoiceOfMoreIsRefused|TestWhatIsGrantedWasOffered"},
	"an optional grant is ticked beforehand": {"authority/document/narrow.go", "if g.Optional && !slices.Contains(c.Ticked, i) {\n\t\t\tcontinue", "if false {\n\t\t\tcontinue",
		"./authority/document", "TestAnEmptyChoiceTakesWhatIsRequired"},
	"a required grant may be left out": {"authority/document/narrow.go", "if !o.Optional && !slices.ContainsFunc", "if false && !slices.ContainsFunc",
		"./authority/document", "TestOnlyAChoiceIsWithin"},
	"a higher limit is less": {"authority/document/narrow.go", "!open && *l.a > *l.b || ", "",
		"./authority/document", "TestAChoiceOfMoreIsRefused|TestWhatIsGrantedWasOffered"},
	"a product says whose task it is": {"authority/document/product.go", `case "kind", "name", "client", "owner":`, `case "kind", "name":`,
		"./authority/document", "TestADetailIsNotATask"},
	"a go-ahead that does not run out": {"guards/serve.go", "return within - watch.Elapsed()", "return within",
		"./guards", "TestLateGoAheadIsNotApplied"},
}

// Each mutant is built over the sources that are there, and the tests that must notice it are run. They are run without it, too.
func TestPlantedInGo(t *testing.T) {
	if os.Getenv("NIGHTWARRANT_MUTANTS") == "" {
		t.Skip("builds a test binary for each bug: make mutants")
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			sound, err := m.test()
			require.NoError(t, err, "the sound build is found guilty: %s", sound)
			require.Contains(t, sound, "--- PASS: ", "no such tests: %s", m.tests)
			said, err := m.test("-overlay", m.overlay(t))
			failed, ran := errors.AsType[*exec.ExitError](err)
			require.True(t, ran, "the planted bug was not caught: %v", err)
			require.Equal(t, 1, failed.ExitCode(), said)
			require.Contains(t, said, "--- FAIL: ", "it does not even build: %s", said)
		})
	}
}

// root is the module's directory, where a test's own is test/planted.
var root = filepath.Join("..", "..")

func (m mutant) test(flags ...string) (said string, err error) {
	c := exec.Command("go", append([]string{"test", m.pkg, "-v", "-vet=off", "-timeout", "3m", "-run", "^(" + m.tests + ")$"}, flags...)...)
	c.Dir = root
	out, err := c.CombinedOutput()
	return string(out), err
}

// overlay is the file that tells the compiler to read the mutant in its original's place.
func (m mutant) overlay(t *testing.T) string {
	t.Helper()
	original, err := filepath.Abs(filepath.Join(root, m.file))
	require.NoError(t, err)
	text, err := os.ReadFile(original)
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(text, []byte(m.old)), "the text to edit is not once in %s: %s", m.file, m.old)
	dir := t.TempDir()
	edited := filepath.Join(dir, "mutant.go")
	require.NoError(t, os.WriteFile(edited, bytes.Replace(text, []byte(m.old), []byte(m.new), 1), 0o600))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: edited}})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	return overlay
}
