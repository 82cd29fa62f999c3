package group

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// Burst is the capacity, in tokens, of each hedge bucket. It is also the least capacity of a retransmission bucket. A
// query costs one token.
const Burst = 20

// A serverAccount holds the token buckets that limit hedges, retransmissions and failovers to one server. It is safe
// for concurrent use.
type serverAccount struct {
	sharedBucket    *budget.Bucket       // hedge budget of all servers of the Pool; also limits failovers
	serverBucket    *budget.Bucket       // hedge budget of this server
	retransmissions retransmissionBucket // limits retransmissions that do not use the hedge budget
}

// createBuckets creates the token buckets of a server.
//
// common is the bucket that all servers share. share is the number of tokens that each query adds to the server's own
// hedge bucket. key is the latency key of the server. From now on, its hedges cost tokens of both buckets.
func (p *serverAccount) createBuckets(common *budget.Bucket, share float64, key *policy.Key) {
	p.sharedBucket, p.serverBucket = common, budget.NewBucket(share, Burst)
	p.retransmissions.tokens = Burst
	key.AddBuckets(common, p.serverBucket)
}

// earnTokens adds a fraction of a token to both hedge buckets, because a query is sent to the server. These are the
// bucket that all servers share, and the bucket of this server.
func (p *serverAccount) earnTokens() {
	p.sharedBucket.Deposit()
	p.serverBucket.Deposit()
}

// payForHedge asks the hedge policy to admit hedge n of call. A hedge costs a token of the bucket that all servers
// share, and a token of the server's own hedge bucket. It returns false if one of them is empty, or if the policy
// denies the hedge. call.Denied then holds the reason.
//
// In shadow mode, the token of the shared bucket is returned, because no hedge is sent.
func (p *serverAccount) payForHedge(call *policy.Call, n int) bool {
	call.Denied = policy.None
	admitted := call.Admit(n)
	switch {
	case admitted:
		p.earnTokens() // a hedge is a query too
	case call.Denied == observe.DeniedShadow:
		p.sharedBucket.Refund()
		p.serverBucket.Deposit()
	}
	return admitted
}

// payForRetransmission spends a token for a retransmission to this server. It returns false if no bucket has a token
// for it. first is true for the first retransmission of a question, and silent is true if the server is silent.
//
// The retransmission bucket of the server pays for a first retransmission; each response of the server fills it. A
// later one costs a token of the shared hedge bucket, or of a retransmission bucket that is at least half full. Many
// responses indicate packet loss and not an overloaded server.
//
// Only the shared hedge bucket pays for retransmissions to a silent server, because an outage must not double the load.
func (p *serverAccount) payForRetransmission(first, silent bool) bool {
	return first && !silent && p.retransmissions.spendToken(1) || p.payForFailover() || !silent && p.spendSurplusToken()
}

// spendSurplusToken spends a token of the retransmission bucket if that bucket is at least half full, with Burst/2 tokens
// or more. Otherwise, it spends none and returns false.
func (p *serverAccount) spendSurplusToken() bool { return p.retransmissions.spendToken(Burst / 2) }

// payForFailover spends a token of the shared hedge bucket for a failover: a query to this server after another server
// could not answer. It returns false if the bucket is empty. It also pays for retransmissions that the retransmission
// bucket does not pay for.
func (p *serverAccount) payForFailover() bool { return p.sharedBucket.Spend() }

// retransmissionPeriod is the time over which a retransmissionBucket counts responses. It is longer than most timeouts.
// So the first responses to a burst of queries permit retransmissions of the other queries.
const retransmissionPeriod = 2 * time.Second

// A retransmissionBucket is a token bucket that limits retransmissions to one server. It starts with Burst tokens, and
// each response of the server adds one token.
//
// Its capacity is Burst tokens, plus one for each response in the current and the previous period. More traffic needs a
// larger capacity, because more packets are lost at the same time. It is safe for concurrent use.
type retransmissionBucket struct {
	mu        sync.Mutex // guards the fields below
	tokens    int        // number of tokens in the bucket
	periodEnd time.Time  // end of the current period
	answers   [2]int     // number of responses in the current period, and in the previous period
}

// earnToken adds one token, because the server has sent a response.
func (b *retransmissionBucket) earnToken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updatePeriod()
	b.answers[0]++
	b.tokens++
}

// spendToken spends one token and returns true. If the bucket holds fewer tokens than least, it spends none and returns
// false.
func (b *retransmissionBucket) spendToken(least int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updatePeriod()
	if b.tokens < least {
		return false
	}
	b.tokens--
	return true
}

// updatePeriod starts the next counting period of retransmissionPeriod if the current one is over. It then drops the
// tokens that exceed the capacity, which depends on the responses of the period that has ended. The caller must hold
// mu.
func (b *retransmissionBucket) updatePeriod() {
	now := time.Now()
	if now.Before(b.periodEnd) {
		return
	}
	b.answers[1], b.answers[0] = b.answers[0], 0
	if now.Sub(b.periodEnd) >= retransmissionPeriod {
		b.answers[1] = 0
	}
	b.periodEnd = now.Add(retransmissionPeriod)
	b.tokens = min(b.tokens, Burst+b.answers[1])
}
