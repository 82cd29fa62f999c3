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

// Limits of an AggressiveCache.
const (
	maxCachedDenials    = 4096      // NSEC records of a zone, and also its NSEC3 records
	maxCachedWildcards  = 256       // wildcard RRsets of a zone
	maxCachedWire       = 4 << 10   // size of an RRset in wire format, in bytes
	maxCachedTTL        = 3 * 3600  // seconds (RFC 8198 §5.4)
	cachedRRsetOverhead = 400       // estimated memory of an RRset in addition to its wire format, in bytes
	unknownNegativeTTL  = 1<<31 - 1 // negativeTTL in seconds while no SOA record was cached

	// minParametersAge is the time after a change of the NSEC3 parameters in which records with other parameters are
	// rejected. If the servers of a zone disagree about the parameters, each response would otherwise empty the cache.
	minParametersAge = time.Minute
)

// An AggressiveCache holds verified NSEC, NSEC3, SOA and wildcard records of one zone, and synthesizes answers from
// them (RFC 8198). It is safe for concurrent use.
//
// Its conclusions are those that VerifyDenial and VerifyNoCloserMatch would draw from a response with these records.
//
// It accepts only records that were verified with trusted keys. It rejects NSEC3 records with opt-out or with more
// iterations than the policy allows. It also rejects NSEC, NSEC3 and SOA records that were expanded from a wildcard.
type AggressiveCache struct {
	zone     name
	maxBytes int64 // limit of bytes

	publishedBytes atomic.Int64 // copy of bytes after the last Add, which is read without mu

	mu                sync.RWMutex // guards the following fields
	nsecs             nsecSet
	nsec3s            nsec3Set
	parametersChanged time.Time // time at which the first record with the parameters of nsec3s was cached
	wildcards         map[wildcardKey]*cachedRRset
	soa               *cachedRRset
	negativeTTL       uint32 // maximum time in seconds for which a denial is used (RFC 2308 §5, RFC 9077)
	bytes             int64  // estimated memory, in bytes
}

// A wildcardKey is the map key of a cached wildcard RRset: its owner name, for example *.example.org, and its type.
type wildcardKey struct {
	owner name
	typ   uint16
}

// A cachedRRset is a verified RRset with its signatures, in the form that RRset.AuthenticRecords returns. It is
// immutable.
type cachedRRset struct {
	wire    []byte    // a DNS message whose answer section is the RRset
	added   time.Time // time at which the RRset was cached
	expires time.Time // the RRset must not be used from this time on
}

// NewAggressiveCache returns an empty cache for a zone. maxBytes is the limit of its estimated memory, in bytes.
func NewAggressiveCache(zone string, maxBytes int64) *AggressiveCache {
	n, ok := parseName(zone)
	if !ok {
		n = root
	}
	return &AggressiveCache{zone: n, maxBytes: maxBytes, nsecs: nsecSet{sorted: true}, nsec3s: nsec3Set{sorted: true}, wildcards: make(map[wildcardKey]*cachedRRset), negativeTTL: unknownNegativeTTL}
}

// MemoryBytes returns the estimated memory of the cache, in bytes. It takes no lock.
func (c *AggressiveCache) MemoryBytes() int64 { return c.publishedBytes.Load() }

// HasCurrentSOA reports whether the cache has an SOA record of the zone that has not expired at the time now. Without
// it, no negative answer can be synthesized.
func (c *AggressiveCache) HasCurrentSOA(now time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.soa.remainingTTL(now) > 0
}

// Add verifies the RRset s with the keys k, and caches it if answers can be synthesized from it. It does nothing if the
// RRset is invalid or useless. w limits the cost of the verification.
func (c *AggressiveCache) Add(w *Validation, s *RRset, k *Keys, now time.Time) {
	if k.zone != c.zone || s.Class != dns.ClassINET {
		return
	}
	most, _ := w.Policy.nsec3IterationLimits()
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
	canonical := s.canonicalForm()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case v.Encloser >= 0:
		c.addWildcard(canonical.owner, s.Type, v.Encloser, e)
	case s.Type == dns.TypeSOA:
		c.addSOA(canonical, s, v, e)
	case s.Type == dns.TypeNSEC && len(canonical.rdata) == 1:
		c.addNSEC(canonical, v, e)
	case s.Type == dns.TypeNSEC3 && len(canonical.rdata) == 1:
		c.addNSEC3(canonical, v, e)
	}
	for c.bytes > c.maxBytes && c.evictRandom() {
	}
	c.publishedBytes.Store(c.bytes)
}

