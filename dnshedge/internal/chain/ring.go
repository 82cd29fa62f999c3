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
	maxTime  = 10 * time.Second // to find out about a zone
	maxTries = 6                // servers that are asked for keys as long as what comes is bogus: as many as a Validator has turns
	minWait  = 5 * time.Second  // how long a zone is bogus before it is looked at again; each time twice as long (RFC 9520 §3.2)
	maxWait  = 5 * time.Minute
	topWait  = 15 * time.Second // instead of it, for the zone of an anchor: all that is below waits for it
	maxKept  = 24 * time.Hour
)

// ring is what is known of the keys of a zone. It is not changed.
type ring struct {
	status validate.Status
	keys   *validate.Keys   // if it is secure
	why    *validate.Reason // if it is bogus, or insecure for a reason
	none   bool             // there is proof that it is no zone
	guess  bool             // no referral told of the zone, and so its servers may be others
	born   time.Time
	until  time.Time
	wait   time.Duration // until that, if it is bogus
	of     uint64        // the referral that it is of, if it is bogus: with another one the zone may be right; 0: there was none
	lost   bool          // that referral has turned out wrong
	size   int64         // bytes that it takes, by an estimate
	unseen bool          // it is bogus because nobody has answered
	local  error         // it is bogus because of this error, as Config.IsLocal has it; nil: it is not
	above  bool          // it is as the zone above is: what was said of this one does not matter
}

// flight finds out about the keys of a zone, for all who wait.
type flight struct {
	zone *Zone
	done chan struct{}
	ring *ring // written before done is closed
}

// fresh returns what is known of the keys of a zone, or nil.
func (c *Chains) fresh(zone string, now time.Time) *ring {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rings[zone]; r.lasts(now) {
		return r
	}
	return nil
}

// lasts reports whether a ring is still to be used. None is from the future: then the clock was wrong when it was made.
func (r *ring) lasts(now time.Time) bool {
	return r != nil && now.Before(r.until) && !now.Before(r.born)
}

// known returns what is known of the keys of a zone, or nil. What was found out before a referral told of it, and bodes ill, does not
// count any more.
func (c *Chains) known(z *Zone, now time.Time) *ring {
	if r := c.fresh(z.Name, now); r.serves(z) {
		return r
	}
	return nil
}

// serves reports whether a ring tells of a zone, as its referral has named it.
func (r *ring) serves(z *Zone) bool {
	switch {
	case r == nil, r.guess && !z.guessed && (r.status == validate.Bogus || r.none):
		return false
	}
	return r.status != validate.Bogus || z.guessed || r.of == 0 || r.of == z.referral()
}

// Begin begins to find out about the keys of a zone, if that is needed to validate and not known.
func (c *Chains) Begin(b Bill, z *Zone) {
	if !c.Covers(z.Name, dns.TypeDNSKEY) || c.known(z, time.Now()) != nil {
		return
	}
	if z.Above != nil {
		if a := c.anchors.of(z.Name); !dnsname.Below(a.zone, z.Above.Name) {
			if r := c.known(z.Above, time.Now()); r != nil && r.status != validate.Secure {
				return // it will be the same
			}
		}
	}
	c.join(b, z, nil)
}

// join returns the flight for a zone, and whether it is the caller's own. It has ended if it has found another ring since the caller saw old, which is nil
// if there was none: what one flight has found no other one asks for.
func (c *Chains) join(b Bill, z *Zone, old *ring) (f *flight, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rings[z.Name]; r != old && r.lasts(time.Now()) && r.serves(z) {
		f = &flight{zone: z, done: make(chan struct{}), ring: r}
		close(f.done)
		return f, false
	}
	if f := c.flying[z.Name]; f != nil && !f.zone.StrangeTo(z) {
		return f, false
	}
	f = &flight{zone: z, done: make(chan struct{})}
	c.flying[z.Name] = f
	c.conf.Go(func(ctx context.Context) {
		ctx, stop := context.WithTimeout(ctx, maxTime)
		defer stop()
		defer close(f.done)
		f.ring = bogus(&validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: "the keys could not be judged", Zone: z.Name}) // if search panics
		defer func() { c.keep(f) }()
		usercode.Run(func() { f.ring = c.search(ctx, b, z) }) // a record of an Exchanger may be of a type that panics
	})
	return f, true
}

