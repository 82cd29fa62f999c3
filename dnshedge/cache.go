package dnshedge

import (
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/observe"
)

const (
	defaultMaxBytes    = 16 << 20
	defaultMaxTTL      = 24 * time.Hour
	defaultMaxNegative = time.Hour
	defaultStaleAfter  = 1800 * time.Millisecond // RFC 8767 §5
	defaultMaxStale    = 24 * time.Hour
	staleTTL           = 30 * time.Second // RFC 8767 §4
	staleRecheck       = 30 * time.Second // RFC 8767 §5: the failure recheck timer

	forgetFailure = 5 * time.Minute // after the time that a failure was kept it is no longer the one before the next

	refreshClaim = 30 * time.Second // that nobody else refreshes what somebody does

	refreshShare = 10 // an entry is refreshed in the last tenth of its life,
	refreshHits  = 2  // if it was asked for so often
)

// A retryBackoff is how long the first failure of a question is kept. The next is kept twice as
// long, and so on (RFC 9520 §3.2).
type retryBackoff struct{ first, most time.Duration }

var (
	failureOfServers   = retryBackoff{time.Second, 5 * time.Second}      // which keep failures themselves
	failureOfExchanger = retryBackoff{5 * time.Second, 20 * time.Second} // which asks every server of a zone for each; names are back soon after an outage
)

// Extended DNS errors, RFC 8914.
const (
	edeOther            = 0
	edeStale            = 3
	edeStaleNX          = 19
	edeCachedError      = 13
	edeProhibited       = 18
	edeNotAuthoritative = 20
	edeNoReachable      = 22
	edeNetwork          = 23
)

// Cache keeps answers for as long as the RFCs allow: positive ones as long as their
// TTLs say (RFC 2181 §5.2), negative ones as long as their SOA says (RFC 2308),
// failures briefly (RFC 9520), and expired ones in case the servers fail (RFC 8767).
// Names below one that does not exist do not either (RFC 8020), if that was validated: see
// Upstream.TrustAD and Exchanger. The addresses of an answer take turns. What the system's servers said is forgotten when the system has others,
// as after a change of the network, also if a Client below has asked them: see Exchanger.
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
	store *otter.Cache[uint64, *entry] // by the hash of the key
	seed  maphash.Seed                 // so that nobody can make keys with the same hash
	clock coarseClock                  // which began when the cache was first used

	systemChanges atomic.Uint32 // how often the system's servers have become others
	clients       atomic.Uint32 // how many Clients have used the Cache
}

// answerOrigin is the source of a cache entry: the Client, the generation of the system's servers, and the route. The
// zero value is an unknown source, whose entries stay until they expire.
type answerOrigin struct {
	client    uint16 // the Client that asked; 0: the answer is one of Set, or the Client is not known
	system    uint16 // 0: not the system's servers; else which of those it has had
	domain    uint8  // length in wire format of the domain that those have a route for; 0: it came by none
	validated bool   // a server said so that is trusted to validate
}

// systemGeneration returns the number of the system's present set of servers. It is never 0.
func (c *Cache) systemGeneration() uint16 { return 1 + uint16(c.systemChanges.Load()%math.MaxUint16) }

// expireSystemEntries invalidates all entries from the system's servers.
func (c *Cache) expireSystemEntries() { c.systemChanges.Add(1) }

// notExported is the member of entries that no export includes: entries of all Clients after the first 65534, and of
// several sources.
const notExported = math.MaxUint16

// addClient returns the number of a Client that begins to use the Cache. Clients after the first 65534 share the last
// number.
func (c *Cache) addClient() uint16 { return uint16(min(c.clients.Add(1), notExported)) }

// addOrigin adds the source of the target of an alias. The entry then has several sources. It is invalidated with the
// system's servers if one source is the system.
func (o *answerOrigin) addOrigin(target answerOrigin) {
	o.client = notExported
	if o.system == 0 {
		o.system = target.system
	}
}

// isCurrent reports whether the source of an entry is still in use.
func (c *Cache) isCurrent(e *entry) bool { return e.system == 0 || e.system == c.systemGeneration() }

