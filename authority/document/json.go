package document

import (
	"strconv"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// ParseJSON reads one document from JSON and validates it. Its errors are
// *Error.
func ParseJSON(in []byte) (Document, error) {
	n, err := treeOfJSON(in)
	if err != nil {
		return nil, err
	}
	return typed(n)
}

func decodeJSON(in []byte, v any) (*binder, error) {
	n, err := treeOfJSON(in)
	if err != nil {
		return nil, err
	}
	return bind(n, v)
}

func treeOfJSON(in []byte) (*node, error) {
	if err := canonical.Check(in); err != nil {
		return nil, wrong("", "cannot be read: %s", err)
	}
	return objectOf(in)
}

func objectOf(in []byte) (*node, error) {
	n := &node{shape: object}
	err := canonical.Members(in, func(key []byte, v canonical.Value) error {
		item, err := nodeOf(v)
		n.keys, n.items = append(n.keys, string(key)), append(n.items, item)
		return err
	})
	return n, err
}

// nodeOf converts a value of a checked document, whose depth is bounded.
func nodeOf(v canonical.Value) (*node, error) {
	if v.IsObject() {
		return objectOf(v.Raw)
	}
	if v.IsArray() {
		n := &node{shape: array}
		err := canonical.Elements(v, func(v canonical.Value) error {
			item, err := nodeOf(v)
			n.items = append(n.items, item)
			return err
		})
		return n, err
	}
	if s, ok := v.Text(); ok {
		return &node{shape: text, value: s}, nil
	}
	if i, ok := v.Int(); ok {
		return &node{shape: integer, value: strconv.FormatInt(i, 10)}, nil
	}
	if raw := string(v.Raw); raw == "true" || raw == "false" {
		return &node{shape: boolean, value: raw}, nil
	}
	return nil, wrong("", "a value must be an object, a list, a string, an integer, true or false")
}
