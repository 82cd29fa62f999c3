package budget

import "time"

// An Account is the hedge budget of a key: one or more token buckets. A hedge takes its tokens from every bucket and from the rate
// limit, or from none of them. Accounts may share buckets. The owner of an Account guards it: AddBuckets and AddRouteBucket must not
// run at the same time as other methods.
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

// NewAccount returns an Account with a new main bucket, whose initial tokens come from the reserve. If exclusive is false, other
// accounts may share the bucket.
func (r *Reserves) NewAccount(s Sizing, exclusive bool) *Account {
	b := newSharingBucket(s, r.keyReserve)
	return &Account{buckets: []*Bucket{b}, main: b, ownsMain: true, exclusiveMain: exclusive}
}

// ShareMain returns an Account that spends from the main bucket of a.
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

// Earn is EarnAt for an account whose buckets keep their size and so measure no rate.
func (a *Account) Earn() { a.main.Earn() }

// IsExclusive reports whether no other account uses the main bucket. Requests then counts the requests of this account alone.
func (a *Account) IsExclusive() bool { return a.exclusiveMain }

// Requests returns the number of requests of the main bucket.
func (a *Account) Requests() int64 { return a.main.Requests() }

// Spend pays for one hedge: n tokens from each bucket and one token from limit. If one of them has too few, Spend takes no token and
// reports false.
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

// Refund returns the tokens that Spend took for a hedge that was not sent. The arguments are those of Spend.
func (a *Account) Refund(now time.Time, limit *RateLimit, n int64) {
	for _, b := range a.buckets {
		b.RefundN(n)
	}
	limit.lock()
	defer limit.unlock()
	limit.spendTokens(now, -1)
}

// Tokens returns the tokens of the emptiest bucket, rounded to a thousandth. The bucket of the route does not count.
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

// AdaptSize resizes the buckets for their measured request rates, and returns the effective share.
func (a *Account) AdaptSize(s Sizing, now time.Time) (share float64) {
	if !a.fixedSize {
		a.main.AdaptSize(s, s.Share, now)
	}
	if a.route != nil {
		a.route.AdaptSize(s, a.routeShare, now)
	}
	return a.EffectiveShare(s.Share)
}

// EffectiveShare returns the hedges per request that the account pays for: the configured share, or the share of the route if that
// is smaller.
func (a *Account) EffectiveShare(configured float64) float64 {
	if a.route == nil {
		return configured
	}
	return min(configured, a.routeShare)
}

// Close returns the tokens of the buckets that the account owns to their reserves. These buckets pay for no further hedge.
func (a *Account) Close() {
	if a.ownsMain {
		a.main.Close()
	}
	if a.route != nil {
		a.route.Close()
	}
}