// entry is a cached answer or failure. Only its atomics change.
type entry struct {
	*wire.Answer               // nil if err is set
	err          error         // of an exchange without any answer
	question     []byte        // name, type and class as in the key, if there is no Answer
	stored       time.Duration // since the epoch, when the TTLs began to count down
	ttl          time.Duration
	fails        uint8 // failures in a row; 0: this is an answer
	bits         byte  // the last byte of the key
	answerOrigin

	hits           atomic.Uint32
	noRefreshOf    atomic.Uint32 // the type of which noRefreshUntil holds; [dns.TypeANY]: of all, if the entry is of all
	claimed        atomic.Int64  // until when somebody refreshes it, in nanoseconds since the epoch
	noRefreshUntil atomic.Int64  // nanoseconds since the epoch
}

func (c *Cache) init() {
	c.once.Do(func() {
		c.seed = maphash.MakeSeed()
		c.clock.startClock()
		c.store = otter.Must(&otter.Options[uint64, *entry]{
			MaximumWeight: uint64(c.maxBytes()),
			Weigher:       func(_ uint64, e *entry) uint32 { return e.sizeInBytes() },
		})
	})
}

// sizeInBytes estimates the memory of the entry, with the cache's own bookkeeping. TestCacheStaysInsideItsBound
// measures the constant.
func (e *entry) sizeInBytes() uint32 {
	n := 380 + len(e.question)
	if e.Answer != nil {
		n += len(e.Packed()) + 2*e.Len()
		for _, x := range e.EDE {
			n += 32 + len(x.Text)
		}
	}
	return uint32(n)
}

// matchesKey reports whether the entry is that of a key.
func (e *entry) matchesKey(key []byte) bool {
	n := len(key) - wire.KeyLen
	own := e.question
	if e.Answer != nil {
		own = e.Question()
	}
	if len(own) != n+4 || e.bits != key[n+4] || e.bits&wire.KeyAnyType == 0 && (own[n] != key[n] || own[n+1] != key[n+1]) {
		return false
	}
	return string(own[:n]) == string(key[:n])
}

// findEntry returns the entry of a key, or nil.
func (c *Cache) findEntry(key []byte) *entry {
	if e, ok := c.store.GetIfPresent(maphash.Bytes(c.seed, key)); ok && e.matchesKey(key) && c.isCurrent(e) {
		return e
	}
	return nil
}

// remainingTime returns the time until the entry expires; it is negative after that.
func (e *entry) remainingTime(at time.Duration) time.Duration { return e.ttl - (at - e.stored) }

// canServeStale reports whether the entry is an answer that may be served when the servers fail (RFC 8767). It is false
// for nil.
func (c *Cache) canServeStale(e *entry, at time.Duration) bool {
	return e != nil && e.fails == 0 && e.remainingTime(at) > -c.staleTime() && c.isCurrent(e)
}

func (c *Cache) maxBytes() int64 {
	if c.MaxBytes > 0 {
		return c.MaxBytes
	}
	return defaultMaxBytes
}

// ttlLimits returns the limits of TTLs that the Cache's fields set.
func (c *Cache) ttlLimits() *wire.TTLLimits {
	return &wire.TTLLimits{
		Min: c.MinTTL, Max: durationOrDefault(c.MaxTTL, defaultMaxTTL),
		MaxNegative: durationOrDefault(c.MaxNegativeTTL, defaultMaxNegative),
	}
}

// staleTime returns how long an expired answer is kept.
func (c *Cache) staleTime() time.Duration { return durationOrDefault(c.MaxStale, defaultMaxStale) }

// staleAfter is how long a caller waits for the servers before it gets an expired answer.
func (c *Cache) staleAfter() time.Duration { return durationOrDefault(c.StaleAfter, defaultStaleAfter) }

