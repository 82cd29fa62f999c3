package endpoints_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// An endpointEvents is an Observer that counts events of endpoints.
type endpointEvents struct {
	hedge.NopObserver
	mu  sync.Mutex
	n   map[hedge.EndpointEvent]int64
	key hedge.KeyInfo // the last one
}

func (e *endpointEvents) EndpointEvent(key hedge.KeyInfo, p hedge.EndpointEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n = make(map[hedge.EndpointEvent]int64)
	}
	e.n[p]++
	e.key = key
}

func (e *endpointEvents) of(endpoint string, kind hedge.EndpointKind) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n[hedge.EndpointEvent{Endpoint: endpoint, Kind: kind}]
}

// out returns the number of keys that have ejected the endpoint, according to events.
func (e *endpointEvents) out(endpoint string) int64 {
	return e.of(endpoint, hedge.EndpointEjected) - e.of(endpoint, hedge.EndpointRestored)
}

// An outing is a Transport with two endpoints, the first of which can be made to fail.
type outing struct {
	*hedge.Transport
	t      *testing.T
	events *endpointEvents
	log    *fixture.Journal
	down   atomic.Bool
}

func atEndpoints(t *testing.T, rt *doubles.RoundTripper, opts ...hedge.HTTPOption) *outing {
	o := &outing{t: t, events: new(endpointEvents), log: fixture.NewJournal()}
	rt.Answer = inEndpoints(rt, func(r *http.Request, n int) (*http.Response, error) {
		if o.down.Load() {
			return fails(r, n)
		}
		return quick(rt)(r, n)
	}, after(rt, 80*ms))
	o.Transport = hedge.New(rt, append(opts, toFar(hedge.Endpoint{}), hedge.WithName("shop"), hedge.WithObserver(o.events), hedge.WithLogger(slog.New(o.log)))...)
	o.log.Meet = func() { _ = o.Snapshot() } // or there would be a lock held
	return o
}

func (o *outing) call(calls int, urls ...string) {
	for i := range calls {
		if resp, err := get(o.t, o.Transport, append(urls, site)[i%(len(urls)+1)]); err == nil {
			text(o.t, resp)
		}
	}
}

// endpoints returns the snapshots of both endpoints. It checks that they agree with the events.
func (o *outing) endpoints() (nearby, away hedge.EndpointSnapshot) {
	var all []hedge.EndpointSnapshot
	for _, k := range o.Snapshot().Keys {
		if k.Host == "catalog.test" {
			all = k.Endpoints
		} else {
			assert.Nil(o.t, k.Endpoints, "they stand at the key of the first endpoint")
		}
	}
	require.Len(o.t, all, 2)
	for i, name := range []string{near, far} {
		p := all[i]
		require.Equal(o.t, name, p.Endpoint)
		assert.Equal(o.t, []int64{p.Calls, p.Hedges, p.Failures, p.Overtaken}, []int64{
			o.events.of(name, hedge.EndpointCalled), o.events.of(name, hedge.EndpointHedged),
			o.events.of(name, hedge.EndpointFailed), o.events.of(name, hedge.EndpointOvertaken),
		}, name)
		assert.Equal(o.t, p.Ejected, o.events.out(name) == 1, name)
	}
	return all[0], all[1]
}

func TestObserversSeeFailingEndpointEjectedAndRestored(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := atEndpoints(t, rt)
		o.call(200)
		n, f := o.endpoints()
		assert.EqualValues(t, 200, n.Calls)
		assert.EqualValues(t, hosts(rt.Sent())["catalog.far.test"], f.Hedges)
		assert.Positive(t, f.Hedges)
		assert.Zero(t, n.Hedges+n.Failures+n.Overtaken+f.Calls+f.Failures+f.Overtaken)
		assert.False(t, n.Ejected || f.Ejected)
		assert.Equal(t, hedge.KeyInfo{Client: "shop", Protocol: "http", Host: "catalog.test"}, o.events.key)
		require.Empty(t, o.log.Take())

		o.down.Store(true)
		o.call(6)
		n, _ = o.endpoints()
		assert.True(t, n.Ejected)
		assert.False(t, n.Slower)
		assert.EqualValues(t, 6, n.Failures)
		assert.InDelta(t, 6.0/256, n.BadShare, 0.001)
		assert.Equal(t, []string{`WARN "endpoint ejected" client=shop endpoint=` + near}, o.log.Take())
		o.call(1000)
		n, f = o.endpoints()
		assert.EqualValues(t, 206, n.Calls, "calls go elsewhere")
		assert.EqualValues(t, 1000, f.Calls)
		assert.EqualValues(t, n.Hedges, n.Failures-6, "what tries it again fails")
		assert.Empty(t, o.log.Take())

		o.down.Store(false)
		o.call(5000)
		n, _ = o.endpoints()
		assert.False(t, n.Ejected)
		assert.Zero(t, o.events.out(near))
		assert.Equal(t, []string{`INFO "endpoint restored" client=shop endpoint=` + near}, o.log.Take())
		assert.EqualValues(t, 1, o.events.of(near, hedge.EndpointRestored))
	})
}

