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
	maxDenials   = 4096      // records of a zone that are kept
	maxWildcards = 256       // RRsets of its wildcards
	maxKeptWire  = 4 << 10   // bytes of one of them
	maxKeptTTL   = 3 * 3600  // seconds (RFC 8198 §5.4)
	keptSize     = 400       // bytes that one takes besides what it says, by an estimate
	noMinimum    = 1<<31 - 1 // seconds, until there is an SOA record

	// keepParameters is how long NSEC3 records with other parameters are not kept after the parameters have changed. The servers of a zone may disagree
	// about them: then each answer would empty what is kept.
	keepParameters = time.Minute
)

// Denials keep what a zone has proven of its names, to answer other questions with it (RFC 8198): its NSEC and NSEC3 records, and what its wildcards have.
// What they say of a question is what Work.Denies and DeniesCloser would say of a response with the same records.
//
// They take only what is verified by trusted keys. Records that may hide delegations (opt-out), that are made of a wildcard, or that have more
// iterations than the policy allows, are not kept. Several goroutines may use them at once.
type Denials struct {
	zone name
	most int64 // bytes

	size atomic.Int64 // bytes, as the last Add has left them, for those who do not have mu

	mu      sync.RWMutex // guards the fields below
	nsecs   nsecs
	nsec3s  nsec3s
	changed time.Time // when the first record with the parameters of nsec3s came
	wild    map[wildKey]*kept
	soa     *kept
	minimum uint32 // seconds that a denial may be kept (RFC 2308 §5, RFC 9077)
	bytes   int64
}

// A wildKey is an RRset of a wildcard.
type wildKey struct {
	owner name
	typ   uint16
}

// kept is an RRset as RRset.Authentic has it.
type kept struct {
	wire  []byte // as a message
	came  time.Time
	until time.Time
}

// NewDenials returns those of a zone, of which nothing is known yet. They take so many bytes at most, by an estimate.
func NewDenials(zone string, most int64) *Denials {
	n, ok := parseName(zone)
	if !ok {
		n = root
	}
	return &Denials{zone: n, most: most, nsecs: nsecs{sorted: true}, nsec3s: nsec3s{sorted: true}, wild: make(map[wildKey]*kept), minimum: noMinimum}
}

// Bytes returns how much memory is taken, by an estimate. It waits for nobody.
func (d *Denials) Bytes() int64 { return d.size.Load() }

// Opens reports whether denials can be answered at now: there is an SOA record.
func (d *Denials) Opens(now time.Time) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.soa.left(now) > 0
}

// Add keeps an RRset if it is of use and verified: what does not verify is not there.
func (d *Denials) Add(w *Work, s *RRset, k *Keys, now time.Time) {
	if k.zone != d.zone || s.Class != dns.ClassINET {
		return
	}
	most, _ := w.Policy.iterations()
	if nsec3Iterations(s.Type, s.form()) > most {
		return
	}
	v, err := w.Verify(s, k, now)
	if err != nil || v.Status != Secure {
		return
	}
	if proves := s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 || s.Type == dns.TypeSOA; proves == (v.Encloser >= 0) {
		return
	}
	e := keep(s, k, v, now)
	if e == nil {
		return
	}
	c := s.form()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case v.Encloser >= 0:
		d.addWild(c.owner, s.Type, v.Encloser, e)
	case s.Type == dns.TypeSOA:
		d.addSOA(c, s, v, e)
	case s.Type == dns.TypeNSEC && len(c.rdata) == 1:
		d.addNSEC(c, v, e)
	case s.Type == dns.TypeNSEC3 && len(c.rdata) == 1:
		d.addNSEC3(c, v, e)
	}
	for d.bytes > d.most && d.dropAny() {
	}
	d.size.Store(d.bytes)
}

