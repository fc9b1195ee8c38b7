// Package freeport chooses addresses for processes that must be told where to
// listen before they do.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The kernel takes the ports of outgoing connections from 32768 up (Linux; macOS
// from 49152). Whoever binds port 0 and lets go of it gets one of those, which a
// connection may have taken before the process listens. Below, only another that
// chooses at random can.
const first, end = 20_000, 32_768

const tries = 100

// Address is one of 127.0.0.1 that nobody listens at.
func Address() (string, error) {
	for range tries {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(end-first))) //nolint:gosec // a port is no secret
		l, err := net.Listen("tcp", address)                                               //nolint:noctx // it binds and closes
		if err != nil {
			continue
		}
		return address, l.Close()
	}
	return "", errors.New("freeport: no port of the loopback address is free")
}

// Port is that of an Address.
func Port() (int, error) {
	address, err := Address()
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// BlockSize is how many ports a block has.
const BlockSize = 32

// blocks lie below all that Address chooses from, so that nobody else's process listens in one.
const blocks = (first - 10_000) / BlockSize

// Block is the first of BlockSize ports of the loopback address at none of which anybody listens.
func Block() (int, error) {
	for range tries {
		from := 10_000 + BlockSize*rand.IntN(blocks) //nolint:gosec // a port is no secret
		if free(from) {
			return from, nil
		}
	}
	return 0, errors.New("freeport: no block of ports of the loopback address is free")
}

func free(from int) bool {
	for port := from; port < from+BlockSize; port++ {
		if !Free(port) {
			return false
		}
	}
	return true
}

// Free tells whether nobody listens at a port of 127.0.0.1.
func Free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // it binds and closes
	return err == nil && l.Close() == nil
}
