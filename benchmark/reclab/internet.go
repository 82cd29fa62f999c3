package reclab

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// ServerNetwork has the addresses of all servers. It is reserved for benchmarks (RFC 2544).
var ServerNetwork = netip.MustParsePrefix("198.18.0.0/15")

// The TTLs of records in seconds. Those of hosts differ.
const (
	delegationTTL = 86400
	negativeTTL   = 3600
)

// A fault is a permanent defect of a name server in the simulated internet.
type fault int

const (
	healthy fault = iota
	dead          // never responds
	failing       // responds to all queries with SERVFAIL
	noEDNS        // responds to queries that have an OPT record with FORMERR
)

// A server is a name server of the simulated internet. It has one address.
type server struct {
	addr  netip.Addr
	name  string
	rtt   time.Duration // without jitter
	fault fault
	stale bool // its signatures have expired
}

// A zone is a DNS zone of the simulated internet.
type zone struct {
	name              string
	servers           []*server
	refusing          *server // a server that lacks the zone; nil: none
	children          map[string]*zone
	hosts             map[string]*hostRecord
	emptyNonTerminals map[string]bool    // names that exist because a name below them exists
	signed            *zoneSigningConfig // nil: the zone is not signed
}

// A hostRecord has the addresses of one host name, or the name of which the host name is an alias.
type hostRecord struct {
	alias string
	a     []netip.Addr
	aaaa  []netip.Addr
	ttl   uint32
}

// A question is a name and a record type that all compared resolvers are asked for.
type question struct {
	name  string
	qtype uint16
}

// An internet is the root, all zones below it, and their name servers. It does not change after newInternet.
type internet struct {
	zones      map[string]*zone
	servers    map[netip.Addr]*server
	roots      []*server
	topServers map[*server]bool // servers of the root and of the zones below it
	siteNames  []string         // the names that questions are about, each in a zone of its own

	signedShare float64  // of the zones that are two or more levels below the root; 0: no zone is signed
	targetZones []*zone  // zones in which a scenario asks for many names; nil: none
	signatures  sync.Map // of record sets, by signatureCacheKey; made when they are first needed
}

// An internetPlan determines the size, the faults and the signatures of a simulated internet.
type internetPlan struct {
	seed  uint64
	sites int  // zones that questions are about
	clean bool // without servers that are dead, failing or refusing
	dead  bool // all servers are dead, except those of the root and of the zones below it
	plain bool // hosts have one IPv4 address, and no name is longer than www.example.com
	signingPlan
}

// regionRTTs have the shares of unicast servers and their lognormal round-trip times in milliseconds.
var regionRTTs = []struct{ share, median, sigma float64 }{
	{0.45, 18, 0.5},   // the same continent
	{0.30, 95, 0.25},  // the next one
	{0.15, 165, 0.20}, // a far one
	{0.10, 240, 0.20}, // the farthest
}

// An internetBuilder makes a simulated internet from a plan, whose seed determines all random numbers.
type internetBuilder struct {
	*internet
	internetPlan
	rng      *rand.Rand
	extraRNG *rand.Rand // for the properties that plain leaves out
	nextAddr netip.Addr
}

func newInternet(p internetPlan) *internet {
	b := &internetBuilder{
		internet:     &internet{zones: make(map[string]*zone), servers: make(map[netip.Addr]*server), topServers: make(map[*server]bool)},
		internetPlan: p, nextAddr: ServerNetwork.Addr().Next(),
		rng: rand.New(rand.NewPCG(p.seed, 1)), extraRNG: rand.New(rand.NewPCG(p.seed, 2)),
	}
	tlds := b.addTopZones()
	providers := b.addProviders(tlds)
	cdnZones := b.addCDNs()
	for i := range p.sites {
		b.addSite(i, drawTLD(b.rng, tlds), providers, cdnZones)
	}
	for _, s := range b.servers {
		switch {
		case p.dead && !b.topServers[s]:
			s.fault = dead
		case p.clean:
			s.fault = healthy
		}
	}
	if b.signedShare = p.share; p.share > 0 {
		b.signZones()
	}
	for _, z := range b.zones {
		z.markEmptyNonTerminals()
	}
	return b.internet
}

