package http_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestObserverReceivesEveryAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rec := new(recorder)
		rt.Answer = after(rt, time.Second, 5*ms)
		tr := warm(t, rt, hedge.WithObserver(rec), hedge.WithName("shop"))
		warmed := rec.Take()
		assert.Equal(t, []string{"denied: warming", "start 0", "won 0 after 10", "done by 0 of 1 after 10"}, warmed[:4])
		assert.Equal(t, []string{"start 0", "won 0 after 10", "done by 0 of 1 after 10"}, warmed[len(warmed)-3:])
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, []string{"start 0", "start 1", "won 1 after 5", "lost 0 after 15", "done by 1 of 2 after 15"}, rec.Take())
		assert.Equal(t, hedge.KeyInfo{Client: "shop", Protocol: "http", Host: "catalog.test"}, rec.Key())
		assert.InDelta(t, usual, rec.LastResult().Delay, float64(ms/2))
	})
}

func TestObserverReceivesLingeringLoserAfterItsRequest(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rec := new(recorder)
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			resp, err := after(rt, usual)(req, n)
			if n == 20 {
				err = doubles.Sleep(req.Context(), 90*ms)
			}
			resp.ProtoMajor = 1
			return resp, err
		}
		tr := hedge.New(rt, hedge.WithObserver(rec))
		warmUp(t, tr)
		rec.Take()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, []string{"won 1 after 10", "done by 1 of 2 after 20"}, rec.Take()[2:])
		time.Sleep(time.Second)
		assert.Equal(t, []string{"lost 0 after 100"}, rec.Take())
	})
}

func TestObserverReceivesReasonsOfDeniedHedges(t *testing.T) {
	empty := hedge.NewBudget(0.001, 1)
	require.True(t, empty.Spend())
	for name, test := range map[string]struct {
		want hedge.Reason
		opts []hedge.HTTPOption
		call func(*hedge.Transport, *http.Request) *http.Request
	}{
		"method": {hedge.DeniedMethod, nil, func(_ *hedge.Transport, r *http.Request) *http.Request { r.Method = "POST"; return r }},
		"body":   {hedge.DeniedBody, nil, func(_ *hedge.Transport, r *http.Request) *http.Request { r.Trailer = http.Header{}; return r }},
		"call": {hedge.DeniedDisabled, nil, func(_ *hedge.Transport, r *http.Request) *http.Request {
			return r.WithContext(hedge.WithoutHedging(r.Context()))
		}},
		"switch":         {hedge.DeniedDisabled, nil, func(tr *hedge.Transport, r *http.Request) *http.Request { tr.SetEnabled(false); return r }},
		"route":          {hedge.DeniedDisabled, []hedge.HTTPOption{hedge.WithRoute("/item", hedge.Policy{Off: true})}, nil},
		"route's budget": {hedge.DeniedDisabled, []hedge.HTTPOption{hedge.WithRoute("/item", hedge.Policy{BudgetPercent: hedge.NoBudget, Hedgeable: true})}, nil},
		"mark": {hedge.DeniedNested, []hedge.HTTPOption{hedge.WithAttemptHeader("x-hedge")}, func(_ *hedge.Transport, r *http.Request) *http.Request {
			r.Header.Set("X-Hedge", "1")
			return r
		}},
		"settings":   {hedge.DeniedDisabled, []hedge.HTTPOption{hedge.WithMaxHedges(0)}, nil},
		"per second": {hedge.DeniedDisabled, []hedge.HTTPOption{hedge.WithMaxHedgesPerSecond(0)}, nil},
		"budget":     {hedge.DeniedBudget, []hedge.HTTPOption{hedge.WithBudget(empty), hedge.WithInitialDelay(usual)}, nil},
		"deadline": {hedge.DeniedDeadline, nil, func(_ *hedge.Transport, r *http.Request) *http.Request {
			ctx, cancel := context.WithTimeout(r.Context(), usual+5*ms)
			t.Cleanup(cancel)
			return r.WithContext(ctx)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				rec := new(recorder)
				rt.Answer = after(rt, 50*ms)
				tr := warm(t, rt, append(test.opts, hedge.WithObserver(rec))...)
				rec.Take()
				req := request(t, t.Context(), "GET", site, nil)
				if test.call != nil {
					req = test.call(tr, req)
				}
				if resp, err := tr.RoundTrip(req); err == nil {
					text(t, resp)
				}
				events := rec.Take()
				assert.Contains(t, events, "denied: "+string(test.want))
				assert.Contains(t, events, "start 0")
				assert.True(t, strings.HasPrefix(events[len(events)-1], "done by"), events)
			})
		})
	}
}

