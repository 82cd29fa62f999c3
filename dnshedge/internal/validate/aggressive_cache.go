package validate

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	maxCachedDenials    = 4096      // records of a zone that are kept
	maxCachedWildcards  = 256       // RRsets of its wildcards
	maxCachedWire       = 4 << 10   // bytes of one of them
	maxCachedTTL        = 3 * 3600  // seconds (RFC 8198 §5.4)
	cachedRRsetOverhead = 400       // bytes that one takes besides what it says, by an estimate
	unknownNegativeTTL  = 1<<31 - 1 // seconds, until there is an SOA record

	// minParametersAge is how long NSEC3 records with other parameters are not kept after the parameters have changed. The servers of a zone may disagree
	// about them: then each answer would empty what is kept.
	minParametersAge = time.Minute
)

// AggressiveCache keep what a zone has proven of its names, to answer other questions with it (RFC 8198): its NSEC and NSEC3 records, and what its wildcards have.
// What they say of a question is what Work.Denies and DeniesCloser would say of a response with the same records.
//
// They take only what is verified by trusted keys. Records that may hide delegations (opt-out), that are made of a wildcard, or that have more
// iterations than the policy allows, are not kept. Several goroutines may use them at once.
type AggressiveCache struct {
	zone     name
	maxBytes int64 // bytes

	publishedBytes atomic.Int64 // bytes, as the last Add has left them, for those who do not have mu

	mu                sync.RWMutex // guards the fields below
	nsecs             nsecSet
	nsec3s            nsec3Set
	parametersChanged time.Time // when the first record with the parameters of nsec3s came
	wildcards         map[wildcardKey]*cachedRRset
	soa               *cachedRRset
	negativeTTL       uint32 // seconds that a denial may be kept (RFC 2308 §5, RFC 9077)
	bytes             int64
}

// A wildcardKey is an RRset of a wildcard.
type wildcardKey struct {
	owner name
	typ   uint16
}

// cachedRRset is an RRset as RRset.Authentic has it.
type cachedRRset struct {
	wire    []byte // as a message
	added   time.Time
	expires time.Time
}

// NewAggressiveCache returns those of a zone, of which nothing is known yet. They take so many bytes at most, by an estimate.
func NewAggressiveCache(zone string, most int64) *AggressiveCache {
	n, ok := parseName(zone)
	if !ok {
		n = root
	}
	return &AggressiveCache{zone: n, maxBytes: most, nsecs: nsecSet{sorted: true}, nsec3s: nsec3Set{sorted: true}, wildcards: make(map[wildcardKey]*cachedRRset), negativeTTL: unknownNegativeTTL}
}

// Bytes returns how much memory is taken, by an estimate. It waits for nobody.
func (d *AggressiveCache) Bytes() int64 { return d.publishedBytes.Load() }

// CanDeny reports whether denials can be answered at now: there is an SOA record.
func (d *AggressiveCache) CanDeny(now time.Time) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.soa.remainingTTL(now) > 0
}

// Add keeps an RRset if it is of use and verified: what does not verify is not there.
func (d *AggressiveCache) Add(w *Validation, s *RRset, k *Keys, now time.Time) {
	if k.zone != d.zone || s.Class != dns.ClassINET {
		return
	}
	most, _ := w.Policy.iterationLimits()
	if maxNSEC3Iterations(s.Type, s.canonicalForm()) > most {
		return
	}
	v, err := w.Verify(s, k, now)
	if err != nil || v.Status != Secure {
		return
	}
	if proves := s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 || s.Type == dns.TypeSOA; proves == (v.Encloser >= 0) {
		return
	}
	e := newCachedRRset(s, k, v, now)
	if e == nil {
		return
	}
	c := s.canonicalForm()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case v.Encloser >= 0:
		d.addWildcard(c.owner, s.Type, v.Encloser, e)
	case s.Type == dns.TypeSOA:
		d.addSOA(c, s, v, e)
	case s.Type == dns.TypeNSEC && len(c.rdata) == 1:
		d.addNSEC(c, v, e)
	case s.Type == dns.TypeNSEC3 && len(c.rdata) == 1:
		d.addNSEC3(c, v, e)
	}
	for d.bytes > d.maxBytes && d.evictRandom() {
	}
	d.publishedBytes.Store(d.bytes)
}