// newCachedRRset converts an RRset to the form in which it is cached. v is the result of its verification with the keys
// k. It returns nil if the RRset has more than maxCachedWire bytes, or if package dns cannot restore it exactly from
// the wire format.
func newCachedRRset(s *RRset, k *Keys, v Verification, now time.Time) *cachedRRset {
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
	again := new(dns.Msg) // package dns would not write this data as it was read
	if err := again.Unpack(e.wire); err != nil {
		return nil
	}
	if b, err := again.Pack(); err != nil || !bytes.Equal(b, e.wire) {
		return nil
	}
	return e
}

// memorySize returns the estimated memory of the RRset, in bytes.
func (c *cachedRRset) memorySize() int64 { return cachedRRsetOverhead + int64(len(c.wire)) }

// remainingTTL returns the number of seconds from now until the RRset expires. It is 0 if the RRset is nil or has
// expired. It is also 0 if the RRset was cached at a time after now, because the clock was set back.
func (c *cachedRRset) remainingTTL(now time.Time) uint32 {
	now = now.Round(0)
	if c == nil || now.Before(c.added) || !now.Before(c.expires) {
		return 0
	}
	return uint32(c.expires.Sub(now) / time.Second)
}

// addSOA caches the SOA RRset s, whose canonical form is given, and sets the maximum TTL of synthesized negative
// answers (negativeTTL). v is the result of its verification, and e is the cached form. The caller must hold mu.
func (c *AggressiveCache) addSOA(canonical *canonicalRRset, s *RRset, v Verification, e *cachedRRset) {
	soa, ok := s.Records[0].(*dns.SOA)
	if !ok || canonical.owner != c.zone || len(canonical.rdata) != 1 {
		return
	}
	if c.soa != nil {
		c.bytes -= c.soa.memorySize()
	}
	c.soa, c.negativeTTL = e, min(v.TTL, soa.Minttl)
	c.bytes += e.memorySize()
}

// addWildcard caches the RRset e, which was expanded from a wildcard, under the owner name of the wildcard. The caller
// must hold mu.
//
// owner is the expanded name. encloser is the number of labels of the closest encloser, which is the parent of the
// wildcard.
func (c *AggressiveCache) addWildcard(owner name, typ uint16, encloser int, e *cachedRRset) {
	switch typ {
	case dns.TypeNS, dns.TypeDS, dns.TypeDNAME, dns.TypeDNSKEY: // wildcards do not synthesize them (RFC 4592 §4)
		return
	}
	wild, ok := owner.trimToLabels(encloser).wildcardName()
	if !ok {
		return
	}
	k := wildcardKey{wild, typ}
	c.removeWildcard(k)
	for other := range c.wildcards {
		if len(c.wildcards) < maxCachedWildcards {
			break
		}
		c.removeWildcard(other)
	}
	c.wildcards[k] = e
	c.bytes += e.memorySize() + int64(len(wild))
}

// removeWildcard removes the RRset of a wildcard, if it is cached. The caller must hold mu.
func (c *AggressiveCache) removeWildcard(k wildcardKey) {
	if e := c.wildcards[k]; e != nil {
		delete(c.wildcards, k)
		c.bytes -= e.memorySize() + int64(len(k.owner))
	}
}

// addNSEC caches an NSEC record with the given canonical form. v is the result of its verification, and e is the cached
// form. The caller must hold mu.
//
// It removes cached NSEC records of names that do not exist according to the new record.
func (c *AggressiveCache) addNSEC(canonical *canonicalRRset, v Verification, e *cachedRRset) {
	var one nsecSet
	one.addRecord(canonical.owner, slices.Clone(canonical.rdata[0]), c.zone, v)
	if len(one.records) == 0 {
		return
	}
	n := one.records[0]
	n.cached = e
	i, found := c.nsecs.searchOwnerName(n.owner)
	end := i
	for end < len(c.nsecs.records) && n.coversName(c.nsecs.records[end].owner, c.zone) {
		end++
	}
	if found {
		i--
	}
	c.removeNSECs(i, end)
	for len(c.nsecs.records) >= maxCachedDenials {
		j := rand.IntN(len(c.nsecs.records))
		c.removeNSECs(j, j+1)
	}
	i, _ = c.nsecs.searchOwnerName(n.owner)
	c.nsecs.records = slices.Insert(c.nsecs.records, i, n)
	c.bytes += n.memorySize()
}

// memorySize returns the estimated memory of the cached record, in bytes.
func (n *nsec) memorySize() int64 {
	return n.cached.memorySize() + int64(len(n.owner)+len(n.next)+len(n.types))
}

