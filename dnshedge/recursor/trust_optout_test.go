package recursor_test

import (
	"slices"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	keys "github.com/gohedge/hedge/internal/signer"
)

// optOut makes the servers of a signed zone prove denials with NSEC3 records and opt-out: unsigned delegations have
// no NSEC3 record (RFC 5155 §6).
func optOut(w *testNetwork, zone, servers string) {
	z := w.zone(zone)
	types := make(map[string][]uint16)
	for name, sets := range z.sets {
		if cut := z.cut(name); cut != "" && cut != name {
			continue
		}
		types[name] = []uint16{}
		for t := range sets {
			if t != dns.TypeNSEC && t != dns.TypeRRSIG && (z.cut(name) == "" || t == dns.TypeNS || t == dns.TypeDS) {
				types[name] = append(types[name], t)
			}
		}
		slices.Sort(types[name])
	}
	c := keys.NewChain(zone, keys.NSEC3OptOut, keys.NSEC3Params{}, 300, types)
	is := func(typ uint16) func(dns.RR) bool {
		return func(rr dns.RR) bool {
			sig, ok := rr.(*dns.RRSIG)
			return rr.Header().Rrtype == typ || ok && sig.TypeCovered == typ
		}
	}
	w.setFault(servers, func(q query, r *dns.Msg) *dns.Msg {
		if !slices.ContainsFunc(r.Ns, is(dns.TypeNSEC)) {
			return r
		}
		r.Ns = slices.DeleteFunc(slices.Clone(r.Ns), is(dns.TypeNSEC))
		proof := c.ProveNoData(q.name)
		if i := slices.IndexFunc(r.Ns, is(dns.TypeNS)); i >= 0 {
			proof = c.ProveNoData(r.Ns[i].Header().Name)
		} else if r.Rcode == dns.RcodeNameError {
			proof = c.ProveNoName(q.name)
		}
		for _, rr := range proof {
			r.Ns = append(r.Ns, rr, z.signer.sign([]dns.RR{rr}))
		}
		return r
	})
}

func TestOptOutMakesDelegationsAndDenialsInsecure(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		optOut(w, "tld.", "192.0.2.1 192.0.2.2")
		r := newValidatingResolver(w)
		for range 2 {
			for question, want := range map[string]string{
				"www.unsigned.tld. A": "insecure",
				"unsigned.tld. DS":    "insecure", // the zone may exist and be signed
				"no.tld. A":           "insecure",
				"no.no.tld. A":        "insecure",
				"www.example.tld. A":  "secure",
				"example.tld. DS":     "secure",
				"tld. MX":             "secure", // the name has a record of its own
				"tld. SOA":            "secure",
			} {
				assert.Equal(t, want, w.security(r, question), question)
			}
		}
		m := w.ask(r, "no.tld. A")
		assert.Equal(t, dns.RcodeNameError, m.Rcode)
		assert.Empty(t, r.Stats().Bogus)
	})
}

// TestOptOutDeniesNoSignedDelegation removes the DS records of a signed zone. The zone does not become insecure,
// because the chain shows that it has DS records.
func TestOptOutDeniesNoSignedDelegation(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		optOut(w, "tld.", "192.0.2.1 192.0.2.2")
		var proof []dns.RR
		w.updateServers("192.0.2.1 192.0.2.2", func(s *server) {
			right := s.change
			s.change = func(q query, r *dns.Msg) *dns.Msg {
				if r = right(q, r); q.name == "www.unsigned.tld." || q.name == "unsigned.tld." {
					proof = slices.DeleteFunc(slices.Clone(r.Ns), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeNS })
				} else if dns.IsSubDomain("example.tld.", q.name) {
					r = withoutRecords(dns.TypeDS)(q, r)
					r.Ns = append(r.Ns, proof...)
				}
				return r
			}
		})
		r := newValidatingResolver(w)
		assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"))
		assert.NotEmpty(t, proof)
		assert.Contains(t, w.security(r, "www.example.tld. A"), "bogus")
	})
}

// TestOptOutProofDoesNotMakeNXDOMAIN has a server that answers NOERROR with the proof that a name has no NSEC3 record. With
// opt-out, the name may be that of an unsigned delegation.
func TestOptOutProofDoesNotMakeNXDOMAIN(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		optOut(w, "tld.", "192.0.2.1 192.0.2.2")
		w.updateServers("192.0.2.1 192.0.2.2", func(s *server) {
			right := s.change
			s.change = func(q query, r *dns.Msg) *dns.Msg {
				r = right(q, r)
				r.Rcode = dns.RcodeSuccess
				return r
			}
		})
		m := w.ask(newValidatingResolver(w), "no.tld. A")
		assert.Equal(t, dns.RcodeSuccess, m.Rcode)
		assert.False(t, m.AuthenticatedData)
	})
}

// TestUnsignedResponseNeedsOptOut has servers that answer questions for addresses without signatures. Such a response is
// insecure if the name may be that of an unsigned delegation: an opt-out span covers the name (RFC 5155 §12.2). A
// wildcard does not change that. The response about a name with an NSEC3 record of its own is bogus.
func TestUnsignedResponseNeedsOptOut(t *testing.T) {
	for kind, respond := range map[string]func(query, *dns.Msg) *dns.Msg{
		"NXDOMAIN": respondNXDOMAIN("| example.tld. SOA ns.example.tld. admin.example.tld. 1 3600 600 86400 300"),
		"NODATA":   respondWith("| example.tld. SOA ns.example.tld. admin.example.tld. 1 3600 600 86400 300"),
		"address":  func(q query, _ *dns.Msg) *dns.Msg { return respondWith(q.name+" A 192.0.2.99")(q, nil) },
	} {
		for _, withOptOut := range []bool{false, true} {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign()
				if withOptOut {
					optOut(w, "example.tld.", "192.0.3.1 192.0.3.2")
				}
				w.updateServers("192.0.3.1 192.0.3.2", func(s *server) {
					right := s.change
					s.change = func(q query, r *dns.Msg) *dns.Msg {
						if right != nil {
							r = right(q, r)
						}
						return onlyForType(dns.TypeA, respond)(q, r)
					}
				})
				open := "bogus 10"
				if withOptOut {
					open = "insecure"
				}
				for question, want := range map[string]string{
					"www.example.tld. A": "bogus 10", "x.w.example.tld. A": open, "y.x.w.example.tld. A": open,
				} {
					r := newValidatingResolver(w) // without proofs of other questions
					assert.Equal(t, want, w.security(r, question), "%s for %s, opt-out %v", kind, question, withOptOut)
				}
			})
		}
	}
}
