package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
)

const (
	attempts  = 3 // another replica may have been there in between
	maxAnswer = 8 << 10
)

// Store is what a client has of the log.
type Store interface {
	// Consistency proves that the log at size begins with what it was at old.
	Consistency(ctx context.Context, old, size int64) (tlog.TreeProof, error)
	// Cosigned keeps what a witness has made of a checkpoint.
	Cosigned(ctx context.Context, c audit.Checkpoint, made audit.Cosignature) error
}

// Client has a witness sign the log's checkpoints. It is an anchor.
type Client struct {
	url   string
	key   audit.Witness
	log   note.Verifier
	store Store
	http  *http.Client
	mu    sync.Mutex
	size  int64 // that the witness knows, as far as we do
}

// NewClient returns the client of the witness at a URL (its submission prefix), which signs with key.
func NewClient(url string, key audit.Witness, log note.Verifier, store Store, transport http.RoundTripper) *Client {
	return &Client{url: strings.TrimSuffix(url, "/") + "/add-checkpoint", key: key, log: log, store: store,
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Name is the witness' own.
func (c *Client) Name() string { return "the witness " + c.key.Name() }

// Newest shows the witness the database's newest checkpoint, and returns that when it goes on from what the witness has seen.
func (c *Client) Newest(ctx context.Context, shown []byte) ([]byte, error) {
	return shown, c.Anchor(ctx, shown)
}

// Anchor has the witness sign a checkpoint, and keeps the signature.
func (c *Client) Anchor(ctx context.Context, signed []byte) error {
	point, err := audit.OpenCheckpoint(signed, c.log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for range attempts {
		var made audit.Cosignature
		var knows int64
		if made, knows, err = c.add(ctx, min(c.size, point.Size), point.Size, signed); err == nil {
			c.size = point.Size
			return c.store.Cosigned(ctx, point, made)
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		if knows > point.Size || knows == c.size {
			return fmt.Errorf("%w: the witness has seen %d records", audit.ErrDiffers, knows)
		}
		c.size = knows
	}
	return err
}

var errConflict = errors.New("the witness has seen another size")

// add sends one request. With errConflict knows is what the witness has seen.
func (c *Client) add(ctx context.Context, old, size int64, signed []byte) (made audit.Cosignature, knows int64, err error) {
	body := fmt.Sprintf("old %d\n", old)
	if 0 < old && old < size {
		proof, err := c.store.Consistency(ctx, old, size)
		if err != nil {
			return nil, 0, err
		}
		for _, h := range proof {
			body += h.String() + "\n"
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body+"\n"+string(signed)))
	if err != nil {
		return nil, 0, err
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return nil, 0, err
	}
	return c.answered(answer, string(text), signed)
}

func (c *Client) answered(answer *http.Response, text string, signed []byte) (made audit.Cosignature, knows int64, err error) {
	switch {
	case answer.StatusCode == http.StatusOK:
		made, err = c.key.Of(append(append([]byte{}, signed...), text...))
		if err != nil {
			err = errors.New("the witness' answer has no signature of its key on this checkpoint")
		}
		return made, 0, err
	case answer.StatusCode == http.StatusConflict && answer.Header.Get("Content-Type") == sizeType:
		if knows, err = strconv.ParseInt(strings.TrimSuffix(text, "\n"), 10, 64); err == nil && knows >= 0 {
			return nil, knows, errConflict
		}
	case answer.StatusCode == http.StatusUnprocessableEntity || answer.StatusCode == http.StatusConflict:
		return nil, 0, fmt.Errorf("%w: the witness has seen something that it does not go on from", audit.ErrDiffers)
	}
	return nil, 0, fmt.Errorf("the witness answered %d", answer.StatusCode)
}
