// Package limits has limits that adapt themselves before a hedge.Limiter.
package limits

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
)

// adaptsItself returns a handler that works on 8 requests at a time behind failsafe-go's adaptive limiter, and that limiter.
func adaptsItself(mux http.Handler) (http.Handler, adaptivelimiter.Metrics) {
	adaptive := adaptivelimiter.NewBuilder[any]().WithLimits(8, 200, 20).Build() // lowest, highest, first
	queue := hedge.NewLimiter(8).Handler(mux)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		permit, ok := adaptive.TryAcquirePermit()
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer func() {
			if r.Context().Err() != nil {
				permit.Drop()
				return
			}
			permit.Record()
		}()
		queue.ServeHTTP(w, r)
	})
	return handler, adaptive
}

// TestFailsafeAdaptiveLimiterBeforeLimiter sends more requests than the limit of 20 while 8 are worked on. The limiter refuses the rest,
// and lets as many follow as callers leave the queue.
func TestFailsafeAdaptiveLimiterBeforeLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int64
		handler, adaptive := adaptsItself(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			begun.Add(1)
			time.Sleep(time.Second)
		}))
		send := func(ctx context.Context, n int) (answers []*httptest.ResponseRecorder) {
			for range n {
				w := httptest.NewRecorder()
				answers = append(answers, w)
				go handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
				synctest.Wait()
			}
			return answers
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		send(t.Context(), 17)
		send(ctx, 3)
		assert.EqualValues(t, 8, begun.Load())
		assert.Equal(t, 20, adaptive.Inflight())
		for _, w := range send(t.Context(), 5) {
			assert.Equal(t, http.StatusServiceUnavailable, w.Code)
			assert.Empty(t, w.Header().Get("Hedge-Refused"), "it is pushback, whichever attempt was refused")
		}
		leave()
		synctest.Wait()
		assert.Equal(t, 17, adaptive.Inflight())
		last := send(t.Context(), 3)
		time.Sleep(time.Minute)
		for _, w := range last {
			assert.Equal(t, http.StatusOK, w.Code)
		}
		assert.EqualValues(t, 20, begun.Load())
		assert.Zero(t, adaptive.Inflight())
	})
}
