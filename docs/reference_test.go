package docs

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

const apiHead = `# The API

Everything that the authority answers under its issuer, made from what it registers. [openapi.json](openapi.json) says the same
to programs, with the schema of each body; the authority serves it at ` + "`/v1/openapi.json`" + `.

* **Who asks.** A member, operator or auditor sends ` + "`Nightwarrant-Envelope`" + `, a worker or component ` + "`Authorization: DPoP`" + `; both with a DPoP
  proof whose ` + "`ath`" + ` covers it and whose ` + "`nonce`" + ` is one that the authority gave. Every answer brings a fresh one in ` + "`DPoP-Nonce`" + `.
* **Strict in.** Bodies are one JSON object with exactly the members that are described: unknown, doubled and differently spelled ones,
  ` + "`null`" + `, fractions and what follows the object are refused, and so are parameters of the query that are unknown or stand twice.
* **Refusals** are ` + "`application/problem+json`" + ` (RFC 9457) with a stable ` + "`code`" + ` and ` + "`retry`" + `; [refusals.md](refusals.md) lists them. 429 and 503 say
  in ` + "`Retry-After`" + ` when to come again. What is foreign and what is unknown is the same 404.
* **Lists** have ` + "`items`" + `, at most 100, and ` + "`next`" + ` where there is more. It is handed back as ` + "`cursor`" + ` and good for the same person and question only.
* **ETag and If-Match.** One thing is shown with a strong ` + "`ETag`" + ` of its state. A yes or no carries the digest of what was shown. What ends a
  task's authority has no digest and takes the tag in ` + "`If-Match`" + ` instead: without it the answer is 428 ` + "`precondition_required`" + ` (RFC 6585 §3), with
  another one 412 ` + "`stale`" + ` (RFC 9110 §13.1.1), and ` + "`*`" + ` means whatever it is now, so that stopping something never has to wait for reading it.
  A task's tag is its activation epoch: the next time, which is shown beside it, only passes, and must not hinder a revocation. Nothing is ever
  cached by a tag: answers are ` + "`no-store`" + `.
`

// The page of the API is what the authority registers.
func TestAPIPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(apiHead)
	s := described()
	byTag := map[string][]openapi.Operation{}
	for _, op := range s.Operations() {
		byTag[op.Tag] = append(byTag[op.Tag], op)
	}
	for _, tag := range []string{"members", "operators", "products", "runs", "effects", "readiness", "issuer", "process"} {
		if len(byTag[tag]) > 0 {
			fmt.Fprintf(&b, "\n## %s\n", strings.ToUpper(tag[:1])+tag[1:])
		}
		for _, op := range byTag[tag] {
			writeOperation(t, &b, op)
		}
		delete(byTag, tag)
	}
	assert.Empty(t, byTag, "tags that the page does not have")
	generated(t, "reference/api.md", b.String())
}

func writeOperation(t *testing.T, b *strings.Builder, op openapi.Operation) {
	t.Helper()
	fmt.Fprintf(b, "\n### %s `%s`\n\n%s.", op.Method, op.Path, op.Summary)
	if op.Text != "" {
		b.WriteString(" " + op.Text)
	}
	closed := ""
	if op.Gated {
		closed = ", refused while admission is closed"
	}
	fmt.Fprintf(b, "\n\nOperation `%s`, for: %s%s.\n", op.ID, op.Access, closed)
	if op.Conditional {
		b.WriteString("Needs `If-Match`.\n")
	}
	sample(t, b, "Request", op.In)
	sample(t, b, "Answer", op.Out)
	var codes []string
	for _, c := range op.Codes() {
		codes = append(codes, fmt.Sprintf("`%s` %d", c, openapi.StatusOf(op.Path, c)))
	}
	fmt.Fprintf(b, "\nRefusals: %s.\n", strings.Join(codes, ", "))
}

func sample(t *testing.T, b *strings.Builder, what string, v any) {
	t.Helper()
	if v == nil {
		return
	}
	kind, text := "json", ""
	if s, is := v.(string); is {
		kind, text = "text", strings.TrimSpace(s)
	} else {
		out, err := json.MarshalIndent(v, "", "  ")
		require.NoError(t, err)
		text = string(out)
	}
	fmt.Fprintf(b, "\n%s:\n\n```%s\n%s\n```\n", what, kind, text)
}

