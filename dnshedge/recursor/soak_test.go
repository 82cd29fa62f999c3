package recursor_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

// crowd is a testNetwork with any number of zones in 16 top-level domains. Each zone has two of 4,096 servers. Every
// five seconds, another tenth of the servers is dead. All addresses are in crowdNetwork.
type crowd struct {
	*testNetwork
	dead atomic.Int64 // queries to dead servers
}

func newCrowd(t *testing.T) *crowd {
	text := ". served 198.18.255.4 198.18.255.5\n"
	for i := range 16 {
		text += fmt.Sprintf("t%[1]d. delegated 198.18.%[1]d.1 198.18.%[1]d.2\n", i)
	}
	c := &crowd{testNetwork: newTestNetwork(t, text)}
	c.quiet = true
	for i := range 16 {
		c.updateServers(fmt.Sprintf("198.18.%[1]d.1 198.18.%[1]d.2", i), func(s *server) {
			s.change = func(q query, r *dns.Msg) *dns.Msg {
				labels := dns.SplitDomainName(q.name)
				if len(labels) < 2 {
					return r
				}
				zone := dns.Fqdn(labels[len(labels)-2] + "." + labels[len(labels)-1])
				a, b := serversOf(zone)
				m := new(dns.Msg).SetReply(q.Msg)
				for i, addr := range []netip.Addr{a, b} {
					ns := fmt.Sprintf("ns%d.%s", i+1, zone)
					m.Ns = append(m.Ns, &dns.NS{Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 3600}, Ns: ns})
					m.Extra = append(m.Extra, &dns.A{Hdr: dns.RR_Header{Name: ns, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: addr.AsSlice()})
				}
				m.SetEdns0(1232, false)
				return m
			}
		})
	}
	c.other = func(a netip.Addr) *server {
		ip := a.As4()
		rtt := time.Duration(5+int(ip[3])/3) * ms
		return &server{rtt: rtt, change: func(q query, _ *dns.Msg) *dns.Msg {
			if turn := int(time.Since(c.start) / (5 * time.Second)); (int(ip[2])*256+int(ip[3])+turn)%10 == 0 {
				c.dead.Add(1)
				return nil
			}
			m := new(dns.Msg).SetReply(q.Msg)
			m.Authoritative = true
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: []byte{192, 0, 2, 80}}}
			m.SetEdns0(1232, false)
			return m
		}}
	}
	return c
}

var crowdNetwork = netip.MustParsePrefix("198.18.0.0/15")

// serversOf returns the addresses of a zone's servers.
func serversOf(zone string) (a, b netip.Addr) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(zone))
	x := h.Sum32()
	at := func(n uint32) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, byte(n >> 8 & 15), byte(n)}) }
	if a, b = at(x), at(x>>12); a == b {
		b = at(x>>12 + 1)
	}
	return a, b
}

// TestResolverStaysWithinBoundsWithNewNames runs for ten minutes of fake time with HEDGE_TEST_SOAK=10m.
func TestResolverStaysWithinBoundsWithNewNames(t *testing.T) {
	long := doubles.SoakTime(t, 10*time.Second)
	if testing.Short() {
		long = min(long, 2*time.Second)
	}
	const perSecond = 500
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t)
		r := c.resolver(func(r *recursor.Resolver) { r.MaxBytes = 4 << 20 })
		var asked, failed, late atomic.Int64
		var before, peak, after runtime.MemStats
		goroutines := 0
		runtime.GC()
		runtime.ReadMemStats(&before)
		measure := func() {
			s := r.Stats()
			assert.LessOrEqual(t, s.Bytes, s.MaxBytes)
			goroutines = max(goroutines, runtime.NumGoroutine())
			runtime.GC()
			runtime.ReadMemStats(&after)
			peak.HeapAlloc = max(peak.HeapAlloc, after.HeapAlloc)
		}
		end := time.Now().Add(long)
		for i := 0; time.Now().Before(end); i++ {
			go func() {
				start := time.Now()
				m, _, err := r.ExchangeContext(context.Background(), parseQuestion(fmt.Sprintf("www.z%d.t%d. A", i, i%16)), "")
				asked.Add(1)
				if err != nil || m.Rcode != dns.RcodeSuccess {
					failed.Add(1)
				}
				if time.Since(start) > time.Second {
					late.Add(1)
				}
			}()
			time.Sleep(time.Second / perSecond)
			if i%(10*perSecond) == 5*perSecond {
				measure()
			}
		}
		time.Sleep(10 * time.Second) // running queries end
		synctest.Wait()
		measure()
		s := r.Stats()
		t.Logf("%d names in %v: %d failed, %d took more than a second; %.2f queries each, %d of all to dead servers; %d hedges, %d timeouts; at most %d sockets, %d goroutines, %.1f MB of heap, of which %.1f before; %d zones, %d RRsets, %d servers, %.1f MB",
			asked.Load(), long, failed.Load(), late.Load(), float64(s.Wire)/float64(asked.Load()), c.dead.Load(), s.Hedges, s.Timeouts, c.maxOpen, goroutines,
			float64(peak.HeapAlloc)/1e6, float64(before.HeapAlloc)/1e6, s.Zones, s.RRsets, s.Servers, float64(s.Bytes)/1e6)
		require.Equal(t, int64(long/time.Second*perSecond), asked.Load())
		assert.Zero(t, s.InFlight)
		// In a hundredth of the zones both servers are dead at a time.
		assert.Less(t, float64(failed.Load()), float64(asked.Load())*0.02+3)
		assert.LessOrEqual(t, float64(s.Wire), 3.2*float64(asked.Load()))
		c.withLock(func() { assert.Zero(t, c.open, "sockets") })
		assert.LessOrEqual(t, c.maxOpen, 1100, "sockets")
		assert.LessOrEqual(t, goroutines, 5000)
		assert.Less(t, float64(peak.HeapAlloc)-float64(before.HeapAlloc), 60e6, "including the testNetwork and running calls")
	})
}
