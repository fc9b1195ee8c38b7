package sequencer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Store is the log as the database has it.
type Store struct {
	Pool *pgxpool.Pool
	Key  Key
}

// waiting is what a leader is handed.
type waiting struct {
	at                       time.Time
	size, incarnation, epoch int64
	resumed                  audit.Resumption
	ids                      []int64
	digests                  []audit.Digest
}

func (s *Sequencer) lead(ctx context.Context) (w waiting, leading bool, err error) {
	rows, err := s.Pool.Query(ctx, `SELECT at, size, incarnation, epoch, ids, digests, resumed, resumed_from, lost_size, lost_root, lost_of FROM nw.audit_lead($1, $2)`, s.Who[:], batch)
	if err != nil {
		return w, false, err
	}
	w, err = pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (w waiting, err error) {
		var digests [][]byte
		var resumed resumption
		if err = r.Scan(append([]any{&w.at, &w.size, &w.incarnation, &w.epoch, &w.ids, &digests}, resumed.into()...)...); err != nil {
			return w, err
		}
		w.digests, w.resumed = digestsOf(digests), resumed.value()
		return w, nil
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return w, false, nil
	}
	return w, err == nil, err
}

func digestsOf(rows [][]byte) (out []audit.Digest) {
	for _, d := range rows {
		out = append(out, audit.Digest(d))
	}
	return out
}

// resumption is a decision as the database joins it, or no row.
type resumption struct {
	number, from, lost, of *int64
	root                   []byte
}

func (r *resumption) into() []any { return []any{&r.number, &r.from, &r.lost, &r.root, &r.of} }

func (r *resumption) value() audit.Resumption {
	if r.number == nil {
		return audit.Resumption{}
	}
	return audit.Resumption{Number: *r.number, From: *r.from, Lost: *r.lost, LostRoot: tlog.Hash(r.root), LostOf: *r.of}
}

// append numbers what waited. An unknown end is an error: the next round reads what came of it.
func (s *Sequencer) append(ctx context.Context, w waiting) error {
	var appended bool
	if _, err := pg.Call(ctx, s.Pool, `SELECT appended FROM nw.audit_append($1, $2, $3)`, []any{s.Who[:], w.size, w.ids}, &appended); err != nil {
		return err
	}
	if !appended {
		return errOvertaken
	}
	return nil
}

var errOvertaken = errors.New("another replica has gone on with the log")

func (s *Sequencer) keep(ctx context.Context, c audit.Checkpoint, signature []byte) error {
	var kept bool
	_, err := pg.Call(ctx, s.Pool, `SELECT kept FROM nw.audit_sign($1, $2, $3, $4, $5, $6, $7, $8)`,
		[]any{s.Who[:], c.Size, c.At, c.Root[:], s.tree.Edge(), c.Incarnation, c.Epoch, signature}, &kept)
	if err == nil && !kept {
		err = errOvertaken
	}
	return err
}

// Cosigned keeps what a witness has made of a checkpoint. One that was never kept, as that of an empty log, is nobody's.
func (s Store) Cosigned(ctx context.Context, c audit.Checkpoint, made audit.Cosignature) error {
	var kept bool
	_, err := pg.Call(ctx, s.Pool, `SELECT kept FROM nw.audit_cosign($1, $2, $3)`, []any{c.Size, c.At, made}, &kept)
	return err
}

// last is the newest checkpoint of at most that many records, with the tree that it is of. An empty log has none.
func (s Store) last(ctx context.Context, most int64) (kept, *audit.Tree, error) {
	rows, err := s.Pool.Query(ctx, `SELECT size, at, root, edge, incarnation, epoch, signature, resumed, resumed_from, lost_size, lost_root, lost_of FROM nw.audit_last($1)`, most)
	if err != nil {
		return kept{}, nil, err
	}
	k, err := pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (kept, error) { return scanKept(r, s.Key.Name()) })
	if errors.Is(err, pgx.ErrNoRows) {
		return kept{}, &audit.Tree{}, nil
	}
	if err != nil {
		return kept{}, nil, err
	}
	if _, err := audit.OpenCheckpoint(k.signed(s.Key.KeyHash()), s.Key.Verifier()); err != nil {
		return k, nil, fmt.Errorf("%w: a checkpoint in it: %w", ErrDiffers, err)
	}
	tree, err := audit.OpenTree(k.Size, k.edge)
	if err != nil {
		return k, nil, fmt.Errorf("%w: %w", ErrDiffers, err)
	}
	if tree.Root() != k.Root {
		return k, nil, fmt.Errorf("%w: the edge of its tree has another root", ErrDiffers)
	}
	return k, tree, nil
}

// kept is a checkpoint as the database keeps it.
type kept struct {
	audit.Checkpoint
	edge, signature []byte
}

func (k kept) signed(keyHash uint32) []byte { return k.Signed(keyHash, k.signature) }

func scanKept(r pgx.CollectableRow, log string, more ...any) (kept, error) {
	k := kept{Checkpoint: audit.Checkpoint{Origin: log}}
	var root []byte
	var resumed resumption
	err := r.Scan(slices.Concat([]any{&k.Size, &k.At, &root, &k.edge, &k.Incarnation, &k.Epoch, &k.signature}, resumed.into(), more)...)
	if err == nil {
		k.Root, k.Resumed = tlog.Hash(root), resumed.value()
	}
	return k, err
}

// grow appends to a tree what the database has numbered since.
func (s Store) grow(ctx context.Context, tree *audit.Tree, size int64) error {
	for tree.Size() < size {
		records, err := readRecords(ctx, s.Pool, tree.Size(), batch)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("%w: record %d is missing", ErrDiffers, tree.Size())
		}
		for _, r := range records {
			if tree.Size() == size {
				break
			}
			if r.Leaf != tree.Size() {
				return fmt.Errorf("%w: record %d is missing", ErrDiffers, tree.Size())
			}
			tree.Append(r.Digest)
		}
	}
	return nil
}

