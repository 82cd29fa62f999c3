package endpoint

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/watch"
	"github.com/gohedge/hedge/observe"
)

// told keeps what observers and a log are told.
type told struct {
	observe.NopObserver
	events  []observe.EndpointEvent
	changes []string
}

func (o *told) EndpointEvent(_ observe.KeyInfo, p observe.EndpointEvent) {
	o.events = append(o.events, p)
}

func (o *told) take() (all []string) {
	all, o.changes = o.changes, nil
	return all
}

// keyToldBy returns a key of which o is told.
func keyToldBy(o *told) *policy.Key {
	setup := policy.Setup{Watcher: watch.New([]observe.Observer{o}, nil), Changed: func(_ observe.KeyInfo, c policy.Change) {
		o.changes = append(o.changes, fmt.Sprintf("%s out=%t dropped=%d", c.Endpoint, c.Bad, c.Dropped))
	}}
	return policy.New(policy.Config{Setup: setup, MaxKeys: 1}).Key(policy.Name{Host: "near"})
}

// TestALogIsToldOfAnEndpointOnceInTenSecondsAndWhatLasts has an endpoint that is ejected and restored all the time, of which observers hear each time.
func TestALogIsToldOfAnEndpointOnceInTenSecondsAndWhatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(told)
		h := HealthOf(keyToldBy(o), []string{"near", "far"})
		h.primary(both) // so that one success brings the other endpoint back
		out := func() {
			for range badRow {
				h.outcome(1, false)
			}
		}
		out()
		h.outcome(1, true)
		require.Equal(t, []string{"far out=true dropped=0", "far out=false dropped=0"}, o.take())
		for range 3 {
			time.Sleep(time.Second)
			out()
			h.outcome(1, true)
		}
		out()
		assert.Empty(t, o.take())
		time.Sleep(10 * time.Second)
		h.outcome(1, false)
		assert.Equal(t, []string{"far out=true dropped=6"}, o.take())
		h.outcome(1, false)
		assert.Empty(t, o.take(), "which is known")
		turns := map[observe.EndpointEvent]int{}
		for _, e := range o.events {
			turns[e]++
		}
		assert.Equal(t, map[observe.EndpointEvent]int{
			{Endpoint: "near", Kind: observe.EndpointCalled}: 1,
			{Endpoint: "far", Kind: observe.EndpointEjected}: 5, {Endpoint: "far", Kind: observe.EndpointRestored}: 4,
			{Endpoint: "far", Kind: observe.EndpointFailed}: 5*badRow + 2,
		}, turns)
	})
}

// TestAKeyThatIsForgottenBeforeItHasAHealthTakesNoEndpointForOut: calls that still run teach that Health.
func TestAKeyThatIsForgottenBeforeItHasAHealthTakesNoEndpointForOut(t *testing.T) {
	o := new(told)
	e := policy.New(policy.Config{Setup: policy.Setup{Watcher: watch.New([]observe.Observer{o}, nil)}, MaxKeys: 1})
	k := e.Key(policy.Name{Host: "near"})
	require.NotNil(t, e.Key(policy.Name{Host: "other"}))
	require.True(t, k.Forgotten())
	h := HealthOf(k, []string{"near", "far"})
	for range badRow {
		h.outcome(0, false)
	}
	assert.NotContains(t, o.events, observe.EndpointEvent{Endpoint: "near", Kind: observe.EndpointEjected})
	assert.Len(t, o.events, badRow)
}

// asking asks the engine when an endpoint is back.
type asking struct {
	observe.NopObserver
	ask  func()
	told int
}

func (o *asking) EndpointEvent(_ observe.KeyInfo, p observe.EndpointEvent) {
	if p.Kind == observe.EndpointRestored {
		o.told++
		o.ask()
	}
}

func TestAnObserverOfEndpointsMayCallTheEngine(t *testing.T) {
	for name, forget := range map[string]func(*policy.Engine){
		"reset":     func(e *policy.Engine) { e.Reset("", "") },
		"forgotten": func(e *policy.Engine) { e.Key(policy.Name{Host: "other"}) },
		"no room":   func(e *policy.Engine) { e.SetConfig(policy.Config{MaxKeys: 1}, time.Now()) },
	} {
		o := new(asking)
		setup := policy.Setup{Watcher: watch.New([]observe.Observer{o}, nil)}
		e := policy.New(policy.Config{Setup: setup, MaxKeys: 2})
		o.ask = func() { e.Reset("", "") }
		h := HealthOf(e.Key(policy.Name{Host: "near"}), []string{"near", "far"})
		for range badRow {
			h.outcome(1, false)
		}
		require.True(t, h.View(1).Ejected)
		require.NotNil(t, e.Key(policy.Name{Host: "new"}))
		done := make(chan struct{})
		go func() {
			defer close(done)
			forget(e)
		}()
		select {
		case <-done:
			assert.Equal(t, 1, o.told, name)
		case <-time.After(10 * time.Second):
			require.Fail(t, "the engine waits for itself", name)
		}
	}
}

func BenchmarkOutcome(b *testing.B) {
	e := policy.New(policy.Config{Setup: policy.Setup{Watcher: watch.New([]observe.Observer{observe.NopObserver{}}, nil)}, MaxKeys: 1})
	observed := HealthOf(e.Key(policy.Name{Host: "near"}), []string{"near", "far"})
	for name, h := range map[string]*Health{"told to nobody": new(Health), "told to one": observed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.primary(both)
				h.outcome(0, true)
			}
		})
	}
}
