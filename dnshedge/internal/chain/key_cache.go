package chain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// Limits of key lookups and of the key cache.
const (
	maxLookupTime = 10 * time.Second // timeout of a key lookup
	maxServers    = 6                // maximum number of servers that are queried while their data is bogus; dnssec.Validator tries as many
	minBackoff    = 5 * time.Second  // time for which a zone stays bogus at first; it doubles with each failed lookup (RFC 9520 §3.2)
	maxBackoff    = 5 * time.Minute  // maximum time for which a zone stays bogus
	anchorBackoff = 15 * time.Second // like maxBackoff, for a zone with a trust anchor, on which all its child zones depend
	maxCacheTime  = 24 * time.Hour   // maximum time for which an entry is cached
)

// A keyEntry is an entry of the key cache. It holds the security status of a zone, and its keys if the zone is secure.
// It must not be changed once it is cached.
type keyEntry struct {
	status          validate.Status
	keys            *validate.Keys   // nil unless status is Secure
	reason          *validate.Reason // why the zone is bogus, or insecure for a reason other than missing DS records; otherwise nil
	isNonexistent   bool             // it is proven that a zone of this name does not exist
	withoutReferral bool             // no referral led to the zone, so that it may not exist, and its servers are uncertain
	createdAt       time.Time        // time at which the entry was cached
	expires         time.Time        // the entry must not be used from this time on
	backoff         time.Duration    // time from createdAt to expires if the zone is bogus because of its own data; otherwise 0
	referralID      uint64           // the bogus status applies only to this referral (see Zone.referralID); 0 means all referrals
	referralWrong   bool             // the referral with referralID is bogus
	size            int64            // estimated memory in bytes
	unreachable     bool             // the zone is bogus because its servers did not respond
	localErr        error            // local error (see Config.IsLocalError) that prevented the lookup, or nil
	inherited       bool             // the status is that of the parent zone, whatever the DS records of the zone are
}

// A keyLookup is a running lookup of the keyEntry of a zone. All questions that need the keys of the zone wait for the same
// lookup.
type keyLookup struct {
	zone   *Zone
	done   chan struct{} // closed when result is set
	result *keyEntry     // must only be read after done is closed
}

// cachedEntry returns the cache entry of the named zone. It returns nil if there is none, or if it is not current at the
// time now.
func (c *Validator) cachedEntry(zone string, now time.Time) *keyEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.keyCache[zone]; r.isCurrent(now) {
		return r
	}
	return nil
}

// isCurrent reports whether the entry may be used at the time now. It is false if the entry is nil or has expired. It
// is also false if the entry was created after now, because the clock was set back.
func (e *keyEntry) isCurrent(now time.Time) bool {
	return e != nil && now.Before(e.expires) && !now.Before(e.createdAt)
}

// applicableEntry returns the entry for the zone z in the key cache. It returns nil if there is none, or if it has
// expired. It also returns nil if another referral led to the entry, so that it must not be used (see appliesTo).
func (c *Validator) applicableEntry(z *Zone, now time.Time) *keyEntry {
	if r := c.cachedEntry(z.Name, now); r.appliesTo(z) {
		return r
	}
	return nil
}

// appliesTo reports whether the cache entry e may be used for z, a zone of the same name. An entry that results from a
// forged referral must not harm questions with the right referral. The result is therefore false in two cases:
//
//   - e is bogus, and another referral led to it;
//   - z has a referral, and e has none and says that the zone is bogus or does not exist.
func (e *keyEntry) appliesTo(z *Zone) bool {
	switch {
	case e == nil, e.withoutReferral && !z.withoutReferral && (e.status == validate.Bogus || e.isNonexistent):
		return false
	}
	return e.status != validate.Bogus || z.withoutReferral || e.referralID == 0 || e.referralID == z.referralID()
}

// PrefetchKeys starts the key lookup of the zone z, so that the keys are known when an answer must be validated. It
// does not wait. It does nothing if the status of the zone is already known.
func (c *Validator) PrefetchKeys(b ValidationBudget, z *Zone) {
	if !c.ShouldValidate(z.Name, dns.TypeDNSKEY) || c.applicableEntry(z, time.Now()) != nil {
		return
	}
	if z.Parent != nil && !c.isIsland(z) {
		if r := c.applicableEntry(z.Parent, time.Now()); r != nil && r.status != validate.Secure {
			return // the zone inherits that status
		}
	}
	c.joinKeyLookup(b, z, nil)
}

