package dnssec_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// panicking panics, or answers questions of A records only and panics when it is asked for keys.
type panicking struct{ keys bool }

func (p panicking) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	if !p.keys || m.Question[0].Qtype != dns.TypeA {
		panic("in an Exchanger")
	}
	r := new(dns.Msg)
	r.SetReply(m)
	rr, err := dns.NewRR("x.example. 60 IN A 192.0.2.1")
	r.Answer = []dns.RR{rr}
	return r, 0, err
}

func (panicking) Addresses(string) []string { panic("in Addresses") }

func TestPanicOfExchangerIsErrorOfQuestion(t *testing.T) {
	for _, e := range []panicking{{}, {keys: true}} {
		synctest.Test(t, func(t *testing.T) {
			v := &dnssec.Validator{Exchanger: e}
			m := new(dns.Msg)
			m.SetQuestion("x.example.", dns.TypeA)
			r, _, err := v.ExchangeContext(t.Context(), m, "")
			assert.True(t, err != nil || r.Rcode == dns.RcodeServerFailure)
			require.NoError(t, v.Close())
		})
	}
}

func TestValidatorFailsAfterPanicInSetup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstreams{world: newWorld(t, estate)}
		v := &dnssec.Validator{Exchanger: u}
		dnssec.PanicInSetup(v)
		for range 2 {
			_, err := ask(v, "www.example. A")
			require.ErrorContains(t, err, "panicked")
		}
		assert.ErrorContains(t, v.Validate(), "panicked")
		assert.Empty(t, u.asked())
		assert.NoError(t, v.Close())
	})
}

func TestIdentityOfValidatorWithNilAnchorIsNoPanic(t *testing.T) {
	v := &dnssec.Validator{Exchanger: new(dnshedge.Client), Trust: dnssec.Trust{Anchors: []dns.RR{nil, new(dns.DNSKEY).ToDS(0)}}}
	assert.NotPanics(t, func() { _ = v.Identity() })
	assert.NoError(t, v.Close())
}
