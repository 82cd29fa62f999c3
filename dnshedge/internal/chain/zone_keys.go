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

const (
	maxLookupTime = 10 * time.Second // to find out about a zone
	maxServers    = 6                // servers that are asked for keys as long as what comes is bogus: as many as a Validator has turns
	minBackoff    = 5 * time.Second  // how long a zone is bogus before it is looked at again; each time twice as long (RFC 9520 §3.2)
	maxBackoff    = 5 * time.Minute
	anchorBackoff = 15 * time.Second // instead of it, for the zone of an anchor: all that is below waits for it
	maxCacheTime  = 24 * time.Hour
)

// zoneKeys is what is known of the keys of a zone. It is not changed.
type zoneKeys struct {
	status        validate.Status
	keys          *validate.Keys   // if it is secure
	why           *validate.Reason // if it is bogus, or insecure for a reason
	noZone        bool             // there is proof that it is no zone
	presumed      bool             // no referral told of the zone, and so its servers may be others
	established   time.Time
	expires       time.Time
	backoff       time.Duration // until that, if it is bogus
	referralID    uint64        // the referral that it is of, if it is bogus: with another one the zone may be right; 0: there was none
	referralWrong bool          // that referral has turned out wrong
	size          int64         // bytes that it takes, by an estimate
	unreachable   bool          // it is bogus because nobody has answered
	localErr      error         // it is bogus because of this error, as Config.IsLocal has it; nil: it is not
	inherited     bool          // it is as the zone above is: what was said of this one does not matter
}

// keyLookup finds out about the keys of a zone, for all who wait.
type keyLookup struct {
	zone   *Zone
	done   chan struct{}
	result *zoneKeys // written before done is closed
}

// cachedKeys returns what is known of the keys of a zone, or nil.
func (c *Validator) cachedKeys(zone string, now time.Time) *zoneKeys {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.keyCache[zone]; r.isCurrent(now) {
		return r
	}
	return nil
}

// isCurrent reports whether a ring is still to be used. None is from the future: then the clock was wrong when it was made.
func (r *zoneKeys) isCurrent(now time.Time) bool {
	return r != nil && now.Before(r.expires) && !now.Before(r.established)
}

// known returns what is known of the keys of a zone, or nil. What was found out before a referral told of it, and bodes ill, does not
// count any more.
func (c *Validator) applicableKeys(z *Zone, now time.Time) *zoneKeys {
	if r := c.cachedKeys(z.Name, now); r.appliesTo(z) {
		return r
	}
	return nil
}

// appliesTo reports whether a ring tells of a zone, as its referral has named it.
func (r *zoneKeys) appliesTo(z *Zone) bool {
	switch {
	case r == nil, r.presumed && !z.presumed && (r.status == validate.Bogus || r.noZone):
		return false
	}
	return r.status != validate.Bogus || z.presumed || r.referralID == 0 || r.referralID == z.referralID()
}

// PrefetchKeys begins to find out about the keys of a zone, if that is needed to validate and not known.
func (c *Validator) PrefetchKeys(b WorkBudget, z *Zone) {
	if !c.ShouldValidate(z.Name, dns.TypeDNSKEY) || c.applicableKeys(z, time.Now()) != nil {
		return
	}
	if z.Parent != nil {
		if a := c.anchors.closestTo(z.Name); !dnsname.IsBelow(a.zone, z.Parent.Name) {
			if r := c.applicableKeys(z.Parent, time.Now()); r != nil && r.status != validate.Secure {
				return // it will be the same
			}
		}
	}
	c.joinLookup(b, z, nil)
}

// joinLookup returns the flight for a zone, and whether it is the caller's own. It has ended if it has found another ring since the caller saw old, which is nil
// if there was none: what one flight has found no other one asks for.
func (c *Validator) joinLookup(b WorkBudget, z *Zone, old *zoneKeys) (f *keyLookup, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.keyCache[z.Name]; r != old && r.isCurrent(time.Now()) && r.appliesTo(z) {
		f = &keyLookup{zone: z, done: make(chan struct{}), result: r}
		close(f.done)
		return f, false
	}
	if f := c.lookups[z.Name]; f != nil && !f.zone.HasMovedFor(z) {
		return f, false
	}
	f = &keyLookup{zone: z, done: make(chan struct{})}
	c.lookups[z.Name] = f
	c.conf.Go(func(ctx context.Context) {
		ctx, stop := context.WithTimeout(ctx, maxLookupTime)
		defer stop()
		defer close(f.done)
		f.result = newBogusKeys(&validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: "the keys could not be judged", Zone: z.Name}) // if search panics
		defer func() { c.storeResult(f) }()
		usercode.Run(func() { f.result = c.establishKeys(ctx, b, z) }) // a record of an Exchanger may be of a type that panics
	})
	return f, true
}

