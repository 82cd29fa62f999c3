package hedge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/observe"
)

// processors is a handler that computes for 10 ms, on eight processors that all requests share.
func processors() http.Handler {
	var now atomic.Int64
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		now.Add(1)
		defer now.Add(-1)
		for range 10 {
			time.Sleep(ms * time.Duration(max(8, now.Load())) / 8)
		}
	})
}

// connections is a handler that needs one of ten connections for 20 ms on average.
func connections() http.Handler {
	pool := make(chan struct{}, 10)
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		pool <- struct{}{}
		defer func() { <-pool }()
		time.Sleep(20 * ms * time.Duration(50+rand.IntN(100)) / 100)
	})
}

// sleeping is a handler that waits for 50 ms.
func sleeping() http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(50 * ms) })
}

// arrive sends requests at random times, the same in each call, so many a second, for a while, and returns how long those took that came after the first 20 s.
func arrive(h http.Handler, perSecond float64, long time.Duration) (took []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	random := rand.New(rand.NewPCG(1, 1))
	for start := time.Now(); time.Since(start) < long; {
		time.Sleep(time.Duration(random.ExpFloat64() / perSecond * float64(time.Second)))
		at := time.Now()
		all.Go(func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			mu.Lock()
			defer mu.Unlock()
			if at.Sub(start) > 20*time.Second {
				took = append(took, time.Since(at))
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return took
}

func TestALimiterFindsItsLimit(t *testing.T) {
	for _, c := range []struct {
		name      string
		handler   func() http.Handler
		perSecond float64
		least     int
		most      int
		known     int // the limit of those who know the server
	}{
		{"processors", processors, 760, 8, 32, 8},
		{"connections", connections, 475, 9, 32, 10},
		{"sleeping", sleeping, 1000, 51, 300, 10000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := hedge.NewAdaptiveLimiter(hedge.WithName("shop"))
				assert.Equal(t, map[observe.LimitReason]int64{"starts": 0, "unused": 0, "stalls": 0, "gains": 0, "no_gain": 0}, l.Snapshot().Moves)
				assert.Less(t, 5000, l.Snapshot().Limit, "it begins with what is hardly a limit")
				took := arrive(l.Handler(c.handler()), c.perSecond, 50*time.Second)
				known := arrive(hedge.NewLimiter(c.known).Handler(c.handler()), c.perSecond, 50*time.Second)

				s := l.Snapshot()
				assert.GreaterOrEqual(t, s.Limit, c.least)
				assert.LessOrEqual(t, s.Limit, c.most)
				assert.Equal(t, s.Move.To, s.Limit)
				assert.Positive(t, s.Moves[observe.LimitUnused], "the first move is from what nobody needs")
				at := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
				t.Logf("limit %d after %v, p99 %v; with %d, which is known: %v", s.Limit, s.Moves, at(took), c.known, at(known))
				assert.Less(t, at(took), 2*at(known)+10*ms)
			})
		})
	}
}

func TestALimiterKnowsAnOverloadedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewAdaptiveLimiter()
		var now, most atomic.Int64
		slow := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			n := now.Add(1)
			defer now.Add(-1)
			if l.Snapshot().Worked > 300000 {
				most.Store(max(most.Load(), n))
			}
			time.Sleep(ms * time.Duration(max(8, n)) * time.Duration(50+rand.IntN(100)) / 100) // eight at a time finish most
		}))
		for range 300 { // callers who come again at once
			go func() {
				for l.Snapshot().Worked < 400000 {
					slow.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
				}
			}()
		}
		synctest.Wait()
		for l.Snapshot().Working > 0 {
			time.Sleep(time.Second)
		}
		s := l.Snapshot()
		t.Log(s.Moves, s.Limit)
		assert.LessOrEqual(t, most.Load(), int64(64), "of 300 that are there, few are let through")
		assert.GreaterOrEqual(t, s.Limit, 4)
		assert.LessOrEqual(t, s.Limit, 64)
		assert.Positive(t, s.Moves[observe.LimitNoGain])
	})
}

