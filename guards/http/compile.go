package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

// operation is one that was checked.
type operation struct {
	action      catalogue.Action
	request     template
	answer      answer
	idempotency string // a header, or nothing
	timeout     time.Duration
	inspect     *template // nil: there is none
	inspected   answer
}

// template is a request.
type template struct {
	method  string
	path    path
	query   []entry
	headers []entry
	form    []entry
	body    *shape
}

func compileOperation(o Operation, reserved string) (*operation, error) {
	action, err := catalogue.Compile(catalogue.HTTP, o.Operation)
	if err != nil {
		return nil, err
	}
	c, err := newCompiler(o.Operation, reserved, o.Request.IdempotencyHeader)
	if err != nil {
		return nil, err
	}
	out := &operation{action: action, timeout: o.Timeout, idempotency: o.Request.IdempotencyHeader}
	if out.timeout == 0 {
		out.timeout = defaultTimeout
	}
	if out.timeout < time.Millisecond || out.timeout > maxTimeout {
		return nil, fmt.Errorf("timeout: it must be between 1 ms and %s", maxTimeout)
	}
	if out.request, err = c.request(o.Request); err != nil {
		return nil, err
	}
	if err := c.unused(); err != nil {
		return nil, err
	}
	if out.answer, err = compileAnswer(o.Answer); err != nil {
		return nil, err
	}
	if o.Inspect != nil {
		err = c.inspect(out, *o.Inspect)
	}
	return out, err
}

func (c *compiler) inspect(out *operation, i Inspect) error {
	if len(i.Fields) == 0 {
		return errors.New("inspect: it shows no fields")
	}
	t, err := c.request(Request{Method: http.MethodGet, URL: i.URL, Query: i.Query, Headers: i.Headers})
	if err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if out.inspected, err = compileAnswer(Answer{Success: []int{200}, Fields: i.Fields}); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	out.inspect = &t
	return nil
}

// compiler knows the parameters of an operation, and which of them were used.
type compiler struct {
	resource string
	types    map[string]string
	required []string
	used     map[string]bool
	reserved map[string]bool // headers that are not the template's
}

