package reclab

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Network holds the addresses of all servers: it is meant for benchmarks (RFC 2544).
var Network = netip.MustParsePrefix("198.18.0.0/15")

// How long records may be kept, in seconds; hosts differ.
const (
	delegationTTL = 86400
	negativeTTL   = 3600
)

// fault is what is wrong with a server.
type fault int

const (
	healthy fault = iota
	dead          // it never answers
	failing       // it answers everything with SERVFAIL
	noEDNS        // it answers queries that have an OPT record with FORMERR
)

// server is a name server with one address.
type server struct {
	addr  netip.Addr
	name  string
	rtt   time.Duration // without jitter
	fault fault
	stale bool // its signatures have expired
}

// zone is a zone with its delegations.
type zone struct {
	name     string
	servers  []*server
	refusing *server // the one of them that does not know the zone; nil: none
	children map[string]*zone
	hosts    map[string]*host
	above    map[string]bool // names that exist because something below them does
	signed   *signed         // nil: it is not
}

// host is what a zone has of a name. An alias has no addresses.
type host struct {
	alias string
	a     []netip.Addr
	aaaa  []netip.Addr
	ttl   uint32
}

// question is what contenders are asked.
type question struct {
	name  string
	qtype uint16
}

// world is an internet: the root, all zones below it, and their servers. It is
// read only once it is made.
type world struct {
	zones   map[string]*zone
	servers map[netip.Addr]*server
	named   map[string]*server
	roots   []*server
	top     map[*server]bool // servers of the root and of the zones below it
	asked   []string         // names that can be asked for, each in a zone of its own

	share      float64  // of the zones further down that are signed; 0: nothing is
	crowded    []*zone  // those that a scenario asks for many names of; nil: none
	signatures sync.Map // of sets that were asked for, by signature
}

// plan is what world is made. The same plan makes the same world.
type plan struct {
	seed  uint64
	sites int  // zones that questions are about
	clean bool // without servers that are dead, failing or refusing
	dead  bool // all servers are dead but those of the root and of the zones below it
	plain bool // hosts have one IPv4 address, and no name is deeper than www.example.com
	signing
}

// regions are where unicast servers stand: what share of them, and their round trip times,
// which are lognormal.
var regions = []struct{ share, median, sigma float64 }{
	{0.45, 18, 0.5},   // the same continent
	{0.30, 95, 0.25},  // the next one
	{0.15, 165, 0.20}, // a far one
	{0.10, 240, 0.20}, // the farthest
}

// builder makes a world.
type builder struct {
	*world
	plan
	rng   *rand.Rand
	extra *rand.Rand // for what plain leaves out
	next  netip.Addr
}

func newWorld(p plan) *world {
	b := &builder{
		world: &world{
			zones: make(map[string]*zone), servers: make(map[netip.Addr]*server), named: make(map[string]*server),
			top: make(map[*server]bool),
		},
		plan: p, next: Network.Addr().Next(),
		rng: rand.New(rand.NewPCG(p.seed, 1)), extra: rand.New(rand.NewPCG(p.seed, 2)),
	}
	tlds := b.upper()
	providers := b.providers(tlds)
	networks := b.contentNetworks()
	for i := range p.sites {
		b.site(i, pickTLD(b.rng, tlds), providers, networks)
	}
	for _, s := range b.servers {
		switch {
		case p.dead && !b.top[s]:
			s.fault = dead
		case p.clean:
			s.fault = healthy
		}
	}
	if b.world.share = p.share; p.share > 0 {
		b.sign()
	}
	for _, z := range b.zones {
		z.close()
	}
	return b.world
}

// lognormal draws milliseconds, from 3 to 320 of them.
func (b *builder) lognormal(median, sigma float64) time.Duration {
	ms := median * math.Exp(sigma*b.rng.NormFloat64())
	return time.Duration(min(max(ms, 3), 320) * float64(time.Millisecond))
}

