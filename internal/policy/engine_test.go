package policy_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

const ms = time.Millisecond

var epoch = time.Unix(1_700_000_000, 0)

func defaults() policy.Config {
	return policy.Config{
		Percentile: 0.90, MaxHedges: 2, Share: 0.10, EstimatedRPS: 100,
		Burst: 2 * time.Second, MinDelay: ms, MaxKeys: 4096,
	}
}

func newKey(change func(*policy.Config)) *policy.Key {
	c := defaults()
	if change != nil {
		change(&c)
	}
	return policy.New(c).Key(policy.Name{Host: "h"})
}

// learn records n answered calls of the given latency at intervals of d.
func learn(k *policy.Key, n int, latency func(i int) time.Duration) {
	for i := range n {
		k.Begin(epoch)
		k.RecordCall(epoch, policy.Result{Latency: latency(i), Answered: true, HasSlowMarker: true})
	}
}

func constant(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// --- schedules ---

func TestKeyWithoutLatenciesDoesNotHedge(t *testing.T) {
	k := newKey(nil)
	learn(k, policy.MinSamples-1, constant(5*ms))
	assert.Nil(t, k.Schedule())
	learn(k, 1, constant(5*ms))
	require.NotNil(t, k.Schedule())
}

func TestInitialDelayHedgesKeyWithoutLatencies(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.InitialDelay = 30 * ms })
	assert.Equal(t, []time.Duration{30 * ms, 60 * ms}, k.Schedule().Delays)
	learn(k, 100, constant(5*ms))
	assert.Less(t, k.Schedule().Delays[0], 6*ms)
}

func TestConstantLatencyIsHedgedAboveAllSamples(t *testing.T) {
	k := newKey(nil)
	rng := rand.New(rand.NewPCG(1, 1))
	slowest := time.Duration(0)
	learn(k, 1000, func(int) time.Duration {
		d := time.Duration(20e6 * (0.99 + 0.02*rng.Float64()))
		slowest = max(slowest, d)
		return d
	})
	// All latencies are in two or three buckets: a delay inside a bucket would hedge a large part of the calls.
	assert.GreaterOrEqual(t, k.Schedule().Delays[0]+200*time.Microsecond, slowest)
}

// seed records the distribution of the benchmark: lognormal with mean 5 ms and deviation 2 ms; one call in twenty takes ten times as long.
func seed(rng *rand.Rand) time.Duration {
	sigma := math.Sqrt(math.Log(1 + 4.0/25))
	d := 5e6 * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)
	if rng.Float64() < 0.05 {
		d *= 10
	}
	return time.Duration(d)
}

func TestScheduleSpendsBudgetAndNoMore(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for hedges := 1; hedges <= 3; hedges++ {
		for _, budget := range []float64{0.01, 0.05, 0.10} {
			k := newKey(func(c *policy.Config) { c.MaxHedges, c.Share, c.Percentile = hedges, budget, 0.5 })
			all = all[:0]
			learn(k, 20_000, func(int) time.Duration {
				d := seed(rng)
				all = append(all, d)
				return d
			})
			require.Len(t, k.Schedule().Delays, hedges)
			spent := 0
			for _, d := range all {
				for _, at := range k.Schedule().Delays {
					if d > at {
						spent++
					}
				}
			}
			got := float64(spent) / float64(len(all))
			assert.LessOrEqual(t, got, budget*1.01, "%d hedges", hedges) // the last calls are not in the plan yet
			assert.Greater(t, got, budget*0.80, "%d hedges", hedges)
		}
	}
}

func TestSecondHedgeIsDueAtTenthOrTwiceDelay(t *testing.T) {
	// One call in a hundred hangs, and the others answer at once. The tenth of the slow calls hangs, so the second hedge is due at twice
	// the delay.
	k := newKey(nil)
	learn(k, 1000, func(i int) time.Duration {
		if i%100 == 0 {
			return time.Second
		}
		return 10 * ms
	})
	d := k.Schedule().Delays
	assert.InEpsilon(t, 10*ms, d[0], 0.03)
	assert.Equal(t, 2*d[0], d[1])

	// In an exponential tail, a tenth of the calls slower than the first delay is slower than the second, which is less than twice the
	// first.
	rng := rand.New(rand.NewPCG(1, 2))
	k = newKey(nil)
	learn(k, 10_000, func(int) time.Duration { return 20*ms + time.Duration(rng.ExpFloat64()*10e6) })
	d = k.Schedule().Delays
	assert.Less(t, d[1], 2*d[0])
	assert.Greater(t, d[1], d[0])
}

