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

func TestValidatorRecoversPanicOfExchanger(t *testing.T) {
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

// nilRecords returns what may stand in place of a record and has no methods that work.
func nilRecords() []dns.RR {
	return []dns.RR{nil, (*dns.A)(nil), (*dns.OPT)(nil), struct{ dns.RR }{}, &dns.PrivateRR{}}
}

func TestValidatorRejectsNilRecord(t *testing.T) {
	sections := []func(r *dns.Msg, rr dns.RR){
		func(r *dns.Msg, rr dns.RR) { r.Answer = append(r.Answer, rr) },
		func(r *dns.Msg, rr dns.RR) { r.Ns = append(r.Ns, rr) },
		func(r *dns.Msg, rr dns.RR) { r.Extra = append(r.Extra, rr) },
	}
	for _, rr := range nilRecords() {
		for i, add := range sections {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeDNSKEY, dns.TypeDS, dns.TypeSOA} {
				bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
					change := func(q, r *dns.Msg) *dns.Msg {
						if q.Question[0].Qtype == qtype {
							add(r, rr)
						}
						return r
					}
					u.order = []string{"one", "two"}
					u.set(change, change)
					r, err := ask(v, "www.example. A")
					if qtype != dns.TypeSOA {
						assert.True(t, err != nil || r.Rcode == dns.RcodeServerFailure, "%T in section %d for %s", rr, i, dns.Type(qtype))
					}
					m := new(dns.Msg).SetQuestion("www.example.", qtype)
					m.CheckingDisabled = true
					_, _, err = v.ExchangeContext(t.Context(), m, "")
					assert.Error(t, err)
				})
			}
		}
	}
}

// unpackable is data of a record that panics when it is written to a message.
type unpackable struct{}

func (unpackable) String() string              { return "" }
func (unpackable) Parse([]string) error        { return nil }
func (unpackable) Pack([]byte) (int, error)    { panic("in Pack") }
func (unpackable) Unpack([]byte) (int, error)  { return 0, nil }
func (unpackable) Copy(dns.PrivateRdata) error { return nil }
func (unpackable) Len() int                    { return 4 }

// privateType is for private use (RFC 6895 §3.1).
const privateType = 65400

func init() {
	dns.PrivateHandle("UNPACKABLE", privateType, func() dns.PrivateRdata { return unpackable{} })
}

func TestValidatorRecoversPanicOfKeyRecord(t *testing.T) {
	for _, qtype := range []uint16{dns.TypeDNSKEY, dns.TypeDS} {
		bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.set(func(q, r *dns.Msg) *dns.Msg {
				if ask := q.Question[0]; ask.Qtype == qtype {
					rr := dns.TypeToRR[privateType]()
					*rr.Header() = dns.RR_Header{Name: ask.Name, Rrtype: qtype, Class: dns.ClassINET, Ttl: 60}
					r.Answer = append([]dns.RR{rr}, r.Answer...)
				}
				return r
			})
			r, err := ask(v, "www.example. A")
			assert.True(t, err != nil || r.Rcode == dns.RcodeServerFailure, "%s", dns.Type(qtype))
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

func TestValidatorIdentityAcceptsNilAnchor(t *testing.T) {
	v := &dnssec.Validator{Exchanger: new(dnshedge.Client), Trust: dnssec.Trust{Anchors: []dns.RR{nil, new(dns.DNSKEY).ToDS(0)}}}
	assert.NotPanics(t, func() { _ = v.Identity() })
	assert.NoError(t, v.Close())
}
