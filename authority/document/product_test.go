package document

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const offering = `{"kind":"Product","name":"ledger-web","title":"Ledger on the web","profile":"cluster-a","offers":{"client":"ledger","roles":["sweeper"],"policies":["standard"],
	"return_uris":["https://ledger.example/back","http://127.0.0.1:8080/back"],"max_open":100,"max_open_member":3}}`

func TestWhatAProductMayOffer(t *testing.T) {
	t.Parallel()
	for field, values := range map[string][]any{
		"offers.client":          {"", "Ledger", absent{}},
		"offers.roles":           {[]any{}, absent{}, []any{"*"}, []any{"sweeper", "sweeper"}},
		"offers.policies":        {[]any{}, absent{}, []any{""}},
		"offers.return_uris":     {[]any{}, absent{}, []any{"https://ledger.example/back", "https://ledger.example/back"}},
		"offers.max_open":        {0, -1, 100_001, absent{}},
		"offers.max_open_member": {0, 101, absent{}},
		"offers.return_uris.0": {"", "ledger", "/back", "//evil.example/back", "javascript:alert(1)", "http://ledger.example/back", "https://ledger.example/back?to=x", "https://ledger.example/back#x",
			"https://user@ledger.example/back", "https://LEDGER.example/back", "https://ledger.example:443/back", "https://ledger.example/%62ack", "https://ledger.example\\@evil.example/", "https://*.example/back"},
		"offers.more": {1},
	} {
		for _, value := range values {
			_, err := ParseJSON([]byte(edited(t, offering, field, value)))
			if assert.Error(t, err, "%s: %v", field, value) {
				oneSentence(t, err)
			}
		}
	}
	d, err := ParseJSON([]byte(offering))
	require.NoError(t, err)
	o, task := d.(*Product).Offers, of[*Task](t, KindTask)
	require.NoError(t, o.May(task))
	for name, change := range map[string]func(*Task){"client": func(t *Task) { t.Client = "other" }, "role": func(t *Task) { t.Role = "other" }, "policy": func(t *Task) { t.Policy = "other" }} {
		other := *task
		change(&other)
		assert.ErrorContains(t, o.May(&other), name+" is not one")
	}
	none := of[*Product](t, KindProduct)
	assert.True(t, none.Offers.None())
	assert.Error(t, none.Offers.May(task), "who registers nothing offers nothing")
	nameless := *task
	nameless.Client = ""
	assert.Error(t, none.Offers.May(&nameless))
}

// A detail is the task's document in other words, and back again, to the byte.
func TestADetailIsATask(t *testing.T) {
	t.Parallel()
	task := of[*Task](t, KindTask)
	detail, err := DetailOfTask(task)
	require.NoError(t, err)
	assert.NotContains(t, string(detail), task.Owner.Subject, "a detail names no member")
	again, err := TaskOfDetail(detail, task.Client, task.Owner)
	require.NoError(t, err)
	assert.Equal(t, task, again)
	one, err := DigestOf(task)
	require.NoError(t, err)
	two, err := DigestOf(again)
	require.NoError(t, err)
	assert.Equal(t, one, two)
	var members map[string]any
	require.NoError(t, json.Unmarshal(detail, &members))
	assert.Equal(t, []any{DetailTask, task.Name}, []any{members["type"], members["identifier"]})
}

func TestADetailIsNotATask(t *testing.T) {
	t.Parallel()
	task := of[*Task](t, KindTask)
	text, err := DetailOfTask(task)
	require.NoError(t, err)
	for field, values := range map[string][]any{
		"type": {"", absent{}, "urn:nightwarrant:effect", []any{DetailTask}}, "identifier": {"", absent{}, "Sweep", 7}, "kind": {"Task", "Policy"}, "name": {"nightly-sweep"},
		"client": {"ledger"}, "owner": {map[string]any{"issuer": "https://id.example", "subject": "x"}}, "title": {"", "a\u202eb", "\u200b"}, "grants": {[]any{}, "all", absent{}}, "locations": {[]any{"x"}},
		"actions": {[]any{"*"}}, "revision": {0, "1"},
	} {
		for _, value := range values {
			got, err := TaskOfDetail([]byte(edited(t, string(text), field, value)), task.Client, task.Owner)
			if assert.Error(t, err, "%s: %v", field, value) {
				oneSentence(t, err)
			}
			assert.Nil(t, got)
		}
	}
	for _, text := range []string{"", "null", "[]", `"x"`, `{"type":"urn:nightwarrant:task"`, `{"type":"urn:nightwarrant:task","type":"urn:nightwarrant:task"}`, strings.Repeat(`{"a":`, 100)} {
		_, err := TaskOfDetail([]byte(text), task.Client, task.Owner)
		assert.Error(t, err, text)
	}
	_, err = TaskOfDetail(text, task.Client, Owner{task.Owner.Issuer, "*"})
	assert.Error(t, err)
}

func FuzzTaskOfDetail(f *testing.F) {
	task := of[*Task](f, KindTask)
	text, err := DetailOfTask(task)
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"type":"urn:nightwarrant:task","identifier":"a","owner":{}}`))
	f.Add([]byte(`{"type":"urn:nightwarrant:task","kind":"Policy"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := TaskOfDetail(in, task.Client, task.Owner)
		if err != nil {
			return
		}
		assert.Equal(t, []any{KindTask, task.Client, task.Owner}, []any{got.Kind, got.Client, got.Owner})
		back, err := DetailOfTask(got)
		require.NoError(t, err)
		again, err := TaskOfDetail(back, task.Client, task.Owner)
		require.NoError(t, err)
		assert.Equal(t, got, again)
	})
}
