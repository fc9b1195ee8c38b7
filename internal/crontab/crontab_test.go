package crontab

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLinesThatCannotBeExpressed(t *testing.T) {
	t.Parallel()
	for line, why := range map[string]string{
		"@reboot /bin/a":                "line 1: @reboot names no time",
		"@fortnightly /bin/a":           "line 1: \"@fortnightly\" is not known",
		"1 2 3":                         "line 1: it is neither five fields and a command nor NAME=value",
		"* * * * *":                     "line 1: it has no command",
		"@daily":                        "line 1: it has no command",
		"61 * * * * /bin/a":             "line 1: cron \"61 * * * *\" does not hold",
		"*/90 * * * * /bin/a":           "line 1: cron has a step of 90",
		"0~30 * * * * /bin/a":           "line 1: cron must be five fields",
		"H * * * * /bin/a":              "line 1: cron must be five fields",
		"0 0 31 2 * /bin/a":             "names a date that no year has",
		"-* * * * * /bin/a":             "line 1: a leading hyphen",
		"0 0 */2 * 1 /bin/a":            "line 1: it restricts days of month and of week",
		"0 0 1 * */2 /bin/a":            "line 1: it restricts days of month and of week",
		"0 0 * * 1-7/2 /bin/a":          "line 1: day of week \"1-7/2\" counts Sunday as 7",
		"0 0 * * * root /bin/a":         "line 1: it seems to name an account, as in /etc/crontab: say --system",
		"0 0 * * * /bin/date +%F":       "line 1: a % begins standard input",
		"CRON_TZ=Mars\n0 0 * * * /a":    "line 2: zone must be UTC or an IANA name",
		"CRON_TZ=Local\n0 0 * * * /a":   "line 2: zone must be UTC or an IANA name",
		"0 0 * * * " + long:             "line 1: it is too long",
		"0 0 1 1 * *":                   "",
		"0 0 * * * curl -u a:hush /bin": "",
	} {
		d, err := Read([]byte(line), Options{Zone: "UTC"})
		require.NoError(t, err)
		if why == "" {
			assert.Len(t, d.Tasks, 1, line)
			assert.Empty(t, d.Skipped, line)
			continue
		}
		assert.Empty(t, d.Tasks, line)
		require.Len(t, d.Skipped, 1, line)
		assert.Contains(t, d.Skipped[0], why)
	}
}

var long = strings.Repeat("a", maxLine)

func TestWhatIsNoCrontab(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\xff", strings.Repeat("#", maxText+1), strings.Repeat("\n", maxLines+1)} {
		_, err := Read([]byte(text), Options{})
		assert.Error(t, err)
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"@daily /a": "0 0 * * *", "@midnight /a": "0 0 * * *", "@hourly /a": "0 * * * *", "@weekly /a": "0 0 * * 0", "@monthly /a": "0 0 1 * *",
		"@yearly /a": "0 0 1 1 *", "@annually /a": "0 0 1 1 *", "5\t4 * * sun /a": "5 4 * * sun", "0 0 * * 7 /a": "0 0 * * 0", "0 0 * * 5-7 /a": "0 0 * * 5-6,0",
		"0 0 * * 0-7 /a": "0 0 * * 0-6", "0 0 * * 6-7 /a": "0 0 * * 6,0", "0 0 * * 1,7 /a": "0 0 * * 1,0", "  */5 1-3 1,15 jan * /a": "*/5 1-3 1,15 jan *", "0 0 13 * 5 /a": "0 0 13 * 5",
	} {
		d, err := Read([]byte(line), Options{})
		require.NoError(t, err)
		require.Len(t, d.Tasks, 1, "%s: %s", line, d.Skipped)
		assert.Equal(t, want, d.Tasks[0].Cron)
		assert.Equal(t, "/a", d.Tasks[0].Command)
		_, err = timetable.Parse(timetable.Document{Cron: want, Zone: "UTC"})
		assert.NoError(t, err)
	}
}

const example = `# m h dom mon dow command
MAILTO=ops@example.org
DB_PASSWORD = "hush"
PATH=/usr/bin
30 2 * * * /opt/books/close --day yesterday
CRON_TZ=Europe/Berlin
@weekly TOKEN=hush /opt/books/report.sh 100\% 'it''s'
@reboot /opt/books/start
0 6 1 * * /opt/books/close --month
`

