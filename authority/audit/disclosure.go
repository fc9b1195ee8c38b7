package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Disclosure opens a commitment in an audit record: what is personal stands there
// as SHA-256 of a salt of the record's own, the field's name and the value. It can
// be taken away, and the record, the tree and every proof stay as they are.
type Disclosure struct {
	Field string `json:"field"` // member
	Salt  []byte `json:"salt"`
	Value []byte `json:"value"` // a member's reference
}

const commitmentDomain = "nightwarrant/audit-field/v1"

func (d Disclosure) commitment() string {
	sum := sha256.Sum256(bytes.Join([][]byte{[]byte(commitmentDomain), d.Salt, []byte(d.Field), d.Value}, []byte{0}))
	return hex.EncodeToString(sum[:])
}

// committed are the fields of a body that hold a commitment.
func committed(body []byte) map[string]string {
	if !bytes.Contains(body, []byte(`"member" : "`)) { // of most there is none, and reading takes time
		return nil
	}
	var b struct {
		More struct {
			Member string `json:"member"`
		} `json:"more"`
	}
	if json.Unmarshal(body, &b) != nil || b.More.Member == "" {
		return nil
	}
	return map[string]string{"member": b.More.Member}
}

// disclosed compares a body with what was disclosed of it: how many of its fields
// are, how many are not any more, and whether each is what it commits to.
func disclosed(body []byte, all []Disclosure) (open, redacted int64, right bool) {
	fields := committed(body)
	for _, d := range all {
		if want, ok := fields[d.Field]; !ok || len(d.Salt) != sha256.Size || len(d.Value) != sha256.Size || d.commitment() != want {
			return 0, 0, false
		}
		delete(fields, d.Field)
	}
	return int64(len(all)), int64(len(fields)), true
}
