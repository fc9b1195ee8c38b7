package tripwire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/internal/issuerkeys"
	"github.com/nightwarrant/nightwarrant/internal/leaks"
)

const maxSeen = 4 << 20 // bytes of one text

// Host is a machine of the deployment, and what listens on it.
type Host struct {
	Name     string
	From, To int   // ports that are tried
	Ports    []int // declared
}

// heard keeps what refusals said, and what must be in nothing that is said.
type heard struct {
	mu       sync.Mutex
	problems bytes.Buffer
	secrets  [][]byte
}

func newHeard() *heard { return &heard{} }

// secret remembers a token: whole, and the part that makes it one.
func (h *heard) secret(token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := strings.LastIndex(token, "."); i > 0 && len(token)-i > 20 {
		h.secrets = append(h.secrets, []byte(token[i+1:]))
	}
}

// client follows no redirect and keeps what each refusal says.
func (h *heard) client() *http.Client {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil // capabilities travel here
	return &http.Client{Timeout: 20 * time.Second, Transport: listener{h, base}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type listener struct {
	*heard
	by *http.Transport
}

func (l listener) CloseIdleConnections() { l.by.CloseIdleConnections() }

func (l listener) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.by.RoundTrip(r)
	if err != nil || answer.StatusCode < http.StatusMultipleChoices {
		return answer, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxSeen))
	_ = answer.Body.Close() // read above
	if err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.problems.Len() < maxSeen {
		l.problems.Write(append(body, '\n'))
	}
	return answer, nil
}

// look sees what can be seen.
func (t *tripwire) look(ctx context.Context) {
	t.line("A14.1", "each replica's decision is signed, answers the question and names every required family", []string{"A14", "A17"}, func() (string, error) { return t.decisions(ctx) })
	t.line("A11.1", "every replica publishes the same keys, P-256, each named by its thumbprint", []string{"A11"}, func() (string, error) { return t.keys(ctx) })
	t.held(ctx, "A11.2", "what is given out is signed by a published key, for ES256", []string{"A11", "A4"}, t.signed)
	t.line("A13", "every process is one known build", []string{"A13"}, func() (string, error) { return t.builds(ctx) })
	t.line("B18", "nothing listens but what is declared", []string{"B18"}, func() (string, error) { return t.ports(ctx) })
}

// read gets what anybody may read.
func (t *tripwire) read(ctx context.Context, from string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	answer, err := t.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end below
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxSeen))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers with status %d", from, answer.StatusCode)
	}
	return body, err
}

// decision asks one replica, with a challenge.
func (t *tripwire) decision(ctx context.Context, at string) (d api.Decision, err error) {
	body, err := t.read(ctx, at+api.PathReadiness+"?challenge="+rand.Text())
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(body, &d)
}

// everywhere is the authority as it is reached from outside, and each of its replicas.
func (t *tripwire) everywhere() []string { return append([]string{t.Authority}, t.Replicas...) }

// always are the families that no configuration can leave out (A17).
var always = []string{"approvals", "attestation", "audit", "clock", "directory", "guards", "nonces", "queue", "signing", "store"}

func (t *tripwire) decisions(ctx context.Context) (string, error) {
	for _, at := range t.everywhere() {
		challenge := rand.Text()
		body, err := t.read(ctx, at+api.PathReadiness+"?challenge="+challenge)
		if err != nil {
			return "", err
		}
		var d api.Decision
		if err := json.Unmarshal(body, &d); err != nil {
			return "", fmt.Errorf("%s: %w", at, err)
		}
		c, err := capability.VerifyDecision(d.Signed, t.published(ctx, at), capability.Expectation{Issuer: t.Authority, Now: t.Now(), Leeway: 5 * time.Second}, challenge)
		if err != nil {
			return "", fmt.Errorf("%s: %w", at, err)
		}
		for _, f := range always {
			i := slices.IndexFunc(c.Families, func(one capability.DecidedFamily) bool { return one.Family == f })
			if i < 0 || c.Open && (!c.Families[i].Good || c.Families[i].Instances < c.Families[i].Required) {
				return "", fmt.Errorf("%s: the decision is open=%t without a good %s", at, c.Open, f)
			}
		}
	}
	return fmt.Sprintf("asked at %d places; %d families each", len(t.everywhere()), len(always)), nil
}

