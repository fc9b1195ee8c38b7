// Package deptest holds the direction of imports: they point down the path of a
// run, and each ban has its reason.
package deptest

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const module = "github.com/nightwarrant/nightwarrant/"

// ban says that a package must not depend on another, directly or through others.
type ban struct{ from, to, because string }

var bans = []ban{
	{"authority", "scheduler", "the authority decides without knowing who fires tasks"},
	{"authority", "guards", "the authority must not trust a guard's reading of anything"},
	{"authority", "worker", "the authority shares no code with those it judges"},
	{"authority", "internal/server", "deciding does not know of HTTP"},
	{"authority", "github.com/danielgtaylor/huma", "deciding does not know how it is described"},
	{"authority", "console", "deciding does not know of pages"},
	{"console", "internal/server", "pages call the verbs that the API calls, and not the API"},
	{"authority", "internal/session", "an actor is made from what a door has found out, and not found out here"},
	{"internal/principal", "github.com/jackc/pgx", "who somebody is depends on nothing that is stored"},
	{"internal/session", "console", "the door does not know what is behind it"},
	{"internal/session", "internal/server", "a browser's session opens no call of the API"},
	{"internal/login", "internal/server", "signing in opens no call of the API"},
	{"readiness", "authority", "readiness stands below the authority, which asks its gate"},
	{"readiness", "keys", "a decision is derived from reports, not from material"},
	{"readiness/client", "github.com/jackc/pgx", "a product must not inherit a database driver"},
	{"readiness/client", "github.com/nats-io", "a product must not inherit a broker"},
	{"cmd/nightwarrant", "github.com/miekg/pkcs11", "a vendor's library runs in the key host's process, never in the authority's"},
	{"keys/keyhost", module, "what stands between us and a token knows nothing else"},
	{"keys", "readiness", "keys know nothing of admission"},
	{"keys", "github.com/jackc/pgx", "no key material comes near the database"},
	{"keys", "keys/provenance", "a bundle holds a record's digest, and judges none"},
	{"keys/provenance", "github.com/jackc/pgx", "where a key comes from is judged without asking anybody"},
	{"cmd/nightwarrant", "keys/provenance/synthetic", "a program that is shipped takes no software token"},
	{"scheduler", "authority/attestation", "the scheduler identifies nobody"},
	{"scheduler", "keys", "the scheduler holds no key"},
	{"guards", "github.com/jackc/pgx", "who adds a guard must not inherit a database driver"},
	{"guards", "github.com/nats-io", "who adds a guard must not inherit a broker"},
	{"guards", "keys", "guards hold no key of the cluster"},
	{"guards", "internal/pg", "who adds a guard must not inherit a database"},
	{"guards", "go.etcd.io/bbolt", "who adds a guard must not inherit a file store"},
	{"guards/internal/journal", "github.com/jackc/pgx", "a local ledger reaches no database"},
	{"guards/http", "github.com/jackc/pgx", "a guard of an API reaches no database"},
	{"guards/internal/scrub", module, "what keeps secrets in knows nothing else"},
	{"guards/internal/upstream", module, "who reaches out knows nothing else"},
	{"guards/internal/credential", module, "who holds secrets knows nothing else"},
	{"worker", "github.com/jackc/pgx", "a worker reaches no database"},
	{"worker", "github.com/nats-io", "worker/natsqueue brings its own; another queue must be possible"},
	{"worker", "keys", "workers hold no key of the cluster"},
	{"worker", "guards", "a worker knows a guard by its URI only"},
	{"worker", "google.golang.org/grpc", "who reads an assertion from a file must not inherit gRPC; worker/spiffe brings it"},
	{"guards", "google.golang.org/grpc", "who adds a guard must not inherit gRPC; worker/spiffe brings it"},
	{"readiness/client", "google.golang.org/grpc", "a product must not inherit gRPC"},
	{"worker/spiffe", module, "what asks an agent knows nothing else"},
	{"worker/exec", "google.golang.org/grpc", "what runs commands asks no agent"},
	{"worker/exec", "github.com/jackc/pgx", "a worker reaches no database"},
	{"worker/exec", "github.com/nats-io", "what runs commands knows no queue"},
	{"worker/exec", "keys", "workers hold no key of the cluster"},
	{"worker/exec", "guards", "a worker knows a guard by its URI only"},
	{"worker/natsqueue", "github.com/jackc/pgx", "a worker reaches no database"},
	{"guards/postgres", "github.com/nats-io", "a resource's guard needs no broker"},
	{"guards/model", "github.com/nats-io", "a model's guard needs no broker"},
	{"guards/model", "github.com/jackc/pgx", "a model's guard needs no database"},
	{"guards/guardtest", "github.com/jackc/pgx", "who tests a guard must not inherit a database driver"},
	{"guards/guardtest", "github.com/nats-io", "who tests a guard must not inherit a broker"},
	{"authority/api", module, "the wire types are a leaf"},
	{"authority/canonical", module, "the spelling of documents is a leaf"},
	{"authority/audit", module, "the check of a log needs nothing of who wrote it"},
	{"authority/receipt", "github.com/jackc/pgx", "who checks a run receipt must not inherit a database driver"},
	{"authority/receipt", "keys", "the check of a run receipt needs nothing of who signed it"},
	{"authority/audit/witness", "github.com/jackc/pgx", "a witness knows no record"},
	{"authority/audit/witness", "keys", "a witness has no key of the cluster"},
	{"internal/compliance", "github.com/jackc/pgx", "a report is made of what it is given, and asks nobody"},
	{"internal/tripwire", "keys", "who audits from outside holds no key of the cluster"},
	{"internal/tripwire", "migrations", "who audits from outside knows no table"},
	{"internal/tripwire", "internal/server", "who attacks shares nothing with what is attacked but the words of the wire"},
	{"internal/webhook", module, "the signature of webhooks is a leaf"},
	{"internal/directory", "github.com/jackc/pgx", "of what the directory says nothing is kept"},
	{"scheduler/notify", "github.com/jackc/pgx", "what posts to a receiver reaches no database"},
	{"scheduler/timetable", "github.com/jackc/pgx", "when a task fires is pure"},
}

