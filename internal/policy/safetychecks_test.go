package policy_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/sketch"
)

// --- pushback ---

// answers makes n calls, and returns the number of calls that would be hedged. Every every-th answer has pushback; 0: no answer has.
func answers(k *policy.Key, now time.Time, n, every int) (admitted int) {
	for i := range n {
		k.Begin(now)
		if k.Admit(now, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
			admitted++
			k.HedgeEnded()
		}
		if every > 0 && i%every == every-1 {
			k.RecordPushback(now, 0)
			k.RecordCall(now, policy.Result{Latency: ms, HasSlowMarker: true})
		} else {
			k.RecordCall(now, policy.Result{Latency: ms, Answered: true, HasSlowMarker: true})
		}
	}
	return admitted
}

func rich(c *policy.Config) { c.Share, c.EstimatedRPS = 3, 1e6 }

func TestPushbackOfEveryFifthAnswerStopsHedges(t *testing.T) {
	k := newKey(rich)
	assert.Positive(t, answers(k, epoch, 50, 5))
	assert.Zero(t, answers(k, epoch, 1000, 5))
	assert.Zero(t, answers(k, epoch.Add(24*time.Hour), 20, 0), "the stop does not end by time")
	answers(k, epoch, 400, 0)
	assert.Equal(t, 100, answers(k, epoch, 100, 0))
}

func TestFewPushbacksStopNoHedges(t *testing.T) {
	for _, every := range []int{1000, 100, 50} {
		k := newKey(rich)
		assert.Equal(t, 20_000, answers(k, epoch, 20_000, every), "one in %d", every)
	}
}

func TestPauseOfServerHoldsWhileManyAnswersPushBack(t *testing.T) {
	k := newKey(rich)
	now := epoch
	admits := func() bool { return answers(k, now, 1, 0) == 1 }
	k.RecordPushback(now, time.Hour)
	assert.True(t, admits(), "one answer does not pause hedging")
	assert.Zero(t, k.Snapshot().PausedUntil)
	for range 3 {
		k.RecordPushback(now, time.Hour)
	}
	assert.False(t, admits(), "above 2.5 %")
	assert.Equal(t, now.Add(10*time.Second), k.Snapshot().PausedUntil, "one answer pauses hedging for at most 10 s")
	now = now.Add(10 * time.Second)
	assert.True(t, admits())

	for range 3 {
		k.RecordPushback(now, 5*time.Second)
	}
	now = now.Add(10 * time.Second)
	assert.False(t, admits(), "above 5 %")
	answers(k, now, 60, 0)
	assert.Less(t, k.Snapshot().PushbackShare, 0.05)
	assert.False(t, admits(), "until below 2.5 %")
	answers(k, now, 60, 0)
	assert.True(t, admits())
}

func TestResetAndClearPushbackEndPause(t *testing.T) {
	e := policy.New(defaults())
	a, b := e.Key(policy.Name{Host: "a", Route: "r"}), e.Key(policy.Name{Host: "b", Route: "r"})
	push := func() {
		for _, k := range []*policy.Key{a, b} {
			learn(k, 100, constant(5*ms))
			for range 20 {
				k.RecordPushback(epoch, time.Minute)
			}
		}
	}
	push()
	e.ClearPushback()
	assert.False(t, a.Snapshot().PushbackStopped || b.Snapshot().PushbackStopped)
	assert.Zero(t, a.Snapshot().PausedUntil)
	assert.Equal(t, 100, a.Snapshot().Samples)
	push()
	for name, want := range map[policy.Name]int{{Host: "a"}: 1, {Route: "r"}: 2, {Host: "b", Route: "other"}: 0, {}: 2} {
		assert.Equal(t, want, e.Reset(name.Host, name.Route), "%v", name)
	}
	push()
	requests := a.Snapshot().Requests
	assert.Equal(t, 1, e.Reset("a", "r"))
	assert.False(t, a.Snapshot().PushbackStopped)
	assert.True(t, b.Snapshot().PushbackStopped)
	assert.Zero(t, a.Snapshot().Samples)
	assert.Nil(t, a.Schedule())
	assert.Equal(t, requests, a.Snapshot().Requests, "counters stay")
}

// --- delays that are not learned ---

// calls makes n concurrent calls that take d, and returns their number of hedges. If given is not 0, it is the delay that the caller sets.
func calls(t *testing.T, k *policy.Key, n int, d, given time.Duration) int {
	all := make([]policy.Call, n)
	for i := range all {
		c := &all[i]
		go func() {
			start := time.Now()
			p := c.Begin(context.Background(), k, given)
			for i, at := range p.Delays {
				if at >= d {
					break
				}
				time.Sleep(at - time.Since(start))
				if c.Admit(i) {
					k.HedgeEnded()
				}
			}
			time.Sleep(d - time.Since(start))
			c.End(policy.Outcome{Answered: true})
		}()
		time.Sleep(ms)
	}
	time.Sleep(d)
	synctest.Wait()
	hedges := 0
	for i := range all {
		hedges += all[i].Hedges
	}
	return hedges
}

