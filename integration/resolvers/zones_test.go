package resolvers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// trouble is a zone below the root that does not behave, and what is asked about it, in this order.
type trouble struct {
	zone    string // one label
	servers int
	records []string // besides those of everyZone
	twist   func(q query, r *dns.Msg) *dns.Msg
	takes   time.Duration
	noTCP   bool
	ask     string // "name type, name type": names are relative to the zone, or end with a dot
}

// everyZone has records for the questions.
var everyZone = []string{"www A 192.0.2.80", "www AAAA 2001:db8::80", "mail A 192.0.2.81", "a.b.c A 192.0.2.82"}

// usual is what most zones are asked: an address of either family, what is not there, and below a name without records.
const usual = "www A, www AAAA, www TXT, nx A, a.b.c A, c A"

// troubles are the zones, of which each has one thing that is wrong.
var troubles = slices.Concat([]trouble{
	{zone: "plain", servers: 2, ask: usual},

	// What servers say of themselves.
	{zone: "recursors", servers: 2, ask: usual, twist: func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative, r.RecursionAvailable = false, true; return r }},
	{zone: "noauthority", servers: 2, ask: usual, twist: func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative = false; return r }},
	{zone: "noquestion", servers: 1, ask: "www A", twist: func(_ query, r *dns.Msg) *dns.Msg { r.Question = nil; return r }},
	{zone: "shouts", servers: 1, ask: usual, twist: shout},
	{zone: "chaos", servers: 1, ask: "www A, nx A", twist: eachAnswer(func(rr dns.RR) { rr.Header().Class = dns.ClassCHAOS })},
	{zone: "forever", servers: 1, ask: "www A", twist: eachAnswer(func(rr dns.RR) { rr.Header().Ttl = 1<<31 + 5 })},
	{zone: "wrongplace", servers: 1, ask: "www A", twist: func(_ query, r *dns.Msg) *dns.Msg { r.Answer, r.Ns = nil, append(r.Ns, r.Answer...); return r }},

	// Time and transport.
	{zone: "slow1500", servers: 1, ask: "www A", takes: 1500 * time.Millisecond},
	{zone: "slow2500", servers: 1, ask: "www A", takes: 2500 * time.Millisecond},
	{zone: "cut", servers: 1, ask: usual, twist: overUDP(func(q query, r *dns.Msg) *dns.Msg { r.Truncated, r.Answer, r.Ns = true, nil, nil; return r })},
	{zone: "cutdead", servers: 1, ask: "www A", noTCP: true, twist: func(_ query, r *dns.Msg) *dns.Msg { r.Truncated = true; return r }},
	{zone: "streams", servers: 1, ask: "www A", twist: overUDP(nothing)},

	// EDNS.
	{zone: "ednsformerr", servers: 1, ask: usual, twist: ifEDNS(dns.RcodeFormatError)},
	{zone: "ednsnotimp", servers: 1, ask: usual, twist: ifEDNS(dns.RcodeNotImplemented)},
	{zone: "ednsbadvers", servers: 1, ask: "www A", twist: ifEDNS(dns.RcodeBadVers)},
	{zone: "ednsservfail", servers: 1, ask: "www A", twist: ifEDNS(dns.RcodeServerFailure)},
	{zone: "ednsrefused", servers: 1, ask: "www A", twist: ifEDNS(dns.RcodeRefused)},
	{zone: "ednstwice", servers: 1, ask: usual, twist: func(q query, r *dns.Msg) *dns.Msg {
		if q.IsEdns0() != nil {
			r.Extra = append(r.Extra, dns.Copy(r.IsEdns0()))
		}
		return r
	}},

	// Types and names that servers do not know.
	{zone: "drophttps", servers: 2, ask: "www HTTPS, mail HTTPS, www A, mail A, nx A", twist: ifType(dns.TypeHTTPS, nothing)},
	{zone: "aaaanx", servers: 1, ask: "www AAAA, www A", twist: ifType(dns.TypeAAAA, func(_ query, r *dns.Msg) *dns.Msg {
		r.Rcode, r.Answer, r.Ns = dns.RcodeNameError, nil, []dns.RR{soa("aaaanx.")}
		return r
	})},
	{zone: "entnx", servers: 1, ask: "c A, a.b.c A", twist: ifNonTerminal(func(_ query, r *dns.Msg) *dns.Msg { r.Rcode = dns.RcodeNameError; return r })},
	{zone: "entrefused", servers: 1, ask: "a.b.c A", twist: ifNonTerminal(bare(dns.RcodeRefused))},
	{zone: "entformerr", servers: 1, ask: "a.b.c A", twist: ifNonTerminal(bare(dns.RcodeFormatError))},
	{zone: "entservfail", servers: 1, ask: "a.b.c A", twist: ifNonTerminal(bare(dns.RcodeServerFailure))},
	{zone: "entdropped", servers: 2, ask: "a.b.c A", twist: ifNonTerminal(nothing)},
	{zone: "entupward", servers: 1, ask: "a.b.c A", twist: ifNonTerminal(func(_ query, r *dns.Msg) *dns.Msg {
		r.Authoritative, r.Ns = false, []dns.RR{record(". NS a.root.", ".")}
		return r
	})},
	{zone: "onename", servers: 2, ask: "bad A, www A, mail A", twist: ifName("bad", bare(dns.RcodeServerFailure))},

	// Denials.
	{zone: "nosoa", servers: 1, ask: usual, twist: func(_ query, r *dns.Msg) *dns.Msg { r.Ns = nil; return r }},
	{zone: "fornobody", servers: 2, ask: "www A, www TXT, nx A", twist: func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative, r.Ns = false, nil; return r }},
	{zone: "empty", servers: 2, ask: "www A, nx A", twist: func(_ query, r *dns.Msg) *dns.Msg {
		r.Authoritative, r.Answer, r.Ns, r.Rcode = false, nil, nil, dns.RcodeSuccess
		return r
	}},
	{zone: "sideways", servers: 2, ask: "www A, nx A", twist: func(_ query, r *dns.Msg) *dns.Msg {
		r.Authoritative, r.Answer, r.Ns, r.Rcode = false, nil, []dns.RR{record("@ NS ns1", "sideways.")}, dns.RcodeSuccess
		return r
	}},
	{zone: "recursorns", servers: 2, ask: "www A, www TXT, nx A", twist: func(_ query, r *dns.Msg) *dns.Msg {
		r.Authoritative, r.RecursionAvailable, r.Ns = false, true, []dns.RR{record("@ NS ns1", "recursorns.")}
		return r
	}},
	{zone: "rootsoa", servers: 1, ask: usual, twist: otherSOA(".")},
	{zone: "foreignsoa", servers: 1, ask: usual, twist: otherSOA("plain.")},

	// Aliases.
	{zone: "loop", servers: 1, records: []string{"one CNAME two", "two CNAME one", "self CNAME self"}, ask: "one A, self A"},
	{zone: "beside", servers: 1, ask: "both A, both AAAA", twist: ifName("both", answers("both.beside. CNAME www.plain.", "both.beside. A 192.0.2.99"))},
	{zone: "twoaliases", servers: 1, ask: "two A", twist: ifName("two", answers("two.twoaliases. CNAME www.plain.", "two.twoaliases. CNAME mail.plain."))},
	{zone: "aliasnx", servers: 1, ask: "al A", twist: ifName("al", func(q query, r *dns.Msg) *dns.Msg {
		r.Answer, r.Ns, r.Rcode = []dns.RR{record("al CNAME www.plain.", "aliasnx.")}, []dns.RR{soa("aliasnx.")}, dns.RcodeNameError
		return r
	})},
	{zone: "aliasservfail", servers: 1, ask: "al A", twist: ifName("al", func(_ query, r *dns.Msg) *dns.Msg {
		r.Answer, r.Ns, r.Rcode = []dns.RR{record("al CNAME www.plain.", "aliasservfail.")}, nil, dns.RcodeServerFailure
		return r
	})},
	{zone: "backwards", servers: 1, ask: "al A", twist: ifName("al", answers("www.backwards. A 192.0.2.80", "al.backwards. CNAME www.backwards."))},
	{zone: "dname", servers: 1, ask: "www.old A, nx.old A", twist: below("old", answers("old.dname. DNAME plain."))},
	{zone: "dnameother", servers: 1, ask: "www.old A", twist: below("old", func(q query, r *dns.Msg) *dns.Msg {
		return answers("old.dnameother. DNAME plain.", q.name+" CNAME mail.plain.")(q, r)
	})},

	{zone: "apexalias", servers: 1, records: []string{"@ CNAME www.plain."}, ask: "apexalias. A, www A, nx A"},
	{zone: "zerottl", servers: 1, ask: usual, twist: eachAnswer(func(rr dns.RR) { rr.Header().Ttl = 0 })},
	{zone: "large", servers: 1, records: manyAddresses(), ask: "all A", twist: func(q query, r *dns.Msg) *dns.Msg {
		if !q.tcp {
			r.Truncate(1232)
		}
		return r
	}},

	// Servers of which some are wrong.
	{zone: "onerefuses", servers: 2, ask: usual, twist: ofServer(1, bare(dns.RcodeRefused))},
	{zone: "onefails", servers: 2, ask: usual, twist: ofServer(1, bare(dns.RcodeServerFailure))},
	{zone: "onesilent", servers: 2, ask: usual, twist: ofServer(1, nothing)},
	{zone: "oneupward", servers: 2, ask: usual, twist: ofServer(1, func(_ query, r *dns.Msg) *dns.Msg {
		*r = dns.Msg{MsgHdr: dns.MsgHdr{Id: r.Id, Response: true}, Question: r.Question, Ns: []dns.RR{record(". NS a.root.", ".")}}
		return r
	})},
	{zone: "allsilent", servers: 8, ask: "www A, mail A", twist: nothing},
	{zone: "allrefuse", servers: 3, ask: "www A", twist: bare(dns.RcodeRefused)},
}, referrals)

