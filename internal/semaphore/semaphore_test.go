package semaphore_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/semaphore"
)

func TestSemaphoreIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := semaphore.New(2)
		require.NoError(t, p.Acquire(t.Context()))
		require.NoError(t, p.Acquire(t.Context()))
		var served []int
		impatient, leave := context.WithCancel(t.Context())
		for i := range 5 {
			ctx := t.Context()
			if i == 1 {
				ctx = impatient
			}
			go func() {
				if p.Acquire(ctx) == nil {
					served = append(served, i)
				}
			}()
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		assert.Empty(t, served)
		for range 4 {
			p.Release()
			synctest.Wait()
		}
		assert.Equal(t, []int{0, 2, 3, 4}, served)
	})
}

func TestAcquireWithEndedContextTakesNoPermit(t *testing.T) {
	p := semaphore.New(1)
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.ErrorIs(t, p.Acquire(gone), context.Canceled)
	require.NoError(t, p.Acquire(t.Context()), "the permit is free")
}

// TestSemaphoreKeepsNumberOfPermits cancels callers at the moment at which they get a permit.
func TestSemaphoreKeepsNumberOfPermits(t *testing.T) {
	const all = 3
	p := semaphore.New(all)
	var working, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 2000 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(30))*time.Microsecond)
				if p.Acquire(ctx) == nil {
					now := working.Add(1)
					for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
					}
					working.Add(-1)
					p.Release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, most.Load(), int64(all))
	for range all {
		require.NoError(t, p.Acquire(t.Context()), "all permits are free again")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Acquire(ctx), context.DeadlineExceeded, "no further permit is free")
}
