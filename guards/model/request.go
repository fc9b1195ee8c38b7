package model

import (
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// Bounds of a request, in bytes. A shown one stands in the parameters as text,
// where its owner can read it.
const (
	MaxRequest = 16 << 20
	MaxShown   = 48 << 10
)

// asked is what the cost of a request depends on. Everything else in it is known not to: whatever could bring in more than
// the request's own bytes, or cost something else than tokens, is refused.
type asked struct {
	model  string
	output int64 // most tokens
	stream bool
	usage  bool // a stream that tells it
}

// dialect is one of the two forms of requests.
type dialect struct {
	path   string   // below the base URL
	limits []string // members that bound the output; exactly one is given
	plain  []string // members that cost nothing by themselves
	checks map[string]func(v canonical.Value) bool
	tells  bool // usage in every stream
}

var dialects = map[string]dialect{
	ChatComplete: {
		path:   "/chat/completions",
		limits: []string{"max_completion_tokens", "max_tokens"},
		plain: []string{"frequency_penalty", "logit_bias", "logprobs", "parallel_tool_calls", "presence_penalty", "prompt_cache_key", "reasoning_effort",
			"response_format", "safety_identifier", "seed", "stop", "store", "temperature", "tool_choice", "top_logprobs", "top_p", "user", "verbosity"},
		checks: map[string]func(canonical.Value) bool{"messages": each(isMessage), "tools": each(isFunction), "n": isOne},
	},
	ResponseCreate: {
		path:   "/responses",
		limits: []string{"max_output_tokens"},
		plain: []string{"include", "instructions", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning", "safety_identifier", "store",
			"temperature", "text", "tool_choice", "top_logprobs", "top_p", "truncation", "user"},
		checks: map[string]func(canonical.Value) bool{"input": textOr(each(isItem)), "tools": each(isFunction)},
		tells:  true,
	},
}

func refusef(format string, args ...any) error {
	return api.Refusef(api.InvalidRequest, format, args...)
}

// read reads a body of this dialect. Its sentences name members of the protocol and no values.
func (d dialect) read(body []byte) (asked, error) {
	var a asked
	var limits int
	err := canonical.MembersWithin(MaxRequest, body, func(name []byte, v canonical.Value) error {
		ok := true
		switch member := string(name); {
		case member == "model":
			a.model, ok = v.Text()
		case member == "stream":
			a.stream, ok = boolean(v)
		case member == "stream_options":
			a.usage, ok = includesUsage(v)
		case slices.Contains(d.limits, member):
			limits++
			a.output, ok = v.Int()
		case d.checks[member] != nil:
			ok = d.checks[member](v)
		case !slices.Contains(d.plain, member):
			return refusef("The request has a member that this guard does not pass on%s.", hint(string(name)))
		}
		if !ok {
			return refusef("The request's member %q has a value that this guard does not pass on.", string(name))
		}
		return nil
	})
	switch {
	case err != nil:
		return asked{}, refusalOr(err, "The request is not one JSON object of at most 16 MiB.")
	case limits != 1:
		return asked{}, refusef("The request must bound its output with exactly one of %v.", d.limits)
	case a.output < 1 || a.output > million:
		return asked{}, refusef("The request may ask for 1 to 1,000,000 output tokens.")
	case a.stream && !a.usage && !d.tells:
		return asked{}, refusef(`A stream must tell its usage: set "stream_options": {"include_usage": true}.`)
	case !a.stream && a.usage:
		return asked{}, refusef("Only a stream has stream_options.")
	}
	return a, nil
}

// costly are members of the protocol that could bring in what the request's bytes do not bound, or cost something else.
var costly = []string{"audio", "background", "conversation", "functions", "max_tool_calls", "metadata", "modalities", "prediction", "previous_response_id",
	"prompt", "service_tier", "web_search_options"}

// hint names a member that is known.
func hint(member string) string {
	if i := slices.Index(costly, member); i >= 0 {
		return ": " + costly[i]
	}
	return ""
}

func boolean(v canonical.Value) (is, ok bool) {
	text := string(v.Raw)
	return text == "true", text == "true" || text == "false"
}

func isOne(v canonical.Value) bool { return string(v.Raw) == "1" }

func includesUsage(v canonical.Value) (is, ok bool) {
	ok = members(v, func(name string, v canonical.Value) bool {
		switch name {
		case "include_usage":
			var well bool
			is, well = boolean(v)
			return well
		case "include_obfuscation":
			return true
		}
		return false
	})
	return is, ok
}

// each holds for an array of what holds.
func each(holds func(canonical.Value) bool) func(canonical.Value) bool {
	return func(v canonical.Value) bool {
		if v.Raw[0] != '[' {
			return false
		}
		ok := true
		err := canonical.Elements(v, func(e canonical.Value) error {
			ok = ok && holds(e)
			return nil
		})
		return err == nil && ok
	}
}

func textOr(holds func(canonical.Value) bool) func(canonical.Value) bool {
	return func(v canonical.Value) bool { return v.IsText() || holds(v) }
}

// members holds for an object all of whose members do.
func members(v canonical.Value, holds func(name string, v canonical.Value) bool) bool {
	if !v.IsObject() {
		return false
	}
	ok := true
	err := canonical.MembersWithin(MaxRequest, v.Raw, func(name []byte, v canonical.Value) error {
		ok = ok && holds(string(name), v)
		return nil
	})
	return err == nil && ok
}

// textPart is content that is there as text: no address of something that somebody else would fetch, no file, no picture,
// whose tokens its bytes do not bound.
func textPart(v canonical.Value) bool {
	return members(v, func(name string, v canonical.Value) bool {
		switch name {
		case "type":
			return v.Is("text") || v.Is("input_text") || v.Is("output_text") || v.Is("refusal")
		case "text", "refusal":
			return v.IsText()
		}
		return name == "annotations" || name == "logprobs"
	})
}

var isContent = textOr(each(textPart))

// isMessage is of a conversation. An earlier answer's audio is with the provider, and is not passed on.
func isMessage(v canonical.Value) bool {
	return members(v, func(name string, v canonical.Value) bool {
		switch name {
		case "content":
			return isNull(v) || isContent(v)
		case "role", "name", "tool_call_id", "tool_calls", "refusal", "reasoning_content", "annotations":
			return true
		}
		return (name == "audio" || name == "function_call") && isNull(v)
	})
}

func isNull(v canonical.Value) bool { return string(v.Raw) == "null" }

// isFunction is a tool that the caller runs itself. Others run at the provider, and cost extra.
func isFunction(v canonical.Value) bool {
	function := false
	ok := members(v, func(name string, v canonical.Value) bool {
		function = function || name == "type" && v.Is("function")
		return name != "type" || v.Is("function")
	})
	return ok && function
}

// isItem is of the input of a response: a message, a call of a function, its output, or reasoning that is there in full. A
// reference is to something that the provider keeps, however large it is.
func isItem(v canonical.Value) bool {
	kind, sealed := "message", false
	ok := members(v, func(name string, v canonical.Value) bool {
		switch name {
		case "type":
			kind, _ = v.Text()
		case "encrypted_content":
			sealed = v.IsText()
		case "content", "output":
			return isNull(v) || isContent(v)
		case "id", "status", "role", "call_id", "name", "arguments", "summary", "phase":
		default:
			return false
		}
		return true
	})
	return ok && (kind == "message" || kind == "function_call" || kind == "function_call_output" || kind == "reasoning" && sealed)
}
