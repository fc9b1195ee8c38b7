package document

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

type shape int

const (
	object shape = iota
	array
	text
	integer
	boolean
)

var shapeWords = [...]string{"an object", "a list", "a string", "an integer", "true or false"}

// node is a document as it was written, before it has a type. An object's keys
// are as many as its items.
type node struct {
	line  int
	shape shape
	value string // of text, integer and boolean
	keys  []string
	items []*node
}

// member returns the text of an object's member, or nothing.
func (n *node) member(key string) string {
	for i, k := range n.keys {
		if k == key && n.items[i].shape == text {
			return n.items[i].value
		}
	}
	return ""
}

// binder decodes nodes into structs and remembers which field stood where.
type binder struct{ lines map[string]int }

// bind decodes an object into the struct that v points to.
func bind(n *node, v any) (*binder, error) {
	b := &binder{lines: map[string]int{}}
	return b, b.into(n, reflect.ValueOf(v).Elem(), "")
}

// locate adds to an error of Validate where its field was written. A field that
// is missing is where its parent stands.
func (b *binder) locate(err error) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}
	for field := e.Field; e.Line == 0; {
		e.Line = b.lines[field]
		if field == "" {
			break
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return e
}

func (b *binder) into(n *node, v reflect.Value, path string) error {
	b.lines[path] = n.line
	if target, ok := v.Addr().Interface().(*json.RawMessage); ok {
		raw, err := n.raw(path)
		*target = raw
		return err
	}
	if target, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if n.shape != text {
			return n.not(text, path)
		}
		if err := target.UnmarshalText([]byte(n.value)); err != nil {
			return &Error{Line: n.line, Field: path, Reason: "does not hold: " + err.Error()}
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return b.structure(n, v, path)
	case reflect.Slice:
		return b.list(n, v, path)
	case reflect.Map:
		return b.table(n, v, path)
	}
	return n.scalar(v, path)
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// under returns the path of a member. Keys are the writer's words and are
// bounded and quoted where they are not plain.
func under(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return fmt.Sprintf("%s[%.80q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}

func (n *node) not(want shape, path string) error {
	return &Error{Line: n.line, Field: path, Reason: fmt.Sprintf("must be %s, not %s", shapeWords[want], shapeWords[n.shape])}
}

func (b *binder) structure(n *node, v reflect.Value, path string) error {
	if n.shape != object {
		return n.not(object, path)
	}
	for i, key := range n.keys {
		at := under(path, key)
		field, ok := fieldOf(v, key)
		if !ok {
			return &Error{Line: n.items[i].line, Field: at, Reason: "is not a known field"}
		}
		if err := b.into(n.items[i], field, at); err != nil {
			return err
		}
	}
	return nil
}

// fieldOf finds the field of a struct, or of what it embeds, by its JSON name.
func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == key && tag != "" {
			return v.FieldByIndex(f.Index), true
		}
	}
	return reflect.Value{}, false
}

func (b *binder) list(n *node, v reflect.Value, path string) error {
	if n.shape != array {
		return n.not(array, path)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	for i, item := range n.items {
		if err := b.into(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	return nil
}

// raw is an object as JSON, for what has a schema of its own.
func (n *node) raw(path string) (json.RawMessage, error) {
	if n.shape != object {
		return nil, n.not(object, path)
	}
	clean, err := canonical.CanonicalizeValue(n.plain())
	if err != nil {
		return nil, &Error{Line: n.line, Field: path, Reason: "does not hold: " + err.Error()}
	}
	return clean, nil
}

func (n *node) plain() any {
	switch n.shape {
	case object:
		members := map[string]any{}
		for i, key := range n.keys {
			members[key] = n.items[i].plain()
		}
		return members
	case array:
		items := make([]any, len(n.items))
		for i, item := range n.items {
			items[i] = item.plain()
		}
		return items
	case integer:
		return json.Number(n.value)
	case boolean:
		return n.value == "true"
	}
	return n.value
}

// table decodes a map from names to scalars.
func (b *binder) table(n *node, v reflect.Value, path string) error {
	if n.shape != object {
		return n.not(object, path)
	}
	v.Set(reflect.MakeMap(v.Type()))
	for i, key := range n.keys {
		at := under(path, key)
		b.lines[at] = n.items[i].line
		item := reflect.New(v.Type().Elem()).Elem()
		if err := n.items[i].scalar(item, at); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key), item)
	}
	return nil
}

// scalar decodes into a string, an int64, a bool, or an interface that takes
// any of these.
func (n *node) scalar(v reflect.Value, path string) error {
	want := map[reflect.Kind]shape{reflect.String: text, reflect.Int64: integer, reflect.Bool: boolean}
	shape, ok := want[v.Kind()]
	if !ok && v.Kind() == reflect.Interface && n.shape != object && n.shape != array {
		shape, ok = n.shape, true
	}
	if !ok || shape != n.shape {
		return n.not(shape, path)
	}
	var value any = n.value
	switch shape {
	case integer:
		number, err := strconv.ParseInt(n.value, 10, 64)
		if err != nil {
			return &Error{Line: n.line, Field: path, Reason: "must be an integer"}
		}
		value = number
	case boolean:
		value = n.value == "true"
	}
	if v.Kind() == reflect.Interface {
		v.Set(reflect.ValueOf(value))
	} else {
		v.Set(reflect.ValueOf(value).Convert(v.Type()))
	}
	return nil
}

// typed decodes and validates one document of any kind.
func typed(n *node) (Document, error) {
	if n.shape != object {
		return nil, n.not(object, "")
	}
	d := blank(n.member("kind"))
	if d == nil {
		return nil, &Error{Line: n.line, Field: "kind", Reason: "must be one of the registry's kinds"}
	}
	b, err := bind(n, d)
	if err == nil {
		err = b.locate(d.Validate())
	}
	if err != nil {
		return nil, named(Header{d.Head().Kind, n.member("name")}, err)
	}
	return d, nil
}
