package resolvers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// A treeFault changes a zone of a tree before it is added to the lab.
type treeFault struct {
	name   string
	change func(t *tree, z *treeZone)
}

// responseFault is a fault of responses, of one server or of all servers of a zone.
func responseFault(name string, say func(z *treeZone, q query, r *dns.Msg)) treeFault {
	return treeFault{name, func(_ *tree, z *treeZone) { z.say = func(q query, r *dns.Msg) { say(z, q, r) } }}
}

// messageFault is a fault of responses that are changed without regard to the query.
func messageFault(name string, change func(r *dns.Msg)) treeFault {
	return responseFault(name, func(_ *treeZone, _ query, r *dns.Msg) { change(r) })
}

// replacementFault is a fault that replaces responses.
func replacementFault(name string, response func(query, *dns.Msg) *dns.Msg) treeFault {
	return responseFault(name, func(_ *treeZone, q query, r *dns.Msg) { *r = *response(q, r) })
}

// referralFault is a fault of the referrals to a zone.
func referralFault(name string, change func(z *treeZone, r *dns.Msg)) treeFault {
	return treeFault{name, func(_ *tree, z *treeZone) { z.changeReferral(func(r *dns.Msg) { change(z, r) }) }}
}

func (z *treeZone) changeReferral(change func(r *dns.Msg)) {
	z.parent.alsoSay(func(_ query, r *dns.Msg) {
		if !r.Authoritative && slices.ContainsFunc(r.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeNS && rr.Header().Name == z.name }) {
			change(r)
		}
	})
}

// alsoSay adds a change of responses to those that the zone has.
func (z *signedZone) alsoSay(change func(q query, r *dns.Msg)) {
	before := z.say
	z.say = func(q query, r *dns.Msg) {
		if before != nil {
			before(q, r)
		}
		change(q, r)
	}
}

// recordFault is a fault of records, and a question that meets it. A line that starts with "other: " is for the other zone.
func recordFault(name, question string, lines ...string) treeFault {
	return treeFault{name, func(_ *tree, z *treeZone) {
		for _, line := range lines {
			line = strings.NewReplacer("ZONE", z.name, "OTHER", z.other.name).Replace(line)
			if text, isOther := strings.CutPrefix(line, "other: "); isOther {
				z.other.lines = append(z.other.lines, text)
			} else {
				z.lines = append(z.lines, line)
			}
		}
		z.questions = append(z.questions, question)
	}}
}

// treeFaults are drawn for the zones of trees, besides flaws.
var treeFaults = slices.Concat(silences, serverFaults, otherZoneFaults, glueFaults, aliasFaults, forgeries)

// rootFaults are drawn for the servers of the root, besides the flaws of responses.
var rootFaults = slices.Concat(silences, serverFaults)

// silence is a fault of servers that do not answer some of the queries.
func silence(name string, to func(q query, r *dns.Msg) bool) treeFault {
	return responseFault("silent"+name, func(_ *treeZone, q query, r *dns.Msg) {
		if to(q, r) {
			*r = dns.Msg{}
		}
	})
}

// silences are faults of servers that do not answer.
var silences = []treeFault{
	silence("", func(query, *dns.Msg) bool { return true }),
	silence(": DS", func(q query, _ *dns.Msg) bool { return q.qtype == dns.TypeDS }),
	silence(": DNSKEY", func(q query, _ *dns.Msg) bool { return q.qtype == dns.TypeDNSKEY }),
	silence(": EDNS", func(q query, _ *dns.Msg) bool { return q.IsEdns0() != nil }),
	silence(": UDP", func(q query, _ *dns.Msg) bool { return !q.tcp }),
	silence(": denials", func(_ query, r *dns.Msg) bool { return r.Authoritative && len(r.Answer) == 0 }),
	silence(": referrals", func(_ query, r *dns.Msg) bool { return !r.Authoritative }),
}