// joinKeyLookup returns the running key lookup of the zone z, so that several questions can share it. If none is
// running, it starts one with the budget b, and started is true.
//
// old is the cache entry whose keys the caller has found to be outdated, or nil. If the cache already has a newer
// entry, joinKeyLookup returns it as the result of a finished lookup.
func (c *Validator) joinKeyLookup(b ValidationBudget, z *Zone, old *keyEntry) (f *keyLookup, started bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.keyCache[z.Name]; r != old && r.isCurrent(time.Now()) && r.appliesTo(z) {
		f = &keyLookup{zone: z, done: make(chan struct{}), result: r}
		close(f.done)
		return f, false
	}
	if f := c.lookups[z.Name]; f != nil && !f.zone.IsOutdatedFor(z) {
		return f, false
	}
	f = &keyLookup{zone: z, done: make(chan struct{})}
	c.lookups[z.Name] = f
	c.conf.Go(func(ctx context.Context) {
		ctx, stop := context.WithTimeout(ctx, maxLookupTime)
		defer stop()
		defer close(f.done)
		f.result = newBogusEntry(&validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: "the keys could not be judged", Zone: z.Name}) // if determineStatus panics
		defer func() { c.storeLookupResult(f) }()
		usercode.RunGuarded(func() { f.result = c.determineStatus(ctx, b, z) }) // methods of a private record type may panic
	})
	return f, true
}

// storeLookupResult caches the result of the finished lookup f. For a bogus result, it also determines how long the
// result is cached.
//
// It caches nothing if the zone has moved to other servers during the lookup, or if the result is too large. The same
// holds if a limit or a local error has ended the lookup (see isLocalFailure). If the servers of the zone did not
// respond, secure keys in the cache remain.
func (c *Validator) storeLookupResult(f *keyLookup) {
	r, z, zone := f.result, f.zone, f.zone.Name
	r.withoutReferral = z.withoutReferral
	now := time.Now().Round(0)
	r.createdAt = now
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups[zone] == f {
		delete(c.lookups, zone)
	}
	if r.isLocalFailure() || z.IsRedelegated() {
		return
	}
	if old := c.keyCache[zone]; r.unreachable && old.isCurrent(now) && old.status == validate.Secure { // keep the secure keys while the servers are unreachable
		same := *old
		same.createdAt = now
		c.keyCache[zone] = &same
		return
	}
	switch {
	case r.status != validate.Bogus:
	case r.inherited: // it expires with the parent's entry
		r.referralID = z.referralID()
	default:
		r.backoff, r.referralID = minBackoff, z.referralID()
		if old := c.keyCache[zone]; old != nil && old.backoff > 0 && !r.unreachable {
			r.backoff = min(2*old.backoff, c.maxBogusTime(zone))
		}
		r.expires = now.Add(r.backoff)
	}
	r.expires = r.expires.Round(0)
	c.removeEntry(zone)
	if r.size = max(r.size, keyEntrySize+int64(len(zone))); r.size > c.conf.MaxBytes/4 {
		return // too large to cache; only the waiting callers get it
	}
	for len(c.keyCache) > 0 && c.bytes+r.size > c.conf.MaxBytes {
		c.evictEntry(now)
	}
	c.keyCache[zone] = r
	c.bytes += r.size
}

// maxBogusTime returns the maximum time for which a bogus status of the zone is cached.
func (c *Validator) maxBogusTime(zone string) time.Duration {
	if a := c.anchors.nearestAnchor(zone); a != nil && a.zone == zone {
		return anchorBackoff
	}
	return maxBackoff
}

// keyEntrySize is the estimated memory of a cache entry without keys, in bytes.
const keyEntrySize = 512

// removeEntry removes the cache entry of a zone, if there is one. The caller must hold mu.
func (c *Validator) removeEntry(zone string) {
	if r := c.keyCache[zone]; r != nil {
		delete(c.keyCache, zone)
		c.bytes -= r.size
	}
}

// ForgetBogus removes the cache entry of a zone if the entry says that the zone is bogus. The caller must call it when
// the zone has moved to other servers: their data may be valid.
func (c *Validator) ForgetBogus(zone string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.keyCache[zone]; r != nil && r.status == validate.Bogus {
		c.removeEntry(zone)
	}
}

// BogusOrigin returns the zone whose data made z bogus: z itself, or the ancestor from which z inherits the bogus
// status. Unlike most lookups in the key cache, it ignores through which referral an entry came into the cache.
func (c *Validator) BogusOrigin(z *Zone) *Zone {
	for now := time.Now(); z.Parent != nil; z = z.Parent {
		r, above := c.cachedEntry(z.Name, now), c.cachedEntry(z.Parent.Name, now)
		if r == nil || !r.inherited || above == nil || above.status != validate.Bogus {
			break
		}
	}
	return z
}

// evictEntry removes one entry from the key cache to make room. Among eight random entries, it prefers an expired one,
// and otherwise removes the one that expires first. The caller must hold mu.
func (c *Validator) evictEntry(now time.Time) {
	const samples = 8
	n, worst := 0, ""
	for zone, r := range c.keyCache {
		if !r.isCurrent(now) {
			worst = zone
			break
		}
		if n == 0 || r.expires.Before(c.keyCache[worst].expires) {
			worst = zone
		}
		if n++; n == samples {
			break
		}
	}
	c.removeEntry(worst)
}

