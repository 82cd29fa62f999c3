package limit_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/limit"
)

// TestSlotIsReturnedOnce releases a slot from some of its handlers while others end.
func TestSlotIsReturnedOnce(t *testing.T) {
	places := limit.New(3)
	for range 2000 {
		places.AddRequest()
		p := places.NewSlot()
		require.NoError(t, p.Acquire(t.Context()))
		var all sync.WaitGroup
		for range 1 + rand.IntN(4) {
			if p.AddHandler() {
				all.Go(func() { p.RunHandler(func() {}) })
			}
		}
		if rand.IntN(2) == 0 {
			all.Go(p.Release)
		}
		p.RunHandler(func() {})
		all.Wait()
		require.False(t, p.AddHandler())
		p.Release()
		require.Equal(t, []int64{0, 0}, []int64{places.RequestCount(), places.ActiveCount()})
	}
	all := places.Capacity()
	for range all {
		places.AddRequest()
		require.NoError(t, places.NewSlot().Acquire(t.Context()))
	}
	assert.Equal(t, all, places.ActiveCount())
}

func TestSlotIsReturnedAfterPanic(t *testing.T) {
	places := limit.New(1)
	for range 3 {
		places.AddRequest()
		p := places.NewSlot()
		require.NoError(t, p.Acquire(t.Context()))
		assert.PanicsWithValue(t, "x", func() { p.RunHandler(func() { panic("x") }) })
		assert.Zero(t, places.ActiveCount())
	}
	worked := false
	(*limit.Slot)(nil).RunHandler(func() { worked = true })
	assert.True(t, worked, "without a slot")
}

func TestSlotReleasedBeforeAcquireIsReturned(t *testing.T) {
	places := limit.New(1)
	for name, end := range map[string]func(*limit.Slot){
		"Release": (*limit.Slot).Release,
		"Work":    func(p *limit.Slot) { p.RunHandler(func() {}) },
	} {
		p := places.NewSlot()
		require.False(t, p.AddHandler(), name)
		require.False(t, p.IsReleased(), name)
		end(p)
		require.True(t, p.IsReleased(), name)
		places.AddRequest()
		require.NoError(t, p.Acquire(t.Context()), name)
		assert.Equal(t, []int64{0, 0}, []int64{places.RequestCount(), places.ActiveCount()}, name)
	}
}
