package livetests_test

// Tests over real sockets on loopback. All else runs in fake time.

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestLargeBodyOfAHedgeIsReadWhole(t *testing.T) {
	payload := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	for protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Slow") != "" {
					pause(r, 10*time.Second)
				}
				_, _ = io.WriteString(w, payload)
			})
			below := base(t, s)
			var slow atomic.Bool
			slowPrimary := roundTripper(func(req *http.Request) (*http.Response, error) {
				if a, _ := hedge.AttemptFromContext(req.Context()); a.Number == 0 && slow.Load() {
					req = req.Clone(req.Context())
					req.Header.Set("Slow", "yes")
				}
				return below.RoundTrip(req)
			})
			var stats *hedge.Stats
			tr := hedge.New(slowPrimary, hedge.WithStats(&stats), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100))
			defer tr.CloseIdleConnections()
			teach(t, tr, s.URL)
			won := stats.HedgeWins.Load() // on a busy machine, some are late by themselves
			slow.Store(true)
			for range 5 {
				ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*time.Millisecond), 10*time.Second)
				got, err := fetch(ctx, tr, s.URL)
				cancel()
				require.NoError(t, err)
				require.True(t, got == payload, "%d of %d bytes", len(got), len(payload))
			}
			assert.EqualValues(t, 5, stats.HedgeWins.Load()-won)
		})
	}
}

func TestLosersConnectionsAreUsedAgain(t *testing.T) {
	const calls = 30
	opened := func(linger time.Duration) int64 {
		s := serve(t, "HTTP/1.1+TLS", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				pause(r, 60*time.Millisecond)
			}
			_, _ = io.WriteString(w, "ok")
		})
		rt := roundTripper(func(req *http.Request) (*http.Response, error) {
			if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Number == 0 && req.URL.Path == "/" {
				req = req.Clone(req.Context())
				req.URL.Path = "/slow"
			}
			return s.Client().Transport.RoundTrip(req)
		})
		var stats *hedge.Stats
		tr := hedge.New(rt, hedge.WithLinger(linger), hedge.WithBudgetPercent(100), hedge.WithMaxHedges(1), hedge.WithStats(&stats))
		_, err := fetch(t.Context(), tr, s.URL+"/") // teaches that the host speaks HTTP/1.1
		require.NoError(t, err)
		for range calls {
			_, err := fetch(t.Context(), tr, s.URL+"/fast") // if all were slow, it would be an outage
			require.NoError(t, err)
			_, err = fetch(hedge.WithDelay(t.Context(), 5*time.Millisecond), tr, s.URL+"/")
			require.NoError(t, err)
			time.Sleep(60 * time.Millisecond)
		}
		assert.Greater(t, stats.HedgedRequests.Load(), int64(calls*3/4)) // but for those whose timer was late
		return s.Accepted.Load()
	}
	assert.LessOrEqual(t, opened(time.Second), int64(calls/5))
	assert.Greater(t, opened(0), int64(calls/2), "what lingering saves") // nearly one for each
}

// A hedge over HTTP/2 would ride the straggler's own connection.
func TestHedgeOverHTTP2SurvivesAFrozenConnection(t *testing.T) {
	s := serve(t, "HTTP/2", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	g := newGate(t, s.Listener.Addr().String())
	target := "https://" + g.Addr().String()

	run := func(t *testing.T, tr *hedge.Transport) error {
		g.Accepted.Store(0)
		g.Frozen.Store(false)
		defer tr.CloseIdleConnections()
		for range 10 { // after which hedging begins: none of these is hedged, however slow
			got, err := fetch(t.Context(), tr, target)
			require.NoError(t, err)
			require.Equal(t, "HTTP/2.0", got)
		}
		require.EqualValues(t, 1, g.Accepted.Load())
		g.Frozen.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := fetch(ctx, tr, target)
		return err
	}
	t.Run("second pool", func(t *testing.T) {
		assert.NoError(t, run(t, hedge.New(base(t, s))))
	})
	t.Run("same connection", func(t *testing.T) { // what it protects from
		one := base(t, s)
		err := run(t, hedge.New(one, hedge.WithHedgeTransport(one)))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A zero Transport learns HTTP/2 by itself; its clone must not forget it.
func TestSecondPoolSpeaksHTTP2AsTheFirstDoes(t *testing.T) {
	var slow atomic.Bool
	s := serve(t, "HTTP/2", func(w http.ResponseWriter, r *http.Request) {
		if slow.CompareAndSwap(true, false) {
			pause(r, 5*time.Second)
		}
		_, _ = io.WriteString(w, r.Proto)
	})
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	plain := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	defer plain.CloseIdleConnections()
	tr := hedge.New(plain, hedge.WithMaxHedges(1))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	slow.Store(true)
	got, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, s.URL)
	require.NoError(t, err, "the user's CA is kept")
	assert.Equal(t, "HTTP/2.0", got)
	assert.EqualValues(t, 2, s.Accepted.Load())
}

func TestTimeToConnectAHedgeIsNotLearned(t *testing.T) {
	var slow atomic.Bool
	s := serve(t, "HTTP/2", func(w http.ResponseWriter, r *http.Request) {
		if slow.CompareAndSwap(true, false) {
			pause(r, 5*time.Second)
		}
	})
	slowDial := base(t, s)
	var dials atomic.Int64
	slowDial.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			time.Sleep(time.Second)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	tr := hedge.New(slowDial, hedge.WithMaxHedges(1))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	slow.Store(true)
	start := time.Now()
	_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, s.URL)
	require.NoError(t, err)
	require.Greater(t, time.Since(start), time.Second, "the hedge had to connect")
	assert.Less(t, hedge.LatencyEstimate(tr, s.Listener.Addr().String(), 1), 700*time.Millisecond)
	assert.EqualValues(t, 11, tr.Snapshot().Keys[0].Samples)
}

func TestConnectionLimitNeitherBlocksNorIsBlockedByAHedge(t *testing.T) {
	var slow atomic.Bool
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		if slow.CompareAndSwap(true, false) {
			pause(r, 2*time.Second)
		}
		_, _ = io.WriteString(w, "ok")
	})
	limited := base(t, s)
	limited.MaxConnsPerHost = 1
	tr := hedge.New(limited, hedge.WithMaxHedges(1))
	defer tr.CloseIdleConnections()
	teach(t, tr, s.URL)
	slow.Store(true)
	start := time.Now()
	_, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, s.URL)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), time.Second)
}

