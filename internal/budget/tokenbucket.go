package budget

import "math"

// tokenUnits is the price of a hedge. Tokens are counted in billionths, so that tenths and hundredths are exact.
const tokenUnits = 1_000_000_000

// A tokenBucket holds tokens up to its size, and earns some with each request. Further tokens overflow.
// The lock of its owner guards it.
type tokenBucket struct {
	unitsPerRequest int64 // tokens per request
	size            int64
	tokens          int64
	earnedRequests  int64 // the number of requests until which it has earned
}

// maxEarnedRequests is the number of requests that a tokenBucket earns from at a time. With more the arithmetic could overflow; they earn nothing.
const maxEarnedRequests = 1 << 28

// newTokenBucket returns a full tokenBucket.
func newTokenBucket(share, burst float64) tokenBucket {
	return tokenBucket{unitsPerRequest: unitsForShare(share), size: unitsForBurst(burst), tokens: unitsForBurst(burst)}
}

// unitsForShare returns the tokens per request for a share: 8 hedges at most.
func unitsForShare(share float64) int64 {
	return int64(min(math.Round(share*tokenUnits), 8*tokenUnits))
}

// unitsForBurst returns the size for a burst: a whole number of hedges, and one at least.
func unitsForBurst(burst float64) int64 {
	return int64(min(max(math.Ceil(burst), 1), math.MaxInt32)) * tokenUnits
}

// earn adds the tokens for all requests until the given number of requests. It returns the tokens that overflow.
func (b *tokenBucket) earn(requests int64) (overflow int64) {
	if n := requests - b.earnedRequests; n > 0 {
		b.tokens += min(n, maxEarnedRequests) * b.unitsPerRequest
		b.earnedRequests = requests
	}
	overflow = max(b.tokens-b.size, 0)
	b.tokens -= overflow
	return overflow
}

// resize changes the rate and the size from now on. Earned tokens remain, up to the size.
func (b *tokenBucket) resize(requests int64, share, burst float64) (overflow int64) {
	overflow = b.earn(requests)
	b.unitsPerRequest, b.size = unitsForShare(share), unitsForBurst(burst)
	return overflow + b.earn(requests)
}

func (b *tokenBucket) isHalfFull() bool { return b.tokens >= max(tokenUnits, b.size/2) }
