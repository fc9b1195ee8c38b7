package directory

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever is taken for an answer is one to a lenient reader as well: the same
// user, the same `active`. What is not, is refused without a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":0}`))
	f.Add([]byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":1,"itemsPerPage":1,"startIndex":1,"Resources":[{"externalId":"m","active":true}]}`))
	f.Add([]byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":1,"Resources":[{"externalId":"\u006d","active":false,"emails":[{"value":"a@b.example","primary":true}]}]}`))
	f.Add([]byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":1,"Resources":[{"externalId":"m","active":true,"Active":false}]}`))
	f.Add([]byte(`{"Schemas":[],"totalResults":1e0,"Resources":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		found, err := parse(body, "m")
		if err != nil {
			require.Nil(t, found)
			return
		}
		var list struct {
			TotalResults int
			Resources    []struct {
				ExternalID string
				Active     *bool
			}
		}
		require.NoError(t, json.Unmarshal(body, &list))
		if found == nil {
			require.Zero(t, list.TotalResults)
			require.Empty(t, list.Resources)
			return
		}
		require.Equal(t, 1, list.TotalResults)
		require.Len(t, list.Resources, 1)
		require.Equal(t, "m", list.Resources[0].ExternalID)
		require.Equal(t, found.active, *list.Resources[0].Active)
	})
}

// The order of members says nothing, and neither do members that are not ours.
func TestOrderAndStrangers(t *testing.T) {
	t.Parallel()
	members := []string{`"schemas":["x","` + listSchema + `"]`, `"totalResults":1`, `"Resources":[{"x":[{"active":false}],"active":true,"externalId":"m"}]`, `"extra":{"Resources":[]}`}
	for i := range members {
		turned := append(append([]string{}, members[i:]...), members[:i]...)
		found, err := parse(fmt.Appendf(nil, "{%s}", strings.Join(turned, ",")), "m")
		require.NoError(t, err)
		require.Equal(t, &user{external: "m", active: true}, found)
	}
}