func (b *builder) unicast() time.Duration {
	x := b.rng.Float64()
	for _, r := range regions[:len(regions)-1] {
		if x -= r.share; x < 0 {
			return b.lognormal(r.median, r.sigma)
		}
	}
	last := regions[len(regions)-1]
	return b.lognormal(last.median, last.sigma)
}

// server makes a server that is dead with the given probability, fails with 0.6 times that,
// and cannot read OPT records with 0.2 times that.
func (b *builder) server(name string, rtt time.Duration, faulty float64) *server {
	s := &server{addr: b.next, name: name, rtt: rtt}
	b.next = b.next.Next()
	switch x := b.rng.Float64(); {
	case x < faulty:
		s.fault = dead
	case x < 1.6*faulty:
		s.fault = failing
	case x < 1.8*faulty:
		s.fault = noEDNS
	}
	b.servers[s.addr], b.named[name] = s, s
	return s
}

// zone makes a zone below parent, or the root if that is nil. Names of servers that are in
// the zone get their addresses.
func (b *builder) zone(parent *zone, name string, servers []*server) *zone {
	z := &zone{
		name: name, servers: servers,
		children: make(map[string]*zone), hosts: make(map[string]*host), above: make(map[string]bool),
	}
	for _, s := range servers {
		if dns.IsSubDomain(name, s.name) && name != "." {
			z.hosts[s.name] = &host{a: []netip.Addr{s.addr}, ttl: 86400}
		}
	}
	b.zones[name] = z
	if parent != nil {
		parent.children[name] = z
	}
	return z
}

// close notes what exists above names of the zone.
func (z *zone) close() {
	note := func(name string) {
		for name = up(name); name != z.name && dns.IsSubDomain(z.name, name); name = up(name) {
			z.above[name] = true
		}
	}
	for name := range z.hosts {
		note(name)
	}
	for name := range z.children {
		note(name)
	}
}

