package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// item is one document on its way into the registry: digests and links, as the
// verb apply reads them. All bytes are hex.
type item struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	Digest   string `json:"digest"`
	Body     string `json:"body"`

	Profile   string       `json:"profile,omitempty"` // components
	URI       *string      `json:"uri,omitempty"`
	Catalogue string       `json:"catalogue,omitempty"`
	Provable  bool         `json:"provable,omitempty"`
	MaxCallMS int64        `json:"max_call_ms,omitempty"`
	SettleMS  int64        `json:"settle_ms,omitempty"`
	Client    string       `json:"client,omitempty"` // roles and tasks
	Profiles  []string     `json:"profiles,omitempty"`
	Actions   []itemAction `json:"actions,omitempty"`
	Queue     string       `json:"queue,omitempty"`
	Families  []string     `json:"families,omitempty"` // reporters and products, as the database writes them

	Requirement *itemRequirement `json:"requirement,omitempty"`

	Role           string `json:"role,omitempty"` // tasks
	RoleRevision   int64  `json:"role_revision,omitempty"`
	Policy         string `json:"policy,omitempty"`
	PolicyRevision int64  `json:"policy_revision,omitempty"`
	Ref            string `json:"ref,omitempty"`
	Owner          string `json:"owner,omitempty"`
	Offer          string `json:"offer,omitempty"`
	OfferDigest    string `json:"offer_digest,omitempty"`
	OfferBody      string `json:"offer_body,omitempty"`
	MostDigest     string `json:"most_digest,omitempty"` // where something of the task is optional
	MostBody       string `json:"most_body,omitempty"`
}

type itemAction struct {
	Guard  string `json:"guard"`
	Action string `json:"action"`
}

type itemRequirement struct {
	Families    []itemFamily `json:"families"`
	Protocols   []int64      `json:"protocols"`
	Models      []string     `json:"models"`
	Datasets    []string     `json:"datasets"`
	Profiles    []string     `json:"profiles"`
	ClosedMS    int64        `json:"closed_ms"`
	ClosedMaxMS int64        `json:"closed_max_ms"`
	Rounds      int64        `json:"rounds"`
}

type itemFamily struct {
	Family  string `json:"family"`
	Minimum int64  `json:"minimum"`
}

// kinds gives the registry's word for a document's kind.
var kinds = map[string]string{
	document.KindProfile: "attestation_profile", document.KindClient: "client", document.KindGuard: "guard", document.KindReporter: "reporter",
	document.KindProduct: "product", document.KindRole: "workload_role", document.KindPolicy: "policy", document.KindTask: "task",
	document.KindRequirement: "requirement",
}

// Apply enters a file of registry documents, all or none. Operators only.
func (a *Authority) Apply(ctx context.Context, m Actor, file []byte) (api.Applied, error) {
	if err := m.operating(); err != nil {
		return api.Applied{}, err
	}
	docs, err := document.ParseYAML(file)
	if err != nil {
		return api.Applied{}, invalidDocument(err)
	}
	if len(docs) == 0 {
		return api.Applied{}, api.Refusef(api.InvalidDocument, "There is no document in this file.")
	}
	if _, err := a.standing(m.spent); err != nil {
		return api.Applied{}, err
	}
	if err := a.registry.refresh(ctx, a.Pool); err != nil {
		return api.Applied{}, unavailable(err)
	}
	now, err := a.databaseTime(ctx)
	if err != nil {
		return api.Applied{}, err
	}
	set := applying{a, a.registry.now().with(docs), now}
	if alone := slices.ContainsFunc(docs, isRequirement); alone && len(docs) > 1 {
		return api.Applied{}, api.Refusef(api.InvalidDocument, "Apply a Requirement in a file of its own, after what it names: it closes admission.")
	}
	items := make([]item, len(docs))
	for i, d := range docs {
		if items[i], err = set.item(ctx, d); err != nil {
			return api.Applied{}, invalidDocument(err)
		}
	}
	results, err := a.apply(ctx, m, items)
	if err != nil {
		return api.Applied{}, err
	}
	if err := a.registry.refresh(ctx, a.Pool); err != nil {
		return api.Applied{}, unavailable(err)
	}
	out := api.Applied{Documents: make([]api.AppliedDocument, len(docs))}
	for i, d := range docs {
		out.Documents[i] = api.AppliedDocument{Kind: d.Head().Kind, Name: d.Head().Name, Revision: items[i].Revision, Result: results[i]}
	}
	return out, nil
}

