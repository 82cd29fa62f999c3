package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// sidecar returns a proxy that retries a request once after a 503. It answers a primary with 504 if the server takes longer than the
// timeout, and calls timedOut first. Hedges have no timeout, so that a busy machine cannot fail a test.
func sidecar(t *testing.T, server string, timeout time.Duration, timedOut func()) *httptest.Server {
	backend, err := url.Parse(server)
	require.NoError(t, err)
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		Transport: retrying{base, timeout},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				timedOut()
				w.WriteHeader(http.StatusGatewayTimeout)
			}
		},
	})
	t.Cleanup(proxy.Close)
	return proxy
}

// retrying is the transport of a sidecar.
type retrying struct {
	base    http.RoundTripper
	timeout time.Duration
}

func (r retrying) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if req.Header.Get(hedge.AttemptHeader) == "" {
		limited, cancel := context.WithTimeout(ctx, r.timeout)
		context.AfterFunc(ctx, cancel)
		ctx = limited
	}
	resp, err := r.base.RoundTrip(req.WithContext(ctx))
	if err == nil && resp.StatusCode == http.StatusServiceUnavailable {
		resp.Body.Close()
		resp, err = r.base.RoundTrip(req.WithContext(ctx))
	}
	return resp, err
}

// meshClient returns a client of a sidecar. It is hedged, and marks its hedges.
func meshClient(t *testing.T) *http.Client {
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)

	transport := hedge.New(base, hedge.WithAttemptHeader(hedge.AttemptHeader))
	client := &http.Client{Transport: transport}

	return client
}

// meshGet makes a call that is hedged, and returns the body of its answer.
func meshGet(t *testing.T, client *http.Client, url string) string {
	ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), delay), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	got, err := whole(client.Do(req))
	require.NoError(t, err)
	return got
}

// TestMeshRetriesHedgesWithTheirMark has a server that fails each request the first time. The primary is answered after its hedge.
func TestMeshRetriesHedgesWithTheirMark(t *testing.T) {
	var requests sync.Map // mark to *atomic.Int64
	hedged := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mark := r.Header.Get(hedge.AttemptHeader)
		n, _ := requests.LoadOrStore(mark, new(atomic.Int64))
		if n.(*atomic.Int64).Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if mark == "" {
			select {
			case <-hedged:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "hedge ", mark)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hedged) })
	proxy := sidecar(t, server.URL, limit, func() {})

	assert.Equal(t, "hedge 1", meshGet(t, meshClient(t), proxy.URL))
	n, _ := requests.Load("1")
	assert.EqualValues(t, 2, n.(*atomic.Int64).Load(), "requests for the hedge")
}

// TestMeshTimeoutOfPrimaryWaitsForHedge has a server that answers a hedge only after the sidecar has given up the primary.
func TestMeshTimeoutOfPrimaryWaitsForHedge(t *testing.T) {
	gaveUp := make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(hedge.AttemptHeader) == "" {
			<-r.Context().Done()
			return
		}
		select {
		case <-gaveUp:
			fmt.Fprint(w, "answer")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	proxy := sidecar(t, server.URL, 5*delay, func() { once.Do(func() { close(gaveUp) }) })

	assert.Equal(t, "answer", meshGet(t, meshClient(t), proxy.URL))
}

// TestMeshEndsRequestsOfLosers: a primary that has lost is cancelled, and the sidecar cancels its request to the server.
func TestMeshEndsRequestsOfLosers(t *testing.T) {
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(hedge.AttemptHeader) == "" {
			<-r.Context().Done()
			close(ended)
			return
		}
		_, _ = io.WriteString(w, "answer")
	}))
	t.Cleanup(server.Close)
	proxy := sidecar(t, server.URL, limit, func() {})

	assert.Equal(t, "answer", meshGet(t, meshClient(t), proxy.URL))
	select {
	case <-ended:
	case <-time.After(limit / 2):
		t.Fatal("the request of the loser goes on")
	}
}
