package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A recScenario has questions to a recursor.Resolver, a tree of zones that are signed or not, and their servers with
// faults. Its construction determines the correct answers, see recCorrectAnswer.
type recScenario struct {
	zones   []*recZone
	servers []*recServer
	client  recClient

	validator string       // the Exchanger of the Validator: resolver, upstreams, or "" without a Validator
	upstreams []*recServer // resolvers that validate nothing

	asks  []*recQuestion // in the order of their times
	start time.Duration  // when the past is over, and the calls begin
	end   time.Duration  // when all else is over, and the last questions are asked
}

// A recZone is a zone with its signing and its flaws.
type recZone struct {
	number   int
	name     string
	parent   *recZone // nil: the root
	children []*recZone
	ns       string // where it is served: "" by servers with names of its own; outside: with names in another zone; parent: by its parent's
	servers  []*recServer
	sign     string // "" with DS records in its parent; no; island: without
	keys     string // "" one key; or another kind
	denial   string // "" NSEC; or another kind
	flaw     string
	life     time.Duration // of a signature, which is renewed after half of it; 0: signatures do not end
	sigTTL   uint32        // of RRSIG records; 0: that of their sets
	soa      string        // "" has a TTL and a MINIMUM of 300 s; short: a TTL of 60 s; long: a TTL of an hour
	many     bool          // it has 70 names more
}

// recShapes are the possible zones with their parents.
var recShapes = []struct {
	name   string
	parent int
}{{".", -1}, {"one.", 0}, {"a.one.", 1}, {"b.one.", 1}, {"two.", 0}, {"c.two.", 4}, {"sub.a.one.", 2}}

const (
	recFirst = 2 // the zone that questions are usually about
	recHosts = 3 // the zone that the names of servers of others are in
)

// recKnownKeys are the kinds of keys that every validator supports.
var recKnownKeys = []string{"ed25519", "p384", "split", "split", "rsa", "two", "standby", "rsa512", "rsa1000", "rsa4096", "rsaExponent"}

// The kinds of zones.
var (
	recKeyKinds = append(slices.Clone(recKnownKeys), "sha1", "unknown", "digest")
	recDenials  = []string{"nsec3", "nsec3", "optout", "optout", "minimal", "salt", "iterations"}
	recFlaws    = []string{"expired", "expiredData", "future", "wrongKey", "forged", "bare", "wrongDS", "noDNSKEY", "tampered", "noSig", "otherSigner", "noProof"}
)

// A recServer is a server with its fault.
type recServer struct {
	number int
	of     *recZone // that it was made for; it may serve zones below as well
	fault  *recFault
}

// A recFault is a fault of a server for some questions and some time.
type recFault struct {
	kind        string
	on          string // "" all questions; a type
	from, until time.Duration
}

// The kinds of faults: no answer in time, a failure, an answer without the records of DNSSEC, or a forged answer.
var recFaults = []string{
	"silent", "silent", "drops1", "late1s", "late3s", "cut", "cutDead", "wrongID",
	"refused", "servfail", "lame", "noEDNS",
	"strips", "noSigs", "expired", "forgedSigs", "oldKeys",
	"forges", "forgesBare", "nx", "nodata",
	"raises", "raisesSets", "addsTag", "addsAlgorithm", "addsForged", "addsEnded", "addsStranger",
}

// recForgers are the faults by which a server forges answers.
var recForgers = []string{"forges", "forgesBare", "nx", "nodata"}

// recUnsigned are the faults by which a server sends responses without signatures.
var recUnsigned = []string{"strips", "noSigs", "forgesBare", "nx", "nodata"}

// isActiveDuring reports whether the fault is active at a time between two times.
func (f *recFault) isActiveDuring(from, until time.Duration) bool {
	return f.from <= until && from <= f.until
}

// A recClient has the settings of the Resolver.
type recClient struct {
	trust      string // "" from the root on; off, report, none; zone, both, zones, sub: see isAnchored
	insecure   int    // the zone whose name is in Trust.Insecure; -1: none
	hedgeOff   bool
	noMinimise bool
	cached     bool   // a Client with a Cache asks the Resolver as well
	limit      string // the one that is small
	most       int    // its value
	maxBytes   int64
	change     string
	changeAt   time.Duration // since the start of the play
}