// isLocalFailure reports whether the entry is bogus only because of a question's limit, or because this machine could
// not send a query. Another question may then succeed, and the entry must not be cached.
func (e *keyEntry) isLocalFailure() bool {
	return e.status == validate.Bogus && (e.localErr != nil || e.reason != nil && e.reason.Limit != "")
}

// lookUpKeys returns the cache entry with the security status and keys of the zone z. If the cache has none, it sends
// queries, which count against the budget b.
//
// A bogus status is not an error. The error is the cause of ctx, or a local error: a query could not be sent for a
// reason on this machine.
func (c *Validator) lookUpKeys(ctx context.Context, b ValidationBudget, z *Zone) (*keyEntry, error) {
	for again := false; ; again = true {
		if r := c.applicableEntry(z, time.Now()); r != nil {
			return r, nil
		}
		f, started := c.joinKeyLookup(b, z, nil)
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if started || again && f.result.localErr != nil || !f.result.isLocalFailure() && f.result.appliesTo(z) {
			return f.result, f.result.localErr
		}
		// It failed for a reason of the question that started it, or a temporary local error. This question may succeed.
	}
}

// verifyOrRenewKeys calls verify with the keys in r, the cache entry of the zone z, and returns its results. If verify
// fails, the zone may have new keys. verifyOrRenewKeys then queries the keys, and calls verify again if they have changed.
//
// If the keys cannot be queried because of a local error (see Config.IsLocalError), it returns that error.
func verifyOrRenewKeys[T any](ctx context.Context, c *Validator, b ValidationBudget, z *Zone, r *keyEntry, verify func(*validate.Keys) (T, error)) (T, error) {
	v, err := verify(r.keys)
	next, failed := c.renewOutdatedKeys(ctx, b, z, r, err)
	switch {
	case next != nil:
		return verify(next.keys)
	case c.conf.IsLocalError(failed): // the zone may have new keys
		return v, failed
	}
	return v, err
}

