package keyhost

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Observation is what a token showed of itself and of its keys just now. All of
// it is a claim of the library's: evidence of class C, which proves nothing alone
// (keys.md §3.3). Compare it with a signed record.
type Observation struct {
	Library Library   `json:"library"`
	Token   Token     `json:"token"`
	Keys    []Object  `json:"keys"` // whatever lies under a CKA_ID that the host serves, or shares a label with it
	At      time.Time `json:"at"`   // by the host's clock, UTC
}

// Library is CK_INFO, and the file that was loaded.
type Library struct {
	Cryptoki     string `json:"cryptoki"`
	Manufacturer string `json:"manufacturer"`
	Description  string `json:"description"`
	Version      string `json:"version"`
	File         string `json:"file"` // its name without the directory
	FileSHA256   Digest `json:"file_sha256"`
	EntryPoint   string `json:"entry_point"`
}

// Token is CK_TOKEN_INFO.
type Token struct {
	Manufacturer    string `json:"manufacturer"`
	Model           string `json:"model"`
	Serial          string `json:"serial"`
	Label           string `json:"label"`
	HardwareVersion string `json:"hardware_version"`
	FirmwareVersion string `json:"firmware_version"`
	Flags           uint64 `json:"flags"`
}

// Object is one key object. An attribute is "true", "false" or "unsupported";
// KEY_GEN_MECHANISM is like "0x1040", "unavailable" or "unsupported".
type Object struct {
	Purpose       string            `json:"purpose"` // PairSigning or PairNonce
	Class         string            `json:"class"`   // ClassPrivate, ClassPublic or ClassSecret
	ID            []byte            `json:"id"`
	Label         string            `json:"label"`
	Mechanisms    []string          `json:"mechanisms"` // of those that the purpose needs, the ones that the token signs by
	Attributes    map[string]string `json:"attributes"`
	ValueReadable bool              `json:"value_readable"` // CKA_VALUE came out
	ECParams      []byte            `json:"ec_params"`      // CKA_EC_PARAMS, DER
	Point         []byte            `json:"point"`          // of a public key, uncompressed
}

// Purposes of an object, as a record of provenance names them (keys.md §3.4).
const (
	PairSigning = "capability-signing"
	PairNonce   = "nonce-root"
)

// Classes of an object.
const (
	ClassPrivate = "private"
	ClassPublic  = "public"
	ClassSecret  = "secret"
)

// Digest is a SHA-256 digest, hexadecimal on the wire.
type Digest [32]byte

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return errMessage
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Bounds of an observation.
const (
	MaxObjects = 32
	maxText    = 64
	maxBytes   = 255
)

// ParseObservation reads an observation in its one spelling.
func ParseObservation(text []byte) (Observation, error) {
	var o Observation
	if len(text) > maxMessage || decode(text, &o) != nil {
		return Observation{}, errMessage
	}
	return o, o.Check()
}

// Check bounds what a library says, and refuses what no log and no page may show.
func (o *Observation) Check() error {
	texts := []string{o.Library.Cryptoki, o.Library.Manufacturer, o.Library.Description, o.Library.Version, o.Library.EntryPoint,
		o.Token.Manufacturer, o.Token.Model, o.Token.Serial, o.Token.Label, o.Token.HardwareVersion, o.Token.FirmwareVersion}
	for _, text := range texts {
		if !plain(text, maxText) {
			return &Error{TokenIdentityMismatch, "the token describes itself with what is no text"}
		}
	}
	if !plain(o.Library.File, maxBytes) {
		return &Error{TokenIdentityMismatch, "the library's name is no text"}
	}
	if len(o.Keys) > MaxObjects {
		return &Error{KeyAmbiguous, fmt.Sprintf("there are more than %d objects under the keys' names", MaxObjects)}
	}
	for _, k := range o.Keys {
		if !k.bounded() {
			return &Error{KeyAmbiguous, "an object has a name or a value that is none"}
		}
	}
	return nil
}

func (k *Object) bounded() bool {
	for name, value := range k.Attributes {
		if !plain(name, maxText) || !plain(value, maxText) {
			return false
		}
	}
	for _, m := range k.Mechanisms {
		if !plain(m, maxText) {
			return false
		}
	}
	return plain(k.Purpose, maxText) && plain(k.Class, maxText) && plain(k.Label, maxBytes) && len(k.Attributes) <= maxText && len(k.Mechanisms) <= maxText &&
		len(k.ID) <= maxBytes && len(k.ECParams) <= maxBytes && len(k.Point) <= maxBytes
}

func plain(text string, most int) bool {
	if len(text) > most || !utf8.ValidString(text) {
		return false
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Observe has the host look at its token and at its keys anew.
func (c *Client) Observe(ctx context.Context) (Observation, error) {
	a, err := c.ask(ctx, question{Op: opObserve})
	if err == nil && a.Observation == nil {
		err = errMessage
	}
	if err != nil {
		return Observation{}, err
	}
	return *a.Observation, a.Observation.Check()
}

// decode reads JSON in the one spelling that this package gives it: no member is
// unknown, missing, twice there or in another case.
func decode(text []byte, v any) error {
	if json.Unmarshal(text, v) != nil {
		return errMessage
	}
	if again, err := json.Marshal(v); err != nil || !bytes.Equal(again, text) {
		return errMessage
	}
	return nil
}
