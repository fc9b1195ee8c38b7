// Package openapitest holds what is really answered against the description. It
// is not the code that made the description: kin-openapi reads it.
package openapitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	pathpkg "path"
	"slices"
	"strconv"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Checker knows one description.
type Checker struct {
	Doc *openapi3.T
	mux *http.ServeMux // only to find the path that a request meant
}

// New reads a description and refuses one that is not valid OpenAPI 3.1, its examples included.
func New(description []byte) (*Checker, error) {
	c, err := Read(description)
	if err != nil {
		return nil, err
	}
	return c, c.Doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation(), openapi3.EnableSchemaPatternValidation())
}

// Read is New for a description that another test finds valid, in half the time.
func Read(description []byte) (*Checker, error) {
	doc, err := openapi3.NewLoader().LoadFromData(description)
	if err != nil {
		return nil, err
	}
	if !doc.IsOpenAPI31OrLater() {
		return nil, errors.New("the description is not OpenAPI 3.1")
	}
	c := &Checker{Doc: doc, mux: http.NewServeMux()}
	for path := range doc.Paths.Map() {
		c.mux.Handle(path, http.NotFoundHandler())
	}
	return c, nil
}

// Check says what about an answer is not as described. Answers to what is not
// described at all, which are refusals, pass when they are problem documents.
func (c *Checker) Check(r *http.Request, status int, header http.Header, body []byte) error {
	_, path := c.mux.Handler(r)
	op := c.operation(path, r.Method)
	if spelled := r.URL.Path; op == nil || spelled != pathpkg.Clean(spelled) { // a mux overlooks how a path is spelled
		return stray(status, body)
	}
	found := op.Responses.Value(strconv.Itoa(status))
	if found == nil {
		return fmt.Errorf("%s %s answers %d, which is not described: %.200s", r.Method, path, status, body)
	}
	if err := c.body(found.Value, header, body); err != nil {
		return fmt.Errorf("%s %s answers %d: %w", r.Method, path, status, err)
	}
	for name := range found.Value.Headers {
		optional := name == "Retry-After" // only some of the codes of a status say when
		if !optional && header.Get(name) == "" {
			return fmt.Errorf("%s %s answers %d without %s", r.Method, path, status, name)
		}
	}
	return nil
}

func (c *Checker) operation(path, method string) *openapi3.Operation {
	if item := c.Doc.Paths.Value(path); item != nil {
		return item.GetOperation(method)
	}
	return nil
}

func stray(status int, body []byte) error {
	var p api.Problem
	if status < http.StatusBadRequest || json.Unmarshal(body, &p) != nil || p.Code == "" {
		return fmt.Errorf("something that is not described was answered with %d: %.200s", status, body)
	}
	return nil
}

// body holds a body against its schema, and its code against those that are listed.
func (c *Checker) body(r *openapi3.Response, header http.Header, body []byte) error {
	if len(r.Content) == 0 {
		if len(body) != 0 {
			return errors.New("a body that is not described")
		}
		return nil
	}
	media, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	content := r.Content[media]
	if content == nil {
		return fmt.Errorf("a body of type %q, which is not described", media)
	}
	if content.Schema == nil || !jsonTypes[media] {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	if err := content.Schema.Value.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.MultiErrors()); err != nil {
		return err
	}
	return coded(r, v)
}

var jsonTypes = map[string]bool{"application/json": true, "application/problem+json": true, "application/jwk-set+json": true}

func coded(r *openapi3.Response, v any) error {
	listed, is := r.Extensions["x-codes"].([]any)
	if !is {
		return nil
	}
	members, _ := v.(map[string]any)
	if !slices.Contains(listed, members["code"]) {
		return fmt.Errorf("the code %v, which is not described (%v)", members["code"], listed)
	}
	return nil
}