// Consistency proves that the log at size begins with what it was at old.
func (s Store) Consistency(ctx context.Context, old, size int64) (tlog.TreeProof, error) {
	return tlog.ProveTree(size, old, s.Nodes(ctx))
}

// Nodes are the hashes of the log's tree.
func (s Store) Nodes(ctx context.Context) *audit.Nodes {
	return &audit.Nodes{Read: func(leaves []int64) ([]audit.Stretch, error) { return s.stretches(ctx, leaves) }}
}

// Over is the first signed checkpoint that covers a record.
func (s Store) Over(ctx context.Context, leaf int64) (signed []byte, err error) {
	rows, err := s.Pool.Query(ctx, `SELECT size, at, root, edge, incarnation, epoch, signature, resumed, resumed_from, lost_size, lost_root, lost_of FROM nw.audit_notes($1, 'infinity', 1)`, leaf)
	if err != nil {
		return nil, err
	}
	k, err := pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (kept, error) { return scanKept(r, s.Key.Name()) })
	return k.signed(s.Key.KeyHash()), err
}

func (s Store) stretches(ctx context.Context, leaves []int64) ([]audit.Stretch, error) {
	rows, err := s.Pool.Query(ctx, `SELECT size, edge, digests FROM unnest($1::bigint[]) WITH ORDINALITY x(leaf, n) JOIN nw.audit_stretches($1) USING (leaf) ORDER BY n`, leaves)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (out audit.Stretch, err error) {
		var digests [][]byte
		err = r.Scan(&out.Size, &out.Edge, &digests)
		out.Digests = digestsOf(digests)
		return out, err
	})
}

func readRecords(ctx context.Context, pool *pgxpool.Pool, from int64, limit int) ([]audit.Record, error) {
	rows, err := pool.Query(ctx, `SELECT leaf, audit_id, digest, body FROM nw.audit_records($1, $2)`, from, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (out audit.Record, err error) {
		var digest []byte
		if err = r.Scan(&out.Leaf, &out.ID, &digest, &out.Body); err == nil {
			out.Digest = audit.Digest(digest)
		}
		return out, err
	})
}

// Export writes the log as a bundle. pool is the operator's database role.
func Export(ctx context.Context, pool *pgxpool.Pool, key note.Verifier, out io.Writer) (records int64, err error) {
	return export(ctx, pool, key, out, false)
}

// ExportFromCut is Export without what was pruned, of which only the edge of the tree is left.
func ExportFromCut(ctx context.Context, pool *pgxpool.Pool, key note.Verifier, out io.Writer) (records int64, err error) {
	return export(ctx, pool, key, out, true)
}

func export(ctx context.Context, pool *pgxpool.Pool, key note.Verifier, out io.Writer, fromCut bool) (records int64, err error) {
	var at time.Time
	if err := pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
		return 0, err
	}
	w, err := audit.NewWriter(out, key.Name(), at)
	if err != nil {
		return 0, err
	}
	var from int64
	if fromCut {
		if from, err = exportCut(ctx, pool, w); err != nil {
			return 0, err
		}
	}
	for {
		page, err := readRecords(ctx, pool, from+records, batch)
		if err == nil {
			err = disclose(ctx, pool, page)
		}
		if err != nil {
			return records, err
		}
		for _, r := range page {
			if err := w.Record(r); err != nil {
				return records, err
			}
		}
		if len(page) == 0 {
			return records, exportCheckpoints(ctx, pool, key, w)
		}
		records = page[len(page)-1].Leaf + 1 - from
	}
}

func exportCut(ctx context.Context, pool *pgxpool.Pool, w *audit.Writer) (from int64, err error) {
	var size *int64
	var edge []byte
	if _, err := pg.Call(ctx, pool, `SELECT size, edge FROM nw.audit_cut()`, nil, &size, &edge); err != nil || size == nil {
		return 0, err
	}
	return *size, w.Cut(*size, edge)
}

func exportCheckpoints(ctx context.Context, pool *pgxpool.Pool, key note.Verifier, w *audit.Writer) error {
	var size int64
	var at time.Time
	for {
		rows, err := pool.Query(ctx, `SELECT size, at, root, edge, incarnation, epoch, signature, resumed, resumed_from, lost_size, lost_root, lost_of, cosignatures
			FROM nw.audit_notes($1, $2, $3)`, size, at, batch)
		if err != nil {
			return err
		}
		read := 0
		_, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (_ struct{}, err error) {
			var made []audit.Cosignature
			k, err := scanKept(r, key.Name(), &made)
			if err != nil {
				return struct{}{}, err
			}
			read, size, at = read+1, k.Size, k.At
			return struct{}{}, w.Checkpoint(k.signed(key.KeyHash()), made...)
		})
		if err != nil || read == 0 {
			return err
		}
	}
}

// ErrNothingLost says that the database has as much as was signed.
var ErrNothingLost = errors.New("the database has as many records as that, or the log was resumed since: nothing is given up")

// Resume records an operator's decision to go on from what the database has,
// giving up a checkpoint that knows more. A new incarnation begins with it. pool
// is the operator's database role.
func Resume(ctx context.Context, pool *pgxpool.Pool, lost audit.Checkpoint) (incarnation, from int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT incarnation, size FROM nw.audit_resume($1, $2, $3, $4)`, []any{lost.Size, lost.Root[:], lost.Resumed.Number, lost.Incarnation}, &incarnation, &from)
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code == "NW409" {
		err = ErrNothingLost
	}
	return incarnation, from, err
}
