package dnshedge

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/miekg/dns"
)

const (
	defaultMaxBytes    = 16 << 20
	defaultMaxTTL      = 24 * time.Hour
	defaultMaxNegative = time.Hour
	defaultStaleAfter  = 1800 * time.Millisecond // RFC 8767 §5
	defaultMaxStale    = 24 * time.Hour
	staleTTL           = 30 * time.Second // RFC 8767 §4
	staleRecheck       = 30 * time.Second // RFC 8767 §5: the failure recheck timer

	minFailure    = time.Second // RFC 9520 §3.2
	maxFailure    = 5 * time.Second
	forgetFailure = 5 * time.Minute

	refreshShare = 10 // an entry is refreshed in the last tenth of its life …
	refreshHits  = 2  // … if it was asked for that often
)

// Extended DNS errors, RFC 8914.
const (
	edeStale       = 3
	edeStaleNX     = 19
	edeCachedError = 13
	edeNoReachable = 22
	edeNetwork     = 23
)

// Cache keeps answers for as long as the RFCs allow: by RRset (RFC 2181 §5.2),
// negative ones by their SOA (RFC 2308), failures briefly (RFC 9520), and
// expired ones for the case that the servers fail (RFC 8767).
//
// The zero value is an empty cache with the defaults below. The fields must not
// be changed after first use. A Cache is safe for concurrent use, and several
// Clients may share one if their servers give the same answers.
type Cache struct {
	// MaxBytes bounds the memory that entries take, as far as it can be told;
	// what is least likely to be asked for again goes first. Zero: 16 MiB.
	MaxBytes int64

	// MinTTL lifts shorter TTLs of positive answers, those of 0 excepted: they
	// are not kept. Zero: as the server says. It must not exceed MaxTTL.
	MinTTL time.Duration

	// MaxTTL caps TTLs. Zero: a day.
	MaxTTL time.Duration

	// MaxNegativeTTL caps how long it is believed that a name or a type does not
	// exist. Zero: an hour. 5 s suits clusters where services come and go.
	MaxNegativeTTL time.Duration

	// StaleAfter is how long a caller waits for the servers before an expired
	// answer must do. Zero: 1.8 s. Negative: expired answers are given at once,
	// and refreshed meanwhile.
	StaleAfter time.Duration

	// MaxStale is how long answers are kept after they expired. Zero: a day.
	// Negative: not at all.
	MaxStale time.Duration

	// NoRefresh turns off that popular entries are refreshed before they expire.
	NoRefresh bool

	once  sync.Once
	store *otter.Cache[string, *entry]
}

// entry is what a key is known to be answered with. Nothing of it changes but the atomics.
type entry struct {
	*answer           // nil if err is set
	err     error     // of an exchange that failed without any answer
	stored  time.Time // when its TTLs were right
	ttl     time.Duration
	fails   int // failures in a row; 0: this is none

	hits       atomic.Uint32
	refreshing atomic.Bool
	recheck    atomic.Int64 // Unix ns until which an expired entry is not refreshed
}

func (c *Cache) init() {
	c.once.Do(func() {
		c.store = otter.Must(&otter.Options[string, *entry]{
			MaximumWeight: uint64(c.maxBytes()),
			Weigher:       func(k string, e *entry) uint32 { return e.weight(len(k)) },
		})
	})
}

// weight estimates what the entry takes in memory, the cache's own bookkeeping
// included. The constants are measured by TestCacheStaysInsideItsBound.
func (e *entry) weight(key int) uint32 {
	n := 640 + key
	if e.answer != nil {
		n += 4*len(e.wire) + 160*len(e.ttls)
	}
	return uint32(n)
}

func (c *Cache) maxBytes() int64 {
	if c.MaxBytes > 0 {
		return c.MaxBytes
	}
	return defaultMaxBytes
}

// or returns d, or what it means if it is zero. Negative is zero.
func or(d, zero time.Duration) time.Duration {
	if d == 0 {
		return zero
	}
	return max(d, 0)
}