// The setting that a wrapped http.DefaultTransport loses most often is the pool.
func TestUpgradePassesAReverseProxy(t *testing.T) {
	s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, strings.ToUpper(line))
		rw.Flush()
	})
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	tr := hedge.New(base(t, s))
	teach(t, tr, s.URL)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: tr,
	})
	defer proxy.Close()

	conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	fmt.Fprint(conn, "hello\n")
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "HELLO\n", line)
}

func TestTrailersArriveAfterTheBody(t *testing.T) {
	for protocol := range protocols {
		var slow atomic.Bool
		s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
			if slow.CompareAndSwap(true, false) {
				pause(r, 5*time.Second)
			}
			w.Header().Set("Trailer", "Checksum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("Checksum", "42")
		})
		tr := hedge.New(base(t, s))
		teach(t, tr, s.URL)
		slow.Store(true)
		req := request(t, hedge.WithDelay(t.Context(), 20*time.Millisecond), "GET", s.URL, nil)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "42", resp.Trailer.Get("Checksum"), protocol)
		tr.CloseIdleConnections()
	}
}

// net/http (Go 1.26) can fail an unrelated request when an HTTP/1.1 request is
// cancelled just as its empty response arrives. Callers must not see it. HEDGE_TEST_LONG sends four times as many requests.
func TestCancelledLosersDoNotFailOtherRequests(t *testing.T) {
	requests := 50_000
	if os.Getenv("HEDGE_TEST_LONG") != "" {
		requests = 200_000
	} else if doubles.RaceEnabled || testing.Short() {
		requests = 20_000
	}
	for _, linger := range []time.Duration{time.Second, 0} {
		s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
			if rand.IntN(10) == 0 {
				pause(r, time.Duration(500+rand.IntN(1500))*time.Microsecond)
			}
		})
		var stats *hedge.Stats
		tr := hedge.New(base(t, s), hedge.WithStats(&stats), hedge.WithLinger(linger), hedge.WithMaxHedges(1),
			hedge.WithBudgetPercent(30), hedge.WithMinDelay(500*time.Microsecond), hedge.WithPercentile(0.8))
		var failed, next atomic.Int64
		var first atomic.Value
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for next.Add(1) <= int64(requests) {
					if _, err := fetch(t.Context(), tr, s.URL); err != nil {
						failed.Add(1)
						first.CompareAndSwap(nil, err)
					}
				}
			})
		}
		wg.Wait()
		t.Logf("linger %v: %d requests, %d hedged, %d failed, %d connections",
			linger, requests, stats.HedgedRequests.Load(), failed.Load(), s.Accepted.Load())
		assert.Zero(t, failed.Load(), "first: %v", first.Load())
		assert.Greater(t, stats.HedgedRequests.Load(), int64(requests/200)) // fewer than usual when all is slow
	}
}

func TestBaseThatIsDownStaysDownInItsOwnWords(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := "http://" + l.Addr().String()
	l.Close()
	_, want := fetch(t.Context(), http.DefaultTransport, down)
	_, got := fetch(hedge.WithDelay(t.Context(), time.Millisecond), hedge.New(nil), down)
	require.Error(t, want)
	assert.Equal(t, want.Error(), got.Error())
	var op *net.OpError
	assert.True(t, errors.As(got, &op))
}
