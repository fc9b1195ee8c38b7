package docs

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

// The comments of the wire's types are what the description says of them. After
// a change of one, write twice: the second run describes with the new words.
func TestWords(t *testing.T) {
	t.Parallel()
	text, err := json.MarshalIndent(comments(t, "../authority/api"), "", "  ")
	require.NoError(t, err)
	generated(t, "../internal/openapi/words.json", string(text)+"\n")
}

// The description that is kept here is what the authority answers.
func TestDescription(t *testing.T) {
	t.Parallel()
	generated(t, "reference/openapi.json", string(described().Description()))
}

func described() *server.Server { return server.New(&authority.Authority{}, nil, nil) }

// comments are those of a package's exported structs and their members: by type,
// and by type and JSON name.
func comments(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	out := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				ofTypes(out, g)
			}
		}
	}
	return out
}

func ofTypes(out map[string]string, g *ast.GenDecl) {
	for _, spec := range g.Specs {
		t := spec.(*ast.TypeSpec)
		s, ok := t.Type.(*ast.StructType)
		if !ok || !t.Name.IsExported() {
			continue
		}
		put(out, t.Name.Name, g.Doc)
		for _, f := range s.Fields.List {
			if f.Tag == nil {
				continue
			}
			_, name, _ := strings.Cut(f.Tag.Value, `json:"`)
			name, _, _ = strings.Cut(name, `"`)
			name, _, _ = strings.Cut(name, ",")
			put(out, t.Name.Name+"."+name, f.Comment)
			put(out, t.Name.Name+"."+name, f.Doc)
		}
	}
}

func put(out map[string]string, name string, c *ast.CommentGroup) {
	if text := strings.Join(strings.Fields(c.Text()), " "); text != "" {
		out[name] = text
	}
}