// TestHedgeIsDueBeforeGapInTail checks a distribution with a gap: a second hedge before the gap would cost as much as the first.
func TestHedgeIsDueBeforeGapInTail(t *testing.T) {
	for _, slow := range []int{4, 5, 6, 8, 9} { // of a hundred
		for hedges := 1; hedges <= 3; hedges++ {
			k := newKey(func(c *policy.Config) { c.MaxHedges = hedges })
			rng := rand.New(rand.NewPCG(1, 2))
			learn(k, 5000, func(i int) time.Duration {
				if i*37%100 < slow {
					return 300*ms + time.Duration(rng.IntN(20))*ms
				}
				return 10*ms + time.Duration(rng.IntN(3000))*time.Microsecond
			})
			d := k.Schedule().Delays
			assert.Less(t, d[0], 15*ms, "%d of 100 slow, %d hedges: %v", slow, hedges, d)
			cost := 0.0
			for _, at := range d {
				if at < 300*ms {
					cost += float64(slow) / 100
				}
			}
			assert.LessOrEqual(t, cost, 0.10, "%d of 100 slow, %d hedges: %v", slow, hedges, d)
		}
	}
}

func TestPercentileIsLowerBoundOfDelay(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Percentile = 0.99 })
	learn(k, 1000, func(i int) time.Duration { return time.Duration(i*7919%1000+1) * ms })
	assert.GreaterOrEqual(t, k.Schedule().Delays[0], 990*ms)
}

func TestDelaysAreClamped(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.MinDelay = 40 * ms })
	learn(k, 100, constant(5*ms))
	assert.Equal(t, []time.Duration{40 * ms, 80 * ms}, k.Schedule().Delays)

	k = newKey(func(c *policy.Config) { c.MaxDelay = 100 * ms })
	learn(k, 100, constant(80*ms))
	d := k.Schedule().Delays
	require.Len(t, d, 2)
	assert.Equal(t, 100*ms, d[1])

	k = newKey(func(c *policy.Config) { c.MaxDelay = 50 * ms })
	learn(k, 100, constant(80*ms))
	assert.Equal(t, []time.Duration{50 * ms}, k.Snapshot().Delays, "equal delays are merged")
}

func TestSlowFirstCallLosesInfluence(t *testing.T) {
	k := newKey(nil)
	learn(k, 1, constant(500*ms))
	learn(k, 30, constant(10*ms))
	assert.Less(t, k.Schedule().Delays[0], 11*ms)
}

func TestFailuresRecordNoLatency(t *testing.T) {
	k := newKey(nil)
	learn(k, 100, constant(20*ms))
	want := k.Schedule().Delays[0]
	for range 1000 { // a refusing host answers at once
		k.Begin(epoch)
		k.RecordCall(epoch, policy.Result{Latency: 100 * time.Microsecond, HasSlowMarker: true})
	}
	assert.Equal(t, want, k.Schedule().Delays[0])
	assert.Equal(t, 100, k.Snapshot().Samples)
}

func TestAbandonedCallsCountOnlyAfterFirstDelay(t *testing.T) {
	k := newKey(nil)
	learn(k, 100, constant(20*ms))
	k.RecordCall(epoch, policy.Result{Latency: 5 * ms, Abandoned: true, HasSlowMarker: true})
	assert.Equal(t, 100, k.Snapshot().Samples, "a call canceled before the first delay is not recorded")
	k.RecordCall(epoch, policy.Result{Latency: 50 * ms, Abandoned: true, ReachedFirstDelay: true, HasSlowMarker: true})
	assert.Equal(t, 101, k.Snapshot().Samples, "a call canceled after the first delay is recorded")
}

// --- the budget ---

// hedgesOf makes calls that all reach their first delay, without counting them as slow, and returns the number of hedges.
func hedgesOf(k *policy.Key, n int) (hedged int) {
	for range n {
		k.Begin(epoch)
		if k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
			hedged++
			k.HedgeEnded()
		}
	}
	return hedged
}

func TestBudgetIsShareOfRequests(t *testing.T) {
	for _, estimate := range []float64{1, 100, 10_000} {
		k := newKey(func(c *policy.Config) { c.EstimatedRPS = estimate })
		burst := max(1, 2*0.1*estimate)
		assert.InDelta(t, burst/2+0.1*10_000, hedgesOf(k, 10_000), 1, "estimate %v", estimate)
		assert.InDelta(t, 0.1*10_000, hedgesOf(k, 10_000), 1)
	}
}

