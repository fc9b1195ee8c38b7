package openapi

import (
	"encoding/base64"
	"encoding/json"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const domainTag = "nightwarrant/tag/v1"

// Tag is the strong entity tag of a state (RFC 9110 §8.8): two states that a
// person would see differ have different ones. Answers are no-store, so a tag
// serves If-Match and never a cache.
func Tag(state any) string {
	text, err := json.Marshal(state)
	if err != nil {
		return "" // what cannot be written is not answered either
	}
	sum := canonical.Digest(domainTag, text)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
}