// learns checks whether a Limiter learns from the requests that serve makes, which does work in each.
func learns(t *testing.T, does bool, serve func(l *hedge.Limiter, work func())) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewAdaptiveLimiter()
		for range 2000 {
			go serve(l, func() { time.Sleep(10 * ms) })
			time.Sleep(3 * ms)
		}
		time.Sleep(time.Minute)
		s := l.Snapshot()
		assert.EqualValues(t, 2000, s.Worked)
		assert.Zero(t, s.Working)
		if does {
			assert.NotZero(t, s.Move)
			assert.Less(t, s.Limit, 100)
		} else {
			assert.Zero(t, s.Move)
			assert.Less(t, 5000, s.Limit)
		}
	})
}

func TestWhatALimiterLearnsNothingFrom(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(l *hedge.Limiter, r *http.Request, leave func())
		does bool
	}{
		"a request":       {func(*hedge.Limiter, *http.Request, func()) {}, true},
		"a panic":         {func(*hedge.Limiter, *http.Request, func()) { panic("broken") }, false},
		"released":        {func(l *hedge.Limiter, r *http.Request, _ func()) { l.Release(r.Context()) }, false},
		"its caller left": {func(_ *hedge.Limiter, _ *http.Request, leave func()) { leave() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			learns(t, c.does, func(l *hedge.Limiter, work func()) {
				defer func() { _ = recover() }()
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					work()
					c.ends(l, r, leave)
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			})
		})
	}
}

func TestALimiterThatMovesLosesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewAdaptiveLimiter()
		var now atomic.Int64
		h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n := now.Add(1)
			defer now.Add(-1)
			time.Sleep(ms * time.Duration(max(8, n)))
			switch rand.IntN(8) {
			case 0:
				panic("broken")
			case 1:
				l.Release(r.Context())
				time.Sleep(5 * ms)
			}
		}))
		var all sync.WaitGroup
		for range 30000 {
			ctx, leave := context.WithTimeout(t.Context(), time.Duration(rand.IntN(200))*ms)
			all.Go(func() {
				defer leave()
				defer func() { _ = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			})
			time.Sleep(time.Duration(rand.IntN(int(1600 * time.Microsecond))))
		}
		all.Wait()
		s := l.Snapshot()
		require.NotZero(t, s.Move)
		assert.Equal(t, []int64{0, 0, 30000}, []int64{s.Working, s.Waiting, s.Worked + s.Left})

		var inside sync.WaitGroup
		end := make(chan struct{})
		for range s.Limit + 5 {
			inside.Go(func() {
				l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end })).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			})
		}
		synctest.Wait()
		assert.Equal(t, fmt.Sprint(s.Limit, 5), fmt.Sprint(l.Snapshot().Working, l.Snapshot().Waiting), "as many work as the limit says")
		close(end)
		inside.Wait()
	})
}

// lasts is a handler that takes so long, or until its caller leaves.
func lasts(long func() time.Duration) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(long()):
		case <-r.Context().Done():
		}
	})
}

// come sends requests at random times, so many a second, for a while, and waits for none.
func come(ctx context.Context, h http.Handler, perSecond float64, long time.Duration) {
	for end := time.Now().Add(long); time.Now().Before(end); {
		time.Sleep(time.Duration(rand.ExpFloat64() / perSecond * float64(time.Second)))
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	}
}