func TestBudgetOfZeroHedgesNothing(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Share = 0 })
	learn(k, 100, constant(5*ms))
	assert.Nil(t, k.Schedule())
	assert.Zero(t, hedgesOf(k, 100))
	assert.Zero(t, k.Snapshot().Tokens)
}

func TestBurstAdaptsToMeasuredRate(t *testing.T) {
	k := newKey(nil)
	now := epoch
	for range 5000 { // 1000 per second
		now = now.Add(ms)
		k.Begin(now)
		k.RecordCall(now, policy.Result{Latency: 5 * ms, Answered: true, HasSlowMarker: true})
	}
	assert.InEpsilon(t, 200, k.Snapshot().Tokens, 0.05)
}

func TestOneKeyDoesNotDrainAnother(t *testing.T) {
	e := policy.New(defaults())
	a, b := e.Key(policy.Name{Host: "a"}), e.Key(policy.Name{Host: "b"})
	before := b.Snapshot().Tokens
	hedgesOf(a, 1000)
	assert.InDelta(t, before, b.Snapshot().Tokens, 1e-9)
}

func TestKeysSpendFromSharedBucket(t *testing.T) {
	c := defaults()
	c.Shared = budget.NewBucket(0.5, 10)
	e := policy.New(c)
	a, b := e.Key(policy.Name{Host: "a"}), e.Key(policy.Name{Host: "b"})
	assert.InDelta(t, 10+50, hedgesOf(a, 100), 1)
	assert.InDelta(t, 50, hedgesOf(b, 100), 1)
}

func TestRateLimitBoundsHedgesOfAllKeys(t *testing.T) {
	c := defaults()
	c.MaxPerSecond, c.Share = 5, 1
	e := policy.New(c)
	a, b := e.Key(policy.Name{Host: "a"}), e.Key(policy.Name{Host: "b"})
	assert.Equal(t, 5, hedgesOf(a, 100))
	assert.Zero(t, hedgesOf(b, 100))
	b.Begin(epoch)
	assert.Equal(t, policy.None, b.Admit(epoch.Add(time.Second), true, time.Time{}, policy.HedgeRequest{}))
}

func TestRateLimitIsNotSpentWhenBucketIsEmpty(t *testing.T) {
	c := defaults()
	c.MaxPerSecond, c.Share, c.EstimatedRPS = 10, 0.01, 1 // burst of one
	e := policy.New(c)
	poor, rich := e.Key(policy.Name{Host: "poor"}), e.Key(policy.Name{Host: "rich"})
	for range 10_000 {
		rich.Begin(epoch) // saves up its burst
	}
	assert.Zero(t, hedgesOf(poor, 20))
	assert.Equal(t, 1, hedgesOf(rich, 20))
	for i := range 9 { // of the ten are left
		assert.Equal(t, 1, hedgesOf(e.Key(policy.Name{Host: fmt.Sprint(i)}), 100))
	}
	assert.Zero(t, hedgesOf(e.Key(policy.Name{Host: "last"}), 100))
}

// --- safety checks ---

// reach makes n calls that all reach their first delay and returns the number of hedges.
func reach(k *policy.Key, n int) (hedged int) {
	for range n {
		k.Begin(epoch)
		if k.Admit(epoch, true, time.Time{}, policy.HedgeRequest{}) == policy.None {
			hedged++
			k.HedgeEnded()
		}
	}
	return hedged
}

func TestOutageStopsHedges(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Share = 1 })
	learn(k, 1000, constant(5*ms))
	// 1 − (15/16)^n exceeds 0.75 at n = 22: the outage check denies hedges before any call has completed.
	assert.Equal(t, 21, reach(k, 1000))
	assert.Equal(t, observe.DeniedSlow, k.Admit(epoch, true, time.Time{}, policy.HedgeRequest{}))
	learn(k, 100, constant(5*ms))
	assert.Equal(t, policy.None, k.Admit(epoch, true, time.Time{}, policy.HedgeRequest{}), "hedging resumes when calls are fast again")
}

func TestDelayOfCallerDoesNotStopHedges(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Share = 1 })
	assert.Equal(t, 1000, hedgesOf(k, 1000))
}

