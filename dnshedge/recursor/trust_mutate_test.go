package recursor_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// mutateResponses returns the fault of a server that changes its responses at random.
func mutateResponses(rng *rand.Rand) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		r = r.Copy()
		for range 1 + rng.IntN(3) {
			mutate(rng, r)
		}
		return r
	}
}

func mutate(rng *rand.Rand, r *dns.Msg) {
	section := []*[]dns.RR{&r.Answer, &r.Ns}[rng.IntN(2)]
	if len(*section) == 0 || rng.IntN(10) == 0 {
		switch rng.IntN(4) {
		case 0:
			r.Rcode = []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeRefused}[rng.IntN(4)]
		case 1:
			r.Answer, r.Ns = r.Ns, r.Answer
		case 2:
			r.AuthenticatedData = true
		case 3:
			r.Answer = nil
		}
		return
	}
	i := rng.IntN(len(*section))
	rr := (*section)[i]
	switch rng.IntN(6) {
	case 0:
		*section = append((*section)[:i:i], (*section)[i+1:]...)
		return
	case 1:
		rr.Header().Name = []string{"www.example.tld.", "no.example.tld.", "example.tld.", "tld.", "."}[rng.IntN(5)]
		return
	case 2:
		rr.Header().Ttl = rng.Uint32() >> rng.IntN(32)
		return
	}
	switch rr := rr.(type) {
	case *dns.A:
		rr.A = net.IPv4(192, 0, 2, byte(rng.IntN(256)))
	case *dns.RRSIG:
		switch rng.IntN(6) {
		case 0:
			rr.Labels = uint8(rng.IntN(5))
		case 1:
			rr.SignerName = []string{".", "tld.", "www.example.tld.", "eviltld."}[rng.IntN(4)]
		case 2:
			rr.Expiration = rng.Uint32()
		case 3:
			rr.KeyTag = uint16(rng.Uint32())
		case 4:
			rr.TypeCovered = dns.TypeA
		case 5:
			rr.OrigTtl = rng.Uint32()
		}
	case *dns.NSEC:
		rr.NextDomain, rr.TypeBitMap = "zzz.example.tld.", []uint16{dns.TypeNS, dns.TypeNSEC}
	case *dns.DS:
		rr.KeyTag++
	case *dns.DNSKEY:
		rr.Flags ^= 1 << rng.IntN(16)
	case *dns.SOA:
		rr.Minttl = rng.Uint32()
	}
}

// TestMutationMakesNoFalseAnswerSecure requires that secure answers have only records that the zone has signed, and
// that one correct server suffices.
func TestMutationMakesNoFalseAnswerSecure(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	truth := map[string]string{
		"www.example.tld. A": "NOERROR www.example.tld. A 192.0.2.80", "no.example.tld. A": "NXDOMAIN", "www.example.tld. AAAA": "NOERROR",
		"x.w.example.tld. A": "NOERROR x.w.example.tld. A 192.0.2.81", "www.unsigned.tld. A": "NOERROR www.unsigned.tld. A 192.0.2.82",
	}
	for seed := range uint64(150) {
		for _, servers := range []string{"192.0.3.1", "192.0.2.2", "198.41.0.4", "192.0.3.1 192.0.3.2", "192.0.2.1 192.0.2.2"} {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign("unsigned.tld.")
				w.setFault(servers, mutateResponses(rand.New(rand.NewPCG(seed, 1))))
				r := newValidatingResolver(w)
				for _, q := range []string{"www.example.tld. A", "no.example.tld. A", "www.example.tld. AAAA", "x.w.example.tld. A", "www.unsigned.tld. A"} {
					m, _, err := r.ExchangeContext(t.Context(), parseQuestion(q+" +ad"), "")
					require.NoError(t, err)
					if m.AuthenticatedData || len(servers) < 15 {
						assert.Equal(t, truth[q], formatResponse(m), "seed %d, %s: %v", seed, servers, m)
					}
					if len(servers) < 15 && q != "www.unsigned.tld. A" {
						assert.True(t, m.AuthenticatedData, "seed %d, %s: %v", seed, servers, m)
					}
				}
			})
		}
	}
}

// TestResolverSurvivesHourOfMutations resolves ten questions per second for an hour. A server changes every
// hundredth response. Secure answers are correct, almost no question fails, and the memory is stable.
func TestResolverSurvivesHourOfMutations(t *testing.T) {
	const names, each = 400, 100 * ms
	minutes := 60
	if doubles.RaceEnabled || testing.Short() {
		minutes = 5
	}
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.quiet = true
		truth := make(map[string]string, names)
		for i := range names {
			name, addr := fmt.Sprintf("n%d.example.tld.", i), fmt.Sprintf("198.51.100.%d", i%250)
			w.zone("example.tld.").put(record(name + " 60 A " + addr))
			truth[name] = "NOERROR " + name + " A " + addr
		}
		w.sign("unsigned.tld.")
		rng := rand.New(rand.NewPCG(1, 1))
		var mu sync.Mutex // guards rng
		changed := mutateResponses(rng)
		w.setFault("198.41.0.4 198.41.0.5 192.0.2.1 192.0.2.2 192.0.3.1 192.0.3.2 192.0.3.3 192.0.3.4", func(q query, r *dns.Msg) *dns.Msg {
			mu.Lock()
			defer mu.Unlock()
			if rng.IntN(100) > 0 {
				return r
			}
			return changed(q, r)
		})
		r := newValidatingResolver(w)
		var heap [2]uint64
		asked, failed, insecure := 0, 0, 0
		for at := range 2 {
			for range minutes * int(time.Minute/each) / 2 {
				time.Sleep(each)
				mu.Lock()
				name := fmt.Sprintf("n%d.example.tld.", rng.IntN(names+names/10))
				mu.Unlock()
				want := cmp.Or(truth[name], "NXDOMAIN")
				m, _, err := r.ExchangeContext(t.Context(), parseQuestion(name+" A +ad"), "")
				require.NoError(t, err)
				switch asked++; {
				case m.Rcode == dns.RcodeServerFailure:
					failed++
				case !m.AuthenticatedData:
					insecure++
				default:
					assert.Equal(t, want, formatResponse(m))
				}
			}
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			heap[at] = m.HeapAlloc
		}
		t.Logf("%d questions, %d queries, %d failed; heap after half %d kB, after all %d kB; %+v", asked, w.countQueries(), failed, heap[0]>>10, heap[1]>>10, r.Stats().Bogus)
		assert.Zero(t, insecure, "an answer of a signed zone is secure or fails")
		assert.LessOrEqual(t, failed, asked/1000)
		assert.Less(t, heap[1], heap[0]+heap[0]/4+1<<20)
	})
}
