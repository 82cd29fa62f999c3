package dnssec_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/signer"
)

// rtt is how long an upstream takes to answer.
const rtt = 30 * time.Millisecond

// zone is a zone of a world. Its names are absolute and in lower case.
type zone struct {
	name      string
	unsigned  bool
	denial    signer.Denial
	hashing   signer.NSEC3Params
	form      signer.SignatureOptions // of signatures, but for those of keys
	algorithm uint8
	key       *signer.Key
	rolled    *signer.Key // the key that the zone above vouches for; nil: key
	sets      map[string]map[uint16][]dns.RR
	chain     *signer.Chain
}

// world is what a resolver finds when it asks for a name.
type world struct {
	t     *testing.T
	zones map[string]*zone
}

// newWorld makes zones of lines "zone. [word...]" and, indented, records. Words are unsigned, nsec3, optout, expired, forged, iterations.
func newWorld(t *testing.T, text string) *world {
	w := &world{t: t, zones: make(map[string]*zone)}
	var z *zone
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if line[0] == ' ' {
			owner := strings.TrimSuffix(f[0]+"."+strings.TrimPrefix(z.name, "."), "@."+z.name)
			z.put(record(t, cmp.Or(owner, z.name)+" 300 IN "+strings.Join(f[1:], " ")))
			continue
		}
		z = &zone{name: f[0], sets: make(map[string]map[uint16][]dns.RR), algorithm: dns.ED25519}
		for _, word := range f[1:] {
			switch word {
			case "unsigned":
				z.unsigned = true
			case "nsec3":
				z.denial = signer.NSEC3
			case "optout":
				z.denial = signer.NSEC3OptOut
			case "iterations":
				z.denial, z.hashing.Iterations = signer.NSEC3, 100
			case "expired":
				z.form = signer.ExpiredSignature()
			case "forged":
				z.form.Forged = true
			default:
				t.Fatal(word)
			}
		}
		z.put(record(t, z.name+" 300 IN SOA ns. admin. 1 3600 600 86400 300"))
		w.zones[z.name] = z
	}
	w.sign()
	return w
}

func record(t *testing.T, text string) dns.RR {
	rr, err := dns.NewRR(text)
	require.NoError(t, err, text)
	return rr
}

func (z *zone) put(rr dns.RR) {
	h := rr.Header()
	if z.sets[h.Name] == nil {
		z.sets[h.Name] = make(map[uint16][]dns.RR)
	}
	z.sets[h.Name][h.Rrtype] = append(z.sets[h.Name][h.Rrtype], rr)
}

// sign makes the keys of all zones, and what proves what they do not have.
func (w *world) sign() {
	for _, z := range w.zones {
		if z.key == nil && !z.unsigned {
			z.key = signer.NewKey(z.name, signer.KSK, z.algorithm, "1")
			z.put(z.key.DNSKEY)
		}
	}
	for _, z := range w.zones {
		if above := w.above(z.name); above != nil {
			delete(above.sets, z.name)
			above.put(record(w.t, z.name+" 300 IN NS ns.example."))
			if !z.unsigned {
				above.put(z.ds())
			}
		}
	}
	for _, z := range w.zones {
		types := make(map[string][]uint16)
		for name, sets := range z.sets {
			for t := range sets {
				if t != dns.TypeDNSKEY {
					types[name] = append(types[name], t)
				}
			}
		}
		z.chain = signer.NewChain(z.name, z.denial, z.hashing, 300, types)
	}
}

func (z *zone) ds() *dns.DS {
	key := z.key
	if z.rolled != nil {
		key = z.rolled
	}
	ds := key.ToDS(dns.SHA256)
	ds.Hdr.Ttl = 300
	return ds
}

// above returns the zone that delegates another one, or nil.
func (w *world) above(name string) *zone {
	if name == "." {
		return nil
	}
	return w.find(parent(name))
}

