package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const created = 1_767_225_600 // always the same

type object = map[string]any

// chat is the form of chat completions.
type chat struct{}

func (chat) whole(q request) any {
	answer := object{"id": "chatcmpl-1", "object": "chat.completion", "created": created, "model": q.Model,
		"choices": []object{{"index": 0, "finish_reason": "stop", "logprobs": nil, "message": object{"role": "assistant", "content": q.text, "refusal": nil}}}}
	if q.tell {
		answer["usage"] = chatUsage(q.usage)
	}
	return answer
}

func chatUsage(u Usage) object {
	return object{"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output}
}

func (chat) stream(q request, words []string, send func(string, any) bool) bool {
	chunk := func(choices []object, usage any) object {
		o := object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": created, "model": q.Model, "choices": choices}
		if q.StreamOptions.IncludeUsage {
			o["usage"] = usage
		}
		return o
	}
	for _, word := range words {
		if !send("", chunk([]object{{"index": 0, "delta": object{"role": "assistant", "content": word}, "finish_reason": nil}}, nil)) {
			return false
		}
	}
	if !send("", chunk([]object{{"index": 0, "delta": object{}, "finish_reason": "stop"}}, nil)) {
		return false
	}
	if q.StreamOptions.IncludeUsage && q.tell && !send("", chunk([]object{}, chatUsage(q.usage))) {
		return false
	}
	return send("", "[DONE]")
}

// responses is the form of the Responses API.
type responses struct{}

func (responses) whole(q request) any { return response(q, "completed") }

func response(q request, status string) object {
	answer := object{"id": "resp_1", "object": "response", "created_at": created, "status": status, "error": nil, "model": q.Model,
		"output": []object{{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
			"content": []object{{"type": "output_text", "text": q.text, "annotations": []object{}}}}}}
	if q.tell && status == "completed" {
		answer["usage"] = object{"input_tokens": q.usage.Input, "output_tokens": q.usage.Output, "total_tokens": q.usage.Input + q.usage.Output}
	}
	return answer
}

func (responses) stream(q request, words []string, send func(string, any) bool) bool {
	sequence := 0
	next := func(kind string, o object) bool {
		o["type"], o["sequence_number"] = kind, sequence
		sequence++
		return send(kind, o)
	}
	if !next("response.created", object{"response": response(q, "in_progress")}) {
		return false
	}
	for _, word := range words {
		if !next("response.output_text.delta", object{"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": word}) {
			return false
		}
	}
	return next("response.completed", object{"response": response(q, "completed")})
}

// stream sends server-sent events, each at once.
func stream(w http.ResponseWriter, r *http.Request, form spelling, q request, fault Fault, hold chan struct{}) {
	w.Header().Set("Content-Type", "text/event-stream")
	control, sent := http.NewResponseController(w), 0
	send := func(name string, v any) bool {
		text, isText := v.(string)
		if !isText {
			encoded, _ := json.Marshal(v)
			text = string(encoded)
		}
		err := event(w, name, text)
		if err == nil {
			err = control.Flush()
		}
		sent++
		return err == nil && fault.during(w, r, hold, sent)
	}
	words := strings.SplitAfter(q.text, " ")
	if fault == Endless {
		for send("", object{"id": "chatcmpl-1", "model": q.Model, "choices": []object{}}) {
		}
		return
	}
	form.stream(q, words, send)
}

func event(w http.ResponseWriter, name, data string) error {
	if name != "" {
		name = "event: " + name + "\n"
	}
	_, err := fmt.Fprintf(w, "%sdata: %s\n\n", name, data)
	return err
}
