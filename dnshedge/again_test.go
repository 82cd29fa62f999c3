package dnshedge_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// For a second, a server closes connections, before a question or during the handshake, or responds that it is
// overloaded (RFC 7766 §6.2.4).
func TestClientAsksUnavailableServerAgain(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	for _, tc := range []struct {
		name, network string
		bad           dnstest.Reply
	}{
		{"ends", "tls", dnstest.Reply{}}, {"ends", "https", dnstest.Reply{}},
		{"429", "https", dnstest.Reply{Status: http.StatusTooManyRequests}}, {"503", "https", dnstest.Reply{Status: http.StatusServiceUnavailable}},
		{"503, for a second", "https", dnstest.Reply{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"1"}}}},
	} {
		bubble(t, func(l *lab) {
			var n atomic.Int64
			serve := func(start time.Time) {
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					n.Add(1)
					if time.Since(start) < time.Second {
						return tc.bad
					}
					return good(q)
				})
			}
			if tc.name == "ends" {
				var closed []net.Listener
				for _, port := range []string{":853", ":443"} {
					ln, err := l.net.Host("a").Listen("tcp", port)
					require.NoError(l, err)
					closed = append(closed, ln)
					go func() {
						for {
							c, err := ln.Accept()
							if err != nil {
								return
							}
							n.Add(1)
							_ = c.Close()
						}
					}()
				}
				time.AfterFunc(time.Second, func() {
					for _, ln := range closed {
						_ = ln.Close()
					}
					serve(time.Time{})
				})
			} else {
				serve(time.Now())
			}
			r, took := l.must(l.client(off(), l.up(tc.network, "a")), "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
			assert.LessOrEqual(t, took, 2500*ms, "%s, %s", tc.network, tc.name)
			assert.LessOrEqual(t, n.Load(), int64(10), "%s, %s", tc.network, tc.name)
		})
	}
}

// A caller names the address of a server. That server restarts, closes its connections, or responds that it is
// overloaded.
func TestClientAsksUnavailableAddressAgain(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	for name, tc := range map[string]struct {
		network string
		bad     *dnstest.Reply // nil: connections are refused
	}{
		"refuses": {"tcp", nil}, "refuses, https": {"https", nil}, "ends": {"tls", &dnstest.Reply{Close: true}},
		"429": {"https", &dnstest.Reply{Status: http.StatusTooManyRequests}}, "503": {"https", &dnstest.Reply{Status: http.StatusServiceUnavailable}},
	} {
		bubble(t, func(l *lab) {
			start := time.Now()
			serve := func() {
				l.serve("a", func(q dnstest.Query) dnstest.Reply {
					if tc.bad != nil && time.Since(start) < 400*ms {
						return *tc.bad
					}
					return good(q)
				})
			}
			if tc.bad == nil {
				time.AfterFunc(400*ms, serve)
			} else {
				serve()
			}
			r, _, err := l.client(off(), l.up("udp", "b")).Exchange(question("x.example.", dns.TypeA), l.up(tc.network, "a").String())
			if assert.NoError(l, err, name) {
				assert.Equal(l, "192.0.2.1", addr(r), name)
			}
			assert.LessOrEqual(l, time.Since(start), 2*time.Second, name)
		})
	}
}

func TestClientHonorsRetryAfter(t *testing.T) {
	bubble(t, func(l *lab) {
		s := l.serve("a", func(dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"120"}}}
		})
		_, took, err := l.ask(l.client(off(), l.up("https", "a")), "x.example.")
		var status *dnshedge.StatusError
		require.ErrorAs(t, err, &status)
		assert.Less(t, took, time.Second)
		assert.EqualValues(t, 1, s.Queries.Load())
	})
}

func TestClientAsksNextServerWhenFirstIsUnavailable(t *testing.T) {
	for name, bad := range map[string]dnstest.Reply{"ends": {Close: true}, "503": {Status: http.StatusServiceUnavailable}} {
		bubble(t, func(l *lab) {
			l.serve("a", func(dnstest.Query) dnstest.Reply { return bad })
			l.serve("b", good)
			r, took := l.must(l.client(off(), l.up("https", "a"), l.up("https", "b")), "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r))
			assert.LessOrEqual(t, took, 400*ms, name)
		})
	}
}

// authority responds like an authoritative server of a single zone.
func authority(q dnstest.Query) dnstest.Reply {
	var rrs []string
	switch name := strings.ToLower(q.Question[0].Name); name {
	case "in.corp.example.":
		rrs = []string{"CNAME target.corp.example."}
	case "target.corp.example.":
		rrs = []string{"A 192.0.2.7"}
	case "out.corp.example.":
		rrs = []string{"CNAME out.example."}
	case "gone.corp.example.":
		rrs = []string{"CNAME gone.example."}
	case "fails.corp.example.":
		rrs = []string{"CNAME fails.example."}
	case "loop.corp.example.":
		rrs = []string{"CNAME loop2.corp.example."}
	case "loop2.corp.example.":
		rrs = []string{"CNAME loop.corp.example."}
	default:
		var n int
		if _, err := fmt.Sscanf(name, "n%d.", &n); err == nil {
			rrs = []string{fmt.Sprintf("CNAME n%d.corp.example.", n+1)}
		}
	}
	m := dnstest.Answer(q, rrs...)
	m.Authoritative, m.RecursionAvailable = true, false
	return dnstest.Reply{Msg: m}
}

// RFC 1034 section 5.3.3.
func TestClientFollowsAliasesOfRoute(t *testing.T) {
	bubble(t, func(l *lab) {
		inside := l.serve("a", authority)
		l.serve("b", func(q dnstest.Query) dnstest.Reply {
			switch q.Question[0].Name {
			case "gone.example.":
				return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 60)}
			case "fails.example.":
				return rcode(dns.RcodeServerFailure)(q)
			}
			return good(q)
		})
		route := l.client(new(dnshedge.Client), l.up("udp", "a"))
		c := &dnshedge.Client{Cache: new(dnshedge.Cache), Routes: map[string]dnshedge.Exchanger{"corp.example": route}}
		l.client(c, l.up("udp", "b"))
		for name, want := range map[string]string{"in": "192.0.2.7", "out": "192.0.2.1"} {
			for range 2 {
				r, _ := l.must(c, name+".corp.example.")
				require.Len(t, r.Answer, 2, name)
				assert.Equal(t, want, addr(r))
				assert.Equal(t, name+".corp.example.", r.Question[0].Name)
			}
		}
		r, _ := l.must(c, "gone.corp.example.")
		assert.Equal(t, dns.RcodeNameError, r.Rcode, "the code is that of the last name (RFC 6604)")
		require.Len(t, r.Answer, 1)
		for _, name := range []string{"fails", "loop", "n1"} {
			before := inside.Queries.Load()
			r, _ = l.must(c, name+".corp.example.")
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode, name)
			assert.LessOrEqual(t, inside.Queries.Load()-before, int64(17), name)
		}
		m := question("in.corp.example.", dns.TypeCNAME)
		r, _, err := c.Exchange(m, "")
		require.NoError(t, err)
		assert.Len(t, r.Answer, 1)
	})
}
