// Package limits has hedge.NewAdaptiveLimiter find the limits of real handlers over real sockets, beside no limit and fixed ones.
package limits

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/integration/internal/postgres"
)

// A handler is what a server does for a request.
type handler struct {
	name     string
	protocol string // http or grpc
	callers  int    // as many as measure its capacity
	free     bool   // it has no limit of its own
	work     func(t *testing.T) func(context.Context) error
}

// The connections that a handler has to its database.
const connections = 8

func handlers() []handler {
	return []handler{
		{"computes for 2 ms", "http", 8, false, computes},
		{"sleeps for 20 ms", "http", 24, true, sleeps},
		{"queries a database for 10 ms, over 8 connections", "http", 2 * connections, false, queries},
		{"holds a lock for 1 ms, and waits for 10 ms outside of it", "http", 24, false, locks},
		{"the same over gRPC", "grpc", 24, false, locks},
	}
}

// computes hashes for as long as takes 2 ms of an idle processor.
func computes(*testing.T) func(context.Context) error {
	block := make([]byte, 16<<10)
	fastest := time.Hour
	for range 200 {
		start := time.Now()
		sha256.Sum256(block)
		fastest = min(fastest, time.Since(start))
	}
	times := int(2 * time.Millisecond / fastest)
	return func(context.Context) error {
		for range times {
			sha256.Sum256(block)
		}
		return nil
	}
}

func sleeps(*testing.T) func(context.Context) error {
	return func(context.Context) error {
		time.Sleep(20 * time.Millisecond)
		return nil
	}
}

func locks(*testing.T) func(context.Context) error {
	var mu sync.Mutex
	return func(context.Context) error {
		time.Sleep(5 * time.Millisecond)
		mu.Lock()
		time.Sleep(time.Millisecond)
		mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		return nil
	}
}

// queries asks a PostgreSQL server, and skips the test where there is none.
func queries(t *testing.T) func(context.Context) error {
	db, err := sql.Open("pgx", "postgres://postgres@"+postgres.Start(t).Address+"/postgres")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return func(ctx context.Context) error {
		var count int
		return db.QueryRowContext(ctx, "SELECT count(*) FROM pg_sleep(0.01)").Scan(&count)
	}
}
