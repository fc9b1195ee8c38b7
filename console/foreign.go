package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Most characters of a text that somebody else wrote.
const (
	maxLine  = 200
	maxBlock = 8000

	maxAccents = 2 // on one letter; a heap of them would cover the lines around it
)

// foreign is text that somebody else wrote, ready to be shown as theirs: bounded,
// with every character that a reader would not see made visible. Templates
// escape its parts like any other text.
type foreign struct {
	By    string // who wrote it, in the words of the page
	Parts []part
	Cut   bool   // there was more
	Alike string // the word that mixes alphabets, or whose letters all look like Latin ones
	Block bool   // several lines, as data is shown
}

// part is a piece of text, or the mark that stands for a character.
type part struct {
	Text string
	Mark bool
}

// theirs is one line of text.
func theirs(by, text string) foreign { return foreignOf(by, text, maxLine, false) }

// data is JSON that somebody else wrote: its own spelling of text, one member a line.
func data(by string, raw json.RawMessage) foreign {
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return foreignOf(by, string(raw), maxBlock, true)
	}
	return foreignOf(by, out.String(), maxBlock, true)
}

func foreignOf(by, text string, most int, block bool) foreign {
	f := foreign{By: by, Block: block}
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			f.Parts = append(f.Parts, part{Text: plain.String()})
			plain.Reset()
		}
	}
	n, marks := 0, 0
	for i := 0; i < len(text); n++ {
		r, size := utf8.DecodeRuneInString(text[i:])
		if n == most {
			f.Cut = true
			break
		}
		if marks++; !unicode.Is(unicode.Mn, r) {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && size == 1:
			flush()
			f.Parts = append(f.Parts, part{fmt.Sprintf("byte %02X", text[i]), true})
		case seen(r) && marks <= maxAccents, block && r == '\n':
			plain.WriteRune(r)
		default:
			flush()
			f.Parts = append(f.Parts, part{fmt.Sprintf("%U", r), true})
		}
		i += size
	}
	flush()
	f.Alike = alike(text)
	return f
}

// String is the text without its marks, for where only text can stand.
func (f foreign) String() string {
	var b strings.Builder
	for _, p := range f.Parts {
		if p.Mark {
			b.WriteString("[" + p.Text + "]")
		} else {
			b.WriteString(p.Text)
		}
	}
	if f.Cut {
		b.WriteString("…")
	}
	return b.String()
}

// seen reports whether a reader sees r where it stands: no control, no change of
// direction, no letter or sign without a shape, no space but the common one.
func seen(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && r != '\u2800'
}

// alphabets are those whose letters are taken for another's.
var alphabets = []struct {
	name  string
	table *unicode.RangeTable
}{
	{"Latin", unicode.Latin}, {"Cyrillic", unicode.Cyrillic}, {"Greek", unicode.Greek}, {"Armenian", unicode.Armenian}, {"Cherokee", unicode.Cherokee},
	{"Coptic", unicode.Coptic}, {"Lisu", unicode.Lisu},
}

// lookLatin are letters of other alphabets that look like Latin ones.
const lookLatin = "авекмнорстухѕіјԛԝһӏԁѵгАВЕКМНОРСТУХЅІЈԚԜҺӀԀѴαινορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ"

// alike finds the first word that a reader may take for another: one of several
// alphabets, or in a text that is otherwise Latin one that only looks Latin.
func alike(text string) string {
	latin := strings.ContainsFunc(text, func(r rune) bool { return unicode.Is(unicode.Latin, r) })
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsMark(r) }) {
		var of []string
		only := true
		for _, r := range word {
			only = only && strings.ContainsRune(lookLatin, r)
			for _, a := range alphabets {
				if unicode.Is(a.table, r) && !slices.Contains(of, a.name) {
					of = append(of, a.name)
				}
			}
		}
		if len(of) > 1 || latin && only {
			return short(word, 40)
		}
	}
	return ""
}

func short(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}
