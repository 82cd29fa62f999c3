package dnssec_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// types returns the types of records.
func types(rrs []dns.RR) (all []string) {
	for _, rr := range rrs {
		all = append(all, dns.Type(rr.Header().Rrtype).String())
	}
	slices.Sort(all)
	return all
}

// RFC 4035 §3.2.1, RFC 6840 §5.8.
func TestValidatorReturnsRequestedRecords(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		for _, c := range []struct {
			name             string
			qtype            uint16
			do, ad, cd, edns bool
			answer, ns       []string
			wantAD           bool
		}{
			{"www.example.", dns.TypeA, true, false, false, true, []string{"A", "RRSIG"}, nil, true},
			{"www.example.", dns.TypeA, false, false, false, true, []string{"A"}, nil, false},
			{"www.example.", dns.TypeA, false, true, false, true, []string{"A"}, nil, true},
			{"www.example.", dns.TypeA, false, true, false, false, []string{"A"}, nil, true},
			{"www.example.", dns.TypeA, false, false, false, false, []string{"A"}, nil, false},
			{"www.example.", dns.TypeA, true, true, true, true, []string{"A", "RRSIG"}, nil, false},
			{"www.plain.", dns.TypeA, true, true, false, true, []string{"A"}, nil, false},
			{"no.example.", dns.TypeA, false, true, false, true, nil, []string{"SOA"}, true},
			{"no.example.", dns.TypeA, true, false, false, true, nil, []string{"NSEC", "NSEC", "RRSIG", "RRSIG", "RRSIG", "SOA"}, true},
			{"x.w.other.", dns.TypeTXT, false, false, false, true, []string{"TXT"}, nil, false},
			{"x.w.other.", dns.TypeTXT, true, false, false, true, []string{"RRSIG", "TXT"}, []string{"NSEC3", "NSEC3", "RRSIG", "RRSIG"}, true},
			{"x.d.other.", dns.TypeA, false, true, false, true, []string{"A", "CNAME", "DNAME"}, nil, true},
			{"example.", dns.TypeDNSKEY, false, true, false, true, []string{"DNSKEY"}, nil, true},
		} {
			m := new(dns.Msg).SetQuestion(c.name, c.qtype)
			m.AuthenticatedData, m.CheckingDisabled = c.ad, c.cd
			if c.edns {
				m.SetEdns0(1232, c.do)
			}
			r, took, err := v.ExchangeContext(context.Background(), m, "")
			require.NoError(t, err)
			assert.Positive(t, took)
			assert.Equal(t, m.Id, r.Id)
			assert.Equal(t, c.answer, types(r.Answer), "%+v", c)
			if !slices.Equal(c.ns, []string{"NSEC", "NSEC", "RRSIG", "RRSIG", "RRSIG", "SOA"}) || len(r.Ns) != 4 { // one NSEC may prove both
				assert.Equal(t, c.ns, types(r.Ns), "%+v", c)
			}
			assert.Equal(t, c.wantAD, r.AuthenticatedData, "%+v", c)
			assert.Equal(t, c.edns, r.IsEdns0() != nil)
			assert.False(t, r.Authoritative)
			assert.True(t, r.RecursionAvailable)
		}
	})
}

// Nobody has signed how long a record may be kept but its zone.
func TestValidatorUsesSignedTTLs(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(_, r *dns.Msg) *dns.Msg {
			for i, rr := range r.Answer {
				r.Answer[i] = dns.Copy(rr)
				r.Answer[i].Header().Ttl = 86400
			}
			return r
		})
		for question, want := range map[string]uint32{"www.example. A": 300, "www.plain. A": 86400} {
			r, err := ask(v, question)
			require.NoError(t, err)
			for _, rr := range r.Answer {
				assert.Equal(t, want, rr.Header().Ttl, rr)
			}
		}
	})
}

func TestValidatorFollowsAliasesThatUpstreamDoesNot(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(q, r *dns.Msg) *dns.Msg {
			if q.Question[0].Name == "alias.example." || q.Question[0].Name == "out.example." {
				r.Answer = r.Answer[:2]
			}
			return r
		})
		r, err := ask(v, "alias.example. A")
		require.NoError(t, err)
		assert.Equal(t, []string{"A", "CNAME", "RRSIG", "RRSIG"}, types(r.Answer))
		assert.True(t, r.AuthenticatedData)
		assert.Equal(t, "insecure", security(t, v, "out.example. A"))
	})
}

