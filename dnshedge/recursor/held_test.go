package recursor_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestCacheCountsParentsOfCachedZones counts zones that cache entries refer to through their child zones, for
// validation. The owner of deep zones chooses how large these are.
func TestCacheCountsParentsOfCachedZones(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
`, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg { // each name of up to 8 labels is a zone, with many servers
			if n := dns.CountLabel(q.name); n < 2 || n > 8 {
				return respondWith(q.name+" A 192.0.2.80")(q, r)
			}
			var ns strings.Builder
			for i := range 10 {
				fmt.Fprintf(&ns, "%s NS %s%d.%s;", q.name, strings.Repeat("x", 60), i, q.name)
			}
			return respondWith(fmt.Sprintf("referral | %s | %s0.%s A 192.0.2.1", ns.String(), strings.Repeat("x", 60), q.name))(q, r)
		})
		r := w.resolver(func(r *recursor.Resolver) {
			r.Trust, r.MaxBytes = dnssec.Trust{Anchors: []dns.RR{}}, 1<<20
			r.Hints = []netip.Addr{netip.MustParseAddr("198.41.0.4")}
		})
		for i := range 200 {
			w.ask(r, fmt.Sprintf("www.a.b.c.d.e.f.n%d.tld. A", i))
			counted, most := recursor.CacheBytes(r)
			assert.LessOrEqual(t, counted, most)
			assert.LessOrEqual(t, recursor.ZoneMemory(r), counted)
		}
		assert.Greater(t, recursor.ZoneMemory(r), int64(1)<<18, "many entries are cached")
	})
}

// TestCacheEvictsEntriesFromFuture sets the clock back. Entries from before are of no use and are evicted first.
func TestCacheEvictsEntriesFromFuture(t *testing.T) {
	now := time.Now()
	const n, most = 1600, 512 << 10 // two thirds of them fit
	same := recursor.CountCachedAfterEviction(most, n, now, now)
	assert.Less(t, same, n/2)
	assert.Greater(t, recursor.CountCachedAfterEviction(most, n, now.AddDate(1, 0, 0), now), same*9/10)
}