// keep returns a verified RRset as it is kept, or nil if that cannot be.
func keep(s *RRset, k *Keys, v Verified, now time.Time) *kept {
	now = now.Round(0)
	e := &kept{came: now, until: now.Add(time.Duration(min(v.TTL, maxKeptTTL)) * time.Second)}
	if v.Expires.Before(e.until) {
		e.until = v.Expires
	}
	m := dns.Msg{Answer: s.Authentic(k, v, v.TTL)}
	var err error
	if e.wire, err = m.Pack(); err != nil || len(e.wire) > maxKeptWire {
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

func (e *kept) size() int64 { return keptSize + int64(len(e.wire)) }

// left returns how many seconds the RRset may still be used. It is not from the future: then the clock was wrong.
func (e *kept) left(now time.Time) uint32 {
	now = now.Round(0)
	if e == nil || now.Before(e.came) || !now.Before(e.until) {
		return 0
	}
	return uint32(e.until.Sub(now) / time.Second)
}

func (d *Denials) addSOA(c *canonical, s *RRset, v Verified, e *kept) {
	soa, ok := s.Records[0].(*dns.SOA)
	if !ok || c.owner != d.zone || len(c.rdata) != 1 {
		return
	}
	if d.soa != nil {
		d.bytes -= d.soa.size()
	}
	d.soa, d.minimum = e, min(v.TTL, soa.Minttl)
	d.bytes += e.size()
}

// addWild keeps what the wildcard at an encloser has.
func (d *Denials) addWild(owner name, typ uint16, encloser int, e *kept) {
	switch typ {
	case dns.TypeNS, dns.TypeDS, dns.TypeDNAME, dns.TypeDNSKEY: // of which none is made (RFC 4592 §4)
		return
	}
	wild, ok := owner.ancestor(encloser).wildcard()
	if !ok {
		return
	}
	k := wildKey{wild, typ}
	d.dropWild(k)
	for other := range d.wild {
		if len(d.wild) < maxWildcards {
			break
		}
		d.dropWild(other)
	}
	d.wild[k] = e
	d.bytes += e.size() + int64(len(wild))
}

func (d *Denials) dropWild(k wildKey) {
	if e := d.wild[k]; e != nil {
		delete(d.wild, k)
		d.bytes -= e.size() + int64(len(k.owner))
	}
}

// addNSEC keeps a record. What was known of names that it denies is not kept any longer.
func (d *Denials) addNSEC(c *canonical, v Verified, e *kept) {
	var one nsecs
	one.add(c.owner, slices.Clone(c.rdata[0]), d.zone, v)
	if len(one.records) == 0 {
		return
	}
	n := one.records[0]
	n.kept = e
	i, found := d.nsecs.search(n.owner)
	end := i
	for end < len(d.nsecs.records) && n.covers(d.nsecs.records[end].owner, d.zone) {
		end++
	}
	if found {
		i--
	}
	d.dropNSECs(i, end)
	for len(d.nsecs.records) >= maxDenials {
		j := rand.IntN(len(d.nsecs.records))
		d.dropNSECs(j, j+1)
	}
	i, _ = d.nsecs.search(n.owner)
	d.nsecs.records = slices.Insert(d.nsecs.records, i, n)
	d.bytes += n.size()
}

func (n *nsec) size() int64 {
	return n.kept.size() + int64(len(n.owner)+len(n.next)+len(n.types))
}

func (d *Denials) dropNSECs(i, j int) {
	for _, n := range d.nsecs.records[i:j] {
		d.bytes -= n.size()
	}
	d.nsecs.records = slices.Delete(d.nsecs.records, i, j)
}

// addNSEC3 keeps a record. The zone has one set of parameters: those of the last record, unless they have changed within keepParameters.
func (d *Denials) addNSEC3(c *canonical, v Verified, e *kept) {
	var one nsec3s
	one.add(c.owner, slices.Clone(c.rdata[0]), d.zone, v)
	if len(one.records) == 0 {
		return
	}
	r, all := one.records[0], &d.nsec3s
	r.kept = e
	if other := all.salt != one.salt || all.iterations != one.iterations; other || len(all.records) == 0 {
		if age := e.came.Sub(d.changed); other && len(all.records) > 0 && age >= 0 && age < keepParameters {
			return
		}
		d.dropNSEC3s(0, len(all.records))
		all.salt, all.iterations, d.changed = one.salt, one.iterations, e.came
	}
	i, found := all.search(r.owner)
	if found {
		d.dropNSEC3s(i-1, i)
	}
	if r.optOut {
		return
	}
	for len(all.records) >= maxDenials {
		j := rand.IntN(len(all.records))
		d.dropNSEC3s(j, j+1)
	}
	i, _ = all.search(r.owner)
	all.records = slices.Insert(all.records, i, r)
	d.bytes += r.size()
}

func (r *nsec3) size() int64 { return r.kept.size() + int64(len(r.types)) }

func (d *Denials) dropNSEC3s(i, j int) {
	for _, r := range d.nsec3s.records[i:j] {
		d.bytes -= r.size()
	}
	d.nsec3s.records = slices.Delete(d.nsec3s.records, i, j)
}

// dropAny drops something, taken at random of the kind of which there is most. It reports false if there is nothing.
func (d *Denials) dropAny() bool {
	a, b, c := len(d.nsecs.records), len(d.nsec3s.records), len(d.wild)
	switch most := max(a, b, c); {
	case most == 0 && d.soa == nil:
		return false
	case most == 0:
		d.bytes -= d.soa.size()
		d.soa = nil
	case a == most:
		i := rand.IntN(a)
		d.dropNSECs(i, i+1)
	case b == most:
		i := rand.IntN(b)
		d.dropNSEC3s(i, i+1)
	default:
		for k := range d.wild {
			d.dropWild(k)
			break
		}
	}
	return true
}

// A Known is an answer that is made of what is kept. It is secure.
type Known struct {
	Kind              Kind     // Nothing: there are records, or an alias
	Answer, Authority []dns.RR // the caller's, with the TTLs that are left
	TTL               uint32   // seconds that all may be kept
}

// Answer answers a question at now. It reports false if nothing is known.
func (d *Denials) Answer(w *Work, qname string, qtype uint16, now time.Time) (Known, bool) {
	q, ok := parseName(qname)
	if !ok || !q.within(d.zone) || qtype == dns.TypeRRSIG || qtype == dns.TypeDS && q == d.zone && q != root {
		return Known{}, false
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.soa.left(now) > 0 {
		f := d.find(w, func(n nsecs) found { return n.denies(q, qtype, d.zone) }, func(n *nsec3s) found { return n.denies(q, qtype, d.zone) })
		if k, ok := d.denial(f, now); ok {
			return k, true
		}
	}
	return d.fromWildcard(w, q, qtype, now)
}

// find asks what is kept of either kind.
func (d *Denials) find(w *Work, byNSEC func(nsecs) found, byNSEC3 func(*nsec3s) found) found {
	f := byNSEC(d.nsecs)
	if f.kind == Nothing && len(d.nsec3s.records) > 0 {
		n := d.nsec3s
		n.work, n.spare = w, true
		if f = byNSEC3(&n); n.limit != "" {
			return found{}
		}
	}
	return f
}

// denial returns the answer that something is not there.
func (d *Denials) denial(f found, now time.Time) (Known, bool) {
	k := Known{Kind: f.kind, TTL: d.soa.left(now)}
	if f.kind == Nothing || f.optOut || !d.proof(&k, f, now) {
		return Known{}, false
	}
	soa := d.soa.records("", k.TTL)
	k.Authority = append(soa, k.Authority...)
	return k, true
}

// proof appends the evidence to the authority of an answer, and limits its TTL. It reports false if some is too old.
func (d *Denials) proof(k *Known, f found, now time.Time) bool {
	var used []*kept
	for _, e := range f.used {
		if slices.Contains(used, e.kept) {
			continue
		}
		used = append(used, e.kept)
		left, passed := e.kept.left(now), now.Round(0).Sub(e.kept.came)
		minimum := time.Duration(d.minimum)*time.Second - passed
		if left == 0 || minimum < time.Second {
			return false
		}
		k.TTL = min(k.TTL, left, uint32(minimum/time.Second))
		k.Authority = append(k.Authority, e.kept.records("", left)...)
	}
	return true
}

// records returns the RRset, with its signatures. Those of a wildcard get the name that they are asked for.
func (e *kept) records(owner string, ttl uint32) []dns.RR {
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

// fromWildcard makes the answer of a wildcard, if it is kept what the wildcard has and that there is no closer name.
func (d *Denials) fromWildcard(w *Work, q name, qtype uint16, now time.Time) (Known, bool) {
	switch qtype {
	case dns.TypeANY, dns.TypeDS, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeSIG, dns.TypeKEY, dns.TypeNXT: // what they say of aliases is their own matter
		return Known{}, false
	}
	if len(d.wild) == 0 || q.isWildcard() {
		return Known{}, false
	}
	for a := q; a != d.zone; {
		a = a.parent()
		wild, ok := a.wildcard()
		if !ok {
			continue
		}
		e := d.wild[wildKey{wild, qtype}]
		if e.left(now) == 0 {
			e = d.wild[wildKey{wild, dns.TypeCNAME}]
		}
		left := e.left(now)
		if left == 0 {
			continue
		}
		f := d.find(w, func(n nsecs) found { return n.noCloser(q, a.labels(), d.zone) }, func(n *nsec3s) found { return n.noCloser(q, a.labels()) })
		k := Known{TTL: left}
		if f.kind != NoCloser || f.optOut || !d.proof(&k, f, now) {
			continue
		}
		k.Answer = e.records(q.String(), k.TTL)
		return k, len(k.Answer) > 0
	}
	return Known{}, false
}