// sampleLognormalRTT returns a random round-trip time with a lognormal distribution, clamped to 3 to 320 ms. sigma is the standard
// deviation of the logarithm.
func (b *internetBuilder) sampleLognormalRTT(median, sigma float64) time.Duration {
	ms := median * math.Exp(sigma*b.rng.NormFloat64())
	return time.Duration(min(max(ms, 3), 320) * float64(time.Millisecond))
}

// drawUnicastRTT draws the round-trip time of a server without anycast.
func (b *internetBuilder) drawUnicastRTT() time.Duration {
	x := b.rng.Float64()
	for _, r := range regionRTTs[:len(regionRTTs)-1] {
		if x -= r.share; x < 0 {
			return b.sampleLognormalRTT(r.median, r.sigma)
		}
	}
	last := regionRTTs[len(regionRTTs)-1]
	return b.sampleLognormalRTT(last.median, last.sigma)
}

// addServer adds a name server with the round-trip time rtt. The server is dead with probability deadShare, answers all
// queries with SERVFAIL with probability 0.6 deadShare, and rejects EDNS with probability 0.2 deadShare.
func (b *internetBuilder) addServer(name string, rtt time.Duration, deadShare float64) *server {
	s := &server{addr: b.nextAddr, name: name, rtt: rtt}
	b.nextAddr = b.nextAddr.Next()
	switch x := b.rng.Float64(); {
	case x < deadShare:
		s.fault = dead
	case x < 1.6*deadShare:
		s.fault = failing
	case x < 1.8*deadShare:
		s.fault = noEDNS
	}
	b.servers[s.addr] = s
	return s
}

// addZone adds a zone below parent, or the root zone if parent is nil. Servers with names in the zone get address records.
func (b *internetBuilder) addZone(parent *zone, name string, servers []*server) *zone {
	z := &zone{
		name: name, servers: servers,
		children: make(map[string]*zone), hosts: make(map[string]*hostRecord), emptyNonTerminals: make(map[string]bool),
	}
	for _, s := range servers {
		if dns.IsSubDomain(name, s.name) && name != "." {
			z.hosts[s.name] = &hostRecord{a: []netip.Addr{s.addr}, ttl: 86400}
		}
	}
	b.zones[name] = z
	if parent != nil {
		parent.children[name] = z
	}
	return z
}

// markEmptyNonTerminals records the empty non-terminals of the zone (RFC 8499): names without records above a host or a
// delegation of the zone.
func (z *zone) markEmptyNonTerminals() {
	markAbove := func(name string) {
		for name = parentName(name); name != z.name && dns.IsSubDomain(z.name, name); name = parentName(name) {
			z.emptyNonTerminals[name] = true
		}
	}
	for name := range z.hosts {
		markAbove(name)
	}
	for name := range z.children {
		markAbove(name)
	}
}

