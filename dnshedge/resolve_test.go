package dnshedge_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestFallbackIsAskedOnlyWhenUpstreamsFail(t *testing.T) {
	for name, bad := range map[string]dnstest.Handler{"SERVFAIL": rcode(dns.RcodeServerFailure), "REFUSED": rcode(dns.RcodeRefused), "silence": drop} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				var healthy atomic.Bool
				healthy.Store(true)
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					if healthy.Load() {
						return good(q)
					}
					return bad(q)
				})
				fall := l.serve("c", with("A 192.0.2.3"))
				c := &dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "c")}}
				l.client(c, l.up("udp", "a"))
				l.learn(c)
				assert.Zero(t, fall.Queries.Load())
				healthy.Store(false)
				if name == "silence" {
					r, took := l.must(c, "x.example.")
					assert.Equal(t, "192.0.2.3", addr(r))
					assert.LessOrEqual(t, took, 2520*ms)
				} else {
					for i := range 6 {
						r, took := l.must(c, fmt.Sprintf("x%d.example.", i/2)) // twice is no more than once
						assert.Empty(t, addr(r), "it may be these names alone")
						assert.Equal(t, 20*ms, took)
					}
				}
				l.must(c, "x.example.") // this question also starts a probe
				time.Sleep(2 * time.Second)
				r, took := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.3", addr(r))
				assert.Equal(t, 20*ms, took, "a group that is down is not waited for")
				healthy.Store(true)
				time.Sleep(10 * time.Second)
				l.must(c, "x.example.")
				time.Sleep(time.Second)
				r, _ = l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.1", addr(r), "it is back")
			})
		})
	}
}

func TestFallbackIsAskedWhenUpstreamAlwaysRefuses(t *testing.T) {
	for _, code := range []int{dns.RcodeRefused, dns.RcodeNotImplemented} {
		bubble(t, func(l *lab) {
			l.serve("a", rcode(code))
			l.serve("b", good)
			c := &dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}
			r, _ := l.must(l.client(c, l.up("udp", "a")), "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
		})
	}
}

func TestFallbackIsNotAskedAfterSERVFAILOfValidator(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", rcode(dns.RcodeServerFailure)) // without a word why
		fall := l.serve("b", good)
		c := &dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}
		r, _ := l.must(l.client(c, l.up("udp", "a")), "bogus.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.Zero(t, fall.Queries.Load())
	})
}

func TestFallbackIsNotAskedAfterREFUSEDByPolicy(t *testing.T) {
	for code := range uint16(30) {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeRefused), code)}
			})
			other := l.serve("b", good)
			c := &dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}
			r, _ := l.must(l.client(c, l.up("udp", "a")), "x.example.")
			final := 15 <= code && code <= 17 // 18 is about the client (RFC 8914 §4.19)
			assert.Equal(t, final, r.Rcode == dns.RcodeRefused, "EDE %d", code)
			assert.Equal(t, final, other.Queries.Load() == 0, "EDE %d", code)
		})
	}
}

func TestFallbackIsAskedForSlowNamesOnly(t *testing.T) {
	for _, network := range []string{"udp", "tls"} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				switch {
				case strings.HasPrefix(q.Question[0].Name, "evil"):
					return after(8*time.Second, rcode(dns.RcodeServerFailure))(q)
				case strings.HasPrefix(q.Question[0].Name, "malware"):
					return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeServerFailure), dns.ExtendedErrorCodeBlocked)}
				}
				return good(q)
			})
			fall := l.serve("b", good)
			c := &dnshedge.Client{Cache: new(dnshedge.Cache), Fallback: []dnshedge.Upstream{l.up("udp", "b")}}
			l.client(c, l.up(network, "a"))
			for i := range 50 {
				l.must(c, fmt.Sprintf("warm%d.example.", i))
			}
			for round := range 3 {
				var wg sync.WaitGroup
				for i := range 5 {
					wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("evil%d.example.", i), dns.TypeA), "") })
				}
				for i := range 10 {
					time.Sleep(500 * ms)
					r, _ := l.must(c, fmt.Sprintf("malware%d-%d.example.", round, i))
					assert.Empty(t, r.Answer, network)
				}
				wg.Wait()
			}
			assert.EqualValues(t, 5, fall.Queries.Load(), "%s: each slow name is answered by it once", network)
		})
	}
}

func TestFallbackIsNotAskedAfterFinalFailure(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeServerFailure), dns.ExtendedErrorCodeBlocked)}
		})
		c := &dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "b")}}
		l.client(c, l.up("udp", "a"))
		r, took := l.must(c, "x.example.")
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.Equal(t, 20*ms, took)
	})
}