func TestValidatorAppliesTrust(t *testing.T) {
	for name, c := range map[string]struct {
		trust func(u *upstreams, t *dnssec.Trust)
		want  map[string]string
	}{
		"off": {func(_ *upstreams, t *dnssec.Trust) { *t = dnssec.Trust{Off: true} }, map[string]string{"www.example. A": "insecure", "www.expired. A": "insecure"}},
		"insecure": {func(_ *upstreams, t *dnssec.Trust) { t.Insecure = []string{"expired", "signed.plain"} }, map[string]string{
			"www.expired. A": "insecure", "no.expired. A": "insecure NXDOMAIN", "expired. DS": "secure", "www.example. A": "secure", "bad.example. A": "insecure"}},
		"no anchors":   {func(_ *upstreams, t *dnssec.Trust) { t.Anchors = []dns.RR{} }, map[string]string{"www.example. A": "insecure"}},
		"another root": {func(_ *upstreams, t *dnssec.Trust) { t.Anchors = nil }, map[string]string{"www.example. A": "bogus 9"}},
		"an island": {func(u *upstreams, t *dnssec.Trust) { t.Anchors = []dns.RR{u.world.zones["signed.plain."].key.DNSKEY} }, map[string]string{
			"www.signed.plain. A": "secure", "www.example. A": "insecure", "signed.plain. DS": "insecure"}},
		"two anchors": {func(u *upstreams, t *dnssec.Trust) {
			t.Anchors = append(t.Anchors, u.world.zones["signed.plain."].key.DNSKEY)
		}, map[string]string{
			"www.signed.plain. A": "secure", "www.example. A": "secure", "www.plain. A": "insecure"}},
		"report": {func(_ *upstreams, t *dnssec.Trust) { t.Report = true }, map[string]string{
			"www.example. A": "secure", "www.expired. A": "insecure", "www.plain. A": "insecure"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
				c.trust(u, &v.Trust)
				for question, want := range c.want {
					assert.Equal(t, want, security(t, v, question), question)
				}
				if v.Trust.Report {
					assert.Equal(t, map[uint16]int64{7: 1}, v.Stats().Bogus)
				}
				assert.Equal(t, name != "off", v.NothingBelow("no.example"))
				assert.Equal(t, name != "off" && name != "insecure", v.NothingBelow("expired."), "a name in Insecure may have names below it")
			})
		})
	}
}

// A Trust that reports does not wait for keys until it is too late.
func TestValidatorReportAnswersInTime(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		v.Trust.Report = true
		u.set(func(q, r *dns.Msg) *dns.Msg {
			if q.Question[0].Qtype == dns.TypeDNSKEY {
				time.Sleep(time.Minute)
			}
			return r
		})
		start := time.Now()
		r, err := ask(v, "www.example. A")
		require.NoError(t, err)
		assert.Equal(t, []string{"A", "RRSIG"}, types(r.Answer))
		assert.Less(t, time.Since(start), 4500*time.Millisecond)
	})
}

func TestValidatorRejectsInvalidFields(t *testing.T) {
	u := new(upstreams)
	for want, v := range map[string]*dnssec.Validator{
		"dnssec: Validator.Exchanger is nil":                        {},
		"dnssec: Validator.MaxBytes is 5; want 0 or at least 65536": {Exchanger: u, MaxBytes: 5},
		"dnssec: Validator.Trust.Anchors has a nil record":          {Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{nil}}},
		"dnssec: Validator.Trust.Anchors has a nil record at index": {Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{new(dns.DNSKEY).ToDS(0)}}},
		"dnssec: Validator.Trust.Insecure has \"\"":                 {Exchanger: u, Trust: dnssec.Trust{Insecure: []string{""}}},
		"dnshedge: Client.Timeout is -1ns":                          {Exchanger: &dnshedge.Client{Timeout: -1}},
	} {
		assert.ErrorContains(t, v.Validate(), want)
		assert.ErrorContains(t, (&dnshedge.Client{Exchanger: v}).Validate(), want)
		if want[:6] == "dnssec" {
			_, _, err := v.ExchangeContext(context.Background(), new(dns.Msg), "")
			assert.ErrorContains(t, err, want)
			assert.Empty(t, v.Stats())
		}
		assert.NoError(t, v.Close())
	}
	v := &dnssec.Validator{Exchanger: u}
	require.NoError(t, v.Validate())
	_, _, err := v.ExchangeContext(context.Background(), new(dns.Msg), "192.0.2.1:53")
	assert.ErrorContains(t, err, "want none")
}

