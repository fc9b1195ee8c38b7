package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/note"
)

// ErrDiffers says that the database holds another log than the one that was signed.
var ErrDiffers = errors.New("the audit log in the database is not the one that was signed")

// MaxAnchorLine bounds a line of what an anchor or a witness keeps, in bytes.
const MaxAnchorLine = 16 << 10

type anchored struct {
	Checkpoint string `json:"checkpoint"`
}

// AnchorLine is a signed checkpoint as anchors and witnesses keep it: a line of JSON.
func AnchorLine(signed []byte) []byte {
	line, _ := json.Marshal(anchored{string(signed)}) // a string always has one
	return append(line, '\n')
}

var errAnchors = errors.New("not what an anchor has kept")

// ReadAnchors reads the checkpoints of an anchor or a witness. Lines that were
// cut off by a crash are left out.
func ReadAnchors(r io.Reader) (signed [][]byte, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxAnchorLine)
	for lines.Scan() {
		var l anchored
		switch err := json.Unmarshal(lines.Bytes(), &l); {
		case err == nil && l.Checkpoint != "":
			signed = append(signed, []byte(l.Checkpoint))
		case bytes.HasSuffix(lines.Bytes(), []byte("}")) || !bytes.HasPrefix(lines.Bytes(), []byte("{")):
			return nil, errAnchors
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errAnchors, err)
	}
	return signed, nil
}

// Longest is the longest of an anchor's checkpoints, of the log as it was last resumed.
func Longest(anchors [][]byte, key note.Verifier) (longest Checkpoint, err error) {
	for i, signed := range anchors {
		c, err := OpenCheckpoint(signed, key)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("anchor %d: %w", i+1, err)
		}
		if n, m := c.Resumed.Number, longest.Resumed.Number; c.Size > 0 && (n > m || n == m && c.Size > longest.Size) {
			longest = c
		}
	}
	if longest.Size == 0 {
		return Checkpoint{}, errAnchors
	}
	return longest, nil
}
