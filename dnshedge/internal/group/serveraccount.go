package group

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// Burst is the capacity of the hedge buckets, and the least capacity of the retransmission buckets, in tokens.
const Burst = 20

// A serverAccount holds the token buckets that pay for hedges, retransmissions and failovers to a server. It is safe
// for concurrent use.
type serverAccount struct {
	sharedBucket    *budget.Bucket       // hedge budget of all servers of the Pool
	serverBucket    *budget.Bucket       // hedge budget of this server
	retransmissions retransmissionBucket // pays for retransmissions without the hedge budget
}

// init sets the buckets. common is the shared one, share the refill for each query, and key the latency key of the
// server.
func (p *serverAccount) init(common *budget.Bucket, share float64, key *policy.Key) {
	p.sharedBucket, p.serverBucket = common, budget.NewBucket(share, Burst)
	p.retransmissions.tokens = Burst
	key.AddBuckets(common, p.serverBucket)
}

// earnTokens adds the share of one query to the server to both hedge buckets.
func (p *serverAccount) earnTokens() {
	p.sharedBucket.Earn()
	p.serverBucket.Earn()
}

// payHedge spends a token of both hedge buckets for hedge n of a call. It reports false if one bucket is empty or the
// policy denies the hedge. In shadow mode (observe.DeniedShadow), the token of the shared bucket is returned, because
// no hedge is sent.
func (p *serverAccount) payHedge(call *policy.Call, n int) bool {
	call.Denied = policy.None
	admitted := call.Admit(n)
	switch {
	case admitted:
		p.earnTokens() // because a hedge is a query as well
	case call.Denied == observe.DeniedShadow:
		p.sharedBucket.Refund()
		p.serverBucket.Earn()
	}
	return admitted
}

// payRetransmission spends a token for a retransmission, and reports false if no bucket pays. The server's answers pay
// for the first retransmission of a question. Later ones need the hedge budget or a surplus of answers: a surplus
// indicates packet loss and not an overloaded server.
//
// A silent server gets retransmissions from the hedge budget only, because an outage must not double the load.
func (p *serverAccount) payRetransmission(first, silent bool) bool {
	return first && !silent && p.retransmissions.spendToken(1) || p.payFailover() || !silent && p.payFromSurplus()
}

// payFromSurplus spends a retransmission token if the bucket holds at least half of Burst.
func (p *serverAccount) payFromSurplus() bool { return p.retransmissions.spendToken(Burst / 2) }

// payFailover spends a token of the shared bucket for a query to this server after another server could not answer. It
// reports false if the bucket is empty.
func (p *serverAccount) payFailover() bool {
	return p.sharedBucket.Spend()
}

// retransmissionPeriod is the time over which a retransmissionBucket counts answers. It is longer than most timeouts,
// so that the first answers of a burst of queries pay for retransmissions of the others.
const retransmissionPeriod = 2 * time.Second

// A retransmissionBucket is a token bucket for retransmissions to a server, refilled with one token by each answer. Its
// capacity is Burst, plus one for each answer of the current and the previous period, because more traffic means more
// losses at a time. It starts with Burst tokens. It is safe for concurrent use.
type retransmissionBucket struct {
	mu        sync.Mutex // guards the fields below
	tokens    int
	periodEnd time.Time // end of the current period
	answers   [2]int    // in the current period and in the previous one
}

// earnToken adds a token for an answer.
func (b *retransmissionBucket) earnToken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updatePeriod()
	b.answers[0]++
	b.tokens++
}

// spendToken takes one token. It reports false, and takes none, if the bucket holds fewer than least.
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

// updatePeriod begins a new period if the current one is over, and drops the tokens above the new capacity. The caller
// holds mu.
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