// invalidDocument tells an operator what is wrong with which field. The sentence
// quotes at most the operator's own document back to the operator.
func invalidDocument(err error) error {
	var d *document.Error
	if errors.As(err, &d) {
		return &api.Refusal{Code: api.InvalidDocument, Sentence: d.Error()}
	}
	return err
}

// with is a snapshot in which the documents of the set that is being applied
// stand beside what is registered. Whether each may be used is the verb's to say.
func (s *snapshot) with(docs []document.Document) *snapshot {
	all := &snapshot{byName: s.byName, entries: make(map[key]entry, len(s.entries)+len(docs)), profiles: s.profiles, queues: s.queues}
	for k, e := range s.entries {
		all.entries[k] = e
	}
	for _, d := range docs {
		k := key{d.Head().Kind, d.Head().Name, revisionOf(d)}
		if _, known := all.entries[k]; !known {
			all.entries[k] = entry{revision: k.revision, active: true, doc: d}
		}
	}
	return all
}

func revisionOf(d document.Document) int64 {
	switch d := d.(type) {
	case *document.WorkloadRole:
		return d.Revision
	case *document.Policy:
		return d.Revision
	case *document.Task:
		return d.Revision
	case *document.Requirement:
		return d.Generation
	}
	return 1
}

// applying is one set of documents on its way.
type applying struct {
	a   *Authority
	all *snapshot
	now time.Time // the database's
}

func (s applying) item(ctx context.Context, d document.Document) (item, error) {
	body, err := document.Canonical(d)
	if err != nil {
		return item{}, err
	}
	name, digest := nameDigest(d.Head().Name), canonical.Digest(canonical.DomainDocument, body)
	i := item{Kind: kinds[d.Head().Kind], Name: hexOf(name[:]), Revision: revisionOf(d), Digest: hexOf(digest[:]), Body: hexOf(body)}
	switch d := d.(type) {
	case *document.Guard:
		return i, s.guard(&i, d)
	case *document.Reporter:
		i.Profile, i.Families = hexName(d.Profile), codes(d.Families)
	case *document.Product:
		i.Profile, i.Families = hexName(d.Profile), codes(d.Families)
	case *document.Requirement:
		return i, s.requirement(&i, d)
	case *document.WorkloadRole:
		return i, s.role(&i, d)
	case *document.Policy:
		return i, notRetired(d, d.Retired)
	case *document.Task:
		return i, s.task(ctx, &i, d)
	}
	return i, nil
}

func hexName(name string) string {
	d := nameDigest(name)
	return hexOf(d[:])
}

func notRetired(d document.Document, retired bool) error {
	if retired {
		return &document.Error{Kind: d.Head().Kind, Name: d.Head().Name, Field: "retired", Reason: "is not applied: retire a revision with `nightwarrant admin retire`"}
	}
	return nil
}

// guard links a guard. Each has an origin of its own, never ours (P32).
func (s applying) guard(i *item, d *document.Guard) error {
	ours, err := url.Parse(s.a.Issuer)
	theirs, err2 := url.Parse(d.URI)
	if err != nil || err2 != nil || ours.Scheme == theirs.Scheme && ours.Host == theirs.Host {
		return &document.Error{Kind: d.Kind, Name: d.Name, Field: "uri", Reason: "must not be on the authority's own origin"}
	}
	for k, e := range s.all.entries {
		if g, ok := e.doc.(*document.Guard); ok && k.name != d.Name && sameOrigin(g.URI, theirs) {
			return &document.Error{Kind: d.Kind, Name: d.Name, Field: "uri", Reason: "must not be on another guard's origin"}
		}
	}
	actions, err := d.Actions()
	if err != nil {
		return err
	}
	catalogue := catalogue.DigestOf(slices.Collect(maps.Values(actions))...)
	uri := uriDigest(d.URI)
	text := hexOf(uri[:])
	i.Catalogue = hexOf(catalogue[:])
	i.Profile, i.URI, i.Provable, i.MaxCallMS, i.SettleMS = hexName(d.Profile), &text, d.Provable, d.MaxCallMS, d.SettleWindow()
	return nil
}

func sameOrigin(uri string, as *url.URL) bool {
	u, err := url.Parse(uri)
	return err != nil || u.Scheme == as.Scheme && u.Host == as.Host
}

