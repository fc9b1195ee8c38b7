// Package openapidraft drafts the operations of a guard of HTTP from an OpenAPI
// document, for an operator to read, narrow and correct. What cannot be said in
// an operation is left out, with a reason.
package openapidraft

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

const maxSpecification = 16 << 20

// Draft is what an OpenAPI document can become.
type Draft struct {
	Credential Credential
	Operations []Operation
	Skipped    []string // one line for each operation that cannot be drafted, with the reason
}

// Credential is how the API wants it, as far as its document says.
type Credential struct {
	Header string `yaml:"header"`
	Prefix string `yaml:"prefix,omitempty"`
	File   string `yaml:"file"`
}

// Operation is one operation of a guard's file.
type Operation struct {
	Action     string         `yaml:"action"`
	Title      string         `yaml:"title"`
	Parameters map[string]any `yaml:"parameters"`
	Resource   string         `yaml:"resource"`
	Request    Request        `yaml:"request,omitempty"`
	Answer     Answer         `yaml:"answer,omitempty"`
	Inspect    *Inspect       `yaml:"inspect,omitempty"`
}

// Request is its template.
type Request struct {
	Method            string            `yaml:"method"`
	Query             map[string]string `yaml:"query,omitempty"`
	Headers           map[string]string `yaml:"headers,omitempty"`
	Body              any               `yaml:"body,omitempty"`
	Form              map[string]string `yaml:"form,omitempty"`
	IdempotencyHeader string            `yaml:"idempotency_header,omitempty"`
}

// Answer says what of an answer comes back.
type Answer struct {
	Success []int    `yaml:"success,omitempty"`
	Fields  []string `yaml:"fields,omitempty"`
}

// Inspect is a GET of the same resource.
type Inspect struct {
	Fields []string `yaml:"fields"`
}

// Options narrow a draft.
type Options struct {
	Server string   // instead of the document's; optional
	Only   []string // operation ids, or "METHOD /path"; optional, all
}

// Read drafts from a document of OpenAPI 3, JSON or YAML. Nothing that it refers
// to outside of itself is read.
func Read(text []byte, o Options) (d *Draft, err error) {
	if len(text) > maxSpecification {
		return nil, fmt.Errorf("a specification has at most %d bytes", maxSpecification)
	}
	defer func() {
		if p := recover(); p != nil { // of the reader of a document that may be anything
			d, err = nil, errors.New("this is no OpenAPI document that can be read")
		}
	}()
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil || doc.Paths == nil {
		return nil, errors.New("this is no OpenAPI 3 document that can be read, or it refers to others")
	}
	server, err := serverOf(doc, o.Server)
	if err != nil {
		return nil, err
	}
	d = &Draft{Credential: credentialOf(doc)}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		d.path(server, path, doc.Paths.Map()[path], o.Only)
	}
	d.distinguish()
	return d, nil
}

func serverOf(doc *openapi3.T, given string) (string, error) {
	if given == "" && len(doc.Servers) > 0 {
		given = doc.Servers[0].URL
	}
	given = strings.TrimSuffix(given, "/")
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsAny(given, "{}?#") {
		return "", errors.New("the document names no server by an absolute URL; give one with --server")
	}
	return given, nil
}

// credentialOf is the first scheme that fits in a header.
func credentialOf(doc *openapi3.T) Credential {
	const file = "/etc/nightwarrant/credential"
	out := Credential{Header: "Authorization", Prefix: "Bearer ", File: file}
	if doc.Components == nil {
		return out
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Components.SecuritySchemes)) {
		s := doc.Components.SecuritySchemes[name].Value
		switch {
		case s == nil:
		case s.Type == "apiKey" && s.In == "header":
			return Credential{Header: s.Name, File: file}
		case s.Type == "http" && strings.EqualFold(s.Scheme, "basic"):
			return Credential{Header: "Authorization", Prefix: "Basic ", File: file}
		case s.Type == "http" || s.Type == "oauth2" || s.Type == "openIdConnect":
			return out
		}
	}
	return out
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

func (d *Draft) path(server, path string, item *openapi3.PathItem, only []string) {
	for _, method := range methods {
		o := item.GetOperation(method)
		name := method + " " + path
		if o == nil || len(only) > 0 && !slices.Contains(only, o.OperationID) && !slices.Contains(only, name) {
			continue
		}
		drafted, err := draft(server+path, method, item, o)
		if err == nil {
			err = compiles(drafted)
		}
		if err != nil {
			d.Skipped = append(d.Skipped, oneLine(name+": "+err.Error(), 300))
			continue
		}
		d.Operations = append(d.Operations, drafted)
	}
}