// Few wait in these worlds, in which nothing but the limit holds requests up.
func TestALimiterHoldsNobodyUpForNothing(t *testing.T) {
	for name, world := range map[string]func(ctx context.Context, l *hedge.Limiter){
		"100 streams go on for hours, beside short requests": func(ctx context.Context, l *hedge.Limiter) {
			streams := l.Handler(lasts(func() time.Duration { return time.Hour }))
			for range 100 {
				go streams.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			}
			come(ctx, l.Handler(lasts(func() time.Duration { return 20 * ms })), 1000, time.Minute)
		},
		"14 streams, beside six callers who come again at once": func(ctx context.Context, l *hedge.Limiter) {
			for range 14 {
				go l.Handler(lasts(func() time.Duration { return time.Hour })).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			}
			short := l.Handler(lasts(func() time.Duration { return 20 * ms }))
			for range 6 {
				go func() {
					for ctx.Err() == nil {
						short.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
					}
				}()
			}
			for range 30 {
				before := l.Snapshot().Worked
				time.Sleep(10 * time.Second)
				assert.Greater(t, l.Snapshot().Worked-before, int64(2900), "of 3,000")
			}
		},
		"requests take a hundred times as long from one moment to the next": func(ctx context.Context, l *hedge.Limiter) {
			var long atomic.Int64
			long.Store(int64(ms))
			h := l.Handler(lasts(func() time.Duration { return time.Duration(long.Load()) }))
			come(ctx, h, 1000, 30*time.Second)
			long.Store(int64(100 * ms))
			come(ctx, h, 1000, 20*time.Second)
		},
		"one request in twenty takes 10 s, and the others 1 ms": func(ctx context.Context, l *hedge.Limiter) {
			come(ctx, l.Handler(lasts(func() time.Duration {
				if rand.IntN(20) == 0 {
					return 10 * time.Second
				}
				return ms
			})), 200, time.Minute)
		},
		"a server calls itself, and all places are taken by those who wait for others": func(ctx context.Context, l *hedge.Limiter) {
			inner := l.Handler(lasts(func() time.Duration { return 10 * ms }))
			outer := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				time.Sleep(10 * ms)
				inner.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil)) // over a socket, in a server
			}))
			come(ctx, outer, 10, 2*time.Minute)
			for range 200 {
				go outer.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			}
			time.Sleep(10 * time.Second)
			assert.Zero(t, l.Snapshot().Working)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				l := hedge.NewAdaptiveLimiter()
				world(ctx, l)
				s := l.Snapshot()
				assert.Less(t, s.Waiting, int64(200), "with a limit of %d after %v", s.Limit, s.Moves)
			})
		})
	}
}

// Ten requests at once, and then nothing for a while: fewer than are let through at any time.
func TestALimiterHoldsNoBurstUpAfterASilence(t *testing.T) {
	for _, streams := range []int{0, 1} {
		for _, silence := range []time.Duration{20 * time.Second, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				l := hedge.NewAdaptiveLimiter()
				send := func(n int, long time.Duration) {
					for range n {
						go l.Handler(lasts(func() time.Duration { return long })).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
					}
				}
				send(streams, 10000*time.Hour)
				waited := int64(0)
				for range 300 {
					send(10, 50*ms)
					synctest.Wait()
					waited += l.Snapshot().Waiting
					time.Sleep(silence)
				}
				assert.Less(t, waited, int64(30), "of 3,000, beside %d streams, with a limit of %d after %v", streams, l.Snapshot().Limit, l.Snapshot().Moves)
			})
		}
	}
}

// All requests of a process that was stopped for ten minutes have taken so long.
func TestALimiterNoticesSoonThatNothingEndsAlthoughRequestsOnceTookLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		l := hedge.NewAdaptiveLimiter()
		var long atomic.Int64
		send := func(n int, takes time.Duration) {
			long.Store(int64(takes))
			for range n {
				go l.Handler(lasts(func() time.Duration { return time.Duration(long.Load()) })).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			}
			synctest.Wait()
		}
		for range 1000 {
			send(1, 10*ms)
			time.Sleep(10 * ms)
		}
		time.Sleep(time.Minute)
		send(32, 10*time.Minute)
		time.Sleep(10 * time.Minute)
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(30 * ms) {
			send(40, 10*ms)
		}
		time.Sleep(time.Second)
		require.Zero(t, l.Snapshot().Working)

		send(l.Snapshot().Limit+1, time.Hour)
		require.EqualValues(t, 1, l.Snapshot().Waiting)
		time.Sleep(2 * time.Second)
		assert.Zero(t, l.Snapshot().Waiting, "the limit is %d after %v", l.Snapshot().Limit, l.Snapshot().Moves)
	})
}

// BenchmarkAdaptiveLimiter is what a request costs more where the limit is found, and that of one whose limit is fixed, beside it: one after another, and
// from 64 callers at a time, of whom some wait.
func BenchmarkAdaptiveLimiter(b *testing.B) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	waits := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Gosched() })
	for _, kind := range []string{"fixed", "found"} {
		made := func() *hedge.Limiter {
			if kind == "fixed" {
				return hedge.NewLimiter(8)
			}
			return hedge.NewAdaptiveLimiter()
		}
		b.Run("alone/"+kind, func(b *testing.B) {
			h, w, r := made().Handler(nothing), httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
		b.Run("crowd/"+kind, func(b *testing.B) {
			h := made().Handler(waits)
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
				for pb.Next() {
					h.ServeHTTP(w, r)
				}
			})
		})
	}
}
