package recursor_test

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// short is a root and a zone whose records have a TTL of a minute.
const short = `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2
  www 60 A 192.0.2.80
`

// client returns a Client whose Exchanger is a Resolver.
func (w *testNetwork) client(r *recursor.Resolver) *dnshedge.Client {
	c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
	w.t.Cleanup(func() { c.Close() })
	return c
}

func (w *testNetwork) askClient(c *dnshedge.Client, question string) *dns.Msg {
	w.t.Helper()
	r, _, err := c.ExchangeContext(context.Background(), parseQuestion(question), "")
	require.NoError(w.t, err)
	return r
}

func TestClientServesStaleAnswersWhileServersAreUnresponsive(t *testing.T) {
	bubble(t, short, func(t *testing.T, w *testNetwork) {
		c := w.client(w.resolver())
		w.askClient(c, "www.example. A")
		w.setFault("192.0.2.1 192.0.2.2", silent)
		time.Sleep(2 * time.Minute)
		began := time.Now()
		r := w.askClient(c, "www.example. A")
		assert.Len(t, r.Answer, 1)
		code, _ := readExtendedError(r)
		assert.Equal(t, dns.ExtendedErrorCodeStaleAnswer, code)
		assert.LessOrEqual(t, time.Since(began), 1800*ms, "RFC 8767 §5")
		w.setFault("192.0.2.1 192.0.2.2", nil)
		time.Sleep(time.Minute)
		r = w.askClient(c, "www.example. A")
		assert.EqualValues(t, 60, r.Answer[0].Header().Ttl)
	})
}

func TestClientRefreshAsksServersAgain(t *testing.T) {
	bubble(t, short, func(t *testing.T, w *testNetwork) {
		c := w.client(w.resolver())
		w.askClient(c, "www.example. A")
		for range 3 {
			w.askClient(c, "www.example. A")
		}
		time.Sleep(58 * time.Second) // in the last tenth of the TTL
		n := w.countQueries()
		w.askClient(c, "www.example. A")
		time.Sleep(time.Second)
		assert.Equal(t, n+1, w.countQueries(), "one query, to a known server")
		time.Sleep(30 * time.Second)
		r := w.askClient(c, "www.example. A")
		assert.Equal(t, n+1, w.countQueries())
		assert.EqualValues(t, 60-31, r.Answer[0].Header().Ttl)
	})
}

func TestResolverWorksAsDefaultResolver(t *testing.T) {
	bubble(t, short, func(t *testing.T, w *testNetwork) {
		c := w.client(w.resolver())
		addrs, err := c.Resolver().LookupHost(context.Background(), "www.example.")
		require.NoError(t, err)
		assert.Equal(t, []string{"192.0.2.80"}, addrs)
		_, err = c.Resolver().LookupHost(context.Background(), "nx.example.")
		var e *net.DNSError
		require.ErrorAs(t, err, &e)
		assert.True(t, e.IsNotFound)
		all, err := c.LookupAddrs(context.Background(), "www.example.")
		require.NoError(t, err)
		assert.Len(t, all, 1)
	})
}

// TestClientCachesNoFailureWithoutNetwork asks while there is no network. The failure does not concern the names, so
// it is not cached as a failure of their servers.
func TestClientCachesNoFailureWithoutNetwork(t *testing.T) {
	for name, cold := range map[string]bool{"at first": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, short, func(t *testing.T, w *testNetwork) {
				c := w.client(w.resolver())
				if !cold {
					w.askClient(c, "other.example. A")
				}
				w.refuse = func(string, netip.Addr) error { return syscall.ENETUNREACH }
				for range 200 { // ten minutes
					_, _, err := c.ExchangeContext(t.Context(), parseQuestion("www.example. A"), "")
					require.ErrorIs(t, err, syscall.ENETUNREACH)
					time.Sleep(3 * time.Second)
				}
				w.refuse = nil
				time.Sleep(6 * time.Second)
				assert.Len(t, w.askClient(c, "www.example. A").Answer, 1)
			})
		})
	}
}

// TestClientSkipsNamesBelowSecureNXDOMAIN requires RFC 8020 for secure denials, unless Zones or Trust has a zone
// below the name.
func TestClientSkipsNamesBelowSecureNXDOMAIN(t *testing.T) {
	zone := map[string][]netip.AddrPort{"ad.no.example.tld.": {netip.MustParseAddrPort("192.0.3.4:53")}}
	for name, tt := range map[string]struct {
		set   func(*recursor.Resolver)
		asked bool
	}{
		"validated":                {func(*recursor.Resolver) {}, false},
		"not validated":            {func(r *recursor.Resolver) { r.Trust = dnssec.Trust{Off: true} }, true},
		"a zone of its own below":  {func(r *recursor.Resolver) { r.Zones = zone }, true},
		"insecure below":           {func(r *recursor.Resolver) { r.Trust.Insecure = []string{"x.no.example.tld"} }, true},
		"insecure beside":          {func(r *recursor.Resolver) { r.Trust.Insecure = []string{"x.on.example.tld"} }, false},
		"a zone of its own beside": {func(r *recursor.Resolver) { r.Zones = map[string][]netip.AddrPort{"corp.": zone["ad.no.example.tld."]} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, signed, func(t *testing.T, w *testNetwork) {
				signZones(w)
				r := newValidatingResolver(w, tt.set)
				c := w.client(r)
				require.Equal(t, dns.RcodeNameError, w.askClient(c, "no.example.tld. A").Rcode)
				n := r.Stats().Questions
				m := w.askClient(c, "b.c.no.example.tld. A")
				assert.Equal(t, dns.RcodeNameError, m.Rcode)
				assert.Equal(t, tt.asked, r.Stats().Questions > n)
			})
		})
	}
}