// parentName returns a domain name without its first label.
func parentName(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// The zones below the root, besides com and net, which share their servers. Generic zones are served by anycast.
const (
	genericZones = 12
	countryZones = 60
)

func (b *internetBuilder) addTopZones() []*zone {
	for i := range 13 {
		b.roots = append(b.roots, b.addServer(string(rune('a'+i))+".root-servers.net.", b.sampleLognormalRTT(20, 0.6), 0))
	}
	root := b.addZone(nil, ".", b.roots)
	var gtld []*server
	for i := range 8 {
		gtld = append(gtld, b.addServer(string(rune('a'+i))+".gtld-servers.net.", b.sampleLognormalRTT(28, 0.5), 0))
	}
	tlds := []*zone{b.addZone(root, "com.", gtld), b.addZone(root, "net.", gtld)}
	b.addZone(tlds[1], "root-servers.net.", b.roots)
	b.addZone(tlds[1], "gtld-servers.net.", gtld)
	for i := range genericZones {
		name := fmt.Sprintf("g%02d.", i)
		var servers []*server
		for j := range 4 + b.rng.IntN(3) {
			servers = append(servers, b.addServer(fmt.Sprintf("ns%d.nic.%s", j, name), b.sampleLognormalRTT(35, 0.6), 0.005))
		}
		tlds = append(tlds, b.addZone(root, name, servers))
	}
	for i := range countryZones {
		name := fmt.Sprintf("c%02d.", i)
		var servers []*server
		for j := range 3 + b.rng.IntN(4) {
			rtt := b.sampleLognormalRTT(40, 0.6)
			if j%2 == 1 {
				rtt = b.drawUnicastRTT()
			}
			servers = append(servers, b.addServer(fmt.Sprintf("ns%d.nic.%s", j, name), rtt, 0.02))
		}
		tlds = append(tlds, b.addZone(root, name, servers))
	}
	for _, z := range b.zones {
		for _, s := range z.servers {
			b.topServers[s] = true
		}
	}
	return tlds
}

// drawTLD returns one of tlds, the zones below the root, at random. The probabilities are the shares of all sites in
// the real DNS: of com, of net, of all generic zones and of all country zones.
func drawTLD(rng *rand.Rand, tlds []*zone) *zone {
	switch x := rng.Float64(); {
	case x < 0.46:
		return tlds[0]
	case x < 0.53:
		return tlds[1]
	case x < 0.70:
		return tlds[2+rng.IntN(genericZones)]
	}
	return tlds[2+genericZones+rng.IntN(countryZones)]
}

// Providers serve the zones of their customers. The first providers are large and use anycast.
const (
	providerCount  = 220
	largeProviders = 30
)

// addProviders adds DNS hosting providers, each with a zone below one of tlds. It returns the servers of each.
func (b *internetBuilder) addProviders(tlds []*zone) [][]*server {
	var all [][]*server
	for i := range providerCount {
		tld := tlds[0]
		if b.rng.Float64() < 0.5 {
			tld = drawTLD(b.rng, tlds)
		}
		name := fmt.Sprintf("dnshost%03d.%s", i, tld.name)
		first := b.drawUnicastRTT()
		faulty := 0.03
		if i < largeProviders {
			faulty = 0.002
		}
		var servers []*server
		for j := range 2 + b.rng.IntN(3) {
			rtt := first
			switch {
			case i < largeProviders:
				rtt = b.sampleLognormalRTT(25, 0.5)
			case j > 0 && b.rng.Float64() < 0.6:
				rtt = b.drawUnicastRTT()
			case j > 0: // in the region of the first server
				rtt = time.Duration(float64(first) * (0.9 + 0.2*b.rng.Float64()))
			}
			servers = append(servers, b.addServer(fmt.Sprintf("ns%d.%s", j+1, name), rtt, faulty))
		}
		if !slices.ContainsFunc(servers, (*server).canAnswer) {
			servers[0].fault = healthy
		}
		b.addZone(tld, name, servers)
		all = append(all, servers)
	}
	return all
}

func (s *server) canAnswer() bool { return s.fault == healthy || s.fault == noEDNS }

// addCDNs adds the zones of content delivery networks, which aliases of sites point to, and returns them. Each network has
// a second zone, below the first, for its edge servers.
func (b *internetBuilder) addCDNs() []*zone {
	var all []*zone
	for i := range 6 {
		name := fmt.Sprintf("cdn%d.net.", i)
		var servers, edge []*server
		for j := range 4 {
			servers = append(servers, b.addServer(fmt.Sprintf("ns%d.%s", j, name), b.sampleLognormalRTT(18, 0.5), 0.005))
		}
		z := b.addZone(b.zones["net."], name, servers)
		for j := range 3 {
			edge = append(edge, b.addServer(fmt.Sprintf("n%d.edge.%s", j, name), b.sampleLognormalRTT(15, 0.6), 0.005))
		}
		b.addZone(z, "edge."+name, edge)
		all = append(all, z)
	}
	return all
}

// addSite adds the i-th site, a zone below tld, with servers of its own or of one of providers. Its host may be an
// alias of a name in one of cdnZones, the zones of content delivery networks.
func (b *internetBuilder) addSite(i int, tld *zone, providers [][]*server, cdnZones []*zone) {
	name := fmt.Sprintf("site%05d.%s", i, tld.name)
	var servers []*server
	switch {
	case b.rng.Float64() < 0.22: // servers of its own
		first := b.drawUnicastRTT()
		for j := range 2 + b.rng.IntN(2) {
			rtt := first
			if j > 0 && b.rng.Float64() < 0.5 {
				rtt = b.drawUnicastRTT()
			}
			servers = append(servers, b.addServer(fmt.Sprintf("ns%d.%s", j+1, name), rtt, 0.03))
		}
		servers[0].fault = healthy
	case b.rng.Float64() < 0.55: // a large provider, preferably one of the first
		servers = providers[int(largeProviders*math.Pow(b.rng.Float64(), 2))]
	default:
		servers = providers[largeProviders+b.rng.IntN(len(providers)-largeProviders)]
	}
	z := b.addZone(tld, name, servers)
	if refuses := b.rng.Float64() < 0.02; refuses && !b.clean {
		// One server lacks the zone, unless no other server can answer.
		one := servers[b.rng.IntN(len(servers))]
		if slices.ContainsFunc(servers, func(s *server) bool { return s != one && s.canAnswer() }) {
			z.refusing = one
		}
	}
	www := "www." + name
	if !b.plain && b.extraRNG.Float64() < 0.06 {
		www = "www.eu.prod." + name
	}
	alias := b.rng.Float64() < 0.25
	network, end := cdnZones[b.rng.IntN(len(cdnZones))], b.rng.IntN(500)
	if !alias {
		z.hosts[www] = b.newHost(i, 0.005)
	} else {
		middle, last := fmt.Sprintf("c%05d.%s", i, network.name), fmt.Sprintf("e%03d.edge.%s", end, network.name)
		z.hosts[www] = &hostRecord{alias: middle, ttl: b.drawTTL()}
		network.hosts[middle] = &hostRecord{alias: last, ttl: b.drawTTL()}
		if edge := b.zones["edge."+network.name]; edge.hosts[last] == nil {
			edge.hosts[last] = b.newHost(end, 0)
		}
	}
	b.siteNames = append(b.siteNames, www)
}

// largeAddressCount is a number of addresses that do not fit into a datagram.
const largeAddressCount = 100

// newHost returns random records of the i-th host. big is the probability that its addresses do not fit into a UDP response.
func (b *internetBuilder) newHost(i int, big float64) *hostRecord {
	h := &hostRecord{a: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}, ttl: b.drawTTL()}
	if b.plain {
		return h
	}
	if b.extraRNG.Float64() < big {
		for j := range largeAddressCount - 1 {
			h.a = append(h.a, netip.AddrFrom4([4]byte{203, 0, 113, byte(j)}))
		}
	}
	if b.extraRNG.Float64() < 0.4 {
		h.aaaa = []netip.Addr{netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(i >> 8), 15: byte(i)})}
	}
	return h
}

