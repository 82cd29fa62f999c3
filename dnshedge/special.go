package dnshedge

import (
	"fmt"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// SpecialUse says which special-use names a Client answers itself, without asking a
// server. Such names mean something on one machine or in one network only, or nowhere.
// Servers elsewhere have no answer, and need not know who asks for what.
//
// Names with a route in Client.Routes, other than that of ".", are asked there:
// "10.in-addr.arpa" with a nil Exchanger has the names of these addresses asked of the
// Upstreams. ExchangeContext with an address asks the server there whatever the name.
type SpecialUse int8

const (
	// SpecialUseLibrary answers the names that the RFCs ask every program to answer:
	// localhost, invalid (RFC 6761), onion (RFC 7686) and alt (RFC 9476).
	SpecialUseLibrary SpecialUse = iota

	// SpecialUseForwarder answers in addition what the RFCs ask of a caching server, unless
	// it is configured otherwise: test (RFC 6761), local and the reverse zones of link-local
	// addresses (RFC 6762), the reverse zones of other addresses that mean nothing in public
	// (RFC 6303, RFC 7793), home.arpa (RFC 8375), resolver.arpa (RFC 9462) and service.arpa
	// (RFC 9665). Programs must ask their server for these, for it may know them.
	SpecialUseForwarder

	// SpecialUseOff asks the servers for every name.
	SpecialUseOff
)

func (s SpecialUse) validate() error {
	if s < SpecialUseLibrary || s > SpecialUseOff {
		return fmt.Errorf("dnshedge: Client.SpecialUse is %d; want SpecialUseLibrary, SpecialUseForwarder or SpecialUseOff", s)
	}
	return nil
}

// specialZone is a zone that this machine serves. Its apex has an SOA and an NS record
// (RFC 6303 §3), and nothing else exists but its records.
type specialZone struct {
	name    string
	who     SpecialUse // the least that serves the zone
	records []dns.RR
	below   bool // all names below the apex exist, and have the apex's addresses
}

// specialZones are those of the IANA registries "Special-Use Domain Names" and
// "Locally-Served DNS Zones" of which no server can know anything but that they are
// empty. The keys are names in wire format.
var specialZones = sync.OnceValue(func() map[string]*specialZone {
	zones := make(map[string]*specialZone)
	add := func(who SpecialUse, name string, records ...string) *specialZone {
		z := &specialZone{name: name, who: who}
		records = append([]string{name + " SOA " + name + " nobody.invalid. 1 3600 1200 604800 10800", name + " NS " + name}, records...)
		for _, r := range records {
			rr, err := dns.NewRR(r)
			if err != nil {
				panic(err) // the table is wrong
			}
			rr.Header().Ttl = localTTL
			z.records = append(z.records, rr)
		}
		var b [wire.MaxName]byte
		n, err := dns.PackDomainName(name, b[:], 0, nil, false)
		if err != nil {
			panic(err)
		}
		zones[string(b[:n])] = z
		return z
	}
	all := func(names ...string) {
		for _, n := range names {
			add(SpecialUseForwarder, n)
		}
	}
	const zeros = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa." // of ::/4 to ::f

	add(SpecialUseLibrary, "localhost.", "localhost. A 127.0.0.1", "localhost. AAAA ::1").below = true // RFC 6761 §6.3
	add(SpecialUseLibrary, "invalid.")                                                                 // RFC 6761 §6.4
	add(SpecialUseLibrary, "onion.")                                                                   // RFC 7686 §2
	add(SpecialUseLibrary, "alt.")                                                                     // RFC 9476 §2
	all("test.")                                                                                       // RFC 6761 §6.2
	// RFC 6762 §22.1: names and addresses of the link, which multicast DNS finds.
	all("local.", "254.169.in-addr.arpa.", "8.e.f.ip6.arpa.", "9.e.f.ip6.arpa.", "a.e.f.ip6.arpa.", "b.e.f.ip6.arpa.")
	// RFC 6303 §4.1: private addresses.
	all("10.in-addr.arpa.", "168.192.in-addr.arpa.")
	for i := 16; i < 32; i++ {
		all(fmt.Sprintf("%d.172.in-addr.arpa.", i))
	}
	// RFC 6303 §4.2: this network, loopback, documentation, broadcast.
	all("0.in-addr.arpa.", "2.0.192.in-addr.arpa.", "100.51.198.in-addr.arpa.", "113.0.203.in-addr.arpa.", "255.255.255.255.in-addr.arpa.")
	add(SpecialUseForwarder, "127.in-addr.arpa.", "1.0.0.127.in-addr.arpa. PTR localhost.")
	// RFC 6303 §4.3, §4.4, §4.6: unspecified, loopback, unique local, documentation.
	all("0."+zeros, "d.f.ip6.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa.")
	add(SpecialUseForwarder, "1."+zeros, "1."+zeros+" PTR localhost.")
	// RFC 7793: addresses that the customers of a provider share.
	for i := 64; i < 128; i++ {
		all(fmt.Sprintf("%d.100.in-addr.arpa.", i))
	}
	all("home.arpa.")                      // RFC 8375 §4
	all("resolver.arpa.", "service.arpa.") // RFC 9462 §6.4, RFC 9665
	return zones
})

// zone returns the zone that q's name is in, or nil. It costs a few nanoseconds if the
// name's last label is that of no zone.
func (s SpecialUse) zone(q *wire.Query) *specialZone {
	if s == SpecialUseOff {
		return nil
	}
	last := 0
	for off := 0; q.Name[off] != 0; off += 1 + int(q.Name[off]) {
		last = off
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	switch string(name[last:]) {
	case "\x04arpa\x00", "\x09localhost\x00", "\x07invalid\x00", "\x05onion\x00", "\x03alt\x00", "\x04test\x00", "\x05local\x00":
	default:
		return nil
	}
	zones := specialZones()
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		if z := zones[string(name[off:])]; z != nil && z.who <= s {
			return z
		}
	}
	return nil
}

// answer answers a question for a name of the zone. It returns nil if the zone's parent
// has the answer: that the zone is delegated without DNSSEC, which those who validate
// must be told (RFC 8375 §4).
func (z *specialZone) answer(q *wire.Query) *dns.Msg {
	name := dns.CanonicalName(q.Text())
	if q.Type == dns.TypeDS && name == z.name && strings.HasSuffix(name, ".arpa.") {
		return nil
	}
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}
	for _, rr := range z.records {
		owner, t := rr.Header().Name, rr.Header().Rrtype
		if z.below && (t == dns.TypeA || t == dns.TypeAAAA) {
			owner = name
		}
		if dns.IsSubDomain(name, owner) {
			m.Rcode = dns.RcodeSuccess
		}
		if name == owner && (q.Type == t || q.Type == dns.TypeANY) {
			rr = dns.Copy(rr)
			rr.Header().Name = q.Text()
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = z.records[:1]
	}
	return m
}
