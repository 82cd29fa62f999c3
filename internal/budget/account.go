package budget

import "time"

// An Account pays for the hedges of a key. Each hedge is paid from every bucket of the account and from the rate limit, or from none of
// them. Accounts may share buckets. The owner of an Account guards it: Add and AddRoute must not run together with other methods.
type Account struct {
	buckets       []*Bucket // all that pay, in the order in which Pay locks them: added buckets, main, route
	main          *Bucket   // of the key, of its host, or of several clients
	route         *Bucket   // of a route with a share of its own; nil: there is none
	routeShare    float64
	ownsMain      bool // Close closes main
	fixedSize     bool // main keeps its size
	exclusiveMain bool // no other account has main
}

// NewAccount returns an Account that pays from b, whose size does not change.
func NewAccount(b *Bucket) *Account {
	return &Account{buckets: []*Bucket{b}, main: b, fixedSize: true}
}

// NewAccount returns an Account with a new bucket. The accounts of other keys may share the bucket unless it is exclusive.
func (r *Reserves) NewAccount(s Sizing, exclusive bool) *Account {
	b := newSharingBucket(s, r.keyReserve)
	return &Account{buckets: []*Bucket{b}, main: b, ownsMain: true, exclusiveMain: exclusive}
}

// ShareMain returns an Account that pays from the main bucket of a.
func (a *Account) ShareMain() *Account {
	return &Account{buckets: []*Bucket{a.main}, main: a.main}
}

// AddRouteBucket bounds the hedges of the account to the given share of its own requests.
func (a *Account) AddRouteBucket(s Sizing, share float64, r *Reserves) {
	a.route, a.routeShare = newRouteBucket(s, share, r.routeReserve(s, share)), share
	a.buckets = append(a.buckets, a.route)
}

// AddBuckets makes the account pay from further buckets as well. Their owner counts the requests of these buckets.
// Accounts that share added buckets must add them in the same order.
func (a *Account) AddBuckets(buckets ...*Bucket) {
	a.buckets = append(buckets, a.buckets...)
}

// EarnAt counts a request.
func (a *Account) EarnAt(now time.Time) {
	a.main.EarnAt(now)
	if a.route != nil {
		a.route.EarnAt(now)
	}
}

// Earn is Count for an account whose buckets keep their size.
func (a *Account) Earn() { a.main.Earn() }

// IsExclusive reports whether no other account has the main bucket, which then counts the requests of this account alone.
func (a *Account) IsExclusive() bool { return a.exclusiveMain }

// Requests returns the number of requests of the main bucket.
func (a *Account) Requests() int64 { return a.main.Requests() }

// Spend takes n tokens from each bucket, and one from limit; or it takes nothing and reports false.
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

// Refund returns the tokens that Pay took for a hedge that was not sent.
func (a *Account) Refund(now time.Time, limit *RateLimit, n int64) {
	for _, b := range a.buckets {
		b.RefundN(n)
	}
	limit.lock()
	defer limit.unlock()
	limit.spendTokens(now, -1)
}

// Tokens returns how many hedges the account would pay for now, to a thousandth. The bucket of a route does not count.
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

// AdaptSize sizes the buckets for the measured rate of their requests. It returns the share of the requests that the account pays hedges for.
func (a *Account) AdaptSize(s Sizing, now time.Time) (share float64) {
	if !a.fixedSize {
		a.main.AdaptSize(s, s.Share, now)
	}
	if a.route != nil {
		a.route.AdaptSize(s, a.routeShare, now)
	}
	return a.EffectiveShare(s.Share)
}

// EffectiveShare returns the share of the requests that the account pays hedges for if the settings allow the given one.
func (a *Account) EffectiveShare(configured float64) float64 {
	if a.route == nil {
		return configured
	}
	return min(configured, a.routeShare)
}

// Close puts the tokens of the account's own buckets back into their reserves. The account pays no more from them.
func (a *Account) Close() {
	if a.ownsMain {
		a.main.Close()
	}
	if a.route != nil {
		a.route.Close()
	}
}
