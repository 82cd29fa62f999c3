package livetests_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// A failure holds the only connection until its body is read; its hedge waits for that connection,
// and so does another call. The transport is wrapped, so hedges have no connections of their own.
func TestR2AFailureAndItsHedgeDoNotWaitForEachOtherOverNetHTTP(t *testing.T) {
	for _, size := range []int{9, 60_000, 1 << 20} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/busy" {
					pause(r, 200*time.Millisecond)
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, strings.Repeat("x", size))
				}
			})
			b := base(t, s)
			b.MaxConnsPerHost = 1
			tr := hedge.New(roundTripper(b.RoundTrip))
			teach(t, tr, s.URL)
			start := time.Now()
			resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 50*time.Millisecond), "GET", s.URL+"/busy", nil))
			require.NoError(t, err)
			assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			if size < 64<<10 {
				_, err = fetch(t.Context(), tr, s.URL) // the body is not read yet
				require.NoError(t, err)
			}
			assert.Len(t, text(t, resp), size)
			assert.Less(t, time.Since(start), 3*time.Second)
		})
	}
}

// The hedge of a failed primary hangs and has the only connection: another call waits for that as
// long as the failure is held, and no longer.
func TestR2AHedgeThatHangsKeepsNoConnectionFromOthers(t *testing.T) {
	var slow atomic.Int32
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" && slow.Add(1) > 1 {
			pause(r, time.Minute)
		}
	})
	b := base(t, s)
	b.MaxConnsPerHost = 1
	failing := roundTripper(func(req *http.Request) (*http.Response, error) {
		if a, _ := hedge.AttemptFromContext(req.Context()); a.Number == 0 && req.URL.Path == "/slow" {
			pause(req, 100*time.Millisecond)
			return nil, errDown
		}
		return b.RoundTrip(req)
	})
	slow.Store(1)
	tr := hedge.New(failing, hedge.WithMaxHedges(1), hedge.WithLinger(0))
	teach(t, tr, s.URL)
	start := time.Now()
	done := make(chan error, 1)
	go func() {
		_, err := fetch(hedge.WithDelay(t.Context(), 50*time.Millisecond), tr, s.URL+"/slow")
		done <- err
	}()
	time.Sleep(150 * time.Millisecond)
	_, err := fetch(t.Context(), tr, s.URL)
	require.NoError(t, err)
	require.ErrorIs(t, <-done, errDown)
	assert.Less(t, time.Since(start), 5*time.Second)
}

// A hedge for which a connection is made when the primary fails may be the rescue. It has as long
// as the primary took, which is ten times what it needs.
func TestR2AHedgeThatDialsIsWaitedFor(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {})
	b := base(t, s)
	dialed := make(chan struct{})
	b.DialContext = (&net.Dialer{ControlContext: func(context.Context, string, string, syscall.RawConn) error {
		close(dialed)
		time.Sleep(100 * time.Millisecond)
		return nil
	}}).DialContext
	tr := hedge.New(roundTripper(func(req *http.Request) (*http.Response, error) {
		if a, _ := hedge.AttemptFromContext(req.Context()); a.Number == 0 {
			<-dialed
			return nil, errDown
		}
		return b.RoundTrip(req)
	}), hedge.WithMaxHedges(1), hedge.WithInitialDelay(time.Second))
	_, err := fetch(t.Context(), tr, s.URL)
	require.NoError(t, err, "it has as long as the primary took")
}

func TestEarlyHintsDoNotPutOffTheCancellationOfALoser(t *testing.T) {
	cancelled := make(chan time.Duration, 1)
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" && r.Header.Get(hedge.AttemptHeader) == "" {
			w.WriteHeader(http.StatusEarlyHints)
			start := time.Now()
			pause(r, 10*time.Second)
			cancelled <- time.Since(start)
		}
	})
	tr := hedge.New(base(t, s), hedge.WithLinger(0), hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1), hedge.WithAttemptHeader(hedge.AttemptHeader))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	tr.CloseIdleConnections() // the connection is new, or the cancellation is put off because others have just used it
	_, err := fetch(hedge.WithDelay(t.Context(), 50*time.Millisecond), tr, s.URL+"/slow")
	require.NoError(t, err)
	assert.Less(t, <-cancelled, 900*time.Millisecond)
}

func TestEndlessEarlyHintsEndARequest(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		for r.URL.Path == "/endless" && r.Context().Err() == nil {
			w.Header().Set("Link", strings.Repeat("x", 100_000))
			w.WriteHeader(http.StatusEarlyHints)
		}
	})
	b := base(t, s)
	tr := hedge.New(b, hedge.WithLinger(0))
	for _, rt := range []http.RoundTripper{b, tr} {
		teach(t, rt, s.URL)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := fetch(ctx, rt, s.URL+"/endless")
		require.Error(t, err)
		require.NoError(t, ctx.Err(), "as net/http does by itself: %v", err)
		cancel()
	}
}
