package recursor_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

const crowded = `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
  glueless NS ns.hoster
hoster.tld. delegated 192.0.2.5 192.0.2.6
  ns A 192.0.2.7
cold.tld. delegated 192.0.2.3 192.0.2.4
  * A 192.0.2.80
  *.alias CNAME www.glueless.tld.
glueless.tld. served 192.0.2.7
  * A 192.0.2.81
`

// outstanding returns the largest number of equal questions that waited for answers at the same time, and the
// question. Answers take rtt.
func (w *testNetwork) outstanding(rtt time.Duration) (most int, which string) {
	at := make(map[string][]time.Duration)
	for _, a := range w.queriesSince(0) {
		k := a.name + " " + dns.TypeToString[a.qtype]
		all := append(at[k], a.at)
		for all[0] <= a.at-rtt {
			all = all[1:]
		}
		if at[k] = all; len(all) > most {
			most, which = len(all), k
		}
	}
	return most, which
}

// TestResolverSharesEqualQueries requires RFC 5452 §5: each equal outstanding query gives a forged answer another
// chance.
func TestResolverSharesEqualQueries(t *testing.T) {
	for _, rtt := range []time.Duration{10 * ms, 90 * ms} {
		for _, names := range []string{"r%d.cold.tld. A", "r%d.glueless.tld. A", "r%d.alias.cold.tld. A", "www.cold.tld. TXT +do %d", "a.b.r%d.cold.tld. AAAA"} {
			for _, cached := range []bool{true, false} {
				t.Run(fmt.Sprint(rtt, names, cached), func(t *testing.T) {
					bubble(t, crowded, func(t *testing.T, w *testNetwork) {
						for _, s := range w.servers {
							s.rtt = rtt
						}
						r := w.resolver()
						c := w.client(r)
						var wg sync.WaitGroup
						for i := range 200 {
							q := strings.Replace(names, "%d", fmt.Sprint(i), 1)
							wg.Go(func() {
								if cached {
									assert.Equal(t, dns.RcodeSuccess, w.askClient(c, q).Rcode)
								} else {
									assert.Equal(t, dns.RcodeSuccess, w.ask(r, q).Rcode)
								}
							})
						}
						wg.Wait()
						n, which := w.outstanding(rtt)
						assert.LessOrEqual(t, n, 3, which)
						assert.LessOrEqual(t, w.countQueries("198.41.0.4"), 6, "the root")
					})
				})
			}
		}
	}
}

func TestResolverSharesReferralsOfBothAddressTypes(t *testing.T) {
	bubble(t, crowded, func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.3").zones[0].add(t, "*.cold.tld. AAAA 2001:db8::80")
		addrs, err := w.client(w.resolver()).LookupAddrs(t.Context(), "www.cold.tld.")
		require.NoError(t, err)
		assert.Len(t, addrs, 2)
		assert.Equal(t, 5, w.countQueries(), "priming, two referrals, and one for each type: %v", w.queriesSince(0))
	})
}

// TestZoneQueryContinuesAfterLeaderLeaves has a leader that is canceled, or that has reached its limit of queries,
// while other callers wait.
func TestZoneQueryContinuesAfterLeaderLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		limits recursor.Limits
		first  string
		stays  time.Duration
	}{
		"it leaves":              {first: "first.cold.tld. A", stays: 25 * ms},
		"it has reached a limit": {limits: recursor.Limits{Queries: 5}, first: "a.b.c.d.e.f.g.cold.tld. A", stays: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, crowded, func(t *testing.T, w *testNetwork) {
				r := w.resolver(limits(c.limits))
				var wg sync.WaitGroup
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), c.stays)
					defer cancel()
					m, err := w.exchange(ctx, r, c.first)
					assert.True(t, err != nil || m.Rcode == dns.RcodeServerFailure)
				})
				time.Sleep(ms)
				for i := range 50 {
					wg.Go(func() {
						name := fmt.Sprintf("r%d.cold.tld.", i)
						assert.Equal(t, "NOERROR "+name+" A 192.0.2.80", formatResponse(w.ask(r, name+" A")))
					})
				}
				wg.Wait()
			})
		})
	}
}

// TestZoneQueryGivesEachCallerACopy finds a record that two callers share, with -race.
func TestZoneQueryGivesEachCallerACopy(t *testing.T) {
	bubble(t, crowded, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for _, q := range []string{"www.cold.tld. A", "x.alias.cold.tld. A", "www.cold.tld. TXT"} {
					m := w.ask(r, q)
					for _, rrs := range [][]dns.RR{m.Answer, m.Ns} {
						for _, rr := range rrs {
							rr.Header().Ttl, rr.Header().Name = 1, "mine."
						}
					}
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, w.countQueries(), 25)
	})
}
