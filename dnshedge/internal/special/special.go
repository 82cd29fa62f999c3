// Package special answers questions for special-use names: names that have a meaning on one machine or in one network
// only, or no meaning at all. It also recognizes addresses that have a meaning there only.
package special

import (
	"fmt"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/domain"
)

// TTL is the TTL, in seconds, of all records in the responses of Zone.Answer, including the SOA record of negative
// responses (RFC 6303 §3).
const TTL = 10800

// A Zone is a special-use zone, such as localhost, that a program answers itself (RFC 6303 §3). Its own name has an SOA
// and an NS record, and may have other records. In most zones, no other name exists. In a few, all names exist.
type Zone struct {
	name              string
	isForEveryProgram bool // every program serves it, and not only a caching server
	records           []dns.RR
	hasNamesBelow     bool // all names below the apex exist, with the apex's addresses
	hasNoData         bool // all names below the apex exist, without records
}

// zones are the zones of the IANA registries "Special-Use Domain Names" and "Locally-Served DNS Zones" that are empty
// on every server. The keys are names in wire format.
var zones = sync.OnceValue(func() map[string]*Zone {
	zones := make(map[string]*Zone)
	add := func(program bool, name string, records ...string) *Zone {
		z := &Zone{name: name, isForEveryProgram: program}
		records = append([]string{name + " SOA " + name + " nobody.invalid. 1 3600 1200 604800 10800", name + " NS " + name}, records...)
		for _, r := range records {
			rr, err := dns.NewRR(r)
			if err != nil {
				panic(err) // the table is wrong
			}
			rr.Header().Ttl = TTL
			z.records = append(z.records, rr)
		}
		key, err := domain.ParseKey(name)
		if err != nil {
			panic(err)
		}
		zones[key] = z
		return z
	}
	all := func(names ...string) {
		for _, n := range names {
			add(false, n)
		}
	}
	const zeros = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa." // of ::/4 to ::f

	add(true, "localhost.", "localhost. A 127.0.0.1", "localhost. AAAA ::1").hasNamesBelow = true // RFC 6761 §6.3
	add(true, "invalid.")                                                                         // RFC 6761 §6.4
	add(true, "onion.")                                                                           // RFC 7686 §2
	add(true, "alt.")                                                                             // RFC 9476 §2
	all("test.")                                                                                  // RFC 6761 §6.2
	// RFC 6762 §22.1: names and addresses of the link, which multicast DNS finds.
	all("local.", "254.169.in-addr.arpa.", "8.e.f.ip6.arpa.", "9.e.f.ip6.arpa.", "a.e.f.ip6.arpa.", "b.e.f.ip6.arpa.")
	// RFC 6303 §4.1: private addresses.
	all("10.in-addr.arpa.", "168.192.in-addr.arpa.")
	for i := 16; i < 32; i++ {
		all(fmt.Sprintf("%d.172.in-addr.arpa.", i))
	}
	// RFC 6303 §4.2: this network, loopback, documentation, broadcast.
	all("0.in-addr.arpa.", "2.0.192.in-addr.arpa.", "100.51.198.in-addr.arpa.", "113.0.203.in-addr.arpa.", "255.255.255.255.in-addr.arpa.")
	add(false, "127.in-addr.arpa.", "1.0.0.127.in-addr.arpa. PTR localhost.")
	// RFC 6303 §4.3, §4.4, §4.6: unspecified, loopback, unique local, documentation.
	all("0."+zeros, "d.f.ip6.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa.")
	add(false, "1."+zeros, "1."+zeros+" PTR localhost.")
	// RFC 7793: addresses that the customers of a provider share.
	for i := 64; i < 128; i++ {
		all(fmt.Sprintf("%d.100.in-addr.arpa.", i))
	}
	all("home.arpa.", "service.arpa.")            // RFC 8375 §4, RFC 9665
	add(false, "resolver.arpa.").hasNoData = true // RFC 9462 §4, §6.4
	return zones
})

// FindZone returns the special-use zone that contains a name, or nil if there is none. The name must be in wire format
// and lower case. If isCachingServer is true, it also finds the zones that only a caching server should answer, such as
// home.arpa.
func FindZone(name []byte, isCachingServer bool) *Zone {
	last := 0
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		last = off
	}
	switch string(name[last:]) {
	case "\x04arpa\x00", "\x09localhost\x00", "\x07invalid\x00", "\x05onion\x00", "\x03alt\x00", "\x04test\x00", "\x05local\x00":
	default:
		return nil
	}
	zones := zones()
	for off := 0; name[off] != 0; off += 1 + int(name[off]) {
		if z := zones[string(name[off:])]; z != nil && (isCachingServer || z.isForEveryProgram) {
			return z
		}
	}
	return nil
}

// Answer returns the response to a question for a name in the zone and the type qtype. spelled is the name in
// presentation format, as the client spells it. For the DS records of a zone below arpa, it returns nil; servers must
// be queried.
func (z *Zone) Answer(spelled string, qtype uint16) *dns.Msg {
	name := dns.CanonicalName(spelled)
	if qtype == dns.TypeDS && name == z.name && strings.HasSuffix(name, ".arpa.") {
		return nil // the parent proves to validators that the delegation is unsigned (RFC 8375 §4)
	}
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}
	if z.hasNoData {
		m.Rcode = dns.RcodeSuccess
	}
	for _, rr := range z.records {
		owner, t := rr.Header().Name, rr.Header().Rrtype
		if z.hasNamesBelow && (t == dns.TypeA || t == dns.TypeAAAA) {
			owner = name
		}
		if dns.IsSubDomain(name, owner) {
			m.Rcode = dns.RcodeSuccess
		}
		if name == owner && (qtype == t || qtype == dns.TypeANY) {
			rr = dns.Copy(rr)
			rr.Header().Name = spelled
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{dns.Copy(z.records[0])}
	}
	return m
}
