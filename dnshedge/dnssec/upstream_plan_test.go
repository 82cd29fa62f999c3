package dnssec_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/signer"
)

// unsignedRoot runs f with three upstreams. The root has a trust anchor and no signatures, so all names below it are
// bogus. The zone a.one. has a trust anchor and signatures.
func unsignedRoot(t *testing.T, f func(t *testing.T, u *upstreams, v *dnssec.Validator)) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstreams{world: newWorld(t, ". unsigned\none. unsigned\n  www A 192.0.2.1\na.one.\n  www A 192.0.2.2\n")}
		u.order = []string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}
		root := signer.NewKey(".", signer.KSK, dns.ED25519, "1")
		v := &dnssec.Validator{Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{root.ToDS(dns.SHA256), u.world.zones["a.one."].ds()}}}
		defer v.Close()
		f(t, u, v)
	})
}

// An unsigned zone does not show that an upstream lacks DNSSEC. The other upstreams are still queried for signed zones.
func TestValidatorAsksAllUpstreamsAfterUnsignedZone(t *testing.T) {
	unsignedRoot(t, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(stripped)
		assert.Regexp(t, "^bogus", security(t, v, "www.one. A"))
		synctest.Wait()
		assert.Equal(t, "secure", security(t, v, "www.a.one. A"), "%v", u.asked())
	})
}

// A test of the upstreams with an unsigned zone does not replace the result of a test with a signed zone.
func TestValidatorAvoidsUpstreamWithoutDNSSECAfterUnsignedZone(t *testing.T) {
	unsignedRoot(t, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(stripped)
		assert.Equal(t, "secure", security(t, v, "www.a.one. A"))
		time.Sleep(2 * time.Minute)
		assert.Regexp(t, "^bogus", security(t, v, "www.one. A"))
		synctest.Wait()
		u.asked()
		assert.Equal(t, "secure", security(t, v, "www.a.one. A"))
		assert.Equal(t, []string{"www.a.one. A @192.0.2.2:53"}, u.asked())
	})
}

// The reason of a bogus answer names no upstream because of another zone, which is unsigned.
func TestValidatorNamesNoUpstreamForOtherZone(t *testing.T) {
	unsignedRoot(t, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		text := func(question string) string {
			r, err := ask(v, question)
			require.NoError(t, err)
			require.Equal(t, dns.RcodeServerFailure, r.Rcode)
			return r.IsEdns0().Option[0].(*dns.EDNS0_EDE).ExtraText
		}
		assert.Contains(t, text("www.one. A"), ", or an unsigned zone: ")
		unsigned := about("www.a.one.", dns.TypeA, func(_, r *dns.Msg) *dns.Msg { return resignedAway(r, dns.TypeA) })
		u.set(unsigned, unsigned, unsigned)
		assert.NotContains(t, text("www.a.one. A"), "without DNSSEC")
	})
}

// An upstream with wrong signatures of an unsigned zone cannot prevent queries to the other upstreams.
func TestValidatorAsksAllUpstreamsAfterForgedSignatures(t *testing.T) {
	unsignedRoot(t, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		stranger := signer.NewKey(".", signer.KSK, dns.ED25519, "2")
		u.set(stripped, nil, func(q, r *dns.Msg) *dns.Msg {
			if len(r.Answer) > 0 {
				r.Answer = append(r.Answer[:1:1], stranger.Sign(r.Answer[:1], signer.SignatureOptions{}))
			}
			return r
		})
		assert.Regexp(t, "^bogus", security(t, v, "www.one. A"))
		synctest.Wait()
		assert.Equal(t, "secure", security(t, v, "www.a.one. A"), "%v", u.asked())
	})
}

// A slowName is an Exchanger whose upstreams do not answer questions about one name in time. The first upstream is the
// exception, unless it is asked by address.
type slowName struct {
	*upstreams
	name string
}

func (s slowName) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	if m.Question[0].Name == s.name && address != "" {
		<-ctx.Done()
		return nil, 0, context.Cause(ctx)
	}
	return s.upstreams.ExchangeContext(ctx, m, address)
}

// A name that no upstream with DNSSEC answers in time does not show that these upstreams are unresponsive.
func TestValidatorAsksAllUpstreamsAfterSlowName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstreams{world: newWorld(t, estate)}
		u.order = []string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}
		u.set(stripped)
		v := &dnssec.Validator{Exchanger: slowName{u, "slow.example."}, Trust: dnssec.Trust{Anchors: []dns.RR{u.world.anchor()}}}
		defer v.Close()
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
		time.Sleep(time.Second)
		assert.Regexp(t, "^bogus", security(t, v, "slow.example. A"))
		u.asked()
		start := time.Now()
		assert.Equal(t, "secure", security(t, v, "a.b.c.example. A"), "%v", u.asked())
		assert.Less(t, time.Since(start), time.Second)
		u.asked()
		assert.Equal(t, "secure", security(t, v, "a.b.c.example. A"))
		assert.Equal(t, []string{"a.b.c.example. A @192.0.2.2:53"}, u.asked(), "an upstream that responds is not avoided")
	})
}

// The upstreams of a name that needs no signatures do not depend on DNSSEC. A private name does not go to a public
// upstream because the private one lacks DNSSEC.
func TestValidatorLetsExchangerSelectUpstreamOfInsecureName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &upstreams{world: newWorld(t, estate+"\ncorp. unsigned\n  www A 192.0.2.80\n")}
		u.order = []string{"192.0.2.1:53", "192.0.2.2:53"}
		u.set(stripped)
		v := &dnssec.Validator{Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{u.world.anchor()}, Insecure: []string{"corp."}}}
		defer v.Close()
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
		time.Sleep(time.Second)
		u.asked()
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
		assert.Equal(t, []string{"www.example. A @192.0.2.2:53"}, u.asked())
		assert.Equal(t, "insecure", security(t, v, "www.corp. A"))
		assert.Equal(t, []string{"www.corp. A"}, u.asked())
	})
}