// up returns the name without its first label.
func up(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// The zones below the root: com and net, which share their servers, some more that are served
// by anycast, and countries.
const (
	generics  = 12
	countries = 60
)

// upper makes the root and the zones below it, and returns these.
func (b *builder) upper() []*zone {
	for i := range 13 {
		b.roots = append(b.roots, b.server(string(rune('a'+i))+".root-servers.net.", b.lognormal(20, 0.6), 0))
	}
	root := b.zone(nil, ".", b.roots)
	var gtld []*server
	for i := range 8 {
		gtld = append(gtld, b.server(string(rune('a'+i))+".gtld-servers.net.", b.lognormal(28, 0.5), 0))
	}
	tlds := []*zone{b.zone(root, "com.", gtld), b.zone(root, "net.", gtld)}
	b.zone(tlds[1], "root-servers.net.", b.roots)
	b.zone(tlds[1], "gtld-servers.net.", gtld)
	for i := range generics {
		name := fmt.Sprintf("g%02d.", i)
		var servers []*server
		for j := range 4 + b.rng.IntN(3) {
			servers = append(servers, b.server(fmt.Sprintf("ns%d.nic.%s", j, name), b.lognormal(35, 0.6), 0.005))
		}
		tlds = append(tlds, b.zone(root, name, servers))
	}
	for i := range countries {
		name := fmt.Sprintf("c%02d.", i)
		var servers []*server
		for j := range 3 + b.rng.IntN(4) {
			rtt := b.lognormal(40, 0.6)
			if j%2 == 1 {
				rtt = b.unicast()
			}
			servers = append(servers, b.server(fmt.Sprintf("ns%d.nic.%s", j, name), rtt, 0.02))
		}
		tlds = append(tlds, b.zone(root, name, servers))
	}
	for _, z := range b.zones {
		for _, s := range z.servers {
			b.top[s] = true
		}
	}
	return tlds
}

// pickTLD returns com for 46 % of zones, net for 7 %, another generic one for 17 %, or else
// a country's.
func pickTLD(rng *rand.Rand, tlds []*zone) *zone {
	switch x := rng.Float64(); {
	case x < 0.46:
		return tlds[0]
	case x < 0.53:
		return tlds[1]
	case x < 0.70:
		return tlds[2+rng.IntN(generics)]
	}
	return tlds[2+generics+rng.IntN(countries)]
}

// Providers serve the zones of others. The first ones are large and use anycast.
const (
	providers      = 220
	largeProviders = 30
)

func (b *builder) providers(tlds []*zone) [][]*server {
	var all [][]*server
	for i := range providers {
		tld := tlds[0]
		if b.rng.Float64() < 0.5 {
			tld = pickTLD(b.rng, tlds)
		}
		name := fmt.Sprintf("dnshost%03d.%s", i, tld.name)
		first := b.unicast()
		faulty := 0.03
		if i < largeProviders {
			faulty = 0.002
		}
		var servers []*server
		for j := range 2 + b.rng.IntN(3) {
			rtt := first
			switch {
			case i < largeProviders:
				rtt = b.lognormal(25, 0.5)
			case j > 0 && b.rng.Float64() < 0.6:
				rtt = b.unicast()
			case j > 0: // beside the first
				rtt = time.Duration(float64(first) * (0.9 + 0.2*b.rng.Float64()))
			}
			servers = append(servers, b.server(fmt.Sprintf("ns%d.%s", j+1, name), rtt, faulty))
		}
		if !slices.ContainsFunc(servers, (*server).useful) {
			servers[0].fault = healthy
		}
		b.zone(tld, name, servers)
		all = append(all, servers)
	}
	return all
}

func (s *server) useful() bool { return s.fault == healthy || s.fault == noEDNS }

// contentNetworks makes zones that the aliases of others point into. Each has a second zone
// below it, for what is at its edge.
func (b *builder) contentNetworks() []*zone {
	var all []*zone
	for i := range 6 {
		name := fmt.Sprintf("cdn%d.net.", i)
		var servers, edge []*server
		for j := range 4 {
			servers = append(servers, b.server(fmt.Sprintf("ns%d.%s", j, name), b.lognormal(18, 0.5), 0.005))
		}
		z := b.zone(b.zones["net."], name, servers)
		for j := range 3 {
			edge = append(edge, b.server(fmt.Sprintf("n%d.edge.%s", j, name), b.lognormal(15, 0.6), 0.005))
		}
		b.zone(z, "edge."+name, edge)
		all = append(all, z)
	}
	return all
}

// site makes the i-th zone that questions are about, and its host.
func (b *builder) site(i int, tld *zone, providers [][]*server, networks []*zone) {
	name := fmt.Sprintf("site%05d.%s", i, tld.name)
	var servers []*server
	switch {
	case b.rng.Float64() < 0.22: // its own
		first := b.unicast()
		for j := range 2 + b.rng.IntN(2) {
			rtt := first
			if j > 0 && b.rng.Float64() < 0.5 {
				rtt = b.unicast()
			}
			servers = append(servers, b.server(fmt.Sprintf("ns%d.%s", j+1, name), rtt, 0.03))
		}
		servers[0].fault = healthy
	case b.rng.Float64() < 0.55: // of large ones, the first the most
		servers = providers[int(largeProviders*math.Pow(b.rng.Float64(), 2))]
	default:
		servers = providers[largeProviders+b.rng.IntN(len(providers)-largeProviders)]
	}
	z := b.zone(tld, name, servers)
	if refuses := b.rng.Float64() < 0.02; refuses && !b.clean {
		// One of them does not know the zone, if another does.
		one := servers[b.rng.IntN(len(servers))]
		if slices.ContainsFunc(servers, func(s *server) bool { return s != one && s.useful() }) {
			z.refusing = one
		}
	}
	www := "www." + name
	if !b.plain && b.extra.Float64() < 0.06 {
		www = "www.eu.prod." + name
	}
	alias := b.rng.Float64() < 0.25
	network, end := networks[b.rng.IntN(len(networks))], b.rng.IntN(500)
	if !alias {
		z.hosts[www] = b.host(i, 0.005)
	} else {
		middle, last := fmt.Sprintf("c%05d.%s", i, network.name), fmt.Sprintf("e%03d.edge.%s", end, network.name)
		z.hosts[www] = &host{alias: middle, ttl: b.ttl()}
		network.hosts[middle] = &host{alias: last, ttl: b.ttl()}
		if edge := b.zones["edge."+network.name]; edge.hosts[last] == nil {
			edge.hosts[last] = b.host(end, 0)
		}
	}
	b.asked = append(b.asked, www)
}

// bigSet is so many addresses that they do not fit into a datagram.
const bigSet = 100

// host makes a host with addresses for documentation, of which there are too many for
// a datagram with the given probability.
func (b *builder) host(i int, big float64) *host {
	h := &host{a: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}, ttl: b.ttl()}
	if b.plain {
		return h
	}
	if b.extra.Float64() < big {
		for j := range bigSet - 1 {
			h.a = append(h.a, netip.AddrFrom4([4]byte{203, 0, 113, byte(j)}))
		}
	}
	if b.extra.Float64() < 0.4 {
		h.aaaa = []netip.Addr{netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(i >> 8), 15: byte(i)})}
	}
	return h
}

