package livetests_test

import (
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// sendInformational writes n statuses of 1xx with a header of so many bytes, which the response has as well.
func sendInformational(w http.ResponseWriter, n, size int) {
	w.Header().Set("X-Header", strings.Repeat("a", size))
	for range n {
		w.WriteHeader(http.StatusEarlyHints)
	}
}

// TestHedgeWithInformationalHeadersAboveTheLimitDoesNotWin floods hedges, whichever way they go.
func TestHedgeWithInformationalHeadersAboveTheLimitDoesNotWin(t *testing.T) {
	flood := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/slow":
		case r.Header.Get(hedge.AttemptHeader) != "":
			sendInformational(w, 40, 100)
			_, _ = w.Write([]byte("hedge"))
		default:
			pause(r, 100*ms)
			_, _ = w.Write([]byte("primary"))
		}
	}
	far := serve(t, "HTTP/1.1", flood)
	resolver := resolverFunc(func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")} })
	for name, test := range map[string]struct {
		wrapped bool
		opts    func(b *http.Transport, near string) []hedge.HTTPOption
	}{
		"the same pool":  {},
		"a wrapped base": {wrapped: true},
		"another transport": {opts: func(b *http.Transport, _ string) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithHedgeTransport(b.Clone())}
		}},
		"a pool of its own": {opts: func(b *http.Transport, _ string) []hedge.HTTPOption { b.MaxConnsPerHost = 100; return nil }},
		"replicas": {opts: func(*http.Transport, string) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithReplicas(resolver)}
		}},
		"another endpoint": {opts: func(_ *http.Transport, near string) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithEndpoints(hedge.Endpoint{URL: near}, hedge.Endpoint{URL: far.URL})}
		}},
		"first byte": {opts: func(*http.Transport, string) []hedge.HTTPOption { return []hedge.HTTPOption{hedge.WithFirstByte()} }},
		"lingering": {opts: func(*http.Transport, string) []hedge.HTTPOption {
			return []hedge.HTTPOption{hedge.WithLinger(time.Second)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "HTTP/1.1", flood)
			b := base(t, s)
			b.MaxResponseHeaderBytes = 1000
			opts := []hedge.HTTPOption{hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithAttemptHeader(hedge.AttemptHeader)}
			if name != "first byte" { // beside WithFirstByte, WithLinger is an error
				opts = append(opts, hedge.WithLinger(0))
			}
			if test.opts != nil {
				opts = append(opts, test.opts(b, s.URL)...)
			}
			var rt http.RoundTripper = b
			if test.wrapped {
				rt = roundTripper(b.RoundTrip)
			}
			tr := hedge.New(rt, opts...)
			defer tr.CloseIdleConnections()
			teach(t, tr, s.URL)
			got, err := fetch(hedge.WithDelay(t.Context(), 5*ms), tr, s.URL+"/slow")
			require.NoError(t, err)
			assert.Equal(t, "primary", got)
			assert.EqualValues(t, 1, tr.Snapshot().Stats.HedgesSent)
		})
	}
}

// TestInformationalHeadersAreBoundedAsByNetHTTP compares with the base alone: the error, or the body.
func TestInformationalHeadersAreBoundedAsByNetHTTP(t *testing.T) {
	const mib = 1 << 20
	for name, test := range map[string]struct {
		limit          int64
		statuses, size int
		fails          bool
	}{
		"below the default":                {0, 9, mib - 1000, false},
		"above the default with the final": {0, 10, mib - 1000, true},
		"above the default":                {0, 12, mib - 1000, true},
		"below a limit":                    {5000, 20, 100, false},
		"above a limit":                    {5000, 40, 100, true},
		"above the default, below a limit": {20 * mib, 15, mib, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "HTTP/1.1", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/informed" {
					sendInformational(w, test.statuses, test.size)
					_, _ = w.Write([]byte("answer"))
				}
			})
			b := base(t, s)
			b.MaxResponseHeaderBytes = test.limit
			want, wantErr := fetch(t.Context(), b, s.URL+"/informed")
			require.Equal(t, test.fails, wantErr != nil)
			tr := hedge.New(b, hedge.WithLinger(0))
			teach(t, tr, s.URL)
			got, err := fetch(hedge.WithDelay(t.Context(), time.Minute), tr, s.URL+"/informed")
			assert.Equal(t, want, got)
			if test.fails {
				assert.EqualError(t, err, wantErr.Error())
			} else {
				assert.NoError(t, err)
			}
			seen := 0
			ctx := httptrace.WithClientTrace(hedge.WithDelay(t.Context(), time.Minute), &httptrace.ClientTrace{
				Got1xxResponse: func(int, textproto.MIMEHeader) error { seen++; return nil },
			})
			got, err = fetch(ctx, tr, s.URL+"/informed")
			require.NoError(t, err, "a caller with a hook bounds them")
			assert.Equal(t, "answer", got)
			assert.Equal(t, test.statuses, seen)
		})
	}
}
