package docs

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/config"
)

// keysOf lists the dotted keys of a file, in no order.
func keysOf(t reflect.Type, prefix string) (keys []string) {
	for _, f := range reflect.VisibleFields(t) {
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		switch kind := f.Type.Kind(); {
		case kind == reflect.Struct: // which is nothing but its keys
			keys = append(keys, keysOf(f.Type, prefix+name+".")...)
		case kind == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			keys = append(keys, keysOf(f.Type.Elem(), prefix+name+"[].")...)
		case kind == reflect.Map && f.Type.Elem().Kind() == reflect.Struct:
			keys = append(keys, keysOf(f.Type.Elem(), prefix+name+".*.")...)
		case kind == reflect.Map:
			keys = append(keys, prefix+name+".*")
		default:
			keys = append(keys, prefix+name)
		}
	}
	return keys
}

var keyRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")

// Each key of each process is on its page, once, with what it is trusted with
// and what an attacker gains; and the page names no other.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	page := read(t, "reference/configuration.md")
	sections := strings.Split(page, "\n## ")[1:]
	documents := map[string]any{"serve": config.Authority{}, "scheduler": config.Scheduler{}, "guard": config.Guard{}, "worker": config.Worker{}, "tripwire": config.Tripwire{}}
	for kind, document := range config.Guards() {
		documents["guard, kind "+kind] = document
	}
	require.Len(t, sections, len(documents))
	common := keysOf(reflect.TypeOf(config.Guard{}), "")
	for _, s := range sections {
		name, body, _ := strings.Cut(s, "\n")
		require.Contains(t, documents, name)
		var listed []string
		for _, m := range keyRow.FindAllStringSubmatch(body, -1) {
			listed = append(listed, m[1])
		}
		want := keysOf(reflect.Indirect(reflect.ValueOf(documents[name])).Type(), "")
		if strings.HasPrefix(name, "guard, ") {
			want = slices.DeleteFunc(want, func(key string) bool { return slices.Contains(common, key) })
		}
		assert.ElementsMatch(t, want, listed, name)
	}
}
