package policy_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A life is a random sequence of operations on an engine.
type life struct {
	*rand.Rand
	config policy.Config
	engine *policy.Engine
	now    time.Time
	gap    time.Duration // between calls, on average
	burst  float64       // at their rate
	names  int           // that calls are for
	held   []*policy.Key

	calls, hedges             float64
	calledRoutes, hedgedRoute float64 // of routes with a hundredth
}

const routeShare = 0.01

func newLife(seed uint64) *life {
	l := &life{Rand: rand.New(rand.NewPCG(5, seed)), config: defaults(), now: epoch}
	l.config.MaxKeys = 1 + l.IntN(24)
	l.config.HasShortBucket, l.config.PerHost = l.IntN(2) > 0, l.IntN(2) > 0
	l.config.InitialDelay = 10 * ms
	if l.IntN(4) == 0 {
		l.config.Audit = true
	}
	l.gap, l.burst = 25*ms, 20
	if l.IntN(2) == 0 { // 400 per second; keys do not tell of their calls at once, so it may look like 500
		l.gap, l.burst = 2500*time.Microsecond, 0.1*2*500
	}
	l.engine = policy.New(l.config)
	l.names = 1 + l.IntN(64)
	return l
}

func (l *life) name() (name policy.Name, share float64) {
	name.Host = fmt.Sprint(l.IntN(l.names))
	switch l.IntN(4) {
	case 0:
		name.Route = "/dear"
		share = routeShare
	case 1:
		name.Route = "/cheap"
	}
	return name, share
}

// call makes a call that reaches all its delays. The key is looked up again, or kept from an earlier call.
func (l *life) call() {
	name, share := l.name()
	k := l.engine.RouteKey(name, share)
	if i := l.IntN(64); i < len(l.held) {
		k = l.held[i] // it may have been forgotten meanwhile
	}
	if len(l.held) < 8 {
		l.held = append(l.held, k)
	} else if l.IntN(50) == 0 {
		l.held[l.IntN(8)] = k
	}
	dear := k.Name.Route == "/dear"
	k.Begin(l.now)
	l.calls++
	if dear {
		l.calledRoutes++
	}
	won := false
	for range 2 {
		if k.Admit(l.now, l.IntN(4) == 0, time.Time{}, policy.HedgeRequest{}) != policy.None {
			continue
		}
		k.HedgeEnded()
		if l.IntN(10) == 0 {
			k.Withdraw(l.now, observe.DeniedSameBackend, policy.HedgeRequest{})
			continue
		}
		won = l.IntN(3) == 0
		l.hedges++
		if dear {
			l.hedgedRoute++
		}
	}
	k.RecordCall(l.now, policy.Result{Latency: time.Duration(1+l.IntN(30)) * ms, Answered: true, HasSlowMarker: true, HedgeWon: won})
}

func (l *life) step(t *testing.T) {
	l.now = l.now.Add(time.Duration(l.ExpFloat64() * float64(l.gap)))
	switch n := l.IntN(500); n {
	case 0:
		c := l.config
		c.MaxKeys = 1 + l.IntN(24)
		l.engine.SetConfig(c, l.now)
	case 1:
		var b bytes.Buffer
		require.NoError(t, l.engine.Export(&b, l.now))
		_, err := l.engine.Import(&b, l.now, func(n policy.Name) float64 {
			if n.Route == "/dear" {
				return routeShare
			}
			return 0
		})
		require.NoError(t, err)
	case 2:
		l.engine.Reset("", "")
	case 3:
		l.engine.ClearPushback()
	case 4:
		l.names = 1 + l.IntN(64)
	default:
		l.call()
	}
}

// TestEvictionConservesTokens checks the budget while keys are evicted at random: all keys together hedge at most the share of their calls
// and one burst, and routes with their own share at most that share of their calls.
func TestEvictionConservesTokens(t *testing.T) {
	doubles.SkipSimulation(t)
	for seed := range uint64(40) {
		l := newLife(seed)
		for n := range 3000 {
			l.step(t)
			if l.hedges > 0.1*l.calls+l.burst+1e-6 || l.hedgedRoute > routeShare*l.calledRoutes+l.burst/10+1e-6 {
				require.Fail(t, "too many hedges", "seed %d, step %d: %v of %v calls, %v of %v of dear routes",
					seed, n, l.hedges, l.calls, l.hedgedRoute, l.calledRoutes)
			}
		}
		assert.Greater(t, l.hedges, 0.0, "seed %d", seed)
	}
}

