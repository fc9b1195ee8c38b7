package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/directory/scimserver"
)

// Directory is the file of `nightwarrant dev-directory`: who is a member. Those
// who were let go are members again after a restart.
type Directory struct {
	Listen    string      `yaml:"listen"`     // a loopback address with a port that is not 0
	TokenFile string      `yaml:"token_file"` // its bearer token
	Members   []DirMember `yaml:"members"`
	token     config.Secret
}

// DirMember is one member, by the identity provider's subject.
type DirMember struct {
	Subject string `yaml:"subject"`
	Email   string `yaml:"email"`
}

// URL is the directory's base URL.
func (d *Directory) URL() string { return "http://" + d.Listen }

// Check implements config.Document.
func (d *Directory) Check(func(string) string) (err error) {
	host, port, err := net.SplitHostPort(d.Listen)
	if err != nil || !config.Loopback(host) || port == "0" {
		return config.Wrong("listen", "must be a loopback address with a port, such as 127.0.0.1:9400")
	}
	if d.token, err = config.ReadSecret(d.TokenFile); err != nil {
		return config.Wrong("token_file", "%s", err)
	}
	seen := map[string]bool{}
	for i, m := range d.Members {
		if m.Subject == "" || seen[m.Subject] {
			return config.Wrong(fmt.Sprintf("members[%d]", i), "needs a subject of its own")
		}
		seen[m.Subject] = true
	}
	return nil
}

// RunDirectory serves the directory until ctx ends.
func RunDirectory(ctx context.Context, d *Directory, log *slog.Logger) error {
	members := scimserver.New(d.token.Reveal())
	for _, m := range d.Members {
		members.Add(m.Subject, m.Email)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.Listen)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	log.LogAttrs(ctx, slog.LevelInfo, "answering", slog.String("directory", d.URL()), slog.Int("members", len(d.Members)))
	server := &http.Server{Handler: members, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// SetActive lets a member of the running directory go, or takes one back, as
// whoever keeps the people would: over SCIM.
func (d *Directory) SetActive(ctx context.Context, subject string, active bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	filter, err := json.Marshal(subject)
	if err != nil {
		return err
	}
	var found struct{ Resources []struct{ ID string } }
	if err := d.call(ctx, http.MethodGet, "/Users?filter="+url.QueryEscape("externalId eq "+string(filter)), nil, &found); err != nil {
		return err
	}
	if len(found.Resources) != 1 {
		return fmt.Errorf("the directory has %d members of that subject", len(found.Resources))
	}
	patch := fmt.Sprintf(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[{"op":"replace","path":"active","value":%t}]}`, active)
	return d.call(ctx, http.MethodPatch, "/Users/"+url.PathEscape(found.Resources[0].ID), []byte(patch), nil)
}

func (d *Directory) call(ctx context.Context, method, path string, body []byte, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, d.URL()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+d.token.Reveal())
	r.Header.Set("Content-Type", "application/scim+json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // read below, or of no interest
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the directory answered with status %d", answer.StatusCode)
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(text, into)
}
