package budget

import "time"

// An Account is the hedge budget of one key. It consists of one or more token buckets, which it may share with other accounts.
// A hedge takes tokens from every bucket and from the rate limit, or from none of them.
//
// An Account is safe for concurrent use, except for AddBuckets and AddRouteBucket, which must not be called concurrently with
// other methods.
type Account struct {
	// buckets holds all buckets, in the order in which Spend locks them: buckets of AddBuckets, then main, then route.
	buckets       []*Bucket
	main          *Bucket // bucket of the key, of its host, or of several clients; also part of buckets
	route         *Bucket // bucket that limits hedges to the share of the route; nil: the route has no own share
	routeShare    float64 // hedges per request of the route, if route is not nil
	ownsMain      bool    // main belongs to this account, so Close closes it
	fixedSize     bool    // AdaptSize does not change the size of main
	exclusiveMain bool    // no other account uses main
}

// NewAccount returns an Account whose main bucket is b, for example a bucket that several clients share. The caller owns b:
// the methods AdaptSize and Close of the account do not change it.
func NewAccount(b *Bucket) *Account {
	return &Account{buckets: []*Bucket{b}, main: b, fixedSize: true}
}

// NewAccount returns an Account with a new main bucket, whose size follows from s. Its initial tokens come from the reserve
// for keys. exclusive must be true if no other account will share the main bucket.
func (r *ReserveSet) NewAccount(s Sizing, exclusive bool) *Account {
	b := newSharingBucket(s, r.keyReserve)
	return &Account{buckets: []*Bucket{b}, main: b, ownsMain: true, exclusiveMain: exclusive}
}

// NewSharedAccount returns a new Account that uses the main bucket of a. The bucket still belongs to a, so Close of the new account
// does not close it.
func (a *Account) NewSharedAccount() *Account {
	return &Account{buckets: []*Bucket{a.main}, main: a.main}
}

// AddRouteBucket adds a bucket for a route with its own limit: the hedges are at most the given share of the requests of
// this account. The share is in hedges per request. The initial tokens come from the reserve of r for this share.
func (a *Account) AddRouteBucket(s Sizing, share float64, r *ReserveSet) {
	a.route, a.routeShare = newRouteBucket(s, share, r.routeReserve(s, share)), share
	a.buckets = append(a.buckets, a.route)
}

// AddBuckets adds buckets that must also pay for each hedge. The account deposits no tokens in them: their owner must call Deposit
// for each request.
//
// Accounts that share added buckets must add them in the same order, because Spend locks them in that order.
func (a *Account) AddBuckets(buckets ...*Bucket) {
	a.buckets = append(buckets, a.buckets...)
}

// DepositAt deposits the tokens for one request, made at the time now, in the main bucket and the bucket of the route.
func (a *Account) DepositAt(now time.Time) {
	a.main.DepositAt(now)
	if a.route != nil {
		a.route.DepositAt(now)
	}
}

// Deposit deposits the tokens for one request in the main bucket. Use it only for an account that has no route bucket and
// whose main bucket never adapts its size. Other accounts need DepositAt.
func (a *Account) Deposit() { a.main.Deposit() }

// IsExclusive reports whether no other account uses the main bucket. Only then does Requests return the number of requests of
// this account alone.
func (a *Account) IsExclusive() bool { return a.exclusiveMain }

// Requests returns the number of requests for which the main bucket got tokens.
func (a *Account) Requests() int64 { return a.main.Requests() }

// Spend pays for one hedge at the time now: it takes n tokens from each bucket, and one token from limit, which may be nil. If
// a bucket or limit has too few tokens, Spend takes none and returns false.
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
			b.addTokens(-n * unitsPerToken)
		}
		b.mu.Unlock()
	}
	if canPay {
		limit.spendTokens(now, 1)
	}
	return canPay
}

// Refund returns the tokens that Spend took for a hedge that was not sent. The caller must pass the same limit and n as to
// Spend.
func (a *Account) Refund(now time.Time, limit *RateLimit, n int64) {
	for _, b := range a.buckets {
		b.RefundN(n)
	}
	limit.lock()
	defer limit.unlock()
	limit.spendTokens(now, -1)
}

// Tokens returns the number of tokens that the account can spend, rounded to a thousandth of a token. That is the number in
// the bucket that has the fewest tokens. The bucket of the route is ignored.
func (a *Account) Tokens() float64 {
	n := a.main.Tokens()
	for _, b := range a.buckets {
		if b != a.route {
			n = min(n, b.Tokens())
		}
	}
	return n
}

// IsHalfFull reports whether every bucket of the account, and limit, hold at least half of the tokens that they can hold. It
// serves to detect that an exhausted budget has recovered.
func (a *Account) IsHalfFull(now time.Time, limit *RateLimit) bool {
	for _, b := range a.buckets {
		if !b.IsHalfFull() {
			return false
		}
	}
	return limit.isHalfFull(now)
}

// AdaptSize adapts the sizes of the buckets to their measured request rates. It returns the maximum number of hedges per
// request that the account can pay for in the long run, see EffectiveShare.
func (a *Account) AdaptSize(s Sizing, now time.Time) (share float64) {
	if !a.fixedSize {
		a.main.AdaptSize(s, s.Share, now)
	}
	if a.route != nil {
		a.route.AdaptSize(s, a.routeShare, now)
	}
	return a.EffectiveShare(s.Share)
}

// EffectiveShare returns the maximum number of hedges per request that the account can pay for in the long run. It is the
// configured share or the share of the route, whichever is smaller.
func (a *Account) EffectiveShare(configured float64) float64 {
	if a.route == nil {
		return configured
	}
	return min(configured, a.routeShare)
}

// Close closes the buckets that belong to the account: their tokens return to the reserves, and they pay for no further hedge.
// It does not change shared buckets.
func (a *Account) Close() {
	if a.ownsMain {
		a.main.Close()
	}
	if a.route != nil {
		a.route.Close()
	}
}
