package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

// personFlags say who calls which authority. Each has a variable, because
// people call often.
type personFlags struct {
	authority, envelope, key string
	asJSON                   bool
}

const (
	envAuthority = "NIGHTWARRANT_AUTHORITY"
	envEnvelope  = "NIGHTWARRANT_ENVELOPE_FILE"
	envKey       = "NIGHTWARRANT_KEY_FILE"

	callWithin = 20 * time.Second
	maxAnswer  = 8 << 20
)

func (p program) authorityFlag(c *cobra.Command, into *string) {
	c.Flags().StringVar(into, "authority", p.env(envAuthority), "the authority's issuer `URL`; else $"+envAuthority)
}

func (p program) personFlags(c *cobra.Command) *personFlags {
	f := &personFlags{}
	p.authorityFlag(c, &f.authority)
	c.Flags().StringVar(&f.envelope, "envelope-file", p.env(envEnvelope), "`FILE` of mode 0600 with your platform envelope; else $"+envEnvelope)
	c.Flags().StringVar(&f.key, "key-file", p.env(envKey), "`FILE` of mode 0600 with your own key, made on first use; else $"+envKey)
	c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	return f
}

// person is somebody who calls the authority: an envelope, and the key that
// owns it because it is the first that used it (mission A3).
type person struct {
	origin   string
	envelope capability.Token
	key      *capability.Key
	http     *http.Client
	nonce    string
	shown    string // If-Match of the next change: what it is held to
}

func (f *personFlags) person() (*person, error) {
	for _, flag := range [][2]string{{"--authority", f.authority}, {"--envelope-file", f.envelope}, {"--key-file", f.key}} {
		if flag[1] == "" {
			return nil, config.Wrong(flag[0], "is needed: it says who asks whom")
		}
	}
	if err := config.Origin("--authority", f.authority); err != nil {
		return nil, err
	}
	envelope, err := config.ReadSecret(f.envelope)
	if err != nil {
		return nil, config.Wrong("--envelope-file", "%s", err)
	}
	key, err := ownKey(f.key)
	if err != nil {
		return nil, err
	}
	return &person{origin: f.authority, envelope: capability.Token(envelope.Reveal()), key: key, http: plainClient()}, nil
}

