package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/webhook"
)

// Webhook is the one receiver of a cluster's messages.
type Webhook struct {
	url    string
	secret webhook.Secret
	client *http.Client
	now    func() time.Time
}

// NewWebhook returns a receiver: https, or http on a loopback address. No
// redirect is followed, no proxy variable of the environment is read, and no
// connection outlives its message.
func NewWebhook(address string, secret webhook.Secret) (*Webhook, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("a webhook has an absolute https URL")
	}
	if secret.IsZero() {
		return nil, errors.New("a webhook has a secret")
	}
	dialer := &net.Dialer{Timeout: postWithin}
	if u.Scheme == "http" {
		dialer.Control = loopbackOnly
	}
	return &Webhook{address, secret, &http.Client{
		Timeout: postWithin,
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, time.Now}, nil
}

// loopbackOnly refuses to send in the clear to another machine, whatever a name resolves to.
func loopbackOnly(_, address string, _ syscall.RawConn) error {
	if to, err := netip.ParseAddrPort(address); err != nil || !to.Addr().Unmap().IsLoopback() {
		return errors.New("http is for a loopback address only")
	}
	return nil
}

// Post implements [Poster]. Nothing of an answer is read but its status. Errors
// do not name the URL, whose path may be known to few.
func (w *Webhook) Post(ctx context.Context, id string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("the webhook's URL cannot be used")
	}
	r.GetBody = nil // a message is sent once in an attempt
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "nightwarrant")
	w.secret.Sign(r.Header, id, w.now(), body)
	answer, err := w.client.Do(r)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if err != nil {
		return fmt.Errorf("the webhook cannot be reached: %w", err)
	}
	_ = answer.Body.Close() // nobody reads it
	return judged(answer.StatusCode)
}

// judged tells a refusal, which is about this message or about how it is sent,
// from a receiver that is not there.
func judged(status int) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return fmt.Errorf("the webhook is away: status %d", status)
	}
	return &Refused{status}
}