// serverFaults are faults of servers and of their responses.
var serverFaults = []treeFault{
	replacementFault("lame: REFUSED", bare(dns.RcodeRefused)),
	replacementFault("lame: SERVFAIL", bare(dns.RcodeServerFailure)),
	replacementFault("EDNS is FORMERR", ifEDNS(dns.RcodeFormatError)),
	messageFault("lame: empty, no authority", func(r *dns.Msg) { referTo(r, ".") }),
	messageFault("lame: refers to the root", func(r *dns.Msg) { referTo(r, ".", "a.root.") }),
	responseFault("delegates to itself", func(z *treeZone, _ query, r *dns.Msg) { referTo(r, z.name, z.hosts...) }),
	messageFault("no authority", func(r *dns.Msg) { r.Authoritative = false }),
	messageFault("AD, CD and RA are set", func(r *dns.Msg) { r.AuthenticatedData, r.CheckingDisabled, r.RecursionAvailable = true, true, true }),
	messageFault("no OPT record", func(r *dns.Msg) { r.Extra = without(r.Extra, dns.TypeOPT) }),
	messageFault("names in upper case", func(r *dns.Msg) { renameOwners(r.Answer, strings.ToUpper); renameOwners(r.Ns, strings.ToUpper) }),
	messageFault("signers in upper case", func(r *dns.Msg) {
		eachSignature(r, func(sig *dns.RRSIG) { sig.SignerName = strings.ToUpper(sig.SignerName) })
	}),
	{"TC without TCP", func(_ *tree, z *treeZone) {
		z.noTCP = true
		z.say = func(_ query, r *dns.Msg) { r.Truncated, r.Answer, r.Ns = true, nil, nil }
	}},
	responseFault("an empty non-terminal is NXDOMAIN", func(_ *treeZone, q query, r *dns.Msg) {
		if strings.HasPrefix(q.name, "ent.") || strings.HasPrefix(q.name, "b.ent.") {
			r.Rcode = dns.RcodeNameError
		}
	}),
	messageFault("NODATA is NXDOMAIN", func(r *dns.Msg) {
		if r.Authoritative && len(r.Answer) == 0 {
			r.Rcode = dns.RcodeNameError
		}
	}),
	messageFault("NXDOMAIN is NODATA", func(r *dns.Msg) { r.Rcode = dns.RcodeSuccess }),
	messageFault("denials without SOA", func(r *dns.Msg) {
		r.Ns = slices.DeleteFunc(r.Ns, func(rr dns.RR) bool { return signs(rr).Header().Rrtype == dns.TypeSOA })
	}),
	messageFault("answer of another name", func(r *dns.Msg) { renameOwners(r.Answer, func(name string) string { return "x." + name }) }),
}

// otherZoneFaults are faults of responses with names of another zone.
var otherZoneFaults = []treeFault{
	responseFault("refers to another zone", func(z *treeZone, _ query, r *dns.Msg) { referTo(r, z.other.name, z.other.hosts...) }),
	responseFault("answer of a wrong zone", func(z *treeZone, _ query, r *dns.Msg) {
		renameOwners(r.Answer, func(name string) string { return strings.TrimSuffix(name, z.name) + z.other.name })
	}),
}

// glueFaults are faults of delegations.
var glueFaults = []treeFault{
	referralFault("glue is missing", func(_ *treeZone, r *dns.Msg) { r.Extra = without(r.Extra, dns.TypeA) }),
	referralFault("glue is wrong", func(z *treeZone, r *dns.Msg) { moveAddresses(r.Extra, z.other.addrs[0]) }),
	referralFault("the NS record has no target", func(z *treeZone, r *dns.Msg) { r.Ns = without(r.Ns, dns.TypeNS); addServer(r, z, "ns9."+z.other.name) }),
	referralFault("an NS record more has no target", func(z *treeZone, r *dns.Msg) { addServer(r, z, "ns9."+z.other.name) }),
	referralFault("NS records of another zone", func(z *treeZone, r *dns.Msg) { r.Ns = without(r.Ns, dns.TypeNS); addServer(r, z, z.other.hosts[0]) }),
	referralFault("DS and denials are missing", func(_ *treeZone, r *dns.Msg) {
		r.Ns = slices.DeleteFunc(r.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS })
	}),
	{"glue contradicts the child (forged)", func(t *tree, z *treeZone) {
		trap := t.addImpostor(z.name, t.lab.fresh(1), z.hosts, "ns1 A "+z.addrs[0].String())
		z.changeReferral(func(r *dns.Msg) { moveAddresses(r.Extra, trap) })
	}},
	{"NS is an alias", func(_ *tree, z *treeZone) {
		z.other.lines, z.needs = append(z.other.lines, "host CNAME "+z.hosts[0]), append(z.needs, z.other)
		z.hosts = []string{"host." + z.other.name}
	}},
	{"names of servers in a circle", func(_ *tree, z *treeZone) {
		o := z.other
		z.hosts, o.hosts, z.needs, o.needs = []string{"ns8." + o.name}, []string{"ns8." + z.name}, append(z.needs, o), append(o.needs, z)
		z.lines, o.lines = append(z.lines, "ns8 A "+o.addrs[0].String()), append(o.lines, "ns8 A "+z.addrs[0].String())
	}},
}