// keep keeps what a flight has found, but for what a bill could not pay or a local error has prevented, and what strangers have said.
func (c *Chains) keep(f *flight) {
	r, z, zone := f.ring, f.zone, f.zone.Name
	r.guess = z.guessed
	now := time.Now().Round(0)
	r.born = now
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flying[zone] == f {
		delete(c.flying, zone)
	}
	if r.limited() || z.Disowned() {
		return
	}
	if old := c.rings[zone]; r.unseen && old.lasts(now) && old.status == validate.Secure { // it stays so as long as nobody says otherwise
		same := *old
		same.born = now
		c.rings[zone] = &same
		return
	}
	switch {
	case r.status != validate.Bogus:
	case r.above: // it ends with that one
		r.of = z.referral()
	default:
		r.wait, r.of = minWait, z.referral()
		if old := c.rings[zone]; old != nil && old.wait > 0 && !r.unseen {
			r.wait = min(2*old.wait, c.longest(zone))
		}
		r.until = now.Add(r.wait)
	}
	r.until = r.until.Round(0)
	c.remove(zone)
	if r.size = max(r.size, ringSize+int64(len(zone))); r.size > c.conf.MaxBytes/4 {
		return // it is for those who wait
	}
	for len(c.rings) > 0 && c.bytes+r.size > c.conf.MaxBytes {
		c.forget(now)
	}
	c.rings[zone] = r
	c.bytes += r.size
}

// longest returns how long a zone is bogus at most before it is looked at again.
func (c *Chains) longest(zone string) time.Duration {
	if a := c.anchors.of(zone); a != nil && a.zone == zone {
		return topWait
	}
	return maxWait
}

// ringSize is what a ring takes without keys: itself, the map, why it is not secure.
const ringSize = 512

func (c *Chains) remove(zone string) {
	if r := c.rings[zone]; r != nil {
		delete(c.rings, zone)
		c.bytes -= r.size
	}
}

// Doubt forgets that a zone is bogus, which is served elsewhere than it was believed to be.
func (c *Chains) Doubt(zone string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rings[zone]; r != nil && r.status == validate.Bogus {
		c.remove(zone)
	}
}

// Culprit returns the zone because of which one is bogus: itself, or one above. What is known by another referral to one of them counts as well: if
// that is bogus because of a zone above, so is this.
func (c *Chains) Culprit(z *Zone) *Zone {
	for now := time.Now(); z.Above != nil; z = z.Above {
		r, above := c.fresh(z.Name, now), c.fresh(z.Above.Name, now)
		if r == nil || !r.above || above == nil || above.status != validate.Bogus {
			break
		}
	}
	return z
}

// forget removes the one of a few rings that ends first, or one that is not used any more.
func (c *Chains) forget(now time.Time) {
	const samples = 8
	n, worst := 0, ""
	for zone, r := range c.rings {
		if !r.lasts(now) {
			worst = zone
			break
		}
		if n == 0 || r.until.Before(c.rings[worst].until) {
			worst = zone
		}
		if n++; n == samples {
			break
		}
	}
	c.remove(worst)
}

// limited reports whether it is bogus only because the bill of a question did not pay for more, or this machine could ask nobody. That says nothing of the
// zone.
func (r *ring) limited() bool {
	return r.status == validate.Bogus && (r.local != nil || r.why != nil && r.why.Limit != "")
}

// ring returns what there is to know of the keys of a zone, when that is known. The error is that of ctx, or a local one.
func (c *Chains) ring(ctx context.Context, b Bill, z *Zone) (*ring, error) {
	for again := false; ; again = true {
		if r := c.known(z, time.Now()); r != nil {
			return r, nil
		}
		f, mine := c.join(b, z, nil)
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if mine || again && f.ring.local != nil || !f.ring.limited() && f.ring.serves(z) {
			return f.ring, f.ring.local
		}
		// It failed because of whose flight it is, or of a local error that may be over: for this question it may do better.
	}
}