func TestObserversSeeSlowEndpointEjected(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := atEndpoints(t, rt)
		rt.Answer = inEndpoints(rt, after(rt, 300*ms), after(rt, 80*ms))
		o.call(1000)
		n, _ := o.endpoints()
		assert.True(t, n.Ejected && n.Slower)
		assert.Positive(t, n.Overtaken)
		assert.Zero(t, n.Failures)
		assert.Equal(t, []string{`WARN "endpoint ejected" client=shop endpoint=` + near + ` reason=slow`}, o.log.Take())
	})
}

func TestForgottenOrResetKeyEjectsNoEndpoint(t *testing.T) {
	for name, forget := range map[string]func(o *outing){
		"forgotten": func(o *outing) {
			for i := range 100 {
				o.call(1, fmt.Sprintf("http://other-%d.test/", i))
			}
		},
		"reset": func(o *outing) { require.Positive(o.t, o.Reset("catalog.test", "")) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				o := atEndpoints(t, rt, hedge.WithMaxKeys(16))
				o.down.Store(true)
				o.call(6)
				require.EqualValues(t, 1, o.events.out(near))
				o.down.Store(false)
				forget(o)
				assert.Zero(t, o.events.out(near))
				before := o.events.of(near, hedge.EndpointCalled)
				rt.Forget()
				o.call(50)
				assert.GreaterOrEqual(t, hosts(rt.Sent())["catalog.test"], 50, "calls go there again")
				assert.Equal(t, before+50, o.events.of(near, hedge.EndpointCalled))
			})
		})
	}
}

// TestObserversSeeNoEventsOfIneligibleCalls makes calls that may be sent to the first endpoint only.
func TestObserversSeeNoEventsOfIneligibleCalls(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := atEndpoints(t, rt, hedge.WithShadow())
		o.call(50)
		assert.Nil(t, o.Snapshot().Keys[0].Endpoints)
		assert.Empty(t, o.events.n)
	})
}

// An atEndpointLeaver is an Observer that calls runtime.Goexit when a hedge is about to be sent to an endpoint.
type atEndpointLeaver struct{ hedge.NopObserver }

func (atEndpointLeaver) EndpointEvent(_ hedge.KeyInfo, p hedge.EndpointEvent) {
	if p.Kind == hedge.EndpointHedged {
		runtime.Goexit()
	}
}

// TestGoexitOfEndpointObserverKeepsHedgesInFlight starts more hedges than may be in flight.
func TestGoexitOfEndpointObserverKeepsHedgesInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, toFar(hedge.Endpoint{}), hedge.WithObserver(atEndpointLeaver{}), hedge.WithBudget(hedge.NewBudget(100, 10_000)))
		rt.Answer = inEndpoints(rt, after(rt, 40*ms), after(rt, 80*ms))
		req := request(t, hedge.WithDelay(t.Context(), 5*ms), "GET", site, nil)
		done := make(chan bool)
		for range 1200 {
			go func() {
				defer func() { done <- true }()
				if resp, err := tr.RoundTrip(req); err == nil {
					_ = resp.Body.Close()
				}
			}()
			<-done
		}
		k := tr.Snapshot().Keys[0]
		assert.Greater(t, k.Hedges, int64(1000))
		assert.Zero(t, k.Denied[hedge.DeniedInFlight])
	})
}
