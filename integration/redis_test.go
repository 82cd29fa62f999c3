package integration

import (
	"context"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/integration/internal/process"
)

// TestRedis has a primary and a replica. The client reaches the primary through a proxy that becomes slow.
func TestRedis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	const latency = 2 * time.Second

	from := redisServer(t)
	through, slower := proxied(t, from)
	primary := redis.NewClient(&redis.Options{Addr: through, ReadTimeout: limit})
	defer primary.Close()
	host, port, err := net.SplitHostPort(from)
	require.NoError(t, err)
	replica := redis.NewClient(&redis.Options{Addr: redisServer(t, "--replicaof", host, port)})
	defer replica.Close()

	hedger := hedge.NewHedger()
	get := func(ctx context.Context, key string) (*string, error) {
		return hedge.DoDetached(ctx, hedger, "GET", func(ctx context.Context) (*string, error) {
			node := primary
			if a, ok := hedge.AttemptFromContext(ctx); ok && a.Number > 0 {
				node = replica
			}
			value, err := node.Get(ctx, key).Result()
			if err == redis.Nil {
				return nil, nil // is an answer
			}
			return &value, err
		}, nil)
	}

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	require.NoError(t, primary.Set(ctx, "lamps", "three", 0).Err())
	require.Eventually(t, func() bool { return replica.Get(ctx, "lamps").Val() == "three" }, limit, time.Millisecond)
	three := "three"
	for key, want := range map[string]*string{"lamps": &three, "chairs": nil} {
		got, err := get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	slower(latency)
	start := time.Now()
	got, err := get(hedge.WithDelay(ctx, delay), "lamps")
	require.NoError(t, err)
	require.Equal(t, &three, got)
	require.Less(t, time.Since(start), latency)
	require.EqualValues(t, 1, hedger.Snapshot().Stats.HedgeWins)
	require.Zero(t, primary.PoolStats().IdleConns, "the loser has ended already")
	require.Eventually(t, func() bool { return primary.PoolStats().IdleConns == 1 }, limit, time.Millisecond)
	assert.EqualValues(t, 1, primary.PoolStats().Misses, "a loser's connection was closed")
}

// redisServer starts a server and returns its address.
func redisServer(t *testing.T, args ...string) string {
	address, port := process.Free(t)
	args = append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--repl-diskless-sync-delay", "0"}, args...)
	process.Start(t, exec.Command("redis-server", args...))
	c := redis.NewClient(&redis.Options{Addr: address})
	defer c.Close()
	require.Eventually(t, func() bool { return c.Ping(t.Context()).Err() == nil }, limit, time.Millisecond)
	return address
}
