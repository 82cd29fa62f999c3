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

// placeEvents is an Observer that counts what happens at places.
type placeEvents struct {
	hedge.NopObserver
	mu  sync.Mutex
	n   map[hedge.PlaceEvent]int64
	key hedge.KeyInfo // the last one
}

func (e *placeEvents) Placed(key hedge.KeyInfo, p hedge.PlaceEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n = make(map[hedge.PlaceEvent]int64)
	}
	e.n[p]++
	e.key = key
}

func (e *placeEvents) of(place string, kind hedge.PlaceKind) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n[hedge.PlaceEvent{Place: place, Kind: kind}]
}

// out returns how many keys take the place for out, as events say.
func (e *placeEvents) out(place string) int64 {
	return e.of(place, hedge.PlaceOut) - e.of(place, hedge.PlaceBack)
}

// An outing is a Transport with two places, the first of which can be down.
type outing struct {
	*hedge.Transport
	t      *testing.T
	events *placeEvents
	log    *fixture.Journal
	down   atomic.Bool
}

func atPlaces(t *testing.T, rt *doubles.RoundTripper, opts ...hedge.Option) *outing {
	o := &outing{t: t, events: new(placeEvents), log: fixture.NewJournal()}
	rt.Answer = inPlaces(rt, func(r *http.Request, n int) (*http.Response, error) {
		if o.down.Load() {
			return fails(r, n)
		}
		return quick(rt)(r, n)
	}, after(rt, 80*ms))
	o.Transport = hedge.New(rt, append(opts, toFar(hedge.Place{}), hedge.WithName("shop"), hedge.WithObserver(o.events), hedge.WithLogger(slog.New(o.log)))...)
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

// places returns what the Snapshot says of them, which is what observers have heard.
func (o *outing) places() (nearby, away hedge.PlaceSnapshot) {
	var all []hedge.PlaceSnapshot
	for _, k := range o.Snapshot().Keys {
		if k.Host == "catalog.test" {
			all = k.Places
		} else {
			assert.Nil(o.t, k.Places, "they stand at the key of the first place")
		}
	}
	require.Len(o.t, all, 2)
	for i, name := range []string{near, far} {
		p := all[i]
		require.Equal(o.t, name, p.Place)
		assert.Equal(o.t, []int64{p.Calls, p.Hedges, p.Failures, p.Overtaken}, []int64{
			o.events.of(name, hedge.PlaceCalled), o.events.of(name, hedge.PlaceHedged),
			o.events.of(name, hedge.PlaceFailed), o.events.of(name, hedge.PlaceOvertaken),
		}, name)
		assert.Equal(o.t, p.Out, o.events.out(name) == 1, name)
	}
	return all[0], all[1]
}

func TestAPlaceThatFailsIsSeenToBeOutAndBack(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := atPlaces(t, rt)
		o.call(200)
		n, f := o.places()
		assert.EqualValues(t, 200, n.Calls)
		assert.EqualValues(t, hosts(rt.Sent())["catalog.far.test"], f.Hedges)
		assert.Positive(t, f.Hedges)
		assert.Zero(t, n.Hedges+n.Failures+n.Overtaken+f.Calls+f.Failures+f.Overtaken)
		assert.False(t, n.Out || f.Out)
		assert.Equal(t, hedge.KeyInfo{Client: "shop", Protocol: "http", Host: "catalog.test"}, o.events.key)
		require.Empty(t, o.log.Take())

		o.down.Store(true)
		o.call(6)
		n, _ = o.places()
		assert.True(t, n.Out)
		assert.False(t, n.Slower)
		assert.EqualValues(t, 6, n.Failures)
		assert.InDelta(t, 6.0/256, n.BadShare, 0.001)
		assert.Equal(t, []string{`WARN "place is out" client=shop place=` + near}, o.log.Take())
		o.call(1000)
		n, f = o.places()
		assert.EqualValues(t, 206, n.Calls, "calls go elsewhere")
		assert.EqualValues(t, 1000, f.Calls)
		assert.EqualValues(t, n.Hedges, n.Failures-6, "what tries it again fails")
		assert.Empty(t, o.log.Take())

		o.down.Store(false)
		o.call(5000)
		n, _ = o.places()
		assert.False(t, n.Out)
		assert.Zero(t, o.events.out(near))
		assert.Equal(t, []string{`INFO "place is back" client=shop place=` + near}, o.log.Take())
		assert.EqualValues(t, 1, o.events.of(near, hedge.PlaceBack))
	})
}

func TestAPlaceThatIsSlowerThanAnotherIsSeenToBeOutForThat(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := atPlaces(t, rt)
		rt.Answer = inPlaces(rt, after(rt, 300*ms), after(rt, 80*ms))
		o.call(1000)
		n, _ := o.places()
		assert.True(t, n.Out && n.Slower)
		assert.Positive(t, n.Overtaken)
		assert.Zero(t, n.Failures)
		assert.Equal(t, []string{`WARN "place is out" client=shop place=` + near + ` reason=slow`}, o.log.Take())
	})
}

func TestAKeyThatIsForgottenOrResetTakesNoPlaceForOut(t *testing.T) {
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
				o := atPlaces(t, rt, hedge.WithMaxKeys(16))
				o.down.Store(true)
				o.call(6)
				require.EqualValues(t, 1, o.events.out(near))
				o.down.Store(false)
				forget(o)
				assert.Zero(t, o.events.out(near))
				before := o.events.of(near, hedge.PlaceCalled)
				rt.Forget()
				o.call(50)
				assert.GreaterOrEqual(t, hosts(rt.Sent())["catalog.test"], 50, "calls go there again")
				assert.Equal(t, before+50, o.events.of(near, hedge.PlaceCalled))
			})
		})
	}
}

// TestNothingIsToldOfPlacesWithoutAChoice: calls that go where they are made for are no place's.
func TestNothingIsToldOfPlacesWithoutAChoice(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		o := atPlaces(t, rt, hedge.WithShadow())
		o.call(50)
		assert.Nil(t, o.Snapshot().Keys[0].Places)
		assert.Empty(t, o.events.n)
	})
}

// atPlaceLeaver is an Observer that ends the goroutine in which a hedge is about to go to a place.
type atPlaceLeaver struct{ hedge.NopObserver }

func (atPlaceLeaver) Placed(_ hedge.KeyInfo, p hedge.PlaceEvent) {
	if p.Kind == hedge.PlaceHedged {
		runtime.Goexit()
	}
}

// TestAnObserverOfPlacesThatEndsItsGoroutineLeavesNoHedgeInFlight makes more of them than may be in flight.
func TestAnObserverOfPlacesThatEndsItsGoroutineLeavesNoHedgeInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, toFar(hedge.Place{}), hedge.WithObserver(atPlaceLeaver{}), hedge.WithBudget(hedge.NewBudget(100, 10_000)))
		rt.Answer = inPlaces(rt, after(rt, 40*ms), after(rt, 80*ms))
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
