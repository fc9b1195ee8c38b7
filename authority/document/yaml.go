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
	maxFile      = 1 << 20  // bytes
	maxDocument  = 32 << 10 // bytes of one document in a file
	maxDocuments = 1000
	maxNesting   = 16
	maxIndent    = 64 // columns
	maxBlank     = 32 // blank lines in a row
)

// ParseYAML reads a file of documents separated by lines of three hyphens, and
// validates each. Empty documents are skipped; two with the same kind, name and
// revision are refused. Its errors are *Error and name the line.
func ParseYAML(in []byte) ([]Document, error) {
	parts, err := split(in)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var found []Document
	for _, part := range parts {
		tree, err := part.tree()
		if err != nil {
			return nil, err
		}
		if tree == nil {
			continue
		}
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

// part is one document of a file and the number of lines before it.
type part struct {
	before int
	text   string
}

var separator = regexp.MustCompile(`^---[ \t]*(?:#.*)?\r?$`)

// split cuts a file into its documents, which YAML lets one do by looking at
// lines. Each is small and has no long run of blank lines, because the lexer
// needs time quadratic in both.
func split(in []byte) ([]part, error) {
	if len(in) > maxFile {
		return nil, wrong("", "a file must have at most %d bytes", maxFile)
	}
	if !utf8.Valid(in) {
		return nil, wrong("", "a file must be UTF-8")
	}
	var parts []part
	before, blank := 0, 0
	lines := strings.Split(string(in), "\n")
	for i, line := range append(lines, "---") {
		if blank++; strings.TrimSpace(line) != "" {
			blank = 0
		}
		at := strings.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' || r == 0x7f || r == 0xfeff })
		switch {
		case at >= 0:
			return nil, &Error{Line: i + 1, Reason: "must not contain control characters or a byte order mark"}
		case blank > maxBlank:
			return nil, &Error{Line: i + 1, Reason: fmt.Sprintf("must not have more than %d blank lines in a row", maxBlank)}
		case !separator.MatchString(line):
			continue
		}
		p := part{before, strings.Join(lines[before:i], "\n")}
		if len(p.text) > maxDocument {
			return nil, &Error{Line: before + 1, Reason: fmt.Sprintf("a document must have at most %d bytes", maxDocument)}
		}
		if parts = append(parts, p); len(parts) > maxDocuments {
			return nil, &Error{Line: before + 1, Reason: fmt.Sprintf("a file must have at most %d documents", maxDocuments)}
		}
		before = i + 1
	}
	return parts, nil
}

// tree parses a document, or returns nil when there is nothing in it. The
// parser is somebody else's and the text may be anything: a panic in it is an
// error of the text.
func (p part) tree() (tree *node, err error) {
	defer func() {
		if recover() != nil {
			tree, err = nil, p.wrong(1, "", "cannot be read as YAML")
		}
	}()
	tokens := lexer.Tokenize(p.text)
	if err := p.check(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // members says it better
	if err != nil {
		return nil, p.syntax(err)
	}
	switch {
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, nil
	case len(file.Docs) > 1:
		return nil, p.wrong(1, "", "cannot be read as one document")
	}
	return p.value(file.Docs[0].Body, "")
}

func (p part) wrong(line int, path, reason string) error {
	return &Error{Line: p.before + line, Field: path, Reason: reason}
}

// refused are features by which one text can say something else than its reader
// sees.
var refused = map[token.Type]string{
	token.AnchorType:         "an anchor",
	token.AliasType:          "an alias",
	token.TagType:            "a tag",
	token.MergeKeyType:       "a merge key",
	token.MappingKeyType:     "a complex key",
	token.DirectiveType:      "a directive",
	token.DocumentHeaderType: "text beside a separator",
	token.DocumentEndType:    "an end marker",
}

// check bounds the nesting before the parser, which recurses, sees it.
func (p part) check(tokens token.Tokens) error {
	flow, line, entries := 0, 0, 0
	for _, t := range tokens {
		at := t.Position.Line
		if word, is := refused[t.Type]; is {
			return p.wrong(at, "", "must not have "+word)
		}
		if at != line {
			line, entries = at, 0
			if t.Position.Column > maxIndent {
				return p.wrong(at, "", "is indented too far")
			}
		}
		switch t.Type {
		case token.SequenceEntryType:
			entries++
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		}
		if flow > maxNesting || entries > maxNesting {
			return p.wrong(at, "", "is nested too deeply")
		}
	}
	return nil
}

// syntax turns the parser's error into one bounded sentence.
func (p part) syntax(err error) error {
	line, reason := 1, ""
	var y yaml.Error
	if errors.As(err, &y) {
		reason = fmt.Sprintf(": %.160q", y.GetMessage())
		if t := y.GetToken(); t != nil && t.Position != nil {
			line = t.Position.Line
		}
	}
	return p.wrong(line, "", "cannot be read as YAML"+reason)
}

// Other spellings (0x10, 1_000, 0o7, +1) have other values in other readers.
var plainInteger = regexp.MustCompile(`^(?:0|-?[1-9][0-9]{0,15})$`)

func (p part) value(n ast.Node, path string) (*node, error) {
	line := n.GetToken().Position.Line
	made := &node{line: p.before + line}
	switch n := n.(type) {
	case ast.MapNode:
		made.shape = object
		return made, p.members(made, n, path)
	case *ast.SequenceNode:
		made.shape = array
		return made, p.entries(made, n, path)
	case *ast.StringNode:
		made.shape, made.value = text, n.Value
	case *ast.LiteralNode:
		made.shape, made.value = text, n.Value.Value
	case *ast.BoolNode:
		made.shape, made.value = boolean, fmt.Sprint(n.Value)
	case *ast.IntegerNode:
		made.shape, made.value = integer, n.Token.Value
		if !plainInteger.MatchString(made.value) {
			return nil, p.wrong(line, path, "must be a plain integer, or text in quotes")
		}
	case *ast.NullNode:
		return nil, p.wrong(line, path, "has no value")
	default:
		return nil, p.wrong(line, path, "must be text in quotes, an integer, true or false")
	}
	return made, nil
}

func (p part) members(made *node, m ast.MapNode, path string) error {
	for entries := m.MapRange(); entries.Next(); {
		key, ok := entries.Key().(*ast.StringNode)
		if !ok {
			return p.wrong(entries.Key().GetToken().Position.Line, path, "has a key that is not text")
		}
		line, at := key.Token.Position.Line, under(path, key.Value)
		if slices.Contains(made.keys, key.Value) {
			return p.wrong(line, at, "stands twice")
		}
		item, err := p.value(entries.Value(), at)
		if err != nil {
			return err
		}
		item.line = p.before + line
		made.keys, made.items = append(made.keys, key.Value), append(made.items, item)
	}
	return nil
}

func (p part) entries(made *node, s *ast.SequenceNode, path string) error {
	for i, value := range s.Values {
		item, err := p.value(value, fmt.Sprintf("%s[%d]", path, i))
		if err != nil {
			return err
		}
		made.items = append(made.items, item)
	}
	return nil
}
