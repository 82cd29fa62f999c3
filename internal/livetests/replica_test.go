package livetests_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// names is a Resolver for one host.
type names struct {
	addrs []netip.Addr
	err   error
}

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if host != "catalog.test" {
		return nil, errors.New("no such host")
	}
	return n.addrs, n.err
}

// replicaSet is three servers on one port of three loopback addresses.
type replicaSet struct {
	names
	port string
	mu   sync.Mutex
	slow netip.Addr         // the one that pauses
	hits map[netip.Addr]int // requests for /counted: others may be late
}

func newReplicaSet(t *testing.T) *replicaSet {
	set := &replicaSet{hits: make(map[netip.Addr]int), port: "0"}
	for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, set.port))
		if err != nil {
			t.Skipf("%s: %v", ip, err) // not every system has all of 127.0.0.0/8
		}
		_, set.port, _ = net.SplitHostPort(l.Addr().String())
		addr := netip.MustParseAddr(ip)
		set.addrs = append(set.addrs, addr)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			set.mu.Lock()
			if r.URL.Path == "/counted" {
				set.hits[addr]++
			}
			slow := set.slow == addr
			set.mu.Unlock()
			if slow {
				pause(r, 5*time.Second)
			}
			_, _ = io.WriteString(w, r.Host)
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
	}
	return set
}

func (s *replicaSet) pauses(addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = addr
	clear(s.hits)
}

// transport dials catalog.test at the n-th address, as a base would at the first.
func (s *replicaSet) transport(t *testing.T, n int) *http.Transport {
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, _ := net.SplitHostPort(addr)
		if host == "catalog.test" {
			addr = net.JoinHostPort(s.addrs[n].String(), port)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func TestHedgeGoesToAnotherReplica(t *testing.T) {
	set := newReplicaSet(t)
	for n := range set.addrs {
		tr := hedge.New(set.transport(t, n), hedge.WithReplicas(set), hedge.WithMaxHedges(1))
		url := "http://catalog.test:" + set.port
		set.pauses(netip.Addr{})
		teach(t, tr, url)
		set.pauses(set.addrs[n]) // for all requests: only another replica answers
		for range 3 {
			got, err := fetch(hedge.WithDelay(t.Context(), 20*time.Millisecond), tr, url+"/counted")
			require.NoError(t, err)
			assert.Equal(t, "catalog.test:"+set.port, got, "under the same name")
		}
		set.mu.Lock()
		assert.LessOrEqual(t, set.hits[set.addrs[n]], 3, "no hedge; a primary that has no connection yet is not sent once it has lost")
		assert.Equal(t, 3, set.hits[set.addrs[(n+1)%3]]+set.hits[set.addrs[(n+2)%3]])
		set.mu.Unlock()
		tr.CloseIdleConnections()
	}
}

func TestOnlyReplicaIsHedgedToAsWell(t *testing.T) {
	set := newReplicaSet(t)
	url := "http://catalog.test:" + set.port + "/counted"
	for name, resolver := range map[string]hedge.Resolver{
		"one address":     names{addrs: set.addrs[:1]},
		"others are down": names{addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9"), set.addrs[0]}},
		"no address":      names{},
		"lookup fails":    names{err: errors.New("SERVFAIL")},
	} {
		set.pauses(set.addrs[0])
		tr := hedge.New(set.transport(t, 0), hedge.WithReplicas(resolver), hedge.WithMaxHedges(1))
		ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*time.Millisecond), 300*time.Millisecond)
		_, err := fetch(ctx, tr, url)
		cancel()
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		set.mu.Lock()
		assert.Equal(t, 2, set.hits[set.addrs[0]], name)
		set.mu.Unlock()
		tr.CloseIdleConnections()
	}
}

func TestReplicasThatAreAllDownSayWhy(t *testing.T) {
	down := names{addrs: []netip.Addr{netip.MustParseAddr("127.0.0.8"), netip.MustParseAddr("127.0.0.9")}}
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		time.Sleep(50 * time.Millisecond)
		return nil, errDown
	}}
	_, err := fetch(hedge.WithDelay(t.Context(), 10*time.Millisecond), hedge.New(base, hedge.WithReplicas(down)), "http://catalog.test:1")
	assert.ErrorIs(t, err, errDown)
	assert.Panics(t, func() { hedge.WithReplicas(nil) })
}

