package budget

import "math"

// one is a hedge's price: tokens are counted in billionths, so that what is earned in tenths and hundredths is exact.
const one = 1_000_000_000

// A pot holds tokens, up to its size, and earns a rate of them per request. What it
// earns beyond its size overflows. It is guarded by whoever has it.
type pot struct {
	rate int64 // per request
	size int64
	held int64
	at   int64 // the number of requests until which it has earned
}

// maxEarned is how many requests a pot earns from at a time. With more the arithmetic could overflow; they earn nothing.
const maxEarned = 1 << 28

// newPot returns a pot that is full.
func newPot(share, burst float64) pot {
	p := pot{rate: rateOf(share), size: sizeOf(burst)}
	p.held = p.size
	return p
}

// rateOf returns what a request earns: 8 tokens at most.
func rateOf(share float64) int64 { return int64(min(math.Round(share*one), 8*one)) }

// sizeOf returns how much a pot for a burst holds: a whole number of tokens, and one at least.
func sizeOf(burst float64) int64 { return int64(min(max(math.Ceil(burst), 1), math.MaxInt32)) * one }

// earn takes note of the number of requests so far, and returns what overflows.
func (p *pot) earn(requests int64) (over int64) {
	if n := requests - p.at; n > 0 {
		p.held += min(n, maxEarned) * p.rate
		p.at = requests
	}
	over = max(p.held-p.size, 0)
	p.held -= over
	return over
}

// set changes the rate and the size from now on. What was earned stays, up to the size.
func (p *pot) set(requests int64, share, burst float64) (over int64) {
	over = p.earn(requests)
	p.rate, p.size = rateOf(share), sizeOf(burst)
	return over + p.earn(requests)
}

func (p *pot) halfFull() bool { return p.held >= max(one, p.size/2) }
