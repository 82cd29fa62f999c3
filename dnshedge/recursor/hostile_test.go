package recursor_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

// stream makes a server send responses over TCP only, of any size, with the records of each section in wire format.
func stream(flags uint16, records func(q query) [3][][]byte) func(query) [][]byte {
	return func(q query) [][]byte {
		m := new(dns.Msg).SetReply(q.Msg)
		if m.Truncated = !q.tcp; m.Truncated {
			b, _ := m.Pack()
			return [][]byte{b}
		}
		b, _ := m.Pack()
		binary.BigEndian.PutUint16(b[2:], 1<<15|flags)
		for i, section := range records(q) {
			binary.BigEndian.PutUint16(b[6+2*i:], uint16(len(section)))
			for _, r := range section {
				b = append(b, r...)
			}
		}
		if len(b) > dns.MaxMsgSize {
			panic(fmt.Sprint(len(b), " bytes"))
		}
		return [][]byte{b}
	}
}

// raw returns a record in wire format. A nil owner is the name of the question.
func raw(owner []byte, typ uint16, data []byte) []byte {
	if owner == nil {
		owner = []byte{0xc0, 12} // a pointer to the name of the question
	}
	b := append([]byte(nil), owner...)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = append(b, 0, 1, 0, 0, 14, 16)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

func wireName(name string) []byte {
	var b [255]byte
	n, err := dns.PackDomainName(name, b[:], 0, nil, false)
	if err != nil {
		panic(err)
	}
	return b[:n]
}

const hostileZones = `
. served 198.41.0.4
evil. delegated 203.0.113.66
`

func TestResolverFailsAnswerLargerThanMessage(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 60)+".", 4) + "evil."
	for name, c := range map[string]struct {
		question string
		records  func(q query) [3][][]byte
	}{
		"names that may not be compressed": {long + " SRV", func(query) (s [3][][]byte) {
			for i := range 3200 {
				s[0] = append(s[0], raw(nil, dns.TypeSRV, []byte{0, 0, 0, 0, byte(i >> 8), byte(i), 0xc0, 12}))
			}
			return s
		}},
		"aliases": {"a0.evil. A +do", func(q query) (s [3][][]byte) {
			var i int
			if _, err := fmt.Sscanf(q.name, "a%d.", &i); err != nil {
				return s
			}
			if i == 5 {
				s[0] = [][]byte{raw(nil, dns.TypeA, []byte{192, 0, 2, 80})}
				return s
			}
			s[0] = [][]byte{raw(nil, dns.TypeCNAME, wireName(fmt.Sprintf("a%d.evil.", i+1)))}
			for k := range 200 {
				sig := append([]byte{0, 5, byte(k), 8, 2}, make([]byte, 13)...)
				s[0] = append(s[0], raw(nil, dns.TypeRRSIG, append(append(sig, 0), make([]byte, 200)...)))
			}
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, hostileZones, func(t *testing.T, w *testNetwork) {
				w.updateServers("203.0.113.66", func(s *server) { s.raw = stream(1<<10, c.records) })
				r := w.resolver()
				m := w.ask(r, c.question)
				assert.Equal(t, "SERVFAIL", formatResponse(m))
				_, text := readExtendedError(m)
				assert.Contains(t, text, "does not fit")
				assert.LessOrEqual(t, w.countQueries("203.0.113.66"), 8, "the question ends once the failure is known")
				assert.Equal(t, int64(1), r.Stats().Failures)

				cl := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
				defer cl.Close()
				m, _, err := cl.ExchangeContext(t.Context(), parseQuestion(c.question), "")
				require.NoError(t, err)
				assert.Equal(t, "SERVFAIL", formatResponse(m))
			})
		})
	}
}

func TestResolverPrefersFallbackWithRecords(t *testing.T) {
	for range 8 {
		bubble(t, ". served 198.41.0.4\nexample. delegated 192.0.2.1 192.0.2.2\n  www A 192.0.2.80\n", func(t *testing.T, w *testNetwork) {
			w.setFault("192.0.2.1", onlyForQuestion("www.example.", respondWith("")))
			w.setFault("192.0.2.2", func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative = false; return r })
			assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(w.resolver(), "www.example. A")))
		})
	}
}

func TestLimitsAcceptLargestInt(t *testing.T) {
	bubble(t, ". served 198.41.0.4\nexample. delegated 192.0.2.1\n  www A 192.0.2.80\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver(func(r *recursor.Resolver) {
			const m = math.MaxInt
			r.MaxBytes = math.MaxInt64
			r.Limits = recursor.Limits{Queries: m, ChainQueries: m, ServerNames: m, ServerNamesPerZone: m, Referrals: m, Aliases: m, InFlight: m, ZoneInFlight: m}
		})
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		assert.Equal(t, 2, r.Stats().Servers)
	})
}