// standard says what claims mean where their comments, which are for who reads the code, say less.
var standard = map[string]string{
	"iss": "the authority's issuer, byte for byte", "client_id": "the client of the workload, or the component's name", "iat": "when it was issued, seconds since 1970",
	"exp": "until when it is good", "jti": "random; its digest is all that is kept", "cnf": "`jkt`: thumbprint of the only key that may use it (RFC 9449 §6.1)", "generation": "of the key bundle that signed it",
	"fence": "number of the claim, higher than any before in its lane", "activation_epoch": "of the task; advances with every change of its authority", "readiness_epoch": "of the cluster; advances with every close and open",
	"incarnation": "of the database; a failover or restored backup is another one", "authorization_details": "exactly one effect (RFC 9396 §2)", "component": "its registered name, as an opaque reference",
	"instance": "which of several instances", "families": "of readiness that it reports on", "open": "whether anything is admitted", "epoch": "readiness epoch", "sequence": "rises with each decision",
	"since_unix_ms": "when it was opened or closed", "cap": "`run`, `effect` or `component`: each entry accepts one kind", "run": "reference of the run", "lane": "reference of the task, in which fences are ordered",
	"deadline": "seconds since 1970; nothing of the run is admitted after it, and it is set once", "effect": "reference of the effect", "boot": "of the component, numbered by the database",
}

// Each claim of each kind of token stands on the page, with what it means; the page names no other.
func TestTokensPage(t *testing.T) {
	t.Parallel()
	said := comments(t, "../authority/capability")
	kinds := []struct {
		name string
		of   any
	}{{"run", capability.RunClaims{}}, {"effect", capability.EffectClaims{}}, {"component", capability.ComponentClaims{}}}
	has, order := map[string][]string{}, []string(nil)
	for _, k := range kinds {
		for _, c := range claimsOf(reflect.TypeOf(k.of)) {
			if has[c] == nil {
				order = append(order, c)
			}
			has[c] = append(has[c], k.name)
		}
	}
	var b strings.Builder
	b.WriteString("# Tokens\n\nCapabilities are ES256 JWTs of type `at+jwt` in the shape of RFC 9068; `token_type` is always `DPoP`. A run or component capability lives at most " + minutes(capability.MaxLifetime.Minutes()) +
		",\na run's never past its deadline, an effect capability at most " + minutes(capability.MaxEffectLifetime.Minutes()) + ". All claims are mandatory where they\nstand, but for `instance` and `families`, and none names a member.\n\n")
	b.WriteString("| claim | run | effect | component | means |\n|---|---|---|---|---|\n")
	for _, c := range order {
		means := meaning(said, c, "Header", "Binding", "EffectClaims", "ComponentClaims")
		assert.NotEmpty(t, means, "nothing says what %s means", c)
		fmt.Fprintf(&b, "| `%s` |%s%s%s %s |\n", c, tick(has[c], "run"), tick(has[c], "effect"), tick(has[c], "component"), means)
	}
	b.WriteString("\n## authorization_details of an effect\n\n| member | means |\n|---|---|\n")
	rows(t, &b, said, reflect.TypeFor[capability.Detail](), "Detail", map[string]string{"type": "`" + capability.DetailType + "`", "actions": "exactly one", "locations": "exactly one: the guard's URI",
		"identifier": "the resource", "amount": "minor units of the currency", "currency": "ISO 4217"})
	b.WriteString("\n## Readiness decision\n\nA JWS of type `nightwarrant-readiness+jwt`, refused wherever another type is expected.\n\n| claim | means |\n|---|---|\n")
	rows(t, &b, said, reflect.TypeFor[capability.DecisionClaims](), "DecisionClaims", map[string]string{"aud": "the issuer and `/v1/readiness`", "exp": "rounded so that it never outlives `valid_ms`"})
	b.WriteString("\n## Proofs\n\nA DPoP proof (RFC 9449 §4.2) is of type `dpop+jwt`, signed with ES256 by the key in its header, with `jti`, `htm`, `htu`, `iat`, `nonce`, and `ath` everywhere but at the token\n" +
		"endpoint. The nonce decides whether it is fresh; the same key and `jti` under one minute of nonces is a replay.\n")
	generated(t, "reference/tokens.md", b.String())
}

func minutes(n float64) string {
	if n == 1 {
		return "a minute"
	}
	return strconv.Itoa(int(n)) + " minutes"
}

func tick(kinds []string, kind string) string {
	if slices.Contains(kinds, kind) {
		return " ✓ |"
	}
	return " |"
}

func rows(t *testing.T, b *strings.Builder, said map[string]string, of reflect.Type, name string, more map[string]string) {
	t.Helper()
	for _, c := range claimsOf(of) {
		means := more[c]
		if means == "" {
			means = meaning(said, c, name)
		}
		assert.NotEmpty(t, means, "nothing says what %s of %s means", c, name)
		fmt.Fprintf(b, "| `%s` | %s |\n", c, means)
	}
}

func meaning(said map[string]string, claim string, types ...string) string {
	if text := standard[claim]; text != "" {
		return text
	}
	for _, of := range types {
		if text := said[of+"."+claim]; text != "" {
			return text
		}
	}
	return ""
}

