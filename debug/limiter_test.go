package debug_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
)

// newFullLimiter returns a Limiter of one place at which one request is worked on, five wait, one
// has left and two were turned away, until the returned function is called.
func newFullLimiter() (*hedge.Limiter, func()) {
	l, goOn := hedge.NewLimiter(1, hedge.WithName("<shop>\x1b")), make(chan struct{})
	h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-goOn }))
	visit := func(ctx context.Context, attempt string) {
		r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		r.Header.Set(hedge.AttemptHeader, attempt)
		go h.ServeHTTP(httptest.NewRecorder(), r)
		synctest.Wait()
	}
	for range 6 {
		visit(context.Background(), "0")
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	visit(gone, "0")
	visit(context.Background(), "1")
	visit(context.Background(), "1")
	return l, func() { close(goOn) }
}

func TestPageShowsLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, goOn := newFullLimiter()
		defer goOn()
		h := debug.Handler(debug.Limiter(l))
		html := getPage(h, "/").Body.String()
		assert.Contains(t, html, "&lt;shop&gt;")
		assert.NotContains(t, html, "\x1b")
		assert.NotContains(t, html, "Nothing to show")
		totals, _, _ := parsePage(t, html)
		for name, want := range map[string]float64{"working": 1, "waiting": 5, "worked": 1, "left": 1, "refused": 2} {
			assert.EqualValues(t, want, totals.numberOf(t, "data-total "+name), name)
		}
		var page debug.Page
		body := getPage(h, "/?format=json").Body.Bytes()
		require.NoError(t, json.Unmarshal(body, &page))
		assert.Equal(t, []hedge.LimiterSnapshot{l.Snapshot()}, page.Limiters)
		assert.Empty(t, page.Clients)

		var fields struct{ Limiters []map[string]any }
		require.NoError(t, json.Unmarshal(body, &fields))
		documented := documentedNumbers(t, "number of a Limiter", fields.Limiters[0], html)
		for name, value := range fields.Limiters[0] {
			if _, isNumber := value.(float64); isNumber {
				assert.True(t, documented[name], "%s is not in the table", name)
			}
		}
	})
}

func TestLimiterPanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "debug: Limiter: Limiter is nil", func() { debug.Limiter(nil) })
}