// storeResult keeps what a flight has found, but for what a bill could not pay or a local error has prevented, and what strangers have said.
func (c *Validator) storeResult(f *keyLookup) {
	r, z, zone := f.result, f.zone, f.zone.Name
	r.presumed = z.presumed
	now := time.Now().Round(0)
	r.established = now
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups[zone] == f {
		delete(c.lookups, zone)
	}
	if r.isLocalFailure() || z.HasMoved() {
		return
	}
	if old := c.keyCache[zone]; r.unreachable && old.isCurrent(now) && old.status == validate.Secure { // it stays so as long as nobody says otherwise
		same := *old
		same.established = now
		c.keyCache[zone] = &same
		return
	}
	switch {
	case r.status != validate.Bogus:
	case r.inherited: // it ends with that one
		r.referralID = z.referralID()
	default:
		r.backoff, r.referralID = minBackoff, z.referralID()
		if old := c.keyCache[zone]; old != nil && old.backoff > 0 && !r.unreachable {
			r.backoff = min(2*old.backoff, c.backoffLimit(zone))
		}
		r.expires = now.Add(r.backoff)
	}
	r.expires = r.expires.Round(0)
	c.removeKeys(zone)
	if r.size = max(r.size, zoneKeysSize+int64(len(zone))); r.size > c.conf.MaxBytes/4 {
		return // it is for those who wait
	}
	for len(c.keyCache) > 0 && c.bytes+r.size > c.conf.MaxBytes {
		c.evictKeys(now)
	}
	c.keyCache[zone] = r
	c.bytes += r.size
}

// backoffLimit returns how long a zone is bogus at most before it is looked at again.
func (c *Validator) backoffLimit(zone string) time.Duration {
	if a := c.anchors.closestTo(zone); a != nil && a.zone == zone {
		return anchorBackoff
	}
	return maxBackoff
}

// zoneKeysSize is what a ring takes without keys: itself, the map, why it is not secure.
const zoneKeysSize = 512

func (c *Validator) removeKeys(zone string) {
	if r := c.keyCache[zone]; r != nil {
		delete(c.keyCache, zone)
		c.bytes -= r.size
	}
}

// ForgetBogus forgets that a zone is bogus, which is served elsewhere than it was believed to be.
func (c *Validator) ForgetBogus(zone string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.keyCache[zone]; r != nil && r.status == validate.Bogus {
		c.removeKeys(zone)
	}
}

// BogusOrigin returns the zone because of which one is bogus: itself, or one above. What is known by another referral to one of them counts as well: if
// that is bogus because of a zone above, so is this.
func (c *Validator) BogusOrigin(z *Zone) *Zone {
	for now := time.Now(); z.Parent != nil; z = z.Parent {
		r, above := c.cachedKeys(z.Name, now), c.cachedKeys(z.Parent.Name, now)
		if r == nil || !r.inherited || above == nil || above.status != validate.Bogus {
			break
		}
	}
	return z
}

// evictKeys removes the one of a few rings that ends first, or one that is not used any more.
func (c *Validator) evictKeys(now time.Time) {
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
	c.removeKeys(worst)
}

// isLocalFailure reports whether it is bogus only because the bill of a question did not pay for more, or this machine could ask nobody. That says nothing of the
// zone.
func (r *zoneKeys) isLocalFailure() bool {
	return r.status == validate.Bogus && (r.localErr != nil || r.why != nil && r.why.Limit != "")
}

// zoneKeys returns what there is to know of the keys of a zone, when that is known. The error is that of ctx, or a local one.
func (c *Validator) lookUpKeys(ctx context.Context, b WorkBudget, z *Zone) (*zoneKeys, error) {
	for again := false; ; again = true {
		if r := c.applicableKeys(z, time.Now()); r != nil {
			return r, nil
		}
		f, mine := c.joinLookup(b, z, nil)
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if mine || again && f.result.localErr != nil || !f.result.isLocalFailure() && f.result.appliesTo(z) {
			return f.result, f.result.localErr
		}
		// It failed because of whose flight it is, or of a local error that may be over: for this question it may do better.
	}
}

