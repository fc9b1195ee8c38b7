package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/provenance"
)

const provenanceHead = `# Provenance of keys

What officers sign of a key that lies in a token, and why a key is refused. [How to get from a ceremony to a verified record](../how-to/provenance.md).

A record, a snapshot and the file of their signatures are JSON in one spelling (RFC 8785). Every member is there; an empty text says nothing. A digest is SHA-256 in lower-case
hexadecimal, a time is in UTC and whole seconds, a list has at most 64 entries and a text 500 bytes. What an officer signs with ECDSA on P-256 and SHA-256 is the domain, a zero
byte and the document: ` + "`" + provenance.DomainRecord + "`" + ` or ` + "`" + provenance.DomainSnapshot + "`" + `. The digest of the same bytes is the record's, to which a key bundle is bound.
`

// The page has each code and each member of what is signed.
func TestProvenancePage(t *testing.T) {
	t.Parallel()
	said := comments(t, "../keys/provenance")
	var b strings.Builder
	b.WriteString(provenanceHead)
	for _, d := range []struct {
		title string
		of    reflect.Type
	}{{"The record", reflect.TypeFor[provenance.Record]()}, {"The snapshot", reflect.TypeFor[provenance.Snapshot]()}, {"The signatures", reflect.TypeFor[provenance.Approvals]()}} {
		fmt.Fprintf(&b, "\n## %s\n\n| member | means |\n|---|---|\n", d.title)
		members(&b, said, d.of, "")
	}
	b.WriteString("\n## Refusals\n\nEach closes admission, and none is answered with another key. They stand in the order of the steps that find them.\n\n| code | why |\n|---|---|\n")
	why := codeComments(t, "../keys/provenance/provenance.go")
	for _, code := range provenance.All() {
		assert.NotEmpty(t, why[string(code)], "nothing says what %s means", code)
		fmt.Fprintf(&b, "| `%s` | %s |\n", code, why[string(code)])
		delete(why, string(code))
	}
	assert.Empty(t, why, "codes that All does not list")
	b.WriteString("\n## Profiles\n\nWhat a token's word means differs between providers. These are compiled in; none was tried with a device.\n\n| provider | entry point | attributes of the signing key |\n|---|---|---|\n")
	for _, p := range provenance.Profiles() {
		s := p.Signing
		fmt.Fprintf(&b, "| `%s` | `%s` | LOCAL %s, KEY_GEN_MECHANISM %s, ALWAYS_SENSITIVE %s, NEVER_EXTRACTABLE %s, EXTRACTABLE %s, SENSITIVE %s |\n",
			p.Provider, p.EntryPoint, s.Local, s.KeyGenMechanism, s.AlwaysSensitive, s.NeverExtractable, s.Extractable, s.Sensitive)
	}
	generated(t, "reference/provenance.md", b.String())
}

// members lists what a document has, with the members of its parts.
func members(b *strings.Builder, said map[string]string, of reflect.Type, prefix string) {
	for _, f := range reflect.VisibleFields(of) {
		name := f.Tag.Get("json")
		inner, list := f.Type, ""
		if inner.Kind() == reflect.Slice {
			inner, list = inner.Elem(), "[]"
		}
		means := said[of.Name()+"."+name]
		part := inner.Kind() == reflect.Struct && inner != reflect.TypeFor[provenance.Time]()
		if means == "" && part {
			means = said[inner.Name()]
		}
		fmt.Fprintf(b, "| `%s%s%s` | %s |\n", prefix, name, list, means)
		if part {
			members(b, said, inner, prefix+name+list+".")
		}
	}
}

// codeComments are what a file says beside its constants of the type Code.
func codeComments(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	out := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		kind, is := v.Type.(*ast.Ident)
		if value, literal := v.Values[0].(*ast.BasicLit); literal && is && kind.Name == "Code" {
			out[strings.Trim(value.Value, `"`)] = strings.TrimSpace(v.Comment.Text())
		}
		return true
	})
	return out
}
