package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
)

// Dataset is what a guard stands before: which ledger, and so which database, and
// what its tables are like.
type Dataset struct {
	ID    [32]byte // made with the ledger; a copy of the database has the same
	Shape [32]byte // of the tables: columns, constraints, unique indexes, triggers and their functions, rules, policies
}

// Digest is that of both, for guards.Config.Datasets and the requirement that
// lists it. After a change of the tables it is another one.
func (d Dataset) Digest() [32]byte {
	return canonical.Digest("nightwarrant/dataset/v1", d.ID[:], d.Shape[:])
}

// Dataset reads what the ledger stands before. From the first call on, by whoever
// (Probe is one), another one is not safe: its error wraps guards.ErrSettings, as
// it does when a table or column of the configuration is not there, or when what
// happens to a table would not be in the effect's own transaction.
func (l *Ledger) Dataset(ctx context.Context) (Dataset, error) {
	_, d, err := l.look(ctx)
	return d, err
}

// look is a probe and its comparison with the first.
func (l *Ledger) look(ctx context.Context) (guards.Seen, Dataset, error) {
	seen, found, err := l.store.probe(ctx, l.watched)
	if err == nil {
		err = l.compare(found)
	}
	return seen, found.Dataset, err
}

func (l *Ledger) compare(f found) error {
	if f.problem != "" {
		return unsafeSettings("%s", f.problem)
	}
	for _, c := range l.columns {
		if !slices.Contains(f.columns, c) {
			return unsafeSettings("there is no column %s", strings.Join(c[:], "."))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.dataset == nil:
		l.dataset = &f.Dataset
	case l.dataset.ID != f.ID:
		return unsafeSettings("this is another database than before")
	case l.dataset.Shape != f.Shape:
		return unsafeSettings("the tables are not what they were when this guard started: look at it, and start it anew")
	}
	return nil
}

func unsafeSettings(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{guards.ErrSettings}, args...)...)
}

// found is what a probe came across.
type found struct {
	Dataset
	problem string
	columns [][3]string
}

// watch lists the tables of a configuration as the ledger's function wants them, and the columns that must be there.
func (c Config) watch() (tables string, columns [][3]string, err error) {
	all := map[[2]string]bool{}
	for name, t := range c.Tables {
		all[[2]string{t.schema(), name}] = true
		for _, column := range t.Columns {
			columns = append(columns, [3]string{t.schema(), name, column})
		}
	}
	for action, o := range c.Operations {
		for _, table := range o.Tables {
			schema, name, ok := strings.Cut(table, ".")
			if !ok || schema == "" || name == "" {
				return "", nil, fmt.Errorf("%.64q touches %.64q, which is not schema.table", action, table)
			}
			all[[2]string{schema, name}] = true
		}
	}
	encoded, err := json.Marshal(slices.SortedFunc(maps.Keys(all), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }))
	if len(all) == 0 {
		encoded = []byte("[]")
	}
	return string(encoded), columns, err
}

var errShape = errors.New("guards/postgres: the ledger describes what it cannot")