// anew verifies something with the keys of a zone, and with new ones if these do not fit.
func anew[T any](ctx context.Context, c *Chains, b Bill, z *Zone, r *ring, verify func(*validate.Keys) (T, error)) (T, error) {
	v, err := verify(r.keys)
	next, failed := c.next(ctx, b, z, r, err)
	switch {
	case next != nil:
		return verify(next.keys)
	case c.conf.IsLocal(failed): // the zone may have new keys
		return v, failed
	}
	return v, err
}

// next returns the ring to verify with after that of a zone, whose keys have led to err, or nil. The error is that of ctx, or a local one.
func (c *Chains) next(ctx context.Context, b Bill, z *Zone, r *ring, err error) (*ring, error) {
	if why := (*validate.Reason)(nil); !errors.As(err, &why) || why.Limit != "" || time.Since(r.born) < minWait {
		return nil, nil
	}
	renewed, err := c.renew(ctx, b, z, r)
	if err != nil || renewed == r || renewed.status != validate.Secure {
		return nil, err
	}
	return renewed, nil
}

// cutsTo returns the names below a zone down to one of them.
func cutsTo(name, zone string) (names []string) {
	for ; dnsname.Below(name, zone); name = dnsname.Parent(name) {
		names = append(names, name)
	}
	slices.Reverse(names)
	return names
}

// cutAbove looks for an insecure cut between a zone and a name at or below it, which no referral told of. It returns what is known of the
// zone there, nil if there is none, or a ring that is limited. A few names are looked at at once.
func (c *Chains) cutAbove(ctx context.Context, b Bill, zone *Zone, name string) (*ring, error) {
	const atOnce = 4
	names := cutsTo(name, zone.Name)
	for _, name := range names {
		if r := c.fresh(name, time.Now()); r.open() {
			return r, nil // whatever has expired between
		}
	}
	for i, name := range names {
		if c.fresh(name, time.Now()) == nil {
			for _, next := range names[i:min(i+atOnce, len(names))] {
				c.Begin(b, zone.cut(next, false))
			}
		}
		r, err := c.ring(ctx, b, zone.cut(name, false))
		if err != nil || r.open() || r.limited() {
			return r, err
		}
	}
	return nil, nil
}

// open reports whether there is proof that a zone is not signed.
func (r *ring) open() bool { return r != nil && r.status == validate.Insecure && !r.none }

// opens reports whether it is known that a name is at or below an insecure cut below a zone.
func (c *Chains) opens(name, zone string, now time.Time) bool {
	return slices.ContainsFunc(cutsTo(name, zone), func(cut string) bool { return c.fresh(cut, now).open() })
}

