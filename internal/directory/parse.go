package directory

import (
	"errors"
	"net/mail"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const listSchema = "urn:ietf:params:scim:api:messages:2.0:ListResponse"

// user is what counts of a user resource (RFC 7643 §4.1).
type user struct {
	external string
	active   bool
	address  string // the primary one, or the only one
}

// parse reads a ListResponse (RFC 7644 §3.4.2) to a question for one
// externalId: that user, or nil where there is none. SCIM's names are the same in
// any case, so that a name that differs from ours only in case would be a second
// value of the same attribute: it is refused, as are several users, another's
// and an answer that does not say what was asked.
func parse(body []byte, subject string) (*user, error) {
	var list struct {
		schema, total bool
		found         int64
		users         []*user
	}
	err := canonical.Members(body, func(name []byte, v canonical.Value) (err error) {
		switch ours(name, "schemas", "totalResults", "Resources") {
		case "schemas":
			list.schema, err = hasSchema(v)
		case "totalResults":
			list.found, list.total = v.Int()
		case "Resources":
			list.users, err = parseUsers(v)
		case variant:
			err = errVariant
		}
		return err
	})
	switch {
	case err != nil:
		return nil, refused(err)
	case !list.schema || !list.total:
		return nil, errors.New("directory: the answer is no list")
	case list.found == 0 && len(list.users) == 0:
		return nil, nil
	case list.found != 1 || len(list.users) != 1:
		return nil, errors.New("directory: the answer is not about one user")
	case list.users[0].external != subject:
		return nil, errors.New("directory: the answer is about somebody else")
	}
	return list.users[0], nil
}

var (
	errVariant = errors.New("a name that differs only in case")
	errShape   = errors.New("a value of another type")
)

// refused keeps what was answered out of the error: it is about a person.
func refused(err error) error {
	if errors.Is(err, errVariant) || errors.Is(err, errShape) {
		return errors.New("directory: the answer has " + err.Error())
	}
	return errors.New("directory: the answer is malformed")
}

const variant = "?"

// ours tells which of our names this is, or variant.
func ours(name []byte, known ...string) string {
	for _, k := range known {
		if string(name) == k {
			return k
		}
		if strings.EqualFold(string(name), k) {
			return variant
		}
	}
	return ""
}

func hasSchema(v canonical.Value) (has bool, err error) {
	err = elements(v, func(v canonical.Value) error {
		has = has || v.Is(listSchema)
		return nil
	})
	return has, err
}

func elements(v canonical.Value, visit func(canonical.Value) error) error {
	if len(v.Raw) == 0 || v.Raw[0] != '[' {
		return errShape
	}
	return canonical.Elements(v, visit)
}

func parseUsers(v canonical.Value) (all []*user, err error) {
	err = elements(v, func(v canonical.Value) error {
		u, err := parseUser(v)
		all = append(all, u)
		return err
	})
	return all, err
}

func parseUser(v canonical.Value) (*user, error) {
	if !v.IsObject() {
		return nil, errShape
	}
	var u user
	var named, told bool
	err := canonical.Members(v.Raw, func(name []byte, v canonical.Value) (err error) {
		switch ours(name, "externalId", "active", "emails") {
		case "externalId":
			u.external, named = v.Text()
		case "active":
			u.active, told = isTrue(v)
		case "emails":
			u.address, err = parseEmails(v)
		case variant:
			err = errVariant
		}
		return err
	})
	if err == nil && (!named || !told) {
		err = errShape
	}
	return &u, err
}

func isTrue(v canonical.Value) (value, ok bool) {
	text := string(v.Raw)
	return text == "true", text == "true" || text == "false"
}

// parseEmails picks the primary address, or the only one: one bare address
// (RFC 5322 §3.4.1).
func parseEmails(v canonical.Value) (address string, err error) {
	var all []string
	primary := -1
	err = elements(v, func(v canonical.Value) error {
		if !v.IsObject() {
			return errShape
		}
		var value string
		var first bool
		err := canonical.Members(v.Raw, func(name []byte, v canonical.Value) error {
			ok := true
			switch ours(name, "value", "primary") {
			case "value":
				value, ok = v.Text()
			case "primary":
				first, ok = isTrue(v)
			case variant:
				return errVariant
			}
			if !ok {
				return errShape
			}
			return nil
		})
		if first && primary >= 0 {
			return errShape
		}
		if first {
			primary = len(all)
		}
		all = append(all, value)
		return err
	})
	switch {
	case err != nil:
		return "", err
	case primary >= 0:
		address = all[primary]
	case len(all) == 1:
		address = all[0]
	}
	if a, err := mail.ParseAddress(address); err == nil && a.Address == address && a.Name == "" && len(address) <= 254 {
		return address, nil
	}
	return "", nil
}