// validate finds settings that make no sense.
func (c *Cache) validate() error {
	if c.MaxBytes < 0 {
		return fmt.Errorf("dnshedge: Cache.MaxBytes is %d; want 0 or more", c.MaxBytes)
	}
	for _, f := range [...]struct {
		name string
		d    time.Duration
	}{{"MinTTL", c.MinTTL}, {"MaxTTL", c.MaxTTL}, {"MaxNegativeTTL", c.MaxNegativeTTL}} {
		if f.d < 0 {
			return fmt.Errorf("dnshedge: Cache.%s is %v; want 0 or more", f.name, f.d)
		}
	}
	if limit := or(c.MaxTTL, defaultMaxTTL); c.MinTTL > limit {
		return fmt.Errorf("dnshedge: Cache.MinTTL is %v; want at most MaxTTL, %v", c.MinTTL, limit)
	}
	return nil
}

// state is what an entry is good for.
type state int

const (
	missing state = iota
	fresh         // to be given
	old           // to be given if the servers do not answer
)

// get returns the entry for a question, and whether it should be refreshed now.
func (c *Cache) get(q *query, now time.Time) (e *entry, s state, refresh bool) {
	c.init()
	var buf [maxName + 5]byte
	key := q.appendKey(buf[:0])
	e, ok := c.store.GetIfPresent(string(key))
	if !ok {
		anyType(key)
		if e, ok = c.store.GetIfPresent(string(key)); !ok {
			return nil, missing, false
		}
	}
	left := e.ttl - now.Sub(e.stored)
	switch {
	case left > 0:
		if e.fails == 0 && !c.NoRefresh && left <= e.ttl/refreshShare && e.hits.Load() >= refreshHits && now.UnixNano() >= e.recheck.Load() {
			refresh = e.refreshing.CompareAndSwap(false, true)
		}
		e.hits.Add(1)
		return e, fresh, refresh
	case e.fails > 0 || left <= -or(c.MaxStale, defaultMaxStale):
		return nil, missing, false
	default:
		e.hits.Add(1)
		return e, old, false
	}
}

// anyType turns a key into the one under which it is kept that a name does not exist.
func anyType(key []byte) { key[len(key)-5], key[len(key)-4] = 0, 0 }

// view is how the entry is shown at a time.
func (e *entry) view(now time.Time, s state) view {
	if s == old {
		code := uint16(edeStale)
		if e.msg.Rcode == dns.RcodeNameError {
			code = edeStaleNX
		}
		return view{stale: staleTTL, ede: []ede{{code: code}}}
	}
	return view{age: now.Sub(e.stored)}
}

// adopt gives an answer's TTLs what the cache's limits and the RFCs say, and
// returns how long it may be kept. The answer must not be shared yet.
func (c *Cache) adopt(a *answer, q *query) (ttl time.Duration, ok bool) {
	m := a.msg
	if m.Truncated {
		return 0, false
	}
	low, high := seconds(c.MinTTL), seconds(or(c.MaxTTL, defaultMaxTTL))
	type rrset struct {
		name       string
		typ, class uint16
	}
	var sets map[rrset]uint32
	least := uint32(1<<32 - 1)
	a.records(func(rr dns.RR) {
		h := rr.Header()
		if h.Ttl > 1<<31-1 {
			h.Ttl = 0 // RFC 2181 §8
		}
		if h.Ttl > 0 {
			h.Ttl = min(max(h.Ttl, low), high)
		}
		least = min(least, h.Ttl)
		if sets == nil {
			sets = make(map[rrset]uint32)
		}
		k := rrset{dns.CanonicalName(h.Name), h.Rrtype, h.Class}
		if t, ok := sets[k]; !ok || h.Ttl < t {
			sets[k] = h.Ttl
		}
	})
	a.records(func(rr dns.RR) {
		h := rr.Header()
		h.Ttl = sets[rrset{dns.CanonicalName(h.Name), h.Rrtype, h.Class}]
	})
	switch outcome(a, q) {
	case positive:
		return time.Duration(least) * time.Second, least > 0
	case nodata, nxdomain:
		for _, rr := range m.Ns {
			soa, ok := rr.(*dns.SOA)
			if !ok {
				continue
			}
			limit := seconds(or(c.MaxNegativeTTL, defaultMaxNegative))
			soa.Hdr.Ttl = min(soa.Hdr.Ttl, soa.Minttl, limit)
			least = min(least, soa.Hdr.Ttl)
			return time.Duration(least) * time.Second, least > 0
		}
	}
	return 0, false
}

