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

func listOf(v canonical.Value) (*node, error) {
	n := &node{shape: array}
	err := canonical.Elements(v, func(v canonical.Value) error {
		item, err := nodeOf(v)
		n.items = append(n.items, item)
		return err
	})
	return n, err
}

// nodeOf converts a value of a checked document: the depth is bounded, and
// there are no nulls and no numbers but safe integers.
func nodeOf(v canonical.Value) (*node, error) {
	switch v.Raw[0] {
	case '{':
		return objectOf(v.Raw)
	case '[':
		return listOf(v)
	case '"':
		s, _ := v.Text()
		return &node{shape: text, value: s}, nil
	case 't', 'f':
		return &node{shape: boolean, value: string(v.Raw)}, nil
	}
	i, ok := v.Int()
	if !ok {
		return nil, wrong("", "a number must be an integer")
	}
	return &node{shape: integer, value: strconv.FormatInt(i, 10)}, nil
}