func TestMaxDelayBelowMedianKeepsHedging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKey(func(c *policy.Config) { c.MaxDelay, c.MaxHedges, c.Share = 5*ms, 1, 0.5 })
		learn(k, 300, constant(8*ms))
		assert.Equal(t, []time.Duration{5 * ms}, k.Snapshot().Delays)
		calls(t, k, 500, 8*ms, 0)
		assert.InDelta(t, 250, calls(t, k, 500, 8*ms, 0), 10, "the budget pays for half of the calls")
		assert.Less(t, k.Snapshot().SlowShare, policy.SlowLimit)
	})
}

func TestOutageStopsHedgesAfterAnyDelay(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	for _, given := range []time.Duration{0, 2 * ms, 7 * ms, 20 * ms} { // the usual is 10 ms
		for _, most := range []time.Duration{0, 5 * ms} {
			synctest.Test(t, func(t *testing.T) {
				k := newKey(func(c *policy.Config) { c.Share, c.MaxDelay = 1, most })
				learn(k, 300, constant(10*ms))
				calls(t, k, 100, 9*ms, given)
				assert.Less(t, k.Snapshot().SlowShare, 0.2, "%v, %v: no outage", given, most)
				hedges := calls(t, k, 2000, time.Hour, given)
				assert.Less(t, hedges, 130, "given %v, at most %v", given, most) // with two hedges for each of those before the outage check
				assert.Positive(t, hedges)
			})
		}
	}
}

// --- the budget in an outage ---

// TestOutageCostsAtMostShortBurstAndBudget checks that an outage costs at most 17 % of the calls during it, and in addition, for each key,
// three hedges or the budget of two seconds, whichever is more. In the long run it costs at most the budget. The safety checks, which deny nearly
// all hedges in an outage, are not used.
func TestOutageCostsAtMostShortBurstAndBudget(t *testing.T) {
	doubles.SkipSimulation(t)
	t.Parallel()
	for _, keys := range []int{1, 10, 1000} {
		for _, rps := range []int{1, 10, 100, 1000} {
			if keys*rps > 100_000 && doubles.RaceEnabled {
				continue // 20 s of computing, in one goroutine
			}
			c := defaults()
			c.HasShortBucket = true
			e := policy.New(c)
			all := make([]*policy.Key, keys)
			for i := range all {
				all[i] = e.Key(policy.Name{Host: fmt.Sprint(i)})
			}
			now := epoch
			// every begins a call on every key. After that, it returns the number of hedges.
			every := func(calls int, outage bool) (hedges int64) {
				for range calls {
					for _, k := range all {
						k.Begin(now)
						if !outage {
							k.RecordCall(now, policy.Result{Latency: 5 * ms, Answered: true, HasSlowMarker: true})
							continue
						}
						for range 2 {
							if k.Admit(now, false, time.Time{}, policy.HedgeRequest{}) == policy.None {
								k.HedgeEnded()
							}
						}
					}
					now = now.Add(time.Second / time.Duration(rps))
				}
				for _, k := range all {
					hedges += k.Snapshot().Hedges
				}
				return hedges
			}
			healthy := max(20, 2*rps)
			require.Zero(t, every(healthy, false))
			saved := max(3, 2*0.1*float64(rps)) + 1 // a bucket holds whole hedges
			total := 0
			for _, n := range []int{1, 10, max(20, rps), max(20, rps)} {
				hedges := every(n, true)
				total += n
				assert.LessOrEqual(t, float64(hedges), 0.17*float64(total*keys)+saved*float64(keys), "%d keys, %d/s, %d calls each", keys, rps, total)
			}
			if keys == 1 {
				n := 100 * max(20, rps)
				hedges := every(n, true)
				assert.InDelta(t, 0.1*float64(total+n), float64(hedges), 0.2*max(100, float64(rps))+2, "%d/s", rps)
			}
		}
	}
}

func TestMeasuredRateReplacesEstimate(t *testing.T) {
	for rps, want := range map[int]float64{1: 3, 20: 4, 100: 20, 1000: 200} {
		k := newKey(func(c *policy.Config) { c.HasShortBucket, c.EstimatedRPS = true, 10_000 })
		assert.InDelta(t, 1000, k.Snapshot().Tokens, 1e-9)
		for i := range 5 * max(rps, 20) {
			now := epoch.Add(time.Duration(i) * time.Second / time.Duration(rps))
			k.Begin(now)
			k.RecordCall(now, policy.Result{Latency: ms, Answered: true})
		}
		assert.InDelta(t, want, k.Snapshot().Tokens, 1, "%d/s", rps)
	}
}

func TestLargeBudgetRaisesTheShortShare(t *testing.T) {
	k := newKey(func(c *policy.Config) { c.HasShortBucket, c.Share = true, 1 })
	assert.InDelta(t, 200+1000, hedgesOf(k, 1000), 200)
	assert.Equal(t, 1000, hedgesOf(k, 1000))
}

