//go:build unix

package recursor_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
	keys "github.com/gohedge/hedge/internal/signer"
)

// cpuTime returns the CPU time of this process. A busy machine hardly changes the difference of two.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestAttackTakes10MillisecondsOfCPU logs a row for each attack: the median CPU time of a question to a new Resolver, with
// the work of all servers, and the means of the queries, the hedges and the units of verification.
func TestAttackTakes10MillisecondsOfCPU(t *testing.T) {
	if doubles.RaceEnabled || testing.Short() {
		t.Skip("measures CPU time, of which the race detector takes some for itself")
	}
	chain, bad := repeatedValidation()
	trapped := func(algorithm uint8, ofKeys bool) func(*testNetwork) {
		all := withTag("broken.tld.", algorithm, 4711, 16)
		return func(w *testNetwork) {
			signZones(w)
			w.setFault("192.0.3.4", nil)
			w.withLock(func() { trap(w, all, ofKeys) })
		}
	}
	hostile := func(messages func(query) [][]byte) func(*testNetwork) {
		return func(w *testNetwork) { w.updateServers("203.0.113.66", func(s *server) { s.raw = messages }) }
	}
	for _, c := range []struct {
		name, text string
		signed     bool // by setUp
		setUp      func(w *testNetwork)
		question   string // with the number of the question
	}{
		{"no attack", signed, true, signZones, "n%d.example.tld. A"},
		{"NXNS, 1,500 names of servers", attack, false, func(w *testNetwork) { nameservers(w, 1500, "victim.") }, "www%d.sub.attack. A"},
		{"aliases times names of servers", aliasAttack, false, setUpAliasAttack, "x.z%d00.attack. A"},
		{"1,000 addresses as glue", addressAttack, false, func(w *testNetwork) { setUpAddressAttack(w, true, respondRcode(dns.RcodeServerFailure)) }, "www%d.sub.attack. A"},
		{"1,000 addresses of a name", addressAttack, false, func(w *testNetwork) { setUpAddressAttack(w, false, respondRcode(dns.RcodeServerFailure)) }, "www%d.sub.attack. A"},
		{"servers with forged signatures", chain, true, func(w *testNetwork) { w.sign(); w.setFault(bad, forged) }, "www.z0.tld. A"},
		{"KeyTrap, Ed25519", signed, true, trapped(dns.ED25519, false), "n%d.broken.tld. A"},
		{"KeyTrap, P-384", signed, true, trapped(dns.ECDSAP384SHA384, false), "n%d.broken.tld. A"},
		{"KeyTrap of keys, P-384", signed, true, trapped(dns.ECDSAP384SHA384, true), "n%d.broken.tld. A"},
		{"NSEC3 of 50 iterations, long salt", replayed, true, func(w *testNetwork) {
			w.sign()
			w.zone("evil.tld.").proveBy(keys.NSEC3, keys.NSEC3Params{Iterations: 50, Salt: strings.Repeat("ab", 255)})
		}, strings.Repeat("a.", 100) + "n%d.evil.tld. A"},
		{"unsigned answers to a long name", replayed, true, func(w *testNetwork) {
			w.sign()
			w.setFault("192.0.3.3 192.0.3.4", onlyForType(dns.TypeA, func(q query, r *dns.Msg) *dns.Msg { return respondWith(q.name+" A 203.0.113.66")(q, r) }))
		}, strings.Repeat("a.", 100) + "n%d.evil.tld. A"},
		{"16,000 options", hostileZones, false, hostile(message([3]uint16{0, 0, 1}, func(query) []byte { return raw([]byte{0}, dns.TypeOPT, make([]byte, 64000)) })), "www%d.evil. A"},
		{"60,000 empty texts", hostileZones, false, hostile(message([3]uint16{0, 1}, func(query) []byte { return raw(nil, dns.TypeTXT, make([]byte, 60000)) })), "www%d.evil. A"},
		{"3,200 names in 64 kB", hostileZones, false, hostile(stream(1<<10, func(query) (s [3][][]byte) {
			for i := range 3200 {
				s[0] = append(s[0], raw(nil, dns.TypeSRV, []byte{0, 0, 0, 0, byte(i >> 8), byte(i), 0xc0, 12}))
			}
			return s
		})), "www%d.evil. SRV"},
	} {
		bubble(t, c.text, func(t *testing.T, w *testNetwork) {
			c.setUp(w)
			const n = 10
			var all []time.Duration
			queries, hedges, units := w.countQueries(), int64(0), int64(0)
			for i := range n {
				r := w.resolver()
				if c.signed {
					r = newValidatingResolver(w)
				}
				start := cpuTime(t)
				w.security(r, strings.Replace(c.question, "%d", fmt.Sprint(i), 1))
				all = append(all, cpuTime(t)-start)
				time.Sleep(20 * time.Second) // until no lookup is left
				hedges, units = hedges+r.Stats().Hedges, units+r.Stats().Verifications
			}
			slices.Sort(all)
			t.Logf("%-36s %6.2f ms %5.1f queries %5.1f hedges %6.1f units", c.name, float64(all[n/2])/1e6, float64(w.countQueries()-queries)/n, float64(hedges)/n, float64(units)/n)
			assert.LessOrEqual(t, all[0], 10*time.Millisecond, "%s: the least of %d, which a busy machine changes least", c.name, n)
		})
	}
}
