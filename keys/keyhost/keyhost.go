// Package keyhost is how the authority reaches keys that it does not hold: over
// a Unix socket of a helper process that has the PKCS#11 token open, so that
// what breaks in a vendor's library breaks there (keys.md §5.1). Neither side
// of it needs cgo; the helper's token is its own.
//
// A message is a length of four bytes, big endian, and that much JSON.
package keyhost

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
)

// Purposes that the signing key has, and nothing else; told apart by the typ of
// what is signed. A challenge is what a bundle proves itself with.
const (
	PurposeCapability = "capability"
	PurposeReadiness  = "readiness"
	PurposeReceipt    = "receipt"
	PurposeChallenge  = "challenge"
)

// Code is a refusal of the helper: a stable word for the API, the audit and the operator.
type Code string

// Refusals (keys.md §3.6).
const (
	TokenUnavailable      Code = "TOKEN_UNAVAILABLE"
	TokenLoginRefused     Code = "TOKEN_LOGIN_REFUSED"
	TokenPINAtRisk        Code = "TOKEN_PIN_AT_RISK"
	TokenIdentityMismatch Code = "TOKEN_IDENTITY_MISMATCH"
	KeyAmbiguous          Code = "KEY_AMBIGUOUS"
	KeyCurveInvalid       Code = "KEY_CURVE_INVALID"
	KeyExtractable        Code = "KEY_EXTRACTABLE"
	KeyValueReadable      Code = "KEY_VALUE_READABLE"
	KeyChallengeFailed    Code = "KEY_CHALLENGE_FAILED"
	KeyChallengeTimeout   Code = "KEY_CHALLENGE_TIMEOUT"
	KeyBusy               Code = "KEY_BUSY" // try again; nothing is wrong
	PurposeRefused        Code = "PURPOSE_REFUSED"
	RequestMalformed      Code = "REQUEST_MALFORMED"
)

// Error is a refusal with what the operator must know; neither holds a secret.
type Error struct {
	Code Code
	Why  string
}

func (e *Error) Error() string {
	if e.Why == "" {
		return string(e.Code)
	}
	return string(e.Code) + ": " + e.Why
}

// Suspect tells that the token's state is not known any more: only a new start,
// with everything verified again, can be trusted.
func (e *Error) Suspect() bool {
	return e.Code != KeyBusy && e.Code != PurposeRefused && e.Code != RequestMalformed
}

// Descriptor is what a token says of itself and of the key. All of it is a
// claim: without a signed record it proves nothing about where the key is from.
type Descriptor struct {
	Library   Library           `json:"library"`
	Token     Token             `json:"token"`
	PublicKey []byte            `json:"public_key"` // P-256, uncompressed point, 65 bytes
	KeyID     string            `json:"key_id"`     // CKA_ID, hex
	MACKeyID  string            `json:"mac_key_id"`
	Key       map[string]string `json:"key"`     // attributes of the private key
	MACKey    map[string]string `json:"mac_key"` // attributes of the nonce key
}

// Library is CK_INFO, and the file that was loaded.
type Library struct {
	Cryptoki     string `json:"cryptoki"`
	Manufacturer string `json:"manufacturer"`
	Description  string `json:"description"`
	Version      string `json:"version"`
	FileSHA256   string `json:"file_sha256"` // hex
	EntryPoint   string `json:"entry_point"`
}

// Token is CK_TOKEN_INFO.
type Token struct {
	Manufacturer string `json:"manufacturer"`
	Model        string `json:"model"`
	Serial       string `json:"serial"`
	Label        string `json:"label"`
	Hardware     string `json:"hardware"`
	Firmware     string `json:"firmware"`
}

// What is asked.
const (
	opDescribe = "describe"
	opSign     = "sign"
	opMAC      = "mac"
	opHealth   = "health"
)

type question struct {
	Op      string `json:"op"`
	Purpose string `json:"purpose,omitempty"`
	Data    []byte `json:"data,omitempty"`
}

type answer struct {
	Data       []byte      `json:"data,omitempty"`
	Descriptor *Descriptor `json:"descriptor,omitempty"`
	Code       Code        `json:"code,omitempty"`
	Why        string      `json:"why,omitempty"`
}

// maxMessage bounds a message, in bytes.
const maxMessage = 16 << 10

var errMessage = errors.New("keyhost: a message is not one of ours")

func send(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return errMessage
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

func receive(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxMessage {
		return errMessage
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if json.Unmarshal(text, v) != nil {
		return errMessage
	}
	return nil
}
