package docs

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/server"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/internal/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

var (
	row       = regexp.MustCompile(`(?m)^\| ([AB]\d+) \| ([^|]+) \|([^|]*)\|([^|]*)\|$`)
	reference = regexp.MustCompile("`([^`#]+)#([^`]+)`")
)

// Every id of the mission is there once; what is said to hold names code and tests; all of them exist.
func TestThreatModel(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, "threat-model.md"), -1) {
		id, state, code, tests := m[1], m[2], m[3], m[4]
		assert.False(t, seen[id], "%s stands twice", id)
		seen[id] = true
		names := reference.FindAllStringSubmatch(code, -1)
		attacks := reference.FindAllStringSubmatch(tests, -1)
		if !strings.HasPrefix(state, "not yet") {
			assert.NotEmpty(t, names, "%s names no code", id)
			assert.NotEmpty(t, attacks, "%s names no test", id)
		}
		for _, r := range names {
			assert.Contains(t, read(t, filepath.Join("..", r[1])), r[2], "%s: %s", id, r[1])
		}
		for _, r := range attacks {
			assert.True(t, hasTest(t, filepath.Join("..", r[1]), r[2]), "%s: there is no %s in %s", id, r[2], r[1])
		}
	}
	for i := 1; i <= 18; i++ {
		assert.True(t, seen[fmt.Sprintf("A%d", i)], "A%d is missing", i)
		assert.True(t, seen[fmt.Sprintf("B%d", i)], "B%d is missing", i)
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, f := range files {
		if strings.Contains(read(t, f), "func "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}

// Every route of the authority stands on the network page, with its side of the gate; and every configured address is named.
func TestNetwork(t *testing.T) {
	t.Parallel()
	const heading = "## Routes of the authority\n\n"
	head, _, _ := strings.Cut(read(t, "reference/network.md"), heading)
	page := generated(t, "reference/network.md", head+heading+routes())
	for _, m := range keyRow.FindAllStringSubmatch(read(t, "reference/configuration.md"), -1) {
		if key := m[1]; address.MatchString(key) && !slices.Contains([]string{"console.origin", "nats.replicas", "uri"}, key) { // what others call us, and a number
			parts := strings.Split(key, ".")
			assert.True(t, strings.Contains(page, "`"+key+"`") || strings.Contains(page, "`"+parts[len(parts)-1]+"`"), "%s is not named", key)
		}
	}
}

// address is a key of a configuration that says where to listen, or whom to contact.
var address = regexp.MustCompile(`(^|\.|_)(url|socket|listen|origin|host|authority|replicas|admin|uri)$`)

// sites are the only sources that open a listener or contact anybody, each with what the network page says of it. Tests, and what only tests
// import, are no part of a program.
var sites = map[string][2]string{ // opens, contacts
	"authority/attestation/review.go":      {"", "token_review.url"},
	"authority/audit/witness/client.go":    {"", "audit.witnesses[].url"},
	"cmd/nightwarrant/serve.go":            {"`admin_listen`", ""},
	"cmd/nightwarrant/doctor.go":           {"", "`doctor`"},
	"cmd/nightwarrant/fips.go":             {"", "nats.url"},
	"cmd/nightwarrant/nats.go":             {"", "nats.url"},
	"cmd/nightwarrant/person.go":           {"", "`--authority`"},
	"cmd/nightwarrant/worker.go":           {"", "its authority"},
	"cmd/nightwarrant-keyhost/main.go":     {"`nightwarrant-keyhost`", "`nightwarrant-keyhost`"},
	"guards/guards.go":                     {"", "| `guard` | `authority` |"},
	"guards/internal/upstream/upstream.go": {"", "operations[].request.url"},
	"internal/bench/bench.go":              {"", "`bench`"},
	"internal/bench/floor.go":              {"", "`bench`"},
	"internal/bench/load.go":               {"", "`bench`"},
	"internal/bench/pages.go":              {"", "`bench`"},
	"internal/bench/requests.go":           {"", "`bench`"},
	"internal/closing/faults.go":           {"", "`bench`"},
	"internal/closing/lane.go":             {"`bench`", "`bench`"},
	"internal/closing/meter.go":            {"", "`bench`"},
	"internal/demo/asked.go":               {"as a language model", ""},
	"internal/demo/config.go":              {"", "`demo`, `dev`"},
	"internal/demo/stack.go":               {"a proxy in front of two replicas", "`demo`, `dev`"},
	"internal/dev/directory.go":            {"`dev-directory`", "`dev-directory`"},
	"internal/dev/receiver.go":             {"a receiver of what owners are told", ""},
	"internal/dev/run.go":                  {"`dev-issuer`, `dev-idp`", ""},
	"internal/directory/scim.go":           {"", "directory.url"},
	"internal/doctor/certificate.go":       {"", "`doctor`"},
	"internal/doctor/database.go":          {"", "`doctor`"},
	"internal/dpopclient/client.go":        {"", "its authority"},
	"internal/fips/queue.go":               {"", "nats.url"},
	"internal/freeport/freeport.go":        {"a free port", ""},
	"internal/fsck/fsck.go":                {"", "`--database-url`"},
	"internal/jwks/fetch.go":               {"", "assertion.issuers[].url"},
	"internal/localstack/nats.go":          {"`dev-nats`", ""},
	"internal/login/client.go":             {"", "`console.login`"},
	"internal/mail/mail.go":                {"", "approvals.mail.url"},
	"internal/pg/pool.go":                  {"", "`database_url`"},
	"internal/tripwire/look.go":            {"", "`hosts[].host`"},
	"keys/keyhost/client.go":               {"", "keys.host.socket"},
	"readiness/client/client.go":           {"", "`readiness/client`"},
	"scheduler/notify/webhook.go":          {"", "approvals.webhook.url"},
	"scheduler/queue/canary.go":            {"", "nats.monitor_url"},
	"worker/exec/socket.go":                {"`worker exec` opens a Unix socket", "`worker exec` opens a Unix socket"},
	"worker/model.go":                      {"", "guards that the consent names"},
	"worker/transport.go":                  {"", "its authority"},
	"worker/worker.go":                     {"", "its authority"},
	"worker/natsqueue/natsqueue.go":        {"", "queue.url"},
	"worker/spiffe/spiffe.go":              {"", "assertion.spiffe.socket"},
}

var (
	opens    = regexp.MustCompile(`\.Listen(TCP|Unix|Packet|UDP)?\(|\.ListenAndServe|server\.NewServer\(`)
	contacts = regexp.MustCompile(`http\.Client\{|http\.Default|http\.(Get|Post|Head)\(|\.Dial(Context|Timeout|TLS|Unix|TCP)?\(|nats\.Connect\(|pgx\.Connect|pgxpool\.New|smtp\.Dial|workloadapi\.New|grpc\.NewClient`)
	tester   = regexp.MustCompile(`_test\.go$|^test/|^build/|^tools/|[a-z]+test/|^internal/(teststack|testbinary|leaks)/|^internal/mail/sink/`)
)

// Whatever opens a listener or contacts anybody is on the list, and what the list says of it is on the page.
func TestNothingElseIsOpenedOrContacted(t *testing.T) {
	t.Parallel()
	page := read(t, "reference/network.md")
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || tester.MatchString(name) {
			return err
		}
		source := comment.ReplaceAllString(read(t, path), "")
		site, listed := sites[name]
		if opens.MatchString(source) {
			found[name] = true
			assert.True(t, listed && site[0] != "", "%s opens a listener that is not on the list", name)
		}
		if contacts.MatchString(source) {
			found[name] = true
			assert.True(t, listed && site[1] != "", "%s contacts somebody who is not on the list", name)
		}
		return nil
	}))
	for name, site := range sites {
		assert.True(t, found[name], "%s opens and contacts nothing any more", name)
		for _, words := range site {
			assert.Contains(t, page, words, name)
		}
	}
}

