// Package postgres starts PostgreSQL servers for tests.
package postgres

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/integration/internal/process"
)

// limit is how long a server may take to start.
const limit = time.Minute

// A Server is one that runs until its test ends. It has a superuser and a database, both named postgres, and asks for no password.
type Server struct {
	Address string // host and port
	port    string
	install installation
}

// An installation is where servers are started from.
type installation struct {
	bin string   // directory of the programs; "": they are in PATH
	dir string   // of what servers store
	as  []string // command that runs another as a user that is not root
}

// Start starts a server. It skips the test where PostgreSQL is not installed.
func Start(t *testing.T) *Server {
	t.Helper()
	var in installation
	if dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin"); err == nil && len(dirs) > 0 { // where Debian has them
		in.bin = dirs[len(dirs)-1]
	}
	for _, name := range []string{"initdb", "postgres", "pg_isready", "pg_basebackup"} {
		if _, err := exec.LookPath(filepath.Join(in.bin, name)); err != nil {
			t.Skip("PostgreSQL is not installed")
		}
	}
	// t.TempDir is within a directory that another user cannot enter.
	var err error
	in.dir, err = os.MkdirTemp("", "postgres")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(in.dir)) })
	if os.Getuid() == 0 {
		in.as = giveAway(t, in.dir)
	}
	in.do(t, "initdb", "-D", "primary", "-U", "postgres", "-A", "trust", "--no-sync")
	return in.serve(t, "primary")
}

// Replica starts a replica of s.
func (s *Server) Replica(t *testing.T) *Server {
	t.Helper()
	s.install.do(t, "pg_basebackup", "-D", "replica", "-R", "-c", "fast", "--no-sync", "-h", "127.0.0.1", "-p", s.port, "-U", "postgres")
	return s.install.serve(t, "replica")
}

// giveAway makes dir that of the user postgres, and returns the command that runs another as that user: a server refuses to run as root.
func giveAway(t *testing.T, dir string) (as []string) {
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
	return []string{"setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups"}
}

// command returns what runs a program of PostgreSQL.
func (in installation) command(program string, args ...string) *exec.Cmd {
	all := append(in.as[:len(in.as):len(in.as)], filepath.Join(in.bin, program))
	all = append(all, args...)
	cmd := exec.Command(all[0], all[1:]...)
	cmd.Dir = in.dir
	return cmd
}

// do runs a program of PostgreSQL to its end.
func (in installation) do(t *testing.T, program string, args ...string) {
	t.Helper()
	out, err := in.command(program, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// serve starts a server of what is stored in a directory, and waits until it is ready.
func (in installation) serve(t *testing.T, data string) *Server {
	t.Helper()
	s := &Server{install: in}
	s.Address, s.port = process.Free(t)
	process.Start(t, in.command("postgres", "-D", data, "-F", "-h", "127.0.0.1", "-p", s.port, "-c", "unix_socket_directories="))
	require.Eventually(t, func() bool {
		return in.command("pg_isready", "-h", "127.0.0.1", "-p", s.port, "-U", "postgres").Run() == nil
	}, limit, 10*time.Millisecond)
	return s
}