// compiles asks the catalogue, which decides.
func compiles(o Operation) error {
	parameters, err := json.Marshal(o.Parameters)
	if err != nil {
		return err
	}
	_, err = catalogue.Compile(catalogue.HTTP, catalogue.Operation{Action: o.Action, Title: o.Title, Parameters: parameters, Resource: o.Resource})
	return err
}

// distinguish gives operations of one name a number.
func (d *Draft) distinguish() {
	seen := map[string]int{}
	for i := range d.Operations {
		o := &d.Operations[i]
		if seen[o.Action]++; seen[o.Action] > 1 {
			o.Action = fmt.Sprintf("%.28s_%d", o.Action, seen[o.Action])
		}
	}
}

// drafting is one operation on its way.
type drafting struct {
	operation  Operation
	properties map[string]any
	required   []string
}

func draft(target, method string, item *openapi3.PathItem, o *openapi3.Operation) (Operation, error) {
	w := &drafting{properties: map[string]any{}, operation: Operation{
		Action: actionOf(o.OperationID, method, target), Title: titleOf(o, method, target), Resource: target, Request: Request{Method: method},
	}}
	for _, p := range append(slices.Clone(item.Parameters), o.Parameters...) {
		if p.Value == nil {
			return Operation{}, errors.New("a parameter cannot be resolved")
		}
		if err := w.parameter(p.Value); err != nil {
			return Operation{}, fmt.Errorf("parameter %.64q: %w", p.Value.Name, err)
		}
	}
	if o.RequestBody != nil && o.RequestBody.Value != nil {
		if err := w.body(o.RequestBody.Value); err != nil {
			return Operation{}, fmt.Errorf("body: %w", err)
		}
	}
	slices.Sort(w.required)
	w.operation.Parameters = map[string]any{"type": "object", "additionalProperties": false, "properties": w.properties}
	if len(w.required) > 0 {
		w.operation.Parameters["required"] = slices.Compact(w.required)
	}
	w.operation.Answer = answerOf(o)
	if get := item.GetOperation(http.MethodGet); get != nil && method != http.MethodGet {
		if fields := answerOf(get).Fields; len(fields) > 0 && !needsMore(item, get) {
			w.operation.Inspect = &Inspect{Fields: fields}
		}
	}
	return w.operation, nil
}

// needsMore tells whether a GET needs more than its path.
func needsMore(item *openapi3.PathItem, get *openapi3.Operation) bool {
	return slices.ContainsFunc(append(slices.Clone(item.Parameters), get.Parameters...), func(p *openapi3.ParameterRef) bool {
		return p.Value == nil || p.Value.Required && p.Value.In != openapi3.ParameterInPath
	})
}

// add declares a parameter under a name that a template can use, and returns that.
func (w *drafting) add(name string, ref *openapi3.SchemaRef, required bool, above ...*openapi3.Schema) (string, error) {
	schema, err := schemaOf(ref, above...)
	if err != nil {
		return "", err
	}
	clean := nameOf(name)
	if _, taken := w.properties[clean]; taken {
		return "", errors.New("another parameter has that name")
	}
	w.properties[clean] = schema
	if required {
		w.required = append(w.required, clean)
	}
	return clean, nil
}

func (w *drafting) parameter(p *openapi3.Parameter) error {
	r := &w.operation.Request
	switch {
	case p.In == openapi3.ParameterInHeader && strings.EqualFold(p.Name, "Idempotency-Key"):
		r.IdempotencyHeader = p.Name
		return nil
	case p.In == openapi3.ParameterInHeader && slices.Contains([]string{"accept", "content-type", "authorization"}, strings.ToLower(p.Name)):
		return nil // OpenAPI has other words for them
	case p.In == openapi3.ParameterInCookie && !p.Required:
		return nil
	case p.In == openapi3.ParameterInCookie:
		return errors.New("cookies are not sent")
	}
	name, err := w.add(p.Name, p.Schema, p.Required || p.In == openapi3.ParameterInPath)
	if err != nil && !p.Required && p.In != openapi3.ParameterInPath {
		return nil // the draft does without it
	}
	if err != nil {
		return err
	}
	kind := w.properties[name].(map[string]any)["type"]
	if kind == "object" || kind == "array" {
		delete(w.properties, name)
		if p.Required {
			return errors.New("lists and objects are sent in bodies only")
		}
		return nil
	}
	switch p.In {
	case openapi3.ParameterInPath:
		w.operation.Resource = strings.ReplaceAll(w.operation.Resource, "{"+p.Name+"}", "{"+name+"}")
	case openapi3.ParameterInQuery:
		r.Query = with(r.Query, p.Name, "{"+name+"}")
	case openapi3.ParameterInHeader:
		r.Headers = with(r.Headers, p.Name, "{"+name+"}")
	}
	return nil
}