func TestHedgesThatDoNotWinReduceBudgetToTenth(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Share = 1; c.EstimatedRPS = 10_000 })
	scale := func() float64 { return k.Snapshot().BudgetScale }
	lose := func(n int) {
		hedgesOf(k, n)
		k.RecordCall(epoch, policy.Result{HasSlowMarker: true})
	}
	lose(99)
	assert.Equal(t, 1.0, scale())
	lose(1)
	assert.Equal(t, 0.5, scale())
	for range 10 {
		lose(100)
	}
	assert.Equal(t, 0.1, scale(), "a tenth of the budget remains, to notice new wins")
	for range 5 {
		k.RecordCall(epoch, policy.Result{HedgeWon: true, HasSlowMarker: true})
	}
	assert.Equal(t, 0.2, scale())
	for range 100 {
		k.RecordCall(epoch, policy.Result{HedgeWon: true, HasSlowMarker: true})
	}
	assert.Equal(t, 1.0, scale())
}

func TestTwoWinsInHundredHedgesKeepBudget(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Share = 1; c.EstimatedRPS = 10_000 })
	k.RecordCall(epoch, policy.Result{HedgeWon: true})
	k.RecordCall(epoch, policy.Result{HedgeWon: true})
	hedgesOf(k, 100)
	k.RecordCall(epoch, policy.Result{})
	assert.Equal(t, 1.0, k.Snapshot().BudgetScale)
}

func TestHedgeNearDeadlineIsDenied(t *testing.T) {
	k := newKey(nil)
	learn(k, 100, constant(50*ms))
	assert.Equal(t, observe.DeniedDeadline, k.Admit(epoch, true, epoch.Add(40*ms), policy.HedgeRequest{}))
	assert.Equal(t, policy.None, k.Admit(epoch, true, epoch.Add(60*ms), policy.HedgeRequest{}))
}

func TestAdmitRequestCountsDenialOfAdapter(t *testing.T) {
	k := newKey(nil)
	var c policy.Call
	c.Begin(t.Context(), k, 0)
	assert.False(t, c.AdmitRequest(0, policy.HedgeRequest{}, observe.DeniedNotReady))
	assert.Equal(t, observe.DeniedNotReady, c.Denied)
	v := k.Snapshot()
	assert.EqualValues(t, 1, v.Denied[observe.DeniedNotReady])
	assert.InDelta(t, 10.1, v.Tokens, 1e-9, "the denied hedge costs nothing")
}

func TestWithdrawnHedgeRefundsTokens(t *testing.T) {
	for _, test := range []struct{ perSecond, share, want float64 }{ // whichever is the smallest
		{perSecond: 5, want: 5}, {share: 0.01, want: 1}, {want: 10},
	} {
		c := defaults()
		c.MaxPerSecond = test.perSecond
		k := policy.New(c).RouteKey(policy.Name{Host: "a", Route: "r"}, test.share)
		for range 100 { // more than any bucket holds
			require.Equal(t, policy.None, k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
			k.Withdraw(epoch, observe.DeniedSameBackend, policy.HedgeRequest{})
			k.HedgeEnded()
		}
		v := k.Snapshot()
		assert.EqualValues(t, 100, v.Denied[observe.DeniedSameBackend])
		assert.Zero(t, v.Hedges)
		n := 0.0
		for k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
			n++
		}
		assert.Equal(t, test.want, n, "%+v", test)
	}
}