// leaf packages of our own that a module package may import although it is banned from everything else of the module.
var leaves = map[string][]string{
	"authority/capability": {"authority/canonical"},
	"authority/catalogue":  {"authority/canonical"},
	"internal/openapi":     {"authority/api", "authority/canonical"}, // what reads strictly and describes decides nothing
	"guards":               {"authority/api", "authority/canonical", "authority/capability", "authority/catalogue", "internal/dpopclient", "internal/elapsed", "internal/issuerkeys"},
	"guards/guardtest":     {"authority/api", "authority/canonical", "authority/capability", "guards/internal/authoritytest", "internal/freeport"}, // and no guard
	"readiness/client":     {"authority/api", "authority/canonical", "authority/capability", "internal/elapsed", "internal/issuerkeys"},
	"worker":               {"authority/api", "authority/canonical", "authority/capability", "internal/dpopclient"},
	"internal/directory":   {"authority/canonical"},
	"internal/dpopclient":  {"authority/api", "authority/canonical", "authority/capability"},
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	for _, b := range bans {
		t.Run(b.from+" → "+b.to, func(t *testing.T) {
			t.Parallel()
			for _, d := range dependencies(t, b.from) {
				banned := strings.HasPrefix(d, b.to) || d == module+b.to || strings.HasPrefix(d, module+b.to+"/")
				if b.from == "authority" && b.to == "scheduler" && d == module+"scheduler/timetable" {
					continue // a pure leaf: a schedule must be valid before it is offered
				}
				assert.False(t, banned && d != module+b.from, "%s depends on %s, but %s", b.from, d, b.because)
			}
		})
	}
}

func TestLeavesImportLeavesOnly(t *testing.T) {
	t.Parallel()
	for from, may := range leaves {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			for _, d := range dependencies(t, from) {
				ours, is := strings.CutPrefix(d, module)
				if !is || ours == from {
					continue
				}
				ok := slices.ContainsFunc(may, func(m string) bool { return ours == m || strings.HasPrefix(ours, m+"/") })
				assert.True(t, ok, "%s must not depend on %s", from, ours)
			}
		})
	}
}

// No package of ours has C in it: the authority is one static binary, and the key host's C is its library's.
func TestNoCgo(t *testing.T) {
	t.Parallel()
	for path, p := range packages(t) {
		if strings.HasPrefix(path, module) {
			assert.Empty(t, p.CgoFiles, path)
		}
	}
}

// dependencies lists what a package depends on, without its tests and without the standard library.
func dependencies(t *testing.T, of string) []string {
	t.Helper()
	all := packages(t)
	require.Contains(t, all, module+of)
	var deps []string
	for _, d := range all[module+of].Deps {
		if p, ok := all[d]; !ok || !p.Standard { // what is not listed is nobody's exception
			deps = append(deps, d)
		}
	}
	return append(deps, module+of)
}

// listed is what the go command says of a package.
type listed struct {
	ImportPath string
	Standard   bool
	CgoFiles   []string
	Deps       []string // all of them, direct or not
}

// list asks the go command once: each question of its own costs as much as all of them.
var list = sync.OnceValues(func() (map[string]listed, error) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,CgoFiles,Deps", module+"...").Output()
	if err != nil {
		return nil, err
	}
	all := map[string]listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
	return all, nil
})

func packages(t *testing.T) map[string]listed {
	t.Helper()
	all, err := list()
	require.NoError(t, err)
	return all
}