// ttl draws how many seconds an answer may be kept.
func (b *builder) ttl() uint32 {
	if b.plain {
		return 300
	}
	return []uint32{20, 60, 300}[b.extra.IntN(3)]
}

// questions draws what contenders are asked: each of the names once, in an order of its own.
// Of a world that is not plain, a fifth of the questions are for IPv6 addresses. The given
// share of the questions repeats an earlier one, popular ones more often than others.
func (w *world) questions(p plan, n int, repeats float64) []question {
	rng := rand.New(rand.NewPCG(p.seed, 3))
	order := rng.Perm(len(w.asked))
	var all, fresh []question
	for len(all) < n {
		if k := len(all); len(w.crowded) > 0 && (p.crowd == random || k%trapped.of < trapped.are) {
			all = append(all, w.stranger(rng, k))
			continue
		}
		if len(fresh) > 0 && rng.Float64() < repeats || len(fresh) == len(order) {
			// Zipf's law with exponent 1: the k-th name is asked for with probability ~ 1/k.
			k := int(math.Pow(float64(len(fresh)+1), rng.Float64())) - 1
			all = append(all, fresh[k])
			continue
		}
		q := question{w.asked[order[len(fresh)]], dns.TypeA}
		if rng.Float64() < 0.2 && !p.plain {
			q.qtype = dns.TypeAAAA
		}
		fresh = append(fresh, q)
		all = append(all, q)
	}
	return all
}

// stranger returns the k-th question about a name that does not exist, in one of the crowded zones.
func (w *world) stranger(rng *rand.Rand, k int) question {
	z := w.crowded[rng.IntN(len(w.crowded))]
	return question{fmt.Sprintf("r%07x%05d.%s", rng.IntN(1<<28), k, z.name), dns.TypeA}
}

// addresses returns what the right answer to a question has, in the order of the world,
// and how often the name is an alias before that.
func (w *world) addresses(q question) (addrs []netip.Addr, aliases int) {
	name := q.name
	for {
		h := w.zoneOf(name).hosts[name]
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

// zoneOf returns the zone that a name is in.
func (w *world) zoneOf(name string) *zone {
	for {
		if z := w.zones[name]; z != nil {
			return z
		}
		name = up(name)
	}
}

// String says what is wrong with a server, for those who look at single names.
func (s *server) String() string {
	what := []string{"", " dead", " failing", " without EDNS"}[s.fault]
	if s.stale {
		what += " stale"
	}
	return fmt.Sprintf("%s %v %v%s", strings.TrimSuffix(s.name, "."), s.addr, s.rtt.Round(time.Millisecond), what)
}
