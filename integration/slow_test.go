// Package integration tests the recipes of docs/recipes.md: hedge below clients of
// other libraries, against a server that never answers the first copy of a request.
package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

const (
	delay = 20 * time.Millisecond // the calls of a test are hedged after this
	limit = time.Minute           // a call that waits for its primary fails after this
)

// TestMain fails if an attempt outlives the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	buf := make([]byte, 16<<20)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stacks := string(buf[:runtime.Stack(buf, true)])
		if !strings.Contains(stacks, "gohedge/hedge/internal/race") {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, stacks)
			code = 1
			break
		}
	}
	os.Exit(code)
}

// number is the header that tells a server which attempt a request is. A request that is sent
// once does not have it.
const number = "Attempt-Number"

// numbered is a transport below the hedging. It tells the server which attempt a request is.
type numbered struct{ http.RoundTripper }

func (n numbered) RoundTrip(req *http.Request) (*http.Response, error) {
	if a, ok := hedge.AttemptFromContext(req.Context()); ok {
		req = req.Clone(req.Context())
		req.Header.Set(number, fmt.Sprint(a.Number))
	}
	return n.RoundTripper.RoundTrip(req)
}

func (n numbered) WrappedRoundTripper() http.RoundTripper { return n.RoundTripper }

func (n numbered) CloseIdleConnections() {
	n.RoundTripper.(interface{ CloseIdleConnections() }).CloseIdleConnections()
}

// A site is a server that can be made slow. Then it never answers a primary, answers its hedges
// at once, and answers a request that is sent once after five delays.
type site struct {
	*httptest.Server
	late  bool // the header of a primary's event stream comes at once, and nothing after it
	slow  atomic.Bool
	over  chan struct{}
	alone atomic.Int64 // how many requests were sent once
	stuck atomic.Int64 // how many primaries got no answer
	gone  atomic.Int64 // how many of those were cancelled by the client

	primaries atomic.Pointer[sync.Map] // since the site is slow: method and URI to *primary
}

// A primary is waited for by its hedges, because on a busy machine it may arrive after them.
type primary struct {
	met  chan struct{}
	once sync.Once
}

func (p *primary) stuck() { p.once.Do(func() { close(p.met) }) }

// slower makes the site slow until the result is called.
func (s *site) slower() (restore func()) {
	s.primaries.Store(new(sync.Map))
	s.slow.Store(true)
	return func() { s.slow.Store(false) }
}

// serve starts a site, by start if that is given, and else with HTTP/1.1.
func serve(t *testing.T, h http.Handler, start ...func(*httptest.Server)) *site {
	s := &site{over: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.delays(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	for _, f := range append(start, (*httptest.Server).Start)[:1] {
		f(s.Server)
	}
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(s.over) })
	return s
}

// delays makes r wait as its attempt has to, and reports whether the client still waits for the answer.
func (s *site) delays(w http.ResponseWriter, r *http.Request) bool {
	if !s.slow.Load() {
		return true
	}
	if r.ContentLength > 0 { // a server notices that a client is gone only after the body is read
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return false
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	found, _ := s.primaries.Load().LoadOrStore(r.Method+r.RequestURI, &primary{met: make(chan struct{})})
	primary := found.(*primary)
	switch r.Header.Get(number) {
	case "":
		s.alone.Add(1)
		time.Sleep(5 * delay)
	case "0":
		if s.late {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
		}
		s.stuck.Add(1)
		primary.stuck()
		select {
		case <-s.over:
		case <-r.Context().Done():
			s.gone.Add(1)
		}
		return false
	default:
		select {
		case <-primary.met:
		case <-r.Context().Done():
			return false
		}
	}
	return true
}

// base returns a numbered clone of http.DefaultTransport.
func base(t *testing.T) http.RoundTripper {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(tr.CloseIdleConnections)
	return numbered{tr}
}

// whole returns the body of a good response.
func whole(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// same makes a call three times: without hedging, with hedging, and with hedging on a slow site. The
// answer must be the same each time; it is returned. On the slow site every primary must lose to a hedge.
func same[T any](t *testing.T, s *site, tr *hedge.Transport, plain, hedged func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	want, err := plain(ctx)
	require.NoError(t, err)
	got, err := hedged(ctx)
	require.NoError(t, err)
	require.Equal(t, want, got)

	before, stuck := tr.Snapshot().Stats, s.stuck.Load()
	defer s.slower()()
	got, err = hedged(hedge.WithDelay(ctx, delay))
	require.NoError(t, err)
	require.Equal(t, want, got)
	after := tr.Snapshot().Stats
	stuck = s.stuck.Load() - stuck
	require.Positive(t, stuck, "nothing was hedged")
	require.Equal(t, stuck, after.HedgedRequests-before.HedgedRequests)
	require.Equal(t, stuck, after.HedgeWins-before.HedgeWins)
	return want
}

// once makes a call on a slow site. The site must see one request that is sent once.
func once(t *testing.T, s *site, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	before := s.alone.Load()
	defer s.slower()()
	require.NoError(t, call(hedge.WithDelay(ctx, delay)))
	require.EqualValues(t, 1, s.alone.Load()-before)
}

// proxied starts a proxy of a server, and returns its address. After a call of slower, what clients send
// arrives so much later.
func proxied(t *testing.T, server string) (address string, slower func(time.Duration)) {
	nop := zerolog.Nop()
	proxy := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), nop), "server", "127.0.0.1:0", server)
	require.NoError(t, proxy.Start())
	t.Cleanup(proxy.Stop)
	return proxy.Listen, func(d time.Duration) {
		_, err := proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
			`{"type":"latency","stream":"upstream","attributes":{"latency":%d}}`, d.Milliseconds())))
		require.NoError(t, err)
	}
}
