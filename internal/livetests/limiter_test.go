package livetests_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestLoserBehindALimiterIsCancelledOverHTTP1(t *testing.T) {
	for _, limited := range []bool{true, false} {
		t.Run(map[bool]string{true: "behind a Limiter", false: "without"}[limited], func(t *testing.T) {
			gone, hang := make(chan struct{}), make(chan struct{})
			h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Slow") != "" {
					select {
					case <-r.Context().Done():
						close(gone)
					case <-hang:
					}
					return
				}
				_, _ = io.WriteString(w, "answer")
			}))
			if limited {
				h = hedge.NewLimiter(100).Handler(h)
			}
			s := serve(t, "HTTP/1.1", h.ServeHTTP)
			below := base(t, s)
			slowly := roundTripper(func(req *http.Request) (*http.Response, error) {
				if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Number == 0 && req.URL.Path == "/slow" {
					req = req.Clone(req.Context())
					req.Header.Set("Slow", "yes")
				}
				return below.RoundTrip(req)
			})
			tr := hedge.New(slowly, hedge.WithLinger(time.Hour), hedge.WithMaxHedges(1))
			teach(t, tr, s.URL)
			// Later than a connection can be closed that was in use just before.
			got, err := fetch(hedge.WithDelay(t.Context(), 150*ms), tr, s.URL+"/slow")
			require.NoError(t, err)
			assert.Equal(t, "answer", got)
			if limited {
				select {
				case <-gone:
				case <-time.After(10 * time.Second):
					t.Error("the loser was not cancelled")
				}
			} else {
				select {
				case <-gone:
					t.Error("the loser was cancelled")
				case <-time.After(300 * ms):
				}
			}
			close(hang)
		})
	}
}