// newCachedRRset returns a verified RRset as it is kept, or nil if that cannot be.
func newCachedRRset(s *RRset, k *Keys, v Verified, now time.Time) *cachedRRset {
	now = now.Round(0)
	e := &cachedRRset{added: now, expires: now.Add(time.Duration(min(v.TTL, maxCachedTTL)) * time.Second)}
	if v.Expires.Before(e.expires) {
		e.expires = v.Expires
	}
	m := dns.Msg{Answer: s.AuthenticRecords(k, v, v.TTL)}
	var err error
	if e.wire, err = m.Pack(); err != nil || len(e.wire) > maxCachedWire {
		return nil
	}
	again := new(dns.Msg) // data that package dns would not write as it came is not kept
	if err := again.Unpack(e.wire); err != nil {
		return nil
	}
	if b, err := again.Pack(); err != nil || !bytes.Equal(b, e.wire) {
		return nil
	}
	return e
}

func (e *cachedRRset) memorySize() int64 { return cachedRRsetOverhead + int64(len(e.wire)) }

// remainingTTL returns how many seconds the RRset may still be used. It is not from the future: then the clock was wrong.
func (e *cachedRRset) remainingTTL(now time.Time) uint32 {
	now = now.Round(0)
	if e == nil || now.Before(e.added) || !now.Before(e.expires) {
		return 0
	}
	return uint32(e.expires.Sub(now) / time.Second)
}

func (d *AggressiveCache) addSOA(c *canonical, s *RRset, v Verified, e *cachedRRset) {
	soa, ok := s.Records[0].(*dns.SOA)
	if !ok || c.owner != d.zone || len(c.rdata) != 1 {
		return
	}
	if d.soa != nil {
		d.bytes -= d.soa.memorySize()
	}
	d.soa, d.negativeTTL = e, min(v.TTL, soa.Minttl)
	d.bytes += e.memorySize()
}

// addWildcard keeps what the wildcard at an encloser has.
func (d *AggressiveCache) addWildcard(owner name, typ uint16, encloser int, e *cachedRRset) {
	switch typ {
	case dns.TypeNS, dns.TypeDS, dns.TypeDNAME, dns.TypeDNSKEY: // of which none is made (RFC 4592 §4)
		return
	}
	wild, ok := owner.ancestorWithLabels(encloser).wildcardName()
	if !ok {
		return
	}
	k := wildcardKey{wild, typ}
	d.removeWildcard(k)
	for other := range d.wildcards {
		if len(d.wildcards) < maxCachedWildcards {
			break
		}
		d.removeWildcard(other)
	}
	d.wildcards[k] = e
	d.bytes += e.memorySize() + int64(len(wild))
}

func (d *AggressiveCache) removeWildcard(k wildcardKey) {
	if e := d.wildcards[k]; e != nil {
		delete(d.wildcards, k)
		d.bytes -= e.memorySize() + int64(len(k.owner))
	}
}

// addNSEC keeps a record. What was known of names that it denies is not kept any longer.
func (d *AggressiveCache) addNSEC(c *canonical, v Verified, e *cachedRRset) {
	var one nsecSet
	one.addRecord(c.owner, slices.Clone(c.rdata[0]), d.zone, v)
	if len(one.records) == 0 {
		return
	}
	n := one.records[0]
	n.cached = e
	i, found := d.nsecs.searchOwner(n.owner)
	end := i
	for end < len(d.nsecs.records) && n.coversName(d.nsecs.records[end].owner, d.zone) {
		end++
	}
	if found {
		i--
	}
	d.removeNSECs(i, end)
	for len(d.nsecs.records) >= maxCachedDenials {
		j := rand.IntN(len(d.nsecs.records))
		d.removeNSECs(j, j+1)
	}
	i, _ = d.nsecs.searchOwner(n.owner)
	d.nsecs.records = slices.Insert(d.nsecs.records, i, n)
	d.bytes += n.memorySize()
}

