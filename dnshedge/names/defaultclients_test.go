package names_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/names"
)

// A symbolic link that leads to itself is a file that cannot be opened, whoever asks.
func TestNamesReadsHostsFileAgainAfterError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts")
		require.NoError(t, os.Symlink(path, path))
		n := new(names.Names)
		defer n.Close()
		n.ReadHosts(path)
		_, err := n.LookupNetIP(t.Context(), "ip", "printer.example")
		require.ErrorContains(t, err, "Client.Hosts")
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, []byte("10.0.0.7 printer.example\n"), 0o600))
		time.Sleep(time.Second)
		addrs, err := n.LookupNetIP(t.Context(), "ip", "printer.example")
		require.NoError(t, err)
		assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.7")}, addrs)
	})
}

func TestNamesReadsHostsFileThatAppearsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "hosts")
		n := new(names.Names)
		defer n.Close()
		n.ReadHosts(path)
		_, err := n.LookupNetIP(t.Context(), "ip", "x.invalid") // which no Client asks a server for
		require.ErrorContains(t, err, "no such host")
		require.NoError(t, os.WriteFile(path, []byte("10.0.0.7 x.invalid\n"), 0o600))
		time.Sleep(time.Minute)
		addrs, err := n.LookupNetIP(t.Context(), "ip", "x.invalid")
		require.NoError(t, err)
		assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.7")}, addrs)
	})
}