func seconds(d time.Duration) uint32 { return uint32(min(d/time.Second, 1<<31-1)) }

// put keeps a sealed answer that adopt said may be kept for ttl.
func (c *Cache) put(q *query, a *answer, ttl time.Duration, now time.Time) {
	c.init()
	var buf [maxName + 5]byte
	key := q.appendKey(buf[:0])
	if a.msg.Rcode == dns.RcodeNameError && len(a.msg.Answer) == 0 {
		// The name exists for no type (RFC 2308 §5); what is known of this type is over.
		c.store.Invalidate(string(key))
		anyType(key)
	}
	c.store.Set(string(key), &entry{answer: a, stored: now, ttl: ttl})
}

// fail keeps that a question could not be answered: a is what the servers said,
// or nil and err says why nothing came. It never takes the place of a good
// answer, not even an expired one; that is only not refreshed for a while.
func (c *Cache) fail(q *query, a *answer, err error, now time.Time) {
	c.init()
	var buf [maxName + 5]byte
	bytes := q.appendKey(buf[:0])
	key := string(bytes)
	stale := or(c.MaxStale, defaultMaxStale)
	anyType(bytes)
	if had, ok := c.store.GetIfPresent(string(bytes)); ok && now.Sub(had.stored) < had.ttl+stale {
		had.spare(now)
		return
	}
	c.store.Compute(key, func(had *entry, found bool) (*entry, otter.ComputeOp) {
		fails := 1
		switch {
		case !found:
		case had.fails == 0 && now.Sub(had.stored) < had.ttl+stale:
			had.spare(now)
			return had, otter.CancelOp
		case had.fails > 0 && now.Sub(had.stored) < forgetFailure:
			fails = had.fails + 1
		}
		ttl := min(minFailure<<min(fails-1, 8), maxFailure)
		return &entry{answer: a, err: err, stored: now, ttl: ttl, fails: fails}, otter.WriteOp
	})
}

// spare keeps the entry from being refreshed for a while.
func (e *entry) spare(now time.Time) {
	e.spareUntil(now.Add(staleRecheck))
	e.refreshing.Store(false)
}

func (e *entry) spareUntil(t time.Time) { e.recheck.Store(t.UnixNano()) }

// Get returns the answer to q, which it does not change, if there is one that
// has not expired. The answer has q's ID and spelling; its TTLs are what is left.
func (c *Cache) Get(q *dns.Msg) (*dns.Msg, bool) {
	ask, err := newQuery(q)
	if err != nil || !ask.cacheable() {
		return nil, false
	}
	now := time.Now()
	e, s, _ := c.get(ask, now)
	if s != fresh || e.answer == nil {
		return nil, false
	}
	return e.message(q, ask, e.view(now, s)), true
}

// Set keeps a response, as if it had just come from a server, and reports
// whether it may be kept. It does not change r.
func (c *Cache) Set(r *dns.Msg) bool {
	q, err := newQuery(r)
	if err != nil || !r.Response || !q.cacheable() {
		return false
	}
	b, err := r.Pack()
	if err != nil {
		return false
	}
	a, err := newAnswer(b, q)
	if err != nil {
		return false
	}
	ttl, ok := c.adopt(a, q)
	if !ok || a.seal() != nil {
		return false
	}
	c.put(q, a, ttl, time.Now())
	return true
}

// Purge forgets what is known of a name, of all types, and returns how many
// entries that were. It looks at all of them.
func (c *Cache) Purge(name string) int {
	c.init()
	var buf [maxName]byte
	n, err := dns.PackDomainName(dns.CanonicalName(name), buf[:], 0, nil, false)
	if err != nil {
		return 0
	}
	count := 0
	for k := range c.store.Keys() {
		if len(k) == n+5 && k[:n] == string(buf[:n]) {
			c.store.Invalidate(k)
			count++
		}
	}
	return count
}

