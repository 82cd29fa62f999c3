package budget

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestAccountPaysFromAllBucketsOrNone empties each bucket and the limit in turn.
func TestAccountPaysFromAllBucketsOrNone(t *testing.T) {
	const all = 5
	s := Sizing{Share: 0.1, EstimatedRPS: 100, Burst: 2 * time.Second}
	for empty := range all {
		r := NewReserveSet(s)
		a, limit := r.NewAccount(s, true), NewRateLimit(10)
		a.AddRouteBucket(s, 0.05, &r)
		common, own := NewBucket(0.1, 10), NewBucket(0.1, 10)
		a.AddBuckets(common, own)
		buckets := []*Bucket{common, own, a.main, a.route}
		assert.Equal(t, buckets, a.buckets)
		if empty < len(buckets) {
			for buckets[empty].Spend() {
			}
		} else {
			limit.limiter.AllowN(epoch, limit.limiter.Burst())
		}
		var before []float64
		for _, b := range buckets {
			before = append(before, b.Tokens())
		}
		available := limit.limiter.TokensAt(epoch)
		assert.False(t, a.Spend(epoch, limit, 1), "%d cannot pay", empty)
		for i, b := range buckets {
			assert.Equal(t, before[i], b.Tokens(), "%d cannot pay, %d", empty, i)
		}
		assert.Equal(t, available, limit.limiter.TokensAt(epoch), "%d cannot pay", empty)
	}
}

func TestAccountRefundsAllBuckets(t *testing.T) {
	s := Sizing{Share: 0.1, EstimatedRPS: 100, Burst: 2 * time.Second}
	r := NewReserveSet(s)
	a, limit := r.NewAccount(s, true), NewRateLimit(10)
	a.AddRouteBucket(s, 0.05, &r)
	a.AddBuckets(NewBucket(0.1, 10))
	for range 3 {
		assert.True(t, a.Spend(epoch, limit, 2))
		assert.Equal(t, 8.0, a.buckets[0].Tokens())
		assert.Equal(t, 9.0, limit.limiter.TokensAt(epoch), "the limit counts hedges, whatever they cost")
		a.Refund(epoch, limit, 2)
		assert.Equal(t, 10.0, a.buckets[0].Tokens())
		assert.Equal(t, 10.0, a.main.Tokens())
		assert.Equal(t, 5.0, a.route.Tokens())
		assert.Equal(t, 10.0, limit.limiter.TokensAt(epoch))
	}
}

// TestAccountsThatShareBucketsPayConcurrently spends concurrently from accounts that share a bucket. No token is spent twice, and there is
// no deadlock.
func TestAccountsThatShareBucketsPayConcurrently(t *testing.T) {
	common, host, limit := NewBucket(1, 50), NewBucket(1, 100), NewRateLimit(1e9)
	var paid atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		a, own := NewAccount(host), NewBucket(1, 10)
		a.AddBuckets(common, own)
		wg.Go(func() {
			for range 1000 {
				if a.Spend(epoch, limit, 1) {
					paid.Add(1)
				}
			}
			assert.GreaterOrEqual(t, own.Tokens(), 0.0)
		})
	}
	wg.Wait()
	assert.EqualValues(t, 50, paid.Load())
	assert.Zero(t, common.Tokens())
	assert.Equal(t, 50.0, host.Tokens())
}

// One of the two goroutines always passes an earlier time.
func TestRateLimitEarnsOnceWhenTimeStepsBack(t *testing.T) {
	limit, a := NewRateLimit(10), NewAccount(NewBucket(1, 1e6))
	paid := 0
	for i := range 1000 {
		for _, late := range []time.Duration{0, 100 * time.Millisecond} {
			if a.Spend(epoch.Add(time.Duration(i)*time.Millisecond-late), limit, 1) {
				paid++
			}
		}
	}
	assert.LessOrEqual(t, paid, 20, "a burst, and the hedges of a second")
}
