package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Log is what somebody finds who has the exported audit log, its key and what an anchor kept.
type Log struct {
	Records   int64 `json:"records"`
	Covered   int64 `json:"covered"`
	Anchors   int   `json:"anchors"`
	Witnessed []struct {
		Records int64 `json:"records"`
	} `json:"witnessed"`
	Findings []struct {
		Tamper string `json:"tamper"`
	} `json:"findings"`
}

func (l Log) sound() bool {
	return l.Records > 0 && l.Covered > 0 && l.Anchors > 0 && len(l.Witnessed) == 1 && len(l.Findings) == 0
}

// anchors is the file that remembers the audit log's checkpoints.
func (s *Stack) anchors() string { return s.path("anchors") }

// makeWitness starts a witness, with a key of its own that is made once.
func (s *Stack) makeWitness(ctx context.Context) error {
	secret, public := s.path("keys", "witness"), s.path("keys", "witness.pub")
	if _, err := os.Stat(public); errors.Is(err, os.ErrNotExist) {
		out, err := s.run(ctx, "audit", "witness-key", "--name", "witness.demo/audit", "--key-file", secret)
		if err == nil {
			err = os.WriteFile(public, []byte(out), 0o600)
		}
		if err != nil {
			return err
		}
	}
	text, err := os.ReadFile(public)
	if err != nil {
		return err
	}
	s.witness = strings.TrimSpace(string(text))
	key, err := s.run(ctx, "audit", "key", "--database-url", s.roleURL("operator", s.database()))
	if err != nil {
		return err
	}
	_, err = s.start("witness", "audit", "witness", "--listen", fmt.Sprintf("127.0.0.1:%d", s.ports.Witness), "--key-file", secret, "--state", s.path("witnessed"), "--log-key", strings.TrimSpace(key))
	return err
}

// audited exports the audit log and has it checked, once all of it is signed.
func (t teller) audited(ctx context.Context) (l Log, err error) {
	err = until(ctx, 20*time.Second, "a checkpoint over every audit row", func() (whole bool, err error) {
		err = t.one(ctx, `SELECT coalesce((SELECT max(size) FROM nw.audit_checkpoints), 0) >= (SELECT count(*) FROM nw.audit WHERE at < now() - interval '2 seconds')`, nil, &whole)
		return whole, err
	})
	if err != nil {
		return l, err
	}
	key, err := t.run(ctx, "audit", "key", "--database-url-file", t.path("config", "operator.url"))
	if err != nil {
		return l, err
	}
	// What others have is taken first: later they know more than an export that was made before.
	for _, from := range []string{t.anchors(), t.path("witnessed")} {
		kept, err := os.ReadFile(from)
		if err != nil {
			return l, err
		}
		if err := os.WriteFile(from+".taken", kept, 0o600); err != nil { //nolint:gosec // in our own directory
			return l, err
		}
	}
	if _, err := t.run(ctx, "audit", "export", "--out", t.path("audit.jsonl"), "--database-url-file", t.path("config", "operator.url")); err != nil {
		return l, err
	}
	out, err := t.run(ctx, "audit", "verify", t.path("audit.jsonl"), "--json", "--key", strings.TrimSpace(key), "--anchors", t.anchors()+".taken",
		"--anchors", t.path("witnessed.taken"), "--witness-key", t.witness)
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		return l, fmt.Errorf("the report on the audit log: %w", err)
	}
	t.say("The audit log, exported: %d records, %d of them under a signed checkpoint, %d checkpoints anchored, the last signed by a witness; nothing was changed.", l.Records, l.Covered, l.Anchors)
	return l, nil
}
