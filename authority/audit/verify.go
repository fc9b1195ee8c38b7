package audit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Tamper names what was done to a log.
type Tamper string

// What Verify tells apart.
const (
	Edited            Tamper = "edited"
	DeletedMiddle     Tamper = "deleted_in_the_middle"
	DeletedTail       Tamper = "deleted_at_the_tail"
	DeletedAll        Tamper = "deleted_all"
	Reordered         Tamper = "reordered"
	Inserted          Tamper = "inserted"
	Forked            Tamper = "forked"
	SwappedCheckpoint Tamper = "swapped_checkpoint"
	UntrueDisclosure  Tamper = "untrue_disclosure"
	OldBackup         Tamper = "old_backup_restored"
)

// Finding is one thing that is wrong: it lies in the records From to Through.
type Finding struct {
	Tamper  Tamper `json:"tamper"`
	From    int64  `json:"from"`
	Through int64  `json:"through"`
	Why     string `json:"why"`
}

// Report is what a log was found to be.
type Report struct {
	Origin      string    `json:"origin"`
	From        int64     `json:"from"` // number of the first record: those before were pruned, and are as they were when that was signed
	Records     int64     `json:"records"`
	Gone        int64     `json:"bodies_gone"` // by retention: their digests are covered, what they said is not there
	Disclosed   int64     `json:"disclosed"`   // personal fields that are what their records commit to
	Redacted    int64     `json:"redacted"`    // personal fields that are not disclosed any more
	Checkpoints int       `json:"checkpoints"`
	Anchors     int       `json:"anchors"`
	Covered     int64     `json:"covered"` // records under the newest good checkpoint
	At          time.Time `json:"at"`      // of that checkpoint
	Witnessed   []Seen    `json:"witnessed"`
	Resumed     []Resumed `json:"resumed"`
	Findings    []Finding `json:"findings"`
	// ExportAgain tells that an anchor is younger than the bundle and knows more.
	// Whether that is all is for a newer export to show.
	ExportAgain bool `json:"export_again"`
}

// Seen is what a witness has last signed of the log.
type Seen struct {
	Witness string    `json:"witness"`
	Records int64     `json:"records"`
	At      time.Time `json:"at"` // by the witness' clock
}

// Resumed is an operator's decision on record to go on from fewer records than were signed.
type Resumed struct {
	Incarnation int64 `json:"incarnation"` // that began with it
	From        int64 `json:"from"`        // records that are the same in what was lost
	Lost        int64 `json:"lost"`        // records that were signed before
}

// OK tells that nothing is wrong, and that nothing is open. What no checkpoint covers is nobody's word but the database's.
func (r *Report) OK() bool { return len(r.Findings) == 0 && !r.ExportAgain }

// Verify holds a bundle against the log's key, against anchors: signed
// checkpoints that were kept where the database's owner could not reach them,
// and against the keys of witnesses that must have signed it. Without anchors a
// log that was cut short together with its checkpoints looks whole. One act
// leads to one finding, as far as it can be told.
func Verify(b *Bundle, key note.Verifier, anchors [][]byte, witnesses ...Witness) (*Report, error) {
	v := &verification{report: &Report{Origin: b.Origin, From: b.From(), Records: int64(len(b.records)), Witnessed: []Seen{}, Resumed: []Resumed{}, Findings: []Finding{}},
		began: b.At, cut: b.cut, records: slices.Clone(b.records), seen: make([]Seen, len(witnesses))}
	if b.Origin != key.Name() {
		return nil, fmt.Errorf("the bundle is of the log %q and the key is of %q", b.Origin, key.Name())
	}
	for i, a := range anchors {
		c, err := OpenCheckpoint(a, key)
		if err != nil {
			return nil, fmt.Errorf("anchor %d: %w", i+1, err)
		}
		v.anchors = append(v.anchors, c)
		for i, w := range witnesses {
			if made, err := w.Of(a); err == nil {
				v.saw(i, c, made)
			}
		}
	}
	v.numbers()
	v.signed(b, key, witnesses)
	v.witnessed(witnesses)
	v.bodies()
	v.resumed()
	v.roots()
	return v.report, nil
}

