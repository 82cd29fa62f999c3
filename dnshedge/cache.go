package dnshedge

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	defaultMaxBytes    = 16 << 20
	defaultMaxTTL      = 24 * time.Hour
	defaultMaxNegative = time.Hour
	defaultStaleAfter  = 1800 * time.Millisecond // RFC 8767 §5
	defaultMaxStale    = 24 * time.Hour
	staleTTL           = 30 * time.Second // RFC 8767 §4
	staleRecheck       = 30 * time.Second // RFC 8767 §5: the failure recheck timer

	minFailure    = time.Second // that a failure is kept at least (RFC 9520 §3.2)
	maxFailure    = 5 * time.Second
	forgetFailure = 5 * time.Minute // after which a failure is no longer the one before the next

	refreshShare = 10 // an entry is refreshed in the last tenth of its life,
	refreshHits  = 2  // if it was asked for so often
)

// Extended DNS errors, RFC 8914.
const (
	edeStale       = 3
	edeStaleNX     = 19
	edeCachedError = 13
	edeNoReachable = 22
	edeNetwork     = 23
)

// Cache keeps answers for as long as the RFCs allow: positive ones as long as their
// TTLs say (RFC 2181 §5.2), negative ones as long as their SOA says (RFC 2308),
// failures briefly (RFC 9520), and expired ones in case the servers fail (RFC 8767).
//
// The zero value is an empty cache with the defaults below. The fields must not
// be changed after first use. A Cache is safe for concurrent use, and several
// Clients may share one if their servers give the same answers.
type Cache struct {
	// MaxBytes bounds the memory that entries take, by an estimate. The entries that
	// are least likely to be asked for again are removed first. Zero: 16 MiB.
	MaxBytes int64

	// MinTTL raises shorter TTLs of positive answers. A TTL of 0 is not raised, and
	// such an answer is not kept. Zero: no TTL is raised. It must not exceed MaxTTL.
	MinTTL time.Duration

	// MaxTTL lowers longer TTLs. Zero: a day.
	MaxTTL time.Duration

	// MaxNegativeTTL bounds how long an answer is kept that a name or a type does not
	// exist. Zero: an hour. 5 s suits clusters where services come and go.
	MaxNegativeTTL time.Duration

	// StaleAfter is how long a caller waits for the servers before it gets an expired
	// answer. Zero: 1.8 s. Negative: callers get expired answers at once, and these
	// are refreshed in the background.
	StaleAfter time.Duration

	// MaxStale is how long answers are kept after they expired. Zero: a day.
	// Negative: not at all.
	MaxStale time.Duration

	// NoRefresh turns off that popular entries are refreshed before they expire.
	NoRefresh bool

	once  sync.Once
	store *otter.Cache[string, *entry]
}

// entry is what is kept for a question. Only the atomics change.
type entry struct {
	*wire.Answer           // nil if err is set
	err          error     // of an exchange without any answer
	stored       time.Time // when the TTLs began to count down
	ttl          time.Duration
	fails        int // failures in a row; 0: this is an answer

	hits           atomic.Uint32
	refreshing     atomic.Bool
	noRefreshUntil atomic.Int64 // Unix ns
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
	if e.Answer != nil {
		n += 4*len(e.Packed()) + 160*e.Len()
	}
	return uint32(n)
}

func (c *Cache) maxBytes() int64 {
	if c.MaxBytes > 0 {
		return c.MaxBytes
	}
	return defaultMaxBytes
}

// limits are what the Cache's fields say about TTLs.
func (c *Cache) limits() *wire.TTLLimits {
	return &wire.TTLLimits{
		Min: c.MinTTL, Max: orDefault(c.MaxTTL, defaultMaxTTL),
		MaxNegative: orDefault(c.MaxNegativeTTL, defaultMaxNegative),
	}
}

// staleTime is how long an answer is kept after it expired.
func (c *Cache) staleTime() time.Duration { return orDefault(c.MaxStale, defaultMaxStale) }

// orDefault returns the default for zero, and zero for what is negative.
func orDefault(d, zero time.Duration) time.Duration {
	if d == 0 {
		return zero
	}
	return max(d, 0)
}

// validate returns an error if a field is out of its limits.
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
	if limit := orDefault(c.MaxTTL, defaultMaxTTL); c.MinTTL > limit {
		return fmt.Errorf("dnshedge: Cache.MinTTL is %v; want at most MaxTTL, %v", c.MinTTL, limit)
	}
	return nil
}

// freshness says when an entry may be used.
type freshness int

const (
	missing freshness = iota
	fresh             // at once
	stale             // if the servers do not answer
)

// get returns the entry for a question, and whether it should be refreshed now.
func (c *Cache) get(q *wire.Query, now time.Time) (e *entry, f freshness, refresh bool) {
	c.init()
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
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
		if e.fails == 0 && !c.NoRefresh && left <= e.ttl/refreshShare && e.hits.Load() >= refreshHits && now.UnixNano() >= e.noRefreshUntil.Load() {
			refresh = e.refreshing.CompareAndSwap(false, true)
		}
		e.hits.Add(1)
		return e, fresh, refresh
	case e.fails > 0 || left <= -c.staleTime():
		return nil, missing, false
	default:
		e.hits.Add(1)
		return e, stale, false
	}
}