type published struct {
	ctx context.Context
	set *issuerkeys.Set
}

// published are the keys that one replica publishes.
func (t *tripwire) published(ctx context.Context, at string) published {
	return published{ctx, issuerkeys.New(at+api.PathJWKS, t.http, t.Now)}
}

func (p published) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	k, ok, err := p.set.Key(p.ctx, kid)
	return k.Public, k.Generation, ok && err == nil
}

// keys compares what every replica publishes, byte by byte.
func (t *tripwire) keys(ctx context.Context) (string, error) {
	var first []byte
	for _, at := range t.everywhere() {
		body, err := t.read(ctx, at+api.PathJWKS)
		if err != nil {
			return "", err
		}
		if first == nil {
			first = body
		}
		if !bytes.Equal(first, body) {
			return "", fmt.Errorf("%s publishes other keys than %s", at, t.Authority)
		}
	}
	var set struct {
		Keys []map[string]any `json:"keys"`
	}
	if err := json.Unmarshal(first, &set); err != nil || len(set.Keys) == 0 {
		return "", errors.New("there is no key")
	}
	var ids []string
	for _, k := range set.Keys {
		kid, _ := k["kid"].(string)
		if _, private := k["d"]; private {
			return "", fmt.Errorf("the key %q is published with its private part", kid)
		}
		public, _, ok := t.published(ctx, t.Authority).Key(kid)
		if !ok {
			return "", fmt.Errorf("the key %q is not one for ES256 on P-256", kid)
		}
		if jkt, err := capability.JKT(public); err != nil || jkt.String() != kid {
			return "", fmt.Errorf("the key %q is not named by its thumbprint", kid)
		}
		ids = append(ids, kid)
	}
	return fmt.Sprintf("%d replicas and the authority publish %s", len(t.Replicas), strings.Join(ids, ", ")), nil
}

// signed looks at the capabilities that this audit was given.
func (t *tripwire) signed(ctx context.Context, h *hold) (string, error) {
	minted, err := t.mint(ctx, h, "signed", t.Guard.Granted)
	if err != nil {
		return "", err
	}
	e := capability.Expectation{Issuer: t.Authority, Audience: t.Guard.URI, Now: t.Now(), Leeway: 5 * time.Second}
	for _, at := range t.everywhere() {
		if _, err := capability.VerifyRun(h.token, t.published(ctx, at), e); err != nil {
			return "", fmt.Errorf("the run capability, with the keys of %s: %w", at, err)
		}
		if _, err := capability.VerifyEffect(capability.Token(minted.AccessToken), t.published(ctx, at), e); err != nil {
			return "", fmt.Errorf("the effect capability, with the keys of %s: %w", at, err)
		}
	}
	return "a run and an effect capability are good with the keys of every replica", nil
}

// secretsIn searches what can be read from outside, and the logs that it was given.
func (t *tripwire) secretsIn(ctx context.Context) (string, error) {
	texts := map[string][]byte{"what was refused": t.heard.problems.Bytes()}
	for _, at := range t.everywhere() {
		d, err := t.decision(ctx, at)
		if err != nil {
			return "", err
		}
		d.Signed = "" // a signature for everybody, and no capability
		if texts[at+api.PathReadiness], err = json.Marshal(d); err != nil {
			return "", err
		}
		for _, path := range []string{api.PathJWKS, api.PathMetadata, api.PathOpenAPI, "/", "/login", "/static/htmx.js", "/nowhere"} {
			body, _ := t.read(ctx, at+path) // whatever it answers
			texts[at+path] = body
		}
	}
	for _, at := range t.Admin {
		for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
			body, err := t.read(ctx, at+path)
			if err != nil && path == "/metrics" {
				return "", err
			}
			texts[at+path] = body
		}
	}
	size := 0
	for name, text := range texts {
		size += len(text)
		if found := leaks.Search(name, text, t.heard.secrets...); len(found) > 0 {
			return "", errors.New(found[0])
		}
	}
	for _, dir := range t.Logs {
		found, err := leaks.Files(dir, t.heard.secrets...)
		if err != nil || len(found) > 0 {
			return "", errors.Join(err, errors.New(strings.Join(found, "; ")))
		}
	}
	return fmt.Sprintf("%d answers, %d bytes, and %d folders of logs, searched for %d tokens of this audit and for whatever looks like a token or a private key", len(texts), size, len(t.Logs), len(t.heard.secrets)), nil
}