// aliasFaults are faults of aliases.
var aliasFaults = []treeFault{
	recordFault("CNAME at the apex", "@ TXT", "@ CNAME www.OTHER"),
	recordFault("CNAME loop", "l0 A", "l0 CNAME l1.OTHER", "other: l1 CNAME l0.ZONE"),
	recordFault("CNAME of itself", "self A", "self CNAME self"),
	recordFault("DNAME loop", "www.e A", "e DNAME f.OTHER", "other: f DNAME e.ZONE"),
	recordFault("DNAME grows", "www.g A", "g DNAME x.g.ZONE"),
	recordFault("two CNAMEs", "two A", "two CNAME www.ZONE", "two CNAME www.OTHER"),
	recordFault("two CNAMEs, asked for", "two CNAME", "two CNAME www.ZONE", "two CNAME www.OTHER"),
	recordFault("two DNAMEs", "www.two A", "two DNAME ZONE", "two DNAME OTHER"),
	recordFault("CNAME beside an address", "both TXT", "both CNAME www.OTHER", "both A 192.0.2.13"),
	recordFault("wildcard DNAME", "a.b.q A", "*.q DNAME OTHER"),
	{"CNAME chain", func(t *tree, z *treeZone) {
		length, at := []int{2, 5, 8, 12, 20}[t.rng.IntN(5)], z
		for i := range length {
			at.lines = append(at.lines, fmt.Sprintf("c%d CNAME c%d.%s", i, i+1, at.other.name))
			at = at.other
		}
		at.lines = append(at.lines, fmt.Sprintf("c%d A 192.0.2.14", length))
		z.questions = append(z.questions, "c0 A")
	}},
	messageFault("DNAME without CNAME", func(r *dns.Msg) {
		if len(r.Answer) > 1 && r.Answer[0].Header().Rrtype == dns.TypeDNAME {
			r.Answer = without(r.Answer, dns.TypeCNAME)
		}
	}),
	responseFault("DNAME with a forged CNAME", func(z *treeZone, q query, r *dns.Msg) {
		if len(r.Answer) > 1 && r.Answer[0].Header().Rrtype == dns.TypeDNAME {
			r.Answer = append(without(r.Answer, dns.TypeCNAME), record(q.name+" CNAME www."+z.name, "."))
		}
	}),
}

