package docs

import (
	"encoding"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/document"
)

var unmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// fieldsOf lists the dotted members of a document, in no order.
func fieldsOf(t reflect.Type, prefix string) (fields []string) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || prefix == "" && (name == "kind" || name == "name") {
			continue
		}
		whole := reflect.PointerTo(f.Type).Implements(unmarshaler) || f.Type == reflect.TypeFor[json.RawMessage]()
		switch kind := f.Type.Kind(); {
		case kind == reflect.Struct && !whole:
			fields = append(fields, fieldsOf(f.Type, prefix+name+".")...)
		case kind == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			fields = append(fields, fieldsOf(f.Type.Elem(), prefix+name+"[].")...)
		default:
			fields = append(fields, prefix+name)
		}
	}
	return fields
}

var fieldRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|$")

// Each member of each document is on its page, once, and the page names no
// other.
func TestDocuments(t *testing.T) {
	t.Parallel()
	documents := map[string]document.Document{
		document.KindProfile: &document.AttestationProfile{}, document.KindClient: &document.Client{}, document.KindGuard: &document.Guard{}, document.KindReporter: &document.Reporter{},
		document.KindProduct: &document.Product{}, document.KindRole: &document.WorkloadRole{}, document.KindPolicy: &document.Policy{}, document.KindTask: &document.Task{},
		document.KindRequirement: &document.Requirement{},
	}
	sections := strings.Split(read(t, "reference/documents.md"), "\n## ")[1:]
	require.Len(t, sections, len(documents))
	for _, s := range sections {
		kind, body, _ := strings.Cut(s, "\n")
		require.Contains(t, documents, kind)
		var listed []string
		for _, m := range fieldRow.FindAllStringSubmatch(body, -1) {
			listed = append(listed, m[1])
		}
		assert.ElementsMatch(t, fieldsOf(reflect.TypeOf(documents[kind]).Elem(), ""), listed, kind)
	}
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// What is shown as a document is one; together they make an offer.
func TestExamplesAreDocuments(t *testing.T) {
	t.Parallel()
	var found []document.Document
	for _, page := range []string{"how-to/write-documents.md", "how-to/require.md"} {
		for _, m := range yamlBlock.FindAllStringSubmatch(read(t, page), -1) {
			docs, err := document.ParseYAML([]byte(m[1]))
			require.NoError(t, err, page)
			found = append(found, docs...)
		}
	}
	parts := document.Parts{TaskRef: "AAECAwQFBgcICQoLDA0ODw", Guards: map[string]*document.Guard{"ledger": {
		Header: document.Header{Kind: document.KindGuard, Name: "ledger"}, Title: "The ledger", Catalogue: "postgres", URI: "https://guards.example/ledger", Profile: "ledger-guard", MaxCallMS: 5000,
	}}, Now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Ticked: []int{2}}
	for _, d := range found {
		switch d := d.(type) {
		case *document.Guard:
			parts.Guards[d.Name] = d
		case *document.WorkloadRole:
			parts.Role = d
		case *document.Policy:
			parts.Policy = d
		case *document.Task:
			parts.Task = d
		}
	}
	consent, err := document.BuildConsent(parts)
	require.NoError(t, err)
	assert.Len(t, consent.Grants, 3)
	assert.Len(t, consent.Grants[1].PreApproved, 2)
	assert.EqualValues(t, 9_000_000, consent.MemberSpendMonth)
}
