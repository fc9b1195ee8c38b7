package dev

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
)

// Common is what both issuers have. The issuer's URL is its address under http.
type Common struct {
	Listen    string          `yaml:"listen"`    // a loopback address with a port that is not 0
	Dir       string          `yaml:"dir"`       // keeps the key; empty means a new one at each start
	Algorithm string          `yaml:"algorithm"` // ES256 unless RS256
	Audience  string          `yaml:"audience"`  // of every token
	Lifetime  config.Duration `yaml:"lifetime"`  // of every token; 10m when absent
}

// URL is the issuer.
func (c *Common) URL() string { return "http://" + c.Listen }

func (c *Common) check() error {
	host, port, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil || !config.Loopback(host) || port == "0":
		return config.Wrong("listen", "must be a loopback address with a port, such as 127.0.0.1:9400")
	case c.Audience == "":
		return config.Wrong("audience", "is missing")
	}
	if c.Algorithm == "" {
		c.Algorithm = "ES256"
	}
	if c.Lifetime == 0 {
		c.Lifetime = config.Duration(10 * time.Minute)
	}
	if c.Algorithm != "ES256" && c.Algorithm != "RS256" {
		return config.Wrong("algorithm", "must be ES256 or RS256")
	}
	if d := c.Lifetime.Std(); d < 5*time.Second || d > 12*time.Hour {
		return config.Wrong("lifetime", "must be between 5s and 12h")
	}
	return nil
}

// Workloads is the file of `nightwarrant dev-issuer`.
type Workloads struct {
	Common
	Accounts []Account `yaml:"accounts"`
}

// Account is one pod of a Kubernetes service account, and where its token goes.
type Account struct {
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`
	Pod       string `yaml:"pod"` // the name with -0 when absent
	File      string `yaml:"file"`
}

// Check implements config.Document.
func (w *Workloads) Check(func(string) string) error {
	if err := w.check(); err != nil {
		return err
	}
	if len(w.Accounts) == 0 {
		return config.Wrong("accounts", "is missing")
	}
	for i := range w.Accounts {
		a := &w.Accounts[i]
		if a.Namespace == "" || a.Name == "" || a.File == "" {
			return config.Wrong(fmt.Sprintf("accounts[%d]", i), "needs a namespace, a name and a file")
		}
		if a.Pod == "" {
			a.Pod = a.Name + "-0"
		}
	}
	return distinct(w.projections())
}

func (w *Workloads) projections() []projection {
	out := make([]projection, len(w.Accounts))
	for i, a := range w.Accounts {
		out[i] = projection{a.File, a.claims(w.Audience)}
	}
	return out
}

// claims are those of a projected service account token (Kubernetes, "Managing Service Accounts").
func (a Account) claims(audience string) map[string]any {
	account := a.Namespace + ":" + a.Name
	return map[string]any{
		"sub": "system:serviceaccount:" + account,
		"aud": []string{audience},
		"kubernetes.io": map[string]any{
			"namespace":      a.Namespace,
			"serviceaccount": map[string]any{"name": a.Name, "uid": uid("serviceaccount:" + account)},
			"pod":            map[string]any{"name": a.Pod, "uid": uid("pod:" + account + ":" + a.Pod)},
		},
	}
}

// uid is stable: a pod is the same after its issuer was restarted.
func uid(of string) string {
	d := sha256.Sum256([]byte(of))
	d[6], d[8] = d[6]&0x0f|0x80, d[8]&0x3f|0x80 // version 8 (RFC 9562 §5.8)
	return fmt.Sprintf("%x-%x-%x-%x-%x", d[0:4], d[4:6], d[6:8], d[8:10], d[10:16])
}

// People is the file of `nightwarrant dev-idp`.
type People struct {
	Common
	People  []Person `yaml:"people"`
	Clients []Client `yaml:"clients"` // at which people sign in with a browser; none when absent
}

// Client is a public client of the identity provider, with PKCE alone.
type Client struct {
	ID          string `yaml:"id"`
	RedirectURI string `yaml:"redirect_uri"` // exact
}

// Person is one envelope that is kept fresh in a file. A person with several
// clients has several: each envelope belongs to the first key that uses it.
type Person struct {
	Subject string `yaml:"subject"` // pairwise, never an address
	Email   string `yaml:"email"`
	File    string `yaml:"file"`
}

// Check implements config.Document.
func (p *People) Check(func(string) string) error {
	if err := p.check(); err != nil {
		return err
	}
	if len(p.People) == 0 {
		return config.Wrong("people", "is missing")
	}
	for i, one := range p.People {
		if one.Subject == "" || one.File == "" {
			return config.Wrong(fmt.Sprintf("people[%d]", i), "needs a subject and a file")
		}
	}
	for i, c := range p.Clients {
		if to, err := url.Parse(c.RedirectURI); c.ID == "" || err != nil || !to.IsAbs() || to.Host == "" || to.RawQuery != "" || to.Fragment != "" {
			return config.Wrong(fmt.Sprintf("clients[%d]", i), "needs an id and a complete redirect_uri without a query")
		}
	}
	return distinct(p.projections())
}

func (p *People) projections() []projection {
	out := make([]projection, len(p.People))
	for i, one := range p.People {
		out[i] = projection{one.File, one.claims(p.Audience)}
	}
	return out
}

func (p Person) claims(audience string) map[string]any {
	claims := map[string]any{"sub": p.Subject, "aud": audience}
	if p.Email != "" {
		claims["email"] = p.Email
	}
	return claims
}

func distinct(all []projection) error {
	seen := map[string]bool{}
	for _, p := range all {
		if seen[p.file] {
			return &config.Error{Sentence: fmt.Sprintf("two tokens would be written to %.100q", p.file)}
		}
		seen[p.file] = true
	}
	return nil
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
