package recursor_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// twoRoots is a network with two root servers, of which the Hints in tests have only the first.
const twoRoots = `
. served 198.41.0.4 198.41.0.5
  @ NS a.root.
  @ NS b.root.
  a.root A 198.41.0.4
  b.root A 198.41.0.5
example. delegated 192.0.2.1
  www A 192.0.2.80
other. delegated 192.0.2.2
  www A 192.0.2.82
`

func firstHint(r *recursor.Resolver) {
	r.Hints, r.NoIPv6 = []netip.Addr{netip.MustParseAddr("198.41.0.4")}, true
}

// withoutAddressesOf returns the fault of a server whose priming response lacks the addresses of the given names. The
// server answers questions about names of root servers, and fails for all other names.
func withoutAddressesOf(names ...string) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		r.Extra = slices.DeleteFunc(slices.Clone(r.Extra), func(rr dns.RR) bool { return slices.Contains(names, rr.Header().Name) })
		if !dns.IsSubDomain("root.", q.name) && q.name != "." {
			return respondRcode(dns.RcodeServerFailure)(q, r)
		}
		return r
	}
}

// A priming response may lack addresses of root servers. The Resolver then looks up their names (RFC 9609 §4.2).
func TestResolverLooksUpRootServersWithoutAddress(t *testing.T) {
	for missing, names := range map[string][]string{"all": {"a.root.", "b.root."}, "one": {"b.root."}} {
		for _, signed := range []bool{false, true} {
			bubble(t, twoRoots, func(t *testing.T, w *testNetwork) {
				r := w.resolver(firstHint)
				if signed {
					w.sign()
					r = newValidatingResolver(w, firstHint)
				}
				w.setFault("198.41.0.4", withoutAddressesOf(names...))
				assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")), "%s, signed: %t", missing, signed)
				time.Sleep(2 * time.Minute)
				w.setFault("198.41.0.4", silent)
				assert.Equal(t, "NOERROR www.other. A 192.0.2.82", formatResponse(w.ask(r, "www.other. A")), "%s, signed: %t", missing, signed)
			})
		}
	}
}
