// Package witness is the audit log's witness over HTTP (C2SP tlog-witness): a
// server that signs a checkpoint only when it goes on from the last one that it
// signed, and the client of one, an anchor of the log.
//
// A witness knows nothing of records. Run by somebody else than who owns the
// database and the log's key, it makes a second history impossible to hide.
package witness

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
)

const (
	maxHashes  = 63       // of a proof
	maxRequest = 16 << 10 // a proof and a signed checkpoint, in bytes
	maxKept    = 4096     // checkpoints in the state: one for each log, and for each time that one was resumed
	sizeType   = "text/x.tlog.size"
)

// Config configures a witness.
type Config struct {
	Key  *audit.Cosigner
	Logs []note.Verifier // whose checkpoints it signs
	File string          // its state, in the form of an anchor
	Log  *slog.Logger
}

// Server is a witness. It is an http.Handler.
type Server struct {
	Config
	http.Handler
	mu   sync.Mutex
	kept []known // one for each origin
}

type known struct {
	audit.Checkpoint
	signed []byte // by the log and by us
}

// NewServer returns a witness that goes on from its file. A file that is not
// there is a witness that has seen nothing.
func NewServer(c Config) (*Server, error) {
	s := &Server{Config: c}
	text, err := os.ReadFile(c.File)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	all, err := audit.ReadAnchors(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	for _, signed := range all {
		log := s.logOf(signed)
		if log == nil {
			return nil, fmt.Errorf("%s: it has a checkpoint of a log that is not watched", c.File)
		}
		k, err := audit.OpenCheckpoint(signed, log)
		if err == nil {
			_, err = c.Key.Of(signed)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.File, err)
		}
		s.kept = append(s.kept, known{k, signed})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", s.add)
	mux.HandleFunc("GET /checkpoints", s.show)
	s.Handler = mux
	return s, nil
}

// logOf is whose checkpoint it says that it is.
func (s *Server) logOf(signed []byte) note.Verifier {
	origin, _, _ := strings.Cut(string(signed), "\n")
	for _, l := range s.Logs {
		if origin == l.Name() || strings.HasPrefix(origin, l.Name()+"/") {
			return l
		}
	}
	return nil
}

// refusal is an answer that is no cosignature.
type refusal struct {
	status int
	why    string
	size   int64 // that is known, with a conflict
}

func (r *refusal) Error() string { return r.why }

// add takes a checkpoint that goes on from the last one, and answers with what was made of it.
func (s *Server) add(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	line, err := s.witness(body)
	var no *refusal
	switch {
	case errors.As(err, &no) && no.status == http.StatusConflict:
		w.Header().Set("Content-Type", sizeType)
		w.WriteHeader(no.status)
		_, _ = fmt.Fprintf(w, "%d\n", no.size)
	case errors.As(err, &no):
		http.Error(w, no.why, no.status)
	case err != nil:
		http.Error(w, "the checkpoint could not be kept", http.StatusInternalServerError)
	default:
		_, _ = io.WriteString(w, line)
		return
	}
	s.Log.LogAttrs(r.Context(), slog.LevelWarn, "a checkpoint was not signed", slog.String("error", err.Error()))
}

func (s *Server) witness(body []byte) (line string, err error) {
	old, proof, signed, ok := parse(body)
	if !ok {
		return "", &refusal{status: http.StatusBadRequest, why: "not a request of the witness protocol"}
	}
	log := s.logOf(signed)
	if log == nil {
		return "", &refusal{status: http.StatusNotFound, why: "this log is not watched"}
	}
	c, err := audit.OpenCheckpoint(signed, log)
	if err != nil {
		return "", &refusal{status: http.StatusForbidden, why: err.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.judge(c, old, proof); err != nil {
		return "", err
	}
	return s.sign(c, signed, log)
}

// judge says why a checkpoint does not go on from what is known.
func (s *Server) judge(c audit.Checkpoint, old int64, proof tlog.TreeProof) error {
	if old > c.Size {
		return &refusal{status: http.StatusBadRequest, why: "the old size is larger than the checkpoint's"}
	}
	var last audit.Checkpoint // of no record, as long as nothing is known
	for _, k := range s.kept {
		switch {
		case k.Origin != c.Origin:
		case k.Resumed.Number == c.Resumed.Number:
			last = k.Checkpoint
		case k.Resumed.Number > c.Resumed.Number:
			return &refusal{status: http.StatusUnprocessableEntity, why: "the log was resumed since"}
		case !c.Resumed.Covers(k.Checkpoint):
			return &refusal{status: http.StatusUnprocessableEntity, why: fmt.Sprintf("the log was resumed from less than it says: %d records are known", k.Size)}
		}
	}
	switch {
	case old != last.Size, last.Size > 0 && last.Size == c.Size && last.Root != c.Root:
		return &refusal{http.StatusConflict, fmt.Sprintf("%d records are known", last.Size), last.Size}
	case last.Origin != "" && last.Resumed != c.Resumed,
		old == 0 && len(proof) > 0,
		old > 0 && tlog.CheckTree(proof, c.Size, c.Root, old, last.Root) != nil:
		return &refusal{status: http.StatusUnprocessableEntity, why: "the checkpoint is not shown to go on from the one that is known"}
	}
	return nil
}

// sign cosigns, and answers only when that lies on the disk.
func (s *Server) sign(c audit.Checkpoint, signed []byte, log note.Verifier) (line string, err error) {
	n, err := note.Open(signed, note.VerifierList(log))
	if err != nil {
		return "", err
	}
	n.UnverifiedSigs = nil // nobody's whom we know
	if signed, err = note.Sign(n, s.Key); err != nil {
		return "", err
	}
	next := []known{{c, signed}}
	for _, k := range s.kept {
		if k.Origin != c.Origin || k.Resumed.Number != c.Resumed.Number {
			next = append(next, k)
		}
	}
	if len(next) > maxKept {
		return "", &refusal{status: http.StatusInsufficientStorage, why: "too many logs are known"}
	}
	if err := keep(s.File, next); err != nil {
		return "", err
	}
	s.kept = next
	made, err := s.Key.Of(signed)
	if err != nil {
		return "", err
	}
	return audit.SignatureLine(s.Key.Name(), s.Key.KeyHash(), made[4:]), nil
}

// show gives the newest checkpoint of each log, in the form of an anchor.
func (s *Server) show(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	kept := s.kept
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/jsonl")
	for _, k := range kept {
		_, _ = w.Write(audit.AnchorLine(k.signed))
	}
}

// keep replaces the state as a whole.
func keep(file string, all []known) (err error) {
	out, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	for _, k := range all {
		if _, err := out.Write(audit.AnchorLine(k.signed)); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	if err := errors.Join(out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// parse reads a request: the old size, the proof's hashes, and the checkpoint.
func parse(body []byte) (old int64, proof tlog.TreeProof, signed []byte, ok bool) {
	head, signed, ok := bytes.Cut(body, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	number, isOld := strings.CutPrefix(lines[0], "old ")
	old, err := strconv.ParseInt(number, 10, 64)
	if !ok || !isOld || err != nil || old < 0 || strconv.FormatInt(old, 10) != number || len(lines) > 1+maxHashes {
		return 0, nil, nil, false
	}
	for _, l := range lines[1:] {
		h, err := base64.StdEncoding.Strict().DecodeString(l)
		if err != nil || len(h) != tlog.HashSize {
			return 0, nil, nil, false
		}
		proof = append(proof, tlog.Hash(h))
	}
	return old, proof, signed, true
}