// removeNSECs removes the cached NSEC records with indexes from i to j-1, and subtracts their memory from that of the
// cache. The caller must hold mu.
func (c *AggressiveCache) removeNSECs(i, j int) {
	for _, n := range c.nsecs.records[i:j] {
		c.bytes -= n.memorySize()
	}
	c.nsecs.records = slices.Delete(c.nsecs.records, i, j)
}

// addNSEC3 caches an NSEC3 record with the given canonical form. v is the result of its verification, and e is the
// cached form. The caller must hold mu.
//
// All cached NSEC3 records have the same parameters. A record with other parameters replaces all of them. It is
// rejected if the parameters changed less than minParametersAge ago.
func (c *AggressiveCache) addNSEC3(canonical *canonicalRRset, v Verification, e *cachedRRset) {
	var one nsec3Set
	one.addRecord(canonical.owner, slices.Clone(canonical.rdata[0]), c.zone, v)
	if len(one.records) == 0 {
		return
	}
	r, all := one.records[0], &c.nsec3s
	r.cached = e
	if other := all.salt != one.salt || all.iterations != one.iterations; other || len(all.records) == 0 {
		if age := e.added.Sub(c.parametersChanged); other && len(all.records) > 0 && age >= 0 && age < minParametersAge {
			return
		}
		c.removeNSEC3s(0, len(all.records))
		all.salt, all.iterations, c.parametersChanged = one.salt, one.iterations, e.added
	}
	i, found := all.searchOwnerHash(r.owner)
	if found {
		c.removeNSEC3s(i-1, i)
	}
	if r.optOut {
		return
	}
	for len(all.records) >= maxCachedDenials {
		j := rand.IntN(len(all.records))
		c.removeNSEC3s(j, j+1)
	}
	i, _ = all.searchOwnerHash(r.owner)
	all.records = slices.Insert(all.records, i, r)
	c.bytes += r.memorySize()
}

// memorySize returns the estimated memory of the cached record, in bytes.
func (n *nsec3) memorySize() int64 { return n.cached.memorySize() + int64(len(n.types)) }

// removeNSEC3s removes the cached NSEC3 records with indexes from i to j-1, and subtracts their memory from that of the
// cache. The caller must hold mu.
func (c *AggressiveCache) removeNSEC3s(i, j int) {
	for _, r := range c.nsec3s.records[i:j] {
		c.bytes -= r.memorySize()
	}
	c.nsec3s.records = slices.Delete(c.nsec3s.records, i, j)
}

// evictRandom removes a random record of the kind that has the most records: NSEC, NSEC3 or wildcard. If only the SOA
// record is left, it removes the SOA record. It returns false if the cache is empty. The caller must hold mu.
func (c *AggressiveCache) evictRandom() bool {
	nsecs, nsec3s, wildcards := len(c.nsecs.records), len(c.nsec3s.records), len(c.wildcards)
	switch most := max(nsecs, nsec3s, wildcards); {
	case most == 0 && c.soa == nil:
		return false
	case most == 0:
		c.bytes -= c.soa.memorySize()
		c.soa = nil
	case nsecs == most:
		i := rand.IntN(nsecs)
		c.removeNSECs(i, i+1)
	case nsec3s == most:
		i := rand.IntN(nsec3s)
		c.removeNSEC3s(i, i+1)
	default:
		for k := range c.wildcards {
			c.removeWildcard(k)
			break
		}
	}
	return true
}

// A SynthesizedAnswer is an answer made from cached records, without a query (RFC 8198). Its security status is Secure.
type SynthesizedAnswer struct {
	Kind              DenialKind // kind of a negative answer; Unproven if the answer is positive, with records or an alias
	Answer, Authority []dns.RR   // copies of records, with the remaining TTLs
	TTL               uint32     // seconds for which the answer may be cached
}

