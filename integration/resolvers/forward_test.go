package resolvers

import (
	"context"
	"net"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// DialContext opens a socket to the resolver, whatever the address: a Client that has it as its Dialer asks it alone.
func (r *resolver) DialContext(_ context.Context, network, _ string) (net.Conn, error) {
	return r.dial(network[:3])
}

// TestAForwarderValidatesWhatOthersSay: a Validator around unbound, and one around BIND, which both check nothing, finds of zones with flaws what the
// resolver finds that asks their servers and judges by the same rules. It differs by a setting only: that one has 150 iterations allowed.
func TestAForwarderValidatesWhatOthersSay(t *testing.T) {
	if testing.Short() {
		t.Skip("asks hundreds of questions")
	}
	l := newLab(t)
	e := newEstate(l, 150)
	l.open(t)
	anchor := e.root.ds()[0]
	peers := startPeers(t, l, unboundConf, namedConf)
	ours := startOurs(t, l, anchor.String())
	warm(t, append(peers, ours)...)
	for _, peer := range peers[:2] {
		t.Run(peer.name, func(t *testing.T) {
			inner := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: peer.at.String()}}, Dialer: peer}
			defer inner.Close()
			v := &dnssec.Validator{Exchanger: inner, Trust: dnssec.Trust{Anchors: []dns.RR{anchor}}}
			defer v.Close()
			kinds := make(map[string]int)
			for _, z := range e.zones {
				for _, a := range z.questions {
					m, _, err := v.ExchangeContext(t.Context(), a.message(), "")
					forwarded, resolved := outcome{msg: m, err: err}.security(), ours.ask(t.Context(), a).security()
					kinds[resolved+" "+forwarded]++
					if z.flaw != "iterations" {
						assert.Equal(t, resolved, forwarded, "%v, flaw %q: %v", a, z.flaw, extendedOf(m))
					}
				}
			}
			require.NotZero(t, kinds["secure secure"])
			t.Logf("resolved and forwarded: %v", kinds)
		})
	}
}

// extendedOf returns the extended errors of a response.
func extendedOf(m *dns.Msg) (all []string) {
	if m == nil || m.IsEdns0() == nil {
		return nil
	}
	for _, o := range m.IsEdns0().Option {
		all = append(all, o.String())
	}
	return all
}
