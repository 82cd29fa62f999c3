package budget

import "math"

// unitsPerToken is the number of units in a token. Counts of tokens are integers in billionths of a token, so that shares such as
// 0.1 and 0.01 are exact.
const unitsPerToken = 1_000_000_000

// A tokenBucket holds tokens up to its size. Each request deposits a part of a token. Tokens that do not fit are the
// overflow, which the methods return. The owner of a tokenBucket guards it with a lock.
type tokenBucket struct {
	unitsPerRequest   int64 // deposit for each request, in billionths of a token
	size              int64 // maximum of tokens, in billionths of a token
	tokens            int64 // content, in billionths of a token
	depositedRequests int64 // number of requests whose tokens were deposited
}

// maxDepositedRequests is the maximum number of requests whose tokens are deposited at once. More requests deposit nothing,
// because the multiplication could overflow.
const maxDepositedRequests = 1 << 28

// newTokenBucket returns a full tokenBucket, in which each request deposits share tokens, and which holds at most burst tokens.
func newTokenBucket(share, burst float64) tokenBucket {
	return tokenBucket{unitsPerRequest: unitsForShare(share), size: unitsForBurst(burst), tokens: unitsForBurst(burst)}
}

// unitsForShare converts a share, in tokens per request, to billionths of a token. The result is at most 8 tokens.
func unitsForShare(share float64) int64 {
	return int64(min(math.Round(share*unitsPerToken), 8*unitsPerToken))
}

// unitsForBurst converts a burst, in tokens, to billionths of a token. It rounds up to a whole token, and returns at least one
// token.
func unitsForBurst(burst float64) int64 {
	return int64(min(max(math.Ceil(burst), 1), math.MaxInt32)) * unitsPerToken
}

// deposit adds the tokens for the requests since its last call. The argument requests is the number of requests since the
// bucket was created. deposit returns the overflow: the tokens that did not fit, in billionths of a token.
func (b *tokenBucket) deposit(requests int64) (overflow int64) {
	if n := requests - b.depositedRequests; n > 0 {
		b.tokens += min(n, maxDepositedRequests) * b.unitsPerRequest
		b.depositedRequests = requests
	}
	overflow = max(b.tokens-b.size, 0)
	b.tokens -= overflow
	return overflow
}

// resize changes the share, in tokens per request, and the burst, in tokens, for future requests. It first deposits the
// tokens for past requests, as deposit does. It returns the overflow: the tokens that do not fit into the new size, in
// billionths of a token.
func (b *tokenBucket) resize(requests int64, share, burst float64) (overflow int64) {
	overflow = b.deposit(requests)
	b.unitsPerRequest, b.size = unitsForShare(share), unitsForBurst(burst)
	return overflow + b.deposit(requests)
}

// isHalfFull reports whether the bucket holds at least half of its size, and at least one token.
func (b *tokenBucket) isHalfFull() bool { return b.tokens >= max(unitsPerToken, b.size/2) }