// TestMaxBytesBoundsHostileZones has records that need much more memory than their wire format. The memory stays
// within MaxBytes.
func TestMaxBytesBoundsHostileZones(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("measures memory, of which the race detector takes some for itself")
	}
	odd := func(i, k int) []byte { // a name of 250 bytes, each of which needs four bytes as text
		b := make([]byte, 0, 256)
		for range 3 {
			b = append(append(b, 60), strings.Repeat("\xc8", 60)...)
		}
		b = append(append(b, 55), strings.Repeat("\xc8", 55)...)
		binary.BigEndian.PutUint16(b[1:], uint16(i))
		binary.BigEndian.PutUint16(b[3:], uint16(k))
		return append(b, wireName("evil.")...)
	}
	number := func(q query) (i int) {
		labels := dns.SplitDomainName(q.name)
		_, _ = fmt.Sscanf(labels[max(0, len(labels)-2)], "s%d", &i)
		return i
	}
	for name, c := range map[string]struct {
		flags   uint16
		records func(q query) [3][][]byte
	}{
		"names of servers": {0, func(q query) (s [3][][]byte) {
			i := number(q)
			for k := range 235 {
				s[1] = append(s[1], raw(wireName(fmt.Sprintf("s%d.evil.", i)), dns.TypeNS, odd(i, k)))
			}
			return s
		}},
		"glue": {0, func(q query) (s [3][][]byte) {
			i := number(q)
			for k := range 60 {
				s[1] = append(s[1], raw(wireName(fmt.Sprintf("s%d.evil.", i)), dns.TypeNS, odd(i, k)))
				s[2] = append(s[2], raw(odd(i, k), dns.TypeA, []byte{203, 0, 113, byte(k)}))
			}
			return s
		}},
		"texts": {1 << 10, func(q query) (s [3][][]byte) {
			if strings.HasPrefix(q.name, "www.") {
				s[0] = [][]byte{raw(nil, dns.TypeCNAME, wireName("x"+q.name))}
				return s
			}
			s[0] = [][]byte{raw(nil, dns.TypeTXT, make([]byte, 5000))}
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, hostileZones, func(t *testing.T, w *testNetwork) {
				w.quiet = true
				w.updateServers("203.0.113.66", func(s *server) { s.raw = stream(c.flags, c.records) })
				r := w.resolver(noMinimise, noHedges, func(r *recursor.Resolver) {
					r.MaxBytes = 4 << 20
					r.Limits.ServerNames = 1
					r.Zones = map[string][]netip.AddrPort{"evil.": {netip.MustParseAddrPort("203.0.113.66:53")}}
				})
				heap := func() int64 {
					var m runtime.MemStats
					runtime.GC()
					runtime.GC()
					runtime.ReadMemStats(&m)
					return int64(m.HeapAlloc)
				}
				before := heap()
				for i := range 300 {
					w.ask(r, fmt.Sprintf("www.s%d.evil. TXT", i))
				}
				took, s := heap()-before, r.Stats()
				t.Logf("%d bytes, %d zones, %d RRsets, estimated %d", took, s.Zones, s.RRsets, s.Bytes)
				assert.Less(t, took, int64(6<<20))
				assert.Greater(t, s.Bytes, int64(2<<20), "the cache is not full, so this proves nothing")
			})
		})
	}
}

func TestResolverExpiresUnresponsiveRootServers(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
  @ NS a.root.
  a.root A 203.0.113.1
example. delegated 192.0.2.1
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, "www.example. A")))
		w.withLock(func() {
			w.server("198.41.0.4").zones[0].sets["a.root."][dns.TypeA] = []dns.RR{record("a.root. A 198.41.0.4")}
		})
		for range 2 { // the first question starts the priming query
			time.Sleep(10 * time.Second)
			w.ask(r, "www.example. A")
		}
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		w.setFault("198.41.0.4", silent)
		n := w.countQueries()
		for i := range 60 {
			time.Sleep(time.Second)
			w.ask(r, fmt.Sprintf("www.e%d. A", i))
		}
		assert.LessOrEqual(t, w.countQueries()-n, 88, "as without an outage: keys are not queried again and again")
	})
}

func TestResolverRefundsLookupThatDoesNotStart(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
other. delegated 192.0.2.9
example. delegated 192.0.2.1
  @ NS ns2
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		z := w.server("198.41.0.4").zones[0]
		for _, name := range []string{"ns.other.", "ns2.example.", "ns3.example.", "ns4.example."} {
			z.put(record("example. NS " + name))
		}
		w.updateServers("192.0.2.1", func(s *server) { s.rtt = 190 * ms })
		w.updateServers("192.0.2.9", func(s *server) { s.rtt = 600 * ms })
		r := w.resolver(noMinimise, func(r *recursor.Resolver) { r.NoIPv6, r.Hedge.BudgetPercent = true, 1e-6 })
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		time.Sleep(10 * time.Second)
		s := r.Stats()
		assert.EqualValues(t, 1, s.Lookups)
		assert.Positive(t, s.Hedges)
		assert.InDelta(t, 20-float64(s.Hedges), s.Budget, 0.01, "for each query that the lookup takes: %+v", s)
	})
}

func TestResolverIgnoresRecordsOutsideZone(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  www CNAME x.corp
`, func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.1").zones[0].add(t, "x.corp A 203.0.113.66")
		r := w.resolver(func(r *recursor.Resolver) {
			r.Zones = map[string][]netip.AddrPort{"corp.example.": {netip.MustParseAddrPort("10.0.0.1:53")}}
		})
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, "www.example. A")), "the zone's servers are unresponsive")
	})
}

// TestQuestionRejectsMetaTypes requires RFC 6891 §6.1.1 and RFC 8945 §5.1.
func TestQuestionRejectsMetaTypes(t *testing.T) {
	bubble(t, hostileZones, func(t *testing.T, w *testNetwork) {
		w.updateServers("203.0.113.66", func(s *server) {
			s.raw = stream(1<<10, func(q query) [3][][]byte { return [3][][]byte{{raw(nil, q.qtype, nil)}} })
		})
		r := w.resolver()
		for _, q := range []string{"www.evil. OPT", "www.evil. TSIG"} {
			_, err := w.exchange(t.Context(), r, q)
			require.ErrorContains(t, err, q[len("www.evil. "):])
		}
		assert.Zero(t, w.countQueries())
	})
}
