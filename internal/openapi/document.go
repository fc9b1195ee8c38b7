package openapi

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// words are the comments of package authority/api, by type and member. A test of
// the documents writes them, so that there is one text.
//
//go:embed words.json
var words []byte

func info(version string) *huma.Info {
	return &huma.Info{Title: "nightwarrant authority", Version: version,
		Description: "What the authority answers under its issuer: to workers and guards, to people, to products.\n\nEvery answer carries a fresh nonce in `DPoP-Nonce` and is `no-store`. " +
			"Every refusal is one problem document with a stable `code`; `x-codes` of a response lists those that it may carry. Bodies are strict: members that are unknown, doubled or spelled in another case are refused. " +
			"What is foreign and what is unknown look the same. Lists go on with an opaque `cursor`, which is good for the same person and the same question only.",
		License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}}
}

// Names of the security schemes.
const (
	schemeEnvelope   = "envelope"
	schemeCapability = "capability"
	schemeProof      = "proof"
)

func schemes() map[string]*huma.SecurityScheme {
	return map[string]*huma.SecurityScheme{
		schemeEnvelope:   {Type: "apiKey", In: "header", Name: api.HeaderEnvelope, Description: "The platform's envelope: a signed JWT that says who the person is. The first key that uses one owns it."},
		schemeCapability: {Type: "http", Scheme: "DPoP", Description: "`Authorization: DPoP` and a capability (RFC 9449 §7.1)."},
		schemeProof:      {Type: "apiKey", In: "header", Name: api.HeaderProof, Description: "A DPoP proof (RFC 9449 §4.2) with a nonce of the authority; its `ath` covers the envelope or capability."},
	}
}

var security = map[Access][]map[string][]string{
	Anybody: {}, Workload: {{schemeProof: {}}}, Holder: {{schemeCapability: {}, schemeProof: {}}}, Component: {{schemeCapability: {}, schemeProof: {}}},
	Member: {{schemeEnvelope: {}, schemeProof: {}}}, Auditor: {{schemeEnvelope: {}, schemeProof: {}}}, Operator: {{schemeEnvelope: {}, schemeProof: {}}},
}

var who = map[Access]string{
	Anybody: "Anybody.", Workload: "A workload, by its assertion or its capability, with a proof.", Holder: "The holder of a run, by its run capability, with a proof.",
	Component: "A registered component, by its component capability, with a proof.", Member: "A member, by the envelope, with a proof.",
	Auditor: "An operator or an auditor, by the envelope, with a proof.", Operator: "An operator, by the envelope, with a proof.",
}

var tags = []*huma.Tag{
	{Name: "issuer", Description: "Who we are, and which keys sign."}, {Name: "runs", Description: "Workers: claim, renew, mint, settle."}, {Name: "effects", Description: "Guards: admit, settle, prove."},
	{Name: "readiness", Description: "Whether anything is admitted, and why not."}, {Name: "members", Description: "People: what acts as them, and how to stop it."},
	{Name: "operators", Description: "Who runs this: registry, cut-off, audit."}, {Name: "products", Description: "Products that ask members for a consent."}, {Name: "process", Description: "Of a replica; not of the authority."},
}

// Common codes of each access.
var (
	provedCodes   = []api.Code{api.UseDPoPNonce, api.InvalidDPoPProof, api.ProofReplayed, api.WrongKey, api.TooManyRequests, api.Unavailable, api.OutcomeUnknown}
	personalCodes = append([]api.Code{api.InvalidEnvelope, api.UnknownMember, api.AssertionBound}, provedCodes...)
	bearerCodes   = append([]api.Code{api.InvalidToken}, provedCodes...)
)