// anyType turns a key into the one for all types of the name, under which is kept
// that the name does not exist.
func anyType(key []byte) { key[len(key)-5], key[len(key)-4] = 0, 0 }

// view is how the entry is shown: as stale, or with TTLs that have counted down.
func (e *entry) view(source Source, now time.Time) wire.View {
	if source == FromStale {
		code := uint16(edeStale)
		if e.Msg.Rcode == dns.RcodeNameError {
			code = edeStaleNX
		}
		return wire.View{Stale: staleTTL, EDE: []wire.EDE{{Code: code}}}
	}
	return wire.View{Age: now.Sub(e.stored)}
}

// put keeps a sealed answer for ttl.
func (c *Cache) put(q *wire.Query, a *wire.Answer, ttl time.Duration, now time.Time) {
	c.init()
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
	if a.Msg.Rcode == dns.RcodeNameError && len(a.Msg.Answer) == 0 {
		// The name exists with no type (RFC 2308 §5), and an answer of this type is no
		// longer true.
		c.store.Invalidate(string(key))
		anyType(key)
	}
	c.store.Set(string(key), &entry{Answer: a, stored: now, ttl: ttl})
}

// fail keeps a failure: a is what the servers said, or nil, and then err says why
// there is no response. A failure never replaces an answer, not even an expired one,
// but the answer is not refreshed for a while.
func (c *Cache) fail(q *wire.Query, a *wire.Answer, err error, now time.Time) {
	c.init()
	var buf [wire.MaxKey]byte
	bytes := q.AppendKey(buf[:0])
	key := string(bytes)
	keep := c.staleTime()
	anyType(bytes)
	if had, ok := c.store.GetIfPresent(string(bytes)); ok && now.Sub(had.stored) < had.ttl+keep {
		had.refreshFailed(now)
		return
	}
	c.store.Compute(key, func(had *entry, found bool) (*entry, otter.ComputeOp) {
		fails := 1
		switch {
		case !found:
		case had.fails == 0 && now.Sub(had.stored) < had.ttl+keep:
			had.refreshFailed(now)
			return had, otter.CancelOp
		case had.fails > 0 && now.Sub(had.stored) < forgetFailure:
			fails = had.fails + 1
		}
		ttl := min(minFailure<<min(fails-1, 8), maxFailure)
		return &entry{Answer: a, err: err, stored: now, ttl: ttl, fails: fails}, otter.WriteOp
	})
}

// refreshFailed ends a refresh without an answer.
func (e *entry) refreshFailed(now time.Time) {
	e.postponeRefresh(now)
	e.refreshing.Store(false)
}

// postponeRefresh keeps the entry from being refreshed for staleRecheck.
func (e *entry) postponeRefresh(now time.Time) {
	e.noRefreshUntil.Store(now.Add(staleRecheck).UnixNano())
}

// Get returns the answer to q, which it does not change, if there is one that
// has not expired. The answer has q's ID and spelling, and its TTLs have counted
// down.
func (c *Cache) Get(q *dns.Msg) (*dns.Msg, bool) {
	ask, err := wire.NewQuery(q)
	if err != nil || !ask.Cacheable() {
		return nil, false
	}
	now := time.Now()
	e, f, _ := c.get(ask, now)
	if f != fresh || e.Answer == nil {
		return nil, false
	}
	return e.Message(q, ask, e.view(FromCache, now)), true
}

// Set keeps a response as if a server had just sent it, and reports whether it may
// be kept. It does not change r.
func (c *Cache) Set(r *dns.Msg) bool {
	q, err := wire.NewQuery(r)
	if err != nil || !r.Response || !q.Cacheable() {
		return false
	}
	b, err := r.Pack()
	if err != nil {
		return false
	}
	a, err := wire.ParseAnswer(b, q)
	if err != nil {
		return false
	}
	keep, err := a.Seal(c.limits())
	if keep == 0 || err != nil {
		return false
	}
	c.put(q, a, keep, time.Now())
	return true
}

// Purge removes the entries of a name, of all types, and returns how many those
// were. It takes time in proportion to the size of the cache.
func (c *Cache) Purge(name string) int {
	c.init()
	var buf [wire.MaxName]byte
	n, err := dns.PackDomainName(dns.CanonicalName(name), buf[:], 0, nil, false)
	if err != nil {
		return 0
	}
	count := 0
	for k := range c.store.Keys() {
		if len(k) == n+wire.KeyLen && k[:n] == string(buf[:n]) {
			c.store.Invalidate(k)
			count++
		}
	}
	return count
}

// Len returns the approximate number of entries, expired ones included.
func (c *Cache) Len() int {
	c.init()
	return c.store.EstimatedSize()
}

// Bytes returns the approximate part of MaxBytes that is taken.
func (c *Cache) Bytes() int64 {
	c.init()
	return int64(c.store.WeightedSize())
}
