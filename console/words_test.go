package console

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Whatever somebody else writes is shown as text: bounded, and no character of it is invisible or changes the direction of others.
func TestForeignTextHidesNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"rent":                       "rent",
		"a\u202eb":                   "a[U+202E]b",
		"a\u200bb\u2060\ufeff":       "a[U+200B]b[U+2060][U+FEFF]",
		"line\nline\ttab\x00":        "line[U+000A]line[U+0009]tab[U+0000]",
		"no\u00a0break\u3164\u2800":  "no[U+00A0]break[U+3164][U+2800]",
		"\xff\xfe":                   "[byte FF][byte FE]",
		"tag\U000E0041 \U000F0000":   "tag[U+E0041] [U+F0000]",
		"variation\ufe0f":            "variation[U+FE0F]",
		"é e\u0301 ü":                "é e\u0301 ü",
		"z\u0300\u0301\u0302\u0303!": "z\u0300\u0301[U+0302][U+0303]!",
	} {
		assert.Equal(t, want, theirs("", text).String())
	}
	long := theirs("", strings.Repeat("x", 500))
	assert.True(t, long.Cut)
	assert.Equal(t, maxLine, utf8.RuneCountInString(long.Parts[0].Text))
	assert.Equal(t, "{\n  \"a\": 1\n}", data("", json.RawMessage(`{"a":1}`)).String(), "lines of data are lines")
	assert.Equal(t, "{no json", data("", json.RawMessage(`{no json`)).String())
}

func TestForeignTextIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		for _, p := range theirs("", text).Parts {
			for _, r := range p.Text {
				if !seen(r) {
					t.Fatalf("%U is not seen", r)
				}
			}
		}
	})
}

// Names that look like others are flagged; names of one alphabet are not.
func TestLookAlikes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pаypal": "pаypal", "Сlose the day": "Сlose", "αccount": "αccount", "pay to аррӏе now": "аррӏе",
		"pay to аре now": "аре", "Закрыть день": "", "κλείσε": "", "日本 Tokyo": "", "naïve café": "", "": "",
	} {
		assert.Equal(t, want, alike(text), text)
	}
}

func TestSchedulesInWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"30 2 * * *": "every day at 02:30", "0 9 * * 1-5": "every weekday at 09:00", "5 7 * * 1,3": "every Monday and Wednesday at 07:05", "0 0 1 * *": "every month on day 1 at 00:00",
		"*/15 * * * *": "every 15 minutes", "7 * * * *": "every hour at minute 7", "*/15 1-3 8 3 *": "by the timetable “*/15 1-3 8 3 *”", "0 0 * * 0,7": "every Sunday and Sunday at 00:00",
		"0 1,2 * * *": "by the timetable “0 1,2 * * *”",
	} {
		assert.Equal(t, want, rhythm(timetable.Document{Cron: text, Zone: "UTC"}), text)
	}
	assert.Equal(t, "every second", rhythm(timetable.Document{EveryS: 1}))
	assert.Equal(t, "every 6 hours", rhythm(timetable.Document{EveryS: 6 * 3600}))
	assert.Equal(t, "once", rhythm(timetable.Document{At: 1}))
}

func TestMoneyAndTimes(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "EUR 0.05", money(5, "EUR"))
	assert.Equal(t, "JPY 5", money(5, "JPY"))
	assert.Equal(t, "KWD 1.234", money(1234, "KWD"))
	for text, want := range map[string]int64{"5": 500, "0.05": 5, "1,5": 150} {
		n, ok := minor(text, "EUR")
		assert.True(t, ok)
		assert.Equal(t, want, n)
	}
	for _, text := range []string{"", ".", "1.", "1.234", "x", "-", "1e3", "1.2.3"} {
		_, ok := minor(text, "EUR")
		assert.False(t, ok, text)
	}
	assert.Equal(t, "in 2 days", relative(49*time.Hour))
	assert.Equal(t, "47 hours ago", relative(-47*time.Hour))
	assert.Equal(t, "now", relative(0))
	assert.Equal(t, "90 minutes", lasting(90*time.Minute))
}

// Clocks that change before the last time shown are said, in the page's zone and in the task's.
func TestAChangeOfClocksIsSaid(t *testing.T) {
	t.Parallel()
	berlin, err := timetable.LoadZone("Europe/Berlin")
	require.NoError(t, err)
	from := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	fires := []time.Time{from.Add(time.Hour).In(berlin), from.Add(25 * time.Hour).In(berlin)}
	assert.Equal(t, "Clocks in Europe/Berlin change on 29 March 2026, before the last of these.", clocks(from, fires, berlin))
	assert.Contains(t, clocks(from, fires, time.UTC), "Europe/Berlin")
	assert.Empty(t, clocks(from, fires[:1], berlin))
}

// The pages' words are short verbs, the object and the count; nothing of the machine's; the same word for the same thing.
func TestWordsOfPages(t *testing.T) {
	t.Parallel()
	banned := regexp.MustCompile(`(?i)\b(access|manage|etc\.|please|sorry|oops|just|simply|are you sure|hurry|only \d+ left|token|workflow|agent)\b`)
	tags := regexp.MustCompile(`(?s)\{\{.*?\}\}|<[^>]*>`)
	names, err := fs.Glob(files, "templates/*.html")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		text, err := files.ReadFile(name)
		require.NoError(t, err)
		assert.Empty(t, banned.FindAllString(tags.ReplaceAllString(string(text), " "), -1), name)
		assert.NotContains(t, string(text), " style=", name)
		assert.NotContains(t, string(text), "onclick", name)
	}
}

// Every refusal has a page that says what to do, and none says what only a program understands.
func TestEveryRefusalHasWords(t *testing.T) {
	t.Parallel()
	v := visitOf(t)
	for _, code := range api.Codes() {
		p := v.explain(api.Refuse(code))
		assert.NotEmpty(t, p.Sentence, code)
		assert.NotEmpty(t, p.Then, code)
		assert.NotRegexp(t, `(?i)dpop|nonce|capability|proof`, p.Sentence+p.Then, code)
	}
}

func visitOf(t *testing.T) *visit {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "/", nil) //nolint:noctx // it is not sent
	require.NoError(t, err)
	return &visit{r: r}
}
