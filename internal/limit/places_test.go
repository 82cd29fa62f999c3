package limit_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/limit"
)

// Many work on one request, and some give its place back, at the same time.
func TestAPlaceIsGivenBackOnce(t *testing.T) {
	places := limit.New(3)
	for range 2000 {
		places.Come()
		p, err := places.Acquire(t.Context())
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 1 + rand.IntN(4) {
			if p.Join() {
				all.Go(func() { p.Work(func() {}) })
			}
		}
		if rand.IntN(2) == 0 {
			all.Go(p.Release)
		}
		p.Work(func() {})
		all.Wait()
		require.False(t, p.Join())
		p.Release()
		require.Equal(t, []int64{0, 0}, []int64{places.Inside(), places.Working()})
	}
	all := places.Limit()
	for range all {
		places.Come()
		_, err := places.Acquire(t.Context())
		require.NoError(t, err)
	}
	assert.Equal(t, all, places.Working())
}

func TestAPlaceIsGivenBackHoweverWorkEnds(t *testing.T) {
	places := limit.New(1)
	for range 3 {
		places.Come()
		p, err := places.Acquire(t.Context())
		require.NoError(t, err)
		assert.PanicsWithValue(t, "x", func() { p.Work(func() { panic("x") }) })
		assert.Zero(t, places.Working())
	}
	worked := false
	(*limit.Place)(nil).Work(func() { worked = true })
	assert.True(t, worked, "without a place")
}
