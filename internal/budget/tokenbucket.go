package budget

import "math"

// tokenUnits is the number of units of a token. Tokens are counted in billionths, so that a tenth and a hundredth are exact.
const tokenUnits = 1_000_000_000

// A tokenBucket holds tokens up to its size. Each request adds a part of a token; tokens beyond the size overflow. All numbers of
// tokens are in units. A lock of the owner guards it.
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

// unitsForShare returns the units per request for a share of hedges per request, at most 8 tokens.
func unitsForShare(share float64) int64 {
	return int64(min(math.Round(share*tokenUnits), 8*tokenUnits))
}

// unitsForBurst returns the size in units for a burst in tokens, rounded up to a whole token.
func unitsForBurst(burst float64) int64 {
	return int64(min(max(math.Ceil(burst), 1), math.MaxInt32)) * tokenUnits
}

// earn adds the tokens for the requests since its last call, where requests is the number of all requests so far. It returns the
// tokens that overflow.
func (b *tokenBucket) earn(requests int64) (overflow int64) {
	if n := requests - b.earnedRequests; n > 0 {
		b.tokens += min(n, maxEarnedRequests) * b.unitsPerRequest
		b.earnedRequests = requests
	}
	overflow = max(b.tokens-b.size, 0)
	b.tokens -= overflow
	return overflow
}

// resize changes the rate and the size for further requests. Tokens that were earned remain, up to the new size. It returns the
// tokens that overflow.
func (b *tokenBucket) resize(requests int64, share, burst float64) (overflow int64) {
	overflow = b.earn(requests)
	b.unitsPerRequest, b.size = unitsForShare(share), unitsForBurst(burst)
	return overflow + b.earn(requests)
}

func (b *tokenBucket) isHalfFull() bool { return b.tokens >= max(tokenUnits, b.size/2) }
