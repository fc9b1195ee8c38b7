package workloads

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// example reads a file of docs/examples.
func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", name))
	require.NoError(t, err)
	return string(text)
}

// trusted is the part of the authority's file that the examples show.
type trusted struct {
	Assertion config.Assertion `yaml:"assertion"`
}

// Check implements config.Document; what is checked are the names of keys.
func (*trusted) Check(func(string) string) error { return nil }

// issuers reads such a part.
func issuers(t *testing.T, name string) []config.Workloads {
	t.Helper()
	var part trusted
	require.NoError(t, config.Parse(name, []byte(example(t, name)), &part, func(string) string { return "" }))
	return part.Assertion.Issuers
}

// house trusts more issuers than its own, and has a product for each of these profiles.
func house(t *testing.T, trust authoritytest.Trust, profiles string, names ...string) *authoritytest.House {
	t.Helper()
	h := authoritytest.Trusting(t, trust)
	for _, n := range names {
		profiles += "\n---\nkind: Product\nname: " + n + "\ntitle: What proves itself so\nprofile: " + n + "\n"
	}
	h.Apply(authoritytest.Registry(h.Workloads.URL))
	h.Apply(profiles)
	h.Open()
	return h
}

// prove asks for the capability of a product, as a key.
func prove(h *authoritytest.House, k *capability.Key, product, kind, assertion string) authoritytest.Answer {
	h.T.Helper()
	form := authoritytest.ComponentForm(product, assertion)
	form.Set("client_assertion_type", kind)
	return h.Send(h.Form(k, form))
}

// refused wants a refusal that consumed nothing.
func refused(h *authoritytest.House, before, name string, code api.Code, a authoritytest.Answer) {
	h.T.Helper()
	require.Equal(h.T, code, a.Problem().Code, "%s: %s", name, a.Body)
	require.Equal(h.T, before, h.Consumed(), name)
}

func accepted(h *authoritytest.House, name string, a authoritytest.Answer) {
	h.T.Helper()
	require.Equal(h.T, http.StatusOK, a.Status, "%s: %s", name, a.Body)
}
