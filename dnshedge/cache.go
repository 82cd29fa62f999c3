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
// An NXDOMAIN answer that a trusted validator has checked (Upstream.TrustAD, Exchanger) also denies all names below
// (RFC 8020). The addresses in an answer are rotated with each use. Answers of the system's servers become invalid when
// these servers change.
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

// An answerOrigin records which Client stored a cached answer, and which servers gave the answer. It determines which
// Clients may export the answer (Client.Export), and when the answer becomes invalid. The zero value is the origin of
// an answer that Cache.Set has stored.
type answerOrigin struct {
	client    uint16 // number of the Client that got the answer, or notExported; 0: Cache.Set stored it, for all Clients
	system    uint16 // generation of the system's servers that gave the answer; 0: the answer is from another source
	domainLen uint8  // length in wire format of the domain in the route (see the type route); 0: no domain
	validated bool   // a trusted validator has checked the answer
}

// systemGeneration returns the current generation of the operating system's DNS servers: a number that changes when
// these servers change, and that is never 0. An entry with an answer of these servers stores the generation, and is
// invalid when another generation is current.
func (c *Cache) systemGeneration() uint16 { return 1 + uint16(c.systemChanges.Load()%math.MaxUint16) }

// notExported is the client number in entries that no export includes. These are the entries of all Clients after the
// first 65534, and entries with several sources.
const notExported = math.MaxUint16

// addClient registers a Client that starts to use the Cache, and returns the number of the Client, counted from 1.
// After 65534 Clients, it returns notExported for every further Client.
func (c *Cache) addClient() uint16 { return uint16(min(c.clients.Add(1), notExported)) }

// mergeOrigin updates the origin of an answer before records with the origin target are added to the answer. The
// combined answer is never exported (Client.Export). It becomes invalid when the operating system's servers change, if
// they gave a part of it.
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
	noRefreshUntil      atomic.Int64  // until when refreshes are prevented, in nanoseconds since the epoch
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

// findEntry returns the entry that is stored under a key, or nil. The entry may have expired. An answer of the
// operating system's servers is not returned if the system has other servers now.
func (c *Cache) findEntry(key []byte) *entry {
	if e, ok := c.store.GetIfPresent(maphash.Bytes(c.seed, key)); ok && e.matchesKey(key) && c.isCurrent(e) {
		return e
	}
	return nil
}

// remainingTime returns how long the entry stays fresh after at, a time of the cache's clock (sleepAwareClock). It is
// negative if the entry has expired.
func (e *entry) remainingTime(at time.Duration) time.Duration { return e.ttl - (at - e.stored) }

