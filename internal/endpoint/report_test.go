package endpoint

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A recorder records events of endpoints and state changes for the log.
type recorder struct {
	observe.NopObserver
	events  []observe.EndpointEvent
	changes []string
}

func (o *recorder) EndpointEvent(_ observe.KeyInfo, p observe.EndpointEvent) {
	o.events = append(o.events, p)
}

func (o *recorder) take() (all []string) {
	all, o.changes = o.changes, nil
	return all
}

// keyObservedBy returns a key that reports to o.
func keyObservedBy(o *recorder) *policy.Key {
	setup := policy.Setup{Notifier: observers.NewNotifier([]observe.Observer{o}, nil), Changed: func(_ observe.KeyInfo, c policy.Change) {
		o.changes = append(o.changes, fmt.Sprintf("%s ejected=%t dropped=%d", c.Endpoint, c.Bad, c.Dropped))
	}}
	return policy.New(policy.Config{Setup: setup, MaxKeys: 1}).Key(policy.Name{Host: "near"})
}

// TestDetectorLogsEndpointOnceInTenSeconds has an endpoint that is ejected and restored repeatedly. Observers see every
// event.
func TestDetectorLogsEndpointOnceInTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(recorder)
		d := LoadDetector(keyObservedBy(o), []string{"near", "far"})
		d.SelectPrimary(both) // so that one success brings the other endpoint back
		out := func() {
			for range ejectRun {
				d.recordFailure(1)
			}
		}
		out()
		d.recordSuccess(1)
		require.Equal(t, []string{"far ejected=true dropped=0", "far ejected=false dropped=0"}, o.take())
		for range 3 {
			time.Sleep(time.Second)
			out()
			d.recordSuccess(1)
		}
		out()
		assert.Empty(t, o.take())
		time.Sleep(10 * time.Second)
		d.recordFailure(1)
		assert.Equal(t, []string{"far ejected=true dropped=6"}, o.take())
		d.recordFailure(1)
		assert.Empty(t, o.take(), "which is known")
		turns := map[observe.EndpointEvent]int{}
		for _, e := range o.events {
			turns[e]++
		}
		assert.Equal(t, map[observe.EndpointEvent]int{
			{Endpoint: "near", Kind: observe.EndpointCalled}: 1,
			{Endpoint: "far", Kind: observe.EndpointEjected}: 5, {Endpoint: "far", Kind: observe.EndpointRestored}: 4,
			{Endpoint: "far", Kind: observe.EndpointFailed}: 5*ejectRun + 2,
		}, turns)
	})
}

// TestDetectorOfEvictedKeyEjectsNoEndpoint records results of calls that were in flight when the key was evicted.
func TestDetectorOfEvictedKeyEjectsNoEndpoint(t *testing.T) {
	o := new(recorder)
	e := policy.New(policy.Config{Setup: policy.Setup{Notifier: observers.NewNotifier([]observe.Observer{o}, nil)}, MaxKeys: 1})
	k := e.Key(policy.Name{Host: "near"})
	require.NotNil(t, e.Key(policy.Name{Host: "other"}))
	require.True(t, k.IsEvicted())
	d := LoadDetector(k, []string{"near", "far"})
	for range ejectRun {
		d.recordFailure(0)
	}
	assert.NotContains(t, o.events, observe.EndpointEvent{Endpoint: "near", Kind: observe.EndpointEjected})
	assert.Len(t, o.events, ejectRun)
}

// A resetter calls the engine when an endpoint is restored.
type resetter struct {
	observe.NopObserver
	reset    func()
	restored int
}

func (o *resetter) EndpointEvent(_ observe.KeyInfo, p observe.EndpointEvent) {
	if p.Kind == observe.EndpointRestored {
		o.restored++
		o.reset()
	}
}

func TestObserverOfEndpointsMayCallEngine(t *testing.T) {
	for name, forget := range map[string]func(*policy.Engine){
		"reset":     func(e *policy.Engine) { e.Reset("", "") },
		"forgotten": func(e *policy.Engine) { e.Key(policy.Name{Host: "other"}) },
		"no room":   func(e *policy.Engine) { e.SetConfig(policy.Config{MaxKeys: 1}, time.Now()) },
	} {
		o := new(resetter)
		setup := policy.Setup{Notifier: observers.NewNotifier([]observe.Observer{o}, nil)}
		e := policy.New(policy.Config{Setup: setup, MaxKeys: 2})
		o.reset = func() { e.Reset("", "") }
		d := LoadDetector(e.Key(policy.Name{Host: "near"}), []string{"near", "far"})
		for range ejectRun {
			d.recordFailure(1)
		}
		require.True(t, d.Snapshot(1).Ejected)
		require.NotNil(t, e.Key(policy.Name{Host: "new"}))
		done := make(chan struct{})
		go func() {
			defer close(done)
			forget(e)
		}()
		select {
		case <-done:
			assert.Equal(t, 1, o.restored, name)
		case <-time.After(10 * time.Second):
			require.Fail(t, "the engine waits for itself", name)
		}
	}
}

func BenchmarkRecordSuccess(b *testing.B) {
	e := policy.New(policy.Config{Setup: policy.Setup{Notifier: observers.NewNotifier([]observe.Observer{observe.NopObserver{}}, nil)}, MaxKeys: 1})
	observed := LoadDetector(e.Key(policy.Name{Host: "near"}), []string{"near", "far"})
	for name, d := range map[string]*Detector{"no observer": new(Detector), "one observer": observed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.SelectPrimary(both)
				d.recordSuccess(0)
			}
		})
	}
}
