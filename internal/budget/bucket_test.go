package budget_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/budget"
)

func TestBucketPaysOnceUnderConcurrency(t *testing.T) {
	b := budget.NewBucket(0.1, 20)
	var paid, mu = 0, sync.Mutex{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			mine := 0
			for range 10_000 {
				b.Earn()
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

func TestTokensAreToldToAThousandth(t *testing.T) {
	b := budget.NewBucket(0.1, 20)
	for b.Spend() {
	}
	for n := 1; n <= 200; n++ {
		b.Earn()
		assert.Equal(t, strconv.FormatFloat(float64(n)/10, 'f', -1, 64), strconv.FormatFloat(b.Tokens(), 'f', -1, 64))
	}
	assert.True(t, b.Pays())
	for range 20 {
		assert.True(t, b.Spend())
	}
	assert.False(t, b.Pays())
	assert.False(t, b.Spend())
}
