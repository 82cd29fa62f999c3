package resolvers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/signer"
)

// validators starts the resolvers that check signatures, with the root's key: unbound, BIND, and then ours, which has to judge as
// these two do.
func validators(t *testing.T, l *lab, anchor *dns.DS) []*resolver {
	t.Helper()
	checks := "  module-config: \"validator iterator\"\n  trust-anchor-signaling: no\n  aggressive-nsec: no\n  trust-anchor: \"" + strings.ReplaceAll(anchor.String(), "\t", " ") + "\"\n"
	unbound := strings.Replace(unboundConf, "  module-config: \"iterator\"\n", checks, 1)
	key := fmt.Sprintf("trust-anchors { . static-ds %d %d %d \"%s\"; };\n", anchor.KeyTag, anchor.Algorithm, anchor.DigestType, anchor.Digest)
	named := strings.Replace(namedConf, "dnssec-validation no;", "dnssec-validation yes; synth-from-dnssec no; resolver-query-timeout 2000;", 1) + key
	require.NotEqual(t, unboundConf, unbound)
	all := append(startPeers(t, l, unbound, named), startOurs(t, l, anchor.String()))
	warm(t, all...)
	return all
}

// security is what a resolver finds of a question, as its answer says. Without an answer nobody is misled, as with
// SERVFAIL: BIND waits twelve seconds for itself where denials have no signatures.
func (o outcome) security() string {
	switch {
	case o.err != nil, o.msg.Rcode == dns.RcodeServerFailure:
		return "bogus"
	case o.msg.AuthenticatedData:
		return "secure"
	}
	return "insecure"
}

// signedTops are the zones below the root, and how they deny. The last is not signed.
var signedTops = []struct {
	name   string
	denial signer.Denial
}{
	{"chain.", signer.NSEC}, {"hashed.", signer.NSEC3}, {"out.", signer.NSEC3OptOut}, {"minimal.", signer.MinimalNSEC}, {"plain.", signer.NSEC},
}

// estate are the zones that are compared.
type estate struct {
	*lab
	rng   *rand.Rand
	addrs [][]netip.Addr
	root  *signedZone
	zones []*drawn
}

// drawn is a zone with the flaw that was drawn for it, and the questions about it.
type drawn struct {
	*signedZone
	flaw      string
	questions []ask
}

// newEstate adds n zones to a lab.
func newEstate(l *lab, n int) *estate {
	e := &estate{lab: l, rng: rand.New(rand.NewPCG(1, 1))}
	for range 6 {
		e.addrs = append(e.addrs, l.fresh(2))
	}
	e.root = l.addSigned(nil, &signedZone{algorithm: dns.ECDSAP256SHA256})
	var tops []*signedZone
	for _, t := range signedTops {
		tops = append(tops, l.addSigned(e.root, &signedZone{
			zone: &zone{name: t.name, addrs: l.fresh(2)}, algorithm: dns.ECDSAP256SHA256, denial: t.denial, unsigned: t.name == "plain.",
		}))
	}
	// What aliases lead to.
	for i, name := range []string{"good.chain.", "good.plain.", "bad.chain."} {
		z := &signedZone{zone: &zone{name: name, addrs: e.addrs[0]}, algorithm: dns.ECDSAP256SHA256, unsigned: i == 1}
		if i == 2 {
			z.form = signer.ExpiredSignature()
		}
		top := tops[slices.IndexFunc(tops, func(t *signedZone) bool { return t.name == parent(name) })]
		l.addSigned(top, z, "www A 192.0.2.7", "a.b A 192.0.2.8")
	}
	often := 0
	for _, f := range flaws {
		often += f.often
	}
	for i := range n {
		x := e.rng.IntN(often)
		f := flaws[slices.IndexFunc(flaws, func(f flaw) bool { x -= f.often; return x < 0 })]
		e.draw(i, tops[min(e.rng.IntN(5*4), len(tops)*4-1)/4], f)
	}
	return e
}

// draw adds the i-th zone and perhaps one below it.
func (e *estate) draw(i int, top *signedZone, f flaw) {
	addrs := e.addrs[e.rng.IntN(len(e.addrs))]
	z := &signedZone{
		zone: &zone{name: fmt.Sprintf("z%04d.%s", i, top.name), addrs: addrs}, algorithm: dns.ECDSAP256SHA256,
		denial: signer.Denial(e.rng.IntN(4)), split: e.rng.IntN(2) == 0,
	}
	f.change(z, e.rng)
	target := []string{"good.chain.", "good.plain.", "bad.chain.", z.name}[e.rng.IntN(4)]
	e.addSigned(top, z, "www A 192.0.2.1", "a.b.ent TXT x", "*.w A 192.0.2.3", "alias CNAME www."+target, "d DNAME "+target, "wild.card A 192.0.2.4", "*.card CNAME www")
	sub := &signedZone{zone: &zone{name: "sub." + z.name, addrs: addrs}, algorithm: dns.ECDSAP256SHA256, denial: signer.Denial(e.rng.IntN(4)), unsigned: e.rng.IntN(2) == 0}
	if e.rng.IntN(2) == 0 {
		sub.addrs = e.addrs[e.rng.IntN(len(e.addrs))]
	}
	e.addSigned(z, sub, "www A 192.0.2.5")
	d := &drawn{signedZone: z, flaw: f.name}
	for _, k := range e.rng.Perm(len(askedOf))[:3] {
		name, qtype, _ := strings.Cut(askedOf[k], " ")
		d.questions = append(d.questions, ask{name: strings.TrimPrefix(name+"."+z.name, "@."), qtype: dns.StringToType[qtype], signed: true})
	}
	e.zones = append(e.zones, d)
}

