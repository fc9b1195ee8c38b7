package catalogue

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// MaxAmount bounds an amount, in minor units.
const MaxAmount = 1_000_000_000_000

const maxURL = 255 // bytes of a resource

var (
	actionForm   = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}(?:\.[a-z0-9_]{1,31}){0,3}$`)
	currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)
	placeholder  = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_]{0,62})\}`)
)

// Operation is an action that an operator wrote for a guard. It is always High
// (mission B6). Everything in its parameters executes.
type Operation struct {
	Action     string          `json:"action"`
	Title      string          `json:"title"`
	Parameters json.RawMessage `json:"parameters"`         // JSON Schema 2020-12 of one closed object
	Resource   string          `json:"resource"`           // of a guard of HTTP: an exact URL with {parameter} for whole segments of its path. Else: word:name, likewise
	Key        []string        `json:"key,omitempty"`      // the parameters that are compared, whole, with a pre-approved key; none: it is never pre-approved
	Amount     string          `json:"amount,omitempty"`   // the parameter that holds minor units
	Currency   string          `json:"currency,omitempty"` // of that
}

// Compile checks an operation and makes it an action of its guard's kind.
func Compile(kind string, o Operation) (Action, error) {
	if _, taken := Lookup(kind, o.Action); taken || !actionForm.MatchString(o.Action) {
		return Action{}, fmt.Errorf("catalogue: %.64q cannot be the name of an operation", o.Action)
	}
	s, err := compileSchema(o.Parameters)
	if err != nil {
		return Action{}, fmt.Errorf("catalogue: %s: parameters: %w", o.Action, err)
	}
	if err := o.check(kind, s); err != nil {
		return Action{}, fmt.Errorf("catalogue: %s: %w", o.Action, err)
	}
	form := o
	form.Title, form.Parameters = "", s.text
	text, err := canonical.CanonicalizeValue(form)
	if err != nil {
		return Action{}, fmt.Errorf("catalogue: %s: %w", o.Action, err)
	}
	a := Action{Kind: kind, Name: o.Action, Risk: High, Title: o.Title, Schema: s.text, form: string(text)}
	a.target = func(params json.RawMessage) (Target, error) { return o.target(kind, s, params) }
	if len(o.Key) > 0 {
		a.key = o.key
		a.isKey = func(key json.RawMessage) error { return o.checkKey(s, key) }
	}
	return a, nil
}

func (o Operation) check(kind string, s *schema) error {
	for _, name := range o.placeholders() {
		if !s.segment(name) {
			return fmt.Errorf("resource: {%s} must be a required parameter, a string or an integer", name)
		}
	}
	example := placeholder.ReplaceAllString(o.Resource, "x")
	if err := CheckResource(kind, example); err != nil || strings.ContainsAny(example, "{}") {
		return fmt.Errorf("resource: %.80q does not hold", o.Resource)
	}
	if kind == HTTP && !wholeSegments(o.Resource) {
		return errors.New("resource: a {parameter} must be a whole segment of the path")
	}
	for _, name := range o.Key {
		if !slices.Contains(s.required, name) {
			return fmt.Errorf("key: %.64q must be a required parameter", name)
		}
	}
	if (o.Amount == "") != (o.Currency == "") || o.Currency != "" && !currencyForm.MatchString(o.Currency) {
		return errors.New("amount and currency are given both or neither, the currency as in ISO 4217")
	}
	if o.Amount != "" && (!slices.Contains(s.required, o.Amount) || s.types[o.Amount] != "integer") {
		return fmt.Errorf("amount: %.64q must be a required integer parameter", o.Amount)
	}
	return nil
}

func (o Operation) placeholders() (names []string) {
	for _, m := range placeholder.FindAllStringSubmatch(o.Resource, -1) {
		names = append(names, m[1])
	}
	return names
}

// wholeSegments: the host is never a parameter's to choose, and no part of a
// segment is.
func wholeSegments(resource string) bool {
	_, rest, _ := strings.Cut(resource, "://")
	for i, segment := range strings.Split(rest, "/") {
		if strings.Contains(segment, "{") && (i == 0 || placeholder.FindString(segment) != segment) {
			return false
		}
	}
	return true
}

func (o Operation) target(kind string, s *schema, params json.RawMessage) (Target, error) {
	if err := s.check(params); err != nil {
		return Target{}, err
	}
	members, err := scalars(params)
	if err != nil {
		return Target{}, err
	}
	var bad error
	resource := placeholder.ReplaceAllStringFunc(o.Resource, func(p string) string {
		value := members[p[1:len(p)-1]]
		if value == "" || value == "." || value == ".." {
			bad = fmt.Errorf("%s cannot be a segment of the resource", p)
		}
		return url.PathEscape(value)
	})
	if bad == nil {
		bad = CheckResource(kind, resource)
	}
	if bad != nil {
		return Target{}, bad
	}
	t := Target{Resource: resource}
	if o.Amount != "" {
		amount, err := strconv.ParseInt(members[o.Amount], 10, 64)
		if err != nil || amount < 0 || amount > MaxAmount {
			return Target{}, fmt.Errorf("%q must be whole minor units, not negative and at most %d", o.Amount, int64(MaxAmount))
		}
		if amount > 0 {
			t.Amount, t.Currency = amount, o.Currency
		}
	}
	return t, nil
}

func (o Operation) key(params json.RawMessage) (any, bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(params, &members) != nil {
		return nil, false
	}
	key := map[string]json.RawMessage{}
	for _, name := range o.Key {
		value, ok := members[name]
		if !ok {
			return nil, false
		}
		key[name] = value
	}
	return key, true
}

func (o Operation) checkKey(s *schema, key json.RawMessage) error {
	members, err := membersOf(key, o.Key)
	if err != nil {
		return err
	}
	for name, raw := range members {
		if err := s.checkMember(name, raw); err != nil {
			return err
		}
	}
	return nil
}

// scalars are the strings and integers among an object's members, as text.
func scalars(params json.RawMessage) (map[string]string, error) {
	out := map[string]string{}
	err := canonical.Members(params, func(name []byte, v canonical.Value) error {
		if text, ok := v.Text(); ok {
			out[string(name)] = text
		} else if n, ok := v.Int(); ok {
			out[string(name)] = strconv.FormatInt(n, 10)
		}
		return nil
	})
	return out, err
}

// checkURL wants the one spelling of an absolute URL that names a destination:
// no user, query, fragment, empty or dotted segment, and no port that the scheme
// has anyway.
func checkURL(text string) error {
	bad := fmt.Errorf("catalogue: a resource is the exact URL of a destination, in lower case up to its path and without query, not %.80q", text)
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.String() != text {
		return bad
	}
	if u.User != nil || strings.ContainsAny(text, "?#*") || u.Host != strings.ToLower(u.Host) || strings.HasSuffix(u.Host, ":") ||
		u.Scheme == "https" && u.Port() == "443" || u.Scheme == "http" && u.Port() == "80" {
		return bad
	}
	for i, segment := range strings.Split(u.EscapedPath(), "/") {
		plain, err := url.PathUnescape(segment)
		if err != nil || i > 0 && (plain == "" || plain == "." || plain == "..") || url.PathEscape(plain) != segment {
			return bad
		}
	}
	return nil
}