func claimsOf(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !f.Anonymous {
			names = append(names, name)
		}
	}
	return names
}

// Each metric that any process registers stands on the page with its help and labels; no label can name a member or a task.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, files := range sources(t) {
		namespace := ""
		for _, f := range files {
			namespace += constant(f, "namespace")
		}
		for _, f := range files {
			lines = append(lines, metricsIn(f, namespace)...)
		}
	}
	sort.Strings(lines)
	require.Greater(t, len(lines), 15)
	for _, l := range lines {
		for _, of := range []string{"member", "task", "run", "effect", "digest", "subject"} {
			assert.NotContains(t, l, "`"+of+"`", "a label that names whom it is about")
		}
	}
	generated(t, "reference/metrics.md", "# Metrics\n\nServed in Prometheus' format at `/metrics` of `admin_listen`, which is never public, beside those of Go and of the process. Labels are finite sets:\n"+
		"routes, statuses, refusal codes, states, loops. None names a member, a task or anything of theirs.\n\n| metric | kind | labels | means |\n|---|---|---|---|\n"+strings.Join(lines, ""))
}

// sources are the program's own files, by folder.
func sources(t *testing.T) map[string][]*ast.File {
	t.Helper()
	out := map[string][]*ast.File{}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "node_modules" || name == "build" || name == "testdata" || strings.HasPrefix(name, ".") && name != ".."):
			return fs.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
			return i.Path.Value == `"github.com/prometheus/client_golang/prometheus"`
		}) {
			out[filepath.Dir(path)] = append(out[filepath.Dir(path)], f)
		}
		return nil
	}))
	return out
}

func constant(f *ast.File, name string) string {
	if o := f.Scope.Lookup(name); o != nil && o.Kind == ast.Con {
		if v, ok := o.Decl.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			return literal(v.Values[0])
		}
	}
	return ""
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, _ := strconv.Unquote(l.Value)
		return s
	}
	return ""
}

var kindsOfMetric = map[string]string{"counter": "counter", "gauge": "gauge", "vector": "counter", "CounterOpts": "counter", "GaugeOpts": "gauge", "HistogramOpts": "histogram"}

// metricsIn finds metrics by how they are made: by the constructors of a metrics.go, or by prometheus' options in one piece.
func metricsIn(f *ast.File, namespace string) (lines []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		if by, ok := call.Fun.(*ast.Ident); ok && kindsOfMetric[by.Name] != "" && len(call.Args) >= 2 && literal(call.Args[0]) != "" {
			labels := constLabels(f)
			for _, a := range call.Args[2:] {
				labels = append(labels, literal(a))
			}
			lines = append(lines, metricLine(namespace+literal(call.Args[0]), kindsOfMetric[by.Name], labels, literal(call.Args[1])))
			return true
		}
		opts, ok := call.Args[0].(*ast.CompositeLit)
		if !ok {
			return true
		}
		sel, ok := opts.Type.(*ast.SelectorExpr)
		if !ok || kindsOfMetric[sel.Sel.Name] == "" {
			return true
		}
		if name, help := member(opts, "Name"), member(opts, "Help"); name != "" {
			lines = append(lines, metricLine(name, kindsOfMetric[sel.Sel.Name], labelsOf(call), help))
		}
		return true
	})
	return lines
}

// constLabels are those that every metric of a file has.
func constLabels(f *ast.File) (labels []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		l, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if sel, ok := l.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Labels" {
			for _, e := range l.Elts {
				labels = append(labels, literal(e.(*ast.KeyValueExpr).Key))
			}
		}
		return true
	})
	return labels
}

func member(l *ast.CompositeLit, name string) string {
	for _, e := range l.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == name {
			return literal(kv.Value)
		}
	}
	return ""
}

func labelsOf(call *ast.CallExpr) (labels []string) {
	if len(call.Args) < 2 {
		return nil
	}
	if l, ok := call.Args[1].(*ast.CompositeLit); ok {
		for _, e := range l.Elts {
			labels = append(labels, literal(e))
		}
	}
	return labels
}

func metricLine(name, kind string, labels []string, help string) string {
	text := "-"
	if len(labels) > 0 {
		text = "`" + strings.Join(labels, "`, `") + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, text, help)
}

// A code that no operation names would be one that nobody is told of.
func TestEveryCodeIsUsed(t *testing.T) {
	t.Parallel()
	used := map[api.Code]bool{api.MethodNotAllowed: true, api.CredentialUnavailable: true} // of what is no operation, and of guards
	for _, op := range described().Operations() {
		for _, c := range op.Codes() {
			used[c] = true
		}
	}
	for _, c := range api.Codes() {
		assert.True(t, used[c], "no operation says that it may refuse with %s", c)
	}
}
