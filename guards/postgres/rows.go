package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
)

const maxRows = 100 // that one row action may read or change

var (
	errParameters = errors.New("the parameters reach for what this guard does not allow")
	columnForm    = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`) // as in authority/catalogue
)

// rows are the parameters of the row actions, as the catalogue has checked them.
type rows struct {
	Table  string         `json:"table"`
	Key    map[string]any `json:"key"`
	Values map[string]any `json:"values"`
}

// tables is the operator's allow list.
type tables map[string]Table

// rowOperations are the catalogue's actions over the allow list, or none.
func rowOperations(allowed tables) (map[string]operation, error) {
	if err := allowed.check(); err != nil {
		return nil, err
	}
	operations := map[string]operation{}
	if len(allowed) == 0 {
		return operations, nil
	}
	for action, do := range map[string]func(context.Context, transaction, Table, rows) (any, error){
		"row.append": appendRow, "row.read": readRows, "row.update": updateRows, "row.delete": deleteRows,
	} {
		catalogued, err := guards.Catalogued(catalogue.Postgres, action)
		if err != nil {
			return nil, err
		}
		operations[action] = operation{allowed.target(catalogued), allowed.do(do)}
	}
	return operations, nil
}

func (t tables) check() error {
	for name, table := range t {
		all := append([]string{name}, table.Columns...)
		if len(table.Columns) == 0 || slices.ContainsFunc(all, func(s string) bool { return !columnForm.MatchString(s) }) {
			return fmt.Errorf("table %.64q has no columns, or a name that is not lower case", name)
		}
		for _, key := range table.Key {
			if !slices.Contains(table.Columns, key) {
				return fmt.Errorf("table %.64q: the key column %.64q is not among its columns", name, key)
			}
		}
	}
	return nil
}

// target refuses what is outside the allow list before anything is consumed.
func (t tables) target(catalogued guards.Operation) guards.Operation {
	return func(params json.RawMessage) (guards.Target, error) {
		target, err := catalogued(params)
		if err != nil {
			return guards.Target{}, err
		}
		if _, _, err := t.parse(params); err != nil {
			return guards.Target{}, err
		}
		return target, nil
	}
}

func (t tables) do(do func(context.Context, transaction, Table, rows) (any, error)) func(context.Context, transaction, json.RawMessage) (any, error) {
	return func(ctx context.Context, tx transaction, params json.RawMessage) (any, error) {
		table, r, err := t.parse(params)
		if err != nil {
			return nil, err
		}
		return do(ctx, tx, table, r)
	}
}

func (t tables) parse(params json.RawMessage) (Table, rows, error) {
	var r rows
	decoder := json.NewDecoder(bytes.NewReader(params))
	decoder.UseNumber()
	if err := decoder.Decode(&r); err != nil {
		return Table{}, rows{}, errParameters
	}
	table, ok := t[r.Table]
	if !ok || !table.allows(r) {
		return Table{}, rows{}, errParameters
	}
	return table, r, nil
}

// allows wants a key to be the whole key, so that an action reaches the rows of one key and no others.
func (t Table) allows(r rows) bool {
	for column := range r.Values {
		if !slices.Contains(t.Columns, column) {
			return false
		}
	}
	for column := range r.Key {
		if !slices.Contains(t.Key, column) {
			return false
		}
	}
	return r.Key == nil || len(r.Key) == len(t.Key)
}

// statement builds SQL from quoted names of the allow list and numbered parameters; values never become text of it.
type statement struct {
	strings.Builder
	args []any
}

func (s *statement) table(t Table, name string) {
	s.WriteString(pgx.Identifier{t.schema(), name}.Sanitize())
}

func (t Table) schema() string { return cmp.Or(t.Schema, "public") }

func (s *statement) names(columns []string) {
	for i, column := range columns {
		if i > 0 {
			s.WriteString(", ")
		}
		s.WriteString(pgx.Identifier{column}.Sanitize())
	}
}

func (s *statement) parameter(value any) {
	if number, ok := value.(json.Number); ok {
		value, _ = number.Int64() // the catalogue takes no other numbers
	}
	s.args = append(s.args, value)
	s.WriteString("$" + strconv.Itoa(len(s.args)))
}

// pairs writes column = parameter for each, in the order of the columns' names.
func (s *statement) pairs(values map[string]any, between string) {
	for i, column := range slices.Sorted(maps.Keys(values)) {
		if i > 0 {
			s.WriteString(between)
		}
		s.names([]string{column})
		s.WriteString(" = ")
		s.parameter(values[column])
	}
}

// changed is the result of an action that changes rows.
type changed struct {
	Rows int64 `json:"rows"`
}

func (s *statement) change(ctx context.Context, tx transaction) (any, error) {
	n, err := tx.exec(ctx, s.String(), s.args)
	if err != nil {
		return nil, err
	}
	if n > maxRows {
		return nil, fmt.Errorf("%w: %d rows", errParameters, n)
	}
	return changed{n}, nil
}

func appendRow(ctx context.Context, tx transaction, t Table, r rows) (any, error) {
	columns := slices.Sorted(maps.Keys(r.Values))
	s := new(statement)
	s.WriteString("INSERT INTO ")
	s.table(t, r.Table)
	s.WriteString(" (")
	s.names(columns)
	s.WriteString(") VALUES (")
	for i, column := range columns {
		if i > 0 {
			s.WriteString(", ")
		}
		s.parameter(r.Values[column])
	}
	s.WriteString(")")
	return s.change(ctx, tx)
}

func updateRows(ctx context.Context, tx transaction, t Table, r rows) (any, error) {
	s := new(statement)
	s.WriteString("UPDATE ")
	s.table(t, r.Table)
	s.WriteString(" SET ")
	s.pairs(r.Values, ", ")
	s.WriteString(" WHERE ")
	s.pairs(r.Key, " AND ")
	return s.change(ctx, tx)
}

func deleteRows(ctx context.Context, tx transaction, t Table, r rows) (any, error) {
	s := new(statement)
	s.WriteString("DELETE FROM ")
	s.table(t, r.Table)
	s.WriteString(" WHERE ")
	s.pairs(r.Key, " AND ")
	return s.change(ctx, tx)
}

// read is the result of row.read: the allowed columns, whichever the guard's role could see.
type read struct {
	Rows json.RawMessage `json:"rows"`
}

func readRows(ctx context.Context, tx transaction, t Table, r rows) (any, error) {
	s := new(statement)
	s.WriteString("SELECT count(*), coalesce(jsonb_agg(to_jsonb(r)), '[]')::text FROM (SELECT ")
	s.names(t.Columns)
	s.WriteString(" FROM ")
	s.table(t, r.Table)
	s.WriteString(" WHERE ")
	s.pairs(r.Key, " AND ")
	s.WriteString(" LIMIT " + strconv.Itoa(maxRows+1) + ") r")
	var n int
	var all string
	if err := tx.row(ctx, s.String(), s.args, &n, &all); err != nil {
		return nil, err
	}
	if n > maxRows {
		return nil, fmt.Errorf("%w: more than %d rows", errParameters, maxRows)
	}
	return read{json.RawMessage(all)}, nil
}