// askedOf are the questions about a zone, of which each gets three.
var askedOf = []string{
	"www A", "www TXT", "nx A", "far.nx A", "b.ent A", "ent TXT", "x.w A", "y.x.w A", "x.w TXT", "alias A", "www.d A", "a.b.d A", "no.d A", "x.card A",
	"www.sub A", "nx.sub A", "sub DS", "@ DS", "@ DNSKEY", "@ SOA", "nx.www A",
}

// validatorsDiffer are the flaws of which unbound and BIND find something else, what that is, who is right, and why.
var validatorsDiffer = []struct{ flaw, unbound, named, right, why string }{
	{"DS with SHA-1, and a wrong one with SHA-256", "secure", "bogus", "BIND", "SHA-1 is of no account beside SHA-256 (RFC 4509 §3), for unbound only with harden-algo-downgrade"},
	{"DS with SHA-1, and a wrong one with SHA-256", "insecure", "bogus", "BIND", "the same"},
	{"key is revoked", "secure", "bogus", "BIND", "a revoked key is for nothing but the signature of the keys (RFC 5011 §2.1); unbound looks at the flag of anchors only"},
	{"key is revoked", "insecure", "bogus", "BIND", "the same"},
	{"keys are not for zones", "bogus", "secure", "unbound", "a key without the flag ZONE signs nothing (RFC 4034 §2.1.1); BIND takes it"},
	{"keys are not for zones", "bogus", "insecure", "unbound", "the same"},
	{"protocol of keys is 2", "bogus", "secure", "unbound", "the protocol is 3 (RFC 4034 §2.1.2); BIND does not look"},
	{"protocol of keys is 2", "bogus", "insecure", "unbound", "the same"},
	{"one label more", "bogus", "insecure", "unbound", "BIND counts the star of a wildcard as a label (RFC 4034 §3.1.3), and needs no signature of the SOA record"},
	{"no signatures of denials", "secure", "bogus", "unbound", "BIND needs the denial of a part of the name, which it asks for first and which is of no account (RFC 9156)"},
	{"private algorithm", "insecure", "bogus", "unbound", "BIND wants a name in front of the key (RFC 4034, appendix A.1.1) before it finds that it does not know the algorithm"},
	{"signer is the root", "bogus", "insecure", "BIND", "below an unsigned zone signatures are of no account; unbound looks for the keys of their signer"},
}

// oursDiffers is the only flaw of which ours finds something else than the others, by design: what has more than 500 iterations is not
// looked at, so that nobody can make it costly (RFC 9276 §3.2 allows both).
var oursDiffers = struct{ flaw, others, ours string }{"many iterations", "insecure", "bogus"}

// compared is what resolvers find of one question about a zone.
type compared struct {
	ask
	flaw  string
	found []string // of each resolver
}

// wrong says what is wrong with that, and what of validatorsDiffer explains it; -1: nothing.
func (c compared) wrong() (why string, row int) {
	want := c.found[0]
	row = -1
	if c.flaw == "nothing" && strings.HasPrefix(c.name, "www.z") && !strings.HasSuffix(c.name, ".plain.") && want != "secure" {
		return "nothing is wrong with it", row
	}
	if c.found[1] != want {
		row = slices.IndexFunc(validatorsDiffer, func(d struct{ flaw, unbound, named, right, why string }) bool {
			return d.flaw == c.flaw && d.unbound == c.found[0] && d.named == c.found[1]
		})
		if row < 0 {
			return "unbound and BIND differ", row
		}
		if validatorsDiffer[row].right == "BIND" {
			want = c.found[1]
		}
	}
	for _, found := range c.found[2:] {
		if found != want && (c.flaw != oursDiffers.flaw || want != oursDiffers.others || found != oursDiffers.ours) {
			return "it is " + want, row
		}
	}
	return "", row
}

// compare asks all resolvers about all zones: the questions about one zone one after the other.
func (e *estate) compare(t *testing.T, all []*resolver) (rows []compared) {
	t.Helper()
	played := make([][]compared, len(e.zones))
	room := make(chan struct{}, 12)
	var wg sync.WaitGroup
	for i, z := range e.zones {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			for _, a := range z.questions {
				c := compared{ask: a, flaw: z.flaw}
				c.found = findUntil(t, all, a, func(found []string) bool {
					why, _ := compared{ask: a, flaw: z.flaw, found: found}.wrong()
					return why == ""
				})
				played[i] = append(played[i], c)
			}
		})
	}
	wg.Wait()
	return slices.Concat(played...)
}

