package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// money shows minor units of a currency (ISO 4217) as people write them.
func money(minor int64, currency string) string {
	places := places(currency)
	digits := strconv.FormatInt(minor, 10)
	if places == 0 {
		return currency + " " + digits
	}
	if len(digits) <= places {
		digits = strings.Repeat("0", places+1-len(digits)) + digits
	}
	return currency + " " + digits[:len(digits)-places] + "." + digits[len(digits)-places:]
}

// places is how many digits of a currency's minor unit there are (ISO 4217).
func places(currency string) int {
	switch {
	case strings.Contains("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF", currency):
		return 0
	case strings.Contains("BHD IQD JOD KWD LYD OMR TND", currency):
		return 3
	}
	return 2
}

var weekdays = []string{"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"}

// rhythm says when a schedule fires. The exact times stand beside it.
func rhythm(d timetable.Document) string {
	switch {
	case d.EveryS != 0:
		every := lasting(time.Duration(d.EveryS) * time.Second)
		return "every " + strings.TrimPrefix(every, "1 ")
	case d.At != 0:
		return "once"
	}
	return cron(d.Cron)
}

// cron says the common forms of five fields in words and quotes the others.
func cron(text string) string {
	f := strings.Fields(text)
	quoted := "by the timetable “" + text + "”"
	if len(f) != 5 || f[3] != "*" {
		return quoted
	}
	if step, ok := strings.CutPrefix(f[0], "*/"); ok && f[1] == "*" && f[2] == "*" && f[4] == "*" {
		return "every " + step + " minutes"
	}
	minute, err := strconv.Atoi(f[0])
	if err != nil {
		return quoted
	}
	if f[1] == "*" && f[2] == "*" && f[4] == "*" {
		return fmt.Sprintf("every hour at minute %d", minute)
	}
	hour, err := strconv.Atoi(f[1])
	if err != nil {
		return quoted
	}
	at := fmt.Sprintf(" at %02d:%02d", hour, minute)
	switch {
	case f[2] == "*" && f[4] == "*":
		return "every day" + at
	case f[2] == "*":
		if days := daysOf(f[4]); days != "" {
			return "every " + days + at
		}
	case f[4] == "*":
		if n, err := strconv.Atoi(f[2]); err == nil {
			return "every month on day " + strconv.Itoa(n) + at
		}
	}
	return quoted
}

func daysOf(field string) string {
	if field == "1-5" {
		return "weekday"
	}
	var names []string
	for one := range strings.SplitSeq(field, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 0 || n > 7 {
			return ""
		}
		names = append(names, weekdays[n%7])
	}
	return and(names)
}

// and lists things as people do.
func and(things []string) string {
	if len(things) < 2 {
		return strings.Join(things, "")
	}
	return strings.Join(things[:len(things)-1], ", ") + " and " + things[len(things)-1]
}

// upper is text as a sentence begins.
func upper(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// state is how something stands: an icon, a word and a tone that only repeats them.
type state struct{ Icon, Word, Tone string }

var decisionStates = map[string]state{
	"pending":  {"ask", "Waits for you", "ask"},
	"approved": {"yes", "You said yes", "good"},
	"used":     {"yes", "You said yes; it was used", "good"},
	"denied":   {"no", "You said no", "calm"},
	"expired":  {"no", "Its time has passed", "calm"},
}

func stateOf(in map[string]state, word string) state {
	if s, ok := in[word]; ok {
		return s
	}
	return state{"ask", upper(strings.ReplaceAll(word, "_", " ")), "ask"}
}

// line is one term of a document: what it is called, and what it says.
type line struct{ Name, Value string }
