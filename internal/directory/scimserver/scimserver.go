// Package scimserver is a small SCIM 2.0 service provider (RFC 7643, RFC 7644)
// for development and tests: users with an externalId, found by it, let go and
// taken back. It is no directory for anybody's people: it knows one bearer token
// and nothing but memory.
package scimserver

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

const (
	mediaType    = "application/scim+json"
	schemaUser   = "urn:ietf:params:scim:schemas:core:2.0:User"
	schemaList   = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
	schemaError  = "urn:ietf:params:scim:api:messages:2.0:Error"
	schemaPatch  = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
	schemaConfig = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"

	maxBody = 16 << 10
)

// User is what this server keeps of a person.
type User struct {
	Schemas    []string `json:"schemas"`
	ID         string   `json:"id"`
	ExternalID string   `json:"externalId"` // the identity provider's subject
	UserName   string   `json:"userName"`
	Active     bool     `json:"active"`
	Emails     []Email  `json:"emails,omitempty"`
}

// Email is one address.
type Email struct {
	Value   string `json:"value"`
	Primary bool   `json:"primary"`
}

// Server is the directory. It is safe for concurrent use.
type Server struct {
	token [32]byte // its digest
	lock  sync.Mutex
	users []*User
	mux   *http.ServeMux
}

// New makes an empty directory that answers whoever has the token.
func New(token string) *Server {
	s := &Server{token: sha256.Sum256([]byte(token)), mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /ServiceProviderConfig", s.describe)
	s.mux.HandleFunc("GET /Users", s.find)
	s.mux.HandleFunc("POST /Users", s.create)
	s.mux.HandleFunc("GET /Users/{id}", s.show)
	s.mux.HandleFunc("PATCH /Users/{id}", s.patch)
	return s
}

// Add enters a member who is active, and returns the id.
func (s *Server) Add(external, email string) string {
	u := User{ExternalID: external, UserName: external, Active: true}
	if email != "" {
		u.Emails = []Email{{Value: email, Primary: true}}
	}
	return s.add(u).ID
}

func (s *Server) add(u User) User {
	s.lock.Lock()
	defer s.lock.Unlock()
	u.Schemas, u.ID = []string{schemaUser}, rand.Text()
	s.users = append(s.users, &u)
	return u
}

// SetActive lets a member go or takes one back, by externalId; it reports whether there is one.
func (s *Server) SetActive(external string, active bool) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, u := range s.users {
		if u.ExternalID == external {
			u.Active = active
			return true
		}
	}
	return false
}

// ServeHTTP implements http.Handler. Without the token there is nothing to see.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	digest := sha256.Sum256([]byte(given))
	if !ok || subtle.ConstantTimeCompare(digest[:], s.token[:]) != 1 {
		w.Header().Set("WWW-Authenticate", "Bearer")
		fail(w, http.StatusUnauthorized, "", "a bearer token is needed")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s.mux.ServeHTTP(w, r)
}

// describe tells what this server can (RFC 7643 §5).
func (s *Server) describe(w http.ResponseWriter, _ *http.Request) {
	no := map[string]any{"supported": false}
	answer(w, http.StatusOK, map[string]any{"schemas": []string{schemaConfig}, "patch": map[string]any{"supported": true},
		"bulk":   map[string]any{"supported": false, "maxOperations": 0, "maxPayloadSize": 0},
		"filter": map[string]any{"supported": true, "maxResults": 2}, "changePassword": no, "sort": no, "etag": no,
		"authenticationSchemes": []any{map[string]any{"type": "oauthbearertoken", "name": "Bearer", "description": "RFC 6750"}}})
}

// find answers the one filter that this server knows: externalId eq "…".
func (s *Server) find(w http.ResponseWriter, r *http.Request) {
	text, ok := strings.CutPrefix(r.URL.Query().Get("filter"), "externalId eq ")
	var wanted string
	if !ok || json.Unmarshal([]byte(text), &wanted) != nil {
		fail(w, http.StatusBadRequest, "invalidFilter", "only externalId eq is known")
		return
	}
	found := []User{}
	s.lock.Lock()
	for _, u := range s.users {
		if u.ExternalID == wanted {
			found = append(found, *u)
		}
	}
	s.lock.Unlock()
	answer(w, http.StatusOK, map[string]any{"schemas": []string{schemaList}, "totalResults": len(found), "startIndex": 1, "itemsPerPage": len(found), "Resources": found})
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	u := User{Active: true}
	if !read(w, r, &u) {
		return
	}
	if u.ExternalID == "" || u.UserName == "" {
		fail(w, http.StatusBadRequest, "invalidValue", "externalId and userName are needed")
		return
	}
	answer(w, http.StatusCreated, s.add(u))
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	s.with(w, r, func(*User) {})
}

// with answers with a user after a change.
func (s *Server) with(w http.ResponseWriter, r *http.Request, change func(*User)) {
	s.lock.Lock()
	var found *User
	for _, u := range s.users {
		if u.ID == r.PathValue("id") {
			change(u)
			copied := *u
			found = &copied
		}
	}
	s.lock.Unlock()
	if found == nil {
		fail(w, http.StatusNotFound, "", "there is no such user")
		return
	}
	answer(w, http.StatusOK, found)
}

// patch changes `active` and nothing else (RFC 7644 §3.5.2.3).
func (s *Server) patch(w http.ResponseWriter, r *http.Request) {
	var p struct {
		Schemas    []string `json:"schemas"`
		Operations []struct {
			Op    string          `json:"op"`
			Path  string          `json:"path"`
			Value json.RawMessage `json:"value"`
		} `json:"Operations"`
	}
	if !read(w, r, &p) {
		return
	}
	var active bool
	if len(p.Schemas) != 1 || p.Schemas[0] != schemaPatch || len(p.Operations) != 1 || !strings.EqualFold(p.Operations[0].Op, "replace") ||
		p.Operations[0].Path != "active" || json.Unmarshal(p.Operations[0].Value, &active) != nil {
		fail(w, http.StatusBadRequest, "invalidPath", "only one replace of active is known")
		return
	}
	s.with(w, r, func(u *User) { u.Active = active })
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "invalidSyntax", "the body cannot be read")
	}
	return err == nil
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may be gone
}

func fail(w http.ResponseWriter, status int, kind, detail string) {
	body := map[string]any{"schemas": []string{schemaError}, "status": strconv.Itoa(status), "detail": detail}
	if kind != "" {
		body["scimType"] = kind
	}
	answer(w, status, body)
}
