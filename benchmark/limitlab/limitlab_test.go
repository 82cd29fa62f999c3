package limitlab_test

import (
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/limitlab"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestMain(m *testing.M) {
	limitlab.Play()
	os.Exit(m.Run())
}

// long leaves a test out when the race detector is on, which has nothing to find in one goroutine.
func long(t *testing.T) {
	if doubles.RaceEnabled || testing.Short() {
		t.Skip("a long simulation in one goroutine")
	}
	t.Parallel()
}

func mean(calls []latency.Call) float64 {
	sum := 0.
	for _, c := range calls {
		sum += c.Latency.Seconds()
	}
	return sum / float64(len(calls))
}

// erlang is the probability that a request waits, of n servers at a load.
func erlang(n int, load float64) float64 {
	a := load * float64(n)
	term, sum := 1., 0.
	for i := range n {
		sum += term
		term *= a / float64(i+1)
	}
	return term / (1 - load) / (sum + term/(1-load))
}

// TestServersBehaveAsQueueingTheorySays compares mean response times with those that are known exactly.
func TestServersBehaveAsQueueingTheorySays(t *testing.T) {
	long(t)
	const s = .01
	shared := s / (1 - .8) // whatever the distribution is
	wait := func(n int) float64 { return s + erlang(n, .8)*s/float64(n)/(1-.8) }
	polled := func(square float64) float64 { return s + .8*s*(1+square)/2/(1-.8) } // Pollaczek and Khinchine
	for _, tt := range []struct {
		what  string
		world limitlab.World
		limit int
		want  float64
	}{
		{"M/M/1, shared", limitlab.Shared(1, s).Exponential(), limitlab.Unlimited, shared},
		{"M/G/1, shared, lognormal", limitlab.Shared(1, s).Lognormal(.5), limitlab.Unlimited, shared},
		{"M/G/1, shared, bimodal", limitlab.Shared(1, s).Bimodal(), limitlab.Unlimited, shared},
		{"M/M/8, shared", limitlab.Shared(8, s).Exponential(), limitlab.Unlimited, wait(8)},
		{"M/M/10, a pool", limitlab.Pooled(10, s).Exponential(), limitlab.Unlimited, wait(10)},
		{"M/M/10, a limit", limitlab.Shared(10, s).Exponential(), 10, wait(10)},
		{"M/M/1, a lock", limitlab.Pooled(1, s).Exponential(), limitlab.Unlimited, shared},
		{"M/G/1, a limit of one", limitlab.Shared(1, s).Lognormal(.5), 1, polled(math.Exp(.25) - 1)},
	} {
		played := tt.world.Play(t.Context(), .8, 4000*time.Second/time.Duration(max(1, tt.world.Capacity()/200)), tt.limit)
		assert.InEpsilon(t, tt.want, mean(played.Calls), .04, "%s: %d requests", tt.what, len(played.Calls))
	}
}

// TestServersFinishWhatTheyCan has more arrive than the server can finish: under the best limit it finishes as many as is said of it.
func TestServersFinishWhatTheyCan(t *testing.T) {
	long(t)
	for _, w := range limitlab.Kinds() {
		if w.Closed() || w.Infinite() {
			continue
		}
		most := 0.
		for _, limit := range []int{1, 4, 8, 16, 20, 32, 64, 80} {
			most = max(most, w.Play(t.Context(), 1.5, 10*time.Second, limit).Finished)
		}
		assert.InEpsilon(t, w.Capacity(), most, .05, w.Name())
	}
}

// Clients who wait for their answers make the load that is said, as far as nobody waits.
func TestClientsMakeTheLoad(t *testing.T) {
	for _, w := range limitlab.Kinds() {
		if w.Closed() {
			assert.InEpsilon(t, .5*w.Capacity(), w.Play(t.Context(), .5, 20*time.Second, limitlab.Unlimited).Finished, .03, w.Name())
		}
	}
}

func TestWorkHasItsMean(t *testing.T) {
	for _, w := range limitlab.Kinds() {
		random := rand.New(rand.NewPCG(1, 1))
		sum := 0.
		const n = 100_000
		for range n {
			sum += w.Draw(random)
		}
		assert.InEpsilon(t, w.Mean(), sum/n, .02, w.Name())
	}
}

