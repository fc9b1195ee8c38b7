package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Duration is a length of time as Go spells it: 500ms, 30s, 1h30m.
type Duration time.Duration

// UnmarshalText reads the spelling.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("must be a length of time such as 500ms, 30s or 1h30m")
	}
	*d = Duration(parsed)
	return nil
}

// Std is the duration of the standard library.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return d.Std().String() }

// decode fills a struct and returns where each key stands. The parser is
// somebody else's and the file may be anything: a panic in it is an error of
// the file.
func decode(text []byte, into any) (lines map[string]int, err error) {
	b := binder{lines: map[string]int{}}
	defer func() {
		if recover() != nil {
			lines, err = b.lines, errUnreadable
		}
	}()
	body, err := parse(text)
	if err != nil {
		return b.lines, err
	}
	if k, ok := into.(*kind); ok {
		k.read(body)
		return b.lines, nil
	}
	return b.lines, b.bind(body, reflect.ValueOf(into).Elem(), "")
}

var errUnreadable = &Error{Sentence: "this is not YAML that can be read"}

func parse(text []byte) (ast.Node, error) {
	if !utf8.Valid(text) {
		return nil, &Error{Sentence: "the file is not UTF-8"}
	}
	tokens := lexer.Tokenize(string(text))
	if err := checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // object finds them, with their key
	if err != nil {
		return nil, unreadable(err)
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, &Error{Sentence: "the file must hold exactly one document"}
	}
	return file.Docs[0].Body, nil
}

// refused are features by which a file can say something else than its reader sees.
var refused = map[token.Type]string{
	token.AnchorType:     "an anchor",
	token.AliasType:      "an alias",
	token.TagType:        "a tag",
	token.MergeKeyType:   "a merge key",
	token.MappingKeyType: "a complex key",
	token.DirectiveType:  "a directive",
}

const (
	maxDepth  = 8
	maxColumn = 64 // at which a line may begin
)

// checkTokens bounds what the parser, which is slow in the nesting, gets to see.
func checkTokens(tokens token.Tokens) error {
	line, dashes, flow := 0, 0, 0
	for _, t := range tokens {
		if what, bad := refused[t.Type]; bad {
			return &Error{Line: t.Position.Line, Sentence: what + " is not allowed"}
		}
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
			if t.Position.Column > maxColumn {
				return tooDeep(line)
			}
		}
		switch t.Type {
		case token.SequenceEntryType:
			dashes++
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		}
		if dashes > maxDepth || flow > maxDepth {
			return tooDeep(line)
		}
	}
	return nil
}

func tooDeep(line int) error { return &Error{Line: line, Sentence: "is nested too deeply"} }

func unreadable(err error) error {
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil {
		return errUnreadable
	}
	return &Error{Line: y.GetToken().Position.Line, Sentence: fmt.Sprintf("cannot be read: %.120q", y.GetMessage())}
}

// binder decodes nodes into a struct and remembers which key stood where.
type binder struct{ lines map[string]int }

func (b binder) bind(n ast.Node, v reflect.Value, key string) error {
	line := n.GetToken().Position.Line
	if _, known := b.lines[key]; !known {
		b.lines[key] = line
	}
	wrong := func(format string, args ...any) error {
		return &Error{Line: line, Key: key, Sentence: fmt.Sprintf(format, args...)}
	}
	if _, missing := n.(*ast.NullNode); missing {
		return wrong("has no value")
	}
	if target, ok := v.Addr().Interface().(*Tree); ok {
		tree, err := b.tree(n, key)
		*target = Tree(tree)
		return err
	}
	if target, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, ok := textOf(n)
		if !ok {
			return wrong("must be text")
		}
		if err := target.UnmarshalText([]byte(text)); err != nil {
			return wrong("%s", err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		m, ok := n.(ast.MapNode)
		if !ok {
			return wrong("must be an object of keys")
		}
		return b.object(m, v, key)
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			return wrong("must be a list")
		}
		return b.list(list, v, key)
	}
	if problem := scalar(n, v); problem != "" {
		return wrong("%s", problem)
	}
	return nil
}

// object fills a struct, or a map from names.
func (b binder) object(m ast.MapNode, v reflect.Value, key string) error {
	if v.Kind() == reflect.Map {
		v.Set(reflect.MakeMap(v.Type()))
	}
	seen := map[string]bool{}
	for entries := m.MapRange(); entries.Next(); {
		name, ok := textOf(entries.Key())
		line := entries.Key().GetToken().Position.Line
		at := strings.TrimPrefix(key+"."+bounded(name), ".")
		switch {
		case !ok:
			return &Error{Line: line, Key: key, Sentence: "has a key that is not text"}
		case seen[name]:
			return &Error{Line: line, Key: at, Sentence: "stands twice"}
		}
		seen[name], b.lines[at] = true, line
		if err := b.member(entries.Value(), v, name, at); err != nil {
			return err
		}
	}
	return nil
}

func (b binder) member(n ast.Node, v reflect.Value, name, at string) error {
	if v.Kind() == reflect.Map {
		item := reflect.New(v.Type().Elem()).Elem()
		err := b.bind(n, item, at)
		v.SetMapIndex(reflect.ValueOf(name), item)
		return err
	}
	for _, f := range reflect.VisibleFields(v.Type()) {
		if name != "" && f.Tag.Get("yaml") == name {
			return b.bind(n, v.FieldByIndex(f.Index), at)
		}
	}
	return &Error{Line: b.lines[at], Key: at, Sentence: "is not a known key"}
}

func (b binder) list(s *ast.SequenceNode, v reflect.Value, key string) error {
	v.Set(reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values)))
	for i, n := range s.Values {
		if err := b.bind(n, v.Index(i), fmt.Sprintf("%s[%d]", key, i)); err != nil {
			return err
		}
	}
	return nil
}

// bounded is a key as it may be repeated in an error: short, and on one line.
func bounded(name string) string {
	if name == "" || len(name) > 64 || strconv.Quote(name) != `"`+name+`"` {
		return fmt.Sprintf("%.64q", name)
	}
	return name
}

func textOf(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	}
	return "", false
}

// Other spellings (0x10, 1_000, 0o7, +1) have other values in other readers.
var plainInteger = regexp.MustCompile(`^(?:0|-?[1-9][0-9]{0,15})$`)

// scalar fills a string, an int64 or a bool, and says what else it met.
func scalar(n ast.Node, v reflect.Value) (problem string) {
	switch v.Kind() {
	case reflect.String:
		text, ok := textOf(n)
		if !ok {
			return "must be text; put a number or a word such as true in quotes"
		}
		v.SetString(text)
	case reflect.Int64:
		i, ok := n.(*ast.IntegerNode)
		if !ok || !plainInteger.MatchString(i.Token.Value) {
			return "must be a plain integer"
		}
		number, err := strconv.ParseInt(i.Token.Value, 10, 64)
		if err != nil {
			return "must be a plain integer"
		}
		v.SetInt(number)
	case reflect.Bool:
		flag, ok := n.(*ast.BoolNode)
		if !ok {
			return "must be true or false"
		}
		v.SetBool(flag.Value)
	default:
		return "is of a kind that cannot be configured"
	}
	return ""
}
