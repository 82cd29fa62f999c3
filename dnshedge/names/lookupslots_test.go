package names_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// crowd has an address for each host, after a while. Questions for dead.example are never answered.
type crowd struct {
	delay time.Duration

	mu    sync.Mutex // guards the fields below
	now   int        // questions that wait
	most  int
	asked map[string]int // questions, by host
}

func (c *crowd) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	name := m.Question[0].Name
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	if c.asked == nil {
		c.asked = make(map[string]int)
	}
	c.asked[name]++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.now--
		c.mu.Unlock()
	}()
	delay := c.delay
	if strings.HasSuffix(name, ".dead.example.") {
		delay = time.Hour
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	if m.Question[0].Qtype != dns.TypeA {
		return dnstest.Answer(dnstest.Query{Msg: m}), 0, nil
	}
	return dnstest.Answer(dnstest.Query{Msg: m}, "30 A 192.0.2.1"), 0, nil
}

// playCrowd runs a test in fake time, with a Client that asks the crowd.
func playCrowd(t *testing.T, c *dnshedge.Client, delay time.Duration, f func(t *testing.T, w *world, c *crowd)) {
	play(t, func(t *testing.T, w *world) {
		x := &crowd{delay: delay}
		c.Exchanger = x
		defer c.Close()
		w.Names = &names.Names{Exchanger: c, Dialer: &w.net}
		defer w.Names.Close()
		f(t, w, x)
	})
}

func TestLookupSlotsLimitNewHosts(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	for _, test := range []struct {
		inFlight, most int
		took           time.Duration
	}{
		{0, 512, 500 * ms},
		{160, 40, 5500 * ms},
		{1 << 20, 2200, 100 * ms},
	} {
		client := &dnshedge.Client{MaxInFlight: test.inFlight, Cache: new(dnshedge.Cache)}
		playCrowd(t, client, 100*ms, func(t *testing.T, w *world, c *crowd) {
			var wg sync.WaitGroup
			for i := range 1100 {
				wg.Go(func() {
					conn, err := w.DialContext(t.Context(), "tcp", fmt.Sprintf("h%d.example:443", i))
					if assert.NoError(t, err) {
						conn.Close()
					}
				})
			}
			wg.Wait()
			assert.Equal(t, test.most, c.most)
			assert.Equal(t, test.took, w.since())
			assert.Zero(t, client.Stats().Dropped)
		})
	}
}

// Connections keep their hosts fresh, also if there are thousands of them whose TTL ends at once.
func TestLookupSlotsLimitKnownHosts(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	client := new(dnshedge.Client)
	playCrowd(t, client, 100*ms, func(t *testing.T, w *world, c *crowd) {
		var wg sync.WaitGroup
		conns := make([]net.Conn, 1100)
		for i := range conns {
			wg.Go(func() {
				var err error
				conns[i], err = w.DialContext(t.Context(), "tcp", fmt.Sprintf("h%d.example:443", i))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		w.until(40 * time.Second)
		c.mu.Lock()
		for host, n := range c.asked {
			require.Equal(t, 4, n, host)
		}
		c.mu.Unlock()
		assert.Zero(t, client.Stats().Dropped)
		for _, conn := range conns {
			conn.Close()
		}
	})
}

// A lookup that takes longer than a second goes on, without a place.
func TestLookupSlotsAreFreedAfterASecond(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	playCrowd(t, new(dnshedge.Client), 1500*ms, func(t *testing.T, w *world, c *crowd) {
		w.at() // is known
		w.until(40 * time.Second)
		var wg sync.WaitGroup
		for i := range 700 {
			wg.Go(func() {
				_, err := w.DialContext(t.Context(), "tcp", fmt.Sprintf("h%d.dead.example:443", i))
				assert.Error(t, err)
			})
		}
		synctest.Wait()
		for name, took := range map[string]time.Duration{
			"new.example:443": 3500 * ms, // after 256 and 256
			target:            time.Second,
		} {
			wg.Go(func() {
				began := time.Now()
				conn, err := w.DialContext(t.Context(), "tcp", name)
				if assert.NoError(t, err) {
					conn.Close()
				}
				assert.Equal(t, took, time.Since(began), name)
			})
		}
		w.until(41600 * ms)
		assert.Equal(t, 4, c.times(host), "known hosts need not wait for new ones")
		wg.Wait()
	})
}

func (c *crowd) times(host string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[dns.Fqdn(host)]
}

func TestLookupSlotsDropAbandonedHost(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	playCrowd(t, new(dnshedge.Client), 100*ms, func(t *testing.T, w *world, c *crowd) {
		var wg sync.WaitGroup
		for i := range 2000 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
				defer cancel()
				_, err := w.DialContext(ctx, "tcp", fmt.Sprintf("h%d.dead.example:443", i))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		synctest.Wait()
		assert.Equal(t, 256, w.Kept(), "those that are looked up")
		w.at() // when these have had their second
		assert.Equal(t, 1100*ms, w.since())
		assert.Len(t, c.asked, 257)
	})
}

// A caller that arrives after the last one has left waits as for a new host.
func TestLookupSlotsServeDroppedHostWhenNeeded(t *testing.T) {
	playCrowd(t, &dnshedge.Client{MaxInFlight: 8}, 100*ms, func(t *testing.T, w *world, c *crowd) {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = w.LookupNetIP(t.Context(), "ip", "h.dead.example") })
		synctest.Wait()
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			_, err := w.LookupNetIP(ctx, "ip", host)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		assert.Equal(t, []string{"192.0.2.1"}, w.addrs())
		assert.Equal(t, 1100*ms, w.since())
		assert.Equal(t, 2, c.times(host))
		wg.Wait()
	})
}

func TestNamesCloseEndsWaitingLookups(t *testing.T) {
	doubles.SkipManyGoroutinesWithRace(t)
	playCrowd(t, new(dnshedge.Client), time.Hour, func(t *testing.T, w *world, c *crowd) {
		var wg sync.WaitGroup
		var closed atomic.Int64
		for i := range 1000 {
			wg.Go(func() {
				_, err := w.LookupNetIP(t.Context(), "ip", fmt.Sprintf("h%d.example", i))
				if assert.ErrorIs(t, err, net.ErrClosed) {
					closed.Add(1)
				}
			})
		}
		synctest.Wait()
		assert.NoError(t, w.Names.Close())
		wg.Wait()
		assert.EqualValues(t, 1000, closed.Load())
		assert.Zero(t, w.since())
		assert.Zero(t, w.Kept())
	})
}
