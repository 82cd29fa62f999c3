package budget

import "time"

// Reserves are what the buckets of an engine begin with. Keys are made by one at a time, who may
// use them.
type Reserves struct {
	keys   *Reserve
	routes map[float64]*Reserve // by the share of those routes
}

// NewReserves returns full Reserves.
func NewReserves(s Sizing) Reserves {
	return Reserves{keys: NewReserve(s, s.Share), routes: make(map[float64]*Reserve)}
}

// of returns the Reserve of all routes with the given share.
func (r *Reserves) of(s Sizing, share float64) *Reserve {
	if r.routes[share] == nil {
		r.routes[share] = NewReserve(s, share)
	}
	return r.routes[share]
}

// A Purse is what pays for the hedges of a key. Its fields do not change.
type Purse struct {
	*Bucket         // may be shared with other keys
	Alone   bool    // no other key has it
	own     bool    // the key made it
	fixed   bool    // it does not follow its rate
	route   *Bucket // of a route with a share of its own, which pays as well; else nil
	share   float64 // that share
}

// Shared returns the Purse of a key that b, which does not follow its rate, pays for.
func Shared(b *Bucket) Purse { return Purse{Bucket: b, fixed: true} }

// Own returns the Purse of a key with a bucket of its own, which other keys of its host may get unless it is to be alone.
func (r *Reserves) Own(s Sizing, alone bool) Purse {
	return Purse{Bucket: NewSized(s, r.keys), Alone: alone, own: true}
}

// Of returns the Purse of a key that the bucket of its host pays for.
func Of(host *Purse) Purse { return Purse{Bucket: host.Bucket} }

// OnRoute makes p pay no more than the given share of the key's own requests.
func (p *Purse) OnRoute(s Sizing, share float64, r *Reserves) {
	p.route, p.share = NewRoute(s, share, r.of(s, share)), share
}

// Count counts a request.
func (p *Purse) Count(now time.Time) {
	p.EarnAt(now)
	if p.route != nil {
		p.route.EarnAt(now)
	}
}

// Pay takes the tokens for a hedge that costs n, or none. The caller sees to it that nobody else asks the route's bucket meanwhile.
func (p *Purse) Pay(now time.Time, c *Ceiling, n int64) bool {
	if p.route != nil && !p.route.PaysN(n) || !c.Spend(now, p.Bucket, n) {
		return false
	}
	if p.route != nil {
		p.route.SpendN(n)
	}
	return true
}

// Return returns what Pay took.
func (p *Purse) Return(now time.Time, c *Ceiling, n int64) {
	c.GiveBack(now, p.Bucket, n)
	if p.route != nil {
		p.route.GiveBackN(n)
	}
}

// HalfFull reports whether all that pays is at least half full: a bucket that
// is spent as it is earned stays exhausted.
func (p *Purse) HalfFull(now time.Time, c *Ceiling) bool {
	return p.Bucket.HalfFull() && (p.route == nil || p.route.HalfFull()) && c.HalfFull(now)
}

// Follow sizes the buckets for the measured rate, and returns the share that pays.
func (p *Purse) Follow(s Sizing, now time.Time) (share float64) {
	if !p.fixed {
		p.Bucket.Follow(s, s.Share, now)
	}
	if p.route != nil {
		p.route.Follow(s, p.share, now)
	}
	return p.Share(s.Share)
}

// Share returns how many hedges p pays for per request if the settings allow the given share.
func (p *Purse) Share(set float64) float64 {
	if p.route == nil {
		return set
	}
	return min(set, p.share)
}

// Close puts back what the key has. It is no longer needed.
func (p *Purse) Close() {
	if p.own {
		p.Bucket.Close()
	}
	if p.route != nil {
		p.route.Close()
	}
}
