// Package webhook signs and verifies webhooks as Standard Webhooks 1.0.0 says
// (standardwebhooks.com), with the symmetric signature v1: HMAC-SHA256 over the
// message's id, the time of the attempt and the body.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of every message.
const (
	HeaderID        = "Webhook-Id"        // the same at each attempt: a receiver that has seen it has the message
	HeaderTimestamp = "Webhook-Timestamp" // of the attempt, in seconds
	HeaderSignature = "Webhook-Signature" // one or several, each v1,BASE64, with spaces between them
)

const (
	prefix         = "whsec_"
	version        = "v1,"
	minKey, maxKey = 24, 64 // bytes
	maxSignatures  = 8      // that a receiver looks at
	maxID          = 128

	// Window is how far from a receiver's clock the time of an attempt may be.
	// Whoever remembers ids for twice as long takes no message twice.
	Window = 5 * time.Minute
)

// Secret is the key that a sender and a receiver share. It does not print, log
// or marshal, and nobody who walks into it finds a key. The zero Secret signs and
// verifies nothing.
type Secret struct {
	mac func(id, timestamp string, body []byte) []byte
}

// ErrSecret says what a secret must look like, and nothing about the one that was given.
var ErrSecret = fmt.Errorf("must be %s and then the base64 of %d to %d random bytes", prefix, minKey, maxKey)

// ParseSecret reads a secret as it is exchanged: whsec_ and standard base64.
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, prefix)
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil || len(key) < minKey || len(key) > maxKey || strings.ContainsAny(encoded, "\r\n") {
		return Secret{}, ErrSecret
	}
	return Secret{func(id, timestamp string, body []byte) []byte {
		h := hmac.New(sha256.New, key)
		_, _ = io.WriteString(h, id+"."+timestamp+".") // never fails (hash.Hash)
		_, _ = h.Write(body)
		return h.Sum(nil)
	}}, nil
}

const hidden = "(secret)"

// String hides the key.
func (s Secret) String() string { return hidden }

// Format hides the key from every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText hides the key from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// IsZero says that there is no key.
func (s Secret) IsZero() bool { return s.mac == nil }

// Sign puts the three headers of one attempt on a request.
func (s Secret) Sign(h http.Header, id string, at time.Time, body []byte) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, timestamp)
	h.Set(HeaderSignature, version+base64.StdEncoding.EncodeToString(s.mac(id, timestamp, body)))
}

// Why a message was not accepted.
var (
	ErrHeaders   = errors.New("webhook: an id, a timestamp and a signature are needed, once each")
	ErrTimestamp = errors.New("webhook: the message is too old or from the future")
	ErrSignature = errors.New("webhook: no signature is good")
)

// Verify says whether a message was signed with one of the secrets, of which
// there are two while one is exchanged for the other, within [Window] of now.
func Verify(h http.Header, body []byte, now time.Time, secrets ...Secret) error {
	id, timestamp, signatures := h.Values(HeaderID), h.Values(HeaderTimestamp), h.Values(HeaderSignature)
	if len(id) != 1 || len(timestamp) != 1 || len(signatures) != 1 || id[0] == "" || len(id[0]) > maxID {
		return ErrHeaders
	}
	seconds, err := strconv.ParseInt(timestamp[0], 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != timestamp[0] {
		return ErrHeaders
	}
	if away := now.Unix() - seconds; away > int64(Window/time.Second) || away < -int64(Window/time.Second) {
		return ErrTimestamp
	}
	all := strings.SplitN(signatures[0], " ", maxSignatures+1)
	for _, one := range all[:min(len(all), maxSignatures)] {
		if signedWithOne(one, id[0], timestamp[0], body, secrets) {
			return nil
		}
	}
	return ErrSignature
}

func signedWithOne(signature, id, timestamp string, body []byte, secrets []Secret) bool {
	encoded, ok := strings.CutPrefix(signature, version)
	given, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil {
		return false
	}
	for _, s := range secrets {
		if !s.IsZero() && hmac.Equal(given, s.mac(id, timestamp, body)) {
			return true
		}
	}
	return false
}

const maxBody = 64 << 10

// Handler receives messages: it answers 204 when take has one, 400 when it is
// none or not signed with the secret, and 503 when take fails. A message comes
// again after anything but a 2xx, with the same id.
func Handler(secret Secret, now func() time.Time, take func(id string, body []byte) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "only POST", http.StatusMethodNotAllowed)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			err = Verify(r.Header, body, now(), secret)
		}
		if err != nil {
			http.Error(w, "not a message for this receiver", http.StatusBadRequest)
			return
		}
		if err := take(r.Header.Get(HeaderID), body); err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