func TestADraft(t *testing.T) {
	t.Parallel()
	d, err := Read([]byte(example), Options{})
	require.NoError(t, err)
	require.Len(t, d.Tasks, 3)
	assert.Equal(t, []string{"close", "report-sh", "close-2"}, []string{d.Tasks[0].Name, d.Tasks[1].Name, d.Tasks[2].Name})
	assert.Equal(t, []string{"UTC", "Europe/Berlin", "Europe/Berlin"}, []string{d.Tasks[0].Zone, d.Tasks[1].Zone, d.Tasks[2].Zone})
	assert.Len(t, d.Tasks[0].Remarks, 1, "the zone is a guess")
	assert.Empty(t, d.Tasks[1].Remarks)
	text := written(t, d)
	assert.Contains(t, text, "# not drafted: line 8: @reboot names no time")
	assert.Contains(t, text, `# note: line 2: MAILTO = "ops@example.org": nobody is mailed`)
	assert.Contains(t, text, "# note: line 3: DB_PASSWORD = (a value that is not repeated here)")
	assert.Contains(t, text, `# line 7: nightwarrant worker exec --config report-sh.yaml -- /bin/sh -c 'TOKEN=hush /opt/books/report.sh 100% '\''it'\'''\''s'\'''`)
	documents, err := document.ParseYAML([]byte(completed(text)))
	require.NoError(t, err)
	require.Len(t, documents, 3)
	for i, of := range documents {
		task, ok := of.(*document.Task)
		require.True(t, ok)
		assert.Equal(t, d.Tasks[i].Cron, task.Schedule.Cron)
		assert.Equal(t, d.Tasks[i].Zone, task.Schedule.Zone)
		assert.NoError(t, task.Validate())
	}
}

// What nobody has completed is refused: no draft can be applied as it is.
func TestADraftIsRefused(t *testing.T) {
	t.Parallel()
	d, err := Read([]byte("@daily /a"), Options{})
	require.NoError(t, err)
	for name, value := range missing {
		_, err := document.ParseYAML([]byte(strings.Replace(completed(written(t, d)), value, name, 1)))
		assert.Error(t, err, name)
	}
}

func TestASystemsCrontab(t *testing.T) {
	t.Parallel()
	d, err := Read([]byte("0 0 * * *\tbackup /opt/save now\n0 0 * * * root\n"), Options{System: true, Zone: "UTC"})
	require.NoError(t, err)
	require.Len(t, d.Tasks, 1)
	assert.Equal(t, Task{Line: 1, Name: "save", Cron: "0 0 * * *", Zone: "UTC", Account: "backup", Command: "/opt/save now",
		Remarks: []string{"cron ran it as backup; its worker's account is another, see command.uid"}}, d.Tasks[0])
	assert.Equal(t, []string{"line 2: it has no command"}, d.Skipped)
}

// missing are the words that a crontab does not say, and what somebody could write.
var missing = map[string]string{"CLIENT": "books", "POLICY": "default", "ISSUER": "https://id.example", `""`: "member-1", "GUARD": "ledger", "ACTION": "row.append", "RESOURCE": "table:entries"}

var placeholder = regexp.MustCompile(`\b(CLIENT|POLICY|ISSUER|GUARD|ACTION|RESOURCE)\b|""`)

func completed(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string { return missing[name] })
}

func written(t testing.TB, d *Draft) string {
	t.Helper()
	var b strings.Builder
	_, err := d.WriteTo(&b)
	require.NoError(t, err)
	return b.String()
}

// Whatever a crontab holds, its drafts are documents, each name once, and no line of it becomes anything but a comment or a value.
func FuzzRead(f *testing.F) {
	f.Add(example, false)
	f.Add("0 0 * * 5-7 a\u2028b: c\r\n@daily x\x00y", true)
	f.Add("* * * * * task\n* * * * * task-2\n* * * * * task", false)
	f.Add("0 0 * * * ---\nkind: Task", false)
	f.Fuzz(func(t *testing.T, text string, system bool) {
		d, err := Read([]byte(text), Options{System: system})
		if err != nil || len(d.Tasks) == 0 || len(d.Tasks) > 50 {
			return
		}
		drafted := written(t, d)
		documents, err := document.ParseYAML([]byte(onlyMissing(drafted)))
		if err != nil {
			t.Fatalf("%s\n%s", err, drafted)
		}
		names := map[string]bool{}
		for i, of := range documents {
			task := of.(*document.Task)
			if names[task.Name] || task.Schedule.Cron != d.Tasks[i].Cron {
				t.Fatalf("%q", task.Name)
			}
			names[task.Name] = true
		}
	})
}

// onlyMissing completes lines that are not comments.
func onlyMissing(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "#") {
			lines[i] = completed(line)
		}
	}
	return strings.Join(lines, "\n")
}
