package dnshedge_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestFallbackIsUsedOnlyWhenTheGroupFails(t *testing.T) {
	for name, bad := range map[string]dnstest.Handler{"SERVFAIL": rcode(dns.RcodeServerFailure), "silence": drop, "nothing there": nil} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				healthy := true
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					if healthy {
						return good(q)
					}
					if bad == nil {
						return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeRefused)}
					}
					return bad(q)
				})
				b := l.serve("b", with("A 192.0.2.2"))
				fall := l.serve("c", with("A 192.0.2.3"))
				_ = b
				c := &dnshedge.Client{Fallback: []dnshedge.Upstream{l.up("udp", "c")}}
				l.client(c, l.up("udp", "a"))
				for range 20 {
					l.must(c, "x.example.")
				}
				assert.Zero(t, fall.Queries.Load())
				healthy = false
				r, took := l.must(c, "x.example.")
				assert.Equal(t, "192.0.2.3", addr(r))
				assert.LessOrEqual(t, took, 2520*ms)
				if name == "silence" {
					for range 3 {
						l.must(c, "x.example.")
					}
					_, took = l.must(c, "x.example.")
					assert.Equal(t, 20*ms, took, "a group that is silent is not waited for")
				}
			})
		})
	}
}

func TestAFinalFailureDoesNotFallBack(t *testing.T) {
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
