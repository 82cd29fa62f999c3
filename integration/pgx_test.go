package integration

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
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

	first, second := postgres(t)
	through, slower := proxied(t, first)
	pool := func(address string) *pgxpool.Pool {
		p, err := pgxpool.New(t.Context(), "postgres://postgres@"+address+"/postgres")
		require.NoError(t, err)
		t.Cleanup(p.Close)
		return p
	}
	primary, replica := pool(through), pool(second)

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

// postgres starts a PostgreSQL server and a replica of it, and returns their addresses.
func postgres(t *testing.T) (primary, replica string) {
	var bin string
	if dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin"); err == nil && len(dirs) > 0 { // where Debian has them
		bin = dirs[len(dirs)-1]
	}
	program := func(name string) string {
		path, err := exec.LookPath(filepath.Join(bin, name))
		if err != nil {
			t.Skip("PostgreSQL is not installed")
		}
		return path
	}
	initdb, server, ready, backup := program("initdb"), program("postgres"), program("pg_isready"), program("pg_basebackup")

	// The server refuses to run as root, and its directories must be its user's.
	dir, err := os.MkdirTemp("", "postgres")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	var as []string
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Skip("there is no user postgres")
		}
		if _, err := exec.LookPath("setpriv"); err != nil {
			t.Skip("setpriv is not installed")
		}
		uid, err := strconv.Atoi(u.Uid)
		require.NoError(t, err)
		gid, err := strconv.Atoi(u.Gid)
		require.NoError(t, err)
		require.NoError(t, os.Chown(dir, uid, gid))
		as = []string{"setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups"}
	}
	do := func(args ...string) {
		args = append(as[:len(as):len(as)], args...)
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	serve := func(data string) (address, port string) {
		address, port = free(t)
		args := append(as[:len(as):len(as)], server, "-D", data, "-F", "-h", "127.0.0.1", "-p", port, "-c", "unix_socket_directories=")
		start(t, args[0], args[1:]...)
		return address, port
	}
	first, second := filepath.Join(dir, "primary"), filepath.Join(dir, "replica")
	do(initdb, "-D", first, "-U", "postgres", "-A", "trust", "--no-sync")
	primary, port := serve(first)
	require.Eventually(t, func() bool {
		return exec.Command(ready, "-h", "127.0.0.1", "-p", port, "-U", "postgres").Run() == nil
	}, limit, 10*time.Millisecond)
	do(backup, "-D", second, "-R", "-c", "fast", "--no-sync", "-h", "127.0.0.1", "-p", port, "-U", "postgres")
	replica, _ = serve(second)
	return primary, replica
}