// Codes are those that an operation may refuse with.
func (op Operation) Codes() []api.Code {
	codes := append([]api.Code{api.InvalidRequest, api.Internal}, op.Refusals...)
	switch {
	case op.Access.Personal():
		codes = append(codes, personalCodes...)
	case op.Access == Workload:
		codes = append(codes, provedCodes...)
	case op.Access != Anybody:
		codes = append(codes, bearerCodes...)
	}
	if op.Access == Operator || op.Access == Auditor {
		codes = append(codes, api.Forbidden)
	}
	if op.In != nil {
		codes = append(codes, api.PayloadTooLarge, api.UnsupportedMediaType)
	}
	if op.Gated {
		codes = append(codes, api.AdmissionClosed)
	}
	if op.Conditional {
		codes = append(codes, api.Stale, api.PreconditionRequired)
	}
	if strings.Contains(op.Path, "{") && !strings.Contains(op.Path, "{family}") {
		codes = append(codes, api.NotFound)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// StatusOf is a code's status at a path. At the token endpoint what is wrong with
// a proof or a subject token is 400 (RFC 9449 §5, §8; RFC 6749 §5.2); everywhere
// else it is a 401 with a challenge (RFC 9449 §7, §9).
func StatusOf(path string, code api.Code) int {
	switch code {
	case api.UseDPoPNonce, api.InvalidDPoPProof, api.ProofReplayed, api.InvalidToken:
		if path == api.PathToken {
			return http.StatusBadRequest
		}
		return http.StatusUnauthorized
	}
	return code.Status()
}

// MediaOf is the type of a refusal's body: a problem document, which the token
// endpoint has to call JSON (RFC 6749 §5.2). Clients of OAuth read nothing else
// there, not even that they shall use a nonce.
func MediaOf(path string) string {
	if path == api.PathToken {
		return "application/json"
	}
	return "application/problem+json"
}

// JSON is the document, for an authority with this origin. It is made once.
func (a *API) JSON(origin string) []byte {
	a.once.Do(func() {
		doc := a.huma.OpenAPI()
		doc.Servers, doc.Tags, doc.Security = []*huma.Server{{URL: or(origin, "https://authority.example"), Description: "The issuer."}}, tags, []map[string][]string{}
		doc.Components.Headers = headers()
		for path, item := range doc.Paths {
			for _, op := range []*huma.Operation{item.Get, item.Post, item.Put} {
				if op != nil {
					a.complete(doc, path, op)
				}
			}
		}
		explain(doc.Components.Schemas.Map())
		text, err := json.MarshalIndent(doc, "", "  ")
		if err != nil {
			panic(fmt.Sprintf("the document cannot be written: %s", err)) // of types and constants: a test writes it
		}
		a.text = append(text, '\n')
	})
	return a.text
}

// Operations lists what is described, in order of path and method.
func (a *API) Operations() []Operation {
	return slices.SortedFunc(maps.Values(a.ops), func(x, y Operation) int { return strings.Compare(x.Path+" "+x.Method, y.Path+" "+y.Method) })
}

// complete adds what our operation says to what huma read from its types.
func (a *API) complete(doc *huma.OpenAPI, path string, described *huma.Operation) {
	op := a.ops[described.OperationID]
	described.Summary, described.Tags, described.Security = op.Summary, []string{op.Tag}, security[op.Access]
	described.Description = strings.TrimSpace(op.Text + "\n\nWho: " + who[op.Access] + closed(op))
	described.Extensions = map[string]any{"x-access": string(op.Access), "x-gated": op.Gated}
	for _, p := range described.Parameters {
		p.Description = or(p.Description, parameterWords[p.Name])
	}
	if described.RequestBody != nil {
		described.RequestBody.Content[or(op.Media, "application/json")].Example = example(op.In)
	}
	delete(described.Responses, "default")
	good := described.Responses[code(op.Status)]
	good.Description = or(good.Description, "It is so.")
	if media := good.Content[or(op.Answer, "application/json")]; media != nil && op.Out != nil {
		media.Example = example(op.Out)
	}
	for _, r := range described.Responses {
		r.Headers = withNonce(r.Headers)
	}
	maps.Copy(described.Responses, refusals(doc, path, op))
}

func closed(op Operation) string {
	if op.Gated {
		return " Refused while admission is closed."
	}
	return ""
}

var parameterWords = map[string]string{
	"reference": "Opaque reference: 22 characters, as a list or an answer gave it.", "cursor": "What the page before gave as `next`.", "task": "Reference of a task: only what is of it.",
	"family": "The family that is reported on.", "kind": "A kind of document, such as `Client` or `WorkloadRole`.", "name": "Name of the registered thing.", "client": "Name of a client; without it everything is meant.",
	"since": "An instant (RFC 3339); only what is not before it.", "until": "An instant; only what is before it.", "verb": "Only this verb.", "verdict": "Only this verdict: `ok` or a refusal code.",
	"run": "Reference of a run: only what is of it.", "member": "Reference of a member: only what is of them.", "If-Match": "The `ETag` of what was shown, or `*` for whatever it is now. Without it the call is refused (RFC 6585 §3).",
}

func code(status int) string {
	if status == 0 {
		status = http.StatusOK
	}
	return strconv.Itoa(status)
}

// example is the JSON of a value, as it is answered; texts that are no JSON stand as they are.
func example(v any) any {
	if text, is := v.(string); is {
		return text
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("an example cannot be written: %s", err))
	}
	return json.RawMessage(text)
}

func headers() map[string]*huma.Param {
	text := func(s string) *huma.Param {
		return &huma.Param{Description: s, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	return map[string]*huma.Param{
		api.HeaderNonce: text("A fresh nonce for the next proof."), "WWW-Authenticate": text("Exactly one challenge, spelled DPoP, with `error` first."),
		"Retry-After": {Description: "Seconds to wait.", Schema: &huma.Schema{Type: huma.TypeInteger}}, "ETag": text("Strong tag of the state that was shown, for If-Match."),
	}
}

func header(name string) *huma.Param { return &huma.Param{Ref: "#/components/headers/" + name} }

func withNonce(h map[string]*huma.Param) map[string]*huma.Param {
	out := map[string]*huma.Param{api.HeaderNonce: header(api.HeaderNonce)}
	if h["ETag"] != nil {
		out["ETag"] = header("ETag")
	}
	return out
}

// refusals are the responses of an operation's codes, by status.
func refusals(doc *huma.OpenAPI, path string, op Operation) map[string]*huma.Response {
	by := map[int][]api.Code{}
	for _, c := range op.Codes() {
		by[StatusOf(path, c)] = append(by[StatusOf(path, c)], c)
	}
	out := map[string]*huma.Response{}
	for status, codes := range by {
		r := &huma.Response{Headers: withNonce(nil), Extensions: map[string]any{"x-codes": codes}}
		var lines []string
		for _, c := range codes {
			lines = append(lines, "`"+string(c)+"`: "+c.Sentence())
			if c.Retry() == api.After {
				r.Headers["Retry-After"] = header("Retry-After")
			}
		}
		if status == http.StatusUnauthorized {
			r.Headers["WWW-Authenticate"] = header("WWW-Authenticate")
		}
		r.Description = strings.Join(lines, "\n\n")
		r.Content = map[string]*huma.MediaType{MediaOf(path): {Schema: problemSchema(doc.Components.Schemas), Example: example(api.Refuse(codes[0]).Problem(status))}}
		out[strconv.Itoa(status)] = r
	}
	return out
}

func problemSchema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[api.Problem](), true, "Problem")
}

// explain gives schemas the comments of their types, and takes from them what
// no answer and no request ever holds: null.
func explain(schemas map[string]*huma.Schema) {
	var text map[string]string
	if err := json.Unmarshal(words, &text); err != nil {
		panic("words.json cannot be read")
	}
	for name, s := range schemas {
		if strings.HasPrefix(name, "Page") {
			name = "Page"
		}
		s.Description = or(s.Description, text[name])
		for member, m := range s.Properties {
			m.Nullable = false
			if _, document := m.AdditionalProperties.(*huma.Schema); document {
				m.AdditionalProperties = true // of others' documents we say only that they are objects
			}
			if m.Items != nil {
				m.Items.Nullable = false
			}
			m.Description = or(m.Description, text[name+"."+member])
		}
	}
}