var comment = regexp.MustCompile(`(?m)^\s*//.*$`)

func routes() string {
	var b strings.Builder
	b.WriteString("| method | path | while the gate is closed |\n|---|---|---|\n")
	for _, r := range server.New(&authority.Authority{}, nil, nil).Routes() {
		closed := "answers"
		if r.Gated {
			closed = "refuses new work"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", r.Method, r.Path, closed)
	}
	return b.String()
}

// The table of refusal codes is the code's own.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const head = "# Refusal codes\n\nA code is never renamed. `try again` is the member `retry` of the problem document; a status is that of the\n" +
		"token endpoint, and everywhere else `use_dpop_nonce`, `invalid_dpop_proof` and `proof_replayed` are 401 with a challenge; of `invalid_token`,\n" +
		"which is 400 at the token endpoint, it is that of everywhere else.\n\n"
	generated(t, "reference/refusals.md", head+refusals())
}

// generated holds a page against what the code says, and returns it. With UPDATE_DOCS set it writes the page first.
func generated(t *testing.T, path, want string) string {
	t.Helper()
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	page := read(t, path)
	assert.Equal(t, want, page, "write it anew with UPDATE_DOCS=1 go test ./docs")
	return page
}

func refusals() string {
	var lines []string
	for _, c := range api.Codes() {
		lines = append(lines, fmt.Sprintf("| `%s` | %d | `%s` | %s | %s |\n", c, c.Status(), c.OAuthError(), c.Retry(), c.Sentence()))
	}
	sort.Strings(lines)
	return "| code | status | error | try again | what to do |\n|---|---|---|---|---|\n" + strings.Join(lines, "")
}

// The verifier that receivers are shown takes what the schedulers send, and nothing else.
func TestVerifierOfWebhooks(t *testing.T) {
	t.Parallel()
	_, code, ok := strings.Cut(read(t, "how-to/receive-webhooks.md"), "```go\n")
	require.True(t, ok)
	code, _, _ = strings.Cut(code, "```")
	assert.LessOrEqual(t, strings.Count(code, "\n"), 24)
	const secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`
	s, err := webhook.ParseSecret(secret)
	require.NoError(t, err)
	at, h := time.Unix(1614265330, 0), http.Header{}
	s.Sign(h, "msg_1", at, []byte(body))
	program := fmt.Sprintf(`package main

import ("crypto/hmac"; "crypto/sha256"; "encoding/base64"; "fmt"; "net/http"; "strconv"; "strings"; "time")

%s
func main() {
	h, at := http.Header{"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {"1614265330"}, "Webhook-Signature": {"v1,AAAA %s"}}, time.Unix(1614265330, 0)
	fmt.Print(verify(%q, h, []byte(%q), at), verify(%q, h, []byte("other"), at), verify(%q, h, []byte(%q), at.Add(301*time.Second)), verify("", h, []byte(%q), at))
}`, code, h.Get(webhook.HeaderSignature), secret, body, secret, secret, body, body)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := testbinary.Go(t.Context(), "run", file).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Equal(t, "true false false false", string(out))
}