func newCompiler(o catalogue.Operation, reserved ...string) (*compiler, error) {
	var schema struct {
		Properties map[string]struct {
			Type string `json:"type"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	if err := json.Unmarshal(o.Parameters, &schema); err != nil {
		return nil, errors.New("the parameters cannot be read")
	}
	c := &compiler{resource: o.Resource, types: map[string]string{}, required: schema.Required, used: map[string]bool{}, reserved: map[string]bool{}}
	for name, p := range schema.Properties {
		c.types[name] = p.Type
		c.used[name] = strings.Contains(o.Resource, "{"+name+"}")
	}
	for _, header := range reserved {
		if header == "" {
			continue
		}
		name := textproto.CanonicalMIMEHeaderKey(header)
		if !isHeader(header) || c.reserved[name] {
			return nil, fmt.Errorf("%.64q cannot be a header of its own", header)
		}
		c.reserved[name] = true
	}
	return c, nil
}

func (c *compiler) unused() error {
	for _, name := range slices.Sorted(maps.Keys(c.used)) {
		if !c.used[name] {
			return fmt.Errorf("request: the parameter %q is sent nowhere", name)
		}
	}
	return nil
}

func (c *compiler) request(r Request) (t template, err error) {
	t.method = r.Method
	if t.method == "" {
		t.method = http.MethodPost
	}
	if !slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, t.method) {
		return t, errors.New("method: it must be GET, POST, PUT, PATCH or DELETE")
	}
	if (r.Body != nil && r.Form != nil) || t.method == http.MethodGet && (r.Body != nil || r.Form != nil) {
		return t, errors.New("body and form: there is at most one of them, and none with GET")
	}
	if t.path, err = parsePath(c.resource, r.URL); err != nil {
		return t, err
	}
	for _, segment := range t.path {
		if err := c.use(segment, false); err != nil {
			return t, fmt.Errorf("url: %w", err)
		}
	}
	for _, e := range []struct {
		name string
		from map[string]string
		into *[]entry
	}{{"query", r.Query, &t.query}, {"headers", r.Headers, &t.headers}, {"form", r.Form, &t.form}} {
		if *e.into, err = c.entries(e.from); err != nil {
			return t, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if r.Form != nil && t.form == nil {
		t.form = []entry{}
	}
	if r.Body != nil {
		if t.body, err = c.body(r.Body); err != nil {
			return t, fmt.Errorf("body: %w", err)
		}
	}
	return t, c.checkHeaders(t)
}

func (c *compiler) entries(from map[string]string) (all []entry, err error) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		value, err := parseText(from[name])
		if err == nil {
			err = c.use(value, true)
		}
		if err != nil {
			return nil, fmt.Errorf("%.64q: %w", name, err)
		}
		all = append(all, entry{name, value})
	}
	return all, nil
}

// use notes the parameters of a text. In the middle of one they must always be there, and be scalars.
func (c *compiler) use(t text, optional bool) error {
	for _, p := range t {
		if p.name == "" {
			continue
		}
		kind, declared := c.types[p.name]
		switch {
		case !declared:
			return fmt.Errorf("{%s} is not a parameter", p.name)
		case kind == "object" || kind == "array":
			return fmt.Errorf("{%s} is not a string, an integer or a boolean", p.name)
		case !slices.Contains(c.required, p.name) && !(optional && t.only() != ""):
			return fmt.Errorf("{%s} is optional, and so must be the whole of a value", p.name)
		}
		c.used[p.name] = true
	}
	return nil
}

// foreign are headers that say how a message is framed, who asks and where it goes: not a template's to choose.
var foreign = []string{"Host", "Content-Length", "Transfer-Encoding", "Content-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade",
	"Expect", "Accept-Encoding", "Authorization", "Cookie", "Proxy-Authorization", "Proxy-Connection", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "Dpop"}

func (c *compiler) checkHeaders(t template) error {
	for _, h := range t.headers {
		name := textproto.CanonicalMIMEHeaderKey(h.name)
		if !isHeader(h.name) || slices.Contains(foreign, name) || c.reserved[name] {
			return fmt.Errorf("headers: %.64q is not a template's to choose", h.name)
		}
	}
	return nil
}

// isHeader wants a token (RFC 9110 §5.6.2) that does not frame a message.
func isHeader(name string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	bad := func(r rune) bool {
		return !strings.ContainsRune(marks, r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	framing := []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Content-Type", "Accept-Encoding"}
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, bad) &&
		(name == "Content-Type" || !slices.Contains(framing, textproto.CanonicalMIMEHeaderKey(name)))
}

// body compiles a template of JSON.
func (c *compiler) body(raw json.RawMessage) (*shape, error) {
	clean, err := canonical.Canonicalize(raw)
	if err != nil {
		return nil, err
	}
	return c.shape(clean)
}

func (c *compiler) shape(raw json.RawMessage) (*shape, error) {
	value := canonical.Value{Raw: raw}
	if s, ok := value.Text(); ok {
		return c.textShape(s)
	}
	if bytes.HasPrefix(raw, []byte("[")) {
		out := &shape{items: []*shape{}}
		return out, canonical.Elements(value, func(v canonical.Value) error {
			item, err := c.shape(json.RawMessage(v.Raw))
			out.items = append(out.items, item)
			return err
		})
	}
	if !value.IsObject() {
		return &shape{literal: raw}, nil
	}
	out := &shape{members: []member{}}
	return out, canonical.Members(raw, func(name []byte, v canonical.Value) error {
		item, err := c.shape(json.RawMessage(v.Raw))
		if err != nil {
			return fmt.Errorf("%.64q: %w", name, err)
		}
		var encoded bytes.Buffer
		err = encode(&encoded, string(name))
		out.members = append(out.members, member{encoded.Bytes(), item})
		return err
	})
}

func (c *compiler) textShape(s string) (*shape, error) {
	t, err := parseText(s)
	if err != nil {
		return nil, err
	}
	if name := t.only(); name != "" { // of any type
		if _, declared := c.types[name]; !declared {
			return nil, fmt.Errorf("{%s} is not a parameter", name)
		}
		c.used[name] = true
		return &shape{text: t}, nil
	}
	if len(t) == 0 || len(t) == 1 {
		var out bytes.Buffer
		err := encode(&out, plainOf(t))
		return &shape{literal: out.Bytes()}, err
	}
	return &shape{text: t}, c.use(t, false)
}

func plainOf(t text) string {
	if len(t) == 0 {
		return ""
	}
	return t[0].literal
}

// spell makes the request of canonical parameters, with their target. It refuses what does not fit the schema and what
// cannot be spelled.
func (o *operation) spell(params json.RawMessage) (guards.Target, *upstream.Request, error) {
	return o.spellAs(&o.request, params)
}

func (o *operation) spellAs(t *template, params json.RawMessage) (guards.Target, *upstream.Request, error) {
	target, err := o.action.Target(params)
	if err != nil {
		return guards.Target{}, nil, err
	}
	v, err := valuesOf(params)
	if err != nil {
		return guards.Target{}, nil, err
	}
	request, err := t.spell(target.Resource, v)
	if err != nil {
		return guards.Target{}, nil, err
	}
	return target, request, nil
}

func (t *template) spell(resource string, v values) (*upstream.Request, error) {
	u, err := t.path.under(resource, v)
	if err != nil {
		return nil, err
	}
	query, err := encoded(t.query, v)
	if err != nil {
		return nil, err
	}
	u.RawQuery = query
	r := &upstream.Request{Method: t.method, URL: u, Header: http.Header{"Accept": {"application/json"}}}
	if err := t.spellBody(r, v); err != nil {
		return nil, err
	}
	for _, h := range t.headers {
		value, given, err := h.value.expand(v)
		switch {
		case err != nil:
			return nil, err
		case strings.ContainsFunc(value, notVisible) || strings.TrimSpace(value) != value:
			return nil, fmt.Errorf("the header %q must be one line of visible ASCII", h.name)
		case given:
			r.Header.Set(h.name, value)
		}
	}
	return r, nil
}

func notVisible(r rune) bool { return r < ' ' || r > '~' }

func (t *template) spellBody(r *upstream.Request, v values) (err error) {
	switch {
	case t.body != nil:
		var out bytes.Buffer
		_, err = t.body.write(&out, v)
		r.Body = out.Bytes()
		r.Header.Set("Content-Type", "application/json")
	case t.form != nil:
		var form string
		form, err = encoded(t.form, v)
		r.Body = []byte(form)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return err
}

// encoded is a query or a form, in order of its names.
func encoded(entries []entry, v values) (string, error) {
	out := url.Values{}
	for _, e := range entries {
		value, given, err := e.value.expand(v)
		if err != nil {
			return "", err
		}
		if given {
			out.Set(e.name, value)
		}
	}
	return out.Encode(), nil
}