func TestValidatorLogsBogusZoneOncePerHour(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		var out bytes.Buffer
		v.Logger = slog.New(slog.NewTextHandler(&out, nil))
		for range 3 {
			assert.Equal(t, "bogus 7", security(t, v, "www.expired. A"))
		}
		assert.Equal(t, 1, bytes.Count(out.Bytes(), []byte("\n")))
		assert.Contains(t, out.String(), `msg="dnssec: zone is bogus" zone=expired. name=www.expired. type=A reason="Signature Expired"`)
		require.Len(t, v.Stats().LastBogus, 3)
	})
}

// Between two Clients: the upper one keeps answers, as it keeps those of others.
func TestClientCachesValidatedAnswers(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		c := &dnshedge.Client{Exchanger: v, Cache: new(dnshedge.Cache)}
		defer c.Close()
		asked := func(name string, do bool) (*dns.Msg, time.Duration) {
			m := new(dns.Msg).SetQuestion(name, dns.TypeA)
			m.SetEdns0(1232, do)
			start := time.Now()
			r, _, err := c.ExchangeContext(context.Background(), m, "")
			require.NoError(t, err)
			return r, time.Since(start)
		}
		r, took := asked("www.example.", true)
		assert.True(t, r.AuthenticatedData)
		assert.Equal(t, 2*rtt, took)
		r, took = asked("www.example.", true)
		assert.True(t, r.AuthenticatedData)
		assert.Zero(t, took)
		r, took = asked("www.example.", false)
		assert.Equal(t, []string{"A"}, types(r.Answer))
		assert.Equal(t, rtt, took)
		r, _ = asked("no.example.", true)
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		r, took = asked("below.no.example.", true)
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
		assert.Zero(t, took, "there is nothing below a name that is proven not to exist")
		r, _ = asked("www.expired.", true)
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		r, took = asked("www.expired.", true)
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.Zero(t, took, "the failure is kept for a while")
		synctest.Wait()
	})
}

// An alias that was made of a wildcard comes with a proof, which says nothing of what it is an alias of.
func TestValidatorFollowsWildcardAliases(t *testing.T) {
	text := estate + "wild.\n *.in CNAME www.example.\n *.out CNAME www.plain.\n"
	for _, c := range [][2]string{{"x.in.wild.", "secure"}, {"x.out.wild.", "insecure"}} {
		bubble(t, text, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.set(func(q, r *dns.Msg) *dns.Msg {
				if q.Question[0].Name == c[0] && len(r.Answer) > 2 {
					r.Answer = r.Answer[:2]
				}
				return r
			})
			assert.Equal(t, c[1], security(t, v, c[0]+" A"))
			r, err := ask(v, c[0]+" A")
			require.NoError(t, err)
			assert.Contains(t, types(r.Answer), "A")
		})
	}
}

// What an Exchanger has returned may be seen by others, and is not changed.
func TestValidatorDoesNotChangeExchangerResponse(t *testing.T) {
	text := estate + "wild.\n *.in CNAME www.example.\n *.in2 CNAME x.in.wild.\n"
	bubble(t, text, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		var shared *dns.Msg
		var before string
		u.set(func(q, r *dns.Msg) *dns.Msg {
			if q.Question[0].Name != "x.in2.wild." {
				return r
			}
			if shared == nil {
				for i, rr := range r.Answer { // the second alias has less
					r.Answer[i] = dns.Copy(rr)
					if rr.Header().Name == "x.in.wild." {
						r.Answer[i].Header().Ttl = 60
					}
				}
				shared, before = r, fmt.Sprint(r.Answer, r.Ns)
			}
			return shared
		})
		r, err := ask(v, "x.in2.wild. A")
		require.NoError(t, err)
		assert.True(t, r.AuthenticatedData)
		assert.Equal(t, before, fmt.Sprint(shared.Answer, shared.Ns))
	})
}

// adding adds an option to each message before it is asked.
type adding struct{ dnssec.Exchanger }

func (a adding) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	if o := m.IsEdns0(); o != nil {
		o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"})
	}
	return a.Exchanger.ExchangeContext(ctx, m, address)
}

// A caller's options are the caller's: whoever adds one to what is asked does not write behind them, which another one may do at the same time.
func TestValidatorDoesNotChangeCallerOptions(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		v.Exchanger = adding{v.Exchanger}
		m := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
		m.SetEdns0(1232, true)
		options := make([]dns.EDNS0, 0, 4)
		m.IsEdns0().Option = options
		_, _, err := v.ExchangeContext(t.Context(), m, "")
		require.NoError(t, err)
		assert.Equal(t, make([]dns.EDNS0, 4), options[:4])
	})
}