// A replica that accepts no connections is one that a primary has no connection to.
func TestHedgeOfAPrimaryThatIsStillConnectingGoesElsewhere(t *testing.T) {
	hosts := []string{"a", "b", "c"}
	for _, test := range []struct {
		name  string
		dead  int  // replica that the base dials
		hooks bool // the base dials as package net does, which tells where
	}{
		{"told by the dialer", 1, true},
		{"guessed", 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, err := netsim.NewMemory(1, "client", "a", "b", "c")
				require.NoError(t, err)
				var set names
				for _, host := range hosts {
					set.addrs = append(set.addrs, network.Host(host).Addr())
					l, err := network.Host(host).Listen("tcp", ":80")
					require.NoError(t, err)
					s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, host) })}
					go func() { _ = s.Serve(l) }()
					defer s.Close()
				}
				base := &http.Transport{DialContext: func(ctx context.Context, proto, addr string) (net.Conn, error) {
					host, port, _ := net.SplitHostPort(addr)
					if host == "catalog.test" {
						addr = net.JoinHostPort(set.addrs[test.dead].String(), port)
					}
					if trace := httptrace.ContextClientTrace(ctx); test.hooks && trace != nil && trace.ConnectStart != nil {
						trace.ConnectStart(proto, addr)
					}
					return network.Host("client").DialContext(ctx, proto, addr)
				}}
				network.Set("client", hosts[test.dead], netsim.Profile{BlackHole: true})
				tr := hedge.New(base, hedge.WithReplicas(set), hedge.WithMaxHedges(1))
				defer func() {
					network.Set("client", hosts[test.dead], netsim.Profile{}) // lets the dials end
					time.Sleep(10 * time.Second)
					tr.CloseIdleConnections()
					synctest.Wait()
					assert.NoError(t, network.Close())
				}()
				ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*time.Millisecond), time.Second)
				defer cancel()
				start := time.Now()
				got, err := fetch(ctx, tr, "http://catalog.test")
				require.NoError(t, err)
				assert.NotEqual(t, hosts[test.dead], got)
				assert.Equal(t, 20*time.Millisecond, time.Since(start))
			})
		})
	}
}

// A replica that is gone, while the name server still lists it, holds up the first hedge
// that would go there, and no other.
func TestAReplicaThatCannotBeReachedHoldsUpOneHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 250 * ms // after which the next address is tried as well
		hosts := []string{"a", "b", "c"}
		network, err := netsim.NewMemory(1, append(hosts, "client")...)
		require.NoError(t, err)
		var set names
		for _, host := range hosts {
			set.addrs = append(set.addrs, network.Host(host).Addr())
			l, err := network.Host(host).Listen("tcp", ":80")
			require.NoError(t, err)
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if host == "a" {
					pause(r, 2*time.Second)
				}
				_, _ = io.WriteString(w, host)
			})}
			go func() { _ = s.Serve(l) }()
			defer s.Close()
		}
		network.Set("client", "b", netsim.Profile{BlackHole: true})
		base := &http.Transport{DialContext: func(ctx context.Context, proto, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			if host == "catalog.test" {
				addr = net.JoinHostPort(set.addrs[0].String(), port)
			}
			return network.Host("client").DialContext(ctx, proto, addr)
		}}
		tr := hedge.New(base, hedge.WithReplicas(set), hedge.WithMaxHedges(1))
		for _, want := range []time.Duration{20*ms + late, 20 * ms, 20 * ms} {
			start := time.Now()
			got, err := fetch(hedge.WithDelay(t.Context(), 20*ms), tr, "http://catalog.test")
			require.NoError(t, err)
			assert.Equal(t, "c", got)
			assert.Equal(t, want, time.Since(start))
			if want > late {
				time.Sleep(5 * time.Second)
				continue
			}
			time.Sleep(5 * time.Second)
			tr.CloseIdleConnections() // the next hedge needs another
		}
		network.Set("client", "b", netsim.Profile{})
		time.Sleep(time.Minute)
		tr.CloseIdleConnections()
		synctest.Wait()
		assert.NoError(t, network.Close())
	})
}

// A replica that is merely far away: its connections take longer than the time after which
// the next address is tried.
func TestAHedgeIsNotSentToThePrimarysReplicaBecauseAnotherIsFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newReach(t, "b")
		set.reach = func(ctx context.Context, _ string) error { return doubles.Sleep(ctx, 400*ms) }
		tr := set.transport()
		set.answers(t, tr, "b", 400*ms)
		set.answers(t, tr, "b", 0)
		set.close(t, tr)
	})
}

