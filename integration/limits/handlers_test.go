// Package limits has hedge.NewAdaptiveLimiter find the limits of real handlers over real sockets, beside no limit and fixed ones.
package limits

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/require"
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
	db, err := sql.Open("pgx", "postgres://postgres@"+postgres(t)+"/postgres")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return func(ctx context.Context) error {
		var count int
		return db.QueryRowContext(ctx, "SELECT count(*) FROM pg_sleep(0.01)").Scan(&count)
	}
}

// postgres starts a PostgreSQL server and returns its address.
func postgres(t *testing.T) (address string) {
	t.Helper()
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
	initdb, server, ready := program("initdb"), program("postgres"), program("pg_isready")

	// The server refuses to run as root, and its directory must be its user's.
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
	command := func(args ...string) *exec.Cmd {
		args = append(as[:len(as):len(as)], args...)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		return cmd
	}
	data := filepath.Join(dir, "data")
	out, err := command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync").CombinedOutput()
	require.NoError(t, err, "%s", out)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address = l.Addr().String()
	require.NoError(t, l.Close())
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	cmd := command(server, "-D", data, "-F", "-h", "127.0.0.1", "-p", port, "-c", "unix_socket_directories=")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		return exec.Command(ready, "-h", "127.0.0.1", "-p", port, "-U", "postgres").Run() == nil
	}, time.Minute, 10*time.Millisecond)
	return address
}
