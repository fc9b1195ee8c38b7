package sequencer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// waiting is what a leader is handed.
type waiting struct {
	at                       time.Time
	size, incarnation, epoch int64
	ids                      []int64
	digests                  []audit.Digest
}

func (s *Sequencer) lead(ctx context.Context) (w waiting, leading bool, err error) {
	rows, err := s.Pool.Query(ctx, `SELECT at, size, incarnation, epoch, ids, digests FROM nw.audit_lead($1, $2)`, s.Who[:], batch)
	if err != nil {
		return w, false, err
	}
	w, err = pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (w waiting, err error) {
		var digests [][]byte
		if err = r.Scan(&w.at, &w.size, &w.incarnation, &w.epoch, &w.ids, &digests); err != nil {
			return w, err
		}
		for _, d := range digests {
			w.digests = append(w.digests, audit.Digest(d))
		}
		return w, nil
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return w, false, nil
	}
	return w, err == nil, err
}

// append numbers what waited. An unknown end is an error: the next round reads what came of it.
func (s *Sequencer) append(ctx context.Context, w waiting) error {
	var appended bool
	if _, err := pg.Call(ctx, s.Pool, `SELECT appended FROM nw.audit_append($1, $2, $3)`, []any{s.Who[:], w.size, w.ids}, &appended); err != nil {
		return err
	}
	if !appended {
		return errors.New("another replica has gone on with the log")
	}
	return nil
}

func (s *Sequencer) keep(ctx context.Context, c audit.Checkpoint, signature []byte) error {
	var kept bool
	_, err := pg.Call(ctx, s.Pool, `SELECT kept FROM nw.audit_sign($1, $2, $3, $4, $5, $6, $7, $8)`,
		[]any{s.Who[:], c.Size, c.At, c.Root[:], s.tree.Edge(), c.Incarnation, c.Epoch, signature}, &kept)
	if err == nil && !kept {
		err = errors.New("another replica has gone on with the log")
	}
	return err
}

// last is the newest checkpoint, with the tree that it is of. An empty log has none.
func (s *Sequencer) last(ctx context.Context) (audit.Checkpoint, *audit.Tree, error) {
	rows, err := s.Pool.Query(ctx, `SELECT size, at, root, edge, incarnation, epoch, signature FROM nw.audit_last()`)
	if err != nil {
		return audit.Checkpoint{}, nil, err
	}
	k, err := pgx.CollectExactlyOneRow(rows, scanKept(s.Key.Name()))
	if errors.Is(err, pgx.ErrNoRows) {
		return audit.Checkpoint{}, &audit.Tree{}, nil
	}
	if err != nil {
		return audit.Checkpoint{}, nil, err
	}
	c, err := audit.OpenCheckpoint(k.Signed(s.Key.KeyHash(), k.signature), s.Key.Verifier())
	if err != nil {
		return c, nil, fmt.Errorf("%w: its newest checkpoint: %w", ErrDiffers, err)
	}
	tree, err := audit.OpenTree(c.Size, k.edge)
	if err != nil {
		return c, nil, fmt.Errorf("%w: %w", ErrDiffers, err)
	}
	if tree.Root() != c.Root {
		return c, nil, fmt.Errorf("%w: the edge of its tree has another root", ErrDiffers)
	}
	return c, tree, nil
}

// kept is a checkpoint as the database keeps it.
type kept struct {
	audit.Checkpoint
	edge, signature []byte
}

func scanKept(origin string) pgx.RowToFunc[kept] {
	return func(r pgx.CollectableRow) (kept, error) {
		k := kept{Checkpoint: audit.Checkpoint{Origin: origin}}
		var root []byte
		err := r.Scan(&k.Size, &k.At, &root, &k.edge, &k.Incarnation, &k.Epoch, &k.signature)
		if err == nil {
			k.Root = tlog.Hash(root)
		}
		return k, err
	}
}

// grow appends to a tree what the database has numbered since.
func (s *Sequencer) grow(ctx context.Context, tree *audit.Tree, size int64) error {
	for tree.Size() < size {
		records, err := readRecords(ctx, s.Pool, tree.Size(), batch)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("%w: record %d is missing", ErrDiffers, tree.Size())
		}
		for _, r := range records {
			if r.Leaf != tree.Size() {
				return fmt.Errorf("%w: record %d is missing", ErrDiffers, tree.Size())
			}
			if tree.Size() == size {
				break
			}
			tree.Append(r.Digest)
		}
	}
	return nil
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
func Export(ctx context.Context, pool *pgxpool.Pool, key note.Verifier, w *audit.Writer) (records int64, err error) {
	for {
		page, err := readRecords(ctx, pool, records, batch)
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
		records = page[len(page)-1].Leaf + 1
	}
}

func exportCheckpoints(ctx context.Context, pool *pgxpool.Pool, key note.Verifier, w *audit.Writer) error {
	var size int64
	var at time.Time
	for {
		rows, err := pool.Query(ctx, `SELECT size, at, root, edge, incarnation, epoch, signature FROM nw.audit_notes($1, $2, $3)`, size, at, batch)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, scanKept(key.Name()))
		if err != nil || len(page) == 0 {
			return err
		}
		for _, k := range page {
			if err := w.Checkpoint(k.Signed(key.KeyHash(), k.signature)); err != nil {
				return err
			}
		}
		size, at = page[len(page)-1].Size, page[len(page)-1].At
	}
}
