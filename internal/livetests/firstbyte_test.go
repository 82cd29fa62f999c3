package livetests_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestFirstByteOverTheNetwork(t *testing.T) {
	for protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			var slow atomic.Bool
			gone := make(chan struct{}, 1)
			s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Trailer", "Usage")
				w.WriteHeader(200)
				w.(http.Flusher).Flush()
				if slow.CompareAndSwap(true, false) {
					<-r.Context().Done()
					gone <- struct{}{}
					return
				}
				for range 3 {
					_, _ = io.WriteString(w, "data: token\n\n")
					w.(http.Flusher).Flush()
				}
				w.Header().Set("Usage", "3")
			})
			tr := hedge.New(base(t, s), hedge.WithFirstByte(), hedge.WithMaxHedges(1))
			defer tr.CloseIdleConnections()
			teach(t, tr, s.URL) // no hedge of these is left to be the slow one
			slow.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // without a hedge nothing else ends
			defer cancel()
			req := request(t, hedge.WithDelay(ctx, 20*time.Millisecond), "GET", s.URL, nil)
			req.Header.Set("Accept", "text/event-stream")
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, strings.Repeat("data: token\n\n", 3), text(t, resp))
			assert.Equal(t, "3", resp.Trailer.Get("Usage"))
			select {
			case <-gone: // the loser was cancelled at once: tokens cost money
			case <-time.After(5 * time.Second):
				t.Error("the loser goes on")
			}
			head := request(t, t.Context(), "HEAD", s.URL, nil)
			resp, err = tr.RoundTrip(head)
			require.NoError(t, err)
			assert.Empty(t, text(t, resp))
		})
	}
}
