package keyhost_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

func observation() keyhost.Observation {
	return keyhost.Observation{
		Library: keyhost.Library{Cryptoki: "2.40", Manufacturer: "m", Description: "d", Version: "1.2", File: "lib.so", FileSHA256: keyhost.Digest{1, 2}, EntryPoint: "C_GetFunctionList"},
		Token:   keyhost.Token{Manufacturer: "m", Model: "n", Serial: "1", Label: "one", HardwareVersion: "1.0", FirmwareVersion: "2.0", Flags: 0x42d},
		Keys: []keyhost.Object{{Purpose: keyhost.PairSigning, Class: keyhost.ClassPrivate, ID: []byte{1}, Label: "k", Mechanisms: []string{"0x1041"},
			Attributes: map[string]string{"LOCAL": "true"}, ECParams: []byte{6}, Point: []byte{}}},
		At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func TestAnObservationArrivesWhole(t *testing.T) {
	t.Parallel()
	k := newToken(t)
	o := observation()
	k.shows.Store(&o)
	got, err := serve(t, k).client(t).Observe(t.Context())
	require.NoError(t, err)
	assert.Equal(t, o, got)
	text, err := json.Marshal(o)
	require.NoError(t, err)
	read, err := keyhost.ParseObservation(text)
	require.NoError(t, err)
	assert.Equal(t, o, read)
}

// What a library says of itself is somebody else's text.
func TestWhatNoTokenSaysIsNotShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*keyhost.Observation)
		code   keyhost.Code
	}{
		"a control character": {func(o *keyhost.Observation) { o.Token.Label = "one\x1b[2J" }, keyhost.TokenIdentityMismatch},
		"no UTF-8":            {func(o *keyhost.Observation) { o.Token.Model = "\xff" }, keyhost.TokenUnavailable},
		"a long text":         {func(o *keyhost.Observation) { o.Library.Description = strings.Repeat("x", 65) }, keyhost.TokenIdentityMismatch},
		"a long name":         {func(o *keyhost.Observation) { o.Library.File = strings.Repeat("x", 256) }, keyhost.TokenIdentityMismatch},
		"too many objects":    {func(o *keyhost.Observation) { o.Keys = make([]keyhost.Object, keyhost.MaxObjects+1) }, keyhost.KeyAmbiguous},
		"an object's label":   {func(o *keyhost.Observation) { o.Keys[0].Label = "a\nb" }, keyhost.KeyAmbiguous},
		"an object's id":      {func(o *keyhost.Observation) { o.Keys[0].ID = make([]byte, 256) }, keyhost.KeyAmbiguous},
		"an attribute":        {func(o *keyhost.Observation) { o.Keys[0].Attributes["LOCAL"] = "\u202e" }, keyhost.KeyAmbiguous},
		"a mechanism":         {func(o *keyhost.Observation) { o.Keys[0].Mechanisms[0] = strings.Repeat("x", 65) }, keyhost.KeyAmbiguous},
	} {
		k := newToken(t)
		o := observation()
		c.change(&o)
		k.shows.Store(&o)
		_, err := serve(t, k).client(t).Observe(t.Context())
		assert.Equal(t, c.code, codeOf(t, err), name)
		if text, err := json.Marshal(o); assert.NoError(t, err) {
			_, err = keyhost.ParseObservation(text)
			assert.Error(t, err, name)
		}
	}
}

func TestAnObservationHasOneSpelling(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(observation())
	require.NoError(t, err)
	for name, other := range map[string][]byte{
		"nothing":          nil,
		"a blank":          append(bytes.Clone(text), ' '),
		"one more member":  bytes.Replace(text, []byte(`{"library"`), []byte(`{"more":1,"library"`), 1),
		"a member twice":   bytes.Replace(text, []byte(`"flags":1069`), []byte(`"flags":0,"flags":1069`), 1),
		"a member missing": bytes.Replace(text, []byte(`,"flags":1069`), nil, 1),
		"another case":     bytes.Replace(text, []byte(`"flags"`), []byte(`"Flags"`), 1),
		"a short digest":   bytes.Replace(text, []byte(`"file_sha256":"01`), []byte(`"file_sha256":"`), 1),
		"no digest":        bytes.Replace(text, []byte(`"file_sha256":"01`), []byte(`"file_sha256":"xx`), 1),
		"too much":         []byte(`{"library":"` + strings.Repeat("x", 1<<20) + `"}`),
	} {
		require.NotEqual(t, text, other, name)
		_, err := keyhost.ParseObservation(other)
		assert.Error(t, err, name)
	}
}

func FuzzParseObservation(f *testing.F) {
	text, err := json.Marshal(observation())
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"keys":[{"attributes":{"a":"b"}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := keyhost.ParseObservation(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(o)
		require.NoError(t, err)
		require.Equal(t, text, again)
	})
}
