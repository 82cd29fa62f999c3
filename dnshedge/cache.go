package dnshedge

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
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

	failureMemoryTime = 5 * time.Minute // a failure that expired this long ago does not lengthen the lifetime of the next failure

	refreshClaim = 30 * time.Second // the longest time for which one refresh of an entry prevents a second one

	refreshShare = 10 // an entry is refreshed in the last tenth of its TTL,
	refreshHits  = 2  // if it had more hits than this
)

// A failureTTL determines how long failures are cached (RFC 9520 §3.2). The field first is the duration for the first
// failure of a question. The duration doubles with each further failure in a row, up to the duration in the field most.
type failureTTL struct{ first, most time.Duration }

var (
	serverFailureTTL    = failureTTL{time.Second, 5 * time.Second}      // servers cache failures themselves
	exchangerFailureTTL = failureTTL{5 * time.Second, 20 * time.Second} // an Exchanger may ask all servers of a zone for each question; the limit of 20 s lets names recover soon after an outage
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

// Cache stores the answers of a Client:
//
//   - positive answers for their TTL (RFC 2181 §5.2),
//   - negative answers for the TTL of their SOA record (RFC 2308),
//   - failures for a few seconds (RFC 9520),
//   - expired answers as a substitute in case the servers fail (RFC 8767).
//
// An NXDOMAIN answer also answers questions for all names below its name (RFC 8020), if a trusted validator has checked
// it: see Upstream.TrustAD and Exchanger. The addresses of an answer are rotated. Answers of the system's servers are
// invalidated when the system's servers change, for example when the network changes.
//
// The zero value is an empty cache with the defaults below. The fields must not be changed after first use. A Cache is
// safe for concurrent use. Several Clients may share a Cache if their servers give the same answers.
type Cache struct {
	// MaxBytes limits the estimated memory of the entries. The entries that are least likely to be requested again are
	// removed first. Zero: 16 MiB.
	MaxBytes int64

	// MinTTL raises shorter TTLs of positive answers. An answer with a TTL of 0 is not cached. Zero: no TTL is raised.
	// MinTTL must not exceed MaxTTL.
	MinTTL time.Duration

	// MaxTTL lowers longer TTLs. Zero: a day.
	MaxTTL time.Duration

	// MaxNegativeTTL limits how long an answer is cached that denies the existence of a name or of a type. Zero: an
	// hour. Negative: such an answer is not cached. 5 s suits clusters whose services change often.
	MaxNegativeTTL time.Duration

	// StaleAfter is how long a caller waits for the servers before it gets an expired answer. Zero: 1.8 s. Negative: a
	// caller gets an expired answer at once, and the answer is refreshed in the background.
	StaleAfter time.Duration

	// MaxStale is how long an answer is stored after it has expired. Zero: a day. Negative: not at all.
	MaxStale time.Duration

	// NoRefresh turns off the refresh of popular entries before they expire.
	NoRefresh bool

	once  sync.Once
	store *otter.Cache[uint64, *entry] // by the hash of the key
	seed  maphash.Seed                 // random, so that clients cannot construct keys with the same hash
	id    uint64                       // number of the Cache in this process, from 1
	clock sleepAwareClock              // starts when the cache is first used

	systemChanges atomic.Uint32 // number of times that the system's servers have changed
	clients       atomic.Uint32 // number of Clients that have used the Cache
}

// An answerOrigin records where a cached answer comes from: the Client, the route, and the generation of the system's
// servers (a number that changes with them). The route is the part of Client.Routes, or of the system's configuration,
// that determined the servers or Exchanger. An answerOrigin decides whether Export includes the answer, and whether the
// answer is still valid.
//
// The zero value is the origin of an answer of Cache.Set. Every Client with this Cache exports the answer, and it
// remains valid until it expires.
type answerOrigin struct {
	client    uint16 // number of the Client that got the answer; 0: Cache.Set stored the answer
	system    uint16 // generation of the system's servers; 0: the answer is not theirs
	domainLen uint8  // length in wire format of the domain of the route; 0: no route was used
	validated bool   // a trusted validator has checked the answer
}

// systemGeneration returns the generation of the operating system's DNS servers: a number that changes whenever these
// servers change. Entries with their answers store the number, and are invalid when it is no longer the same. It is
// never 0.
func (c *Cache) systemGeneration() uint16 { return 1 + uint16(c.systemChanges.Load()%math.MaxUint16) }

// notExported is the client number of entries that no export includes: entries of all Clients after the first 65534,
// and entries with several sources.
const notExported = math.MaxUint16

// addClient registers a Client that starts to use the Cache, and returns its number, counted from 1. Entries store the
// number of their Client, because Export writes only the answers of its own Client. Clients after the first 65534 all
// get notExported, and their answers are never exported.
func (c *Cache) addClient() uint16 { return uint16(min(c.clients.Add(1), notExported)) }

// mergeOrigin adds the origin of an alias's target to o, the origin of an answer that ends with the alias. The answer
// then includes records from both, so it is never exported. If the system's servers gave any part of it, the entry
// becomes invalid when these servers change.
func (o *answerOrigin) mergeOrigin(target answerOrigin) {
	o.client = notExported
	if o.system == 0 {
		o.system = target.system
	}
}

// isCurrent reports whether the source of the entry is still valid. It is false if the entry is an answer of the
// operating system's DNS servers, and the system has other servers now.
func (c *Cache) isCurrent(e *entry) bool { return e.system == 0 || e.system == c.systemGeneration() }

// An entry is a cached answer or failure. After it is stored, only its atomic fields change, so several goroutines may
// use it.
type entry struct {
	*wire.Answer                // nil if err is set
	err           error         // error of an exchange without a response; nil if Answer is set
	question      []byte        // name, type and class as in the key; nil if Answer is set
	stored        time.Duration // when the TTLs began to count down, as time since the epoch of the cache's clock
	ttl           time.Duration
	failuresInRow uint8 // failures in a row; 0: the entry is an answer
	keyBits       byte  // last byte of the key
	answerOrigin

	hits                atomic.Uint32
	noRefreshOf         atomic.Uint32 // the question type to which noRefreshUntil applies; [dns.TypeANY]: all types
	refreshClaimedUntil atomic.Int64  // until when a refresh prevents a second one, in nanoseconds since the epoch
	noRefreshUntil      atomic.Int64  // in nanoseconds since the epoch
}

// cacheCount is the number of Caches that have been used in this process.
var cacheCount atomic.Uint64

// init creates the empty store of the Cache, unless it exists. Each method that uses the store calls init first.
func (c *Cache) init() {
	c.once.Do(func() {
		c.seed, c.id = maphash.MakeSeed(), cacheCount.Add(1)
		c.clock.epoch = time.Now()
		sizeInBytes := func(_ uint64, e *entry) uint32 { // an estimate; TestCacheStaysWithinMaxBytes measures the constant
			n := 380 + len(e.question)
			if e.Answer != nil {
				n += len(e.Packed()) + 2*e.RecordCount()
				for _, x := range e.EDE {
					n += 32 + len(x.Text)
				}
			}
			return uint32(n)
		}
		c.store = otter.Must(&otter.Options[uint64, *entry]{MaximumWeight: uint64(c.maxBytes()), Weigher: sizeInBytes})
	})
}

// matchesKey reports whether the entry is stored under key, and not under another key with the same hash. The store
// finds entries only by the hash of their key.
func (e *entry) matchesKey(key []byte) bool {
	n := len(key) - wire.KeyLen
	own := e.question
	if e.Answer != nil {
		own = e.Question()
	}
	if len(own) != n+4 || e.keyBits != key[n+4] || e.keyBits&wire.KeyNameError == 0 && (own[n] != key[n] || own[n+1] != key[n+1]) {
		return false
	}
	return string(own[:n]) == string(key[:n])
}

// findEntry returns the entry that is stored under a key, or nil. The entry may have expired. An answer of the operating
// system's servers is not returned if the system has other servers now.
func (c *Cache) findEntry(key []byte) *entry {
	if e, ok := c.store.GetIfPresent(maphash.Bytes(c.seed, key)); ok && e.matchesKey(key) && c.isCurrent(e) {
		return e
	}
	return nil
}

// remainingTime returns how long the entry stays fresh after at, a time of the cache's clock (sleepAwareClock). It is
// negative if the entry has expired.
func (e *entry) remainingTime(at time.Duration) time.Duration { return e.ttl - (at - e.stored) }

// canServeStale reports whether the answer e may be served at the time at if the servers fail (RFC 8767). It is true
// until the answer has been expired for MaxStale. It is false for a failure, for nil, and for an answer of system
// servers that have changed. at is a time of the cache's clock (sleepAwareClock).
func (c *Cache) canServeStale(e *entry, at time.Duration) bool {
	return e != nil && e.failuresInRow == 0 && e.remainingTime(at) > -durationOrDefault(c.MaxStale, defaultMaxStale) && c.isCurrent(e)
}

func (c *Cache) maxBytes() int64 { return cmp.Or(max(c.MaxBytes, 0), defaultMaxBytes) }

// ttlLimits returns the limits for the TTLs of answers in this cache: MinTTL, MaxTTL and MaxNegativeTTL, with
// defaults for fields that are zero.
func (c *Cache) ttlLimits() *wire.TTLLimits {
	return &wire.TTLLimits{
		Min: c.MinTTL, Max: durationOrDefault(c.MaxTTL, defaultMaxTTL),
		MaxNegative: durationOrDefault(c.MaxNegativeTTL, defaultMaxNegative),
	}
}

// staleAfter returns the effective StaleAfter: the time after which a caller gets an expired answer if the servers have
// not responded.
func (c *Cache) staleAfter() time.Duration { return durationOrDefault(c.StaleAfter, defaultStaleAfter) }

// durationOrDefault returns the effective value of a configuration field d. Zero means defaultValue, and a negative
// value means 0.
func durationOrDefault(d, defaultValue time.Duration) time.Duration {
	if d == 0 {
		return defaultValue
	}
	return max(d, 0)
}

// validate returns an error that names the first field with an invalid value, or nil.
func (c *Cache) validate() error {
	switch limit := durationOrDefault(c.MaxTTL, defaultMaxTTL); {
	case c.MaxBytes < 0:
		return fmt.Errorf("dnshedge: Cache.MaxBytes is %d; want 0 or more", c.MaxBytes)
	case c.MinTTL < 0:
		return fmt.Errorf("dnshedge: Cache.MinTTL is %v; want 0 or more", c.MinTTL)
	case c.MaxTTL < 0:
		return fmt.Errorf("dnshedge: Cache.MaxTTL is %v; want 0 or more", c.MaxTTL)
	case c.MinTTL > limit:
		return fmt.Errorf("dnshedge: Cache.MinTTL is %v; want at most MaxTTL, %v", c.MinTTL, limit)
	}
	return nil
}

// freshness determines whether a cached entry may be used now, only if the servers fail, or not at all.
type freshness int

const (
	entryMissing freshness = iota // there is no usable entry
	entryFresh                    // the entry may be used at once
	entryStale                    // the entry may be used if the servers fail
)

// A cachedAnswer is the result of a search in the Cache: the entry for a question, and whether it is fresh, stale or
// missing. If it is missing, the embedded entry is nil.
type cachedAnswer struct {
	*entry
	freshness
	isRefreshDue   bool          // the caller should refresh the entry now
	isFromAncestor bool          // the entry proves that an ancestor of the name does not exist
	rotation       uint32        // number of positions by which the addresses are rotated
	at             time.Duration // time of the lookup, since the epoch
}

// getAnswer searches the cache at the present time now for an answer to the question q, and counts a hit of an entry
// for q's name. If there is no usable entry, the freshness in the result is entryMissing.
//
// domain is the length in bytes of the domain of q's route, in wire format, or 0 without a route. An NXDOMAIN entry for
// a name above that domain is ignored, because it comes from other servers.
//
// If the field isRefreshDue of the result is true, the caller has claimed the refresh of the entry. For 30 s no other
// caller refreshes it. The caller must query the servers for a new answer, or call releaseRefresh.
func (c *Cache) getAnswer(q *wire.Query, now time.Time, domain int) cachedAnswer {
	c.init()
	var buf [wire.MaxKey]byte
	f := c.findAnswer(q.AppendKey(buf[:0]), c.clock.timeSinceEpoch(now), domain)
	if f.freshness == entryMissing || f.isFromAncestor {
		return f
	}
	f.rotation = f.hits.Add(1)
	if c.isRefreshDue(&f, f.rotation) {
		f.isRefreshDue = f.claimRefresh()
	}
	return f
}

// getFreshAnswer returns the cached answer to q and true, if the answer has not expired at the present time now and no
// refresh is due. It counts a hit of the entry.
//
// Otherwise it returns false and counts nothing. It also returns false for a cached failure, and for an NXDOMAIN entry
// of an ancestor of q's name. getAnswer finds these entries, expired entries, and entries whose refresh is due.
func (c *Cache) getFreshAnswer(q *wire.Query, now time.Time) (cachedAnswer, bool) {
	if !q.IsCacheable() {
		return cachedAnswer{}, false
	}
	c.init()
	var buf [wire.MaxKey]byte
	f := c.findAnswer(q.AppendKey(buf[:0]), c.clock.timeSinceEpoch(now), 0)
	if f.freshness != entryFresh || f.failuresInRow > 0 || f.isFromAncestor || c.isRefreshDue(&f, f.hits.Load()+1) {
		return f, false
	}
	f.rotation = f.hits.Add(1)
	return f, true
}

// isRefreshDue reports whether f, a result of findAnswer, should be refreshed now, before it expires. It is true for an
// answer that was used more than twice and is in the last tenth of its TTL. hits is the number of uses, including the
// present one.
//
// It is false for a failure, during another refresh, for 30 s after a failed or slow refresh, and if NoRefresh is set.
// It does not claim the refresh: see claimRefresh.
func (c *Cache) isRefreshDue(f *cachedAnswer, hits uint32) bool {
	return f.freshness == entryFresh && f.remainingTime(f.at) <= f.ttl/refreshShare && f.failuresInRow == 0 && !c.NoRefresh &&
		hits > refreshHits && int64(f.at) >= f.noRefreshUntil.Load() && int64(f.at) >= f.refreshClaimedUntil.Load()
}

// findAnswer returns the best entry for the cache key of a question: an entry for the question, or a proof that the
// name or an ancestor does not exist. A fresh entry is preferred to a stale one, and a newer stale entry to an older
// one. If no entry is usable, the freshness is entryMissing.
//
// at is the present time of the cache's clock (sleepAwareClock). domain is the length in bytes of the domain of the
// question's route, in wire format, or 0. A proof for an ancestor above that domain is ignored, because it comes from
// other servers.
//
// Unless findAnswer finds a fresh entry for the question, it changes key to the key of the name's NXDOMAIN entry
// (wire.SetNameErrorType).
func (c *Cache) findAnswer(key []byte, at time.Duration, domain int) cachedAnswer {
	own := c.findEntry(key)
	if own != nil && own.remainingTime(at) > 0 {
		return cachedAnswer{entry: own, freshness: entryFresh, at: at}
	}
	wire.SetNameErrorType(key)
	gone := c.findEntry(key)
	if gone != nil && gone.remainingTime(at) > 0 {
		return cachedAnswer{entry: gone, freshness: entryFresh, at: at}
	}
	if e := c.findAncestor(key, at, domain); e != nil {
		return cachedAnswer{entry: e, freshness: entryFresh, isFromAncestor: true, at: at}
	}
	// The newer answer is more likely to be still true.
	if c.canServeStale(own, at) && !(c.canServeStale(gone, at) && gone.stored > own.stored) {
		return cachedAnswer{entry: own, freshness: entryStale, at: at}
	}
	if c.canServeStale(gone, at) {
		return cachedAnswer{entry: gone, freshness: entryStale, at: at}
	}
	return cachedAnswer{at: at}
}

// findAncestor returns a fresh entry which proves that an ancestor of the key's name does not exist, or nil. The name
// then does not exist either (RFC 8020). key must be the key of the name's NXDOMAIN entry, which wire.SetNameErrorType
// makes from a cache key. at is the present time of the cache's clock (sleepAwareClock).
//
// domain is the length in bytes of the domain of the question's route, in wire format, or 0. Ancestors above that
// domain do not count, because their entries come from other servers.
//
// Only answers that a trusted validator has checked count. Other servers may deny a name although names exist below it:
// for example, public servers deny corp., and internal servers have ad.corp.
func (c *Cache) findAncestor(key []byte, at time.Duration, domain int) (e *entry) {
	was := [2]byte(key[len(key)-wire.KeyLen:])
	wire.ToNonDSKey(key)
	for up := parentKey(key); up != nil && len(up)-wire.KeyLen >= domain; up = parentKey(up) {
		if e = c.findEntry(up); e != nil && e.validated && e.remainingTime(at) > 0 {
			break
		}
		e = nil
	}
	copy(key[len(key)-wire.KeyLen:], was[:])
	return e
}

// parentKey returns the cache key for the parent of the name in key: for the key of a.example, the key of example.
// It returns nil if the parent is the root. The result shares memory with key.
func parentKey(key []byte) []byte {
	if up := key[1+int(key[0]):]; len(up) > 1+wire.KeyLen {
		return up
	}
	return nil
}

// claimRefresh makes sure that only one caller at a time refreshes the cached answer. It returns true if the caller
// must query the servers for a new answer. It returns false while another caller does that: until releaseRefresh is
// called, at most for 30 s (refreshClaim).
func (f *cachedAnswer) claimRefresh() bool {
	until := f.refreshClaimedUntil.Load()
	return int64(f.at) >= until && f.refreshClaimedUntil.CompareAndSwap(until, int64(f.at+refreshClaim))
}

// releaseRefresh undoes claimRefresh, because the refresh of the entry has failed or was not started. Another caller may
// then refresh the entry.
func (e *entry) releaseRefresh() { e.refreshClaimedUntil.Store(0) }

// isRefreshPostponed reports whether a question of type qtype must not refresh the cached answer yet, because
// postponeRefresh was called in the last 30 s after a failed or slow refresh.
func (f *cachedAnswer) isRefreshPostponed(qtype uint16) bool {
	of := f.noRefreshOf.Load()
	return int64(f.at) < f.noRefreshUntil.Load() && (of == uint32(dns.TypeANY) || of == uint32(qtype))
}

// Extended errors (RFC 8914) of responses from the cache.
var (
	staleAnswer = []wire.EDE{{Code: edeStale}}       // of an expired answer
	staleNX     = []wire.EDE{{Code: edeStaleNX}}     // of an expired NXDOMAIN answer
	cachedError = []wire.EDE{{Code: edeCachedError}} // of a failure
)

// toAnswer converts the cached answer into the response to q: the answer, and how it is presented. The presentation is
// the age to subtract from the TTLs, the rotation of addresses, and extended errors. The TTLs of an expired answer are
// 30 s instead. For a cached failure without a response, toAnswer returns the error.
func (f *cachedAnswer) toAnswer(q *wire.Query) (*wire.Answer, wire.ResponseOptions, error) {
	switch {
	case f.Answer == nil:
		return nil, wire.ResponseOptions{}, f.err
	case f.isFromAncestor:
		a, err := f.NewDenialBelow(q)
		return a, wire.ResponseOptions{Age: f.at - f.stored}, err
	case f.freshness == entryStale:
		v := wire.ResponseOptions{Stale: staleTTL, Rotation: f.rotation, EDE: staleAnswer}
		if f.Rcode() == dns.RcodeNameError {
			v.EDE = staleNX
		}
		return f.Answer, v, nil
	}
	v := wire.ResponseOptions{Age: f.at - f.stored, Rotation: f.rotation}
	if f.failuresInRow > 0 {
		v.EDE = cachedError
	}
	return f.Answer, v, nil
}

// storeAnswer stores the answer a to q at the present time now, for the duration ttl. The caller must have limited the
// TTLs of the records in a. from is the origin of the answer. If ttl is 0, the answer is not stored, and an older entry
// for q is removed.
//
// In both cases storeAnswer removes entries with q's flags DO and CD that contradict a. If a denies the existence of
// q's name, this is the entry for q's type. Otherwise these are the NXDOMAIN entries of the name and its ancestors.
// Separate NXDOMAIN entries for DS remain unless q has the type DS.
func (c *Cache) storeAnswer(q *wire.Query, a *wire.Answer, ttl time.Duration, now time.Time, from answerOrigin) {
	c.init()
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
	hash := maphash.Bytes(c.seed, key)
	if a.DeniesQuestionName() {
		c.store.Invalidate(hash) // the name exists with no type (RFC 2308 §5)
		wire.SetNameErrorType(key)
		hash = maphash.Bytes(c.seed, key)
	}
	if ttl > 0 {
		c.store.Set(hash, &entry{Answer: a, stored: c.clock.timeSinceEpoch(now), ttl: ttl, keyBits: key[len(key)-1], answerOrigin: from})
	} else {
		c.store.Invalidate(hash)
	}
	if a.DeniesQuestionName() {
		return
	}
	// The name exists, and so do its ancestors.
	wire.SetNameErrorType(key)
	c.markNameExists(key)
	if q.Type == dns.TypeDS {
		wire.ToNonDSKey(key)
		c.markNameExists(key)
	}
}

// markNameExists removes the NXDOMAIN entries of a name and of its ancestors, because an answer has shown that the name
// exists. key must be the key of the name's NXDOMAIN entry, which wire.SetNameErrorType makes from a cache key. If it
// is the separate key for type DS, only the entries for DS are removed.
func (c *Cache) markNameExists(key []byte) {
	for ; key != nil; key = parentKey(key) {
		if c.findEntry(key) != nil {
			c.store.Invalidate(maphash.Bytes(c.seed, key))
		}
	}
}

// storeFailure caches a failure of the question q at the present time now, so that the servers are not queried again at
// once. a is the failure response. If a is nil, err is the error of the exchange. keep determines how long the failure
// is cached. from is the origin of the failure.
//
// If the cache has an answer, even an expired one, storeFailure keeps it and prevents its refresh for 30 s. But the
// failure replaces an expired answer if it is final (wire.FinalFailure): the server withholds the answer because of
// DNSSEC or a filter.
//
// domain is the length in bytes of the domain of q's route, in wire format, or 0. An NXDOMAIN answer for a name above
// that domain is no answer to q, because it comes from other servers.
func (c *Cache) storeFailure(q *wire.Query, a *wire.Answer, err error, now time.Time, domain int, keep failureTTL, from answerOrigin) {
	c.init()
	at := c.clock.timeSinceEpoch(now)
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
	hash, bits := maphash.Bytes(c.seed, key), key[len(key)-1]
	e := &entry{Answer: a, err: err, stored: at, failuresInRow: 1, keyBits: bits, answerOrigin: from}
	if a == nil {
		e.question = append([]byte(nil), key[:len(key)-1]...)
	}
	final := a != nil && a.Outcome == wire.FinalFailure
	spared := func(had *entry) bool {
		if !c.canServeStale(had, at) || final && had.remainingTime(at) <= 0 {
			return false
		}
		had.postponeRefresh(at, q.Type) // the refresh has failed
		had.releaseRefresh()
		return true
	}
	if f := c.findAnswer(key, at, domain); f.entry != nil && f.failuresInRow == 0 {
		if spared(f.entry) {
			return
		}
		if f.matchesKey(key) { // the entry of this type, or of all types, has expired
			c.store.Invalidate(maphash.Bytes(c.seed, key))
		}
	}
	c.store.Compute(hash, func(had *entry, ok bool) (*entry, otter.ComputeOp) {
		if ok && spared(had) {
			return had, otter.CancelOp
		}
		if ok && had.failuresInRow > 0 && had.remainingTime(at) > -failureMemoryTime && c.isCurrent(had) {
			e.failuresInRow = min(had.failuresInRow, 8) + 1
		}
		e.ttl = min(keep.first<<(e.failuresInRow-1), keep.most)
		return e, otter.WriteOp
	})
}

// postponeRefresh prevents questions of type qtype from refreshing the entry for the next 30 s (staleRecheck), because
// a refresh has failed or is slow. now is the present time of the cache's clock (sleepAwareClock).
//
// An NXDOMAIN entry answers questions of several types. If refreshes by another type are already prevented,
// postponeRefresh prevents refreshes by every type, because the whole name probably fails.
func (e *entry) postponeRefresh(now time.Duration, qtype uint16) {
	of := uint32(qtype)
	if int64(now) < e.noRefreshUntil.Load() && e.noRefreshOf.Load() != of {
		of = uint32(dns.TypeANY)
	}
	e.noRefreshOf.Store(of)
	e.noRefreshUntil.Store(int64(now + staleRecheck))
}

// Get returns a cached answer to q that has not expired, and true. It may be a failure response, such as SERVFAIL.
// Without an answer Get returns nil and false. The answer has the ID of q, its name in the same letter case, and the
// remaining TTLs. Get does not change q.
func (c *Cache) Get(q *dns.Msg) (*dns.Msg, bool) {
	ask, err := wire.NewQuery(q)
	if err != nil || !ask.IsCacheable() {
		return nil, false
	}
	f := c.getAnswer(ask, time.Now(), 0)
	if f.isRefreshDue {
		f.releaseRefresh() // a Cache cannot refresh entries
	}
	if f.freshness != entryFresh {
		return nil, false
	}
	a, view, err := f.toAnswer(ask)
	if err != nil {
		return nil, false
	}
	return a.Message(q, ask, view), true
}

// Set stores the response r as if a server had just sent it, and returns true. It does not change r.
//
// It returns false, and stores nothing, if r must not be cached. This applies if r is malformed, signed (TSIG) or no
// response, or has a TTL of 0. It also applies to questions without RD, with EDNS options, of type ANY, or of a class
// other than IN.
func (c *Cache) Set(r *dns.Msg) bool {
	ask := &dns.Msg{MsgHdr: r.MsgHdr, Question: r.Question}
	if opt := r.IsEdns0(); opt != nil {
		ask.Extra = []dns.RR{opt}
	}
	q, err := wire.NewQuery(ask)
	if err != nil || !r.Response || r.IsTsig() != nil || !q.IsCacheable() {
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
	keep := a.LimitTTLs(c.ttlLimits())
	if keep == 0 {
		return false
	}
	c.storeAnswer(q, a, keep, time.Now(), answerOrigin{})
	return true
}

// Purge removes all entries of a name, of every type and including failures, and returns their number. It has no effect
// on names below. The name may be in upper or lower case, with or without the final dot. The running time is
// proportional to the size of the cache.
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

// Len returns the approximate number of entries, including expired ones.
func (c *Cache) Len() int {
	c.init()
	return c.store.EstimatedSize()
}

// Bytes returns the approximate memory of the entries in bytes, which MaxBytes limits.
func (c *Cache) Bytes() int64 {
	c.init()
	return int64(c.store.WeightedSize())
}
