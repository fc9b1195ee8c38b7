package postgres_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/postgres"
)

// A guard in front of one table, with one operation of its owner beside the row actions.
func Example() {
	ctx := context.Background()
	pool, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return
	}
	defer pool.Close()

	ledger, err := postgres.New(postgres.Config{
		Pool:       pool,
		Tables:     map[string]postgres.Table{"orders": {Columns: []string{"id", "paid"}, Key: []string{"id"}}},
		Operations: map[string]postgres.Operation{"order.archive": archive},
	})
	if err != nil {
		return
	}
	guard, err := guards.New(guards.Config{
		URI: "https://orders.example/guard", Name: "orders", Issuer: "https://authority.example",
		Assertion: func(context.Context) (string, error) {
			token, err := os.ReadFile("/var/run/secrets/nightwarrant/token")
			return string(token), err
		},
		Ledger: ledger, Operations: ledger.Operations(),
	})
	if err != nil {
		return
	}
	go func() { _ = guard.Run(ctx) }() // ends with ctx, or when a later boot has taken over
	server := &http.Server{Addr: ":9001", Handler: guard, ReadHeaderTimeout: 5 * time.Second}
	_ = server.ListenAndServe()
}

// The same over database/sql, with whatever driver the program has.
func Example_databaseSQL() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(10) // three are kept for proofs

	ledger, err := postgres.New(postgres.Config{DB: db, Schema: "archive_guard", Operations: map[string]postgres.Operation{"order.archive": {
		Target: archive.Target,
		DoSQL: func(ctx context.Context, tx *postgres.Tx, params json.RawMessage) (any, error) {
			var o order
			if err := json.Unmarshal(params, &o); err != nil {
				return nil, err
			}
			_, err := tx.ExecContext(ctx, `UPDATE orders SET archived = true WHERE id = $1`, o.ID)
			return nil, err
		},
		Tables: []string{"public.orders"}, // whose shape is watched
	}}})
	if err != nil {
		return
	}
	_ = ledger // into guards.Config, as above
}

type order struct {
	ID string `json:"id"`
}

var archive = postgres.Operation{
	Target: func(params json.RawMessage) (guards.Target, error) {
		var o order
		if err := canonical.Decode(params, &o); err != nil || o.ID == "" { // refuses members that it does not know
			return guards.Target{}, errors.New("name the order")
		}
		return guards.Target{Resource: "order:" + o.ID}, nil
	},
	Do: func(ctx context.Context, tx pgx.Tx, params json.RawMessage) (any, error) {
		var o order
		if err := json.Unmarshal(params, &o); err != nil {
			return nil, err
		}
		tag, err := tx.Exec(ctx, `UPDATE orders SET archived = true WHERE id = $1`, o.ID)
		return map[string]int64{"orders": tag.RowsAffected()}, err
	},
}