// durationOrDefault returns the default for zero, zero for a negative duration, and otherwise d.
func durationOrDefault(d, zero time.Duration) time.Duration {
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
	if limit := durationOrDefault(c.MaxTTL, defaultMaxTTL); c.MinTTL > limit {
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

// cachedAnswer is the result of a search in the cache.
type cachedAnswer struct {
	*entry
	freshness
	isRefreshDue   bool          // it should be refreshed now
	isFromAncestor bool          // the entry says that a name above does not exist
	rotation       uint32        // by how many places addresses are rotated
	at             time.Duration // since the epoch
}

// getAnswer returns the entry for a question, and counts the question. domain is the length in wire format of the
// domain that the servers are responsible for. Entries that deny a name above that domain come from other servers, and
// are ignored.
func (c *Cache) getAnswer(q *wire.Query, now time.Time, domain int) cachedAnswer {
	c.init()
	var buf [wire.MaxKey]byte
	f := c.findAnswer(q.AppendKey(buf[:0]), c.clock.sinceStart(now), domain)
	if f.freshness == missing || f.isFromAncestor {
		return f
	}
	f.rotation = f.hits.Add(1)
	if c.isRefreshDue(&f, f.rotation) {
		f.isRefreshDue = f.claimRefresh()
	}
	return f
}

// getFresh is getAnswer for an entry that is fresh and needs no refresh. For other entries it reports false, and does
// not count the question.
func (c *Cache) getFresh(q *wire.Query) (cachedAnswer, bool) {
	if !q.Cacheable() {
		return cachedAnswer{}, false
	}
	c.init()
	var buf [wire.MaxKey]byte
	f := c.findAnswer(q.AppendKey(buf[:0]), c.clock.currentTime(), 0)
	if f.freshness != fresh || f.fails > 0 || f.isFromAncestor || c.isRefreshDue(&f, f.hits.Load()+1) {
		return f, false
	}
	f.rotation = f.hits.Add(1)
	return f, true
}

// isRefreshDue reports whether an answer with that many hits should be refreshed now.
func (c *Cache) isRefreshDue(f *cachedAnswer, hits uint32) bool {
	return f.freshness == fresh && f.remainingTime(f.at) <= f.ttl/refreshShare && f.fails == 0 && !c.NoRefresh &&
		hits > refreshHits && int64(f.at) >= f.noRefreshUntil.Load() && int64(f.at) >= f.claimed.Load()
}

// findAnswer returns the entry of a key, or an entry that denies the name. It changes the key's type and bits. domain
// is as for getAnswer.
func (c *Cache) findAnswer(key []byte, at time.Duration, domain int) cachedAnswer {
	own := c.findEntry(key)
	if own != nil && own.remainingTime(at) > 0 {
		return cachedAnswer{entry: own, freshness: fresh, at: at}
	}
	wire.AnyType(key)
	gone := c.findEntry(key)
	if gone != nil && gone.remainingTime(at) > 0 {
		return cachedAnswer{entry: gone, freshness: fresh, at: at}
	}
	if e := c.findAncestor(key, at, domain); e != nil {
		return cachedAnswer{entry: e, freshness: fresh, isFromAncestor: true, at: at}
	}
	// What was heard last is true, if anything is.
	if c.canServeStale(own, at) && !(c.canServeStale(gone, at) && gone.stored > own.stored) {
		return cachedAnswer{entry: own, freshness: stale, at: at}
	}
	if c.canServeStale(gone, at) {
		return cachedAnswer{entry: gone, freshness: stale, at: at}
	}
	return cachedAnswer{at: at}
}

// findAncestor returns an entry which proves that an ancestor of a key's name does not exist, or nil. AnyType has made
// the key.
//
// Nothing exists below a name that does not exist (RFC 8020). Without validation a server may deny a name although
// names exist below it. An example is a server that holds ad.corp. and asks public servers about corp.
func (c *Cache) findAncestor(key []byte, at time.Duration, domain int) (e *entry) {
	was := [2]byte(key[len(key)-wire.KeyLen:])
	wire.NotDS(key)
	for up := parentName(key); up != nil && len(up)-wire.KeyLen >= domain; up = parentName(up) {
		if e = c.findEntry(up); e != nil && e.validated && e.remainingTime(at) > 0 {
			break
		}
		e = nil
	}
	copy(key[len(key)-wire.KeyLen:], was[:])
	return e
}

// parentName returns the key of the name one label up, or nil if that is the root.
func parentName(key []byte) []byte {
	if up := key[1+int(key[0]):]; len(up) > 1+wire.KeyLen {
		return up
	}
	return nil
}

// claimRefresh reports whether the caller must refresh the entry. Another caller can claim the refresh after
// refreshClaim, even if the first one has not finished.
func (f *cachedAnswer) claimRefresh() bool {
	until := f.claimed.Load()
	return int64(f.at) >= until && f.claimed.CompareAndSwap(until, int64(f.at+refreshClaim))
}

// releaseRefresh ends a claim.
func (e *entry) releaseRefresh() { e.claimed.Store(0) }

// isRetryPostponed reports whether questions of type qtype must not refresh the entry now, because a refresh failed.
func (f *cachedAnswer) isRetryPostponed(qtype uint16) bool {
	of := f.noRefreshOf.Load()
	return int64(f.at) < f.noRefreshUntil.Load() && (of == uint32(dns.TypeANY) || of == uint32(qtype))
}

// Extended errors of answers that do not come from the servers just now.
var (
	staleAnswer = []wire.EDE{{Code: edeStale}}
	staleNX     = []wire.EDE{{Code: edeStaleNX}}
	cachedError = []wire.EDE{{Code: edeCachedError}}
)

// answerFor returns the response to q: the answer and its view, or the error of a cached failure.
func (f *cachedAnswer) answerFor(q *wire.Query) (*wire.Answer, wire.View, error) {
	switch {
	case f.Answer == nil:
		return nil, wire.View{}, f.err
	case f.isFromAncestor:
		a, err := f.Below(q)
		return a, wire.View{Age: f.at - f.stored}, err
	case f.freshness == stale:
		v := wire.View{Stale: staleTTL, Turn: f.rotation, EDE: staleAnswer}
		if f.Rcode() == dns.RcodeNameError {
			v.EDE = staleNX
		}
		return f.Answer, v, nil
	}
	v := wire.View{Age: f.at - f.stored, Turn: f.rotation}
	if f.fails > 0 {
		v.EDE = cachedError
	}
	return f.Answer, v, nil
}

// storeAnswer stores an answer, whose TTLs are limited, for ttl. If ttl is 0, it only removes entries that the answer
// contradicts.
func (c *Cache) storeAnswer(q *wire.Query, a *wire.Answer, ttl time.Duration, now time.Time, from answerOrigin) {
	c.init()
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
	hash := maphash.Bytes(c.seed, key)
	if a.NoName() {
		c.store.Invalidate(hash) // the name exists with no type (RFC 2308 §5)
		wire.AnyType(key)
		hash = maphash.Bytes(c.seed, key)
	}
	if ttl > 0 {
		c.store.Set(hash, &entry{Answer: a, stored: c.clock.sinceStart(now), ttl: ttl, bits: key[len(key)-1], answerOrigin: from})
	} else {
		c.store.Invalidate(hash)
	}
	if a.NoName() {
		return
	}
	// The name exists, and so do those above it.
	wire.AnyType(key)
	c.markNameExists(key)
	if q.Type == dns.TypeDS {
		wire.NotDS(key)
		c.markNameExists(key)
	}
}

// markNameExists removes the entry which denies a name or an ancestor of it. AnyType has made the key.
func (c *Cache) markNameExists(key []byte) {
	for ; key != nil; key = parentName(key) {
		if c.findEntry(key) != nil {
			c.store.Invalidate(maphash.Bytes(c.seed, key))
		}
	}
}

// storeFailure stores a failure: a is the servers' response, or nil with err as the reason. A failure does not replace
// an answer, even an expired one, but postpones its refresh. Only a final failure replaces an expired answer, because
// the servers have decided that there is none. domain is as for getAnswer.
func (c *Cache) storeFailure(q *wire.Query, a *wire.Answer, err error, now time.Time, domain int, keep retryBackoff, from answerOrigin) {
	c.init()
	at := c.clock.sinceStart(now)
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
	hash, bits := maphash.Bytes(c.seed, key), key[len(key)-1]
	e := &entry{Answer: a, err: err, stored: at, fails: 1, bits: bits, answerOrigin: from}
	if a == nil {
		e.question = append([]byte(nil), key[:len(key)-1]...)
	}
	final := a != nil && a.Outcome == wire.FinalFailure
	spared := func(had *entry) bool {
		if !c.canServeStale(had, at) || final && had.remainingTime(at) <= 0 {
			return false
		}
		had.recordRefreshFailure(at, q.Type)
		return true
	}
	if f := c.findAnswer(key, at, domain); f.entry != nil && f.fails == 0 {
		if spared(f.entry) {
			return
		}
		if f.matchesKey(key) { // it is what has expired, of this type or of all
			c.store.Invalidate(maphash.Bytes(c.seed, key))
		}
	}
	c.store.Compute(hash, func(had *entry, ok bool) (*entry, otter.ComputeOp) {
		if ok && spared(had) {
			return had, otter.CancelOp
		}
		if ok && had.fails > 0 && had.remainingTime(at) > -forgetFailure && c.isCurrent(had) {
			e.fails = min(had.fails, 8) + 1
		}
		e.ttl = min(keep.first<<(e.fails-1), keep.most)
		return e, otter.WriteOp
	})
}

// recordRefreshFailure ends a refresh by a question of type qtype that got no answer.
func (e *entry) recordRefreshFailure(at time.Duration, qtype uint16) {
	e.postponeRefresh(at, qtype)
	e.releaseRefresh()
}

// postponeRefresh keeps the entry from being refreshed for staleRecheck by a question of that type, and by all if another type's
// was kept from it as well: of an entry that a name does not exist, servers may fail the questions of one type alone.
func (e *entry) postponeRefresh(at time.Duration, qtype uint16) {
	of := uint32(qtype)
	if int64(at) < e.noRefreshUntil.Load() && e.noRefreshOf.Load() != of {
		of = uint32(dns.TypeANY)
	}
	e.noRefreshOf.Store(of)
	e.noRefreshUntil.Store(int64(at + staleRecheck))
}

// Get returns the answer to q, which it does not change, if there is one that
// has not expired. The answer has q's ID and spelling, and its TTLs have counted
// down.
func (c *Cache) Get(q *dns.Msg) (*dns.Msg, bool) {
	ask, err := wire.NewQuery(q)
	if err != nil || !ask.Cacheable() {
		return nil, false
	}
	f := c.getAnswer(ask, time.Now(), 0)
	if f.isRefreshDue {
		f.releaseRefresh() // nobody here can
	}
	if f.freshness != fresh {
		return nil, false
	}
	a, view, err := f.answerFor(ask)
	if err != nil {
		return nil, false
	}
	return a.Message(q, ask, view), true
}

// Set keeps a response as if a server had just sent it, and reports whether it may
// be kept. It does not change r.
func (c *Cache) Set(r *dns.Msg) bool {
	ask := &dns.Msg{MsgHdr: r.MsgHdr, Question: r.Question}
	if opt := r.IsEdns0(); opt != nil {
		ask.Extra = []dns.RR{opt}
	}
	q, err := wire.NewQuery(ask)
	if err != nil || !r.Response || r.IsTsig() != nil || !q.Cacheable() {
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
	keep := a.Limit(c.ttlLimits())
	if keep == 0 {
		return false
	}
	c.storeAnswer(q, a, keep, time.Now(), answerOrigin{})
	return true
}

// Purge removes the entries of a name, of all types, and returns their number. It takes time in proportion to the size
// of the cache.
func (c *Cache) Purge(name string) int {
	c.init()
	var buf [wire.MaxName]byte
	n, err := dns.PackDomainName(dns.CanonicalName(name), buf[:], 0, nil, false)
	if err != nil {
		return 0
	}
	count := 0
	for k, e := range c.store.All() {
		own := e.question
		if e.Answer != nil {
			own = e.Question()
		}
		if len(own) == n+4 && string(own[:n]) == string(buf[:n]) {
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

// sizeStats returns the size and the number of entries of the cache.
func (c *Cache) sizeStats() *observe.DNSCacheStats {
	return &observe.DNSCacheStats{Entries: c.Len(), Bytes: c.Bytes(), MaxBytes: c.maxBytes()}
}
