package dnssec_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// Two upstreams, of which the one that a Client prefers knows nothing of DNSSEC: who asks the Client above has what the other one says, and after a
// while as soon as if there were no other.
func TestForwarderNamesUpstreamThatStripsSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := netsim.NewMemory(1, "client", "a", "b")
		require.NoError(t, err)
		defer n.Close()
		w := newWorld(t, estate)
		inner := &dnshedge.Client{Dialer: n.Host("client"), Order: dnshedge.OrderStrict, Hedge: dnshedge.Hedge{Off: true}}
		for i, host := range []string{"a", "b"} {
			n.Set("client", host, netsim.Profile{Delay: netsim.Constant(rtt / 2)})
			s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
				r := w.resolve(strings.ToLower(q.Question[0].Name), q.Question[0].Qtype)
				r.SetRcode(q.Msg, r.Rcode)
				if r.RecursionAvailable = true; i == 0 {
					stripped(q.Msg, r)
				}
				r.SetEdns0(1232, true)
				for j, rr := range r.Answer {
					r.Answer[j] = dns.Copy(rr)
				}
				for j, rr := range r.Ns {
					r.Ns[j] = dns.Copy(rr)
				}
				return dnstest.Reply{Msg: r}
			}}
			pc, err := n.Host(host).ListenPacket("udp", ":53")
			require.NoError(t, err)
			s.ServeUDP(pc)
			defer s.Close()
			up, err := dnshedge.ParseUpstream(n.Host(host).Addr().String())
			require.NoError(t, err)
			inner.Upstreams = append(inner.Upstreams, up)
		}
		defer inner.Close()
		v := &dnssec.Validator{Exchanger: inner, Trust: dnssec.Trust{Anchors: []dns.RR{w.anchor()}}}
		defer v.Close()
		client := &dnshedge.Client{Exchanger: v, Cache: new(dnshedge.Cache)}
		defer client.Close()
		ask := func(name string) time.Duration {
			m := new(dns.Msg).SetQuestion(name, dns.TypeA)
			m.SetEdns0(1232, true)
			start := time.Now()
			r, _, err := client.ExchangeContext(context.Background(), m, "")
			require.NoError(t, err)
			assert.True(t, r.AuthenticatedData, "%v", r)
			return time.Since(start)
		}
		ask("www.example.")
		time.Sleep(time.Second)
		assert.Equal(t, rtt, ask("a.b.c.example."))
		assert.Zero(t, ask("a.b.c.example."))
		assert.Empty(t, v.Stats().Bogus)
	})
}
