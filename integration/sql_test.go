package integration

import (
	"context"
	"database/sql"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/integration/internal/postgres"
)

// TestDatabaseSQL has two pools of one server. One reaches it through a proxy that becomes slow.
func TestDatabaseSQL(t *testing.T) {
	server := postgres.Start(t)
	through, slower := proxied(t, server.Address)
	open := func(address string) *sql.DB {
		db, err := sql.Open("pgx", "postgres://postgres@"+address+"/postgres")
		require.NoError(t, err)
		t.Cleanup(func() { db.Close() })
		return db
	}
	primary, replica := open(through), open(server.Address)

	hedger := hedge.NewHedger()
	query := func(ctx context.Context, name string) (n int, err error) {
		db := primary
		if a, ok := hedge.AttemptFromContext(ctx); ok && a.Number > 0 {
			db = replica
		}
		err = db.QueryRowContext(ctx, "SELECT count FROM stock WHERE name = $1", name).Scan(&n)
		return n, err
	}
	count := func(ctx context.Context, name string) (int, error) {
		return hedge.DoDetached(ctx, hedger, "count", func(ctx context.Context) (int, error) {
			ctx, cancel := finishing(ctx)
			defer cancel()
			return query(ctx, name)
		}, nil)
	}

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := replica.ExecContext(ctx, "CREATE TABLE stock AS SELECT 'lamp' AS name, 3 AS count")
	require.NoError(t, err)
	var backend int // process of the server that works for the pool primary
	require.NoError(t, primary.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&backend))
	connected := func() bool {
		var n int
		err := replica.QueryRowContext(ctx, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", backend).Scan(&n)
		return err == nil && n == 1
	}
	got, err := count(ctx, "lamp")
	require.NoError(t, err)
	require.Equal(t, 3, got)

	slower(time.Second)
	got, err = count(hedge.WithDelay(ctx, delay), "lamp")
	require.NoError(t, err)
	require.Equal(t, 3, got)
	require.EqualValues(t, 1, hedger.Snapshot().Stats.HedgeWins)
	require.Equal(t, 1, primary.Stats().InUse, "the loser has ended already")
	require.Eventually(t, func() bool { return primary.Stats().InUse == 0 }, limit, time.Millisecond)
	require.True(t, connected(), "a loser's connection was closed")

	// With Do, and without finishing, the loser's query is cancelled, and its connection closed.
	got, err = hedge.Do(hedge.WithDelay(ctx, delay), hedger, "count", func(ctx context.Context) (int, error) { return query(ctx, "lamp") })
	require.NoError(t, err)
	require.Equal(t, 3, got)
	require.Eventually(t, func() bool { return !connected() }, limit, time.Millisecond)
}
