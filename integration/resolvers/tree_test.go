package resolvers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// A tree is a top-level domain and two to four zones below it, with faults. All but the addresses depends on the seed alone.
type tree struct {
	seed  uint64
	rng   *rand.Rand
	lab   *lab
	root  *treeZone
	zones []*treeZone // the first is the top-level domain
	last  []func()    // add impostors, after the zones
}

// A treeZone is a zone of a tree.
type treeZone struct {
	*signedZone
	parent    *signedZone
	needs     []*treeZone // the zones above it, and the zone of its servers
	other     *treeZone   // the zone that aliases lead to, and that forged records are for
	lines     []string    // of a zone file
	faults    []string
	questions []string // that faults add to those of askedOf
}

// A treeQuestion is a question about a zone of a tree.
type treeQuestion struct {
	ask
	kind string // without the name of the zone
	zone *treeZone
}

// newRoot adds the root to the lab, with a second server and a fault of that server or of both.
func newRoot(l *lab, seed uint64) *treeZone {
	t := &tree{rng: rand.New(rand.NewPCG(seed, 59)), lab: l}
	addr := l.fresh(1)[0]
	l.root.addrs, l.root.hosts, l.served[addr] = []netip.Addr{addr, rootAddr}, append(l.root.hosts, "b.root."), []*zone{l.root}
	l.root.put("@ NS b.root.")
	l.root.put("b.root. A " + addr.String())
	root := &treeZone{signedZone: l.addSigned(nil, &signedZone{algorithm: dns.ECDSAP256SHA256})}
	faults := slices.Concat(rootFaults, responseFlaws())
	f := faults[t.rng.IntN(len(faults))]
	t.addFault(root, f, strings.HasPrefix(f.name, "silent") || t.rng.IntN(2) == 0) // a root that is silent leaves nothing to compare
	say := root.say
	root.say = func(q query, r *dns.Msg) {
		switch labels := dns.SplitDomainName(q.name); {
		case len(labels) > 0 && strings.HasPrefix(labels[len(labels)-1], "t"):
			say(q, r)
		case q.qtype == dns.TypeNS: // as for all names outside of trees, there is no fault, so that resolvers start
			r.Extra = slices.Concat(r.Extra, root.records["a.root."], root.records["b.root."])
		}
	}
	return root
}

// responseFlaws returns the flaws that change nothing but responses.
func responseFlaws() (all []treeFault) {
	for _, f := range flaws {
		z := &signedZone{zone: new(zone)}
		if f.change(z, rand.New(rand.NewPCG(1, 1))); z.say != nil {
			all = append(all, treeFault{f.name, func(_ *tree, to *treeZone) { to.say = z.say }})
		}
	}
	return all
}

// newTree draws a tree and adds it to the lab, below the root.
func newTree(l *lab, root *treeZone, seed uint64) *tree {
	t := &tree{seed: seed, rng: rand.New(rand.NewPCG(seed, 58)), lab: l, root: root}
	t.drawZone(root.signedZone, nil, fmt.Sprintf("t%d.", seed))
	for i := range 2 + t.rng.IntN(3) {
		above := t.zones[0]
		if i > 0 && t.rng.IntN(4) == 0 {
			above = t.zones[1+t.rng.IntN(i)]
		}
		t.drawZone(above.signedZone, above, string(rune('a'+i))+"."+above.name)
	}
	for i, z := range t.zones {
		others := slices.Delete(slices.Clone(t.zones), i, i+1)
		z.other = others[len(others)-1-t.rng.IntN(2)]
		z.lines = append(z.lines, "www A 192.0.2."+fmt.Sprint(1+i), "a.b.ent TXT x", "*.w A 192.0.2.10", "real.w A 192.0.2.11", "alias CNAME www."+z.other.name,
			"d DNAME "+z.other.name, "wild.card A 192.0.2.12", "*.card CNAME www")
	}
	for range []int{1, 1, 1, 2, 2, 3}[t.rng.IntN(6)] {
		t.drawFault(t.zones[t.rng.IntN(len(t.zones))])
	}
	for _, z := range t.zones {
		l.addSigned(z.parent, z.signedZone, z.lines...)
	}
	for _, add := range t.last {
		add()
	}
	return t
}