// referrals are zones that refer names below "sub" to a zone that answers, each in an odd way.
var referrals = []trouble{
	{zone: "referplain", servers: 1, ask: "www.sub A, nx.sub A, sub NS"},
	{zone: "refersoa", servers: 1, ask: "www.sub A", twist: below("sub", func(q query, r *dns.Msg) *dns.Msg { r.Ns = append(r.Ns, soa("refersoa.")); return r })},
	{zone: "referauth", servers: 1, ask: "www.sub A", twist: below("sub", func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative = true; return r })},
	{zone: "refertwo", servers: 1, ask: "www.sub A", twist: below("sub", func(_ query, r *dns.Msg) *dns.Msg {
		r.Ns = append(r.Ns, record("@ NS ns1", "refertwo."))
		return r
	})},
	{zone: "refernested", servers: 1, ask: "www.sub A", twist: below("sub", func(_ query, r *dns.Msg) *dns.Msg {
		r.Ns = append(r.Ns, record("www.sub NS ns1.sub", "refernested."))
		return r
	})},
	{zone: "referanswer", servers: 1, ask: "www.sub A", twist: below("sub", func(_ query, r *dns.Msg) *dns.Msg { r.Answer, r.Ns = r.Ns, nil; return r })},
}

// manyAddresses are too many for a datagram.
func manyAddresses() (records []string) {
	for i := range 100 {
		records = append(records, fmt.Sprintf("all A 192.0.2.%d", i+1))
	}
	return records
}

