package names_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// byName has A records for each host.
type byName struct {
	mu sync.Mutex
	a  map[string][]string // by host
}

func (b *byName) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var records []string
	if q := m.Question[0]; q.Qtype == dns.TypeA {
		records = b.a[q.Name]
	}
	return dnstest.Answer(dnstest.Query{Msg: m}, records...), 0, nil
}

// set makes IPs the addresses of a host, for 10 s.
func (b *byName) set(host string, ips ...string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.a == nil {
		b.a = make(map[string][]string)
	}
	b.a[host+"."] = nil
	for _, ip := range ips {
		b.a[host+"."] = append(b.a[host+"."], "10 A "+ip)
	}
}

// lookup looks a host up, as package hedge does before it dials an address.
func (w *world) lookup(host string) {
	w.t.Helper()
	_, err := w.LookupNetIP(w.t.Context(), "ip", host)
	require.NoError(w.t, err)
}

// dialAddress connects to an address.
func (w *world) dialAddress(ctx context.Context, ip string) net.Conn {
	w.t.Helper()
	conn, err := w.DialContext(ctx, "tcp", ip+":443")
	require.NoError(w.t, err)
	return conn
}

// Two hosts of a load balancer have one address. A connection that a hedge made may be for either.
func TestDrainSeparatesHostsThatShareAddress(t *testing.T) {
	for _, order := range [][]string{{"a.example", "b.example"}, {"b.example", "a.example"}, {"b.example", "a.example", "b.example"}} {
		play(t, func(t *testing.T, w *world) {
			zone := new(byName)
			w.Exchanger = zone
			zone.set("a.example", "192.0.2.1")
			zone.set("b.example", "192.0.2.1")
			var swept atomic.Int64
			w.Drain(&sweeper{close: func() { swept.Add(1) }})
			sent := make(map[string]bool) // whether the last request closes its connection, by host
			client := &http.Client{Transport: w.Drain(roundTripper(func(r *http.Request) (*http.Response, error) {
				sent[r.URL.Host] = r.Close
				return &http.Response{StatusCode: 200, Request: r, Body: http.NoBody}, nil
			}))}
			for _, host := range order {
				w.lookup(host)
			}
			conn := w.dialAddress(t.Context(), "192.0.2.1")
			zone.set("a.example", "192.0.2.2")
			w.until(11 * time.Second)
			assert.Positive(t, swept.Load(), "%v", order)
			for _, host := range order {
				resp, err := client.Get("http://" + host)
				require.NoError(t, err)
				resp.Body.Close()
			}
			assert.Equal(t, map[string]bool{"a.example": true, "b.example": false}, sent, "%v", order)
			conn.Close()
			assert.Zero(t, w.Leaving())
			assert.Zero(t, w.Held())
		})
	}
}

// A request through Drain determines the host of its connection.
func TestDrainAssignsConnectionToHostOfRequest(t *testing.T) {
	zone := new(byName)
	hedged := func(s *site) http.RoundTripper {
		s.Exchanger = zone
		return s.Drain(hedge.New(s.base, hedge.WithReplicas(s.Names), hedge.WithMaxHedges(1)))
	}
	serve(t, false, hedged, func(t *testing.T, s *site) {
		a, b := s.net.Host("a").Addr().String(), s.net.Host("b").Addr().String()
		hosts := []string{"x.example", "y.example"}
		for _, host := range hosts {
			zone.set(host, a, b)
			_, err := s.LookupNetIP(t.Context(), "ip", host)
			require.NoError(t, err)
		}
		var wg sync.WaitGroup
		for _, host := range hosts {
			wg.Go(func() {
				for range 30 {
					req, err := http.NewRequestWithContext(hedge.WithDelay(t.Context(), 20*ms), "GET", "http://"+host+":443/?for=100ms", nil)
					assert.NoError(t, err)
					resp, err := s.client.Do(req)
					if assert.NoError(t, err) {
						assert.Same(t, req, resp.Request)
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}
			})
		}
		wg.Wait()
		open := s.saw("a").open + s.saw("b").open
		assert.GreaterOrEqual(t, open, 4, "a primary's and a hedge's for each host")
		assert.Equal(t, open, s.Held(), "each belongs to one host")
	})
}

func TestDrainLimitsHostsOfConnection(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		zone := new(byName)
		w.Exchanger = zone
		for i := range 20 {
			host := fmt.Sprintf("h%d.example", i)
			zone.set(host, "192.0.2.1")
			w.lookup(host)
			w.lookup(host)
		}
		conn := w.dialAddress(t.Context(), "192.0.2.1")
		assert.Equal(t, 8, w.Held())
		assert.Equal(t, []int{1, 1}, []int{w.Given(), w.Shared()})
		w.until(time.Minute)
		conn.Close()
		assert.Zero(t, w.Held())
		for i := range 1024 {
			host := fmt.Sprintf("other%d.example", i)
			zone.set(host, "192.0.2.3")
			w.lookup(host)
		}
		synctest.Wait() // a host is not among the unused ones before its lookups have ended
		assert.Equal(t, []int{1, 1}, []int{w.Given(), w.Shared()}, "the 20 hosts are forgotten")
	})
}
