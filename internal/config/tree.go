package config

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// Tree is a part of a file that is anything, as JSON: objects, lists, texts,
// plain integers and booleans.
type Tree json.RawMessage

// tree turns a node into JSON.
func (b binder) tree(n ast.Node, key string) (json.RawMessage, error) {
	line := n.GetToken().Position.Line
	if text, ok := textOf(n); ok {
		return encoded(text), nil
	}
	switch n := n.(type) {
	case *ast.BoolNode:
		return fmt.Append(nil, n.Value), nil
	case *ast.IntegerNode:
		if plainInteger.MatchString(n.Token.Value) {
			return json.RawMessage(n.Token.Value), nil
		}
	case *ast.SequenceNode:
		return b.treeOfList(n, key)
	case ast.MapNode:
		return b.treeOfObject(n, key)
	}
	return nil, &Error{Line: line, Key: key, Sentence: "must be an object, a list, a text, a plain integer, true or false"}
}

func (b binder) treeOfList(n *ast.SequenceNode, key string) (json.RawMessage, error) {
	out := bytes.NewBufferString("[")
	for i, item := range n.Values {
		value, err := b.tree(item, fmt.Sprintf("%s[%d]", key, i))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(value)
	}
	return append(out.Bytes(), ']'), nil
}

func (b binder) treeOfObject(n ast.MapNode, key string) (json.RawMessage, error) {
	out := bytes.NewBufferString("{")
	seen := map[string]bool{}
	for entries := n.MapRange(); entries.Next(); {
		name, ok := textOf(entries.Key())
		line := entries.Key().GetToken().Position.Line
		at := key + "." + bounded(name)
		switch {
		case !ok:
			return nil, &Error{Line: line, Key: key, Sentence: "has a key that is not text"}
		case seen[name]:
			return nil, &Error{Line: line, Key: at, Sentence: "stands twice"}
		}
		value, err := b.tree(entries.Value(), at)
		if err != nil {
			return nil, err
		}
		if len(seen) > 0 {
			out.WriteByte(',')
		}
		seen[name] = true
		out.Write(encoded(name))
		out.WriteByte(':')
		out.Write(value)
	}
	return append(out.Bytes(), '}'), nil
}

func encoded(text string) json.RawMessage {
	raw, _ := json.Marshal(text) // a string always encodes
	return raw
}
