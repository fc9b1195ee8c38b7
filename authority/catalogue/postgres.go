package catalogue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const (
	maxColumns = 32      // members of key, and of values
	maxText    = 4 << 10 // bytes of one string value
)

// rows are the actions on the rows of a table.
var rows = []Action{
	row("row.read", Read, "Read rows of a table by their key", "key"),
	row("row.append", Low, "Add one row to a table", "values"),
	row("row.update", High, "Change rows of a table that have a given key", "key", "values"),
	row("row.delete", High, "Delete rows of a table that have a given key", "key"),
}

// row describes an action on rows: {"table": name, and each of parts as
// {column: string, integer or bool}}.
func row(name string, risk Risk, title string, parts ...string) Action {
	return Action{
		Kind: Postgres, Name: name, Risk: risk, Title: title, Schema: rowSchema(parts),
		form: "row/v1:" + strings.Join(parts, ","),
		target: func(params json.RawMessage) (Target, error) {
			resource, err := checkRow(params, parts)
			return Target{Resource: resource}, err
		},
		key:   rowKey,
		isKey: func(key json.RawMessage) error { return checkRowKey(key, parts) },
	}
}

// rowSchema says as JSON Schema what checkRow checks, but for a column that
// stands in both key and values.
func rowSchema(parts []string) json.RawMessage {
	properties := map[string]any{"table": map[string]any{"type": "string", "pattern": identifier.String()}}
	for _, part := range parts {
		properties[part] = map[string]any{
			"type": "object", "minProperties": 1, "maxProperties": maxColumns, "propertyNames": map[string]any{"pattern": identifier.String()},
			"additionalProperties": map[string]any{"type": []any{"string", "integer", "boolean"}, "maxLength": maxText},
		}
	}
	return schemaOf(properties, append([]string{"table"}, parts...))
}

// rowKey is which rows by which values, and which columns would change: the
// values of these are the run's to choose.
func rowKey(params json.RawMessage) (any, bool) {
	var p struct {
		Key, Values map[string]any
	}
	decoder := json.NewDecoder(bytes.NewReader(params))
	decoder.UseNumber()
	if decoder.Decode(&p) != nil {
		return nil, false
	}
	key := map[string]any{}
	if p.Key != nil {
		key["key"] = p.Key
	}
	if p.Values != nil {
		key["columns"] = slices.Sorted(maps.Keys(p.Values))
	}
	return key, true
}

// checkRowKey holds a written key against what rowKey makes.
func checkRowKey(key json.RawMessage, parts []string) error {
	var want []string
	for _, part := range parts {
		want = append(want, map[string]string{"key": "key", "values": "columns"}[part])
	}
	members, err := membersOf(key, want)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	if raw, ok := members["key"]; ok {
		if err := checkColumns("key", raw, seen); err != nil {
			return err
		}
	}
	raw, ok := members["columns"]
	if !ok {
		return nil
	}
	var columns []string
	if json.Unmarshal(raw, &columns) != nil || len(columns) == 0 || len(columns) > maxColumns || !slices.IsSorted(columns) {
		return fmt.Errorf(`"columns" must list between 1 and %d columns, in alphabetical order`, maxColumns)
	}
	for _, name := range columns {
		if !identifier.MatchString(name) || seen[name] {
			return fmt.Errorf("column %.70q is no column or stands twice", name)
		}
		seen[name] = true
	}
	return nil
}

// identifier is a PostgreSQL name that needs no quotes: lower case, at most 63
// bytes.
var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func checkRow(params json.RawMessage, parts []string) (string, error) {
	members, err := membersOf(params, append([]string{"table"}, parts...))
	if err != nil {
		return "", err
	}
	var table string
	if err := json.Unmarshal(members["table"], &table); err != nil || !identifier.MatchString(table) {
		return "", errors.New(`"table" must be a table's name in lower case, at most 63 letters, digits and underscores`)
	}
	seen := map[string]bool{}
	for _, part := range parts {
		if err := checkColumns(part, members[part], seen); err != nil {
			return "", err
		}
	}
	return "table:" + table, nil
}

// membersOf splits an object which must have exactly the wanted members.
// Canonicalize bounds the whole and refuses repeated members and invalid text.
func membersOf(params json.RawMessage, want []string) (map[string]json.RawMessage, error) {
	clean, err := canonical.Canonicalize(params)
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(clean, &members); err != nil {
		return nil, errors.New("parameters must be one object")
	}
	for name := range members {
		if !slices.Contains(want, name) {
			return nil, fmt.Errorf("%.40q is not a parameter of this action", name)
		}
	}
	for _, name := range want {
		if _, ok := members[name]; !ok {
			return nil, fmt.Errorf("%q is missing", name)
		}
	}
	return members, nil
}

// checkColumns checks one {column: value} object. No column may stand in two
// of them: a key that is also changed would have no single meaning.
func checkColumns(part string, raw json.RawMessage, seen map[string]bool) error {
	var columns map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&columns); err != nil || columns == nil {
		return fmt.Errorf("%q must be an object of columns", part)
	}
	if len(columns) == 0 || len(columns) > maxColumns {
		return fmt.Errorf("%q must have between 1 and %d columns", part, maxColumns)
	}
	for name, value := range columns {
		if !identifier.MatchString(name) {
			return fmt.Errorf("%q has a column %.70q, which is not a name in lower case", part, name)
		}
		if seen[name] {
			return fmt.Errorf("column %q stands in both key and values", name)
		}
		seen[name] = true
		if err := checkValue(value); err != nil {
			return fmt.Errorf("column %q of %q %w", name, part, err)
		}
	}
	return nil
}

func checkValue(value any) error {
	switch v := value.(type) {
	case bool:
		return nil
	case json.Number:
		if _, err := v.Int64(); err != nil {
			return errors.New("is not an integer")
		}
		return nil
	case string:
		if len(v) > maxText {
			return fmt.Errorf("is longer than %d bytes", maxText)
		}
		if strings.ContainsRune(v, 0) {
			return errors.New("contains a NUL, which PostgreSQL cannot store")
		}
		return nil
	default:
		return errors.New("must be a string, an integer or a bool")
	}
}
