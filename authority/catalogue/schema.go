package catalogue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const (
	draft     = "https://json-schema.org/draft/2020-12/schema"
	maxSchema = 16 << 10 // bytes of one schema
)

// schema is a compiled JSON Schema of one closed object.
type schema struct {
	text     json.RawMessage // canonical
	required []string
	types    map[string]string // of the object's own members, where it is one type
	compiled *jsonschema.Schema
}

// keywords are those that an operator's schema may use. Whatever is not here
// could open what has to be closed, or reach elsewhere.
var keywords = []string{"$schema", "title", "description", "type", "properties", "required", "additionalProperties", "enum", "const", "pattern",
	"minLength", "maxLength", "minimum", "maximum", "items", "minItems", "maxItems", "uniqueItems", "propertyNames", "minProperties", "maxProperties"}

var errClosed = errors.New(`must describe one object with "additionalProperties": false at every level`)

// compileSchema compiles an operator's schema.
func compileSchema(text json.RawMessage) (*schema, error) {
	if len(text) > maxSchema {
		return nil, fmt.Errorf("must be at most %d bytes", maxSchema)
	}
	clean, err := canonical.Canonicalize(text)
	if err != nil {
		return nil, fmt.Errorf("must be one JSON object: %w", err)
	}
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(clean))
	if err != nil {
		return nil, errors.New("must be one JSON object")
	}
	if err := closed(root, true); err != nil {
		return nil, err
	}
	return compile(clean, root)
}

func compile(clean []byte, root any) (*schema, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nothing{})
	if err := c.AddResource("urn:parameters", root); err != nil {
		return nil, errors.New("is not a JSON Schema")
	}
	compiled, err := c.Compile("urn:parameters")
	if err != nil {
		return nil, errors.New("is not a JSON Schema of draft 2020-12")
	}
	s := &schema{text: clean, compiled: compiled, required: compiled.Required, types: map[string]string{}}
	for name, property := range compiled.Properties {
		if property.Types != nil && len(property.Types.ToStrings()) == 1 {
			s.types[name] = property.Types.ToStrings()[0]
		}
	}
	return s, nil
}

// nothing is a loader that loads nothing: a schema is whole by itself.
type nothing struct{}

func (nothing) Load(string) (any, error) { return nil, errors.New("nothing is loaded") }

// closed walks a schema: known keywords only, and every object closed.
func closed(node any, top bool) error {
	object, ok := node.(map[string]any)
	if !ok {
		return errClosed
	}
	for keyword := range object {
		if !slices.Contains(keywords, keyword) {
			return fmt.Errorf("must not use %.40q", keyword)
		}
	}
	if given, ok := object["$schema"]; ok && given != draft {
		return fmt.Errorf("must be of draft 2020-12: %s", draft)
	}
	if pattern, ok := object["pattern"].(string); ok {
		if _, err := regexp.Compile(pattern); err != nil {
			return errors.New("has a pattern that cannot be read")
		}
	}
	kind, ok := object["type"].(string)
	if !ok || top && kind != "object" {
		return errClosed
	}
	switch kind {
	case "object":
		return closedObject(object)
	case "array":
		return closed(object["items"], false)
	case "string", "integer", "boolean":
		return nil
	}
	return fmt.Errorf("must not use the type %.20q: canonical parameters are objects, lists, strings, integers and booleans", kind)
}

func closedObject(object map[string]any) error {
	properties, ok := object["properties"].(map[string]any)
	if !ok || object["additionalProperties"] != false || object["propertyNames"] != nil {
		return errClosed
	}
	for _, property := range properties {
		if err := closed(property, false); err != nil {
			return err
		}
	}
	return nil
}

// segment tells whether a member can be a part of a resource.
func (s *schema) segment(name string) bool {
	return slices.Contains(s.required, name) && (s.types[name] == "string" || s.types[name] == "integer")
}

// check holds parameters against the schema.
func (s *schema) check(params json.RawMessage) error {
	clean, err := canonical.Canonicalize(params)
	if err != nil {
		return fmt.Errorf("parameters: %w", err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(clean))
	if err != nil {
		return errors.New("parameters must be one object")
	}
	if err := s.compiled.Validate(value); err != nil {
		return misfit(err)
	}
	return nil
}

// checkMember holds one member's value against its part of the schema.
func (s *schema) checkMember(name string, raw json.RawMessage) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil || s.compiled.Properties[name] == nil || s.compiled.Properties[name].Validate(value) != nil {
		return fmt.Errorf("%.64q does not fit its schema", name)
	}
	return nil
}

// misfit says where parameters do not fit, and nothing of what stands there.
func misfit(err error) error {
	e, ok := errors.AsType[*jsonschema.ValidationError](err)
	for ok && len(e.Causes) > 0 {
		e = e.Causes[0]
	}
	if !ok || len(e.InstanceLocation) == 0 {
		return errors.New("parameters do not fit their schema")
	}
	return fmt.Errorf("%.64q does not fit its schema", e.InstanceLocation[0])
}

// schemaOf makes the closed schema of an object.
func schemaOf(properties map[string]any, required []string) json.RawMessage {
	text, err := canonical.CanonicalizeValue(map[string]any{
		"$schema": draft, "type": "object", "properties": properties, "required": required, "additionalProperties": false,
	})
	if err != nil {
		panic(err) // a constant of this package
	}
	return text
}

// compileConstant compiles a schema of this package.
func compileConstant(text json.RawMessage) *schema {
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		panic(err)
	}
	s, err := compile(text, root)
	if err != nil {
		panic(err)
	}
	return s
}
