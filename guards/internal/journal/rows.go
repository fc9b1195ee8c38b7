package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/nightwarrant/nightwarrant/guards"
)

const (
	format   = 1
	sumSize  = 16
	timeSize = 8
)

// The buckets. Rows of effects and lanes begin with the time of their last change, on the journal's own clock.
const (
	bucketMeta     = "meta"
	bucketEffects  = "effects"  // by effect
	bucketAttempts = "attempts" // by effect and attempt: those that were written ahead
	bucketLanes    = "lanes"    // by lane
)

var buckets = []string{bucketMeta, bucketEffects, bucketAttempts, bucketLanes}

var keyMeta = []byte("meta")

// meta is the one row about the journal itself.
type meta struct {
	Format    int
	ID        []byte
	Boot      int64
	Clock     int64 // milliseconds during which the journal was open
	Fence     int64 // the highest of all
	Admission int64
}

// lane is the row of a lane.
type lane struct{ Fence int64 }

// clock counts the time during which the journal is open, so that no step of the wall clock makes it forget. Not counting the rest
// keeps rows for longer.
type clock struct {
	last time.Time
	ms   int64
}

// read is in whole milliseconds and never goes back.
func (c *clock) read(now time.Time) int64 {
	passed := now.Sub(c.last).Milliseconds()
	c.last = c.last.Add(time.Duration(passed) * time.Millisecond)
	c.ms += max(0, passed)
	return c.ms
}

// lay makes the buckets of a new journal.
func lay(tx *bbolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	id := guards.NewRef()
	t := &txn{tx: tx, meta: meta{Format: format, ID: id[:]}}
	t.save()
	return t.err
}

// txn is a transaction. Its first trouble is kept, and ends it.
type txn struct {
	tx      *bbolt.Tx
	meta    meta
	changed bool
	err     error
}

// begin reads the journal's own row and lets its clock go on.
func (w *writer) begin(tx *bbolt.Tx) (*txn, error) {
	t := &txn{tx: tx}
	if !t.get(bucketMeta, keyMeta, &t.meta) && t.err == nil {
		t.err = errors.New("the journal has no row about itself")
	}
	t.meta.Clock = w.clock.read(w.now())
	return t, t.err
}

func (t *txn) save() { t.put(bucketMeta, keyMeta, t.meta) }

func (t *txn) state() state {
	return state{ID: guards.Ref(t.meta.ID), Boot: t.meta.Boot, TxID: int64(t.tx.ID()), ms: t.meta.Clock}
}

func (t *txn) bucket(name string) *bbolt.Bucket { return t.tx.Bucket([]byte(name)) }

// get reads a row into v. It is false when there is none, or after trouble.
func (t *txn) get(bucket string, key []byte, v any) bool {
	if t.err != nil {
		return false
	}
	row := t.bucket(bucket).Get(key)
	if row == nil {
		return false
	}
	payload, err := unseal(bucket, key, row)
	if err == nil {
		err = json.Unmarshal(payload[timeSize:], v)
	}
	if err != nil {
		t.err = fmt.Errorf("a row of %s is damaged", bucket)
	}
	return t.err == nil
}

func (t *txn) put(bucket string, key []byte, v any) {
	body, err := json.Marshal(v)
	if err == nil && t.err == nil {
		payload := append(binary.BigEndian.AppendUint64(nil, uint64(t.meta.Clock)), body...)
		err = t.bucket(bucket).Put(key, append(sum(bucket, key, payload), payload...))
	}
	t.fail(err)
	t.changed = true
}

func (t *txn) delete(bucket string, key []byte) {
	if t.err == nil {
		t.fail(t.bucket(bucket).Delete(key))
	}
}

func (t *txn) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// sum ties a row to its place: bbolt has no checksums of pages.
func sum(bucket string, key, payload []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(bucket), key} {
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		_, _ = h.Write(part)
	}
	_, _ = h.Write(payload)
	return h.Sum(nil)[:sumSize]
}

var errSum = errors.New("a row is not what was written")

func unseal(bucket string, key, row []byte) (payload []byte, err error) {
	if len(row) < sumSize+timeSize || !bytes.Equal(row[:sumSize], sum(bucket, key, row[sumSize:])) {
		return nil, errSum
	}
	return row[sumSize:], nil
}

// inspect reads every row before any is believed, and finds each where it will be looked for.
func (w *writer) inspect(tx *bbolt.Tx) (state, error) {
	t := &txn{tx: tx}
	for _, name := range buckets {
		if t.bucket(name) == nil {
			return state{}, fmt.Errorf("the journal has no %s", name)
		}
		if err := t.bucket(name).ForEach(func(k, v []byte) error {
			if !bytes.Equal(t.bucket(name).Get(k), v) {
				return errSum
			}
			return known(name, k, v)
		}); err != nil {
			return state{}, err
		}
	}
	if !t.get(bucketMeta, keyMeta, &t.meta) || t.meta.Format != format || len(t.meta.ID) != len(guards.Ref{}) {
		t.fail(errors.New("the journal is of another format"))
	}
	if t.err != nil {
		return state{}, t.err
	}
	return t.state(), nil
}

// known checks one row.
func known(bucket string, key, row []byte) error {
	payload, err := unseal(bucket, key, row)
	if err != nil {
		return fmt.Errorf("%s: %w", bucket, err)
	}
	if bucket == bucketEffects {
		var e effect
		return json.Unmarshal(payload[timeSize:], &e)
	}
	return nil
}

// sweep forgets what is older than the authority could ask for, looking at a bounded number of rows each time.
func (w *writer) sweep(t *txn, most int) {
	before := t.meta.Clock - keep.Milliseconds()
	if w.swept == nil {
		w.swept = map[string][]byte{}
	}
	for _, name := range []string{bucketEffects, bucketLanes} {
		var old [][]byte
		cursor := t.bucket(name).Cursor()
		k, v := cursor.Seek(w.swept[name])
		for n := 0; k != nil && n < most; n++ {
			if changed := binary.BigEndian.Uint64(v[sumSize:]); int64(changed) < before {
				old = append(old, bytes.Clone(k))
			}
			k, v = cursor.Next()
		}
		w.swept[name] = bytes.Clone(k) // nil at the end: from the first again
		for _, k := range old {
			t.forget(name, k, most)
		}
	}
}

// forget deletes a row. An effect goes after its attempts, however many there are.
func (t *txn) forget(bucket string, key []byte, most int) {
	if bucket == bucketEffects {
		var attempts [][]byte
		cursor := t.bucket(bucketAttempts).Cursor()
		for k, _ := cursor.Seek(key); bytes.HasPrefix(k, key); k, _ = cursor.Next() {
			if attempts = append(attempts, bytes.Clone(k)); len(attempts) > most {
				break
			}
		}
		for _, k := range attempts {
			t.delete(bucketAttempts, k)
		}
		if len(attempts) > most {
			return
		}
	}
	t.delete(bucket, key)
}
