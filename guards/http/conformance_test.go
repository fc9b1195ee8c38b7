package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
	"github.com/nightwarrant/nightwarrant/guards/internal/processtest"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
)

const conformanceFile = `kind: http
operations:
  - action: entry.create
    title: Write an entry into a book
    resource: %[1]s/books/{book}
    parameters:
      type: object
      additionalProperties: false
      required: [book, text, cents]
      properties:
        book: {type: string, maxLength: 20}
        text: {type: string, maxLength: 200}
        cents: {type: integer, minimum: 1, maximum: 1000}
    amount: cents
    currency: EUR
    request:
      method: POST
      url: %[1]s/books/{book}/entries
      body: {text: "{text}", cents: "{cents}"}
      idempotency_header: Idempotency-Key
    answer: {success: [201], fields: [id]}
    timeout: 3s
credential: {env: BOOK_KEY}
allow_private: ["%[2]s"]
`

// TestConformance runs the guard as it is shipped, in processes that are killed.
func TestConformance(t *testing.T) {
	books := processtest.NewUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+hush {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"1","secret":"` + hush + `"}`))
	}))
	file := fmt.Sprintf(conformanceFile, books.URL, hostOf(t, books.URL))
	guardtest.Run(t, guardtest.Guard{
		Start: processtest.Program{Binary: testbinary.Nightwarrant(t), File: file, Journal: true, Env: []string{"BOOK_KEY=" + hush}}.Start,
		Effect: func(n int) guardtest.Effect {
			return guardtest.Effect{Action: "entry.create", Resource: books.URL + "/books/b-1", Amount: 25, Currency: "EUR",
				Parameters: json.RawMessage(fmt.Sprintf(`{"book":"b-1","cents":25,"text":"effect-%d"}`, n))}
		},
		Applied: books.Applied, HoldBefore: books.HoldBefore, HoldAfter: books.HoldAfter, Secrets: []string{hush}, Kills: processtest.Kills,
	})
}
