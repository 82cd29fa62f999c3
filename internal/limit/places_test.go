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
		p := places.NewPlace()
		require.NoError(t, p.Take(t.Context()))
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
		require.NoError(t, places.NewPlace().Take(t.Context()))
	}
	assert.Equal(t, all, places.Working())
}

func TestAPlaceIsGivenBackHoweverWorkEnds(t *testing.T) {
	places := limit.New(1)
	for range 3 {
		places.Come()
		p := places.NewPlace()
		require.NoError(t, p.Take(t.Context()))
		assert.PanicsWithValue(t, "x", func() { p.Work(func() { panic("x") }) })
		assert.Zero(t, places.Working())
	}
	worked := false
	(*limit.Place)(nil).Work(func() { worked = true })
	assert.True(t, worked, "without a place")
}

func TestPlaceThatIsReleasedBeforeItIsTakenIsGivenBackAtOnce(t *testing.T) {
	places := limit.New(1)
	for name, end := range map[string]func(*limit.Place){
		"Release": (*limit.Place).Release,
		"Work":    func(p *limit.Place) { p.Work(func() {}) },
	} {
		p := places.NewPlace()
		require.False(t, p.Join(), name)
		require.False(t, p.IsReleased(), name)
		end(p)
		require.True(t, p.IsReleased(), name)
		places.Come()
		require.NoError(t, p.Take(t.Context()), name)
		assert.Equal(t, []int64{0, 0}, []int64{places.Inside(), places.Working()}, name)
	}
}
