package http

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// text is a template of one string.
type text []part

// part is a literal, or the name of a parameter.
type part struct{ literal, name string }

var errBraces = errors.New("a brace stands alone: {name} is a parameter, {{ and }} are braces")

func parseText(s string) (t text, err error) {
	for s != "" {
		at := strings.IndexAny(s, "{}")
		if at < 0 {
			return append(t, part{literal: s}), nil
		}
		if at > 0 {
			t = append(t, part{literal: s[:at]})
		}
		brace := s[at : at+1]
		s = s[at+1:]
		if strings.HasPrefix(s, brace) {
			t, s = append(t, part{literal: brace}), s[1:]
			continue
		}
		name, rest, found := strings.Cut(s, "}")
		if brace == "}" || !found || !isName(name) {
			return nil, errBraces
		}
		t, s = append(t, part{name: name}), rest
	}
	return t, nil
}

func isName(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// only is the parameter that is the whole of a text, or nothing.
func (t text) only() string {
	if len(t) == 1 {
		return t[0].name
	}
	return ""
}

// expand is false when an optional parameter is the whole text and was not given.
func (t text) expand(v values) (string, bool, error) {
	if name := t.only(); name != "" && !v.has(name) {
		return "", false, nil
	}
	var out strings.Builder
	for _, p := range t {
		if p.name == "" {
			out.WriteString(p.literal)
			continue
		}
		scalar, err := v.scalar(p.name)
		if err != nil {
			return "", false, err
		}
		out.WriteString(scalar)
	}
	return out.String(), true, nil
}

// entry is a named text: of a query, a form or the headers.
type entry struct {
	name  string
	value text
}

// path is what a URL has beyond the resource, in segments.
type path []text

func parsePath(resource, whole string) (p path, err error) {
	if whole == "" || whole == resource {
		return nil, nil
	}
	rest, found := strings.CutPrefix(whole, resource+"/")
	if !found || strings.ContainsAny(rest, "?#") {
		return nil, errors.New("url: it must be the resource, or the resource and more segments of a path")
	}
	for segment := range strings.SplitSeq(rest, "/") {
		t, err := parseText(segment)
		if err != nil {
			return nil, fmt.Errorf("url: %w", err)
		}
		if len(t) != 1 || t[0].name == "" && url.PathEscape(segment) != segment || segment == "." || segment == ".." {
			return nil, errors.New("url: each segment must be plain, or one parameter and nothing else")
		}
		p = append(p, t)
	}
	return p, nil
}

// under is a URL below a resource that was checked. No segment is empty or leads elsewhere.
func (p path) under(resource string, v values) (*url.URL, error) {
	for _, t := range p {
		segment, given, err := t.expand(v)
		if err != nil {
			return nil, err
		}
		if !given || segment == "" || segment == "." || segment == ".." {
			return nil, errors.New("a parameter cannot be a segment of the URL")
		}
		resource += "/" + url.PathEscape(segment)
	}
	return url.Parse(resource)
}
