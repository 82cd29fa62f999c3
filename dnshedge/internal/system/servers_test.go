package system_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/system"
)

// newServers returns the servers of a file.
func newServers(path string) *system.Servers {
	return system.NewServers(path, func(string) bool { return true }, func(f func(context.Context)) bool {
		go f(context.Background())
		return true
	})
}

func TestServersReadAgainAfterError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	loop := func() { // a file that cannot be opened, whoever asks
		require.NoError(t, os.Symlink(path, path))
	}
	text := []byte("nameserver 192.0.2.53\noptions rotate\n")
	changed := time.Now().Add(-time.Hour)
	write := func() {
		require.NoError(t, os.WriteFile(path, text, 0o600))
		require.NoError(t, os.Chtimes(path, changed, changed))
	}
	remove := func() { require.NoError(t, os.Remove(path)) }
	servers := newServers(path)
	named, local := []system.Server{{Addr: "192.0.2.53:53"}}, []system.Server{{Addr: "127.0.0.1:53"}, {Addr: "[::1]:53"}}
	now := time.Now()

	loop()
	all, err := servers.DefaultServers(now)
	require.ErrorIs(t, err, syscall.ELOOP)
	assert.Empty(t, all, "no question goes to a server that the file may not name")

	remove()
	write()
	all, err = servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, named, all, "the file is read again at once while no servers are known")
	assert.True(t, servers.HasRotateOption())
	version := servers.Version(now)

	remove()
	loop()
	now = now.Add(5 * time.Second)
	all, err = servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, named, all, "an error changes nothing")
	assert.True(t, servers.HasRotateOption())
	assert.Equal(t, version, servers.Version(now))

	remove()
	now = now.Add(5 * time.Second)
	all, err = servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, local, all, "a file that is missing names no servers")
	assert.False(t, servers.HasRotateOption())

	write()
	now = now.Add(5 * time.Second)
	all, err = servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, named, all, "the same file is read again")
	assert.True(t, servers.HasRotateOption())
}

// The system reports servers for one domain only, so that the other names use the servers in the file.
func TestServersStayWhenFileCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func() {
		require.NoError(t, os.WriteFile(path, []byte("nameserver 192.0.2.53\noptions rotate\n"), 0o600))
	}
	vpn := netip.MustParseAddrPort("192.0.2.99:53")
	servers := newServers(path)
	servers.Ask = func() (system.Configuration, error) {
		return system.Configuration{Domains: map[string][]netip.AddrPort{"corp.example": {vpn}}}, nil
	}
	want := []system.Server{{Addr: "192.0.2.53:53"}}
	now := time.Now()
	write()
	all, err := servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, want, all)
	version := servers.Version(now)

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(path, path)) // it cannot be opened
	vpn = netip.MustParseAddrPort("192.0.2.100:53")
	now = now.Add(5 * time.Second)
	all, err = servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, want, all, "an error changes nothing")
	assert.True(t, servers.HasRotateOption())
	assert.Equal(t, map[string][]system.Server{"\x04corp\x07example\x00": {{Addr: "192.0.2.100:53"}}}, servers.Domains(now))
	assert.Equal(t, version+1, servers.Version(now), "the system's servers have changed")

	require.NoError(t, os.Remove(path))
	write()
	now = now.Add(5 * time.Second)
	all, err = servers.DefaultServers(now)
	require.NoError(t, err)
	assert.Equal(t, want, all)
	assert.Equal(t, version+1, servers.Version(now))
}

func TestServersReadFileWhenSystemFailsFirst(t *testing.T) {
	busy := errors.New("the system is busy")
	err := busy
	servers := newServers("")
	servers.Path = ""
	servers.Ask = func() (system.Configuration, error) {
		return system.Configuration{Servers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}}, err
	}
	_, got := servers.DefaultServers(time.Now())
	require.ErrorIs(t, got, busy)
	err = nil
	all, got := servers.DefaultServers(time.Now())
	require.NoError(t, got)
	assert.Equal(t, []system.Server{{Addr: "192.0.2.53:53"}}, all)
}

func TestServersReadLinesAfterLongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	long := strings.Repeat("home.example ", 10_000)
	text := "search " + long + "\n# nameserver 192.0.2.1\n; " + long + "\nnameserver\nnameserver\t192.0.2.53 # main\r\nnameserver ns.example\noptions rotate\nnameserver 2001:db8::53"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	servers := newServers(path)
	all, err := servers.DefaultServers(time.Now())
	require.NoError(t, err)
	assert.Equal(t, []system.Server{{Addr: "192.0.2.53:53"}, {Addr: "[2001:db8::53]:53"}}, all)
	assert.True(t, servers.HasRotateOption())
}