func TestEvictionConservesTokensOfConcurrentCalls(t *testing.T) {
	e := small(func(c *policy.Config) { c.InitialDelay = 10 * ms })
	var hedges atomic.Int64
	var wg sync.WaitGroup
	const callers, calls = 8, 1000
	for i := range callers {
		wg.Go(func() {
			for n := range calls {
				k := e.Key(policy.Name{Host: fmt.Sprint((n + i) % 6)})
				k.Begin(epoch)
				if k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
					k.HedgeEnded()
					hedges.Add(1)
				}
				k.RecordCall(epoch, policy.Result{Latency: ms, Answered: true})
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, hedges.Load(), int64(callers*calls/10+20))
	assert.Positive(t, hedges.Load())
}

func TestEvictedKeyReturnsItsTokens(t *testing.T) {
	e := small(func(c *policy.Config) { c.MaxKeys = 1 })
	// Each key takes half of the tokens that are left in the reserve, and later returns them.
	for n := range 100 {
		e.Key(policy.Name{Host: fmt.Sprint(n)})
	}
	last := e.Lookup(policy.Name{Host: "99"})
	assert.InDelta(t, 20.0/3, last.Tokens(), 0.01)
	require.Equal(t, policy.None, last.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
	next := e.Key(policy.Name{Host: "next"})
	assert.Zero(t, last.Tokens())
	assert.Equal(t, observe.DeniedBudget, last.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}), "an evicted key has no tokens")
	last.Withdraw(epoch, observe.DeniedSameBackend, policy.HedgeRequest{})
	assert.Zero(t, last.Tokens(), "tokens that return later go to the reserve")
	e.Key(policy.Name{Host: "after"})
	assert.InDelta(t, (20-20.0/3)/2, e.Key(policy.Name{Host: "end"}).Tokens(), 0.01)
	assert.Zero(t, next.Tokens())
}

// TestOverflowOfFullBucketsRefillsReserve empties the reserve. The overflow of full buckets must refill it, so that a new key gets tokens.
func TestOverflowOfFullBucketsRefillsReserve(t *testing.T) {
	e := policy.New(defaults())
	for n := range 40 { // take all there is
		hedgesOf(e.Key(policy.Name{Host: fmt.Sprint(n)}), 1)
	}
	assert.Less(t, e.Key(policy.Name{Host: "late"}).Tokens(), 1.0)
	busy := e.Key(policy.Name{Host: "busy"})
	for n := range 10_000 {
		now := epoch.Add(time.Duration(n) * 10 * ms)
		busy.Begin(now)
		busy.RecordCall(now, policy.Result{Latency: 5 * ms, Answered: true, HasSlowMarker: true})
	}
	assert.InDelta(t, 20, busy.Tokens(), 0.1)
	assert.InDelta(t, 10, e.Key(policy.Name{Host: "new"}).Tokens(), 0.1)
	assert.InDelta(t, 5, e.Key(policy.Name{Host: "newer"}).Tokens(), 0.1)
}

// TestReserveAdaptsToRateOfAllKeys checks that the reserve grows to a burst at the rate of all keys: ten hosts with 100 calls per second
// start with 20 tokens each.
func TestReserveAdaptsToRateOfAllKeys(t *testing.T) {
	c := defaults()
	c.HasShortBucket = true
	e := policy.New(c)
	hedges := 0
	for n := range 10_000 {
		now := epoch.Add(time.Duration(n) * ms)
		k := e.Key(policy.Name{Host: fmt.Sprint(n % 10)})
		k.Begin(now)
		if k.Admit(now, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
			hedges++
			k.HedgeEnded()
		}
		k.RecordCall(now, policy.Result{Latency: 5 * ms, Answered: true, HasSlowMarker: true})
	}
	assert.InDelta(t, 1000+200, hedges, 20)
}

// --- state that is kept after eviction ---

// small returns an engine with room for four keys.
func small(change func(*policy.Config)) *policy.Engine {
	c := defaults()
	c.MaxKeys = 4
	if change != nil {
		change(&c)
	}
	return policy.New(c)
}

// pass evicts all keys by other keys, each of which is called the given number of times.
func pass(e *policy.Engine, calls int) {
	for n := range 100 {
		k := e.Key(policy.Name{Host: fmt.Sprint("passer-by ", n)})
		for range calls {
			k.Begin(epoch)
			k.RecordCall(epoch, policy.Result{Latency: ms, Answered: true})
		}
	}
}

func TestSafetyStateSurvivesEviction(t *testing.T) {
	name := policy.Name{Host: "h"}
	for reason, trigger := range map[observe.Reason]func(*policy.Key){
		observe.DeniedSlow: func(k *policy.Key) { reach(k, 1000) },
		observe.DeniedPaused: func(k *policy.Key) {
			for range 100 {
				k.Begin(epoch)
				k.RecordPushback(epoch, time.Second)
			}
		},
	} {
		for _, way := range []string{"eviction", "restart", "eviction and restart"} {
			e := small(nil)
			trigger(e.Key(name))
			if way != "restart" {
				pass(e, 10)
				require.Nil(t, e.Lookup(name))
			}
			if way != "eviction" {
				var b bytes.Buffer
				require.NoError(t, e.Export(&b, epoch))
				e = small(nil)
				_, err := e.Import(&b, epoch, func(policy.Name) float64 { return 0 })
				require.NoError(t, err)
			}
			assert.Equal(t, reason, e.Key(name).Admit(epoch, false, time.Time{}, policy.HedgeRequest{}), "%s: %s", reason, way)
			assert.Equal(t, policy.None, e.Key(policy.Name{Host: "other"}).Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
		}
	}
}

// TestImportPausesNoLongerThanTheServerAsked imports an export from clocks that are ahead or late, for an existing key and for a key that
// is made later.
func TestImportPausesNoLongerThanTheServerAsked(t *testing.T) {
	name := policy.Name{Host: "h"}
	for _, ahead := range []time.Duration{-time.Hour, 0, 5 * time.Second, time.Hour, 1000 * time.Hour} {
		for _, known := range []bool{false, true} {
			old, heir := small(nil), small(nil)
			there := epoch.Add(ahead)
			for range 100 {
				old.Key(name).Begin(there)
				old.Key(name).RecordPushback(there, 8*time.Second)
			}
			var b bytes.Buffer
			require.NoError(t, old.Export(&b, there))
			if known {
				heir.Key(name)
			}
			_, err := heir.Import(&b, epoch, func(policy.Name) float64 { return 0 })
			require.NoError(t, err)
			pause := heir.Key(name).Snapshot().PausedUntil.Sub(epoch)
			if ahead < 0 {
				assert.LessOrEqual(t, pause, time.Duration(0), "%v, known %v", ahead, known)
			} else {
				assert.Equal(t, 8*time.Second, pause, "%v, known %v", ahead, known)
			}
		}
	}
}

func TestResetAndClearPushbackApplyToEvictedKeys(t *testing.T) {
	name := policy.Name{Host: "h"}
	for _, forget := range []func(*policy.Engine){
		func(e *policy.Engine) { e.ClearPushback() },
		func(e *policy.Engine) { e.Reset("h", "") },
		func(e *policy.Engine) { e.Reset("", "") },
	} {
		e := small(nil)
		for range 100 {
			e.Key(name).RecordPushback(epoch, 0)
		}
		pass(e, 1)
		forget(e)
		assert.False(t, e.Key(name).Snapshot().PushbackStopped)
	}
}

// TestManyKeysDoNotDisplaceSafetyStateOfBusyHost evicts many keys that also have a safety state. The state of a key with more calls must
// stay.
func TestManyKeysDoNotDisplaceSafetyStateOfBusyHost(t *testing.T) {
	e := small(nil)
	name := policy.Name{Host: "busy"}
	learn(e.Key(name), 2000, constant(ms))
	reach(e.Key(name), 100)
	for n := range 10_000 {
		reach(e.Key(policy.Name{Host: fmt.Sprint(n)}), 30)
	}
	assert.Equal(t, observe.DeniedSlow, e.Key(name).Admit(epoch, false, time.Time{}, policy.HedgeRequest{}))
	assert.LessOrEqual(t, e.Remembered(), 4)
}

func TestKeysWithoutSafetyStateLeaveNoState(t *testing.T) {
	e := small(nil)
	pass(e, 1)
	assert.Zero(t, e.Remembered())
}

func TestImportKeepsSafetyStateOfKeyWithCalls(t *testing.T) {
	name := policy.Name{Host: "h"}
	old, now := small(nil), small(nil)
	reach(old.Key(name), 1000)
	learn(now.Key(name), 10, constant(ms))
	var b bytes.Buffer
	require.NoError(t, old.Export(&b, epoch))
	_, err := now.Import(&b, epoch, func(policy.Name) float64 { return 0 })
	require.NoError(t, err)
	assert.Zero(t, now.Key(name).Snapshot().SlowShare)
}

func TestRouteBudgetIsNotRefilledByEviction(t *testing.T) {
	e := small(func(c *policy.Config) { c.PerHost = true })
	dear := policy.Name{Host: "h", Route: "/dear"}
	hedged := 0
	for range 200 {
		k := e.RouteKey(dear, routeShare)
		for range 10 {
			k.Begin(epoch)
			if k.Admit(epoch, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
				k.HedgeEnded()
				hedged++
			}
		}
		for n := range 10 {
			e.RouteKey(policy.Name{Host: "h", Route: fmt.Sprint(n)}, 0).Begin(epoch)
		}
	}
	assert.LessOrEqual(t, hedged, 2000/100+2)
	assert.Greater(t, hedged, 10)
}

// --- names ---

func TestLongNamesAreShortened(t *testing.T) {
	e := policy.New(defaults())
	long := strings.Repeat("x", 100_000)
	name := policy.Name{Host: long + "a", Route: long + "b"}
	k := e.Key(name)
	assert.LessOrEqual(t, len(k.Name.Host), sanitize.MaxBytes)
	assert.LessOrEqual(t, len(k.Name.Route), sanitize.MaxBytes)
	assert.LessOrEqual(t, len(k.Info.Host), sanitize.MaxBytes)
	assert.Same(t, k, e.Key(name))
	assert.Same(t, k, e.Lookup(name))
	assert.NotSame(t, k, e.Key(policy.Name{Host: long + "c", Route: long + "b"}), "different names stay different")
	assert.Equal(t, 1, e.Reset(name.Host, name.Route))
}