type verification struct {
	report  *Report
	began   time.Time // the export
	cut     *Tree     // of the records before the first
	records []record
	seen    []Seen // by witness
	whole   int64  // records before the first gap, with those before the cut
	known   []Checkpoint
	anchors []Checkpoint
}

func (v *verification) find(t Tamper, from, through int64, why string) {
	v.report.Findings = append(v.report.Findings, Finding{t, from, through, why})
}

// between are the records with numbers from up to and without to.
func (v *verification) between(from, to int64) []record {
	return v.records[from-v.cut.size : to-v.cut.size]
}

// end is the number after the last record.
func (v *verification) end() int64 { return v.cut.size + int64(len(v.records)) }

// numbers wants the records by their numbers, each once.
func (v *verification) numbers() {
	byLeaf := func(a, b record) int { return cmp.Compare(a.leaf, b.leaf) }
	if !slices.IsSortedFunc(v.records, byLeaf) {
		i := 1
		for v.records[i].leaf >= v.records[i-1].leaf {
			i++
		}
		v.find(Reordered, v.records[i].leaf, v.records[i-1].leaf, "the records are not in the order of their numbers")
		slices.SortStableFunc(v.records, byLeaf)
	}
	for v.whole = v.cut.size; v.whole < v.end(); v.whole++ {
		switch at := v.records[v.whole-v.cut.size].leaf; {
		case at > v.whole:
			v.find(DeletedMiddle, v.whole, at-1, "these numbers are missing")
			return
		case at < v.whole:
			v.find(Inserted, at, at, "this number is there twice")
			return
		}
	}
}

// signed opens the bundle's checkpoints. Time and incarnation go on as the log grows.
func (v *verification) signed(b *Bundle, key note.Verifier, witnesses []Witness) {
	for i, text := range b.Checkpoints {
		c, err := OpenCheckpoint(text, key)
		if err != nil {
			v.find(SwappedCheckpoint, 0, 0, fmt.Sprintf("checkpoint %d is not signed by the log's key: %v", i+1, err))
			continue
		}
		v.known = append(v.known, c)
		for n, w := range witnesses {
			v.cosigned(n, w, c, b.made[i])
		}
	}
	v.report.Checkpoints, v.report.Anchors = len(v.known), len(v.anchors)
	slices.SortStableFunc(v.known, func(a, b Checkpoint) int { return cmp.Compare(a.Size, b.Size) })
	for i := 1; i < len(v.known); i++ {
		a, b := v.known[i-1], v.known[i]
		switch {
		case a.Size == b.Size && a.Root != b.Root:
			v.find(Forked, b.Size, b.Size, "the log's key has signed two roots for one size")
		case b.At.Before(a.At) || b.Incarnation < a.Incarnation:
			v.find(OldBackup, a.Size, b.Size, "a shorter log was signed after a longer one")
		}
	}
}

// cosigned opens what bears a witness' key ID.
func (v *verification) cosigned(n int, w Witness, c Checkpoint, all []Cosignature) {
	for _, made := range all {
		switch {
		case w.made(made, c.Text()):
			v.saw(n, c, made)
		case len(made) >= 4 && binary.BigEndian.Uint32(made) == w.KeyHash():
			v.find(SwappedCheckpoint, 0, c.Size, "the signature of the witness "+w.Name()+" is not of this checkpoint")
		}
	}
}

func (v *verification) saw(n int, c Checkpoint, made Cosignature) {
	if at := made.At(); !at.Before(v.seen[n].At) {
		v.seen[n].Records, v.seen[n].At = c.Size, at
	}
}

// witnessed wants each witness to have seen something of the log. What came
// after the last that it saw is the log's key's word.
func (v *verification) witnessed(witnesses []Witness) {
	for n, w := range witnesses {
		v.seen[n].Witness = w.Name()
		if v.seen[n].At.IsZero() {
			v.find(SwappedCheckpoint, 0, 0, "no checkpoint is signed by the witness "+w.Name())
		}
	}
	v.report.Witnessed = append(v.report.Witnessed, v.seen...)
}

