package authoritytest

import (
	"encoding/json"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Names of the standard product.
const (
	ProductName  = "books-web"
	ProductClaim = "system:serviceaccount:web:books"
	ReturnURI    = "https://books.example/back"
)

// Product registers the standard product, which may offer tasks of the standard client, and boots it.
func (h *House) Product() *Guard {
	h.T.Helper()
	return h.ProductNamed(ProductName, ProductClaim, 3)
}

// ProductNamed is Product with a name, a workload and a bound on open offers of its own.
func (h *House) ProductNamed(name, claim string, open int) *Guard {
	h.T.Helper()
	h.Apply(strings.NewReplacer("NAME", name, "CLAIM", claim, "WORKLOADS", h.Workloads.URL, "RETURN", ReturnURI, "OPEN", string(rune('0'+open))).Replace(`
kind: AttestationProfile
name: NAME
issuer: WORKLOADS
subject: CLAIM
binding: first_key
max_lifetime_s: 3600
---
kind: Product
name: NAME
title: The books on the web
profile: NAME
offers: {client: books, roles: [bookkeeper], policies: [default], return_uris: ["RETURN"], max_open: OPEN, max_open_member: 2}
`))
	h.See()
	return h.component(name, claim)
}

// Detail is one authorization detail of a task of the standard client, revision and title as given.
func Detail(name string, revision string, title string) json.RawMessage {
	quoted, _ := json.Marshal(title)
	return json.RawMessage(`{"type":"urn:nightwarrant:task","identifier":"` + name + `","revision":` + revision + `,"role":"bookkeeper","role_revision":1,"policy":"default","policy_revision":1,
		"title":` + string(quoted) + `,"schedule":{"every_s":1,"anchor":"2026-01-01T00:00:00Z","zone":"UTC"},"dial":"low",
		"grants":[{"guard":"ledger","action":"row.append","resource":"table:entries"},{"guard":"ledger","action":"row.delete","resource":"table:entries","optional":true}],
		"limits":{"runtime_s":600,"effects":5},"consent":{"days":30}}`)
}

// Starting is a good question of the standard product to member-1.
func Starting(name string) api.StartOffer {
	return api.StartOffer{For: api.Person{Subject: MemberName}, Details: []json.RawMessage{Detail(name, "1", "Close the day")}, ReturnURI: ReturnURI, State: "xyzzy"}
}

// Call sends a call of a component.
func (g *Guard) Call(method, path string, in any) Answer {
	g.h.T.Helper()
	return g.h.Send(g.h.Bearing(g.Key, g.Token, method, path, in))
}

// Start starts an offer.
func (g *Guard) Start(s api.StartOffer) (out api.StartedOffer) {
	g.h.T.Helper()
	g.h.Into(g.Call("POST", api.PathOffers, s), &out)
	return out
}
