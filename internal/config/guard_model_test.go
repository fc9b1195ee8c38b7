package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const goodModels = `kind: model
uri: https://guards.example/models
listen: 127.0.0.1:9001
name: models
authority: https://night.example
assertion_file: /var/run/secrets/nightwarrant/token
ledger_dir: /var/lib/nightwarrant/models
base_url: https://api.example.com/v1
currency: EUR
models:
  - id: org/little
    version: "2026-01-01"
    input_price: 25
    output_price: 200
    answers: [little-2026]
credential: {file: /run/secrets/key}
refused: [503]
timeout: 30s
`

func TestModelGuards(t *testing.T) {
	t.Parallel()
	document, err := ParseGuard("f", []byte(goodModels), noEnv)
	require.NoError(t, err)
	g := document.(*ModelGuard)
	assert.Equal(t, []Model{{ID: "org/little", Version: "2026-01-01", InputPrice: 25, OutputPrice: 200, Answers: []string{"little-2026"}}}, g.Models)
	assert.Equal(t, 30*time.Second, g.Timeout.Std())
	assert.EqualValues(t, 1<<20, g.MaxRequest)
	assert.EqualValues(t, 8<<20, g.MaxAnswer)
	assert.Equal(t, "/var/lib/nightwarrant/models", g.Journal())
	assert.Equal(t, "Bearer ", g.Credential.Prefix)
	for change, want := range map[string]string{
		"name: \"\"":           "f line 4: name is missing",
		"ledger_dir: models":   "f line 7: ledger_dir must be an absolute path",
		"base_url: \"\"":       "f line 8: base_url is missing",
		"currency: \"\"":       "f line 9: currency is missing",
		"models: []":           "f line 10: models is missing: a guard that may call no model has nothing to do",
		"    version: \"\"":    "f line 12: models[0].version is missing",
		"    input_price: 0.5": "f line 13: models[0].input_price must be a plain integer",
		"credential: {}":       "f line 16: credential must have exactly one of file, env and none",
		"timeout: 1h":          "f line 18: timeout must be between 1s and 10m0s",
		"timeout: 1ms":         "f line 18: timeout must be between 1s and 10m0s",
	} {
		text := changed(t, goodModels, change)
		if change == "models: []" {
			text = "kind: model\nuri: https://guards.example/models\nlisten: 127.0.0.1:9001\nname: models\nauthority: https://night.example\nassertion_file: /t\n" +
				"ledger_dir: /j\nbase_url: https://api.example.com/v1\ncurrency: EUR\nmodels: []\ncredential: {env: KEY}\n"
		}
		_, err := ParseGuard("f", []byte(text), noEnv)
		require.EqualError(t, err, want, change)
	}
	twice := goodModels + "max_answer: 1\n"
	_, err = ParseGuard("f", []byte(twice), noEnv)
	require.EqualError(t, err, "f line 19: max_answer must be between 1024 and 67108864")
}
