package http_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestClientStateHasDelayOfNextCall(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		var r doubles.ClientStates
		rt.Answer = after(rt, usual)
		tr := hedge.New(rt, hedge.WithObserver(&r), hedge.WithName("shop"), hedge.WithRoute("/fixed", hedge.Policy{Delay: 70 * ms}))
		require.Len(t, r.All, 1)
		keys, exists := r.All[0]()
		assert.True(t, exists)
		assert.Empty(t, keys)
		for range 10 {
			for _, path := range []string{"", "fixed"} {
				resp, err := get(t, tr, "http://catalog.test/"+path)
				require.NoError(t, err)
				text(t, resp)
			}
		}
		delays := func() map[string]int64 {
			all := make(map[string]int64)
			keys, _ := r.All[0]()
			for _, k := range keys {
				assert.Equal(t, "shop", k.Client)
				assert.Equal(t, "http", k.Protocol)
				assert.InDelta(t, 0.1, k.Share, 1e-9)
				assert.Positive(t, k.Tokens)
				all[k.Route] = k.Delay.Milliseconds()
			}
			return all
		}
		assert.Equal(t, map[string]int64{"": 10, "/fixed": 70}, delays())
		for _, k := range tr.Snapshot().Keys {
			if k.Route == "/fixed" {
				assert.Equal(t, 70*ms, k.Delays[0])
			}
		}
		tr.SetEnabled(false)
		assert.Equal(t, map[string]int64{"": 0, "/fixed": 0}, delays())
	})
}

// panickingReader panics for each client.
type panickingReader struct{ hedge.NopObserver }

func (panickingReader) ClientCreated(hedge.ClientState) { panic("created") }

func TestPanicOfObserverDoesNotFailConstructor(t *testing.T) {
	var r doubles.ClientStates
	tr := hedge.New(nil, hedge.WithObserver(panickingReader{}), hedge.WithObserver(&r))
	assert.EqualValues(t, 1, tr.Snapshot().Stats.ObserverPanics)
	require.Len(t, r.All, 1)
	_, exists := r.All[0]()
	assert.True(t, exists)
	runtime.KeepAlive(tr)
}
