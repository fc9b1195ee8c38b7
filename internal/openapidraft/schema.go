package openapidraft

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"
)

const (
	maxDepth  = 5   // of schemas in schemas
	maxText   = 500 // characters, where nothing is said
	maxList   = 50
	maxFields = 20
	maxEnum   = 100
)

var (
	errVague = errors.New("it may be one of several things")
	errDeep  = errors.New("its schema is nested too deeply, or holds itself")
)

// schemaOf says in the words of the catalogue what a schema says. Whatever it leaves open is bounded.
func schemaOf(ref *openapi3.SchemaRef, above ...*openapi3.Schema) (map[string]any, error) {
	switch {
	case ref == nil || ref.Value == nil:
		return nil, errors.New("it has no schema")
	case len(above) > maxDepth || slices.Contains(above, ref.Value):
		return nil, errDeep
	}
	s := ref.Value
	above = append(slices.Clip(above), s)
	if len(s.OneOf)+len(s.AnyOf) > 0 || s.Not != nil || s.If != nil {
		return nil, errVague
	}
	switch kind := typeOf(s); kind {
	case "string":
		return text(s)
	case "integer":
		return integer(s), nil
	case "boolean":
		return map[string]any{"type": "boolean"}, nil
	case "array":
		return list(s, above)
	case "object":
		return object(ref, above)
	case "number":
		return nil, errors.New("fractions have no canonical form; an API that takes them as text can be used")
	}
	return nil, errVague
}

// typeOf is the one type of a schema beside null.
func typeOf(s *openapi3.Schema) string {
	var kinds []string
	if s.Type != nil {
		kinds = slices.DeleteFunc(slices.Clone(s.Type.Slice()), func(kind string) bool { return kind == "null" })
	}
	switch {
	case len(kinds) == 1:
		return kinds[0]
	case len(kinds) == 0 && (len(s.Properties) > 0 || len(s.AllOf) > 0):
		return "object"
	}
	return ""
}

func text(s *openapi3.Schema) (map[string]any, error) {
	out := map[string]any{"type": "string"}
	if len(s.Enum) > 0 {
		if len(s.Enum) > maxEnum {
			return nil, fmt.Errorf("it is one of more than %d words", maxEnum)
		}
		for _, word := range s.Enum {
			if _, ok := word.(string); !ok {
				return nil, errVague
			}
		}
		out["enum"] = s.Enum
		return out, nil
	}
	out["maxLength"] = maxText
	if s.MaxLength != nil && *s.MaxLength < 1<<15 {
		out["maxLength"] = int(*s.MaxLength)
	}
	if s.MinLength > 0 && s.MinLength < 1<<15 {
		out["minLength"] = int(s.MinLength)
	}
	if _, err := regexp.Compile(s.Pattern); s.Pattern != "" && err == nil {
		out["pattern"] = s.Pattern
	}
	return out, nil
}

func integer(s *openapi3.Schema) map[string]any {
	out := map[string]any{"type": "integer"}
	for word, bound := range map[string]*float64{"minimum": s.Min, "maximum": s.Max} {
		if bound != nil && *bound == math.Trunc(*bound) && math.Abs(*bound) < 1<<53 {
			out[word] = int64(*bound)
		}
	}
	return out
}

func list(s *openapi3.Schema, above []*openapi3.Schema) (map[string]any, error) {
	items, err := schemaOf(s.Items, above...)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"type": "array", "items": items, "maxItems": maxList}
	if s.MaxItems != nil && *s.MaxItems < 1000 {
		out["maxItems"] = int(*s.MaxItems)
	}
	if s.MinItems > 0 && s.MinItems < 1000 {
		out["minItems"] = int(s.MinItems)
	}
	return out, nil
}

// object is closed: of what is optional, what cannot be said is left out.
func object(ref *openapi3.SchemaRef, above []*openapi3.Schema) (map[string]any, error) {
	from, must, err := flat(ref, 0)
	if err != nil {
		return nil, err
	}
	if len(from) == 0 {
		return nil, errVague
	}
	properties, required := map[string]any{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(from)) {
		if p := from[name]; p.Value != nil && p.Value.ReadOnly {
			continue
		}
		property, err := schemaOf(from[name], above...)
		needed := slices.Contains(must, name)
		switch {
		case err == nil:
			properties[name] = property
			if needed {
				required = append(required, name)
			}
		case needed:
			return nil, fmt.Errorf("%.64q: %w", name, err)
		}
	}
	out := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	return out, nil
}

// flat is an object with what it is composed of.
func flat(ref *openapi3.SchemaRef, depth int) (properties openapi3.Schemas, required []string, err error) {
	if ref == nil || ref.Value == nil || depth > maxDepth {
		return nil, nil, errDeep
	}
	s := ref.Value
	if len(s.OneOf)+len(s.AnyOf) > 0 {
		return nil, nil, errVague
	}
	properties, required = maps.Clone(s.Properties), slices.Clone(s.Required)
	if properties == nil {
		properties = openapi3.Schemas{}
	}
	for _, part := range s.AllOf {
		more, must, err := flat(part, depth+1)
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(properties, more)
		required = append(required, must...)
	}
	return properties, required, nil
}

// fieldsOf are the scalars of an answer, nearest first.
func fieldsOf(ref *openapi3.SchemaRef, prefix string, depth int) (fields []string) {
	if ref == nil || ref.Value == nil || depth > 2 {
		return nil
	}
	switch typeOf(ref.Value) {
	case "string", "integer", "number", "boolean":
		if prefix != "" {
			return []string{prefix}
		}
	case "array":
		return fieldsOf(ref.Value.Items, prefix+"[]", depth+1)
	case "object":
		return fieldsOfObject(ref, prefix, depth)
	}
	return nil
}

func fieldsOfObject(ref *openapi3.SchemaRef, prefix string, depth int) (near []string) {
	properties, _, err := flat(ref, 0)
	if err != nil {
		return nil
	}
	var far []string
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if p := properties[name]; !plainField.MatchString(name) || p.Value == nil || p.Value.WriteOnly {
			continue
		}
		path := name
		if prefix != "" {
			path = prefix + "." + name
		}
		found := fieldsOf(properties[name], path, depth+1)
		if len(found) == 1 && found[0] == path {
			near = append(near, path)
		} else {
			far = append(far, found...)
		}
	}
	return append(near, far...)
}

var plainField = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
