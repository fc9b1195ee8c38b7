package document

import (
	"fmt"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// Product is the component of an application whose tasks run. It may offer
// members tasks of its own client, and report families.
type Product struct {
	Header
	Title    string   `json:"title"`
	Profile  string   `json:"profile"`
	Families []string `json:"families,omitempty"`
	Offers   Offering `json:"offers,omitzero"`
}

// Offering bounds what a product may offer: tasks of one client, under these
// roles and policies. A person's answer returns to one of the addresses, each
// compared whole. MaxOpen and MaxOpenMember bound the offers that wait for an
// answer, of the product and of one person.
type Offering struct {
	Client        string   `json:"client"`
	Roles         []string `json:"roles"`
	Policies      []string `json:"policies"`
	ReturnURIs    []string `json:"return_uris"`
	MaxOpen       int64    `json:"max_open"`
	MaxOpenMember int64    `json:"max_open_member"`
}

const maxOpen = 100_000

// Validate checks the product by itself.
func (p *Product) Validate() error {
	return first(
		p.check(KindProduct),
		title("title", p.Title),
		name("profile", p.Profile),
		ownFamilies("families", p.Families, 0),
		p.Offers.check(),
	)
}

// None reports whether a product offers nothing.
func (o Offering) None() bool { return o.Client == "" }

func (o Offering) check() error {
	if o.None() && len(o.Roles)+len(o.Policies)+len(o.ReturnURIs) == 0 && o.MaxOpen == 0 && o.MaxOpenMember == 0 {
		return nil
	}
	if len(o.ReturnURIs) < 1 || len(o.ReturnURIs) > maxList {
		return wrong("offers.return_uris", "must list between 1 and %d addresses", maxList)
	}
	for i, uri := range o.ReturnURIs {
		at := fmt.Sprintf("offers.return_uris[%d]", i)
		if _, err := absolute(at, uri); err != nil {
			return err
		}
		if slices.Contains(o.ReturnURIs[:i], uri) {
			return wrong(at, "stands twice")
		}
	}
	return first(
		name("offers.client", o.Client),
		names("offers.roles", o.Roles, 1),
		names("offers.policies", o.Policies, 1),
		between("offers.max_open", o.MaxOpen, 1, maxOpen),
		between("offers.max_open_member", o.MaxOpenMember, 1, o.MaxOpen),
	)
}

// May checks a task against what a product may offer.
func (o Offering) May(t *Task) error {
	switch {
	case o.None() || t.Client != o.Client:
		return wrong("client", "is not one whose tasks this product may offer")
	case !slices.Contains(o.Roles, t.Role):
		return wrong("role", "is not one under which this product may offer tasks")
	case !slices.Contains(o.Policies, t.Policy):
		return wrong("policy", "is not one under which this product may offer tasks")
	}
	return nil
}

// DetailTask is the `type` (RFC 9396 §2) of an authorization detail that
// describes a task.
const DetailTask = "urn:nightwarrant:task"

// TaskOfDetail reads one authorization details object (RFC 9396 §2) as the task
// that it describes. Its members are those of the document: `identifier` is the
// task's name; client and owner are not the detail's to say. Its errors are
// *Error.
func TaskOfDetail(in []byte, client string, owner Owner) (*Task, error) {
	n, err := treeOfJSON(in)
	if err != nil {
		return nil, err
	}
	if n.member("type") != DetailTask {
		return nil, wrong("type", "must be %s", DetailTask)
	}
	task := &node{shape: object}
	add := func(key string, item *node) {
		task.keys, task.items = append(task.keys, key), append(task.items, item)
	}
	word := func(value string) *node { return &node{shape: text, value: value} }
	for i, key := range n.keys {
		switch key {
		case "type":
		case "identifier":
			add("name", n.items[i])
		case "kind", "name", "client", "owner":
			return nil, wrong(key, "is not a known field")
		default:
			add(key, n.items[i])
		}
	}
	add("kind", word(KindTask))
	add("client", word(client))
	add("owner", &node{shape: object, keys: []string{"issuer", "subject"}, items: []*node{word(owner.Issuer), word(owner.Subject)}})
	d, err := typed(task)
	if err != nil {
		return nil, err
	}
	return d.(*Task), nil
}

// DetailOfTask is the inverse of TaskOfDetail, in canonical form.
func DetailOfTask(t *Task) ([]byte, error) {
	text, err := Canonical(t)
	if err != nil {
		return nil, err
	}
	n, err := treeOfJSON(text)
	if err != nil {
		return nil, err
	}
	members := n.plain().(map[string]any)
	members["type"], members["identifier"] = DetailTask, members["name"]
	for _, key := range []string{"kind", "name", "client", "owner"} {
		delete(members, key)
	}
	return canonical.CanonicalizeValue(members)
}
