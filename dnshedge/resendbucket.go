package dnshedge

import (
	"sync"
	"time"
)

// resendPeriod is longer than most timeouts, so that the answers to some of a burst pay
// for the others.
const resendPeriod = 2 * time.Second

// resendBucket pays for resends to a server with its answers, one each. It holds
// budgetBurst tokens and one for each answer of this period and the one before: where many
// are answered together, many may be lost together. It begins with budgetBurst tokens. It
// is safe for concurrent use.
type resendBucket struct {
	mu      sync.Mutex // guards the fields below
	tokens  int
	end     time.Time // of the period
	answers [2]int    // in the period, and in the one before
}

// Earn adds a token for an answer.
func (b *resendBucket) Earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	b.answers[0]++
	b.tokens++
}

// Spend takes the token for one resend, or reports false.
func (b *resendBucket) Spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}

// Tokens returns how many resends the bucket would pay for now.
func (b *resendBucket) Tokens() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	return b.tokens
}

// refresh begins a new period if it is time to, and drops the tokens that the bucket no
// longer holds. The caller holds mu.
func (b *resendBucket) refresh() {
	now := time.Now()
	if now.Before(b.end) {
		return
	}
	b.answers[1], b.answers[0] = b.answers[0], 0
	if now.Sub(b.end) >= resendPeriod {
		b.answers[1] = 0
	}
	b.end = now.Add(resendPeriod)
	b.tokens = min(b.tokens, budgetBurst+b.answers[1])
}
