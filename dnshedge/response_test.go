package dnshedge_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// odd answers with an HTTPS record whose data package dns cannot read: an address
// hint of three bytes.
func odd(q dnstest.Query) dnstest.Reply {
	m := dnstest.Answer(q)
	m.Extra = nil
	b, _ := m.Pack()
	b[7] = 1
	return dnstest.Reply{Raw: append(b, 0xc0, 12, 0, 65, 0, 1, 0, 0, 1, 44, 0, 10, 0, 1, 0, 0, 4, 0, 3, 1, 2, 3)}
}

func TestClientPassesUnknownRecordsUnchanged(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "https"} {
		bubble(t, func(l *lab) {
			s := l.serve("a", odd)
			c := l.client(off(), l.up(network, "a"))
			c.Cache = new(dnshedge.Cache)
			m := question("odd.example.", dns.TypeHTTPS)
			for range 2 {
				r, _, err := c.Exchange(m, "")
				require.NoError(t, err, network)
				require.Len(t, r.Answer, 1)
				assert.Equal(t, "00010000040003010203", r.Answer[0].(*dns.RFC3597).Rdata)
				assert.Equal(t, dns.TypeHTTPS, r.Answer[0].Header().Rrtype)
			}
			assert.EqualValues(t, 1, s.Queries.Load(), "and kept")
			assert.Zero(t, c.Stats().Ignored)
		})
	}
}

func TestClientRejectsAnswerForOtherName(t *testing.T) {
	for name, tc := range map[string]struct {
		records []string
		want    []string // owners
	}{
		"unrelated":           {[]string{"unrelated.test. 86400 A 203.0.113.66"}, nil},
		"beside the answer":   {[]string{"A 192.0.2.1", "unrelated.test. A 203.0.113.66"}, []string{"www.bank.example."}},
		"alias":               {[]string{"CNAME a.example.", "a.example. CNAME b.example.", "b.example. A 192.0.2.1", "c.example. A 203.0.113.66"}, []string{"www.bank.example.", "a.example.", "b.example."}},
		"alias in bad order":  {[]string{"b.example. A 192.0.2.1", "A.example. CNAME B.example.", "CNAME a.example."}, []string{"b.example.", "A.example.", "www.bank.example."}},
		"alias in a circle":   {[]string{"CNAME a.example.", "a.example. CNAME www.bank.example.", "c.example. A 203.0.113.66"}, nil},
		"DNAME":               {[]string{"bank.example. DNAME bank.test.", "CNAME www.bank.test.", "www.bank.test. A 192.0.2.1"}, []string{"bank.example.", "www.bank.example.", "www.bank.test."}},
		"DNAME of the root":   {[]string{"bank.example. DNAME .", "CNAME www.", "www. A 192.0.2.1"}, []string{"bank.example.", "www.bank.example.", "www."}},
		"another one's DNAME": {[]string{"other.example. DNAME bank.test.", "www.bank.test. A 203.0.113.66"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				l.serve("a", with(tc.records...))
				l.serve("b", good)
				c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
				r, _ := l.must(c, "www.bank.example.")
				assert.NotContains(t, r.String(), "203.0.113.66")
				if tc.want == nil {
					return
				}
				var owners []string
				for _, rr := range r.Answer {
					owners = append(owners, rr.Header().Name)
				}
				assert.Equal(t, tc.want, owners)
				assert.Equal(t, "192.0.2.1", addr(r))
			})
		})
	}
	bubble(t, func(l *lab) {
		l.serve("a", with("unrelated.test. A 203.0.113.66"))
		l.serve("b", good)
		c := l.client(off(), l.up("udp", "a"), l.up("udp", "b"))
		r, took := l.must(c, "www.bank.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "another server is asked at once")
		assert.Equal(t, 40*ms, took)
	})
}

func TestClientSurvivesMangledAnswers(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "https"} {
		bubble(t, func(l *lab) {
			var mu sync.Mutex
			rng := rand.New(rand.NewPCG(7, 7))
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name != "bad.example." {
					return good(q)
				}
				mu.Lock()
				defer mu.Unlock()
				b, _ := dnstest.EDE(dnstest.Answer(q, "CNAME a.example.", "a.example. A 192.0.2.1", "MX 1 mx.example."), 3).Pack()
				for range 1 + rng.IntN(5) {
					b[rng.IntN(len(b))] = byte(rng.IntN(256))
				}
				return dnstest.Reply{Raw: b[:len(b)-rng.IntN(3)*rng.IntN(len(b))/2]}
			})
			c := l.client(off(), l.up(network, "a"))
			c.Timeout = 300 * ms
			for range 1000 {
				m := question("bad.example.", dns.TypeA)
				if r, _, err := c.Exchange(m, ""); err == nil {
					require.Equal(t, m.Question, r.Question)
					require.Equal(t, m.Id, r.Id)
				}
			}
			time.Sleep(15 * time.Minute) // the state of EDNS and spoofing expires
			for range 10 {
				r, _ := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.1", addr(r), network)
			}
			assert.Positive(t, c.Stats().Ignored)
		})
	}
}