// plainClient follows no redirect, which would carry an envelope elsewhere, and keeps no connection.
func plainClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	return &http.Client{Timeout: callWithin, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// refused is what the authority answered instead.
type refused struct {
	code     api.Code
	sentence string
}

func (r *refused) Error() string { return fmt.Sprintf("refused (%s): %s", r.code, r.sentence) }

// whatever is the If-Match of a change that does not depend on what was shown.
const whatever = "*"

var errNoAnswer = errors.New("the authority gave no answer that can be relied on")

// call makes one call and decodes the answer. A challenge for a fresh nonce,
// which says that nothing happened, is answered once.
func (p *person) call(ctx context.Context, method, path, kind string, body []byte, out any) error {
	err := p.once(ctx, method, path, kind, body, out)
	var r *refused
	if errors.As(err, &r) && r.code == api.UseDPoPNonce && p.nonce != "" {
		err = p.once(ctx, method, path, kind, body, out)
	}
	if errors.Is(err, errNoAnswer) && method != http.MethodGet {
		return fmt.Errorf("%w: it is unknown whether this took effect; run the same command again to learn it", err)
	}
	return err
}

// json is call with a JSON body, or with none.
func (p *person) json(ctx context.Context, method, path string, in, out any) error {
	if in == nil {
		return p.call(ctx, method, path, "", nil, out)
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return p.call(ctx, method, path, "application/json", body, out)
}

func (p *person) once(ctx context.Context, method, path, kind string, body []byte, out any) error {
	r, err := p.request(ctx, method, path, kind, body)
	if err != nil {
		return err
	}
	nonce, err := exchange(p.http, r, out)
	if nonce != "" {
		p.nonce = nonce
	}
	return err
}

func (p *person) request(ctx context.Context, method, path, kind string, body []byte) (*http.Request, error) {
	url := p.origin + path
	proof, err := capability.NewProof(p.key, capability.ProofParams{Method: method, URL: url, Nonce: p.nonce, AccessToken: p.envelope, Now: time.Now()})
	if err != nil {
		return nil, config.Wrong("--authority", "cannot be called: %s", err)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, config.Wrong("--authority", "cannot be called: it is not a URL")
	}
	r.Header.Set(api.HeaderProof, proof)
	r.Header.Set(api.HeaderEnvelope, p.envelope.Reveal())
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	if p.shown != "" {
		r.Header.Set("If-Match", p.shown)
	}
	return r, nil
}

// exchange sends a request and decodes a good answer; the error is *refused or errNoAnswer otherwise.
func exchange(client *http.Client, r *http.Request, out any) (nonce string, err error) {
	answer, err := client.Do(r)
	if err != nil {
		return "", fmt.Errorf("%w (%s)", errNoAnswer, oneLine(err.Error(), 200))
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	nonce = answer.Header.Get(api.HeaderNonce)
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil || len(body) > maxAnswer:
		return nonce, errNoAnswer
	case answer.StatusCode >= 200 && answer.StatusCode <= 299:
		if json.Unmarshal(body, out) != nil {
			return nonce, fmt.Errorf("%w (it is not the JSON that was expected)", errNoAnswer)
		}
		return nonce, nil
	}
	var problem api.Problem
	if json.Unmarshal(body, &problem) != nil || problem.Code == "" {
		return nonce, fmt.Errorf("%w (status %d)", errNoAnswer, answer.StatusCode)
	}
	if problem.Code == api.OutcomeUnknown {
		return nonce, fmt.Errorf("%w (%s)", errNoAnswer, problem.Code)
	}
	return nonce, &refused{api.Code(oneLine(string(problem.Code), 40)), oneLine(problem.ErrorDescription, 400)}
}

// ownKey reads a person's own key, or makes it on first use.
func ownKey(path string) (*capability.Key, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(path); err != nil {
			return nil, err
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil, config.Wrong("--key-file", "names %.100q, which cannot be read or is open to others", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, config.Wrong("--key-file", "names %.100q, which cannot be read", path)
	}
	defer clear(text)
	if block, rest := pem.Decode(text); block != nil && len(bytes.TrimSpace(rest)) == 0 {
		if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if private, ok := parsed.(*ecdsa.PrivateKey); ok && private.Curve == elliptic.P256() {
				return capability.KeyOf(private)
			}
		}
	}
	return nil, config.Wrong("--key-file", "names %.100q, which does not hold one P-256 key in PEM", path)
}

// makeKey writes a new key that appears whole. Of two processes that make it at
// once one wins, and both use that one.
func makeKey(path string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	cannot := func(err error) error {
		return config.Wrong("--key-file", "names %.100q, where no key can be made: %s", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return cannot(err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // the link below is the key
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return cannot(err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return cannot(err)
	}
	return nil
}

const (
	referenceLength   = 22
	referenceAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	mark              = "reference:"
)

// marked marks the references that begin with a hyphen, one in 64, so that none
// is taken for a flag; reference takes the mark off. What is written like a flag,
// in small letters only, stays one.
func marked(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if strings.HasPrefix(a, "-") && isReference(a) && strings.Trim(a, "abcdefghijklmnopqrstuvwxyz-") != "" {
			out[i] = mark + a
		}
	}
	return out
}

func isReference(text string) bool {
	return len(text) == referenceLength && strings.Trim(text, referenceAlphabet) == ""
}

// reference checks an opaque reference before it becomes part of a path.
func reference(what, text string) (string, error) {
	text = strings.TrimPrefix(text, mark)
	if !isReference(text) {
		return "", fmt.Errorf("a reference of %s is %d characters, as the list shows it", what, referenceLength)
	}
	return text, nil
}
