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
	Origin      string // of the log, which is the name of its key
	Size        int64
	Root        tlog.Hash
	At          time.Time // by the database's clock, to the millisecond
	Incarnation int64     // of the database
	Epoch       int64     // of readiness
	Resumed     Resumption
}

// Resumption is an operator's recorded decision that the log goes on from fewer
// records than were signed, because a restored database has no more. The zero
// value is the log as it began. A resumed log has an origin of its own, so that
// no two checkpoints of one origin contradict each other.
type Resumption struct {
	Number   int64     // the incarnation that began with it; 0 for none
	From     int64     // records that it has in common with what was lost
	Lost     int64     // records of the longest checkpoint that was known and is given up
	LostRoot tlog.Hash // of that checkpoint
	LostOf   int64     // Number of the log that it was of
}

// Covers tells whether a checkpoint of an earlier log is given up, or shared, by the decision.
func (r Resumption) Covers(c Checkpoint) bool {
	switch of := c.Resumed.Number; {
	case c.Size == 0:
		return true
	case of == r.LostOf:
		return c.Size < r.Lost || c.Size == r.Lost && c.Root == r.LostRoot
	default:
		return of < r.LostOf
	}
}

// name is the origin line: the log's, and for a resumed one its number.
func (r Resumption) name(log string) string {
	if r.Number == 0 {
		return log
	}
	return fmt.Sprintf("%s/%d", log, r.Number)
}

const timeLayout = "2006-01-02T15:04:05.000Z"

// maxNote bounds a signed checkpoint with the signatures of some witnesses, in bytes.
const maxNote = 8 << 10

// Text is the checkpoint's body (C2SP tlog-checkpoint): origin, size and root,
// and a line for each of ours.
func (c Checkpoint) Text() string {
	text := fmt.Sprintf("%s\n%d\n%s\nat %s\nincarnation %d\nepoch %d\n", c.Resumed.name(c.Origin), c.Size, c.Root, c.At.UTC().Format(timeLayout), c.Incarnation, c.Epoch)
	if r := c.Resumed; r.Number != 0 {
		text += fmt.Sprintf("resumed %d lost %d %s of %d\n", r.From, r.Lost, r.LostRoot, r.LostOf)
	}
	return text
}

var errCheckpoint = errors.New("not a checkpoint of this log")

// parseCheckpoint takes exactly what Text gives for a log.
func parseCheckpoint(text, log string) (c Checkpoint, err error) {
	lines := strings.Split(text, "\n")
	if len(text) > maxNote || len(lines) < 7 {
		return Checkpoint{}, errCheckpoint
	}
	c.Origin = log
	at, _ := strings.CutPrefix(lines[3], "at ")
	incarnation, _ := strings.CutPrefix(lines[4], "incarnation ")
	epoch, _ := strings.CutPrefix(lines[5], "epoch ")
	var errs [5]error
	c.Size, errs[0] = strconv.ParseInt(lines[1], 10, 64)
	c.Root, errs[1] = tlog.ParseHash(lines[2])
	c.At, errs[2] = time.Parse(timeLayout, at)
	c.Incarnation, errs[3] = strconv.ParseInt(incarnation, 10, 64)
	c.Epoch, errs[4] = strconv.ParseInt(epoch, 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return Checkpoint{}, errCheckpoint
	}
	if lines[0] != log {
		if c.Resumed, err = parseResumption(strings.TrimPrefix(lines[0], log+"/"), lines[6]); err != nil {
			return Checkpoint{}, err
		}
	}
	return c, c.exactly(text)
}

func parseResumption(number, line string) (r Resumption, err error) {
	var root string
	if r.Number, err = strconv.ParseInt(number, 10, 64); err != nil || r.Number <= 0 {
		return r, errCheckpoint
	}
	if _, err := fmt.Sscanf(line, "resumed %d lost %d %s of %d", &r.From, &r.Lost, &root, &r.LostOf); err != nil {
		return r, errCheckpoint
	}
	if r.LostRoot, err = tlog.ParseHash(root); err != nil || r.From < 0 || r.Lost <= r.From || r.LostOf < 0 || r.LostOf >= r.Number {
		return r, errCheckpoint
	}
	return r, nil
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
	return append([]byte(c.Text()+"\n"), SignatureLine(c.Origin, keyHash, signature)...)
}

// SignatureLine is a line of a signed note.
func SignatureLine(name string, keyHash uint32, signature []byte) string {
	line := append(binary.BigEndian.AppendUint32(nil, keyHash), signature...)
	return fmt.Sprintf("— %s %s\n", name, base64.StdEncoding.EncodeToString(line))
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
	return parseCheckpoint(n.Text, key.Name())
}