// renew returns what there is to know of the keys of a zone, for those whose keys do not fit what the zone's servers say. It is asked
// for again if the keys are not new.
func (c *Chains) renew(ctx context.Context, b Bill, z *Zone, old *ring) (*ring, error) {
	c.mu.Lock()
	now := c.rings[z.Name]
	c.mu.Unlock()
	if now != old || time.Since(old.born) < minWait {
		return c.ring(ctx, b, z)
	}
	f, _ := c.join(b, z, old)
	select {
	case <-f.done:
		return f.ring, f.ring.local
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// again returns the ring for a zone below its own.
func (r *ring) again() *ring {
	same := *r
	same.wait, same.above = 0, true
	return &same
}

// The kinds of rings.

func secure(k *validate.Keys, now time.Time, most ...uint32) *ring {
	r := &ring{status: validate.Secure, keys: k, until: now.Add(seconds(append(most, k.TTL())...))}
	if end := k.Expires(); !end.IsZero() && end.Before(r.until) {
		r.until = end
	}
	return r
}

func insecure(why *validate.Reason, now time.Time, most ...uint32) *ring {
	return &ring{status: validate.Insecure, why: why, until: now.Add(seconds(most...))}
}

// nowhere is the ring of a name that is no zone.
func nowhere(most uint32) *ring {
	r := insecure(nil, time.Now(), most)
	r.none = true
	return r
}

func bogus(why *validate.Reason) *ring { return &ring{status: validate.Bogus, why: why} }

// failed is the ring of a zone of which an error has kept everything unknown. The server, if it is valid, is the one to blame.
func (c *Chains) failed(err error, server netip.AddrPort) *ring {
	r := bogus(reasonOf(err, server))
	if c.conf.IsLocal(err) {
		r.local = err
	}
	return r
}

// unseen returns the ring of a zone whose servers, or those of the zone above, have not answered: last, if another one has before.
func (c *Chains) unseen(last *ring, why validate.Reason, err error) *ring {
	if last == nil {
		why.Text += ": " + err.Error()
		last = bogus(&why)
		last.unseen = true
	}
	if c.conf.IsLocal(err) {
		last.local = err
	}
	return last
}

// seconds returns the least of some numbers of seconds, within what is kept.
func seconds(most ...uint32) time.Duration {
	d := maxKept
	for _, n := range most {
		d = min(d, time.Duration(n)*time.Second)
	}
	return max(d, time.Second)
}

// search finds out about the keys of a zone.
func (c *Chains) search(ctx context.Context, b Bill, z *Zone) (ring *ring) {
	now := time.Now()
	a := c.anchors.of(z.Name)
	switch {
	case a == nil || a.ds == nil || a.builtIn && z.Stub:
		return insecure(nil, now)
	case a.zone == z.Name:
		return c.keysFor(ctx, b, z, a.ds, c.fetch(ctx, b, z))
	case z.Above == nil:
		return insecure(nil, now)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var keys <-chan fetched // beside what is said of them
	ds := z.ds()
	if z.claimed || ds != nil && ds.Unsupported(c.conf.Policy) == nil {
		keys = c.fetch(ctx, b, z)
	}
	d, ago, wrong, r := c.delegated(ctx, b, z)
	if wrong {
		defer func() {
			if ring.status == validate.Bogus {
				ring.lost = true
			}
		}()
	}
	if r != nil {
		return r
	}
	if why := d.Unsupported(c.conf.Policy); why != nil {
		return insecure(why, now.Add(-ago), d.TTL())
	}
	if keys == nil {
		keys = c.fetch(ctx, b, z)
	}
	r = c.keysFor(ctx, b, z, d, keys)
	if end := now.Add(seconds(d.TTL()) - ago); end.Before(r.until) {
		r.until = end // what a zone's parent has taken back since counts no longer than it said
	}
	if r.status != validate.Bogus || r.limited() || z.Above == nil || now.Sub(z.Came.Round(0)) < minWait {
		return r
	}
	if d, again := c.askDS(ctx, b, z); d != nil { // the zone may have new keys since
		c.conf.Drop(z)
		last := c.keysFor(ctx, b, z, d, c.fetch(ctx, b, z))
		if last.unseen {
			last.why = r.why // what somebody has said is nearer to what is wrong than that nobody says more
		}
		return last
	} else if again != nil && again.status == validate.Insecure {
		c.conf.Drop(z)
		return again
	} else if again != nil && again.limited() {
		return again
	}
	return r
}

// delegated returns what the keys of a zone must fit, as the zone above has said some time ago, or what the zone is without. It reports as well whether
// the referral is wrong, and is dropped.
func (c *Chains) delegated(ctx context.Context, b Bill, z *Zone) (d *validate.DSSet, ago time.Duration, wrong bool, r *ring) {
	ago = max(0, time.Since(z.Came.Round(0)))
	if len(z.Proof) > 0 {
		sets, err := z.proof()
		if err != nil {
			return nil, ago, false, bogus(reasonOf(err, z.From))
		}
		d, r := c.readDS(ctx, b, z, z.From, sets, ago)
		switch {
		case d != nil || r != nil && (r.status == validate.Insecure && !r.none || r.limited()):
			return d, ago, false, r
		case r == nil: // the zone's servers are known for longer than what was said of its keys
		case r.above: // nobody is to blame, and no other server could say better
			return nil, ago, false, r
		case r.status == validate.Bogus && r.why != nil && r.why.Zone == z.Above.Name || r.none:
			c.Counts.PassedOver.Add(1)
			c.conf.Blame(z.Above, z.From, z.Name)
			wrong = true
		}
	}
	d, r = c.askDS(ctx, b, z)
	if r != nil && r.status == validate.Bogus && !r.unseen && !r.limited() {
		wrong = false // all who refer to the zone say so
	}
	if wrong {
		c.conf.Drop(z)
	}
	return d, 0, wrong, r
}

// askDS asks for the DS records of a zone.
func (c *Chains) askDS(ctx context.Context, b Bill, z *Zone) (*validate.DSSet, *ring) {
	var last *ring
	var bad []netip.AddrPort
	for range maxTries {
		if r := c.bogusAbove(z); r != nil {
			return nil, r
		}
		said, err := b.Ask(ctx, z.Above, z.Name, dns.TypeDS, bad)
		if err != nil {
			if why := unpaid(err); why != nil {
				return nil, bogus(why)
			}
			if r := c.bogusAbove(z); r != nil { // a stranger's, who does not answer
				return nil, r
			}
			last = c.unseen(last, validate.Reason{EDE: dns.ExtendedErrorCodeNoReachableAuthority, Text: "no DS", Zone: z.Above.Name, Name: z.Name, Type: dns.TypeDS}, err)
			break
		}
		sets, err := validate.Sets(slices.Concat(said.Answer, said.Authority))
		if err != nil {
			return nil, bogus(reasonOf(err, said.From))
		}
		d, r := c.readDS(ctx, b, z, said.From, sets[0], 0)
		switch {
		case d != nil:
			return d, nil
		case r != nil && (r.status != validate.Bogus || r.limited()):
			if r.none && !z.guessed {
				return nil, bogus(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a delegation is denied", Zone: z.Above.Name, Name: z.Name, Type: dns.TypeDS, Server: said.From})
			}
			return nil, r
		case r != nil && (r.above || said.Status == validate.Bogus):
			return nil, r // all servers say so, or nothing that they say matters
		}
		last, bad = r, append(bad, said.From)
		c.conf.Blame(z.Above, said.From, z.Name)
	}
	return nil, last
}

// bogusAbove returns the ring of a zone for which that above is known to be bogus, or nil.
func (c *Chains) bogusAbove(z *Zone) *ring {
	if a := c.anchors.of(z.Name); a != nil && dnsname.Below(a.zone, z.Above.Name) {
		return nil // an island
	}
	if r := c.known(z.Above, time.Now()); r != nil && r.status == validate.Bogus {
		return r.again()
	}
	return nil
}

// readDS reads what a server has said of the DS records of a zone, some time ago. It returns nothing if that is too old.
func (c *Chains) readDS(ctx context.Context, b Bill, z *Zone, from netip.AddrPort, evidence []*validate.RRset, ago time.Duration) (*validate.DSSet, *ring) {
	ds, evidence := evidenceOf(evidence, z.Name)
	zone := c.signer(z.Above, signerOf(evidence, z.Above.Name, z.Name), z.Name)
	r, err := c.ring(ctx, b, zone)
	switch {
	case err != nil:
		return nil, c.failed(err, from)
	case r.none:
		return nil, bogus(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "the signer is no zone", Zone: z.Above.Name, Name: z.Name, Type: dns.TypeDS, Server: from})
	case r.status != validate.Secure:
		return nil, r.again()
	}
	if !signed(evidence) {
		switch open, err := c.cutAbove(ctx, b, z.Above, dnsname.Parent(z.Name)); {
		case err != nil:
			return nil, c.failed(err, from)
		case open != nil:
			return nil, open.again()
		}
	}
	w := b.Work()
	if ds != nil {
		d, err := anew(ctx, c, b, zone, r, func(k *validate.Keys) (*validate.DSSet, error) { return w.DS(ds, k, time.Now()) })
		if err != nil {
			return nil, c.unverified(ctx, b, z, err, from)
		}
		if ago > time.Duration(d.TTL())*time.Second {
			return nil, nil
		}
		return d, nil
	}
	if alias := find(evidence, z.Name, dns.TypeCNAME); alias != nil {
		return nil, c.readAlias(ctx, b, z, from, zone, r, alias, evidence)
	}
	var keys *validate.Keys
	den, err := anew(ctx, c, b, zone, r, func(k *validate.Keys) (validate.Denial, error) {
		keys = k
		return w.Denies(z.Name, dns.TypeDS, evidence, k, time.Now())
	})
	now := time.Now()
	if err == nil && ago < maxTime { // it came for this question, and not with one long ago
		c.ranges.LearnDenial(w, keys, now.Add(-ago), evidence)
	}
	switch {
	case err != nil:
		return nil, c.unverified(ctx, b, z, unproven(err, !proves(evidence)), from)
	case ago > time.Duration(den.TTL)*time.Second:
		return nil, nil
	case den.Insecure != nil:
		return nil, insecure(den.Insecure, now.Add(-ago), den.TTL)
	case den.Kind == validate.NoDS:
		return nil, insecure(nil, now.Add(-ago), den.TTL)
	}
	return nil, nowhere(den.TTL)
}

// readAlias reads what a server has said of a name that is an alias, and so no zone (RFC 1034 §3.6.2). The signature is that of a zone, with a ring.
func (c *Chains) readAlias(ctx context.Context, b Bill, z *Zone, from netip.AddrPort, signer *Zone, r *ring, alias *validate.RRset, evidence []*validate.RRset) *ring {
	ttl, err := anew(ctx, c, b, signer, r, func(k *validate.Keys) (uint32, error) {
		v, err := b.Work().Verify(alias, k, time.Now())
		if err != nil || v.Encloser < 0 {
			return v.TTL, err
		}
		den, err := b.Work().DeniesCloser(z.Name, v.Encloser, evidence, k, time.Now())
		return min(v.TTL, den.TTL), err
	})
	if err != nil {
		return c.failed(err, from)
	}
	return nowhere(ttl)
}

// unverified returns the ring of a zone of whose keys what is said is wrong: it is bogus, unless a zone between that and the one above is
// insecure, which may have any signatures.
func (c *Chains) unverified(ctx context.Context, b Bill, z *Zone, err error, from netip.AddrPort) *ring {
	open, failed := c.between(ctx, b, z.Above, dnsname.Parent(z.Name), err)
	switch {
	case failed != nil:
		return c.failed(failed, from)
	case open != nil:
		return open.again()
	}
	return c.failed(err, from)
}

// between returns what is known of an insecure zone between one and a name, if there may be one that nobody has referred to, because something
// is wrong; nil: there is none. A limit is no such reason.
func (c *Chains) between(ctx context.Context, b Bill, z *Zone, name string, err error) (*ring, error) {
	if !z.Far || unpaid(err) != nil || c.conf.IsLocal(err) {
		return nil, nil
	}
	return c.cutAbove(ctx, b, z, name)
}

// signer returns the zone that is said to have signed what a server of zone z says of a name: z, or one between them.
func (c *Chains) signer(z *Zone, signer, name string) *Zone {
	if a := c.anchors.of(name); a != nil && dnsname.Below(a.zone, z.Name) && !dnsname.Within(signer, a.zone) {
		signer = a.zone // an island
	}
	if signer == z.Name {
		return z
	}
	return z.cut(signer, true)
}

// cut returns a zone below z that no referral told of: its servers are those of z.
func (z *Zone) cut(name string, claimed bool) *Zone {
	return &Zone{Name: name, Above: z, From: z.From, Servers: z.Servers, Far: z.Far, guessed: true, claimed: claimed}
}

// signerOf returns which zone's keys are to verify what a server of a zone has sent about a name: that one's, or those of the lowest zone below it which
// has signed one of the RRsets and which the name is below. A section may have RRsets of several zones, if the name is the target of an alias.
func signerOf(sets []*validate.RRset, zone, name string) string {
	lowest := zone
	for _, s := range sets {
		if signer := signerOfSet(s, zone, name); dnsname.Below(signer, lowest) {
			lowest = signer
		}
	}
	return lowest
}

// signerOfSet returns which zone has signed an RRset: the given one, if one of its signatures says so, or the lowest below it that the name is below.
func signerOfSet(s *validate.RRset, zone, name string) string {
	lowest := zone
	for _, signer := range s.Signers() {
		switch signer = dnsname.Lower(signer); {
		case signer == zone:
			return zone
		case dnsname.Below(signer, lowest) && dnsname.Below(name, signer):
			lowest = signer
		}
	}
	return lowest
}

var errNoResponse = errors.New("no response has come")

// fetched is what has come of a question for keys.
type fetched struct {
	said *Said
	err  error
}

// fetch asks for the keys of a zone, those servers last that have sent bad ones.
func (c *Chains) fetch(ctx context.Context, b Bill, z *Zone, bad ...netip.AddrPort) <-chan fetched {
	done := make(chan fetched, 1)
	c.Counts.KeyQueries.Add(1)
	c.conf.Go(func(context.Context) {
		f := fetched{err: errNoResponse} // if Ask does not return
		defer func() { done <- f }()
		defer usercode.Recover("response for DNSKEY", &f.err)
		f.said, f.err = b.Ask(ctx, z, z.Name, dns.TypeDNSKEY, bad)
	})
	return done
}

// keysFor returns the ring of a zone whose keys fit d, when they have come.
func (c *Chains) keysFor(ctx context.Context, b Bill, z *Zone, d *validate.DSSet, keys <-chan fetched) *ring {
	var last *ring
	var bad []netip.AddrPort
	for try := range maxTries {
		if try > 0 {
			keys = c.fetch(ctx, b, z, bad...)
		}
		var f fetched
		select {
		case f = <-keys:
		case <-ctx.Done():
			f.err = context.Cause(ctx)
		}
		if f.err != nil {
			if why := unpaid(f.err); why != nil {
				return bogus(why)
			}
			last = c.unseen(last, validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no DNSKEY", Zone: z.Name, Name: z.Name, Type: dns.TypeDNSKEY}, f.err)
			break
		}
		r := c.readKeys(b, z, d, f.said)
		if r.status != validate.Bogus || r.limited() || f.said.Status == validate.Bogus {
			return r
		}
		last, bad = r, append(bad, f.said.From)
		c.conf.Blame(z, f.said.From, z.Name)
	}
	return last
}

// readKeys returns the ring of a zone whose keys fit d.
func (c *Chains) readKeys(b Bill, z *Zone, d *validate.DSSet, said *Said) *ring {
	now := time.Now()
	sets, err := validate.Sets(said.Answer)
	if err != nil {
		return bogus(reasonOf(err, said.From))
	}
	set := find(sets[0], z.Name, dns.TypeDNSKEY)
	if set == nil {
		return bogus(&validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "the zone has no DNSKEY records", Zone: z.Name, Name: z.Name, Type: dns.TypeDNSKEY, Server: said.From})
	}
	var k *validate.Keys
	status, fits := validate.Secure, false
	if said.Keys != nil {
		k, fits = said.Keys.Trust(d)
	}
	if !fits {
		k, status, err = b.Work().Keys(d, set, now)
	}
	if z.Name == "." {
		c.root.look(set, d, err, now, c.conf.Policy)
	}
	most := []uint32{uint32(maxKept / time.Second)}
	if ttl := d.TTL(); ttl > 0 {
		most = append(most, ttl)
	}
	switch status {
	case validate.Secure:
		r := secure(k, now, most...)
		r.size = ringSize
		for _, rr := range set.Records {
			r.size += 4 * int64(dns.Len(rr)) // their canonical form, and what they are read into
		}
		return r
	case validate.Insecure:
		return insecure(reasonOf(err, said.From), now, append(most, set.TTL)...)
	}
	return bogus(reasonOf(err, said.From))
}