func with(m map[string]string, name, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[name] = value
	return m
}

func (w *drafting) body(b *openapi3.RequestBody) error {
	if media := b.Content.Get("application/json"); media != nil && media.Schema != nil {
		return w.json(media.Schema)
	}
	if media := b.Content["application/x-www-form-urlencoded"]; media != nil && media.Schema != nil {
		return w.members(media.Schema, func(name, parameter string) {
			w.operation.Request.Form = with(w.operation.Request.Form, name, "{"+parameter+"}")
		}, "string", "integer", "boolean")
	}
	if !b.Required {
		return nil
	}
	return errors.New("it is neither JSON nor a form")
}

// json makes a parameter of each member of an object, and of any other body as a whole.
func (w *drafting) json(ref *openapi3.SchemaRef) error {
	if ref.Value == nil || len(ref.Value.Properties) == 0 && len(ref.Value.AllOf) == 0 {
		name, err := w.add("body", ref, true)
		w.operation.Request.Body = "{" + name + "}"
		return err
	}
	body := map[string]any{}
	w.operation.Request.Body = body
	return w.members(ref, func(name, parameter string) { body[name] = "{" + parameter + "}" })
}

// members declares those of an object that can be said; kinds, if any, are the types that can.
func (w *drafting) members(ref *openapi3.SchemaRef, use func(name, parameter string), kinds ...string) error {
	properties, required, err := flat(ref, 0)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		must := slices.Contains(required, name)
		if p := properties[name]; p.Value != nil && p.Value.ReadOnly {
			continue
		}
		parameter, err := w.add(name, properties[name], must, ref.Value)
		if err == nil && len(kinds) > 0 && !slices.Contains(kinds, fmt.Sprint(w.properties[parameter].(map[string]any)["type"])) {
			delete(w.properties, parameter)
			w.required = slices.DeleteFunc(w.required, func(s string) bool { return s == parameter })
			err = errors.New("a form has texts, integers and booleans only")
		}
		switch {
		case err == nil:
			use(name, parameter)
		case must:
			return fmt.Errorf("%.64q: %w", name, err)
		}
	}
	return nil
}

// answerOf takes the first success that is described.
func answerOf(o *openapi3.Operation) (a Answer) {
	if o.Responses == nil {
		return a
	}
	for _, status := range slices.Sorted(maps.Keys(o.Responses.Map())) {
		code := 0
		if _, err := fmt.Sscanf(status, "%3d", &code); err != nil || code < 200 || code > 299 || len(status) != 3 {
			continue
		}
		a.Success = append(a.Success, code)
		r := o.Responses.Value(status).Value
		if r == nil || len(a.Fields) > 0 {
			continue
		}
		if media := r.Content.Get("application/json"); media != nil && media.Schema != nil {
			a.Fields = fieldsOf(media.Schema, "", 0)
			a.Fields = a.Fields[:min(len(a.Fields), maxFields)]
		}
	}
	return a
}

var notName = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// nameOf makes a name that can stand in braces.
func nameOf(name string) string {
	name = strings.Trim(notName.ReplaceAllString(name, "_"), "_")
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "p_" + name
	}
	return name[:min(len(name), 63)]
}

// actionOf makes an action such as create_payment.
func actionOf(id, method, target string) string {
	if id == "" {
		u, _ := url.Parse(target)
		id = strings.ToLower(method) + "_" + notName.ReplaceAllString(u.Path, "_")
	}
	var b strings.Builder
	low := false
	for _, r := range id {
		if unicode.IsUpper(r) && low {
			b.WriteByte('_')
		}
		low = unicode.IsLower(r) || unicode.IsDigit(r)
		b.WriteRune(unicode.ToLower(r))
	}
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(b.String(), "_"), "_")
	if name == "" || name[0] < 'a' {
		name = "op_" + name
	}
	return strings.TrimRight(name[:min(len(name), 32)], "_")
}

func titleOf(o *openapi3.Operation, method, target string) string {
	title := oneLine(o.Summary, 80)
	if title == "" {
		u, _ := url.Parse(target)
		title = oneLine(method+" "+u.Path, 80)
	}
	return title
}

// oneLine keeps foreign text harmless.
func oneLine(s string, most int) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))), " ")
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most])
	}
	return s
}