func TestNoLimitIsExceeded(t *testing.T) {
	for _, contender := range limitlab.Contenders {
		if contender == limitlab.Best || contender == limitlab.None {
			continue
		}
		synctest.Test(t, func(t *testing.T) { // one of them reads the clock
			played := limitlab.PlayWith(t.Context(), "limit-cpu8-batches-95", contender, 5*time.Second)
			assert.Zero(t, played.Over, contender)
			assert.Greater(t, played.Most, 1, contender)
			assert.Greater(t, played.Finished, 400., contender)
		})
	}
	for _, w := range limitlab.Kinds() {
		for _, limit := range []int{1, 5} {
			played := w.Play(t.Context(), .95, time.Second, limit)
			assert.Zero(t, played.Over, w.Name())
			assert.LessOrEqual(t, played.Most, limit, w.Name())
		}
	}
}

func TestAllHaveTheSameArrivals(t *testing.T) {
	run := func(seed uint64) []limitlab.Row {
		rows, err := limitlab.Run(t.Context(), limitlab.Config{World: "limit-pool10-some-80", Lasts: 3 * time.Second, Seed: seed})
		require.NoError(t, err)
		require.Len(t, rows, len(limitlab.Contenders))
		return rows
	}
	first := run(5)
	assert.True(t, reflect.DeepEqual(first, run(5)), "the same seed")
	starts := func(r limitlab.Row) (all []time.Duration) {
		for _, c := range r.Calls {
			all = append(all, c.Start)
		}
		return all
	}
	for i, r := range first {
		assert.Equal(t, limitlab.Contenders[i], r.Contender)
		assert.True(t, slices.Equal(starts(first[0]), starts(r)), r.Contender)
		assert.InEpsilon(t, 3*limitlab.Rate("limit-pool10-some-80"), float64(len(r.Calls)), .1)
		assert.Equal(t, r.Contender == limitlab.None, r.Limit == nil, r.Contender)
	}
	assert.False(t, slices.Equal(starts(first[0]), starts(run(6)[0])), "another seed")
}

// Where a server collapses, those that are never finished count with what they have waited.
func TestWhoIsNotFinishedCounts(t *testing.T) {
	const lasts = 10 * time.Second
	played := limitlab.PlayWith(t.Context(), "limit-contention-lognormal-95", limitlab.None, lasts)
	waited := slices.IndexFunc(played.Calls, func(c latency.Call) bool { return c.Start+c.Latency != lasts })
	assert.Equal(t, -1, waited, "nothing is finished any more")
	assert.Zero(t, played.Finished)
	assert.InDelta(t, 7600, len(played.Calls), 300)
}

// TestTheBestIsTheBestOfAllThatAreTried holds those that are given up early to what they would have come to.
func TestTheBestIsTheBestOfAllThatAreTried(t *testing.T) {
	const lasts = 5 * time.Second
	for _, name := range []string{"limit-cpu8-costly-95", "limit-pool10-half-95", "limit-cpu8-bimodal-80", "limit-cpu8-closed-95"} {
		rows, err := limitlab.Run(t.Context(), limitlab.Config{World: name, Contenders: []string{limitlab.Best}, Lasts: lasts, Seed: 1})
		require.NoError(t, err)
		assert.Equal(t, limitlab.Tried(t.Context(), name, lasts), latency.Quantile(latency.Answered(rows[0].Calls), .99), name)
	}
}

func TestGradient2DoesWhatItsDescriptionSays(t *testing.T) {
	g := limitlab.NewGradient()
	assert.InDelta(t, 20.8, g.Update(.010, 20), 1e-9, "a fifth of the way to four more")
	assert.InDelta(t, 20.8, g.Update(.010, 10), 1e-9, "less than half is in use")
	for range 8 {
		g.Update(.010, 20)
	}
	was := g.Update(.014, 200)
	assert.Greater(t, was, 26., "half as long again is tolerated")
	assert.InDelta(t, was+.2*(4-was/2), g.Update(.1, 200), 1e-9, "no less than half of it")
	for range 100 {
		was = g.Update(1, 200)
	}
	assert.Equal(t, 20., was, "the lowest limit")
	for range 1000 {
		was = g.Update(.010, 200)
	}
	assert.Equal(t, 200., was, "the highest limit")
}

func TestLimitsAreFollowed(t *testing.T) {
	assert.Equal(t, limitlab.Limits{Lowest: 10, Highest: 20, Mean: 15}, limitlab.Followed(10, 20))
	assert.Equal(t, limitlab.Limits{Lowest: 10, Highest: 15, Mean: 11.25, Steady: .75}, limitlab.Followed(10, 10, 15, 10))
}

func TestWhatIsWrongWithAConfigIsSaid(t *testing.T) {
	for _, conf := range []limitlab.Config{
		{World: "nowhere"},
		{World: limitlab.Worlds[0], Lasts: -1},
		{World: limitlab.Worlds[0], Contenders: []string{"nobody"}},
	} {
		_, err := limitlab.Run(t.Context(), conf)
		assert.ErrorContains(t, err, "limitlab: ")
	}
}