const (
	dialers  = 64
	dialTime = 2 * time.Second
)

// ports looks at every port of the hosts.
func (t *tripwire) ports(ctx context.Context) (string, error) {
	if len(t.Hosts) == 0 {
		return "", reason("the configuration declares no host")
	}
	var said []string
	for _, h := range t.Hosts {
		open, err := h.open(ctx)
		if err != nil {
			return "", err
		}
		for _, p := range open {
			if !slices.Contains(h.Ports, p) {
				return "", fmt.Errorf("%s listens on %d, which is not declared", h.Name, p)
			}
		}
		for _, p := range h.Ports {
			if !slices.Contains(open, p) {
				return "", fmt.Errorf("%s does not listen on %d, which is declared", h.Name, p)
			}
		}
		said = append(said, fmt.Sprintf("%s: %d ports tried, %d listen, all declared", h.Name, h.To-h.From+1, len(open)))
	}
	return strings.Join(said, "; "), nil
}

func (h Host) open(ctx context.Context) (open []int, err error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(dialers)
	dialer := net.Dialer{Timeout: dialTime}
	for p := h.From; p <= h.To; p++ {
		g.Go(func() error {
			c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(h.Name, strconv.Itoa(p)))
			if err != nil {
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			open = append(open, p)
			return c.Close()
		})
	}
	err = g.Wait()
	slices.Sort(open)
	return open, err
}

// builds looks at what each process says that it runs: those of the authority and the scheduler must be this very program.
func (t *tripwire) builds(ctx context.Context) (string, error) {
	var d api.Deployment
	if err := t.call(ctx, t.Operator, http.MethodGet, api.PathDeployment, nil, &d); err != nil {
		return "", err
	}
	mine, live := base64.RawURLEncoding.EncodeToString(t.Running.Binary[:]), 0
	for _, r := range d.Replicas {
		if !r.Live || r.Build == nil && r.Component != "" { // another's guard may say nothing
			continue
		}
		live++
		switch {
		case r.Build == nil:
			return "", fmt.Errorf("a process of the %s does not say what it runs", r.Kind)
		case r.Component == "" && r.Build.BinarySHA256 != mine:
			return "", fmt.Errorf("a process of the %s runs %s, and this audit is of %s", r.Kind, r.Build.BinarySHA256, mine)
		}
		if code := (fips.Module{Enabled: r.Build.FIPS, Build: r.Build.Module}).Refusal(); t.FIPS && code != "" {
			return "", fmt.Errorf("a process of the %s: %s", cmp.Or(r.Component, r.Kind), code)
		}
	}
	if live == 0 {
		return "", errors.New("no process says what it runs")
	}
	return fmt.Sprintf("%d processes; those of the authority and the scheduler run %s, FIPS required: %t", live, mine, t.FIPS), nil
}

// stolenPages opens pages of a browser by a cookie that nobody was given, and by nothing but the link.
func (t *tripwire) stolenPages(ctx context.Context) (string, error) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	cookie := "__Host-nightwarrant=" + base64.RawURLEncoding.EncodeToString(b[:])
	page := t.Authority + "/tasks/" + t.task
	for what, header := range map[string]string{"a link": "", "a cookie that was made up": cookie} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
		if err != nil {
			return "", err
		}
		if header != "" {
			r.Header.Set("Cookie", header)
		}
		answer, err := t.http.Do(r)
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(io.LimitReader(answer.Body, maxSeen))
		_ = answer.Body.Close() // read above
		if err != nil {
			return "", err
		}
		if answer.StatusCode == http.StatusOK || bytes.Contains(body, []byte("Self-audit")) {
			return "", fmt.Errorf("%s opened the page of a task", what)
		}
	}
	return "; a link, and a cookie that was made up: turned away", nil
}