// resumed takes out what an operator has given up on record, and no more than that.
func (v *verification) resumed() {
	decided := map[int64]Resumption{}
	for _, c := range slices.Concat(v.known, v.anchors) {
		switch before, ok := decided[c.Resumed.Number]; {
		case c.Resumed.Number == 0:
		case ok && before != c.Resumed:
			v.find(Forked, c.Resumed.From, c.Size, "two decisions to resume the log stand under one number")
		default:
			decided[c.Resumed.Number] = c.Resumed
		}
	}
	numbers := slices.Sorted(maps.Keys(decided))
	for _, n := range numbers {
		r := decided[n]
		v.report.Resumed = append(v.report.Resumed, Resumed{n, r.From, r.Lost})
	}
	for _, list := range []*[]Checkpoint{&v.known, &v.anchors} {
		*list = slices.DeleteFunc(*list, func(c Checkpoint) bool {
			i, _ := slices.BinarySearch(numbers, c.Resumed.Number+1)
			later := numbers[i:]
			if !slices.ContainsFunc(later, func(n int64) bool { return decided[n].From < c.Size }) {
				return false
			}
			if !givenUp(c, later, decided) {
				v.find(OldBackup, decided[later[0]].From, c.Size-1, "more was signed than what was given up when the log was resumed")
			}
			return true
		})
	}
}

// givenUp tells whether one of the later decisions gives a checkpoint up: those that name its log decide, where there are any.
func givenUp(c Checkpoint, later []int64, decided map[int64]Resumption) bool {
	naming := func(n int64) bool { return decided[n].LostOf == c.Resumed.Number }
	named := slices.ContainsFunc(later, naming)
	return slices.ContainsFunc(later, func(n int64) bool { return decided[n].Covers(c) && naming(n) == named })
}

func (v *verification) bodies() {
	for _, r := range v.records {
		if r.edited {
			v.find(Edited, r.leaf, r.leaf, "the record does not say what its digest is of")
		}
		if r.untrue {
			v.find(UntrueDisclosure, r.leaf, r.leaf, "what is disclosed of the record is not what it commits to")
		}
		if !r.body {
			v.report.Gone++
		}
		v.report.Disclosed, v.report.Redacted = v.report.Disclosed+r.open, v.report.Redacted+r.redacted
	}
}

// roots grows the tree anew and compares it where something was signed.
func (v *verification) roots() {
	stops := slices.DeleteFunc(slices.Concat(v.known, v.anchors), func(c Checkpoint) bool { return c.Size < v.cut.size })
	slices.SortStableFunc(stops, func(a, b Checkpoint) int { return cmp.Compare(a.Size, b.Size) })
	if v.cut.size > 0 && (len(stops) == 0 || stops[0].Size > v.cut.size || stops[0].Root != v.cut.Root()) {
		v.find(Edited, 0, v.cut.size-1, "what stands for the records that were pruned is not what was signed when they were")
		return
	}
	good, grown := v.cut.Clone(), v.cut.Clone() // good is of the last size that agreed
	for i, c := range stops {
		if c.Size > v.whole {
			v.short(c)
			return
		}
		for grown.size < c.Size {
			grown.Append(v.between(grown.size, grown.size+1)[0].digest)
		}
		if grown.Root() != c.Root {
			v.explain(good, c, stops[i:])
			return
		}
		good, v.report.Covered, v.report.At = grown.Clone(), c.Size, c.At
	}
}

// short: something was signed over more records than there are.
func (v *verification) short(c Checkpoint) {
	n := v.whole
	owned := slices.ContainsFunc(v.known, func(k Checkpoint) bool { return k.Size > n })
	switch {
	case n < v.end() || v.told(DeletedMiddle) || v.told(Inserted):
		// The gap has been told, and nothing behind it can be compared.
	case n == v.cut.size:
		v.find(DeletedAll, n, c.Size-1, "records were signed, and none is there")
	case !owned && v.younger(c):
		v.report.ExportAgain = true
	case owned:
		v.find(DeletedTail, n, c.Size-1, "the log's checkpoints cover records that are not there")
	default:
		v.find(OldBackup, n, c.Size-1, "records and checkpoints end before what was anchored elsewhere")
	}
}

