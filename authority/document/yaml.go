package document

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	maxFile      = 1 << 20 // bytes
	maxDocuments = 1000
	maxNesting   = 16
	maxIndent    = 64 // columns
)

// ParseYAML reads a file of documents separated by lines of three hyphens, and
// validates each. Empty documents are skipped; two with the same kind, name and
// revision are refused. Its errors are *Error and name the line.
func ParseYAML(in []byte) ([]Document, error) {
	trees, err := treesOfYAML(in)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var found []Document
	for _, tree := range trees {
		d, err := typed(tree)
		if err != nil {
			return nil, err
		}
		if seen[identity(d)] {
			return nil, &Error{Line: tree.line, Kind: d.Head().Kind, Name: d.Head().Name, Reason: "stands twice in this file"}
		}
		seen[identity(d)] = true
		found = append(found, d)
	}
	return found, nil
}

// identity tells documents apart.
func identity(d Document) string {
	revision := int64(0)
	switch d := d.(type) {
	case *WorkloadRole:
		revision = d.Revision
	case *Policy:
		revision = d.Revision
	case *Task:
		revision = d.Revision
	}
	return fmt.Sprint(d.Head().Kind, " ", d.Head().Name, " ", revision)
}

// treesOfYAML parses a file. The parser is somebody else's and the file may be
// anything: a panic in it is an error of the file.
func treesOfYAML(in []byte) (trees []*node, err error) {
	defer func() {
		if recover() != nil {
			trees, err = nil, wrong("", "this is not YAML that can be read")
		}
	}()
	if err := checkText(in); err != nil {
		return nil, err
	}
	tokens := lexer.Tokenize(string(in))
	if err := checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, syntax(err)
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		tree, err := treeOf(doc.Body)
		if err != nil {
			return nil, err
		}
		trees = append(trees, tree)
	}
	return trees, nil
}

func checkText(in []byte) error {
	if len(in) > maxFile {
		return wrong("", "a file has at most %d bytes", maxFile)
	}
	if !utf8.Valid(in) {
		return wrong("", "a file must be UTF-8")
	}
	for i, c := range in {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			line := 1 + strings.Count(string(in[:i]), "\n")
			return &Error{Line: line, Reason: fmt.Sprintf("must not contain the control character %U", c)}
		}
	}
	return nil
}

// refusedTokens are features by which one file can say something else than a
// reader sees.
var refusedTokens = map[token.Type]string{
	token.AnchorType:     "an anchor",
	token.AliasType:      "an alias",
	token.TagType:        "a tag",
	token.MergeKeyType:   "a merge key",
	token.MappingKeyType: "a complex key",
	token.DirectiveType:  "a directive",
}

// checkTokens bounds what the parser, which is quadratic in the nesting, gets
// to see.
func checkTokens(tokens token.Tokens) error {
	documents, flow, line, onLine := 1, 0, 0, 0
	for _, t := range tokens {
		at := t.Position.Line
		if word, refused := refusedTokens[t.Type]; refused {
			return &Error{Line: at, Reason: word + " is not allowed"}
		}
		if at != line {
			line, onLine = at, 0
			if t.Position.Column > maxIndent {
				return &Error{Line: at, Reason: "is indented too far"}
			}
		}
		switch t.Type {
		case token.DocumentHeaderType:
			documents++
		case token.SequenceEntryType:
			onLine++
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		}
		if documents > maxDocuments+1 {
			return &Error{Line: at, Reason: fmt.Sprintf("a file has at most %d documents", maxDocuments)}
		}
		if flow > maxNesting || onLine > maxNesting {
			return &Error{Line: at, Reason: "is nested too deeply"}
		}
	}
	return nil
}

// syntax turns the parser's error into one bounded sentence.
func syntax(err error) error {
	e := &Error{Reason: "this is not YAML that can be read"}
	var y yaml.Error
	if errors.As(err, &y) {
		e.Reason = fmt.Sprintf("cannot be read: %.160q", y.GetMessage())
		if t := y.GetToken(); t != nil && t.Position != nil {
			e.Line = t.Position.Line
		}
	}
	return e
}

// Other spellings (0x10, 1_000, 0o7, +1) have other values in other readers.
var plainInteger = regexp.MustCompile(`^(?:0|-?[1-9][0-9]{0,15})$`)

func treeOf(n ast.Node) (*node, error) {
	line := n.GetToken().Position.Line
	switch n := n.(type) {
	case ast.MapNode:
		return treeOfMap(n, line)
	case *ast.SequenceNode:
		return treeOfList(n, line)
	case *ast.StringNode:
		return &node{line: line, shape: text, value: n.Value}, nil
	case *ast.LiteralNode:
		return &node{line: line, shape: text, value: n.Value.Value}, nil
	case *ast.BoolNode:
		return &node{line: line, shape: boolean, value: fmt.Sprint(n.Value)}, nil
	case *ast.IntegerNode:
		if !plainInteger.MatchString(n.Token.Value) {
			return nil, &Error{Line: line, Reason: fmt.Sprintf("%.40q must be written as a plain integer or in quotes", n.Token.Value)}
		}
		return &node{line: line, shape: integer, value: n.Token.Value}, nil
	case *ast.NullNode:
		return nil, &Error{Line: line, Reason: "a value is missing"}
	}
	return nil, &Error{Line: line, Reason: "a value must be text in quotes, an integer, true or false"}
}

func treeOfMap(m ast.MapNode, line int) (*node, error) {
	n := &node{line: line, shape: object}
	for entries := m.MapRange(); entries.Next(); {
		key, ok := entries.Key().(*ast.StringNode)
		if !ok {
			return nil, &Error{Line: line, Reason: "a key must be text"}
		}
		at := key.Token.Position.Line
		if slices.Contains(n.keys, key.Value) {
			return nil, &Error{Line: at, Field: fmt.Sprintf("%.80q", key.Value), Reason: "stands twice"}
		}
		item, err := treeOf(entries.Value())
		if err != nil {
			return nil, at2(err, key.Value)
		}
		item.line = at
		n.keys, n.items = append(n.keys, key.Value), append(n.items, item)
	}
	return n, nil
}

// at2 names the innermost key of an error that has none.
func at2(err error, key string) error {
	if e, ok := err.(*Error); ok && e.Field == "" {
		e.Field = fmt.Sprintf("%.80q:", key)
	}
	return err
}

func treeOfList(s *ast.SequenceNode, line int) (*node, error) {
	n := &node{line: line, shape: array}
	for _, value := range s.Values {
		item, err := treeOf(value)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
	}
	return n, nil
}
