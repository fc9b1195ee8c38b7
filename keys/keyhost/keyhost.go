// Package keyhost is how the authority reaches keys that it does not hold: over
// a Unix socket of a helper process that has the PKCS#11 token open, so that
// what breaks in a vendor's library breaks there (keys.md §5.1). Neither side
// of it needs cgo; the helper's token is its own.
//
// A message is a length of four bytes, big endian, and that much JSON.
package keyhost

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
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
	KeyBusy               Code = "KEY_BUSY"    // try again; nothing is wrong
	KeyUnknown            Code = "KEY_UNKNOWN" // the host serves none of that name
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
	return e.Code != KeyBusy && e.Code != KeyUnknown && e.Code != PurposeRefused && e.Code != RequestMalformed
}

// Descriptor is what a host serves.
type Descriptor struct {
	Pairs []Pair `json:"pairs"`
}

// Pair is a signing key with its nonce key: one generation of a cluster's keys.
type Pair struct {
	Signing   string `json:"signing"`    // CKA_ID, hex
	Nonce     string `json:"nonce"`      // CKA_ID, hex
	PublicKey []byte `json:"public_key"` // P-256, uncompressed point, 65 bytes
}

// What is asked.
const (
	opDescribe = "describe"
	opSign     = "sign"
	opMAC      = "mac"
	opHealth   = "health"
	opObserve  = "observe"
)

type question struct {
	Op      string `json:"op"`
	Key     string `json:"key,omitempty"` // CKA_ID, hex
	Purpose string `json:"purpose,omitempty"`
	Data    []byte `json:"data,omitempty"`
}

type answer struct {
	Data        []byte       `json:"data,omitempty"`
	Descriptor  *Descriptor  `json:"descriptor,omitempty"`
	Observation *Observation `json:"observation,omitempty"`
	Code        Code         `json:"code,omitempty"`
	Why         string       `json:"why,omitempty"`
}

// maxMessage bounds a message, in bytes.
const maxMessage = 64 << 10

var errMessage = errors.New("keyhost: a message is not one of ours")

// link is a connection whose messages are read at once, with their length.
type link struct {
	net.Conn
	in *bufio.Reader
}

func newLink(conn net.Conn) *link { return &link{conn, bufio.NewReaderSize(conn, 1<<10)} }

func (l *link) Read(b []byte) (int, error) { return l.in.Read(b) }

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
	return decode(text, v)
}