// addTroubles adds the zones to a lab.
func addTroubles(l *lab) {
	for _, tr := range troubles {
		z := &zone{name: tr.zone + ".", addrs: l.fresh(tr.servers), twist: tr.twist, takes: tr.takes, noTCP: tr.noTCP}
		l.add(l.root, z, slices.Concat(everyZone, tr.records)...)
		if strings.HasPrefix(tr.zone, "refer") {
			sub := &zone{name: "sub." + z.name, addrs: l.fresh(1)}
			l.add(z, sub, everyZone...)
		}
	}
	// Zones whose servers have IPv6 addresses only, which the names of the servers have and the referral has not.
	six := &zone{name: "six.", addrs: []netip.Addr{netip.IPv6Loopback()}}
	var records []string
	for i := range 5 {
		records = append(records, fmt.Sprintf("m%d AAAA ::1", i))
		six.hosts = append(six.hosts, fmt.Sprintf("m%d.hosts.", i))
	}
	l.add(l.root, six, everyZone...)
	// A zone whose server's name is an alias (against RFC 2181, section 10.3).
	alias := &zone{name: "aliased.", addrs: l.fresh(1), hosts: []string{"alias.hosts."}}
	l.add(l.root, alias, everyZone...)
	records = append(records, "alias CNAME real", "real A "+alias.addrs[0].String())
	l.add(l.root, &zone{name: "hosts.", addrs: l.fresh(1)}, records...)
	for _, far := range []bool{false, true} {
		addChain(l, far)
	}
}

// chainLength is how many aliases the longest chain has.
const chainLength = 11