// forgeries are responses with records that the zone does not have, or that it has for other names.
var forgeries = []treeFault{
	responseFault("forged answer for another zone", func(z *treeZone, _ query, r *dns.Msg) {
		if len(r.Answer) > 0 {
			r.Answer = append(r.Answer, record("www A 192.0.2.66", z.other.name))
		}
	}),
	{"forged delegation of another zone", func(t *tree, z *treeZone) {
		t.addImpostor(z.other.name, z.addrs, z.hosts)
		z.say = func(_ query, r *dns.Msg) { addServer(r, z.other, z.hosts[0]) }
	}},
	{"forged address of another server", func(t *tree, z *treeZone) {
		trap := t.addImpostor(z.other.name, z.addrs, z.hosts)
		z.say = func(_ query, r *dns.Msg) { addAddress(r, z.other.hosts[0], trap) }
	}},
	{"forged delegation of a name", func(t *tree, z *treeZone) {
		name, host := "www."+z.name, "ns.www."+z.name
		trap := t.addImpostor(name, t.lab.fresh(1), []string{host})
		z.say = func(q query, r *dns.Msg) {
			if dns.IsSubDomain(name, q.name) && q.qtype != dns.TypeDS {
				referTo(r, name, host)
				addAddress(r, host, trap)
			}
		}
	}},
	{"wildcard is replayed (forged)", func(_ *tree, z *treeZone) {
		z.questions = append(z.questions, "real.w A", "real.w TXT")
		z.say = func(q query, r *dns.Msg) {
			if strings.HasSuffix(q.name, ".w."+z.name) {
				r.Rcode, r.Answer, r.Ns = 0, signFor(q, z.signedZone, z.set("*.w."+z.name, dns.TypeA)), signFor(q, z.signedZone, z.chain.ProveNoCloserName("other."+z.name))
				renameOwners(r.Answer, func(string) string { return q.name })
			}
		}
	}},
	responseFault("denial is replayed (forged)", func(z *treeZone, q query, r *dns.Msg) {
		if strings.HasPrefix(q.name, "www.") {
			r.Rcode, r.Answer, r.Ns = dns.RcodeNameError, nil, signFor(q, z.signedZone, append(z.chain.ProveNoName("other."+z.name), soa(z.name)))
		}
	}),
	responseFault("denial of the zone above is replayed (forged)", func(z *treeZone, q query, r *dns.Msg) {
		if above := z.parent; q.name != z.name {
			above.makeKeys()
			above.prepare()
			r.Rcode, r.Answer, r.Ns = dns.RcodeNameError, nil, signFor(q, above, append(above.chain.ProveNoData(z.name), soa(above.name)))
		}
	}),
	messageFault("eight forged signatures first", func(r *dns.Msg) {
		for _, rr := range slices.Clone(r.Answer) {
			for i := uint32(1); i <= 8 && rr.Header().Rrtype == dns.TypeRRSIG; i++ {
				forged := dns.Copy(rr).(*dns.RRSIG)
				forged.Expiration -= i
				r.Answer = slices.Insert(r.Answer, 0, dns.RR(forged))
			}
		}
	}),
	messageFault("signatures last longer (forged)", func(r *dns.Msg) { eachSignature(r, func(sig *dns.RRSIG) { sig.Expiration += 365 * 86400 }) }),
}

// signFor returns records with their signatures. If the query does not want them or the zone has no keys, it leaves out denials.
func signFor(q query, z *signedZone, all []dns.RR) []dns.RR {
	if opt := q.IsEdns0(); z.unsigned || opt == nil || !opt.Do() {
		return slices.DeleteFunc(slices.Clone(all), denies)
	}
	return z.signAll(all)
}

// referTo makes r a referral to servers of a zone, without their addresses.
func referTo(r *dns.Msg, zone string, hosts ...string) {
	r.Authoritative, r.Rcode, r.Answer, r.Ns = false, dns.RcodeSuccess, nil, nil
	for _, h := range hosts {
		r.Ns = append(r.Ns, record("@ NS "+h, zone))
	}
}

// addServer adds an NS record of a zone in front of the authority section.
func addServer(r *dns.Msg, z *treeZone, host string) {
	r.Ns = slices.Insert(r.Ns, 0, record("@ NS "+host, z.name))
}

func addAddress(r *dns.Msg, host string, a fmt.Stringer) {
	r.Extra = append(r.Extra, record(fmt.Sprintf("%s A %s", host, a), "."))
}

// moveAddresses replaces the addresses of all A records.
func moveAddresses(all []dns.RR, to fmt.Stringer) {
	for i, rr := range all {
		if rr.Header().Rrtype == dns.TypeA {
			all[i] = record(fmt.Sprintf("%s A %s", rr.Header().Name, to), ".")
		}
	}
}

// renameOwners changes the owners of records, which it copies.
func renameOwners(all []dns.RR, change func(string) string) {
	for i, rr := range all {
		all[i] = dns.Copy(rr)
		all[i].Header().Name = change(rr.Header().Name)
	}
}

// eachSignature changes the signatures of a response, which are copies already.
func eachSignature(r *dns.Msg, change func(*dns.RRSIG)) {
	for _, rr := range slices.Concat(r.Answer, r.Ns) {
		if sig, ok := rr.(*dns.RRSIG); ok {
			change(sig)
		}
	}
}
