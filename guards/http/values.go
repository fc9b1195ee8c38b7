package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// values are parameters that fit their schema.
type values map[string]json.RawMessage

func valuesOf(params json.RawMessage) (v values, err error) {
	if err := json.Unmarshal(params, &v); err != nil {
		return nil, errors.New("the parameters are not an object")
	}
	return v, nil
}

func (v values) has(name string) bool {
	_, ok := v[name]
	return ok
}

// scalar is a string, an integer or a boolean as text.
func (v values) scalar(name string) (string, error) {
	raw := v[name]
	if bytes.HasPrefix(raw, []byte(`"`)) {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	if _, err := strconv.ParseInt(string(raw), 10, 64); err == nil || string(raw) == "true" || string(raw) == "false" {
		return string(raw), nil
	}
	return "", fmt.Errorf("%q is not a string, an integer or a boolean", name)
}

// shape is a template of a JSON body. Exactly one of its fields is set.
type shape struct {
	literal json.RawMessage
	text    text
	members []member
	items   []*shape
}

type member struct {
	name  json.RawMessage // encoded
	value *shape
}

// write appends the body. It is false when the value is nothing but an optional parameter that was not given.
func (s *shape) write(out *bytes.Buffer, v values) (bool, error) {
	switch {
	case s.literal != nil:
		out.Write(s.literal)
		return true, nil
	case s.text != nil:
		return s.writeText(out, v)
	case s.items != nil:
		return true, writeAll(out, '[', ']', len(s.items), func(i int) (bool, error) { return s.items[i].write(out, v) })
	}
	return true, writeAll(out, '{', '}', len(s.members), func(i int) (bool, error) {
		out.Write(s.members[i].name)
		out.WriteByte(':')
		return s.members[i].value.write(out, v)
	})
}

func (s *shape) writeText(out *bytes.Buffer, v values) (bool, error) {
	if name := s.text.only(); name != "" {
		out.Write(v[name])
		return v.has(name), nil
	}
	spelled, _, err := s.text.expand(v)
	if err != nil {
		return false, err
	}
	return true, encode(out, spelled)
}

// encode appends a string, as canonical JSON spells it.
func encode(out *bytes.Buffer, s string) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return err
	}
	out.Truncate(out.Len() - 1) // the line end
	return nil
}

// writeAll appends what write appends for each index, and takes back what it says was nothing.
func writeAll(out *bytes.Buffer, opening, closing byte, n int, write func(i int) (bool, error)) error {
	out.WriteByte(opening)
	first := true
	for i := range n {
		before := out.Len()
		if !first {
			out.WriteByte(',')
		}
		given, err := write(i)
		if err != nil {
			return err
		}
		if !given {
			out.Truncate(before)
			continue
		}
		first = false
	}
	out.WriteByte(closing)
	return nil
}
