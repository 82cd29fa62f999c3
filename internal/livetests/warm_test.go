package livetests_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestWarmOpensConnectionsBeforeTraffic(t *testing.T) {
	for protocol, want := range map[string]int64{"HTTP/1.1": 8, "HTTP/1.1+TLS": 8, "HTTP/2": 1} {
		s := serve(t, protocol, func(http.ResponseWriter, *http.Request) {})
		tr := hedge.New(base(t, s))
		require.NoError(t, tr.Warm(t.Context(), 8, s.URL))
		assert.Equal(t, want, s.Accepted.Load(), protocol)
		assert.Empty(t, tr.Snapshot().Keys, "nothing is learned")

		reused := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		_, err := fetch(ctx, tr, s.URL)
		require.NoError(t, err)
		assert.True(t, reused, protocol)
		tr.CloseIdleConnections()
	}
}

func TestWarmObeysTheConnectionLimit(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(http.ResponseWriter, *http.Request) {})
	limited := base(t, s)
	limited.MaxConnsPerHost = 2
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, hedge.New(limited).Warm(ctx, 8, s.URL))
	assert.EqualValues(t, 2, s.Accepted.Load())
}

func TestWarmSaysWhatItCouldNotReach(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(http.ResponseWriter, *http.Request) {})
	tr := hedge.New(base(t, s))
	assert.EqualError(t, tr.Warm(t.Context(), 0, s.URL), "hedge: Warm: n 0 is not at least 1")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := "http://" + l.Addr().String()
	l.Close()
	err = tr.Warm(t.Context(), 3, s.URL, down, "http://[::1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), down)
	assert.Contains(t, err.Error(), "hedge: Warm URL 3 of the list: cannot be parsed")
	var op *net.OpError
	assert.True(t, errors.As(err, &op))
	assert.EqualValues(t, 3, s.Accepted.Load(), "the others are warm all the same")
}

func TestWarmsErrorKeepsSecrets(t *testing.T) {
	tr := hedge.New(&http.Transport{})
	for _, url := range []string{"http://user:hunter2@127.0.0.1:1/hunter2?sig=hunter2", "http://user:hunter2@127.0.0.1:x/"} {
		err := tr.Warm(t.Context(), 1, url)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

// A connection that Warm waits with counts towards the limit.
func TestWarmDoesNotStarveABusyHost(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			w.(http.Flusher).Flush()
			<-release
		}
	})
	limited := base(t, s)
	limited.MaxConnsPerHost = 4
	tr := hedge.New(limited)
	resp, err := tr.RoundTrip(request(t, t.Context(), "GET", s.URL+"/stream", nil))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, tr.Warm(ctx, 4, s.URL), "it would wait for the fourth connection until ctx ends")
	close(release)
	require.NoError(t, resp.Body.Close())
	assert.EqualValues(t, 4, s.Accepted.Load())
}

func TestWarmEndsWithItsContext(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, hedge.New(base(t, s)).Warm(ctx, 2, s.URL), context.DeadlineExceeded)
}

// A wrapper hides the limit, and so does a DialContext that waits.
func TestWarmStarvesNobodyWhereItDoesNotSeeTheLimit(t *testing.T) {
	for name, limited := range map[string]func(*http.Transport) http.RoundTripper{
		"wrapped": func(b *http.Transport) http.RoundTripper {
			b.MaxConnsPerHost = 2
			return roundTripper(b.RoundTrip)
		},
		"two may be dialled": func(b *http.Transport) http.RoundTripper {
			places := make(chan struct{}, 2)
			b.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				select {
				case places <- struct{}{}:
					return new(net.Dialer).DialContext(ctx, network, addr)
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "HTTP/1.1", func(http.ResponseWriter, *http.Request) {})
			b := base(t, s)
			tr := hedge.New(limited(b))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				done <- tr.Warm(ctx, 4, s.URL)
			}()
			time.Sleep(50 * ms) // Warm has all connections that there are
			_, err := fetch(ctx, tr, s.URL)
			assert.NoError(t, err)
			assert.NoError(t, <-done)
			b.CloseIdleConnections()
		})
	}
}

func TestPanicBelowWarmIsTheCallers(t *testing.T) {
	for _, last := range []int64{1, 3} { // the request that panics
		var calls atomic.Int64
		below := roundTripper(func(*http.Request) (*http.Response, error) {
			if calls.Add(1) == last {
				panic(http.ErrAbortHandler)
			}
			return &http.Response{StatusCode: 200, ProtoMajor: 1, Body: http.NoBody}, nil
		})
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() { _ = hedge.New(below).Warm(t.Context(), 4, "http://a.test") })
	}
}
