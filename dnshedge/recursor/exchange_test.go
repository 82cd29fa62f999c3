package recursor_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

func TestResolverFailsBeforeCallerTimesOut(t *testing.T) {
	bubble(t, ". served 198.41.0.4\n", func(t *testing.T, w *testNetwork) {
		w.setFault("198.41.0.4", silent)
		r := w.resolver()
		start := time.Now()
		m := w.ask(r, "www.example. A")
		assert.Equal(t, "SERVFAIL", formatResponse(m))
		assert.LessOrEqual(t, time.Since(start), 4500*ms)
		code, _ := readExtendedError(m)
		assert.Equal(t, dns.ExtendedErrorCodeNoReachableAuthority, code)

		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		m, err := w.exchange(ctx, r, "www.example. A")
		require.NoError(t, err)
		assert.Equal(t, "SERVFAIL", formatResponse(m))
		assert.Equal(t, 900*ms, time.Since(start))

		time.Sleep(time.Hour)
		c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
		defer c.Close()
		m, _, err = c.ExchangeContext(t.Context(), parseQuestion("www.example. A"), "")
		require.NoError(t, err)
		assert.Equal(t, "SERVFAIL", formatResponse(m))
		n := w.countQueries()
		time.Sleep(4 * time.Second)
		_, _, err = c.ExchangeContext(t.Context(), parseQuestion("www.example. A"), "")
		require.NoError(t, err)
		assert.Equal(t, n, w.countQueries(), "the failure is cached for 5 s")
	})
}

func TestResolverMergesRecordsOfAliasChain(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", respondWith("www.example. A 192.0.2.80; www.example. A 192.0.2.81; WWW.example. A 192.0.2.80")))
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80, www.example. A 192.0.2.81", formatResponse(w.ask(w.resolver(), "www.example. A")))
	})
}

func TestResolverAnswersAliasToSpecialUseNameLocally(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example.", respondWith("www.example. CNAME db.localhost.")))
		r := w.resolver()
		assert.Equal(t, "NOERROR db.localhost. A 127.0.0.1, www.example. CNAME db.localhost.", formatResponse(w.ask(r, "www.example. A")))
		for _, a := range w.queriesSince(0) {
			assert.NotContains(t, a.name, "localhost")
		}
	})
}

func TestZonesMayContainRoot(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver(func(r *recursor.Resolver) {
			r.Hints = []netip.Addr{netip.MustParseAddr("192.0.2.66")}
			r.Zones = map[string][]netip.AddrPort{".": {netip.MustParseAddrPort("198.41.0.4:53")}}
		})
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		assert.Zero(t, w.countQueries("192.0.2.66"))
		assert.Equal(t, []string{"example. A"}, w.questions("198.41.0.4"), "its servers are not queried for other names")
	})
}

func TestResolverLimitsLookupsOfServerNames(t *testing.T) {
	bubble(t, small+"\nlost. served 192.0.3.4\nnames. delegated 192.0.3.5\n", func(t *testing.T, w *testNetwork) {
		for _, n := range []string{"a", "b", "c", "d"} {
			w.server("198.41.0.4").zones[0].add(t, "lost. NS "+n+".names.")
		}
		r := w.resolver(limits(recursor.Limits{ServerNames: 2}), noHedges)
		m := w.ask(r, "www.lost. A")
		assert.Equal(t, "SERVFAIL", formatResponse(m))
		_, text := readExtendedError(m)
		assert.Contains(t, text, "ServerNames of 2")
		assert.Len(t, w.questions("192.0.3.5"), 2)
		assert.Equal(t, map[string]int64{"ServerNames": 1}, r.Stats().Limited)
	})
}