// canServeStale reports whether e is an answer that may be served if the servers fail: fresh, or expired for less than
// MaxStale (RFC 8767). It is false for nil, failures, and answers of former system servers. now is a time of the
// cache's clock.
func (c *Cache) canServeStale(e *entry, now time.Duration) bool {
	return e != nil && e.failuresInRow == 0 && e.remainingTime(now) > -durationOrDefault(c.MaxStale, defaultMaxStale) && c.isCurrent(e)
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

// A cachedAnswer is the result of a search in the Cache: the entry that answers a question, and its freshness. If there
// is no usable entry, the freshness is entryMissing, and the embedded entry is nil.
type cachedAnswer struct {
	*entry
	freshness
	isRefreshDue   bool          // the caller should refresh the entry now
	isFromAncestor bool          // the entry proves that an ancestor of the name does not exist
	rotation       uint32        // number of positions by which the addresses are rotated
	at             time.Duration // time of the search, since the epoch of the cache's clock
}

// getAnswer searches the cache for an answer to q, fresh or expired. domainLen is the length in wire format of the
// configured domain that matches q, or 0. If isRefreshDue is true in the result, the caller must query the servers or
// call releaseRefresh.
func (c *Cache) getAnswer(q *wire.Query, now time.Time, domainLen int) cachedAnswer {
	c.init()
	var buf [wire.MaxKey]byte
	f := c.findAnswer(q.AppendKey(buf[:0]), c.clock.timeSinceEpoch(now), domainLen)
	if f.freshness == entryMissing || f.isFromAncestor { // uses of the NXDOMAIN entry of an ancestor are not counted
		return f
	}
	f.rotation = f.hits.Add(1)
	if c.isRefreshDue(&f, f.rotation) {
		f.isRefreshDue = f.claimRefresh()
	}
	return f
}

// getFreshAnswer returns the cached answer to q and true, and counts the use of the answer. It returns false and counts
// nothing if the answer has expired, is a failure, should be refreshed, or is not in the cache.
func (c *Cache) getFreshAnswer(q *wire.Query, now time.Time) (cachedAnswer, bool) {
	if !q.IsCacheable() {
		return cachedAnswer{}, false
	}
	c.init()
	var buf [wire.MaxKey]byte
	f := c.findAnswer(q.AppendKey(buf[:0]), c.clock.timeSinceEpoch(now), 0)
	// The NXDOMAIN entry of an ancestor may come from other servers than q's route. getAnswer checks this.
	if f.freshness != entryFresh || f.failuresInRow > 0 || f.isFromAncestor || c.isRefreshDue(&f, f.hits.Load()+1) {
		return f, false
	}
	f.rotation = f.hits.Add(1)
	return f, true
}

// isRefreshDue reports whether the answer f should be refreshed before it expires. This requires more than two uses,
// and the last tenth of its TTL. hits is the number of uses, including the present one. The caller must call
// claimRefresh before the refresh.
func (c *Cache) isRefreshDue(f *cachedAnswer, hits uint32) bool {
	// noRefreshUntil follows a failed or slow refresh; refreshClaimedUntil means that another caller refreshes the entry.
	return f.freshness == entryFresh && f.remainingTime(f.at) <= f.ttl/refreshShare && f.failuresInRow == 0 && !c.NoRefresh &&
		hits > refreshHits && int64(f.at) >= f.noRefreshUntil.Load() && int64(f.at) >= f.refreshClaimedUntil.Load()
}

// findAnswer returns the cache entry of the question with the given key, or the NXDOMAIN entry of its name or of an
// ancestor. domainLen is the length in wire format of the configured domain that matches the question, or 0. findAnswer
// may change key.
func (c *Cache) findAnswer(key []byte, now time.Duration, domainLen int) cachedAnswer {
	own := c.findEntry(key)
	if own != nil && own.remainingTime(now) > 0 {
		return cachedAnswer{entry: own, freshness: entryFresh, at: now}
	}
	wire.SetNameErrorType(key) // storeFailure uses the changed key of a question without a fresh entry
	gone := c.findEntry(key)
	if gone != nil && gone.remainingTime(now) > 0 {
		return cachedAnswer{entry: gone, freshness: entryFresh, at: now}
	}
	if e := c.findAncestor(key, now, domainLen); e != nil {
		return cachedAnswer{entry: e, freshness: entryFresh, isFromAncestor: true, at: now}
	}
	// The newer answer is more likely to be still true.
	if c.canServeStale(own, now) && !(c.canServeStale(gone, now) && gone.stored > own.stored) {
		return cachedAnswer{entry: own, freshness: entryStale, at: now}
	}
	if c.canServeStale(gone, now) {
		return cachedAnswer{entry: gone, freshness: entryStale, at: now}
	}
	return cachedAnswer{at: now}
}

// findAncestor returns an unexpired, validated NXDOMAIN entry of an ancestor of the key's name, or nil. It proves that
// the name does not exist (RFC 8020). key must be the key of an NXDOMAIN entry. Ancestors shorter than domainLen bytes
// in wire format are ignored.
func (c *Cache) findAncestor(key []byte, now time.Duration, domainLen int) (e *entry) {
	savedType := [2]byte(key[len(key)-wire.KeyLen:])
	wire.ToNonDSKey(key)
	// Names above the matching domain have other servers. Without a validator, a server may deny a name although names
	// exist below it: public servers deny corp., and internal servers have ad.corp.
	for up := parentKey(key); up != nil && len(up)-wire.KeyLen >= domainLen; up = parentKey(up) {
		if e = c.findEntry(up); e != nil && e.validated && e.remainingTime(now) > 0 {
			break
		}
		e = nil
	}
	copy(key[len(key)-wire.KeyLen:], savedType[:])
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
// must query the servers for a new answer. It then returns false to other callers for 30 s (refreshClaim), or until
// releaseRefresh is called.
func (f *cachedAnswer) claimRefresh() bool {
	until := f.refreshClaimedUntil.Load()
	return int64(f.at) >= until && f.refreshClaimedUntil.CompareAndSwap(until, int64(f.at+refreshClaim))
}

// releaseRefresh undoes claimRefresh, because the refresh of the entry has failed or was not started. Then another
// caller may refresh the entry.
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

// toAnswer returns the cached answer to q, and the options for the response: its age, the rotation of its addresses,
// and extended errors (RFC 8914). An expired answer gets TTLs of 30 s. For a failure without a response, toAnswer
// returns the stored error.
func (f *cachedAnswer) toAnswer(q *wire.Query) (*wire.Answer, wire.ResponseOptions, error) {
	switch {
	case f.Answer == nil:
		return nil, wire.ResponseOptions{}, f.err
	case f.isFromAncestor:
		a, err := f.NewDenialBelow(q) // with the name of q
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

// storeAnswer caches the answer a to the question q for the duration ttl. If ttl is 0, it removes the cached answer. It
// also removes cached answers that a disproves. The caller must have applied the TTL limits of the Cache to a.
func (c *Cache) storeAnswer(q *wire.Query, a *wire.Answer, ttl time.Duration, now time.Time, origin answerOrigin) {
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
		c.store.Set(hash, &entry{Answer: a, stored: c.clock.timeSinceEpoch(now), ttl: ttl, keyBits: key[len(key)-1], answerOrigin: origin})
	} else {
		c.store.Invalidate(hash)
	}
	if a.DeniesQuestionName() {
		return
	}
	// The name exists, and so do its ancestors. Only NXDOMAIN entries with the flags DO and CD of q are removed.
	wire.SetNameErrorType(key)
	c.markNameExists(key)
	if q.Type == dns.TypeDS {
		wire.ToNonDSKey(key)
		c.markNameExists(key)
	}
}

// markNameExists removes the cached NXDOMAIN answers for a name and for its ancestors. The caller has an answer that
// shows that the name exists. key must be the cache key of the NXDOMAIN answer for the name (wire.SetNameErrorType).
func (c *Cache) markNameExists(key []byte) {
	// The key for type DS is separate: with it, only NXDOMAIN entries for DS are removed.
	for ; key != nil; key = parentKey(key) {
		if c.findEntry(key) != nil {
			c.store.Invalidate(maphash.Bytes(c.seed, key))
		}
	}
}

// storeFailure caches a failure to answer q: the response a, or the error err if a is nil. A usable cached answer is
// kept instead. ttl determines the duration. domainLen is the length in wire format of the configured domain that
// matches q, or 0.
func (c *Cache) storeFailure(q *wire.Query, a *wire.Answer, err error, now time.Time, domainLen int, ttl failureTTL, origin answerOrigin) {
	c.init()
	at := c.clock.timeSinceEpoch(now)
	var buf [wire.MaxKey]byte
	key := q.AppendKey(buf[:0])
	hash, bits := maphash.Bytes(c.seed, key), key[len(key)-1]
	e := &entry{Answer: a, err: err, stored: at, failuresInRow: 1, keyBits: bits, answerOrigin: origin}
	if a == nil {
		e.question = append([]byte(nil), key[:len(key)-1]...)
	}
	// By a final failure the server withholds the answer, for example by a filter, so an expired answer is dropped.
	final := a != nil && a.Outcome == wire.FinalFailure
	spared := func(had *entry) bool {
		if !c.canServeStale(had, at) || final && had.remainingTime(at) <= 0 {
			return false
		}
		had.postponeRefresh(at, q.Type) // for 30 s, because the refresh has failed
		had.releaseRefresh()
		return true
	}
	if f := c.findAnswer(key, at, domainLen); f.entry != nil && f.failuresInRow == 0 {
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
		e.ttl = min(ttl.first<<(e.failuresInRow-1), ttl.most)
		return e, otter.WriteOp
	})
}

// postponeRefresh prevents questions of the type qtype from refreshing the cached answer for the next 30 s
// (staleRecheck), because a refresh has failed or is slow. now is the present time of the cache's clock.
func (e *entry) postponeRefresh(now time.Duration, qtype uint16) {
	of := uint32(qtype)
	if int64(now) < e.noRefreshUntil.Load() && e.noRefreshOf.Load() != of {
		of = uint32(dns.TypeANY) // an NXDOMAIN entry whose servers fail for a second type
	}
	e.noRefreshOf.Store(of)
	e.noRefreshUntil.Store(int64(now + staleRecheck))
}

// Get returns the cached answer to q and true, or nil and false if the cache has no answer or only an expired one. The
// answer has the ID of q, the letter case of its name, and the remaining TTLs. It may be a failure, such as SERVFAIL.
// Get does not change q.
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

// Set stores the response r as if a server had just sent it, and returns true. It does not change r. Set stores nothing
// and returns false for:
//
//   - a message that is not a response to a standard query, or is malformed, truncated or signed (TSIG),
//   - a failure, or a negative answer without an SOA record,
//   - an answer whose TTL or MaxNegativeTTL allows no caching,
//   - a response to a question of a class other than IN, of type ANY or without the flag RD,
//   - a response with EDNS options other than cookies, padding, keepalive and extended errors.
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

// Purge removes the entries of a name, for all types and including failures, and returns their number. Names below it
// keep their entries. The letter case and a final dot of name do not matter. Purge searches the whole cache.
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