func parent(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// find returns the zone that a name is in.
func (w *world) find(name string) *zone {
	for ; ; name = parent(name) {
		if z := w.zones[name]; z != nil || name == "." {
			return z
		}
	}
}

// signed returns a set with its signature.
func (z *zone) signed(set []dns.RR) []dns.RR {
	if z.unsigned || len(set) == 0 {
		return set
	}
	form := z.form
	if set[0].Header().Rrtype == dns.TypeDNSKEY {
		form = signer.SignatureOptions{}
	}
	return append(slices.Clone(set), z.key.Sign(set, form))
}

// resolve answers as a resolver does that asks with DO.
func (w *world) resolve(name string, qtype uint16) *dns.Msg {
	r := new(dns.Msg)
	for range 20 {
		z := w.find(name)
		if qtype == dns.TypeDS && name != "." {
			z = w.find(parent(name))
		}
		next := w.answer(z, r, name, qtype)
		if next == "" {
			break
		}
		name = next
	}
	return r
}

// answer adds what a zone says of a name, and returns what that is an alias of.
func (w *world) answer(z *zone, r *dns.Msg, name string, qtype uint16) (next string) {
	deny := func(all []dns.RR) {
		for _, rr := range all {
			if !z.unsigned {
				r.Ns = append(r.Ns, z.signed([]dns.RR{rr})...)
			}
		}
	}
	exists := func(name string) bool {
		return z.sets[name] != nil || slices.ContainsFunc(slices.Collect(keys(z.sets)), func(n string) bool { return dns.IsSubDomain(name, n) })
	}
	for above := parent(name); dns.IsSubDomain(z.name, above) && above != z.name; above = parent(above) {
		if set := z.sets[above][dns.TypeDNAME]; set != nil {
			r.Answer = append(r.Answer, z.signed(set)...)
			next = strings.TrimSuffix(name, above) + set[0].(*dns.DNAME).Target
			r.Answer = append(r.Answer, record(w.t, name+" 300 IN CNAME "+next))
			if qtype == dns.TypeCNAME {
				return ""
			}
			return next
		}
	}
	owner, wild := name, false
	if !exists(name) {
		above := parent(name)
		for !exists(above) {
			above = parent(above)
		}
		owner, wild = "*."+strings.TrimPrefix(above, "."), true
	}
	sets := z.sets[owner]
	set := sets[qtype]
	if set == nil && sets[dns.TypeCNAME] != nil {
		set = sets[dns.TypeCNAME]
		next = set[0].(*dns.CNAME).Target
	}
	switch {
	case set != nil:
		all := z.signed(set)
		if wild {
			for i, rr := range all {
				all[i] = dns.Copy(rr)
				all[i].Header().Name = name
			}
			deny(z.chain.ProveNoCloserName(name))
		}
		r.Answer = append(r.Answer, all...)
		return next
	case wild && sets == nil:
		r.Rcode = dns.RcodeNameError
		deny(append(slices.Clone(z.sets[z.name][dns.TypeSOA]), z.chain.ProveNoName(name)...))
	case wild:
		deny(append(slices.Clone(z.sets[z.name][dns.TypeSOA]), z.chain.ProveNoWildcardData(name)...))
	default:
		deny(append(slices.Clone(z.sets[z.name][dns.TypeSOA]), z.chain.ProveNoData(name)...))
	}
	if z.unsigned {
		r.Ns = append(r.Ns, z.sets[z.name][dns.TypeSOA]...)
	}
	return ""
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// anchor returns the key of the root.
func (w *world) anchor() dns.RR { return w.zones["."].key.ToDS(dns.SHA256) }

// twist changes a response, or returns nil for an error.
type twist func(q, r *dns.Msg) *dns.Msg

// upstreams are resolvers, of which the first is asked unless there is an address. Each has a twist; nil: it is right.
type upstreams struct {
	world  *world
	order  []string // addresses; empty: none are told
	silent string   // the address of one that does not answer

	mu     sync.Mutex // guards the fields below
	twists []twist
	log    []string
}

// set sets the twists.
func (u *upstreams) set(twists ...twist) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.twists = twists
}

func (u *upstreams) Addresses(string) []string { return u.order }

func (u *upstreams) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	i := max(0, slices.Index(u.order, address))
	u.mu.Lock()
	entry := fmt.Sprint(m.Question[0].Name, " ", dns.Type(m.Question[0].Qtype))
	if address != "" {
		entry += " @" + address
	}
	if !m.CheckingDisabled {
		entry += " -CD"
	}
	u.log = append(u.log, entry)
	var change twist
	if i < len(u.twists) {
		change = u.twists[i]
	}
	u.mu.Unlock()
	if address != "" && address == u.silent {
		<-ctx.Done()
		return nil, 0, context.Cause(ctx)
	}
	select {
	case <-time.After(rtt):
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
	ask := m.Question[0]
	r := u.world.resolve(strings.ToLower(ask.Name), ask.Qtype)
	r.SetRcode(m, r.Rcode)
	r.RecursionAvailable = true
	if opt := m.IsEdns0(); opt != nil {
		r.SetEdns0(1232, opt.Do())
	}
	if change != nil {
		if r = change(m, r); r == nil {
			return nil, rtt, errors.New("upstream is down")
		}
	}
	return r, rtt, nil
}

// asked returns what the upstreams were asked since it was called last.
func (u *upstreams) asked() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	log := u.log
	u.log = nil
	return log
}

// bubble runs f in fake time, years after signatures begin.
func bubble(t *testing.T, text string, f func(t *testing.T, u *upstreams, v *dnssec.Validator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		u := &upstreams{world: newWorld(t, text)}
		v := &dnssec.Validator{Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{u.world.anchor()}}}
		defer v.Close()
		f(t, u, v)
	})
}

// ask asks as a caller with DO does.
func ask(v *dnssec.Validator, text string) (*dns.Msg, error) {
	name, qtype, _ := strings.Cut(text, " ")
	m := new(dns.Msg).SetQuestion(name, dns.StringToType[qtype])
	m.SetEdns0(1232, true)
	r, _, err := v.ExchangeContext(context.Background(), m, "")
	return r, err
}

// security returns what the answer to a question is worth.
func security(t *testing.T, v *dnssec.Validator, text string) string {
	t.Helper()
	r, err := ask(v, text)
	require.NoError(t, err, text)
	code := ""
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				code = fmt.Sprint(" ", e.InfoCode)
			}
		}
	}
	worth := "insecure"
	switch {
	case r.Rcode == dns.RcodeServerFailure:
		return "bogus" + code
	case r.AuthenticatedData:
		worth = "secure"
	}
	if r.Rcode != dns.RcodeSuccess {
		code = " " + dns.RcodeToString[r.Rcode] + code
	}
	return worth + code
}

// Twists.

// without leaves out records of some types, and signatures of them.
func without(types ...uint16) twist {
	return func(_, r *dns.Msg) *dns.Msg {
		for _, rrs := range []*[]dns.RR{&r.Answer, &r.Ns} {
			*rrs = slices.DeleteFunc(slices.Clone(*rrs), func(rr dns.RR) bool {
				sig, ok := rr.(*dns.RRSIG)
				return slices.Contains(types, rr.Header().Rrtype) || ok && slices.Contains(types, sig.TypeCovered)
			})
		}
		return r
	}
}

// stripped is an upstream that knows nothing of DNSSEC.
var stripped = without(dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeDS, dns.TypeDNSKEY)
