//go:build unix

package names_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/names"
)

// A process without descriptors has no socket to find the source addresses of RFC 6724 with. This error says nothing
// about the routes.
func TestNamesSortsAddressesAfterLackOfDescriptors(t *testing.T) {
	z := &zone{start: time.Now()}
	z.a.records, z.aaaa.records = []string{"3600 A 127.0.0.1"}, []string{"3600 AAAA 2001:db8::1"}
	sorted := func(n *names.Names) []netip.Addr {
		addrs, err := n.LookupNetIP(t.Context(), "ip", host)
		require.NoError(t, err)
		return addrs
	}
	usual, n := &names.Names{Exchanger: z}, &names.Names{Exchanger: z}
	defer usual.Close()
	defer n.Close()
	want := sorted(usual)

	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	addrs, err := n.LookupNetIP(t.Context(), "ip", host)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.NoError(t, err)
	assert.Len(t, addrs, 2)
	assert.Equal(t, want, sorted(n))
}