// Len returns about how many entries there are, expired ones included.
func (c *Cache) Len() int {
	c.init()
	return c.store.EstimatedSize()
}

// Bytes returns about how much of MaxBytes is taken.
func (c *Cache) Bytes() int64 {
	c.init()
	return int64(c.store.WeightedSize())
}

// The format of a saved cache: cacheMagic, then saved values by encoding/gob,
// an empty one last.
const cacheMagic = "hedge dns cache 1\n"

type saved struct {
	Key    string
	Wire   []byte
	Stored time.Time
	TTL    time.Duration
	Codes  []uint16 // extended errors
	Texts  []string
}

// Save writes all answers that could still be of use, failures excepted. Other
// goroutines may use the cache meanwhile.
func (c *Cache) Save(w io.Writer) error {
	c.init()
	out := bufio.NewWriter(w)
	if _, err := out.WriteString(cacheMagic); err != nil {
		return fmt.Errorf("dnshedge: save cache: %w", err)
	}
	enc := gob.NewEncoder(out)
	now := time.Now()
	for k, e := range c.store.All() {
		if e.fails > 0 || now.Sub(e.stored) >= e.ttl+or(c.MaxStale, defaultMaxStale) {
			continue
		}
		s := saved{Key: k, Wire: e.wire, Stored: e.stored, TTL: e.ttl}
		for _, x := range e.ede {
			s.Codes, s.Texts = append(s.Codes, x.code), append(s.Texts, x.text)
		}
		if err := enc.Encode(s); err != nil {
			return fmt.Errorf("dnshedge: save cache: %w", err)
		}
	}
	if err := errors.Join(enc.Encode(saved{}), out.Flush()); err != nil {
		return fmt.Errorf("dnshedge: save cache: %w", err)
	}
	return nil
}

// Load adds what Save wrote. The time that has passed since counts against the
// TTLs. If what it reads is not what Save writes, it returns an error, having
// added what came before.
func (c *Cache) Load(r io.Reader) error {
	in, ok := r.(*bufio.Reader) // of which nothing behind the cache must be taken
	if !ok {
		in = bufio.NewReader(r)
	}
	c.init()
	magic := make([]byte, len(cacheMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != cacheMagic {
		return fmt.Errorf("dnshedge: load cache: not a saved cache of this version: begins with %q", magic)
	}
	dec := gob.NewDecoder(in)
	now := time.Now()
	for {
		var s saved
		if err := dec.Decode(&s); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("dnshedge: load cache: %w", err)
		}
		if s.Key == "" {
			return nil
		}
		e, err := s.entry(or(c.MaxTTL, defaultMaxTTL))
		if err != nil {
			return fmt.Errorf("dnshedge: load cache: entry %q: %w", s.Key, err)
		}
		if age := now.Sub(e.stored); age >= 0 && age < e.ttl+or(c.MaxStale, defaultMaxStale) {
			c.store.SetIfAbsent(s.Key, e)
		}
	}
}

// entry checks what was saved. A clock that was set back must not make it immortal.
func (s *saved) entry(limit time.Duration) (*entry, error) {
	a, err := newAnswer(s.Wire, nil)
	if err != nil {
		return nil, err
	}
	if len(a.msg.Question) != 1 || len(s.Codes) != len(s.Texts) {
		return nil, errors.New("malformed")
	}
	q, err := newQuery(a.msg)
	if err != nil {
		return nil, err
	}
	if n := len(q.name); len(s.Key) != n+5 || !equalFold([]byte(s.Key[:n]), q.name) {
		return nil, fmt.Errorf("holds an answer for %s", a.msg.Question[0].Name)
	}
	for i, code := range s.Codes {
		a.ede = append(a.ede, ede{code, s.Texts[i]})
	}
	if err := a.seal(); err != nil {
		return nil, err
	}
	return &entry{answer: a, stored: s.Stored, ttl: min(s.TTL, limit)}, nil
}