// Synthesize answers the question for qname and qtype at the time now, from the cached records. w limits the cost of
// NSEC3 hashes. The boolean is false if the records do not determine the answer.
func (c *AggressiveCache) Synthesize(w *Validation, qname string, qtype uint16, now time.Time) (SynthesizedAnswer, bool) {
	q, ok := parseName(qname)
	if !ok || !q.isWithin(c.zone) || qtype == dns.TypeRRSIG || qtype == dns.TypeDS && q == c.zone && q != root {
		return SynthesizedAnswer{}, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.soa.remainingTTL(now) > 0 {
		f := c.evaluateCache(w, func(n nsecSet) proofResult { return n.proveDenial(q, qtype, c.zone) }, func(n *nsec3Set) proofResult { return n.proveDenial(q, qtype, c.zone) })
		if k, ok := c.synthesizeDenial(f, now); ok {
			return k, true
		}
	}
	return c.synthesizeWildcard(w, q, qtype, now)
}

// evaluateCache draws a conclusion from the cached NSEC records, with the function byNSEC. If they prove nothing, it
// uses the NSEC3 records and byNSEC3. w limits the cost of NSEC3 hashes. If that limit is reached, the result is
// Unproven. The caller must hold mu.
func (c *AggressiveCache) evaluateCache(w *Validation, byNSEC func(nsecSet) proofResult, byNSEC3 func(*nsec3Set) proofResult) proofResult {
	f := byNSEC(c.nsecs)
	if f.kind == Unproven && len(c.nsec3s.records) > 0 {
		n := c.nsec3s
		n.work, n.usesSpareBlocks = w, true
		if f = byNSEC3(&n); n.limit != "" {
			return proofResult{}
		}
	}
	return f
}

// synthesizeDenial returns the negative answer that follows from f, a conclusion from cached records. The boolean is
// false if f proves nothing, has opt-out or uses an expired record. The caller must hold mu.
func (c *AggressiveCache) synthesizeDenial(f proofResult, now time.Time) (SynthesizedAnswer, bool) {
	k := SynthesizedAnswer{Kind: f.kind, TTL: c.soa.remainingTTL(now)}
	if f.kind == Unproven || f.optOut || !c.appendProof(&k, f, now) {
		return SynthesizedAnswer{}, false
	}
	soa := c.soa.unpackRecords("", k.TTL)
	k.Authority = append(soa, k.Authority...)
	return k, true
}

// appendProof adds the records that f uses, a proof of absence, to the authority section of k, the synthesized answer.
// It lowers the TTL of k to the time until the records expire. It returns false if a record has expired. The caller
// must hold mu.
func (c *AggressiveCache) appendProof(k *SynthesizedAnswer, f proofResult, now time.Time) bool {
	var used []*cachedRRset
	for _, e := range f.usedRecords {
		if slices.Contains(used, e.cached) {
			continue
		}
		used = append(used, e.cached)
		left, passed := e.cached.remainingTTL(now), now.Round(0).Sub(e.cached.added)
		minimum := time.Duration(c.negativeTTL)*time.Second - passed
		if left == 0 || minimum < time.Second {
			return false
		}
		k.TTL = min(k.TTL, left, uint32(minimum/time.Second))
		k.Authority = append(k.Authority, e.cached.unpackRecords("", left)...)
	}
	return true
}

// unpackRecords returns new copies of the records and signatures, with the given TTL in seconds. If owner is not empty,
// the copies get this owner name, as in the expansion of a wildcard.
func (c *cachedRRset) unpackRecords(owner string, ttl uint32) []dns.RR {
	m := new(dns.Msg)
	if err := m.Unpack(c.wire); err != nil {
		return nil // unreachable: newCachedRRset has unpacked it
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Ttl = ttl; owner != "" {
			h.Name = owner
		}
	}
	return m.Answer
}

// synthesizeWildcard answers a question for q and qtype with the records of a cached wildcard, or with its CNAME
// record. The owner name of the records becomes q. The boolean is false if no wildcard applies, or if the cached
// records do not prove that there is no closer match. The caller must hold mu.
func (c *AggressiveCache) synthesizeWildcard(w *Validation, q name, qtype uint16, now time.Time) (SynthesizedAnswer, bool) {
	switch qtype {
	case dns.TypeANY, dns.TypeDS, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeSIG, dns.TypeKEY, dns.TypeNXT: // their rules for aliases differ
		return SynthesizedAnswer{}, false
	}
	if len(c.wildcards) == 0 || q.isWildcard() {
		return SynthesizedAnswer{}, false
	}
	for a := q; a != c.zone; {
		a = a.parent()
		wild, ok := a.wildcardName()
		if !ok {
			continue
		}
		e := c.wildcards[wildcardKey{wild, qtype}]
		if e.remainingTTL(now) == 0 {
			e = c.wildcards[wildcardKey{wild, dns.TypeCNAME}]
		}
		left := e.remainingTTL(now)
		if left == 0 {
			continue
		}
		f := c.evaluateCache(w, func(n nsecSet) proofResult { return n.proveNoCloserMatch(q, a.countLabels(), c.zone) }, func(n *nsec3Set) proofResult { return n.proveNoCloserMatch(q, a.countLabels()) })
		k := SynthesizedAnswer{TTL: left}
		if f.kind != NoCloserMatch || f.optOut || !c.appendProof(&k, f, now) {
			continue
		}
		k.Answer = e.unpackRecords(q.String(), k.TTL)
		return k, len(k.Answer) > 0
	}
	return SynthesizedAnswer{}, false
}