// settling is how long a checkpoint may have been on its way when an export began.
const settling = 10 * time.Second

// younger tells that a checkpoint may be missing because the export came before it.
func (v *verification) younger(c Checkpoint) bool { return c.At.After(v.began.Add(-settling)) }

func (v *verification) told(t Tamper) bool {
	return slices.ContainsFunc(v.report.Findings, func(f Finding) bool { return f.Tamper == t })
}

// maxTries bounds the records among which a single act is searched for.
const maxTries = 4096

// explain says what was done between the last checkpoint that agrees and c,
// the first that does not. Each explanation is tried by its own root.
func (v *verification) explain(good *Tree, c Checkpoint, later []Checkpoint) {
	from := good.size
	between := v.between(from, c.Size)
	switch {
	case slices.ContainsFunc(between, func(r record) bool { return r.edited }) || v.told(Reordered) || v.told(Inserted) || v.told(Forked):
	case v.forks(c):
	case v.sorted(good, between, c.Root):
		v.find(Reordered, from, c.Size-1, "in the order of their rows these records have the root that was signed")
	case len(between) <= maxTries && v.without(good, c):
	case slices.ContainsFunc(later, func(l Checkpoint) bool { return l.Size > v.end() }):
		v.find(DeletedMiddle, from, c.Size-1, "a record is missing here: what follows has moved up, and the log is shorter than what was signed")
	default:
		v.find(Edited, from, c.Size-1, "the digest of a record here is not the one that was signed")
	}
}

// forks: the log has a later, or another, checkpoint of its key that it agrees
// with. It is a restored backup that has gone on when that one is of a later
// incarnation, and else the work of two writers.
func (v *verification) forks(c Checkpoint) bool {
	t := v.cut.Clone()
	for _, k := range v.known {
		if k.Size < v.cut.size {
			continue
		}
		if k.Size > v.whole {
			return false
		}
		for t.size < k.Size {
			t.Append(v.between(t.size, t.size+1)[0].digest)
		}
		switch {
		case t.Root() != k.Root || k.Size < c.Size:
			continue
		case k.Incarnation > c.Incarnation:
			v.find(OldBackup, 0, c.Size-1, "the log has gone on from before a checkpoint that was signed in an earlier incarnation of the database")
		default:
			v.find(Forked, 0, c.Size-1, "the log agrees with one checkpoint of its key and not with another: there are two histories")
		}
		return true
	}
	return false
}

// sorted tries the records in the order of their rows' ids, and with two neighbours exchanged.
func (v *verification) sorted(good *Tree, between []record, want tlog.Hash) bool {
	all := slices.Clone(between)
	slices.SortFunc(all, func(a, b record) int { return cmp.Compare(a.id, b.id) })
	if rootOf(good, all) == want {
		return true
	}
	for i := 1; i < len(between) && len(between) <= maxTries/16; i++ {
		all = slices.Clone(between)
		all[i-1], all[i] = all[i], all[i-1]
		if rootOf(good, all) == want {
			return true
		}
	}
	return false
}

// without tries each record as the one that was put in.
func (v *verification) without(good *Tree, c Checkpoint) bool {
	if c.Size >= v.end() {
		return false
	}
	t := good.Clone()
	for i := good.size; i < c.Size; i++ {
		if rootOf(t, v.between(i+1, c.Size+1)) == c.Root {
			v.find(Inserted, i, i, "without this record the others have the root that was signed")
			return true
		}
		t.Append(v.between(i, i+1)[0].digest)
	}
	return false
}

// rootOf is the root of a tree with more records.
func rootOf(t *Tree, more []record) tlog.Hash {
	grown := t.Clone()
	for _, r := range more {
		grown.Append(r.digest)
	}
	return grown.Root()
}