// failuresKept is longer than resolvers keep failures: unbound five seconds.
const failuresKept = 6 * time.Second

// hasty is how long questions wait whose answers are as they should be.
const hasty = 3 * time.Second

// findUntil asks all resolvers one question until the function isRight returns true for the findings, at most three times: the machine may be
// busy, so that a resolver gets no answer in time. It returns the last findings.
func findUntil(t *testing.T, all []*resolver, a ask, isRight func(found []string) bool) []string {
	a.within = hasty
	for tries := 1; ; tries++ {
		if found := findings(t, all, a); tries == 3 || isRight(found) {
			return found
		}
		time.Sleep(failuresKept)
		a.within = patience
	}
}

// findings asks all resolvers one question.
func findings(t *testing.T, all []*resolver, a ask) []string {
	found := make([]string, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		wg.Go(func() { found[i] = r.ask(t.Context(), a).security() })
	}
	wg.Wait()
	return found
}

// zoneCount is how many zones are compared.
const zoneCount = 2000

// TestSignedZonesAreJudgedAlike: what unbound and BIND find of questions about zones that are signed, with flaws that are drawn, is the same
// but for what validatorsDiffer has; and every other resolver finds what these two do, or the one of them that is right.
func TestSignedZonesAreJudgedAlike(t *testing.T) {
	if testing.Short() {
		t.Skip("asks thousands of questions")
	}
	l := newLab(t)
	e := newEstate(l, zoneCount)
	l.open(t)
	rows := e.compare(t, validators(t, l, e.root.ds()[0].(*dns.DS)))
	kinds, used := make(map[string]int), make(map[int]int)
	for _, c := range rows {
		kinds[strings.Join(c.found, " ")]++
		why, row := c.wrong()
		if row >= 0 {
			used[row]++
		}
		if why != "" {
			t.Errorf("%s, flaw %q: %v: %s", c, c.flaw, c.found, why)
		}
	}
	t.Logf("%d questions about %d zones: %v", len(rows), len(e.zones), kinds)
	for i, d := range validatorsDiffer {
		t.Logf("%3d %s: unbound %s, BIND %s; %s is right: %s", used[i], d.flaw, d.unbound, d.named, d.right, d.why)
		assert.NotZero(t, used[i], "%s is judged alike", d.flaw)
	}
}

// unsignedResponses are responses without signatures to questions for addresses of a signed zone.
var unsignedResponses = map[string]func(q query, r *dns.Msg){
	"NXDOMAIN": func(q query, r *dns.Msg) {
		r.Rcode, r.Answer, r.Ns = dns.RcodeNameError, nil, []dns.RR{soa(parent(q.name))}
	},
	"NODATA": func(q query, r *dns.Msg) {
		r.Rcode, r.Answer, r.Ns = dns.RcodeSuccess, nil, []dns.RR{soa(parent(q.name))}
	},
	"address": func(q query, r *dns.Msg) {
		r.Rcode, r.Answer, r.Ns = dns.RcodeSuccess, []dns.RR{record(q.name+" A 192.0.2.99", ".")}, nil
	},
}

// TestUnsignedResponsesAreJudgedAlike has servers that answer all questions for addresses without signatures. The response is insecure if
// the name may be that of a delegation that is not signed: with opt-out, no record of its own denies it (RFC 5155 §12.2). The wildcard that
// the name matches is of no account. Otherwise the response is bogus.
func TestUnsignedResponsesAreJudgedAlike(t *testing.T) {
	l := newLab(t)
	root := l.addSigned(nil, &signedZone{algorithm: dns.ECDSAP256SHA256})
	type question struct {
		ask
		want string
	}
	var questions []question
	for _, top := range signedTops[:4] {
		for kind, say := range unsignedResponses {
			z := &signedZone{zone: &zone{name: strings.ToLower(kind) + "-" + top.name, addrs: l.fresh(1)}, algorithm: dns.ECDSAP256SHA256, denial: top.denial}
			z.say = func(q query, r *dns.Msg) {
				if q.qtype == dns.TypeA && dns.IsSubDomain("q."+z.name, q.name) {
					say(q, r)
				}
			}
			l.addSigned(root, z, "www.q A 192.0.2.1", "*.w.q A 192.0.2.3", "*.walias.q CNAME www.q", "d.q DNAME www.q")
			for _, name := range []string{"www", "x.w", "y.x.w", "x.walias", "x.d"} {
				want := "bogus"
				if top.denial == signer.NSEC3OptOut && strings.HasSuffix(name, ".w") {
					want = "insecure"
				}
				questions = append(questions, question{ask{name: name + ".q." + z.name, qtype: dns.TypeA, signed: true}, want})
			}
		}
	}
	l.open(t)
	all := validators(t, l, root.ds()[0].(*dns.DS))
	for _, q := range questions {
		isWrong := func(verdict string) bool { return verdict != q.want }
		found := findUntil(t, all, q.ask, func(found []string) bool { return !slices.ContainsFunc(found, isWrong) })
		for i, verdict := range found {
			if isWrong(verdict) {
				t.Errorf("%s finds that %s is %s; want %s", all[i].name, q.name, verdict, q.want)
			}
		}
	}
}