// A recQuestion is a question that a caller asks.
type recQuestion struct {
	what             string // past, call0, last
	name             string // in lower case
	typ              uint16
	do, cd, ad, edns bool
	upper            bool     // the name is written in upper case
	flood            *recZone // the zone without the names of the call, which is a flood; nil: it is no flood
	at               time.Duration
	deadline, cancel time.Duration // since at; 0 and -1: none
}

func (a *recQuestion) String() string {
	s := fmt.Sprintf("%s %s %s", a.what, a.name, dns.TypeToString[a.typ])
	for _, f := range []struct {
		set  bool
		name string
	}{{a.do, " do"}, {a.cd, " cd"}, {a.ad, " ad"}, {!a.edns, " noedns"}} {
		if f.set {
			s += f.name
		}
	}
	return s
}

// callerEndsBy reports whether the deadline or the cancellation of the caller is before a time since the question, or
// at about that time.
func (a *recQuestion) callerEndsBy(took time.Duration) bool {
	return endsBy(a.deadline, a.cancel, took)
}

func newRecScenario(d *generator) *recScenario {
	w := &recScenario{start: 10 * time.Second}
	n := drawPart(d, "zones", .8, 3, 4, 5, 6, 7, 7)
	w.client = newRecClient(d, w, n)
	for i := range n {
		w.zones = append(w.zones, newRecZone(d, i, w))
	}
	for _, z := range w.zones {
		newRecServers(d, z, w)
	}
	newRecUpstreams(d, w)
	if drawFlag(d, "past.warm", .3) {
		for i, z := range w.zones[1:] {
			w.asks = append(w.asks, &recQuestion{what: "past", name: "www." + z.name, typ: dns.TypeA, edns: true, do: true, at: time.Duration(i) * 1100 * ms, cancel: -1})
		}
	}
	for i := range drawPart(d, "calls", .6, 1, 2, 3, 4, 5) {
		w.asks = append(w.asks, newRecCall(d, i, w)...)
	}
	w.end = w.quietTime()
	for i, z := range w.zones[1:] {
		for j, name := range []string{"www.", "none."} {
			w.asks = append(w.asks, &recQuestion{
				what: "last", name: name + z.name, typ: dns.TypeA, edns: true, do: true,
				at: w.end + time.Duration(2*i+j)*(6*time.Second+170*time.Microsecond), cancel: -1,
			})
		}
	}
	slices.SortStableFunc(w.asks, func(a, b *recQuestion) int { return int(a.at - b.at) })
	return w
}

// maxRecMemory is the longest time for which a Resolver caches bogus results and the health of servers.
const maxRecMemory = 16 * time.Minute

// quietTime returns a time maxRecMemory after the end of all faults and calls.
func (w *recScenario) quietTime() time.Duration {
	end := w.start
	for _, a := range w.asks {
		end = max(end, a.at)
	}
	for _, s := range slices.Concat(w.servers, w.upstreams) {
		if f := s.fault; f != nil && f.until < forever {
			end = max(end, f.until)
		}
	}
	return max(end, w.client.changeAt) + maxRecMemory
}

func newRecClient(d *generator, w *recScenario, zones int) recClient {
	c := recClient{
		trust:      drawPart(d, "client.trust", .25, "", "off", "report", "report", "none", "zone", "both", "zones", "sub"),
		insecure:   -1,
		hedgeOff:   drawFlag(d, "client.hedgeOff", .3),
		noMinimise: drawFlag(d, "client.noMinimise", .2),
		cached:     drawFlag(d, "client.cached", .12),
		limit:      drawPart(d, "client.limit", .12, "", "queries", "chainQueries", "verifications", "inFlight", "zoneInFlight", "referrals", "aliases", "names"),
		change:     drawPart(d, "client.change", .15, "", "import", "import", "close"),
		maxBytes:   drawPart(d, "client.maxBytes", .06, int64(0), 1<<20),
	}
	var others []int
	for i := range zones {
		others = append(others, i)
	}
	c.insecure = drawPart(d, "client.insecure", .1, -1, others[1:]...)
	if c.limit != "" {
		c.most = drawPart(d, "client.most", .7, 2, 1, 4, 8, 16)
	}
	if c.change != "" {
		c.changeAt = w.start + drawPart(d, "client.changeAt", .6, 25*ms, 0, 60*ms, time.Second, 12*time.Second) + 290*time.Microsecond
	}
	return c
}