func (n *nsec) memorySize() int64 {
	return n.cached.memorySize() + int64(len(n.owner)+len(n.next)+len(n.types))
}

func (d *AggressiveCache) removeNSECs(i, j int) {
	for _, n := range d.nsecs.records[i:j] {
		d.bytes -= n.memorySize()
	}
	d.nsecs.records = slices.Delete(d.nsecs.records, i, j)
}

// addNSEC3 keeps a record. The zone has one set of parameters: those of the last record, unless they have changed within keepParameters.
func (d *AggressiveCache) addNSEC3(c *canonical, v Verified, e *cachedRRset) {
	var one nsec3Set
	one.addRecord(c.owner, slices.Clone(c.rdata[0]), d.zone, v)
	if len(one.records) == 0 {
		return
	}
	r, all := one.records[0], &d.nsec3s
	r.cached = e
	if other := all.salt != one.salt || all.iterations != one.iterations; other || len(all.records) == 0 {
		if age := e.added.Sub(d.parametersChanged); other && len(all.records) > 0 && age >= 0 && age < minParametersAge {
			return
		}
		d.removeNSEC3s(0, len(all.records))
		all.salt, all.iterations, d.parametersChanged = one.salt, one.iterations, e.added
	}
	i, found := all.searchOwner(r.owner)
	if found {
		d.removeNSEC3s(i-1, i)
	}
	if r.optOut {
		return
	}
	for len(all.records) >= maxCachedDenials {
		j := rand.IntN(len(all.records))
		d.removeNSEC3s(j, j+1)
	}
	i, _ = all.searchOwner(r.owner)
	all.records = slices.Insert(all.records, i, r)
	d.bytes += r.memorySize()
}

func (r *nsec3) memorySize() int64 { return r.cached.memorySize() + int64(len(r.types)) }

func (d *AggressiveCache) removeNSEC3s(i, j int) {
	for _, r := range d.nsec3s.records[i:j] {
		d.bytes -= r.memorySize()
	}
	d.nsec3s.records = slices.Delete(d.nsec3s.records, i, j)
}

// evictRandom drops something, taken at random of the kind of which there is most. It reports false if there is nothing.
func (d *AggressiveCache) evictRandom() bool {
	a, b, c := len(d.nsecs.records), len(d.nsec3s.records), len(d.wildcards)
	switch most := max(a, b, c); {
	case most == 0 && d.soa == nil:
		return false
	case most == 0:
		d.bytes -= d.soa.memorySize()
		d.soa = nil
	case a == most:
		i := rand.IntN(a)
		d.removeNSECs(i, i+1)
	case b == most:
		i := rand.IntN(b)
		d.removeNSEC3s(i, i+1)
	default:
		for k := range d.wildcards {
			d.removeWildcard(k)
			break
		}
	}
	return true
}

// A SynthesizedAnswer is an answer that is made of what is kept. It is secure.
type SynthesizedAnswer struct {
	Kind              DenialKind // Nothing: there are records, or an alias
	Answer, Authority []dns.RR   // the caller's, with the TTLs that are left
	TTL               uint32     // seconds that all may be kept
}