func (s applying) role(i *item, d *document.WorkloadRole) error {
	for n, act := range d.Actions {
		g, ok := find[*document.Guard](s.all, document.KindGuard, act.Guard, 1)
		if !ok {
			return &document.Error{Kind: d.Kind, Name: d.Name, Field: fmt.Sprintf("actions[%d].guard", n), Reason: "names something that is not registered or is retired"}
		}
		if actions, err := g.Actions(); err != nil || actions[act.Action].Name == "" {
			return &document.Error{Kind: d.Kind, Name: d.Name, Field: fmt.Sprintf("actions[%d].action", n), Reason: "is not an action of that guard"}
		}
	}
	queue := newReference()
	i.Client, i.Queue = hexName(d.Client), hexOf(queue[:])
	for _, p := range d.Profiles {
		i.Profiles = append(i.Profiles, hexName(p))
	}
	for _, act := range d.Actions {
		action := actionDigest(act.Action)
		i.Actions = append(i.Actions, itemAction{hexName(act.Guard), hexOf(action[:])})
	}
	return notRetired(d, d.Retired)
}

func codes(families []string) []string {
	out := make([]string, len(families))
	for n, f := range families {
		out[n] = document.FamilyCode(f)
	}
	return out
}

// requirement links what it requires. A family of an operator's own that nobody
// may report would close for good, and is refused; those to come may be required
// before they are built, and do just that.
func (s applying) requirement(i *item, d *document.Requirement) error {
	r := itemRequirement{Families: []itemFamily{}, Protocols: d.Protocols, Models: hexDigests(d.Models), Datasets: hexDigests(d.Datasets), Profiles: []string{},
		ClosedMS: d.ClosedMS, ClosedMaxMS: d.ClosedMaxMS, Rounds: d.Rounds}
	for n, f := range d.Families {
		if document.OwnFamily(f.Family) && !s.all.reports(f.Family) {
			return &document.Error{Kind: d.Kind, Name: d.Name, Field: fmt.Sprintf("families[%d].family", n), Reason: "is reported by no registered reporter or product"}
		}
		r.Families = append(r.Families, itemFamily{document.FamilyCode(f.Family), f.Minimum})
	}
	for n, p := range d.Profiles {
		if _, ok := find[*document.AttestationProfile](s.all, document.KindProfile, p, 1); !ok {
			return &document.Error{Kind: d.Kind, Name: d.Name, Field: fmt.Sprintf("profiles[%d]", n), Reason: "names something that is not registered or is retired"}
		}
		r.Profiles = append(r.Profiles, hexName(p))
	}
	i.Requirement = &r
	return nil
}

// reports says whether a family is one that an active component may report.
func (s *snapshot) reports(family string) bool {
	for _, e := range s.entries {
		switch d := e.doc.(type) {
		case *document.Reporter:
			if e.active && slices.Contains(d.Families, family) {
				return true
			}
		case *document.Product:
			if e.active && slices.Contains(d.Families, family) {
				return true
			}
		}
	}
	return false
}

func hexDigests(list []document.Digest) []string {
	out := make([]string, len(list))
	for n, d := range list {
		out[n] = hexOf(d[:])
	}
	return out
}

// task links a task revision and builds the offer that its owner will see.
func (s applying) task(ctx context.Context, i *item, d *document.Task) error {
	most, ref, err := s.offer(ctx, d)
	if err != nil {
		return err
	}
	plain, err := document.Narrow(most, document.Choice{}) // nothing is ticked beforehand
	if err != nil {
		return err
	}
	if i.OfferDigest, i.OfferBody, err = spelled(plain); err != nil {
		return err
	}
	if len(plain.Grants) < len(most.Grants) {
		if i.MostDigest, i.MostBody, err = spelled(most); err != nil {
			return err
		}
	}
	if _, err := termsOf(plain, s.now); err != nil {
		return &document.Error{Kind: d.Kind, Name: d.Name, Field: "schedule", Reason: "never fires within the time that the consent would last"}
	}
	name, offer := taskName(d.Client, d.Name), newReference()
	owner := canonical.Digest(canonical.DomainMember, []byte(d.Owner.Issuer), []byte(d.Owner.Subject))
	i.Name, i.Ref, i.Owner = hexOf(name[:]), hexOf(ref), hexOf(owner[:])
	i.Client, i.Role, i.RoleRevision, i.Policy, i.PolicyRevision = hexName(d.Client), hexName(d.Role), d.RoleRevision, hexName(d.Policy), d.PolicyRevision
	i.Offer = hexOf(offer[:])
	return nil
}

