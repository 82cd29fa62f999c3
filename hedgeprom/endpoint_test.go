package hedgeprom_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/metricstest"
	"github.com/gohedge/hedge/observe"
)

// TestCollectorCountsEventsOfEndpoints compares the metrics with the sent attempts, and with the Snapshot.
func TestCollectorCountsEventsOfEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var mu sync.Mutex // guards sent
		sent := make(map[string]int)
		base := doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			sent[req.URL.Host]++
			mu.Unlock()
			d := 80 * ms
			if req.URL.Host == "near.test" {
				if d = 10 * ms; down.Load() {
					return nil, errors.New("connection refused")
				}
			}
			if err := doubles.Sleep(req.Context(), d); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}, nil
		})
		c := hedgeprom.New()
		tr := hedge.New(base, hedge.WithEndpoints(hedge.Endpoint{URL: "http://near.test"}, hedge.Endpoint{URL: "http://far.test/api"}),
			hedge.WithName("shop"), hedge.WithObserver(c))
		play := func(calls int) {
			for range calls {
				req, err := http.NewRequestWithContext(t.Context(), "GET", "http://near.test/item", nil)
				require.NoError(t, err)
				if resp, err := tr.RoundTrip(req); err == nil {
					require.NoError(t, resp.Body.Close())
				}
				synctest.Wait()
			}
		}
		check := func(ejected int) {
			var keys []hedge.KeySnapshot
			for _, k := range tr.Snapshot().Keys {
				if k.Endpoints != nil {
					keys = append(keys, k)
				}
			}
			require.Len(t, keys, 1)
			nearby, away := keys[0].Endpoints[0], keys[0].Endpoints[1]
			assert.EqualValues(t, sent["near.test"], nearby.Calls+nearby.Hedges)
			assert.EqualValues(t, sent["far.test"], away.Calls+away.Hedges)
			text := `
# HELP hedge_endpoint_attempts_total Attempts that went to an endpoint, of calls that have a choice of endpoints, by type.
# TYPE hedge_endpoint_attempts_total counter
# HELP hedge_endpoint_bad_total Attempts at an endpoint that failed, or that were slower than an attempt at another endpoint.
# TYPE hedge_endpoint_bad_total counter
# HELP hedge_endpoint_ejected Keys (hosts, or their routes) whose calls go to other endpoints.
# TYPE hedge_endpoint_ejected gauge
hedge_endpoint_ejected{client="shop",endpoint="http://far.test/api",host="near.test",protocol="http"} 0
hedge_endpoint_ejected{client="shop",endpoint="http://near.test",host="near.test",protocol="http"} ` + fmt.Sprintln(ejected)
			for _, p := range keys[0].Endpoints {
				at := fmt.Sprintf(`client="shop",endpoint="%s",host="near.test"`, p.Endpoint)
				text += fmt.Sprintf("hedge_endpoint_attempts_total{%s,protocol=\"http\",type=\"hedge\"} %d\n", at, p.Hedges)
				text += fmt.Sprintf("hedge_endpoint_attempts_total{%s,protocol=\"http\",type=\"original\"} %d\n", at, p.Calls)
				text += fmt.Sprintf("hedge_endpoint_bad_total{%s,outcome=\"failed\",protocol=\"http\"} %d\n", at, p.Failures)
				text += fmt.Sprintf("hedge_endpoint_bad_total{%s,outcome=\"overtaken\",protocol=\"http\"} %d\n", at, p.Overtaken)
			}
			require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(text), "hedge_endpoint_attempts_total", "hedge_endpoint_bad_total", "hedge_endpoint_ejected"))
		}
		play(100)
		check(0)
		down.Store(true)
		play(100)
		check(1)
		down.Store(false)
		play(5000)
		check(0)
	})
}

func TestCollectorLimitsLabelsOfEndpoints(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(1))
	for host := range 3 {
		for endpoint := range 20 {
			key := hedge.KeyInfo{Host: fmt.Sprint("h", host)}
			for _, kind := range []hedge.EndpointKind{hedge.EndpointCalled, hedge.EndpointEjected, hedge.EndpointRestored, "of a later version"} {
				c.EndpointEvent(key, hedge.EndpointEvent{Endpoint: fmt.Sprintf("http://%d.test/\xff", endpoint), Kind: kind})
			}
			c.ClientCreated(metricstest.StateOf(observe.KeyState{KeyInfo: key, Endpoints: []observe.EndpointState{{Endpoint: fmt.Sprintf("http://%d.test/\xff", endpoint), Ejected: 1}}}))
		}
	}
	assert.Equal(t, 2*(8+1+1), testutil.CollectAndCount(c, "hedge_endpoint_attempts_total"), "eight endpoints and Other of a host, and those of the host Other")
	assert.Equal(t, 8+1+1, testutil.CollectAndCount(c, "hedge_endpoint_ejected"))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func BenchmarkEndpointEvent(b *testing.B) {
	c := hedgeprom.New()
	key := hedge.KeyInfo{Client: "shop", Host: "near.test", Protocol: "http"}
	b.ReportAllocs()
	for b.Loop() {
		c.EndpointEvent(key, hedge.EndpointEvent{Endpoint: "http://near.test/api", Kind: hedge.EndpointCalled})
	}
}