// verifyOrRenew verifies something with the keys of a zone, and with new ones if these do not fit.
func verifyOrRenew[T any](ctx context.Context, c *Validator, b WorkBudget, z *Zone, r *zoneKeys, verify func(*validate.Keys) (T, error)) (T, error) {
	v, err := verify(r.keys)
	next, failed := c.renewOutdated(ctx, b, z, r, err)
	switch {
	case next != nil:
		return verify(next.keys)
	case c.conf.IsLocalError(failed): // the zone may have new keys
		return v, failed
	}
	return v, err
}

// renewOutdated returns the ring to verify with after that of a zone, whose keys have led to err, or nil. The error is that of ctx, or a local one.
func (c *Validator) renewOutdated(ctx context.Context, b WorkBudget, z *Zone, r *zoneKeys, err error) (*zoneKeys, error) {
	if why := (*validate.Reason)(nil); !errors.As(err, &why) || why.Limit != "" || time.Since(r.established) < minBackoff {
		return nil, nil
	}
	renewed, err := c.refreshKeys(ctx, b, z, r)
	if err != nil || renewed == r || renewed.status != validate.Secure {
		return nil, err
	}
	return renewed, nil
}

// cutCandidates returns the names below a zone down to one of them.
func cutCandidates(name, zone string) (names []string) {
	for ; dnsname.IsBelow(name, zone); name = dnsname.Parent(name) {
		names = append(names, name)
	}
	slices.Reverse(names)
	return names
}

// findInsecureCut looks for an insecure cut between a zone and a name at or below it, which no referral told of. It returns what is known of the
// zone there, nil if there is none, or a ring that is limited. A few names are looked at at once.
func (c *Validator) findInsecureCut(ctx context.Context, b WorkBudget, zone *Zone, name string) (*zoneKeys, error) {
	const atOnce = 4
	names := cutCandidates(name, zone.Name)
	for _, name := range names {
		if r := c.cachedKeys(name, time.Now()); r.isProvenInsecure() {
			return r, nil // whatever has expired between
		}
	}
	for i, name := range names {
		if c.cachedKeys(name, time.Now()) == nil {
			for _, next := range names[i:min(i+atOnce, len(names))] {
				c.PrefetchKeys(b, zone.childZone(next, false))
			}
		}
		r, err := c.lookUpKeys(ctx, b, zone.childZone(name, false))
		if err != nil || r.isProvenInsecure() || r.isLocalFailure() {
			return r, err
		}
	}
	return nil, nil
}

// isProvenInsecure reports whether there is proof that a zone is not signed.
func (r *zoneKeys) isProvenInsecure() bool {
	return r != nil && r.status == validate.Insecure && !r.noZone
}

// isBelowInsecureCut reports whether it is known that a name is at or below an insecure cut below a zone.
func (c *Validator) isBelowInsecureCut(name, zone string, now time.Time) bool {
	return slices.ContainsFunc(cutCandidates(name, zone), func(cut string) bool { return c.cachedKeys(cut, now).isProvenInsecure() })
}