// An address has its time before the next one is tried, also if one before it fails meanwhile.
func TestAnAddressIsNotBlamedForTheOneBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newReach(t, "b", "c", "d")
		set.reach = func(ctx context.Context, host string) error {
			switch host {
			case "b":
				time.Sleep(350 * ms)
				return errDown
			case "c":
				return doubles.Sleep(ctx, 200*ms)
			}
			return nil
		}
		tr := set.transport()
		set.answers(t, tr, "c", 450*ms)
		tr.CloseIdleConnections()
		set.answers(t, tr, "c", 200*ms)
		set.close(t, tr)
	})
}

// While the other replica is down, hedges go to the primary's. Their connections must not
// keep them there when it is back, however many hedges there are.
func TestHedgesLeaveThePrimarysReplicaWhenTheOtherIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newReach(t, "b")
		var down atomic.Bool
		down.Store(true)
		set.reach = func(context.Context, string) error {
			if down.Load() {
				return errDown
			}
			return nil
		}
		tr := set.transport()
		back := time.Now().Add(3 * time.Second)
		time.AfterFunc(3*time.Second, func() { down.Store(false) })
		got := ""
		for time.Since(back) < 65*time.Second {
			var err error
			got, err = fetch(hedge.WithDelay(t.Context(), 20*ms), tr, "http://catalog.test")
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		assert.Equal(t, "b", got)
		set.close(t, tr)
	})
}

func TestADialThatReturnsNothingLateEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newReach(t, "b", "c")
		set.reach = func(_ context.Context, host string) error {
			if host == "b" {
				time.Sleep(300 * ms)
				return errNothing
			}
			return doubles.Sleep(t.Context(), 20*ms)
		}
		tr := set.transport()
		set.answers(t, tr, "c", 270*ms)
		set.close(t, tr)
	})
}

var errNothing = errors.New("neither a connection nor an error")

// reach is replicas of which some are hard to reach. Primaries go to a, and are answered after 2 s.
type reach struct {
	names
	network *netsim.Network
	byAddr  map[string]string
	reach   func(ctx context.Context, host string) error // is called before a connection to another than a
}

func newReach(t *testing.T, others ...string) *reach {
	hosts := append([]string{"a"}, others...)
	network, err := netsim.NewMemory(1, append(hosts, "client")...)
	require.NoError(t, err)
	set := &reach{network: network, byAddr: make(map[string]string)}
	for _, host := range hosts {
		addr := network.Host(host).Addr()
		set.addrs, set.byAddr[addr.String()] = append(set.addrs, addr), host
		l, err := network.Host(host).Listen("tcp", ":80")
		require.NoError(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(hedge.AttemptHeader) == "" {
				pause(r, 2*time.Second)
			}
			_, _ = io.WriteString(w, host)
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
	}
	return set
}

func (s *reach) transport() *hedge.Transport {
	return hedge.New(&http.Transport{DialContext: func(ctx context.Context, proto, addr string) (net.Conn, error) {
		host, port, _ := net.SplitHostPort(addr)
		if host == "catalog.test" {
			addr = net.JoinHostPort(s.addrs[0].String(), port)
		} else if name := s.byAddr[host]; name != "a" {
			if err := s.reach(ctx, name); err == errNothing {
				return nil, nil
			} else if err != nil {
				return nil, err
			}
		}
		return s.network.Host("client").DialContext(ctx, proto, addr)
	}}, hedge.WithReplicas(s), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithAttemptHeader(hedge.AttemptHeader))
}

// answers says who answers the next call, and how long after the hedge was due.
func (s *reach) answers(t *testing.T, tr *hedge.Transport, want string, after time.Duration) {
	t.Helper()
	start := time.Now()
	got, err := fetch(hedge.WithDelay(t.Context(), 20*ms), tr, "http://catalog.test")
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.Equal(t, 20*ms+after, time.Since(start))
	time.Sleep(5 * time.Second)
}

func (s *reach) close(t *testing.T, tr *hedge.Transport) {
	time.Sleep(5 * time.Minute)
	tr.CloseIdleConnections()
	synctest.Wait()
	assert.NoError(t, s.network.Close())
}
