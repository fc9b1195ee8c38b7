package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// received is what came of the answer to a call that the provider took.
type received struct {
	result  json.RawMessage // nil: nothing can be given
	used    *usage          // nil: not told
	partial bool            // there was more to come, so that used is too little
	trouble string          // for the log; no text from outside
}

// The members of answers that are passed on; whatever else there is may be an error in a provider's own spelling.
var (
	chatMembers = []string{"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation"}

	responseMembers = []string{"id", "object", "created_at", "completed_at", "status", "background", "incomplete_details", "instructions",
		"max_output_tokens", "model", "output", "parallel_tool_calls", "previous_response_id", "reasoning", "service_tier", "store", "temperature", "text",
		"tool_choice", "tools", "top_logprobs", "top_p", "truncation", "usage", "user", "metadata"}

	eventMembers = []string{"type", "sequence_number", "response", "item", "item_id", "output_index", "content_index", "summary_index", "part", "delta",
		"text", "annotation", "annotation_index", "logprobs", "name", "arguments", "refusal", "obfuscation"}
)

// errorText stands where a provider reported an error (mission B11).
const errorText = `{"message":"The provider reported an error.","type":"server_error","param":null,"code":"provider_error"}`

// brokenText ends a stream of which the provider did not send the end.
const brokenText = `{"message":"The provider's answer broke off; the call has happened and is charged.","type":"server_error","param":null,"code":"answer_incomplete"}`

// reader takes answers, or pieces of one, and remembers what they tell.
type reader struct {
	names []string // under which the model may answer
	most  int      // bytes of one piece

	used        *usage
	substituted bool
	failed      bool
}

var errSubstituted = errors.New("it is by another model than was asked for")

// clean returns one object without what is not passed on.
func (r *reader) clean(text []byte, allowed []string) (json.RawMessage, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	err := canonical.MembersWithin(r.most, text, func(name []byte, v canonical.Value) error {
		value, err := r.member(string(name), v, allowed)
		if err != nil || value == nil {
			return err
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:%s", name, value)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.substituted {
		return nil, errSubstituted
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// member is what is passed on of a member; nil is nothing.
func (r *reader) member(name string, v canonical.Value, allowed []string) (json.RawMessage, error) {
	if name == "error" {
		if isNull(v) {
			return v.Raw, nil
		}
		r.failed = true
		return json.RawMessage(errorText), nil
	}
	if !slices.Contains(allowed, name) {
		return nil, nil
	}
	switch name {
	case "model":
		r.identify(v)
	case "usage":
		r.use(v)
	case "response":
		return r.clean(v.Raw, responseMembers)
	}
	return v.Raw, nil
}

// identify holds the name of a model against those that it may have. A piece that names none is of the same as the others.
func (r *reader) identify(v canonical.Value) {
	name, ok := v.Text()
	if !isNull(v) && (!ok || name != "" && !slices.Contains(r.names, name)) {
		r.substituted = true
	}
}

// use takes a count of tokens in either spelling. What a total has beyond both counts as output.
func (r *reader) use(v canonical.Value) {
	if isNull(v) {
		return
	}
	u, total := usage{-1, -1}, int64(0)
	members(v, func(name string, v canonical.Value) bool {
		n, ok := v.Int()
		if !ok {
			n = -1
		}
		switch name {
		case "prompt_tokens", "input_tokens":
			u.input = n
		case "completion_tokens", "output_tokens":
			u.output = n
		case "total_tokens":
			total = n
		}
		return true
	})
	if u.plausible() && total > u.input+u.output {
		u.output = total - u.input
	}
	r.used = &u
}

// whole reads an answer that comes at once.
func (l *Ledger) whole(c *call, from io.Reader) received {
	text, err := io.ReadAll(from)
	if err != nil {
		return received{trouble: "it is not whole: " + answeredBy(err)}
	}
	r := l.newReader(c)
	members := chatMembers
	if c.dialect.tells {
		members = responseMembers
	}
	result, err := r.clean(text, members)
	got := received{result: result, used: r.used}
	switch {
	case errors.Is(err, errSubstituted):
		l.substitution(c)
		got.trouble = err.Error()
	case err != nil:
		got = received{trouble: "it is not one JSON object"}
	case r.failed:
		got.trouble = "it is an error of the provider"
	}
	return got
}

func (l *Ledger) newReader(c *call) *reader {
	return &reader{names: append([]string{c.model.id}, c.model.Answers...), most: int(l.config.MaxAnswer)}
}

// substitution closes this guard: what it reports to readiness is not what its provider serves.
func (l *Ledger) substitution(c *call) {
	l.substituted.Store(true)
	l.log.Error("the provider answers as another model than it was asked for; no further call is made", "asked", c.model.id)
}

// refusalOr is the refusal that err is, or one with a sentence.
func refusalOr(err error, sentence string) error {
	if refusal, ok := errors.AsType[*api.Refusal](err); ok {
		return refusal
	}
	return refusef("%s", sentence)
}
