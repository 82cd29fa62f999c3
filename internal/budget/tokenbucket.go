package budget

import "math"

// tokenUnits is the number of units of a token. Tokens are counted in billionths, so that a tenth and a hundredth are exact.
const tokenUnits = 1_000_000_000

// A tokenBucket holds tokens up to its size. Each request adds a part of a token, and surplus tokens overflow. Tokens are counted in units
// of [tokenUnits]. The owner guards it by a lock.
type tokenBucket struct {
	unitsPerRequest int64
	size            int64
	tokens          int64
	earnedRequests  int64 // number of requests whose tokens were added
}

// maxEarnedRequests is the largest number of requests whose tokens are added at once. Further requests earn nothing: with their
// tokens, the arithmetic could overflow.
const maxEarnedRequests = 1 << 28

// newTokenBucket returns a full tokenBucket.
func newTokenBucket(share, burst float64) tokenBucket {
	return tokenBucket{unitsPerRequest: unitsForShare(share), size: unitsForBurst(burst), tokens: unitsForBurst(burst)}
}

// unitsForShare converts a share, in tokens per request, to units per request. The maximum is 8 tokens.
func unitsForShare(share float64) int64 {
	return int64(min(math.Round(share*tokenUnits), 8*tokenUnits))
}

// unitsForBurst converts a burst, in tokens, to units. It rounds up to a whole token.
func unitsForBurst(burst float64) int64 {
	return int64(min(max(math.Ceil(burst), 1), math.MaxInt32)) * tokenUnits
}

// earn adds the tokens for the requests since its last call; the argument is the total number of requests. It returns the overflow in
// units.
func (b *tokenBucket) earn(requests int64) (overflow int64) {
	if n := requests - b.earnedRequests; n > 0 {
		b.tokens += min(n, maxEarnedRequests) * b.unitsPerRequest
		b.earnedRequests = requests
	}
	overflow = max(b.tokens-b.size, 0)
	b.tokens -= overflow
	return overflow
}

// resize changes the share and the size for further requests. Earned tokens stay, up to the new size. It returns the overflow in units.
func (b *tokenBucket) resize(requests int64, share, burst float64) (overflow int64) {
	overflow = b.earn(requests)
	b.unitsPerRequest, b.size = unitsForShare(share), unitsForBurst(burst)
	return overflow + b.earn(requests)
}

func (b *tokenBucket) isHalfFull() bool { return b.tokens >= max(tokenUnits, b.size/2) }