func TestHedgesInFlightAreBounded(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.Share = 1 })
	for range policy.MaxInFlight {
		k.Begin(epoch)
		require.Equal(t, policy.None, k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
	}
	k.Begin(epoch)
	assert.Equal(t, observe.DeniedInFlight, k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
	k.HedgeEnded()
	assert.Equal(t, policy.None, k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
}

// --- the table ---

func TestEngineEvictsLeastRecentlyUsedKeys(t *testing.T) {
	c := defaults()
	c.MaxKeys = 64
	e := policy.New(c)
	now := time.Now()
	for i := range 64 {
		e.Key(policy.Name{Host: fmt.Sprint(i)}).Begin(now.Add(time.Duration(i)))
	}
	e.Key(policy.Name{Host: "0"}).Begin(now.Add(time.Hour))
	e.Key(policy.Name{Host: "one more"})
	assert.LessOrEqual(t, len(e.Snapshots()), 64)
	assert.NotNil(t, e.Lookup(policy.Name{Host: "0"}), "used again")
	assert.Nil(t, e.Lookup(policy.Name{Host: "1"}), "the oldest")
	assert.NotNil(t, e.Lookup(policy.Name{Host: "63"}))
}

func TestEvictedKeyIsNotKeyOfItsName(t *testing.T) {
	c := defaults()
	c.MaxKeys = 1
	e := policy.New(c)
	a, b := policy.Name{Host: "a"}, policy.Name{Host: "b"}
	first := e.Key(a)
	assert.True(t, first.IsCurrent(a))
	assert.False(t, first.IsCurrent(b))
	assert.False(t, (*policy.Key)(nil).IsCurrent(a))
	assert.True(t, e.Key(b).IsCurrent(b))
	assert.False(t, first.IsCurrent(a), "the table has room for one key")
	assert.NotSame(t, first, e.Key(a))
}

func TestLookupMakesNoKey(t *testing.T) {
	e := policy.New(defaults())
	assert.Nil(t, e.Lookup(policy.Name{Host: "unknown"}))
	assert.Empty(t, e.Snapshots())
}

func TestKeysAreMadeOnce(t *testing.T) {
	e := policy.New(defaults())
	var wg sync.WaitGroup
	keys := make([]*policy.Key, 16)
	for i := range keys {
		wg.Go(func() { keys[i] = e.Key(policy.Name{Host: "h", Route: "r"}) })
	}
	wg.Wait()
	for _, k := range keys {
		assert.Same(t, keys[0], k)
	}
}

func TestSetConfigKeepsLatencies(t *testing.T) {
	e := policy.New(defaults())
	k := e.Key(policy.Name{Host: "h"})
	rng := rand.New(rand.NewPCG(1, 2))
	learn(k, 10_000, func(int) time.Duration { return seed(rng) })
	before := k.Schedule().Delays[0]

	c := defaults()
	c.Share, c.MaxHedges = 0.02, 1
	e.SetConfig(c, epoch)
	require.Len(t, k.Schedule().Delays, 1)
	assert.Greater(t, k.Schedule().Delays[0], 2*before, "a smaller budget has longer delays")
	assert.Equal(t, 10_000, k.Snapshot().Samples)
	assert.InDelta(t, 4+0.02*10_000, hedgesOf(k, 10_000), 3)

	c.MaxHedges = 0
	e.SetConfig(c, epoch)
	assert.Nil(t, k.Schedule())
}

func TestQuantileIsOfObservedLatencies(t *testing.T) {
	k := newKey(nil)
	_, ok := k.Quantile(0.5)
	assert.False(t, ok)
	learn(k, 100, constant(7*ms))
	q, ok := k.Quantile(0.5)
	assert.True(t, ok)
	assert.InEpsilon(t, 7*ms, q, 0.01)
}

// --- a call ---

func TestCallRecordsLatencyOfCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKey(nil)
		for range 100 {
			var c policy.Call
			c.Begin(t.Context(), k, 0)
			time.Sleep(25 * ms)
			c.End(policy.Outcome{Answered: true, Setup: 5 * ms})
		}
		q, _ := k.Quantile(0.5)
		assert.InEpsilon(t, 20*ms, q, 0.01, "without the time to set up a connection")

		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		var c policy.Call
		p := c.Begin(ctx, k, 0)
		time.Sleep(p.Delays[0])
		require.True(t, c.Admit(0))
		k.HedgeEnded()
		time.Sleep(time.Hour)
		c.End(policy.Outcome{})
		assert.Equal(t, 101, k.Snapshot().Samples)
		assert.Equal(t, 1, c.Hedges)
		assert.Equal(t, policy.None, c.Denied)
	})
}

func TestDelayOfCallerReplacesLearnedDelay(t *testing.T) {
	k := newKey(nil)
	var c policy.Call
	p := c.Begin(t.Context(), k, 3*ms)
	assert.Equal(t, []time.Duration{3 * ms, 6 * ms}, p.Delays)
	for range 100 {
		c.Begin(t.Context(), k, 3*ms)
		c.Admit(0)
		c.End(policy.Outcome{})
	}
	assert.Zero(t, k.Snapshot().SlowShare)
}

func BenchmarkKey(b *testing.B) {
	k := newKey(nil)
	rng := rand.New(rand.NewPCG(1, 2))
	lat := make([]time.Duration, 4096)
	for i := range lat {
		lat[i] = seed(rng)
	}
	learn(k, 4096, func(i int) time.Duration { return lat[i] })
	b.Run("Schedule", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = k.Schedule()
		}
	})
	b.Run("Now", func(b *testing.B) {
		for b.Loop() {
			_ = time.Now()
		}
	})
	b.Run("BeginDone", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			k.Begin(epoch)
			k.RecordCall(epoch, policy.Result{Latency: lat[i%4096], Answered: true, HasSlowMarker: true})
			i++
		}
	})
	b.Run("Call", func(b *testing.B) {
		b.ReportAllocs()
		var c policy.Call
		ctx := context.Background()
		for b.Loop() {
			c.Begin(ctx, k, 0)
			c.End(policy.Outcome{Answered: true})
		}
	})
}
