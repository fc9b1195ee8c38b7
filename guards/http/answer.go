package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

// verdict is what an answer says about the effect.
type verdict int

const (
	unclear verdict = iota
	done
	refused
)

// finding is what came back.
type finding struct {
	verdict verdict
	status  int // 0: nothing came
	fields  json.RawMessage
}

// answer is what may come back.
type answer struct {
	success, refused []int
	fields           *fields // nil: none
}

func compileAnswer(a Answer) (answer, error) {
	out := answer{success: a.Success, refused: a.Refused}
	if len(out.success) == 0 {
		out.success = []int{200, 201, 204}
	}
	for _, status := range out.success {
		if status < 200 || status > 299 {
			return answer{}, fmt.Errorf("answer: %d is not the status of a success", status)
		}
	}
	for _, status := range out.refused {
		if status < 400 || status > 499 || status == 408 || status == 499 {
			return answer{}, fmt.Errorf("answer: %d is not the status of a refusal that proves that nothing was done", status)
		}
	}
	for _, path := range a.Fields {
		if out.fields == nil {
			out.fields = &fields{}
		}
		if err := out.fields.add(path); err != nil {
			return answer{}, fmt.Errorf("answer: %w", err)
		}
	}
	return out, nil
}

// exchange sends once. With an error, or when it finds nothing clear, the request may have been carried out.
func exchange(ctx context.Context, conn *upstream.Conn, r *upstream.Request, a answer) (finding, error) {
	got, err := conn.Exchange(ctx, *r)
	if err != nil {
		return finding{}, err
	}
	return a.judge(got.Status, got.Body)
}

// judge wants, where fields are listed, that a success has them to choose from: a page of a proxy is none.
func (a answer) judge(status int, body io.Reader) (finding, error) {
	found := finding{status: status}
	switch {
	case slices.Contains(a.refused, status):
		found.verdict = refused
	case !slices.Contains(a.success, status):
	case a.fields == nil || status == 204:
		found.verdict = done
	default:
		text, err := io.ReadAll(body) // bounded, see upstream.Config
		if err != nil {
			return found, err
		}
		if found.fields, err = a.fields.of(text); err != nil {
			return found, err
		}
		found.verdict = done
	}
	return found, nil
}

// reasonOf tells a worker what it can act on when its effect was refused.
func reasonOf(status int) api.Code {
	switch status {
	case 401, 403:
		return api.CredentialUnavailable // there is one, and it is not taken
	case 413:
		return api.PayloadTooLarge
	case 429:
		return api.TooManyRequests
	}
	return api.InvalidRequest
}

// answered names what came back in the words of the wire.
func answered(f finding, err error) string {
	e, ok := errors.AsType[*upstream.Error](err)
	switch {
	case ok && e.Category == upstream.Timeout:
		return api.AnsweredTimeout
	case ok && e.Category == upstream.Broken:
		return api.AnsweredConnection
	case err != nil && (ok || f.status != 0):
		return api.AnsweredMalformed
	case err != nil:
		return api.AnsweredUnknown
	}
	return api.AnsweredStatus
}

// fields is a tree of what may come back. A leaf is a scalar.
type fields struct {
	members map[string]*fields
	items   *fields // of a list
}

const maxFieldDepth = 8

var errNoJSON = errors.New("the answer is not one JSON value of the kind that its fields need")

// add takes a path: names joined by dots, and [] behind a name for each member of its list; a path may begin with [].
func (f *fields) add(path string) error {
	steps := strings.Split(strings.ReplaceAll(path, "[]", ".[]"), ".")
	if steps[0] == "" && strings.HasPrefix(path, "[]") {
		steps = steps[1:]
	}
	if len(steps) > maxFieldDepth {
		return fmt.Errorf("the field %.80q is too deep", path)
	}
	for _, step := range steps {
		switch {
		case step == "[]":
			if f.items == nil {
				f.items = &fields{}
			}
			f = f.items
		case step == "" || strings.ContainsAny(step, "[]{}*"):
			return fmt.Errorf("%.80q is not a field such as id, owner.name or items[].id", path)
		default:
			if f.members == nil {
				f.members = map[string]*fields{}
			}
			if f.members[step] == nil {
				f.members[step] = &fields{}
			}
			f = f.members[step]
		}
	}
	return nil
}

// of is one JSON object with the listed fields of an answer. A list becomes its member "items".
func (f *fields) of(text []byte) (json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, errNoJSON
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errNoJSON
	}
	picked, ok := f.pick(value)
	if !ok {
		return nil, errNoJSON
	}
	if _, isList := picked.([]any); isList {
		picked = map[string]any{"items": picked}
	}
	return json.Marshal(picked)
}

// pick is false for what is of another kind than its fields need.
func (f *fields) pick(value any) (any, bool) {
	switch v := value.(type) {
	case map[string]any:
		if f.members == nil {
			return nil, false
		}
		out := map[string]any{}
		for name, inner := range f.members {
			if picked, ok := inner.pick(v[name]); ok && hasMember(v, name) {
				out[name] = picked
			}
		}
		return out, true
	case []any:
		if f.items == nil {
			return nil, false
		}
		out := []any{}
		for _, item := range v {
			if picked, ok := f.items.pick(item); ok {
				out = append(out, picked)
			}
		}
		return out, true
	}
	return value, f.members == nil && f.items == nil
}

func hasMember(v map[string]any, name string) bool {
	_, ok := v[name]
	return ok
}
