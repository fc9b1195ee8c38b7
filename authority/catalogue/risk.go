package catalogue

import "fmt"

// Risk says how much an action may change, lowest first. It is stored as a
// smallint from 0 to 3 and written as a word everywhere else. As a dial it
// means the highest risk that passes without its owner's decision.
type Risk int16

// The risks. None is a dial setting only; no action has it.
const (
	None Risk = iota
	Read
	Low
	High
)

var riskWords = [...]string{"none", "read", "low", "high"}

// Valid reports whether r is one of the four risks.
func (r Risk) Valid() bool { return r >= None && r <= High }

// String returns the word of r, or "high" for a value that is none of the
// four: what is not known counts as high.
func (r Risk) String() string {
	if !r.Valid() {
		return riskWords[High]
	}
	return riskWords[r]
}

// ParseRisk reads one of the words none, read, low and high, exactly.
func ParseRisk(word string) (Risk, error) {
	for i, w := range riskWords {
		if w == word {
			return Risk(i), nil
		}
	}
	return High, fmt.Errorf("catalogue: a risk is none, read, low or high, not %.16q", word)
}

// MarshalText writes the word of r; a value that is none of the four is an
// error.
func (r Risk) MarshalText() ([]byte, error) {
	if !r.Valid() {
		return nil, fmt.Errorf("catalogue: %d is not a risk", int16(r))
	}
	return []byte(riskWords[r]), nil
}

// UnmarshalText reads the word of a risk; see [ParseRisk].
func (r *Risk) UnmarshalText(text []byte) error {
	parsed, err := ParseRisk(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}
