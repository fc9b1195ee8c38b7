package audit

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint is what the log's key signs: how long the log is, its root, and
// the state of admission at that moment.
type Checkpoint struct {
	Origin      string // of the log; also the name of its key
	Size        int64
	Root        tlog.Hash
	At          time.Time // by the database's clock, to the millisecond
	Incarnation int64     // of the database
	Epoch       int64     // of readiness
}

const timeLayout = "2006-01-02T15:04:05.000Z"

// maxNote bounds a signed checkpoint with the signatures of some witnesses, in bytes.
const maxNote = 8 << 10

// Text is the checkpoint's body (C2SP tlog-checkpoint): origin, size and root,
// and a line for each of ours.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\nat %s\nincarnation %d\nepoch %d\n", c.Origin, c.Size, c.Root, c.At.UTC().Format(timeLayout), c.Incarnation, c.Epoch)
}

var errCheckpoint = errors.New("not a checkpoint of this log")

// parseCheckpoint takes exactly what Text gives.
func parseCheckpoint(text string) (c Checkpoint, err error) {
	lines := strings.Split(text, "\n")
	if len(text) > maxNote || len(lines) != 7 {
		return Checkpoint{}, errCheckpoint
	}
	c.Origin = lines[0]
	at, okAt := strings.CutPrefix(lines[3], "at ")
	incarnation, okIncarnation := strings.CutPrefix(lines[4], "incarnation ")
	epoch, okEpoch := strings.CutPrefix(lines[5], "epoch ")
	root, errRoot := tlog.ParseHash(lines[2])
	when, errAt := time.Parse(timeLayout, at)
	if !okAt || !okIncarnation || !okEpoch || errRoot != nil || errAt != nil {
		return Checkpoint{}, errCheckpoint
	}
	c.Root, c.At = root, when
	var errs [3]error
	c.Size, errs[0] = strconv.ParseInt(lines[1], 10, 64)
	c.Incarnation, errs[1] = strconv.ParseInt(incarnation, 10, 64)
	c.Epoch, errs[2] = strconv.ParseInt(epoch, 10, 64)
	if errors.Join(errs[:]...) != nil {
		return Checkpoint{}, errCheckpoint
	}
	return c, c.exactly(text)
}

// exactly refuses what has another way of being written: a sign is one way, and a leading zero.
func (c Checkpoint) exactly(text string) error {
	if c.Size < 0 || c.Text() != text {
		return errCheckpoint
	}
	return nil
}

// Sign returns the signed checkpoint (C2SP signed-note).
func Sign(c Checkpoint, key note.Signer) ([]byte, error) {
	if key.Name() != c.Origin {
		return nil, errCheckpoint
	}
	signature, err := key.Sign([]byte(c.Text()))
	if err != nil {
		return nil, err
	}
	return c.Signed(key.KeyHash(), signature), nil
}

// Signed is the signed checkpoint, of what a key has made of its text.
func (c Checkpoint) Signed(keyHash uint32, signature []byte) []byte {
	line := append(binary.BigEndian.AppendUint32(nil, keyHash), signature...)
	return fmt.Appendf(nil, "%s\n— %s %s\n", c.Text(), c.Origin, base64.StdEncoding.EncodeToString(line))
}

// OpenCheckpoint returns what a signed checkpoint says, once the log's key has
// been found to have signed it.
func OpenCheckpoint(signed []byte, key note.Verifier) (Checkpoint, error) {
	if len(signed) > maxNote {
		return Checkpoint{}, errCheckpoint
	}
	n, err := note.Open(signed, note.VerifierList(key))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", errCheckpoint, err)
	}
	c, err := parseCheckpoint(n.Text)
	if err == nil && c.Origin != key.Name() {
		err = errCheckpoint
	}
	return c, err
}