// drawZone draws a zone without faults. The argument above is nil for the top-level domain.
func (t *tree) drawZone(parent *signedZone, above *treeZone, name string) {
	z := &treeZone{parent: parent, signedZone: &signedZone{
		zone: &zone{name: name}, algorithm: dns.ECDSAP256SHA256, denial: signer.Denial(t.rng.IntN(4)), split: t.rng.IntN(2) == 0, unsigned: t.rng.IntN(10) < 3,
	}}
	if above != nil {
		z.needs = append(slices.Clone(above.needs), above)
	}
	t.zones = append(t.zones, z)
	switch n := t.rng.IntN(10); {
	case n == 0 && above != nil: // the servers of the zone above
		z.addrs = above.addrs
	case n == 1 && len(t.zones) > 2: // servers whose names are in another zone
		host := t.zones[1+t.rng.IntN(len(t.zones)-2)]
		z.addrs, z.hosts, z.needs = host.addrs, host.hosts, slices.Concat(z.needs, []*treeZone{host}, host.needs)
		return
	default:
		z.addrs = t.lab.fresh(1 + t.rng.IntN(2))
	}
	for i, a := range z.addrs {
		z.hosts = append(z.hosts, fmt.Sprintf("ns%d.%s", i+1, name))
		z.lines = append(z.lines, fmt.Sprintf("ns%d A %s", i+1, a))
	}
}

// drawFault adds a fault of treeFaults to a zone, or one of flaws if it is signed.
func (t *tree) drawFault(z *treeZone) {
	f := treeFaults[t.rng.IntN(len(treeFaults))]
	if !z.unsigned && z.rekey == nil && z.delve == nil && t.rng.IntN(2) == 0 { // some flaws need keys, which another one takes away
		flaw := flaws[1+t.rng.IntN(len(flaws)-1)] // the first is none
		f = treeFault{flaw.name, func(t *tree, z *treeZone) { flaw.change(z.signedZone, t.rng) }}
	}
	t.addFault(z, f, t.rng.IntN(3) == 0)
}

// addFault adds a fault to a zone. If it is of responses, isOne limits it to one of several servers.
func (t *tree) addFault(z *treeZone, f treeFault, isOne bool) {
	before := z.say
	z.say = nil
	f.change(t, z)
	added, name := z.say, f.name
	if z.say = before; added != nil {
		only := netip.Addr{}
		if len(z.addrs) > 1 && isOne {
			name, only = name+", one server", z.addrs[0]
		}
		z.alsoSay(func(q query, r *dns.Msg) {
			if !only.IsValid() || only == q.server {
				added(q, r)
			}
		})
	}
	z.faults = append(z.faults, name)
}

// addImpostor adds servers of an unsigned zone with forged records, and returns the address of the first.
func (t *tree) addImpostor(name string, addrs []netip.Addr, hosts []string, lines ...string) netip.Addr {
	t.last = append(t.last, func() {
		t.lab.add(nil, &zone{name: name, addrs: addrs, hosts: hosts}, append(lines, "@ A 192.0.2.66", "www A 192.0.2.66")...)
	})
	return addrs[0]
}

// drawQuestions returns the questions about the tree, in the order in which they are asked.
func (t *tree) drawQuestions() (all []treeQuestion) {
	add := func(z *treeZone, text string) {
		name, qtype, _ := strings.Cut(text, " ")
		a := ask{name: strings.TrimPrefix(name+"."+z.name, "@."), qtype: dns.StringToType[qtype], signed: true, within: 2 * time.Second}
		all = append(all, treeQuestion{a, text, z})
	}
	for _, z := range t.zones {
		for _, k := range t.rng.Perm(len(askedOf))[:4] {
			add(z, askedOf[k])
		}
		for _, text := range z.questions {
			add(z, text)
		}
	}
	for _, z := range t.zones {
		add(z, "www A")
	}
	return all
}

// leadsToOther reports whether the name may be an alias that leads to the other zone.
func (q treeQuestion) leadsToOther() bool {
	return slices.Contains(q.zone.questions, q.kind) || strings.HasPrefix(q.kind, "alias ") || strings.Contains(q.kind, ".d ")
}

// faultsOf returns the faults that a question may meet, or those of the whole tree if there are none on its way.
func (t *tree) faultsOf(q treeQuestion) string {
	zones := append(slices.Clone(q.zone.needs), q.zone)
	if q.leadsToOther() {
		zones = slices.Concat(zones, []*treeZone{q.zone.other}, q.zone.other.needs)
	}
	for _, z := range t.zones {
		if z.other == q.zone && strings.Contains(strings.Join(z.faults, " "), "forged") {
			zones = append(zones, z)
		}
	}
	if s := joinFaults(zones); s != "" {
		return s
	}
	return "elsewhere: " + joinFaults(t.zones)
}

func joinFaults(zones []*treeZone) string {
	var all []string
	for _, z := range zones {
		all = append(all, z.faults...)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " + ")
}

// String describes the zones.
func (t *tree) String() (text string) {
	for _, z := range t.zones {
		text += fmt.Sprintf("\n%-10s denial %d, unsigned %v, servers %v %v, other %s: %s", z.name, z.denial, z.unsigned, z.addrs, z.hosts, z.other.name, strings.Join(z.faults, " + "))
	}
	return text
}