func newRecZone(d *generator, i int, w *recScenario) *recZone {
	name := func(s string) string { return fmt.Sprintf("zone%d.%s", i, s) }
	z := &recZone{number: i, name: recShapes[i].name}
	if i > 0 {
		z.parent = w.zones[recShapes[i].parent]
		z.parent.children = append(z.parent.children, z)
		z.ns = drawPart(d, name("ns"), .25, "", "outside", "outside", "parent")
	}
	anchor := i == 0 || w.isAnchored(z)
	kinds := recKeyKinds
	switch {
	case anchor && i == 0:
		kinds = recKnownKeys
	case anchor:
		kinds = recKnownKeys
		z.sign = drawPart(d, name("sign"), .35, "", "island")
	default:
		z.sign = drawPart(d, name("sign"), .35, "", "no", "no", "island")
	}
	odds, flaws := .12, recFlaws
	switch {
	case z.sign == "no" || z.sign == "island":
		flaws = []string{"noDSProof"}
	case anchor:
		odds = .04
		flaws = slices.DeleteFunc(slices.Clone(flaws), func(f string) bool { return f == "otherSigner" || f == "wrongDS" })
	}
	if z.sign != "no" {
		z.keys = drawPart(d, name("keys"), .3, "", kinds...)
		z.denial = drawPart(d, name("denial"), .5, "", recDenials...)
		z.life = drawPart(d, name("life"), .15, 0, 40*time.Second, 10*time.Minute, 2*time.Hour)
		z.sigTTL = drawPart(d, name("sigTTL"), .08, 0, uint32(60))
	}
	z.soa = drawPart(d, name("soa"), .12, "", "short", "long")
	z.many = i > 0 && drawFlag(d, name("many"), .1)
	switch z.flaw = drawPart(d, name("flaw"), odds, "", flaws...); {
	case slices.Contains([]string{"sha1", "unknown", "digest"}, z.keys): // no validator uses the keys
		z.flaw = ""
	case z.flaw == "otherSigner" && strings.HasPrefix(z.keys, "rsa"): // the other zone may have the same key: there are few
		z.keys = ""
	case z.flaw == "noSig" && (z.denial == "optout" || z.denial == "iterations"): // by which there might be a delegation that is not signed
		z.denial = "nsec3"
	}
	return z
}

// hasForeignServers reports whether the names of a zone's servers are in another zone.
func (w *recScenario) hasForeignServers(z *recZone) bool {
	return z.ns == "outside" && len(w.zones) > recHosts && z.number >= recFirst && z.number != recHosts
}

// newRecServers draws the servers of a zone, or uses those of its parent.
func newRecServers(d *generator, z *recZone, w *recScenario) {
	if z.ns == "parent" {
		z.servers = z.parent.servers
		return
	}
	for i := range drawPart(d, fmt.Sprintf("zone%d.servers", z.number), .6, 1, 2, 2, 3) {
		name := func(s string) string { return fmt.Sprintf("zone%d.server%d.%s", z.number, i, s) }
		s := &recServer{number: len(w.servers), of: z}
		w.servers, z.servers = append(w.servers, s), append(z.servers, s)
		s.fault = newRecFault(d, name, .25, w, recFaults)
	}
}

// newRecFault draws the fault of a server, or returns nil.
func newRecFault(d *generator, name func(string) string, odds float64, w *recScenario, kinds []string) *recFault {
	kind := drawPart(d, name("fault"), odds, "", kinds...)
	if kind == "" {
		return nil
	}
	f := &recFault{kind: kind, on: drawPart(d, name("on"), .25, "", "A", "DNSKEY", "DS")}
	f.from = w.start + drawPart(d, name("from"), .4, 0, -forever, 30*ms, 2*time.Second) - 370*time.Microsecond
	f.until = f.from + drawPart(d, name("for"), .4, 200*forever, 300*ms, time.Second, 4*time.Second, 30*time.Second)
	if f.from < 0 {
		f.from, f.until = -forever, f.until+forever
	}
	return f
}

