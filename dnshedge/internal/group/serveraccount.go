package group

import (
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// Burst is the most hedges that the budget can hold, and the most retransmissions.
const Burst = 20

// serverAccount pays for further queries of one question to a server. It is safe for concurrent use.
type serverAccount struct {
	sharedBucket    *budget.Bucket       // of all servers
	serverBucket    *budget.Bucket       // of hedges to this one
	retransmissions retransmissionBucket // of resends that cost no budget
}

func (p *serverAccount) init(common *budget.Bucket, share float64, key *policy.Key) {
	p.sharedBucket, p.serverBucket = common, budget.NewBucket(share, Burst)
	p.retransmissions.tokens = Burst
	key.AddBuckets(common, p.serverBucket)
}

// earnTokens refills the buckets with their share of a query to the server.
func (p *serverAccount) earnTokens() {
	p.sharedBucket.Earn()
	p.serverBucket.Earn()
}

// payHedge admits hedge n of a call, if the buckets pay for it and the call's key has no other reason to deny it. A hedge that
// is only counted (observe.DeniedShadow) is paid for by the server's own bucket alone: the common one pays for hedges that are sent.
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

// payRetransmission pays for a retransmission. The server's answers pay for the first one of a question. Later ones
// need the budget or a surplus of answers, which shows packet loss and not an overloaded server. A silent server gets
// retransmissions from the budget alone, because an outage must not double the load.
func (p *serverAccount) payRetransmission(first, silent bool) bool {
	return first && !silent && p.retransmissions.spendToken(1) || p.payFailover() || !silent && p.payFromSurplus()
}

// payFromSurplus pays for a retransmission if the bucket holds at least half of Burst.
func (p *serverAccount) payFromSurplus() bool { return p.retransmissions.spendToken(Burst / 2) }

// payFailover pays for asking this server because another one could not answer, if that is to cost anything.
func (p *serverAccount) payFailover() bool {
	return p.sharedBucket.Spend()
}

// retransmissionPeriod is longer than most timeouts, so that the answers to some of a burst pay
// for the others.
const retransmissionPeriod = 2 * time.Second

// retransmissionBucket pays for retransmissions to a server: one for each answer. It holds Burst tokens, and one for
// each answer of this period and the previous one, because many answers at a time mean many losses at a time. It begins
// with Burst tokens. It is safe for concurrent use.
type retransmissionBucket struct {
	mu        sync.Mutex // guards the fields below
	tokens    int
	periodEnd time.Time // of the period
	answers   [2]int    // in the period, and in the one before
}

// earnToken adds a token for an answer.
func (b *retransmissionBucket) earnToken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updatePeriod()
	b.answers[0]++
	b.tokens++
}

// spendToken takes a token for one retransmission if the bucket has the given number at least. Otherwise it reports
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

// updatePeriod begins a new period if it is time to, and drops the tokens that the bucket no
// longer holds. The caller holds mu.
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
