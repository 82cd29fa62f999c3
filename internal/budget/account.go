package budget

import "time"

// An Account is the hedge budget of a key: one or more token buckets. A hedge takes tokens from every bucket and from the rate limit, or
// from none of them. Accounts may share buckets.
//
// Methods are safe for concurrent use, except AddBuckets and AddRouteBucket: the owner must not call them while another method runs.
type Account struct {
	buckets       []*Bucket // all buckets, in the order in which Spend locks them: added buckets, main, route
	main          *Bucket   // bucket of the key, of its host, or of several clients
	route         *Bucket   // bucket of the route; nil: the route has no share of its own
	routeShare    float64   // hedges per request of the route
	ownsMain      bool      // Close closes main
	fixedSize     bool      // AdaptSize does not change main
	exclusiveMain bool      // no other account uses main
}

// NewAccount returns an Account that spends from b. AdaptSize does not change the size of b.
func NewAccount(b *Bucket) *Account {
	return &Account{buckets: []*Bucket{b}, main: b, fixedSize: true}
}

// NewAccount returns an Account with a new main bucket, whose initial tokens come from the reserve. Exclusive means that no other account
// will share the main bucket.
func (r *Reserves) NewAccount(s Sizing, exclusive bool) *Account {
	b := newSharingBucket(s, r.keyReserve)
	return &Account{buckets: []*Bucket{b}, main: b, ownsMain: true, exclusiveMain: exclusive}
}

// ShareMain returns a new Account that spends from the main bucket of a. The bucket belongs to a.
func (a *Account) ShareMain() *Account {
	return &Account{buckets: []*Bucket{a.main}, main: a.main}
}

// AddRouteBucket adds a bucket that limits hedges to the given share of the requests of this account.
func (a *Account) AddRouteBucket(s Sizing, share float64, r *Reserves) {
	a.route, a.routeShare = newRouteBucket(s, share, r.routeReserve(s, share)), share
	a.buckets = append(a.buckets, a.route)
}

// AddBuckets adds buckets from which each hedge takes tokens as well. Their owner must call Earn on them for each request. Accounts
// that share added buckets must add them in the same order, because Spend locks them in that order.
func (a *Account) AddBuckets(buckets ...*Bucket) {
	a.buckets = append(buckets, a.buckets...)
}

// EarnAt counts a request at the time now. The main bucket and the bucket of the route earn tokens.
func (a *Account) EarnAt(now time.Time) {
	a.main.EarnAt(now)
	if a.route != nil {
		a.route.EarnAt(now)
	}
}

// Earn counts a request in the main bucket, for an account that never adapts the size of its buckets.
func (a *Account) Earn() { a.main.Earn() }

// IsExclusive reports whether no other account uses the main bucket, so that Requests only counts requests of this account.
func (a *Account) IsExclusive() bool { return a.exclusiveMain }

// Requests returns the number of requests that the main bucket has counted.
func (a *Account) Requests() int64 { return a.main.Requests() }

// Spend pays for one hedge: it takes n tokens from each bucket and one token from limit. If one of them has too few tokens, Spend takes
// none and reports false.
func (a *Account) Spend(now time.Time, limit *RateLimit, n int64) bool {
	limit.lock()
	defer limit.unlock()
	canPay := limit.canSpend(now)
	for _, b := range a.buckets {
		b.mu.Lock()
		canPay = canPay && b.canSpend(n)
	}
	for _, b := range a.buckets {
		if canPay {
			b.addTokens(-n * tokenUnits)
		}
		b.mu.Unlock()
	}
	if canPay {
		limit.spendTokens(now, 1)
	}
	return canPay
}

// Refund returns the tokens that Spend took for a hedge that was not sent. It gets the same arguments as Spend.
func (a *Account) Refund(now time.Time, limit *RateLimit, n int64) {
	for _, b := range a.buckets {
		b.RefundN(n)
	}
	limit.lock()
	defer limit.unlock()
	limit.spendTokens(now, -1)
}

// Tokens returns the number of tokens in the emptiest bucket, rounded to a thousandth. It ignores the bucket of the route.
func (a *Account) Tokens() float64 {
	n := a.main.Tokens()
	for _, b := range a.buckets {
		if b != a.route {
			n = min(n, b.Tokens())
		}
	}
	return n
}

// IsHalfFull reports whether all buckets and the limit are at least half full.
func (a *Account) IsHalfFull(now time.Time, limit *RateLimit) bool {
	for _, b := range a.buckets {
		if !b.IsHalfFull() {
			return false
		}
	}
	return limit.isHalfFull(now)
}

// AdaptSize adapts the sizes of the buckets to their measured request rates, and returns the effective share.
func (a *Account) AdaptSize(s Sizing, now time.Time) (share float64) {
	if !a.fixedSize {
		a.main.AdaptSize(s, s.Share, now)
	}
	if a.route != nil {
		a.route.AdaptSize(s, a.routeShare, now)
	}
	return a.EffectiveShare(s.Share)
}

// EffectiveShare returns the hedges per request that the account can pay for: the smaller one of the configured share and the share of the
// route.
func (a *Account) EffectiveShare(configured float64) float64 {
	if a.route == nil {
		return configured
	}
	return min(configured, a.routeShare)
}

// Close closes the buckets that the account owns: their tokens return to the reserves, and they pay for no further hedge.
func (a *Account) Close() {
	if a.ownsMain {
		a.main.Close()
	}
	if a.route != nil {
		a.route.Close()
	}
}
