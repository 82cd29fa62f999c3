package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/integration/internal/postgres"
)

// finishing returns a context that ends as ctx does, but not because another attempt won.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(time.Minute)
	}
	all, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	stop := context.AfterFunc(ctx, func() {
		if ctx.Err() == context.Canceled && !errors.Is(context.Cause(ctx), hedge.ErrLost) {
			cancel()
		}
	})
	return all, func() { stop(); cancel() }
}

// TestPgx has a primary and a replica. The client reaches the primary through a proxy that becomes slow.
func TestPgx(t *testing.T) {
	const latency = 2 * time.Second

	server := postgres.Start(t)
	through, slower := proxied(t, server.Address)
	pool := func(address string) *pgxpool.Pool {
		p, err := pgxpool.New(t.Context(), "postgres://postgres@"+address+"/postgres")
		require.NoError(t, err)
		t.Cleanup(p.Close)
		return p
	}
	primary, replica := pool(through), pool(server.Replica(t).Address)

	hedger := hedge.NewHedger()
	count := func(ctx context.Context, name string) (int, error) {
		return hedge.DoDetached(ctx, hedger, "count", func(ctx context.Context) (n int, err error) {
			pool := primary
			if a, ok := hedge.AttemptFromContext(ctx); ok && a.Number > 0 {
				pool = replica
			}
			ctx, cancel := finishing(ctx)
			defer cancel()
			err = pool.QueryRow(ctx, "SELECT count FROM stock WHERE name = $1", name).Scan(&n)
			return n, err
		}, nil)
	}

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := primary.Exec(ctx, "CREATE TABLE stock AS SELECT 'lamp' AS name, 3 AS count")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var n int
		return replica.QueryRow(ctx, "SELECT count FROM stock WHERE name = $1", "lamp").Scan(&n) == nil
	}, limit, time.Millisecond)
	got, err := count(ctx, "lamp")
	require.NoError(t, err)
	require.Equal(t, 3, got)

	slower(latency)
	start := time.Now()
	got, err = count(hedge.WithDelay(ctx, delay), "lamp")
	require.NoError(t, err)
	require.Equal(t, 3, got)
	require.Less(t, time.Since(start), latency)
	require.EqualValues(t, 1, hedger.Snapshot().Stats.HedgeWins)
	require.EqualValues(t, 1, primary.Stat().AcquiredConns(), "the loser has ended already")
	require.Eventually(t, func() bool { return primary.Stat().AcquiredConns() == 0 }, limit, time.Millisecond)
	assert.EqualValues(t, primary.Stat().NewConnsCount(), primary.Stat().TotalConns(), "a loser's connection was closed")

	// A caller that gives up does not wait for its query.
	start = time.Now()
	late, cancel := context.WithTimeout(hedge.WithDelay(ctx, limit), delay)
	defer cancel()
	_, err = count(late, "lamp")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	gone, cancel := context.WithCancel(hedge.WithDelay(ctx, limit))
	time.AfterFunc(delay, cancel)
	_, err = count(gone, "lamp")
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(start), latency)
}
