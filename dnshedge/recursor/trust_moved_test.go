package recursor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
)

// stray makes the first referral from the root to tld. lead to a false server.
func (w *testNetwork) stray(to string) {
	forgedYet := false
	w.setFault("198.41.0.4", func(q query, right *dns.Msg) *dns.Msg {
		if forgedYet || !dns.IsSubDomain("tld.", q.name) || q.qtype == dns.TypeDS {
			return right
		}
		forgedYet = true
		r := respondWith("referral | tld. NS ns.tld. | ns.tld. A "+to)(q, nil)
		r.Ns = append(r.Ns, slices.DeleteFunc(right.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeNS })...)
		return r
	})
}

// pretend adds a false server of tld. If real is set, it refers to the genuine servers of child zones. Otherwise it
// answers itself, with invalid keys.
func (w *testNetwork) pretend(real bool) {
	const bad = "192.0.9.9"
	w.stray(bad)
	stranger := newSigner("tld.", "evil")
	w.setFault(bad, func(q query, _ *dns.Msg) *dns.Msg {
		switch {
		case q.qtype == dns.TypeDNSKEY:
			r := respondWith("")(q, nil)
			r.Answer = []dns.RR{stranger.key, stranger.sign([]dns.RR{stranger.key})}
			return r
		case q.name == "ns.tld." && q.qtype == dns.TypeA:
			return respondWith("ns.tld. A "+bad)(q, nil)
		case real && dns.IsSubDomain("example.tld.", q.name):
			return respondWith("referral | example.tld. NS ns.example.tld. | ns.example.tld. A 192.0.3.1")(q, nil)
		case real && dns.IsSubDomain("other.tld.", q.name):
			return respondWith("referral | other.tld. NS ns.other.tld. | ns.other.tld. A 192.0.5.1")(q, nil)
		}
		return respondWith(q.name+" A 192.0.2.66")(q, nil)
	})
}

// TestForgedReferralFailsNoConcurrentQuestion requires that delegations of child zones from a false server are
// dropped with the false server. No concurrent question for a name below fails.
func TestForgedReferralFailsNoConcurrentQuestion(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	for _, real := range []bool{true, false} {
		for _, minimise := range []bool{true, false} {
			for _, name := range []string{"www.sub.example.tld.", "mail.sub.example.tld.", "www.other.tld."} {
				t.Run(fmt.Sprintln(real, minimise, name), func(t *testing.T) {
					for later := range 24 {
						if real && later < 3 { // the genuine and the forged referral come at the same time: the later one is cached
							continue
						}
						bubble(t, deep+"other.tld. delegated 192.0.5.1\n  www A 192.0.2.82\n", func(t *testing.T, w *testNetwork) {
							w.sign()
							w.pretend(real)
							r := newValidatingResolver(w)
							r.NoMinimise = !minimise
							others := make(chan string, 2)
							for i, name := range []string{name, "mail.example.tld."} {
								go func() {
									time.Sleep(time.Duration(later*(i+1)) * 5 * ms)
									others <- w.security(r, name+" A")
								}()
							}
							assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"), later)
							assert.Equal(t, "secure", <-others, later)
							assert.Equal(t, "secure", <-others, later)
							assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), later)
						})
					}
				})
			}
		}
	}
}