// spelled is the digest and the canonical bytes of a consent document, in hex.
func spelled(c document.Consent) (digest, body string, err error) {
	text, err := c.Canonical()
	if err != nil {
		return "", "", err
	}
	d, err := c.Digest()
	return hexOf(d[:]), hexOf(text), err
}

// offer is the widest that a task's owner can be offered: with every optional grant.
func (s applying) offer(ctx context.Context, d *document.Task) (document.Consent, []byte, error) {
	missing := func(field string) (document.Consent, []byte, error) {
		return document.Consent{}, nil, &document.Error{Kind: d.Kind, Name: d.Name, Field: field, Reason: "names something that is not registered or is retired"}
	}
	role, ok := find[*document.WorkloadRole](s.all, document.KindRole, d.Role, d.RoleRevision)
	if !ok || role.Client != d.Client {
		return missing("role")
	}
	policy, ok := find[*document.Policy](s.all, document.KindPolicy, d.Policy, d.PolicyRevision)
	if !ok {
		return missing("policy")
	}
	guards, ticked := map[string]*document.Guard{}, []int{}
	for n, g := range d.Grants {
		if guards[g.Guard], ok = find[*document.Guard](s.all, document.KindGuard, g.Guard, 1); !ok {
			return missing("grants")
		}
		if g.Optional {
			ticked = append(ticked, n)
		}
	}
	ref, err := s.a.taskReference(ctx, taskName(d.Client, d.Name))
	if err != nil {
		return document.Consent{}, nil, err
	}
	consent, err := document.BuildConsent(document.Parts{TaskRef: encode(ref), Task: d, Role: role, Policy: policy, Guards: guards, Ticked: ticked, Now: s.now})
	return consent, ref, err
}

// taskReference is the reference of a task that exists, or a new one.
func (a *Authority) taskReference(ctx context.Context, name [32]byte) ([]byte, error) {
	var ref []byte
	if _, err := pg.Call(ctx, a.Pool, `SELECT nw.task_reference($1)`, []any{name[:]}, &ref); err != nil {
		return nil, unavailable(err)
	}
	if ref == nil {
		fresh := newReference()
		ref = fresh[:]
	}
	return ref, nil
}

func (a *Authority) apply(ctx context.Context, m Actor, items []item) (results []string, err error) {
	if items[0].Requirement != nil {
		return a.require(ctx, m, items[0])
	}
	text, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	var list []byte
	err = a.call(ctx, "apply", m.spent, `SELECT verdict, coalesce(results, '[]')::text::bytea FROM nw.apply($1, $2, $3, $4, $5, $6, $7)`, m.args(string(text)), nil, &list)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(list, &results); err != nil || len(results) != len(items) {
		return nil, fmt.Errorf("apply answered %d results for %d documents: %w", len(results), len(items), err)
	}
	return results, nil
}

func isRequirement(d document.Document) bool { return d.Head().Kind == document.KindRequirement }

func (a *Authority) require(ctx context.Context, m Actor, i item) ([]string, error) {
	text, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	var result string
	err = a.call(ctx, "requirement", m.spent, `SELECT verdict, coalesce(result, '') FROM nw.require($1, $2, $3, $4, $5, $6, $7)`, m.args(string(text)), nil, &result)
	return []string{result}, err
}

// Retire ends a registered revision and what rests on it. Operators only.
func (a *Authority) Retire(ctx context.Context, m Actor, r api.RetireRequest) (api.Retirement, error) {
	if err := m.operating(); err != nil {
		return api.Retirement{}, err
	}
	kind, ok := kinds[r.Kind]
	if !ok || kind == "task" || kind == "requirement" || r.Revision < 1 {
		return api.Retirement{}, api.Refusef(api.InvalidRequest, "Name the kind, the name and the revision of something registered.")
	}
	name := nameDigest(r.Name)
	var out api.Retirement
	err := a.call(ctx, "retire", m.regardless(), `SELECT verdict, coalesce(touched, 0) FROM nw.retire($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		m.args(kind, name[:], r.Revision), nil, &out.Tasks)
	return out, err
}