// --- buckets of hosts and routes ---

func TestHostKeyIsKeptWhileRoutesAreUsed(t *testing.T) {
	c := defaults()
	c.PerHost, c.MaxKeys = true, 64
	e := policy.New(c)
	name := policy.Name{Host: "a", Route: "1"}
	a := e.Key(name)
	for i := range 1000 {
		a.Begin(time.Now())
		e.Key(policy.Name{Host: fmt.Sprint(i)}).Begin(time.Now())
	}
	require.Same(t, a, e.Lookup(name))
	require.NotNil(t, e.Lookup(policy.Name{Host: "a"}))
	before := a.Snapshot().Tokens
	assert.Positive(t, hedgesOf(e.Key(policy.Name{Host: "a", Route: "2"}), 10))
	assert.Less(t, a.Snapshot().Tokens, before, "both routes spend the host's budget")
}

func TestReplacedRouteAddsNoBurst(t *testing.T) {
	c := defaults()
	c.PerHost = true
	e := policy.New(c)
	now := epoch
	serve := func(k *policy.Key, n int) {
		for range n { // a hundred per second
			k.Begin(now)
			k.RecordCall(now, policy.Result{Latency: ms, Answered: true})
			now = now.Add(10 * ms)
		}
	}
	serve(e.Key(policy.Name{Host: "a", Route: "old"}), 200_000)
	k := e.Key(policy.Name{Host: "a", Route: "new"})
	serve(k, 20_000)
	assert.InDelta(t, 20, k.Snapshot().Tokens, 1)
}

func TestClockSetBackEvictsNoKeyInUse(t *testing.T) {
	c := defaults()
	c.MaxKeys = 64
	e := policy.New(c)
	ahead := time.Now().Add(2 * time.Hour)
	for i := range 60 {
		e.Key(policy.Name{Host: fmt.Sprint("idle", i)}).Begin(ahead)
	}
	hot := e.Key(policy.Name{Host: "hot"})
	for i := range 10 {
		hot.Begin(time.Now())
		e.Key(policy.Name{Host: fmt.Sprint("new", i)}).Begin(time.Now())
	}
	assert.Same(t, hot, e.Lookup(policy.Name{Host: "hot"}))
}

func TestSnapshotSharesNoMemoryWithSchedule(t *testing.T) {
	k := newKey(nil)
	learn(k, 100, constant(5*ms))
	want := k.Schedule().Delays[0]
	k.Snapshot().Delays[0] = 1
	assert.Equal(t, want, k.Schedule().Delays[0])
}

// TestImportUsesNoMemoryForKeysWithoutRoom imports windows of 60 bytes, each of which can span 2,000 buckets: 8 MiB of such windows took 4
// GB when all were decoded.
func TestImportUsesNoMemoryForKeysWithoutRoom(t *testing.T) {
	var w sketch.Window
	w.Add(epoch, 1)
	w.Add(epoch, 5000*time.Hour)
	window := w.Append(nil, epoch)
	bytesOf := func(b []byte, s string) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	var all []byte
	n := 0
	for ; len(all) < 8<<20; n++ {
		all = bytesOf(all, fmt.Sprint(n))
		all = bytesOf(all, "")
		all = bytesOf(all, string(window))
	}
	out := binary.AppendVarint([]byte("hedge windows 1\n"), epoch.UnixNano())
	out = binary.AppendUvarint(out, uint64(n))
	out = append(append(out, all...), 0, 0)
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
	c := defaults()
	c.MaxKeys = 64
	e := policy.New(c)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	keys, err := e.Import(bytes.NewReader(out), epoch, func(policy.Name) float64 { return 0 })
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	assert.Equal(t, 64, keys)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20), "%d keys", n)
}

func TestConcurrentCallsAreAllRecorded(t *testing.T) {
	k := newKey(nil)
	learn(k, 100, constant(5*ms))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { learn(k, 5000, constant(5*ms)) })
	}
	wg.Wait()
	v := k.Snapshot()
	assert.Equal(t, 100+16*5000, v.Samples)
	assert.EqualValues(t, 100+16*5000, v.Requests)
}

func TestImportOfRouteEvictsNoKey(t *testing.T) {
	c := defaults()
	c.PerHost, c.MaxKeys = true, 32
	teacher, heir := policy.New(c), policy.New(c)
	for i := range 8 {
		learn(teacher.Key(policy.Name{Host: fmt.Sprint("taught", i), Route: "/r"}), 20, constant(5*ms))
	}
	var export bytes.Buffer
	require.NoError(t, teacher.Export(&export, epoch))
	for i := range 25 {
		heir.Key(policy.Name{Host: fmt.Sprint("own", i)})
	}
	keys, err := heir.Import(&export, epoch, func(policy.Name) float64 { return 0 })
	require.NoError(t, err)
	assert.Equal(t, 3, keys, "the table holds three hosts with a route each")
	for i := range 25 {
		assert.NotNil(t, heir.Lookup(policy.Name{Host: fmt.Sprint("own", i)}), i)
	}
}