// Synthesize answers a question at now. It reports false if nothing is known.
func (d *AggressiveCache) Synthesize(w *Validation, qname string, qtype uint16, now time.Time) (SynthesizedAnswer, bool) {
	q, ok := parseName(qname)
	if !ok || !q.isWithin(d.zone) || qtype == dns.TypeRRSIG || qtype == dns.TypeDS && q == d.zone && q != root {
		return SynthesizedAnswer{}, false
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.soa.remainingTTL(now) > 0 {
		f := d.findProof(w, func(n nsecSet) proofResult { return n.proveDenial(q, qtype, d.zone) }, func(n *nsec3Set) proofResult { return n.proveDenial(q, qtype, d.zone) })
		if k, ok := d.synthesizeDenial(f, now); ok {
			return k, true
		}
	}
	return d.synthesizeWildcard(w, q, qtype, now)
}

// findProof asks what is kept of either kind.
func (d *AggressiveCache) findProof(w *Validation, byNSEC func(nsecSet) proofResult, byNSEC3 func(*nsec3Set) proofResult) proofResult {
	f := byNSEC(d.nsecs)
	if f.kind == Unproven && len(d.nsec3s.records) > 0 {
		n := d.nsec3s
		n.work, n.onlySpare = w, true
		if f = byNSEC3(&n); n.limit != "" {
			return proofResult{}
		}
	}
	return f
}

// synthesizeDenial returns the answer that something is not there.
func (d *AggressiveCache) synthesizeDenial(f proofResult, now time.Time) (SynthesizedAnswer, bool) {
	k := SynthesizedAnswer{Kind: f.kind, TTL: d.soa.remainingTTL(now)}
	if f.kind == Unproven || f.optOut || !d.appendProof(&k, f, now) {
		return SynthesizedAnswer{}, false
	}
	soa := d.soa.unpackRecords("", k.TTL)
	k.Authority = append(soa, k.Authority...)
	return k, true
}

// proof appends the evidence to the authority of an answer, and limits its TTL. It reports false if some is too old.
func (d *AggressiveCache) appendProof(k *SynthesizedAnswer, f proofResult, now time.Time) bool {
	var used []*cachedRRset
	for _, e := range f.used {
		if slices.Contains(used, e.cached) {
			continue
		}
		used = append(used, e.cached)
		left, passed := e.cached.remainingTTL(now), now.Round(0).Sub(e.cached.added)
		minimum := time.Duration(d.negativeTTL)*time.Second - passed
		if left == 0 || minimum < time.Second {
			return false
		}
		k.TTL = min(k.TTL, left, uint32(minimum/time.Second))
		k.Authority = append(k.Authority, e.cached.unpackRecords("", left)...)
	}
	return true
}

// unpackRecords returns the RRset, with its signatures. Those of a wildcard get the name that they are asked for.
func (e *cachedRRset) unpackRecords(owner string, ttl uint32) []dns.RR {
	m := new(dns.Msg)
	if err := m.Unpack(e.wire); err != nil {
		return nil // keep has done the same
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Ttl = ttl; owner != "" {
			h.Name = owner
		}
	}
	return m.Answer
}

// synthesizeWildcard makes the answer of a wildcard, if it is kept what the wildcard has and that there is no closer name.
func (d *AggressiveCache) synthesizeWildcard(w *Validation, q name, qtype uint16, now time.Time) (SynthesizedAnswer, bool) {
	switch qtype {
	case dns.TypeANY, dns.TypeDS, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeSIG, dns.TypeKEY, dns.TypeNXT: // what they say of aliases is their own matter
		return SynthesizedAnswer{}, false
	}
	if len(d.wildcards) == 0 || q.isWildcard() {
		return SynthesizedAnswer{}, false
	}
	for a := q; a != d.zone; {
		a = a.parent()
		wild, ok := a.wildcardName()
		if !ok {
			continue
		}
		e := d.wildcards[wildcardKey{wild, qtype}]
		if e.remainingTTL(now) == 0 {
			e = d.wildcards[wildcardKey{wild, dns.TypeCNAME}]
		}
		left := e.remainingTTL(now)
		if left == 0 {
			continue
		}
		f := d.findProof(w, func(n nsecSet) proofResult { return n.proveNoCloserName(q, a.labelCount(), d.zone) }, func(n *nsec3Set) proofResult { return n.proveNoCloserName(q, a.labelCount()) })
		k := SynthesizedAnswer{TTL: left}
		if f.kind != NoCloserName || f.optOut || !d.appendProof(&k, f, now) {
			continue
		}
		k.Answer = e.unpackRecords(q.String(), k.TTL)
		return k, len(k.Answer) > 0
	}
	return SynthesizedAnswer{}, false
}