// addChain adds zones in which each name c<k> is an alias of c<k-1> in the next zone, and c0 has an address. All
// are delegated by zones of their own, so that nothing that is known of one helps with another.
func addChain(l *lab, far bool) {
	name, takes := "near", time.Duration(0)
	if far {
		name, takes = "far", 70*time.Millisecond // later than what a first contact is hedged after
	}
	for i := range chainLength + 1 {
		tld := &zone{name: fmt.Sprintf("%s%d.", name, i), addrs: l.fresh(2), takes: takes}
		z := &zone{name: "z." + tld.name, addrs: l.fresh(2), takes: takes}
		records := []string{"c0 A 192.0.2.80"}
		for k := range chainLength {
			records = append(records, fmt.Sprintf("c%d CNAME c%d.z.%s%d.", k+1, k, name, i+1))
		}
		l.add(l.root, tld)
		l.add(tld, z, records...)
	}
}

// scripts are all questions, by zone. Those of a script are asked one after the other.
func scripts() (all [][]ask) {
	read := func(zone, text string) {
		var one []ask
		for _, s := range strings.Split(text, ", ") {
			name, qtype, _ := strings.Cut(s, " ")
			if !strings.HasSuffix(name, ".") {
				name += "." + zone + "."
			}
			one = append(one, ask{name: name, qtype: dns.StringToType[qtype]})
		}
		all = append(all, one)
	}
	for _, tr := range troubles {
		read(tr.zone, tr.ask)
	}
	read("six", "www A, nx A")
	read("aliased", "www A, nx A")
	for _, name := range []string{"near", "far"} {
		// The longest first, when nothing is known.
		read("z."+name+"0", fmt.Sprintf("c%d A", chainLength))
	}
	return all
}

// nothing is said.
func nothing(query, *dns.Msg) *dns.Msg { return nil }

// bare is a response that has nothing but an rcode.
func bare(rcode int) func(query, *dns.Msg) *dns.Msg {
	return func(q query, _ *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetRcode(q.Msg, rcode&15)
		if q.IsEdns0() != nil && rcode != dns.RcodeFormatError && rcode != dns.RcodeNotImplemented {
			r.SetEdns0(1232, false)
			r.Rcode = rcode
		}
		return r
	}
}

// answers is a response with authority and these records alone.
func answers(records ...string) func(query, *dns.Msg) *dns.Msg {
	return func(_ query, r *dns.Msg) *dns.Msg {
		r.Authoritative, r.Rcode, r.Answer, r.Ns = true, dns.RcodeSuccess, nil, nil
		for _, text := range records {
			r.Answer = append(r.Answer, record(text, "."))
		}
		return r
	}
}

// otherSOA puts the SOA record of another zone into denials.
func otherSOA(zone string) func(query, *dns.Msg) *dns.Msg {
	return func(_ query, r *dns.Msg) *dns.Msg {
		if len(r.Answer) == 0 {
			r.Ns = []dns.RR{soa(zone)}
		}
		return r
	}
}

// eachAnswer changes the records of answers.
func eachAnswer(f func(dns.RR)) func(query, *dns.Msg) *dns.Msg {
	return func(_ query, r *dns.Msg) *dns.Msg {
		for _, rr := range r.Answer {
			f(rr)
		}
		return r
	}
}

// shout answers with names in upper case.
func shout(_ query, r *dns.Msg) *dns.Msg {
	for _, rr := range r.Answer {
		rr.Header().Name = strings.ToUpper(rr.Header().Name)
	}
	return r
}

// onlyIf has a twist for some of the queries.
func onlyIf(is func(query) bool, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		if is(q) {
			return f(q, r)
		}
		return r
	}
}

func overUDP(f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool { return !q.tcp }, f)
}

func ifType(qtype uint16, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool { return q.qtype == qtype }, f)
}

// ifEDNS is a server that answers queries with EDNS by an rcode.
func ifEDNS(rcode int) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool { return q.IsEdns0() != nil }, bare(rcode))
}

func ifName(label string, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool { return strings.HasPrefix(q.name, label+".") }, f)
}

// ifNonTerminal is for c and b.c, which have no records, and a.b.c below them has.
func ifNonTerminal(f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool { return strings.HasPrefix(q.name, "c.") || strings.HasPrefix(q.name, "b.c.") }, f)
}

// below is for a name of two labels and names below it.
func below(label string, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool {
		labels := dns.SplitDomainName(q.name)
		return len(labels) >= 2 && labels[len(labels)-2] == label
	}, f)
}

// ofServer is for every second server of a zone.
func ofServer(odd int, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return onlyIf(func(q query) bool { return int(q.server.As4()[3])%2 == odd }, f)
}
