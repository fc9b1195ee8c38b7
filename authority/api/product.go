package api

import (
	"encoding/json"
	"time"
)

// DetailTypeTask is the RFC 9396 §2 type of a detail that describes a task.
const DetailTypeTask = "urn:nightwarrant:task"

// StartOffer asks one person about one task of the product's client.
type StartOffer struct {
	For       Person            `json:"for"` // nobody else can answer, whoever has the link
	Details   []json.RawMessage `json:"authorization_details"`
	ReturnURI string            `json:"return_uri"` // one of the registered ones, exactly
	State     string            `json:"state"`      // comes back with the answer; 1 to 256 visible ASCII characters
}

// Person is somebody as the platform's identity provider names them. Issuer may be left out where there is one.
type Person struct {
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject"`
}

// StartedOffer is where the person answers. Neither the reference nor the link grants anything.
type StartedOffer struct {
	Offer string `json:"offer"`
	Page  string `json:"page"`
}

// OfferAnswer is what came of an offer.
type OfferAnswer struct {
	Offer     string    `json:"offer"`
	Task      string    `json:"task"`
	State     string    `json:"state"` // open, accepted, declined, replaced, expired
	ExpiresAt time.Time `json:"expires_at"`
	Consent   string    `json:"consent,omitempty"` // of an accepted one
}

// ConsentState is whether a consent holds, with exactly what was granted.
type ConsentState struct {
	Consent         string          `json:"consent"`
	Task            string          `json:"task"`
	Digest          string          `json:"digest"`
	State           string          `json:"state"` // active, superseded, revoked, expired
	ActivationEpoch int64           `json:"activation_epoch"`
	GivenAt         time.Time       `json:"given_at"`
	ExpiresAt       time.Time       `json:"expires_at"`
	Document        json.RawMessage `json:"document"` // the canonical consent document; it may be less than was offered
}