// A fixed delay needs no measurements, but the settings must allow hedges.
func TestFixedDelayHasNoEffectWithoutBudget(t *testing.T) {
	for setting, none := range map[string]hedge.HTTPOption{
		"budget": hedge.WithBudgetPercent(0), "shared budget": hedge.WithBudget(hedge.NewBudget(0, 5)), "per second": hedge.WithMaxHedgesPerSecond(0),
	} {
		for delay, fixed := range map[string]hedge.HTTPOption{
			"initial delay": hedge.WithInitialDelay(10 * ms), "route": hedge.WithRoute("/item", hedge.Policy{Delay: 10 * ms}), "call": nil,
		} {
			t.Run(setting+" "+delay, func(t *testing.T) {
				bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
					rec := new(recorder)
					rt.Answer = after(rt, 50*ms)
					tr := hedge.New(rt, hedge.WithObserver(rec), none, fixed)
					call := func() []string {
						req := request(t, t.Context(), "GET", site, nil)
						if delay == "call" {
							req = req.WithContext(hedge.WithDelay(t.Context(), 10*ms))
						}
						resp, err := tr.RoundTrip(req)
						require.NoError(t, err)
						text(t, resp)
						return rec.Take()
					}
					assert.Contains(t, call(), "denied: disabled")
					assert.Empty(t, tr.Snapshot().Keys[0].Delays)
					assert.Len(t, rt.Sent(), 1)
					if setting == "shared budget" {
						return
					}
					require.NoError(t, tr.Update(func(c *hedge.Config) { c.BudgetPercent, c.MaxHedgesPerSecond = 100, hedge.Unset }))
					call()
					assert.Greater(t, len(rt.Sent()), 2, "the budget is raised")
				})
			})
		}
	}
}

func TestObserverReceivesFailures(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rec := new(recorder)
		rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
			if n == 0 {
				return after(rt, 30*ms)(req, n)
			}
			return nil, errDown
		}
		tr := warm(t, rt, hedge.WithObserver(rec), hedge.WithMaxHedges(1))
		rec.Take()
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		assert.Equal(t, []string{"start 0", "start 1", "failed 1 after 0", "won 0 after 30", "done by 0 of 2 after 30"}, rec.Take())
		_, err = get(t, tr, site)
		require.ErrorIs(t, err, errDown)
		assert.Equal(t, []string{"start 0", "failed 0 after 0", "done by -1 of 1 after 0"}, rec.Take())
	})
}

func TestAttemptFromContextWorksInInnerTransports(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, time.Second, 5*ms)
		tr := warm(t, rt)
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		text(t, resp)
		for n, req := range rt.Sent() {
			a, ok := hedge.AttemptFromContext(req.Context())
			assert.True(t, ok)
			assert.Equal(t, n, a.Number)
		}
		_, ok := hedge.AttemptFromContext(t.Context())
		assert.False(t, ok)
	})
}

// TestObservedCallsAllocateNoMore also bounds what calls allocate without an observer.
func TestObservedCallsAllocateNoMore(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	httpCall := func(major int) func(opts ...hedge.Option) func() {
		return func(opts ...hedge.Option) func() {
			resp := &http.Response{StatusCode: 200, ProtoMajor: major, Body: http.NoBody}
			tr := hedge.New(roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }), hedge.WithAttemptHeader(hedge.AttemptHeader), hedge.WithOptions(opts...))
			req := request(t, t.Context(), "GET", site, nil)
			return func() { _, _ = tr.RoundTrip(req) }
		}
	}
	doCall := func(ctx context.Context) func(opts ...hedge.Option) func() {
		return func(opts ...hedge.Option) func() {
			h := hedge.NewHedger(hedge.WithOptions(opts...))
			f := func(own context.Context) (int, error) {
				if ctx.Done() != nil {
					own.Done()
				}
				return 1, nil
			}
			return func() { _, _ = hedge.Do(ctx, h, "k", f) }
		}
	}
	fixture.CheckAllocations(t, "http1", 5, httpCall(1))
	fixture.CheckAllocations(t, "http2", 2, httpCall(2)) // the header is a copy
	fixture.CheckAllocations(t, "func", 1, doCall(context.Background()))
	done := 14.0
	if !doubles.Go126 {
		done++
	}
	fixture.CheckAllocations(t, "func that asks for Done", done, doCall(t.Context()))
}

func BenchmarkObserver(b *testing.B) {
	resp := &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}
	for name, opts := range map[string][]hedge.HTTPOption{"none": nil, "nop": {hedge.WithObserver(hedge.NopObserver{})}} {
		tr := hedge.New(roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }), opts...)
		req, _ := http.NewRequest("GET", site, nil)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = tr.RoundTrip(req)
			}
		})
	}
}

// angry is an Observer whose methods panic.
type angry struct{ hedge.NopObserver }

func (angry) AttemptStart(context.Context, hedge.KeyInfo, hedge.AttemptInfo)  { panic("start") }
func (angry) AttemptDone(context.Context, hedge.KeyInfo, hedge.AttemptResult) { panic("done") }
func (angry) RequestDone(context.Context, hedge.KeyInfo, hedge.RequestResult) { panic("request") }
func (angry) Denied(context.Context, hedge.KeyInfo, hedge.Reason)             { panic("denied") }

