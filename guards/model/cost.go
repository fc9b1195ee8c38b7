package model

import (
	"errors"
	"math/big"
)

const (
	million     = 1_000_000
	maxPrice    = 1_000_000_000 // minor units of a million tokens
	maxReported = 100_000_000   // tokens of one call; what is more is no count
	maxOverhead = 1_000_000     // tokens
)

// Price is what a million tokens cost, in minor units of the currency, without
// any discount.
type Price struct {
	Input, Output int64
}

func (p Price) check() error {
	if p.Input < 0 || p.Output < 0 || p.Input > maxPrice || p.Output > maxPrice {
		return errors.New("a price is between 0 and 1,000,000,000 minor units for a million tokens")
	}
	return nil
}

// usage is how many tokens a call used.
type usage struct {
	input, output int64
}

// cost is in minor units, rounded up: what is charged is never less than what was used.
func (p Price) cost(u usage) int64 {
	sum := new(big.Int).Mul(big.NewInt(u.input), big.NewInt(p.Input))
	sum.Add(sum, new(big.Int).Mul(big.NewInt(u.output), big.NewInt(p.Output)))
	sum.Add(sum, big.NewInt(million-1))
	return sum.Div(sum, big.NewInt(million)).Int64()
}

// plausible tells a count that a call can have: no call is without input, and no count is less than nothing.
func (u usage) plausible() bool {
	return u.input >= 1 && u.output >= 0 && u.input <= maxReported && u.output <= maxReported
}