// renewOutdatedKeys queries the keys of the zone z again, after verification with the keys in r, its cache entry, has
// failed with err. The zone may have replaced its keys. It returns the new secure entry.
//
// It returns nil if the keys are the same, if r is younger than minBackoff, or if a limit has caused err. The error is
// the cause of ctx, or a local error (see lookUpKeys).
func (c *Validator) renewOutdatedKeys(ctx context.Context, b ValidationBudget, z *Zone, r *keyEntry, err error) (*keyEntry, error) {
	if why := (*validate.Reason)(nil); !errors.As(err, &why) || why.Limit != "" || time.Since(r.createdAt) < minBackoff {
		return nil, nil
	}
	c.mu.Lock()
	cached := c.keyCache[z.Name]
	c.mu.Unlock()
	var renewed *keyEntry
	if cached != r { // another question has renewed the keys
		renewed, err = c.lookUpKeys(ctx, b, z)
	} else {
		f, _ := c.joinKeyLookup(b, z, r)
		select {
		case <-f.done:
			renewed, err = f.result, f.result.localErr
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil || renewed == r || renewed.status != validate.Secure {
		return nil, err
	}
	return renewed, nil
}

// listPossibleZoneCuts returns the names at which a zone between zone and name may begin (zone cuts). The first is a child of
// zone, and the last is name. It returns nil if name is not below zone.
func listPossibleZoneCuts(name, zone string) (names []string) {
	for ; dnsname.IsBelow(name, zone); name = dnsname.Parent(name) {
		names = append(names, name)
	}
	slices.Reverse(names)
	return names
}

// findInsecureCut searches for an insecure zone below zone that contains name, although no referral to it was received.
// If there is one, data about name needs no signatures. It looks up the names between zone and name, several in
// parallel. If there is a trust anchor between zone and name, it looks up only the names below the anchor.
//
// It returns the cache entry of the insecure zone, or nil if there is none. If a limit or a local error prevents the
// search, it returns the entry of the failed lookup (see isLocalFailure).
func (c *Validator) findInsecureCut(ctx context.Context, b ValidationBudget, zone *Zone, name string) (*keyEntry, error) {
	const atOnce = 4
	names := listPossibleZoneCuts(name, c.nearestAnchoredZone(name, zone.Name))
	for _, name := range names {
		if r := c.cachedEntry(name, time.Now()); r.isProvenInsecure() {
			return r, nil // although entries of zones between may have expired
		}
	}
	for i, name := range names {
		if c.cachedEntry(name, time.Now()) == nil {
			for _, next := range names[i:min(i+atOnce, len(names))] {
				c.PrefetchKeys(b, zone.newChildZone(next, false))
			}
		}
		r, err := c.lookUpKeys(ctx, b, zone.newChildZone(name, false))
		if err != nil || r.isProvenInsecure() || r.isLocalFailure() {
			return r, err
		}
	}
	return nil, nil
}

// isProvenInsecure reports whether the zone exists and is proven to be insecure. It is false for a nil entry.
func (e *keyEntry) isProvenInsecure() bool {
	return e != nil && e.status == validate.Insecure && !e.isNonexistent
}

// nearestAnchoredZone returns the zone of the nearest trust anchor of name, if it is below zone. Otherwise it returns
// zone. Insecure zones above the result do not make name insecure.
func (c *Validator) nearestAnchoredZone(name, zone string) string {
	if a := c.anchors.nearestAnchor(name); a != nil && a.ds != nil && dnsname.IsBelow(a.zone, zone) {
		return a.zone
	}
	return zone
}

// isBelowInsecureCut reports whether the cache shows that name is in an insecure zone below zone. It sends no query. Like
// findInsecureCut, it ignores zones above a trust anchor of name.
func (c *Validator) isBelowInsecureCut(name, zone string, now time.Time) bool {
	return slices.ContainsFunc(listPossibleZoneCuts(name, c.nearestAnchoredZone(name, zone)), func(cut string) bool { return c.cachedEntry(cut, now).isProvenInsecure() })
}

// cloneForChild returns the cache entry of a child zone that inherits the status e of its parent zone.
func (e *keyEntry) cloneForChild() *keyEntry {
	same := *e
	same.backoff, same.inherited = 0, true
	return &same
}

// Constructors of the kinds of cache entries.

// newSecureEntry returns the cache entry of a secure zone with the keys k. It expires when the keys expire, or after the
// smallest of ttls, in seconds, if that is earlier.
func newSecureEntry(k *validate.Keys, now time.Time, ttls ...uint32) *keyEntry {
	r := &keyEntry{status: validate.Secure, keys: k, expires: now.Add(cacheLifetime(append(ttls, k.TTL())...))}
	if end := k.Expires(); !end.IsZero() && end.Before(r.expires) {
		r.expires = end
	}
	return r
}

// newInsecureEntry returns the cache entry of an insecure zone. It expires after the smallest of ttls, in seconds. why
// is the reason. It is nil if the zone merely has no DS records.
func newInsecureEntry(why *validate.Reason, now time.Time, ttls ...uint32) *keyEntry {
	return &keyEntry{status: validate.Insecure, reason: why, expires: now.Add(cacheLifetime(ttls...))}
}

// newNonZoneEntry returns the cache entry for a name that is proven not to be the name of a zone. The entry expires
// after ttl seconds.
func newNonZoneEntry(ttl uint32) *keyEntry {
	r := newInsecureEntry(nil, time.Now(), ttl)
	r.isNonexistent = true
	return r
}

// newBogusEntry returns the cache entry of a bogus zone, with the reason why. It does not set the expiration time, which
// storeLookupResult sets.
func newBogusEntry(why *validate.Reason) *keyEntry {
	return &keyEntry{status: validate.Bogus, reason: why}
}

// newFailedEntry returns a bogus cache entry for a lookup that has failed with err. server is the server that sent the
// data, or zero. If the cause of err is on this machine (a local error), the entry must not be cached.
func (c *Validator) newFailedEntry(err error, server netip.AddrPort) *keyEntry {
	r := newBogusEntry(asReason(err, server))
	if c.conf.IsLocalError(err) {
		r.localErr = err
	}
	return r
}

// unreachableEntry returns a bogus entry for a zone whose servers have not responded to a query. why is its reason, to
// which the text of err, the error of the query, is appended.
//
// If an earlier response in the same lookup was bogus, last is its entry. It is then returned instead, because its
// reason is more precise.
func (c *Validator) unreachableEntry(last *keyEntry, why validate.Reason, err error) *keyEntry {
	if last == nil {
		why.Text += ": " + err.Error()
		last = newBogusEntry(&why)
		last.unreachable = true
	}
	if c.conf.IsLocalError(err) {
		last.localErr = err
	}
	return last
}

// cacheLifetime returns the time for which an entry may be cached: the smallest of ttls, in seconds. It is at least one
// second and at most maxCacheTime.
func cacheLifetime(ttls ...uint32) time.Duration {
	d := maxCacheTime
	for _, n := range ttls {
		d = min(d, time.Duration(n)*time.Second)
	}
	return max(d, time.Second)
}

// determineStatus determines the security status and the keys of the zone z, and returns its cache entry. If the trust
// anchors and the referral do not suffice, it sends DS and DNSKEY queries, which count against the budget b. If a query
// fails, the result is a bogus entry.
func (c *Validator) determineStatus(ctx context.Context, b ValidationBudget, z *Zone) (entry *keyEntry) {
	now := time.Now()
	a := c.anchors.nearestAnchor(z.Name)
	switch {
	case a == nil || a.ds == nil || a.builtIn && z.Stub:
		return newInsecureEntry(nil, now)
	case a.zone == z.Name:
		return c.awaitKeys(ctx, b, z, a.ds, c.queryKeys(ctx, b, z))
	case z.Parent == nil:
		return newInsecureEntry(nil, now)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var keys <-chan keyResponse // in parallel with the DS records
	ds := z.unverifiedDSSet()
	if z.namedBySigner || ds != nil && ds.UnsupportedReason(c.conf.Policy) == nil {
		keys = c.queryKeys(ctx, b, z)
	}
	d, ago, wrong, r := c.obtainDS(ctx, b, z)
	if wrong {
		defer func() {
			if entry.status == validate.Bogus {
				entry.referralWrong = true
			}
		}()
	}
	if r != nil {
		return r
	}
	if why := d.UnsupportedReason(c.conf.Policy); why != nil {
		return newInsecureEntry(why, now.Add(-ago), d.TTL())
	}
	if keys == nil {
		keys = c.queryKeys(ctx, b, z)
	}
	r = c.awaitKeys(ctx, b, z, d, keys)
	if end := now.Add(cacheLifetime(d.TTL()) - ago); end.Before(r.expires) {
		r.expires = end // even if the parent has withdrawn the DS records, they are used until their TTL has passed
	}
	if r.status != validate.Bogus || r.isLocalFailure() || z.Parent == nil || now.Sub(z.ReceivedAt.Round(0)) < minBackoff {
		return r
	}
	if d, again := c.queryDS(ctx, b, z); d != nil { // the zone may have new keys since the referral
		c.conf.DropReferral(z)
		last := c.awaitKeys(ctx, b, z, d, c.queryKeys(ctx, b, z))
		if last.unreachable {
			last.reason = r.reason // bogus data is a better reason than silence
		}
		return last
	} else if again != nil && again.status == validate.Insecure {
		c.conf.DropReferral(z)
		return again
	} else if again != nil && again.isLocalFailure() {
		return again
	}
	return r
}

// obtainDS returns d, the verified DS records of the zone z. They come from the referral, or from a DS query if the
// referral has no valid DS records. ago is their age.
//
// If the zone has no valid DS records, d is nil, and r is the cache entry for z. wrong is true if the data in the
// referral was bogus and was not used.
func (c *Validator) obtainDS(ctx context.Context, b ValidationBudget, z *Zone) (d *validate.DSSet, ago time.Duration, wrong bool, r *keyEntry) {
	ago = max(0, time.Since(z.ReceivedAt.Round(0)))
	if len(z.DSEvidence) > 0 {
		sets, err := z.parseDSEvidence()
		if err == nil {
			d, r = c.verifyDSEvidence(ctx, b, z, z.ReferredBy, sets, ago)
		}
		switch {
		case err != nil:
			wrong = true
		case d != nil || r != nil && (r.status == validate.Insecure && !r.isNonexistent || r.isLocalFailure()):
			return d, ago, false, r
		case r == nil: // the delegation is cached longer than the DS records
		case r.inherited: // the parent's status decides, and no other server could answer better
			return nil, ago, false, r
		case r.status == validate.Bogus && r.reason.Zone != "" || r.isNonexistent: // without a zone, the time of the lookup has ended
			wrong = true
		}
		if wrong {
			c.Counts.Rejected.Add(1)
			c.conf.ReportBogus(z.Parent, z.ReferredBy, z.Name)
		}
	}
	d, r = c.queryDS(ctx, b, z)
	if r != nil && r.status == validate.Bogus && !r.unreachable && !r.isLocalFailure() {
		wrong = false // all servers of the parent agree
	}
	if wrong {
		c.conf.DropReferral(z)
	}
	return d, 0, wrong, r
}

// queryDS queries the servers of the parent zone for the DS records of the zone z, and verifies them. While the
// responses are bogus, it queries up to maxServers servers.
//
// It returns the DS records and a nil entry. If there are no DS records, or if it fails, it returns nil and the cache
// entry for z.
func (c *Validator) queryDS(ctx context.Context, b ValidationBudget, z *Zone) (*validate.DSSet, *keyEntry) {
	var last *keyEntry
	var bad []netip.AddrPort
	for range maxServers {
		if r := c.inheritFromParent(z); r != nil {
			return nil, r
		}
		resp, err := b.Query(ctx, z.Parent, z.Name, dns.TypeDS, bad)
		if err != nil {
			if why := findLimitReason(err); why != nil {
				return nil, newBogusEntry(why)
			}
			if r := c.inheritFromParentOrLookUp(ctx, b, z); r != nil { // servers of a bogus or insecure parent may be silent
				return nil, r
			}
			last = c.unreachableEntry(last, validate.Reason{EDE: dns.ExtendedErrorCodeNoReachableAuthority, Text: "no DS", Zone: z.Parent.Name, Name: z.Name, Type: dns.TypeDS}, err)
			break
		}
		var d *validate.DSSet
		var r *keyEntry
		if sets, err := validate.GroupRRsets(slices.Concat(resp.Answer, resp.Authority)); err != nil {
			r = newBogusEntry(asReason(err, resp.From))
		} else {
			d, r = c.verifyDSEvidence(ctx, b, z, resp.From, sets[0], 0)
		}
		switch {
		case d != nil:
			return d, nil
		case r != nil && (r.status != validate.Bogus || r.isLocalFailure()):
			if r.isNonexistent && !z.withoutReferral {
				return nil, newBogusEntry(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a delegation is denied", Zone: z.Parent.Name, Name: z.Name, Type: dns.TypeDS, Server: resp.From})
			}
			return nil, r
		case r != nil && (r.inherited || resp.Status == validate.Bogus):
			return nil, r // all servers agree, or the parent's status decides
		}
		last, bad = r, append(bad, resp.From)
		c.conf.ReportBogus(z.Parent, resp.From, z.Name)
	}
	return nil, last
}

// inheritFromParent returns the cache entry that the zone z inherits from a parent zone that is not secure. It returns nil
// if the cache does not have the status of the parent zone, or if z has a trust anchor of its own.
func (c *Validator) inheritFromParent(z *Zone) *keyEntry {
	if c.isIsland(z) {
		return nil
	}
	return inheritUnlessSecure(c.applicableEntry(z.Parent, time.Now()))
}

// inheritFromParentOrLookUp returns the cache entry that z inherits from its parent zone, or nil if the status of z
// must be determined. It looks up the status of the parent zone if necessary. If that fails because of a local error or
// a limit, it returns the entry of this failure.
func (c *Validator) inheritFromParentOrLookUp(ctx context.Context, b ValidationBudget, z *Zone) *keyEntry {
	if c.isIsland(z) {
		return nil
	}
	r, err := c.lookUpKeys(ctx, b, z.Parent)
	switch {
	case c.conf.IsLocalError(err):
		return c.newFailedEntry(err, netip.AddrPort{})
	case err != nil:
		return nil
	case r.isLocalFailure():
		return r.cloneForChild()
	}
	return inheritUnlessSecure(r)
}

// isIsland reports whether z is an island of security: it has a trust anchor below its parent zone.
func (c *Validator) isIsland(z *Zone) bool {
	a := c.anchors.nearestAnchor(z.Name)
	return a != nil && dnsname.IsBelow(a.zone, z.Parent.Name)
}

// inheritUnlessSecure returns the cache entry of a zone that inherits its status from the parent zone, whose entry is
// r. It returns nil if the zone does not inherit it: r is nil, secure, or says that the parent zone does not exist.
func inheritUnlessSecure(r *keyEntry) *keyEntry {
	if r == nil || r.status == validate.Secure || r.isNonexistent {
		return nil
	}
	return r.cloneForChild()
}

// verifyDSEvidence verifies the DS records of the zone z, or the proof that z has none. Both are RRsets in evidence,
// which the server from sent the time ago before now.
//
// It returns the DS records and a nil entry. If there are no valid DS records, it returns nil and the cache entry for
// z. Both are nil if the records were valid, but their TTL has expired.
func (c *Validator) verifyDSEvidence(ctx context.Context, b ValidationBudget, z *Zone, from netip.AddrPort, evidence []*validate.RRset, ago time.Duration) (*validate.DSSet, *keyEntry) {
	ds, evidence := selectDSEvidence(evidence, z.Name)
	zone := c.selectSignerZone(z.Parent, deepestSigner(evidence, z.Parent.Name, z.Name), z.Name)
	r, err := c.lookUpKeys(ctx, b, zone)
	switch {
	case err != nil:
		return nil, c.newFailedEntry(err, from)
	case r.isNonexistent:
		return nil, newBogusEntry(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the signer is no zone", Zone: z.Parent.Name, Name: z.Name, Type: dns.TypeDS, Server: from})
	case r.status != validate.Secure:
		return nil, r.cloneForChild()
	}
	if !hasSignature(evidence) {
		switch open, err := c.findInsecureCut(ctx, b, z.Parent, dnsname.Parent(z.Name)); {
		case err != nil:
			return nil, c.newFailedEntry(err, from)
		case open != nil:
			return nil, open.cloneForChild()
		}
	}
	w := b.Validation()
	if ds != nil {
		d, err := verifyOrRenewKeys(ctx, c, b, zone, r, func(k *validate.Keys) (*validate.DSSet, error) { return w.VerifyDS(ds, k, time.Now()) })
		if err != nil {
			return nil, c.newEntryAfterDSFailure(ctx, b, z, err, from)
		}
		if ago > time.Duration(d.TTL())*time.Second {
			return nil, nil
		}
		return d, nil
	}
	if alias := findRRset(evidence, z.Name, dns.TypeCNAME); alias != nil {
		return nil, c.verifyCNAMEAtZone(ctx, b, z, from, zone, r, alias, evidence)
	}
	var keys *validate.Keys
	den, err := verifyOrRenewKeys(ctx, c, b, zone, r, func(k *validate.Keys) (validate.Denial, error) {
		keys = k
		return w.VerifyDenial(z.Name, dns.TypeDS, evidence, k, time.Now())
	})
	now := time.Now()
	if err == nil && ago < maxLookupTime { // it was received for this question
		c.aggressive.VerifyAndAddDenial(w, keys, now.Add(-ago), evidence)
	}
	switch {
	case err != nil:
		return nil, c.newEntryAfterDSFailure(ctx, b, z, correctNSECMissing(err, !hasDenialRecords(evidence)), from)
	case ago > time.Duration(den.TTL)*time.Second:
		return nil, nil
	case den.Insecure != nil:
		return nil, newInsecureEntry(den.Insecure, now.Add(-ago), den.TTL)
	case den.Kind == validate.NoDS:
		return nil, newInsecureEntry(nil, now.Add(-ago), den.TTL)
	}
	return nil, newNonZoneEntry(den.TTL)
}

// verifyCNAMEAtZone verifies CNAME records at the name of z, which the server from has sent. A valid CNAME record
// proves that no zone has this name (RFC 1034 §3.6.2). It returns the cache entry for the name: not a zone, or bogus.
//
// alias is the CNAME RRset, and evidence proves the expansion of a wildcard. signer is the zone that signed them, and r
// is its cache entry with the keys.
func (c *Validator) verifyCNAMEAtZone(ctx context.Context, b ValidationBudget, z *Zone, from netip.AddrPort, signer *Zone, r *keyEntry, alias *validate.RRset, evidence []*validate.RRset) *keyEntry {
	ttl, err := verifyOrRenewKeys(ctx, c, b, signer, r, func(k *validate.Keys) (uint32, error) {
		v, err := b.Validation().Verify(alias, k, time.Now())
		if err != nil || v.Encloser < 0 {
			return v.TTL, err
		}
		den, err := b.Validation().VerifyNoCloserMatch(z.Name, v.Encloser, evidence, k, time.Now())
		return min(v.TTL, den.TTL), err
	})
	if err != nil {
		return c.newFailedEntry(err, from)
	}
	return newNonZoneEntry(ttl)
}

// newEntryAfterDSFailure returns the cache entry for the zone z after the verification of its DS records has failed
// with err. from is the server that sent them. The entry is bogus, unless there is an insecure zone between the parent
// zone and z. The records may then be from that zone and need no valid signature.
func (c *Validator) newEntryAfterDSFailure(ctx context.Context, b ValidationBudget, z *Zone, err error, from netip.AddrPort) *keyEntry {
	open, failed := c.findHiddenInsecureCut(ctx, b, z.Parent, dnsname.Parent(z.Name), err)
	switch {
	case failed != nil:
		return c.newFailedEntry(failed, from)
	case open != nil:
		return open.cloneForChild()
	}
	return c.newFailedEntry(err, from)
}

// findHiddenInsecureCut checks, after verification has failed with err, whether the data may come from an insecure zone
// between z and name. The caller does not know all zone cuts below z if it follows no referrals. The results are those
// of findInsecureCut.
//
// It returns nil without a search if the caller knows the zone cuts, or if err is a limit or a local error.
func (c *Validator) findHiddenInsecureCut(ctx context.Context, b ValidationBudget, z *Zone, name string, err error) (*keyEntry, error) {
	if !z.CutsUnknown || findLimitReason(err) != nil || c.conf.IsLocalError(err) {
		return nil, nil
	}
	return c.findInsecureCut(ctx, b, z, name)
}

// selectSignerZone returns the zone whose keys must verify data about name from a server of z. Usually, this is the
// zone named signer, which the signatures name.
//
// If there is a trust anchor between z and name (an island of security), the data must be signed in its zone. If signer
// is not in this zone, the result is the zone of the trust anchor.
func (c *Validator) selectSignerZone(z *Zone, signer, name string) *Zone {
	if a := c.anchors.nearestAnchor(name); a != nil && dnsname.IsBelow(a.zone, z.Name) && !dnsname.IsWithin(signer, a.zone) {
		signer = a.zone // an island of security
	}
	if signer == z.Name {
		return z
	}
	return z.newChildZone(signer, true)
}

// newChildZone returns a Zone for a name below z for which no referral was received. The name may not be a zone. The
// new Zone has the servers of z.
//
// namedBySigner must be true if a signature names the zone as its signer.
func (z *Zone) newChildZone(name string, namedBySigner bool) *Zone {
	return &Zone{Name: name, Parent: z, ReferredBy: z.ReferredBy, Servers: z.Servers, CutsUnknown: z.CutsUnknown, withoutReferral: true, namedBySigner: namedBySigner}
}

// deepestSigner returns the zone whose keys must verify sets, which are RRsets about name from a server of zone. The
// server may also serve child zones. The result is the deepest zone between zone and name that has signed one of sets,
// or zone if there is none.
func deepestSigner(sets []*validate.RRset, zone, name string) string {
	lowest := zone
	for _, s := range sets {
		if signer := deepestRRsetSigner(s, zone, name); dnsname.IsBelow(signer, lowest) {
			lowest = signer
		}
	}
	return lowest
}

// deepestRRsetSigner returns the zone whose keys must verify the RRset s, which a server of zone has sent. This is zone
// if it has signed s. Otherwise it is the deepest signer between zone and name, or zone if there is none.
func deepestRRsetSigner(s *validate.RRset, zone, name string) string {
	lowest := zone
	for _, signer := range s.SignerNames() {
		switch signer = dnsname.ToLower(signer); {
		case signer == zone:
			return zone
		case dnsname.IsBelow(signer, lowest) && dnsname.IsBelow(name, signer):
			lowest = signer
		}
	}
	return lowest
}

// errNoResponse is the error of a key query in which ValidationBudget.Query has panicked.
var errNoResponse = errors.New("no response has come")

// A keyResponse is the result of a DNSKEY query: a response or an error.
type keyResponse struct {
	response *Response
	err      error
}

// queryKeys starts a DNSKEY query to the servers of the zone z. The returned channel receives exactly one result. The
// servers in bad, which have sent bogus data, are queried last.
func (c *Validator) queryKeys(ctx context.Context, b ValidationBudget, z *Zone, bad ...netip.AddrPort) <-chan keyResponse {
	done := make(chan keyResponse, 1)
	c.Counts.KeyQueries.Add(1)
	c.conf.Go(func(context.Context) {
		f := keyResponse{err: errNoResponse} // if Query panics
		defer func() { done <- f }()
		defer usercode.RecoverPanic("response for DNSKEY", &f.err)
		f.response, f.err = b.Query(ctx, z, z.Name, dns.TypeDNSKEY, bad)
	})
	return done
}

// awaitKeys waits for the response to a DNSKEY query, which arrives on the channel keys, and returns the cache entry
// for the zone z. The zone is secure if its keys match d, its DS records or trust anchors.
//
// If the keys are bogus, it queries further servers of the zone, up to maxServers in all.
func (c *Validator) awaitKeys(ctx context.Context, b ValidationBudget, z *Zone, d *validate.DSSet, keys <-chan keyResponse) *keyEntry {
	var last *keyEntry
	var bad []netip.AddrPort
	for try := range maxServers {
		if try > 0 {
			keys = c.queryKeys(ctx, b, z, bad...)
		}
		var f keyResponse
		select {
		case f = <-keys:
		case <-ctx.Done():
			f.err = context.Cause(ctx)
		}
		if f.err != nil {
			if why := findLimitReason(f.err); why != nil {
				return newBogusEntry(why)
			}
			last = c.unreachableEntry(last, validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no DNSKEY", Zone: z.Name, Name: z.Name, Type: dns.TypeDNSKEY}, f.err)
			break
		}
		r := c.verifyKeyResponse(b, z, d, f.response)
		if r.status != validate.Bogus || r.isLocalFailure() || f.response.Status == validate.Bogus {
			return r
		}
		last, bad = r, append(bad, f.response.From)
		c.conf.ReportBogus(z, f.response.From, z.Name)
	}
	return last
}

// verifyKeyResponse verifies resp, a DNSKEY response of the zone z, with the DS records or trust anchors d. It returns
// the cache entry for z: secure with the keys, insecure, or bogus.
func (c *Validator) verifyKeyResponse(b ValidationBudget, z *Zone, d *validate.DSSet, resp *Response) *keyEntry {
	now := time.Now()
	sets, err := validate.GroupRRsets(resp.Answer)
	if err != nil {
		return newBogusEntry(asReason(err, resp.From))
	}
	set := findRRset(sets[0], z.Name, dns.TypeDNSKEY)
	if set == nil {
		return newBogusEntry(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "the zone has no DNSKEY records", Zone: z.Name, Name: z.Name, Type: dns.TypeDNSKEY, Server: resp.From})
	}
	var k *validate.Keys
	status, fits := validate.Secure, false
	if resp.Keys != nil {
		k, fits = resp.Keys.WithTrustedDS(d)
	}
	if !fits {
		k, status, err = b.Validation().VerifyDNSKEY(d, set, now)
	}
	if z.Name == "." {
		c.rootStatus.observeKeys(set, d, err, now, c.conf.Policy)
	}
	most := []uint32{uint32(maxCacheTime / time.Second)}
	if ttl := d.TTL(); ttl > 0 {
		most = append(most, ttl)
	}
	switch status {
	case validate.Secure:
		r := newSecureEntry(k, now, most...)
		r.size = keyEntrySize
		for _, rr := range set.Records {
			r.size += 4 * int64(dns.Len(rr)) // canonical form and parsed keys
		}
		return r
	case validate.Insecure:
		return newInsecureEntry(asReason(err, resp.From), now, append(most, set.TTL)...)
	}
	return newBogusEntry(asReason(err, resp.From))
}