func (b *internetBuilder) drawTTL() uint32 {
	if b.plain {
		return 300
	}
	return []uint32{20, 60, 300}[b.extraRNG.IntN(3)]
}

// drawQuestions returns count questions about sites, in random order. repeats is the share that repeats an earlier question.
// A fifth of the others ask for IPv6 addresses, unless p.plain is set. Some scenarios also ask for names that do not exist.
func (n *internet) drawQuestions(p internetPlan, count int, repeats float64) []question {
	rng := rand.New(rand.NewPCG(p.seed, 3))
	order := rng.Perm(len(n.siteNames))
	var all, fresh []question
	for len(all) < count {
		if k := len(all); len(n.targetZones) > 0 && (p.queryPattern == randomNames || k%keyTrapPattern.period < keyTrapPattern.trapped) {
			zone := n.targetZones[rng.IntN(len(n.targetZones))] // which has no such name
			all = append(all, question{fmt.Sprintf("r%07x%05d.%s", rng.IntN(1<<28), k, zone.name), dns.TypeA})
			continue
		}
		if len(fresh) > 0 && rng.Float64() < repeats || len(fresh) == len(order) {
			// Zipf's law with exponent 1: the k-th name is asked for with probability ~ 1/k.
			k := int(math.Pow(float64(len(fresh)+1), rng.Float64())) - 1
			all = append(all, fresh[k])
			continue
		}
		q := question{n.siteNames[order[len(fresh)]], dns.TypeA}
		if rng.Float64() < 0.2 && !p.plain {
			q.qtype = dns.TypeAAAA
		}
		fresh = append(fresh, q)
		all = append(all, q)
	}
	return all
}

// correctAddresses returns the addresses in the right answer to question q, and the number of aliases before them.
func (n *internet) correctAddresses(q question) (addrs []netip.Addr, aliases int) {
	name := q.name
	for {
		h := n.findZone(name).hosts[name]
		if h == nil {
			return nil, aliases
		}
		if h.alias == "" {
			if q.qtype == dns.TypeAAAA {
				return h.aaaa, aliases
			}
			return h.a, aliases
		}
		name = h.alias
		aliases++
	}
}

// findZone returns the closest zone at or above a name.
func (n *internet) findZone(name string) *zone {
	for {
		if z := n.zones[name]; z != nil {
			return z
		}
		name = parentName(name)
	}
}