// recNames are the names of questions in a zone, see recData.
var recNames = []string{
	"short", "short", "text", "x.wild", "deep.y.wild", "alias", "far", "chain", "x.walias", "www.dn", "none.dn", "ent", "x.ent", "none", "a.b.none", "@", "@", "dn", "ns0", "sub", "loop",
	"down", "x.wdown", "www.ddn", "none.ddn", "up",
}

// newRecCall returns the questions of a call: one, one several times at once, or several.
func newRecCall(d *generator, i int, w *recScenario) (all []*recQuestion) {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	a := recQuestion{what: fmt.Sprintf("call%d", i)}
	a.at = w.start + drawPart(d, name("at"), .6, time.Duration(i)*5*time.Second, 0, 10*ms, 400*ms, 1500*ms, 7*time.Second, 70*time.Second, 400*time.Second, 2*time.Hour, 50*time.Hour)
	a.at += time.Duration(i) * 1130 * time.Microsecond
	var zones []int
	for n := range w.zones[1:] {
		zones = append(zones, n+1)
	}
	zone := w.zones[drawPart(d, name("zone"), .7, recFirst, zones...)]
	first := drawPart(d, name("name"), .75, "www", recNames...)
	if a.name = first + "." + zone.name; first == "@" {
		a.name = zone.name
	}
	a.typ = dns.StringToType[drawPart(d, name("type"), .4, "A", "AAAA", "TXT", "MX", "DS", "DS", "DNSKEY", "NS", "SOA", "CNAME")]
	a.do, a.cd, a.ad = drawFlag(d, name("do"), .5), drawFlag(d, name("cd"), .1), drawFlag(d, name("ad"), .3)
	a.edns = a.do || !drawFlag(d, name("noEDNS"), .3)
	a.upper = drawFlag(d, name("upper"), .1)
	a.deadline, a.cancel = drawCallerTimes(d, name)
	return a.newBurst(drawPart(d, name("burst"), .4, "", "same5", "same5", "cd2", "types3", "repeat8", "repeat20", "hours", "series12", "flood"), zone)
}

// newBurst returns the questions of a call with several questions.
func (a *recQuestion) newBurst(kind string, zone *recZone) (all []*recQuestion) {
	number, gap := 1, time.Duration(0)
	switch kind {
	case "same5":
		number = 5
	case "cd2":
		number = 2
	case "types3":
		number = 3
	case "repeat8":
		number, gap = 8, time.Second+170*time.Microsecond
	case "repeat20":
		number, gap = 20, 7*time.Second+170*time.Microsecond
	case "hours":
		number, gap = 12, 1801*time.Second+170*time.Microsecond
	case "series12":
		number, gap = 12, 3*ms+130*time.Microsecond
	case "flood":
		return a.newFlood(zone)
	}
	for n := range number {
		one := *a
		one.at += time.Duration(n) * gap
		switch {
		case n == 0:
		case kind == "cd2":
			one.cd = !a.cd
		case kind == "types3":
			one.typ = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT}[(n+int(a.typ))%3]
		case kind == "series12":
			one.name = fmt.Sprintf("n%d.wild.%s", n, zone.name)
			if n%2 == 0 {
				one.name = fmt.Sprintf("none%d.%s", n, zone.name)
			}
		}
		all = append(all, &one)
	}
	return all
}

// newFlood returns questions for names that a zone does not have: several in each gap of its chain. The Resolver has
// the keys of the zone at the second question.
func (a *recQuestion) newFlood(zone *recZone) (all []*recQuestion) {
	number := 40
	if zone.many {
		number = 150
	}
	for n := range number {
		one := *a
		one.name, one.flood = fmt.Sprintf("%c%dflood.%s", 'a'+n%26, n, zone.name), zone
		if zone.many && n%2 == 0 {
			one.name = fmt.Sprintf("n%02d-%dflood.%s", n%70, n, zone.name)
		}
		if n > 0 {
			one.at += 3*time.Second + time.Duration(n)*(150*ms+170*time.Microsecond)
		}
		all = append(all, &one)
	}
	return all
}