func TestObserverPanicIsRecovered(t *testing.T) {
	for name, opts := range map[string][]hedge.HTTPOption{"hedging": nil, "shadow": {hedge.WithShadow()}, "linger": {hedge.WithLinger(time.Second)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				j, rec := fixture.NewJournal(), new(recorder)
				rt.Answer = func(req *http.Request, n int) (*http.Response, error) {
					resp, err := after(rt, 50*ms, 5*ms)(req, n) // events in the caller's goroutine, and in those of timers
					if err == nil && name == "linger" {
						resp.ProtoMajor = 1
					}
					return resp, err
				}
				tr := warm(t, rt, append(opts, hedge.WithObserver(angry{}), hedge.WithObserver(rec), hedge.WithLogger(slog.New(j)))...)
				for range 20 {
					resp, err := get(t, tr, site)
					require.NoError(t, err)
					text(t, resp)
				}
				req := request(t, t.Context(), "POST", site, nil)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				text(t, resp)
				time.Sleep(time.Minute)
				heard := rec.Take()
				assert.Greater(t, len(heard), 100, "another observer hears of everything")
				assert.EqualValues(t, len(heard), tr.Snapshot().Stats.ObserverPanics)
				told := slices.DeleteFunc(j.Take(), func(line string) bool { return strings.HasPrefix(line, "INFO ") }) // shadow mode is logged
				require.Len(t, told, 1)
				assert.Contains(t, told[0], `ERROR "an observer panicked; later panics are only counted" observer=http_test.angry panic=denied stack=`)
				assert.Contains(t, told[0], "http_test.angry.Denied", "the stack is that of the panic")
			})
		})
	}
}

// leaver is an Observer that ends the goroutine for each event of a hedge.
type leaver struct{ hedge.NopObserver }

func (leaver) AttemptStart(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptInfo) {
	if a.Hedge() {
		runtime.Goexit()
	}
}

func (leaver) AttemptDone(_ context.Context, _ hedge.KeyInfo, a hedge.AttemptResult) {
	if a.Hedge() {
		runtime.Goexit()
	}
}

func TestObserverMayEndItsGoroutine(t *testing.T) {
	o := leaver{}
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = after(rt, 50*ms, 5*ms)
		j := fixture.NewJournal()
		tr := warm(t, rt, hedge.WithObserver(o), hedge.WithLogger(slog.New(j)))
		for range 20 {
			resp, err := get(t, tr, site)
			require.NoError(t, err)
			text(t, resp)
		}
		assert.Positive(t, tr.Snapshot().Stats.ObserverPanics)
		assert.Contains(t, strings.Join(j.Take(), "\n"), "panic=runtime.Goexit")

		h := fixture.NewWarmHedger(t, hedge.WithObserver(o), hedge.WithLogger(slog.New(j)), hedge.WithBudget(hedge.NewBudget(300, 10_000)))
		for range 2 * hedge.MaxDetached {
			_, err := hedge.DoDetached(hedge.WithDelay(t.Context(), ms), h, "k", func(context.Context) (int, error) {
				time.Sleep(5 * ms)
				return 0, nil
			}, nil)
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		assert.Zero(t, h.Snapshot().Keys[0].Denied[hedge.DeniedInFlight], "no place is lost")
	})
}

func TestLoggerPanicDoesNotReachCall(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := hedge.New(rt, hedge.WithObserver(angry{}), hedge.WithLogger(slog.New(fixture.PanickingHandler{})))
		m := moods{rt, t, tr}
		m.well(20)
		before := tr.Snapshot().Stats.ObserverPanics
		assert.EqualValues(t, 20*3+10+1, before, "three events a call, ten of them warming, and the logger")
		m.busy(10, time.Second)
		assert.EqualValues(t, before+10*3+1, tr.Snapshot().Stats.ObserverPanics, "the pause was logged")
	})
}

func TestLoggerPanicDoesNotEndCommandOrCall(t *testing.T) {
	for name, value := range map[string]string{"HEDGE_DISABLED": "yes", "HEDGE_MODE": "?"} {
		t.Setenv(name, value)
	}
	l := hedge.WithLogger(slog.New(fixture.PanickingHandler{}))
	tr := hedge.New(nil, l) // logs both
	told := func() int64 { return tr.Snapshot().Stats.ObserverPanics }
	require.EqualValues(t, 2, told())
	tr.SetEnabled(true)
	tr.SetEnabled(false)
	require.EqualValues(t, 4, told())
	require.NoError(t, tr.Update(func(c *hedge.Config) { c.MaxHedges = 1 }))
	require.EqualValues(t, 5, told())
	var export bytes.Buffer
	require.NoError(t, tr.Export(&export))
	require.NoError(t, tr.Import(&export))
	require.EqualValues(t, 6, told())
}

func TestKeyInfoPrintableAcceptsAnyName(t *testing.T) {
	rec := new(recorder)
	h := hedge.NewHedger(hedge.WithObserver(rec), hedge.WithName("shop\n"))
	_, err := hedge.Do(t.Context(), h, "user-\xff", func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	assert.Equal(t, "user-\xff", rec.Key().Host)
	assert.Equal(t, hedge.KeyInfo{Client: "shop\uFFFD", Protocol: "func", Host: "user-\uFFFD"}, rec.Key().Printable())
}