// refreshKeys returns what there is to know of the keys of a zone, for those whose keys do not fit what the zone's servers say. It is asked
// for again if the keys are not new.
func (c *Validator) refreshKeys(ctx context.Context, b WorkBudget, z *Zone, old *zoneKeys) (*zoneKeys, error) {
	c.mu.Lock()
	now := c.keyCache[z.Name]
	c.mu.Unlock()
	if now != old || time.Since(old.established) < minBackoff {
		return c.lookUpKeys(ctx, b, z)
	}
	f, _ := c.joinLookup(b, z, old)
	select {
	case <-f.done:
		return f.result, f.result.localErr
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// forChild returns the ring for a zone below its own.
func (r *zoneKeys) forChild() *zoneKeys {
	same := *r
	same.backoff, same.inherited = 0, true
	return &same
}

// The kinds of rings.

func newSecureKeys(k *validate.Keys, now time.Time, most ...uint32) *zoneKeys {
	r := &zoneKeys{status: validate.Secure, keys: k, expires: now.Add(cacheLifetime(append(most, k.TTL())...))}
	if end := k.Expires(); !end.IsZero() && end.Before(r.expires) {
		r.expires = end
	}
	return r
}

func newInsecureKeys(why *validate.Reason, now time.Time, most ...uint32) *zoneKeys {
	return &zoneKeys{status: validate.Insecure, why: why, expires: now.Add(cacheLifetime(most...))}
}

// newNonexistentZone is the ring of a name that is no zone.
func newNonexistentZone(most uint32) *zoneKeys {
	r := newInsecureKeys(nil, time.Now(), most)
	r.noZone = true
	return r
}

func newBogusKeys(why *validate.Reason) *zoneKeys { return &zoneKeys{status: validate.Bogus, why: why} }

// newFailedKeys is the ring of a zone of which an error has kept everything unknown. The server, if it is valid, is the one to blame.
func (c *Validator) newFailedKeys(err error, server netip.AddrPort) *zoneKeys {
	r := newBogusKeys(asReason(err, server))
	if c.conf.IsLocalError(err) {
		r.localErr = err
	}
	return r
}

// newUnreachableKeys returns the ring of a zone whose servers, or those of the zone above, have not answered: last, if another one has before.
func (c *Validator) newUnreachableKeys(last *zoneKeys, why validate.Reason, err error) *zoneKeys {
	if last == nil {
		why.Text += ": " + err.Error()
		last = newBogusKeys(&why)
		last.unreachable = true
	}
	if c.conf.IsLocalError(err) {
		last.localErr = err
	}
	return last
}

// cacheLifetime returns the least of some numbers of seconds, within what is kept.
func cacheLifetime(most ...uint32) time.Duration {
	d := maxCacheTime
	for _, n := range most {
		d = min(d, time.Duration(n)*time.Second)
	}
	return max(d, time.Second)
}

// establishKeys finds out about the keys of a zone.
func (c *Validator) establishKeys(ctx context.Context, b WorkBudget, z *Zone) (ring *zoneKeys) {
	now := time.Now()
	a := c.anchors.closestTo(z.Name)
	switch {
	case a == nil || a.ds == nil || a.builtIn && z.Stub:
		return newInsecureKeys(nil, now)
	case a.zone == z.Name:
		return c.awaitKeys(ctx, b, z, a.ds, c.queryKeys(ctx, b, z))
	case z.Parent == nil:
		return newInsecureKeys(nil, now)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var keys <-chan keyResponse // beside what is said of them
	ds := z.unverifiedDSSet()
	if z.namedBySigner || ds != nil && ds.UnsupportedReason(c.conf.Policy) == nil {
		keys = c.queryKeys(ctx, b, z)
	}
	d, ago, wrong, r := c.establishDS(ctx, b, z)
	if wrong {
		defer func() {
			if ring.status == validate.Bogus {
				ring.referralWrong = true
			}
		}()
	}
	if r != nil {
		return r
	}
	if why := d.UnsupportedReason(c.conf.Policy); why != nil {
		return newInsecureKeys(why, now.Add(-ago), d.TTL())
	}
	if keys == nil {
		keys = c.queryKeys(ctx, b, z)
	}
	r = c.awaitKeys(ctx, b, z, d, keys)
	if end := now.Add(cacheLifetime(d.TTL()) - ago); end.Before(r.expires) {
		r.expires = end // what a zone's parent has taken back since counts no longer than it said
	}
	if r.status != validate.Bogus || r.isLocalFailure() || z.Parent == nil || now.Sub(z.ReceivedAt.Round(0)) < minBackoff {
		return r
	}
	if d, again := c.queryDS(ctx, b, z); d != nil { // the zone may have new keys since
		c.conf.DropReferral(z)
		last := c.awaitKeys(ctx, b, z, d, c.queryKeys(ctx, b, z))
		if last.unreachable {
			last.why = r.why // what somebody has said is nearer to what is wrong than that nobody says more
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

// establishDS returns what the keys of a zone must fit, as the zone above has said some time ago, or what the zone is without. It reports as well whether
// the referral is wrong, and is dropped.
func (c *Validator) establishDS(ctx context.Context, b WorkBudget, z *Zone) (d *validate.DSSet, ago time.Duration, wrong bool, r *zoneKeys) {
	ago = max(0, time.Since(z.ReceivedAt.Round(0)))
	if len(z.DSEvidence) > 0 {
		sets, err := z.parseEvidence()
		if err != nil {
			return nil, ago, false, newBogusKeys(asReason(err, z.ReferredBy))
		}
		d, r := c.verifyDSEvidence(ctx, b, z, z.ReferredBy, sets, ago)
		switch {
		case d != nil || r != nil && (r.status == validate.Insecure && !r.noZone || r.isLocalFailure()):
			return d, ago, false, r
		case r == nil: // the zone's servers are known for longer than what was said of its keys
		case r.inherited: // nobody is to blame, and no other server could say better
			return nil, ago, false, r
		case r.status == validate.Bogus && r.why != nil && r.why.Zone == z.Parent.Name || r.noZone:
			c.Counts.Rejected.Add(1)
			c.conf.ReportBogus(z.Parent, z.ReferredBy, z.Name)
			wrong = true
		}
	}
	d, r = c.queryDS(ctx, b, z)
	if r != nil && r.status == validate.Bogus && !r.unreachable && !r.isLocalFailure() {
		wrong = false // all who refer to the zone say so
	}
	if wrong {
		c.conf.DropReferral(z)
	}
	return d, 0, wrong, r
}

// queryDS asks for the DS records of a zone.
func (c *Validator) queryDS(ctx context.Context, b WorkBudget, z *Zone) (*validate.DSSet, *zoneKeys) {
	var last *zoneKeys
	var bad []netip.AddrPort
	for range maxServers {
		if r := c.inheritBogusParent(z); r != nil {
			return nil, r
		}
		said, err := b.Query(ctx, z.Parent, z.Name, dns.TypeDS, bad)
		if err != nil {
			if why := limitReason(err); why != nil {
				return nil, newBogusKeys(why)
			}
			if r := c.inheritBogusParent(z); r != nil { // a stranger's, who does not answer
				return nil, r
			}
			last = c.newUnreachableKeys(last, validate.Reason{EDE: dns.ExtendedErrorCodeNoReachableAuthority, Text: "no DS", Zone: z.Parent.Name, Name: z.Name, Type: dns.TypeDS}, err)
			break
		}
		sets, err := validate.GroupRRsets(slices.Concat(said.Answer, said.Authority))
		if err != nil {
			return nil, newBogusKeys(asReason(err, said.From))
		}
		d, r := c.verifyDSEvidence(ctx, b, z, said.From, sets[0], 0)
		switch {
		case d != nil:
			return d, nil
		case r != nil && (r.status != validate.Bogus || r.isLocalFailure()):
			if r.noZone && !z.presumed {
				return nil, newBogusKeys(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a delegation is denied", Zone: z.Parent.Name, Name: z.Name, Type: dns.TypeDS, Server: said.From})
			}
			return nil, r
		case r != nil && (r.inherited || said.Status == validate.Bogus):
			return nil, r // all servers say so, or nothing that they say matters
		}
		last, bad = r, append(bad, said.From)
		c.conf.ReportBogus(z.Parent, said.From, z.Name)
	}
	return nil, last
}

// inheritBogusParent returns the ring of a zone for which that above is known to be bogus, or nil.
func (c *Validator) inheritBogusParent(z *Zone) *zoneKeys {
	if a := c.anchors.closestTo(z.Name); a != nil && dnsname.IsBelow(a.zone, z.Parent.Name) {
		return nil // an island
	}
	if r := c.applicableKeys(z.Parent, time.Now()); r != nil && r.status == validate.Bogus {
		return r.forChild()
	}
	return nil
}

// verifyDSEvidence reads what a server has said of the DS records of a zone, some time ago. It returns nothing if that is too old.
func (c *Validator) verifyDSEvidence(ctx context.Context, b WorkBudget, z *Zone, from netip.AddrPort, evidence []*validate.RRset, ago time.Duration) (*validate.DSSet, *zoneKeys) {
	ds, evidence := selectDSEvidence(evidence, z.Name)
	zone := c.signerZone(z.Parent, lowestSigner(evidence, z.Parent.Name, z.Name), z.Name)
	r, err := c.lookUpKeys(ctx, b, zone)
	switch {
	case err != nil:
		return nil, c.newFailedKeys(err, from)
	case r.noZone:
		return nil, newBogusKeys(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the signer is no zone", Zone: z.Parent.Name, Name: z.Name, Type: dns.TypeDS, Server: from})
	case r.status != validate.Secure:
		return nil, r.forChild()
	}
	if !hasSignature(evidence) {
		switch open, err := c.findInsecureCut(ctx, b, z.Parent, dnsname.Parent(z.Name)); {
		case err != nil:
			return nil, c.newFailedKeys(err, from)
		case open != nil:
			return nil, open.forChild()
		}
	}
	w := b.Validation()
	if ds != nil {
		d, err := verifyOrRenew(ctx, c, b, zone, r, func(k *validate.Keys) (*validate.DSSet, error) { return w.VerifyDS(ds, k, time.Now()) })
		if err != nil {
			return nil, c.keysAfterDSFailure(ctx, b, z, err, from)
		}
		if ago > time.Duration(d.TTL())*time.Second {
			return nil, nil
		}
		return d, nil
	}
	if alias := findRRset(evidence, z.Name, dns.TypeCNAME); alias != nil {
		return nil, c.verifyAliasEvidence(ctx, b, z, from, zone, r, alias, evidence)
	}
	var keys *validate.Keys
	den, err := verifyOrRenew(ctx, c, b, zone, r, func(k *validate.Keys) (validate.Denial, error) {
		keys = k
		return w.VerifyDenial(z.Name, dns.TypeDS, evidence, k, time.Now())
	})
	now := time.Now()
	if err == nil && ago < maxLookupTime { // it came for this question, and not with one long ago
		c.aggressive.AddDenial(w, keys, now.Add(-ago), evidence)
	}
	switch {
	case err != nil:
		return nil, c.keysAfterDSFailure(ctx, b, z, correctMissingEDE(err, !hasDenialRecords(evidence)), from)
	case ago > time.Duration(den.TTL)*time.Second:
		return nil, nil
	case den.Insecure != nil:
		return nil, newInsecureKeys(den.Insecure, now.Add(-ago), den.TTL)
	case den.Kind == validate.NoDS:
		return nil, newInsecureKeys(nil, now.Add(-ago), den.TTL)
	}
	return nil, newNonexistentZone(den.TTL)
}

// verifyAliasEvidence reads what a server has said of a name that is an alias, and so no zone (RFC 1034 §3.6.2). The signature is that of a zone, with a ring.
func (c *Validator) verifyAliasEvidence(ctx context.Context, b WorkBudget, z *Zone, from netip.AddrPort, signer *Zone, r *zoneKeys, alias *validate.RRset, evidence []*validate.RRset) *zoneKeys {
	ttl, err := verifyOrRenew(ctx, c, b, signer, r, func(k *validate.Keys) (uint32, error) {
		v, err := b.Validation().Verify(alias, k, time.Now())
		if err != nil || v.Encloser < 0 {
			return v.TTL, err
		}
		den, err := b.Validation().VerifyNoCloserName(z.Name, v.Encloser, evidence, k, time.Now())
		return min(v.TTL, den.TTL), err
	})
	if err != nil {
		return c.newFailedKeys(err, from)
	}
	return newNonexistentZone(ttl)
}

// keysAfterDSFailure returns the ring of a zone of whose keys what is said is wrong: it is bogus, unless a zone between that and the one above is
// insecure, which may have any signatures.
func (c *Validator) keysAfterDSFailure(ctx context.Context, b WorkBudget, z *Zone, err error, from netip.AddrPort) *zoneKeys {
	open, failed := c.findHiddenInsecureCut(ctx, b, z.Parent, dnsname.Parent(z.Name), err)
	switch {
	case failed != nil:
		return c.newFailedKeys(failed, from)
	case open != nil:
		return open.forChild()
	}
	return c.newFailedKeys(err, from)
}

// findHiddenInsecureCut returns what is known of an insecure zone between one and a name, if there may be one that nobody has referred to, because something
// is wrong; nil: there is none. A limit is no such reason.
func (c *Validator) findHiddenInsecureCut(ctx context.Context, b WorkBudget, z *Zone, name string, err error) (*zoneKeys, error) {
	if !z.CutsUnknown || limitReason(err) != nil || c.conf.IsLocalError(err) {
		return nil, nil
	}
	return c.findInsecureCut(ctx, b, z, name)
}

// signer returns the zone that is said to have signed what a server of zone z says of a name: z, or one between them.
func (c *Validator) signerZone(z *Zone, signerZone, name string) *Zone {
	if a := c.anchors.closestTo(name); a != nil && dnsname.IsBelow(a.zone, z.Name) && !dnsname.IsWithin(signerZone, a.zone) {
		signerZone = a.zone // an island
	}
	if signerZone == z.Name {
		return z
	}
	return z.childZone(signerZone, true)
}

// childZone returns a zone below z that no referral told of: its servers are those of z.
func (z *Zone) childZone(name string, claimed bool) *Zone {
	return &Zone{Name: name, Parent: z, ReferredBy: z.ReferredBy, Servers: z.Servers, CutsUnknown: z.CutsUnknown, presumed: true, namedBySigner: claimed}
}

// lowestSigner returns which zone's keys are to verify what a server of a zone has sent about a name: that one's, or those of the lowest zone below it which
// has signed one of the RRsets and which the name is below. A section may have RRsets of several zones, if the name is the target of an alias.
func lowestSigner(sets []*validate.RRset, zone, name string) string {
	lowest := zone
	for _, s := range sets {
		if signer := rrsetSigner(s, zone, name); dnsname.IsBelow(signer, lowest) {
			lowest = signer
		}
	}
	return lowest
}

// rrsetSigner returns which zone has signed an RRset: the given one, if one of its signatures says so, or the lowest below it that the name is below.
func rrsetSigner(s *validate.RRset, zone, name string) string {
	lowest := zone
	for _, signer := range s.SignerZones() {
		switch signer = dnsname.ToLower(signer); {
		case signer == zone:
			return zone
		case dnsname.IsBelow(signer, lowest) && dnsname.IsBelow(name, signer):
			lowest = signer
		}
	}
	return lowest
}

var errNoResponse = errors.New("no response has come")

// keyResponse is what has come of a question for keys.
type keyResponse struct {
	said *Response
	err  error
}

// queryKeys asks for the keys of a zone, those servers last that have sent bad ones.
func (c *Validator) queryKeys(ctx context.Context, b WorkBudget, z *Zone, bad ...netip.AddrPort) <-chan keyResponse {
	done := make(chan keyResponse, 1)
	c.Counts.KeyQueries.Add(1)
	c.conf.Go(func(context.Context) {
		f := keyResponse{err: errNoResponse} // if Ask does not return
		defer func() { done <- f }()
		defer usercode.Recover("response for DNSKEY", &f.err)
		f.said, f.err = b.Query(ctx, z, z.Name, dns.TypeDNSKEY, bad)
	})
	return done
}

// awaitKeys returns the ring of a zone whose keys fit d, when they have come.
func (c *Validator) awaitKeys(ctx context.Context, b WorkBudget, z *Zone, d *validate.DSSet, keys <-chan keyResponse) *zoneKeys {
	var last *zoneKeys
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
			if why := limitReason(f.err); why != nil {
				return newBogusKeys(why)
			}
			last = c.newUnreachableKeys(last, validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no DNSKEY", Zone: z.Name, Name: z.Name, Type: dns.TypeDNSKEY}, f.err)
			break
		}
		r := c.verifyKeyResponse(b, z, d, f.said)
		if r.status != validate.Bogus || r.isLocalFailure() || f.said.Status == validate.Bogus {
			return r
		}
		last, bad = r, append(bad, f.said.From)
		c.conf.ReportBogus(z, f.said.From, z.Name)
	}
	return last
}

// verifyKeyResponse returns the ring of a zone whose keys fit d.
func (c *Validator) verifyKeyResponse(b WorkBudget, z *Zone, d *validate.DSSet, said *Response) *zoneKeys {
	now := time.Now()
	sets, err := validate.GroupRRsets(said.Answer)
	if err != nil {
		return newBogusKeys(asReason(err, said.From))
	}
	set := findRRset(sets[0], z.Name, dns.TypeDNSKEY)
	if set == nil {
		return newBogusKeys(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "the zone has no DNSKEY records", Zone: z.Name, Name: z.Name, Type: dns.TypeDNSKEY, Server: said.From})
	}
	var k *validate.Keys
	status, fits := validate.Secure, false
	if said.Keys != nil {
		k, fits = said.Keys.WithTrustedDS(d)
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
		r := newSecureKeys(k, now, most...)
		r.size = zoneKeysSize
		for _, rr := range set.Records {
			r.size += 4 * int64(dns.Len(rr)) // their canonical form, and what they are read into
		}
		return r
	case validate.Insecure:
		return newInsecureKeys(asReason(err, said.From), now, append(most, set.TTL)...)
	}
	return newBogusKeys(asReason(err, said.From))
}
