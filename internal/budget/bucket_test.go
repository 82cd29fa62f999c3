package budget_test

import (
	"math"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/budget"
)

func TestBucketSpendsTokensOnceUnderConcurrency(t *testing.T) {
	b := budget.NewBucket(0.1, 20)
	var paid, mu = 0, sync.Mutex{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			mine := 0
			for range 10_000 {
				b.Deposit()
				if b.Spend() {
					mine++
				}
			}
			mu.Lock()
			paid += mine
			mu.Unlock()
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, paid, 20+8000)
	assert.Greater(t, paid, 8000-1)
}

func TestBucketRoundsTokensToThousandth(t *testing.T) {
	b := budget.NewBucket(0.1, 20)
	for b.Spend() {
	}
	for n := 1; n <= 200; n++ {
		b.Deposit()
		assert.Equal(t, strconv.FormatFloat(float64(n)/10, 'f', -1, 64), strconv.FormatFloat(b.Tokens(), 'f', -1, 64))
	}
	for range 20 {
		assert.True(t, b.Spend())
	}
	assert.False(t, b.Spend())
}

// TestBucketSpendsManyTokensOrNone uses a budget of bytes: each byte is a request and costs a token.
func TestBucketSpendsManyTokensOrNone(t *testing.T) {
	const most = 256 << 20
	b := budget.NewBucket(0.1, 4*most)
	assert.True(t, b.SpendN(4*most))
	assert.False(t, b.SpendN(1))
	b.DepositN(999)
	assert.False(t, b.SpendN(100))
	assert.True(t, b.SpendN(99))
	b.DepositN(1)
	assert.True(t, b.SpendN(1), "a tenth of 1000 bytes")
	for range 100 {
		b.DepositN(most)
	}
	assert.False(t, b.SpendN(4*most+1))
	assert.True(t, b.SpendN(4*most))
	b.RefundN(7)
	assert.False(t, b.SpendN(8))
	assert.True(t, b.SpendN(7))
	for _, n := range []int64{9_300_000_000, 1 << 40, math.MaxInt64} {
		assert.False(t, b.SpendN(n), "%d tokens exceed every burst", n)
		assert.Less(t, b.Tokens(), 1.0)
	}
	none := budget.NewBucket(0, 10)
	assert.False(t, none.SpendN(1), "a bucket with share 0 never pays")
}
