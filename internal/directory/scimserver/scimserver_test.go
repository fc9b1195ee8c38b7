package scimserver_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/directory/scimserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ask(t testing.TB, h http.Handler, token, method, path, body string) (status int, answer map[string]any) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	if w.Header().Get("Content-Type") == "application/scim+json" {
		require.NoError(t, json.Unmarshal(text, &answer))
	}
	return w.Code, answer
}

const good = "Bearer secret"

func find(of string) string {
	return "/Users?filter=" + url.QueryEscape(`externalId eq "`+of+`"`)
}

func TestWithoutTheTokenThereIsNothing(t *testing.T) {
	t.Parallel()
	s := scimserver.New("secret")
	s.Add("m", "")
	for _, token := range []string{"", "Bearer", "Bearer ", "Bearer Secret", "Bearer secret2", "bearer secret", "Basic secret", "secret"} {
		status, answer := ask(t, s, token, "GET", find("m"), "")
		assert.Equal(t, http.StatusUnauthorized, status, token)
		assert.NotContains(t, answer, "Resources")
	}
	status, _ := ask(t, s, good, "GET", find("m"), "")
	assert.Equal(t, http.StatusOK, status)
}

// A user comes, is found by the externalId as it is, goes and comes back.
func TestALife(t *testing.T) {
	t.Parallel()
	s := scimserver.New("secret")
	status, made := ask(t, s, good, "POST", "/Users", `{"externalId":"m","userName":"m","emails":[{"value":"m@people.example","primary":true}]}`)
	require.Equal(t, http.StatusCreated, status)
	assert.Equal(t, true, made["active"])
	id := made["id"].(string)
	for of, n := range map[string]float64{"m": 1, "M": 0, "m ": 0, "": 0} {
		status, found := ask(t, s, good, "GET", find(of), "")
		require.Equal(t, http.StatusOK, status)
		assert.InDelta(t, n, found["totalResults"], 0, of)
	}
	patch := func(value string) string {
		return `{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[{"op":"replace","path":"active","value":` + value + `}]}`
	}
	for _, value := range []string{"false", "true"} {
		status, changed := ask(t, s, good, "PATCH", "/Users/"+id, patch(value))
		require.Equal(t, http.StatusOK, status)
		assert.Equal(t, value == "true", changed["active"])
		_, shown := ask(t, s, good, "GET", "/Users/"+id, "")
		assert.Equal(t, changed, shown)
	}
	assert.False(t, s.SetActive("nobody", false))
	for _, bad := range [][3]string{
		{"PATCH", "/Users/" + id, patch(`"false"`)}, {"PATCH", "/Users/" + id, strings.Replace(patch("false"), "active", "userName", 1)}, {"PATCH", "/Users/" + id, `{}`},
		{"PATCH", "/Users/" + id, "{"}, {"POST", "/Users", `{"userName":"x"}`}, {"POST", "/Users", `{"userName":"` + strings.Repeat("x", 1<<15) + `","externalId":"x"}`},
		{"GET", "/Users", ""}, {"GET", "/Users?filter=" + url.QueryEscape(`userName eq "m"`), ""}, {"GET", "/Users?filter=" + url.QueryEscape(`externalId eq "m" or active eq true`), ""},
	} {
		status, answer := ask(t, s, good, bad[0], bad[1], bad[2])
		assert.Equal(t, http.StatusBadRequest, status, bad)
		assert.Equal(t, "400", answer["status"])
	}
	for _, path := range []string{"/Users/absent", "/Groups"} {
		status, _ = ask(t, s, good, "GET", path, "")
		assert.Equal(t, http.StatusNotFound, status)
	}
	status, config := ask(t, s, good, "GET", "/ServiceProviderConfig", "")
	require.Equal(t, http.StatusOK, status)
	assert.Equal(t, map[string]any{"supported": true}, config["patch"])
}
