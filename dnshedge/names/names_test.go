package names_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestNamesLooksUpAgainAfterTTL(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1", "30 192.0.2.2")
		ip, conn := w.dial()
		defer conn.Close()
		assert.Equal(t, "192.0.2.2", ip)
		w.until(29 * time.Second)
		w.zone.set("20 192.0.2.3")
		assert.Contains(t, []string{"192.0.2.1", "192.0.2.2"}, w.at())
		w.until(30 * time.Second) // while the connection is open, without a caller
		assert.Equal(t, "192.0.2.3", w.at())
		w.until(100 * time.Second)
		assert.Equal(t, seconds(0, 30, 50, 70, 90), w.lookups())
	})
}

func TestNamesLooksUpUnusedHostWhenNeeded(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1")
		w.at()
		w.until(time.Hour)
		assert.Equal(t, seconds(0), w.lookups())
		w.zone.set("30 192.0.2.2")
		assert.Equal(t, "192.0.2.2", w.at())
		assert.Equal(t, seconds(3600), w.lookups())
	})
}

func TestNamesLimitsTTLs(t *testing.T) {
	for _, test := range []struct {
		ttl      string
		min, max time.Duration
		want     float64
	}{
		{ttl: "0", want: 5},
		{ttl: "4", want: 5},
		{ttl: "6", want: 6},
		{ttl: "4294967295", want: 3600},
		{ttl: "0", min: time.Second, want: 5},
		{ttl: "0", min: 20 * time.Second, want: 20},
		{ttl: "300", max: 30 * time.Second, want: 30},
		{ttl: "300", min: time.Minute, max: 30 * time.Second, want: 60},
		{ttl: "300", min: 2 * time.Hour, want: 7200},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.MinTTL, w.MaxTTL = test.min, test.max
				w.zone.set(test.ttl+" 192.0.2.1", "86400 2001:db8::1")
				_, conn := w.dial()
				defer conn.Close()
				w.until(seconds(2.5 * test.want)[0])
				assert.Equal(t, seconds(0, test.want, 2*test.want), w.lookups())
			})
		})
	}
}

// A server's cache answers with the remaining TTL. Its end must not be waited for longer than that because it looks
// like a short TTL.
func TestNamesRecognizesRemainingTTL(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1")
		_, conn := w.dial()
		defer conn.Close()
		w.zone.set("0 192.0.2.1")
		w.until(30 * time.Second)
		w.zone.set("30 192.0.2.2")
		w.until(31 * time.Second)
		assert.Equal(t, []string{"192.0.2.2"}, w.addrs())
		assert.Equal(t, seconds(0, 30, 31), w.lookups())
		w.zone.set("0 192.0.2.2") // from now on
		w.until(80 * time.Second)
		assert.Equal(t, seconds(61, 62, 63, 68, 73, 78), w.lookups())
	})
}

func TestNamesKeepsAddressesAfterEmptyLookup(t *testing.T) {
	for name, fail := range map[string]answer{
		"SERVFAIL": {rcode: dns.RcodeServerFailure},
		"NXDOMAIN": {rcode: dns.RcodeNameError},
		"NODATA":   {},
		"error":    {err: errors.New("no server")},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.zone.set("30 192.0.2.1", "30 2001:db8::1")
				_, conn := w.dial()
				defer conn.Close()
				w.become(fail, fail)
				w.until(40 * time.Second)
				assert.Equal(t, []string{"2001:db8::1", "192.0.2.1"}, w.addrs())
				w.until(300 * time.Second)
				assert.Equal(t, "2001:db8::1", w.at())
				assert.Equal(t, seconds(0, 30, 35, 45, 65, 105, 165, 225, 285), w.lookups())
				w.zone.set("30 192.0.2.2")
				w.until(346 * time.Second)
				assert.Equal(t, []string{"192.0.2.2"}, w.addrs())
				w.until(400 * time.Second)
				assert.Equal(t, seconds(345, 375), w.lookups())
			})
		})
	}
}

func TestNamesKeepsAddressesOfFailedFamily(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1", "30 2001:db8::1")
		_, conn := w.dial()
		defer conn.Close()
		w.become(answer{records: []string{"30 A 192.0.2.2"}}, answer{rcode: dns.RcodeServerFailure})
		w.until(31 * time.Second)
		assert.Equal(t, []string{"2001:db8::1", "192.0.2.2"}, w.addrs())
		w.until(36 * time.Second) // and is looked up soon
		assert.Equal(t, seconds(0, 30, 35), w.lookups())
		w.become(answer{records: []string{"30 A 192.0.2.2"}}, answer{}) // it has no more
		w.until(46 * time.Second)
		assert.Equal(t, []string{"192.0.2.2"}, w.addrs())
		w.become(answer{records: []string{"30 A 192.0.2.2"}}, answer{rcode: dns.RcodeServerFailure}) // nothing is missing
		w.until(106 * time.Second)
		assert.Equal(t, seconds(45, 75, 105), w.lookups())
	})
}

// RFC 4074 §4.2: such servers exist. A name that has an address of one family does exist.
func TestNamesTreatsNXDOMAINOfOneTypeAsFailure(t *testing.T) {
	nxdomain := answer{rcode: dns.RcodeNameError}
	for _, late := range []time.Duration{0, 20 * ms, 200 * ms} {
		play(t, func(t *testing.T, w *world) {
			w.zone.set("30 192.0.2.1", "30 2001:db8::1")
			_, conn := w.dial()
			defer conn.Close()
			nxdomain.delay = late
			w.become(nxdomain, answer{records: []string{"30 AAAA 2001:db8::2"}})
			w.until(31 * time.Second)
			assert.Equal(t, []string{"2001:db8::2", "192.0.2.1"}, w.addrs())
			w.become(answer{records: []string{"30 A 192.0.2.2"}}, nxdomain)
			w.until(36 * time.Second) // it is looked up soon
			assert.Equal(t, []string{"2001:db8::2", "192.0.2.2"}, w.addrs())
			w.become(answer{records: []string{"30 A 192.0.2.2"}}, answer{})
			w.until(80 * time.Second)
			assert.Equal(t, []string{"192.0.2.2"}, w.addrs(), "an answer without addresses is one")
		})
	}
}

func TestNamesReportsNotFoundOnlyWithoutFailure(t *testing.T) {
	nxdomain, failure := answer{rcode: dns.RcodeNameError}, answer{rcode: dns.RcodeServerFailure}
	for _, test := range []struct {
		a, aaaa  answer
		notFound bool
	}{
		{nxdomain, nxdomain, true},
		{nxdomain, answer{}, true},
		{answer{}, answer{}, true},
		{nxdomain, failure, false},
		{failure, nxdomain, false},
		{failure, answer{}, false},
	} {
		play(t, func(t *testing.T, w *world) {
			w.become(test.a, test.aaaa)
			_, err := w.LookupNetIP(t.Context(), "ip", host)
			var e *net.DNSError
			require.ErrorAs(t, err, &e)
			assert.Equal(t, test.notFound, e.IsNotFound, "%v", test)
			assert.Equal(t, !test.notFound, e.IsTemporary, "%v", test)
		})
	}
}

func TestNamesSlowFamilyDelaysNoOther(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1", "30 2001:db8::1")
		_, conn := w.dial()
		defer conn.Close()
		w.become(answer{records: []string{"30 A 192.0.2.2"}, delay: 20 * ms}, answer{err: errors.New("late"), delay: 5 * time.Second})
		w.until(30*time.Second + 10*ms)
		conn, err := w.DialContext(t.Context(), "tcp4", target)
		require.NoError(t, err)
		defer conn.Close()
		assert.Equal(t, "192.0.2.2", w.net.made()[1].address)
		assert.Equal(t, 30*time.Second+70*ms, w.since(), "50 ms later than its own answer")
		assert.Equal(t, []string{"2001:db8::1", "192.0.2.2"}, w.addrs())
		assert.Equal(t, 30*time.Second+70*ms, w.since())
	})
}

func TestNamesSharesLookup(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.become(answer{records: []string{"30 A 192.0.2.1"}, delay: 100 * ms}, answer{delay: 100 * ms})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { assert.Equal(t, "192.0.2.1", w.at()) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		_, err := w.DialContext(ctx, "tcp", target)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		var timeout net.Error
		assert.True(t, errors.As(err, &timeout) && timeout.Timeout())
		assert.Equal(t, 10*ms, w.since(), "one that leaves takes nobody along")
		wg.Wait()
		assert.Equal(t, seconds(0), w.lookups())
		w.until(time.Minute)
		for range 50 {
			wg.Go(func() { assert.Equal(t, "192.0.2.1", w.at()) })
		}
		wg.Wait()
		assert.Equal(t, seconds(60), w.lookups())
	})
}

func TestNamesReportsHostWithoutAddresses(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.fail(dns.RcodeNameError)
		_, err := w.DialContext(t.Context(), "tcp", target)
		assertNotFound(t, err)
		assert.IsType(t, &net.OpError{}, err)
		_, err = w.LookupNetIP(t.Context(), "ip", host)
		assertNotFound(t, err)
		w.zone.set()
		_, err = w.LookupNetIP(t.Context(), "ip", host)
		assertNotFound(t, err)
		w.fail(dns.RcodeServerFailure)
		_, err = w.LookupNetIP(t.Context(), "ip", host)
		var e *net.DNSError
		require.ErrorAs(t, err, &e)
		assert.True(t, e.IsTemporary)
		w.zone.set("30 192.0.2.1")
		assert.Equal(t, "192.0.2.1", w.at(), "failures of a host that is not known are not kept")
	})
}

func TestNamesWaitsASecondForLookup(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1")
		w.at()
		w.until(time.Minute)
		w.become(answer{records: []string{"30 A 192.0.2.2"}, delay: 3 * time.Second}, answer{delay: 3 * time.Second})
		assert.Equal(t, "192.0.2.1", w.at())
		assert.Equal(t, 61*time.Second, w.since())
		assert.Equal(t, "192.0.2.1", w.at())
		assert.Equal(t, 61*time.Second, w.since(), "who comes later does not wait again")
		w.until(63 * time.Second)
		assert.Equal(t, "192.0.2.2", w.at())
		assert.Equal(t, seconds(0, 60), w.lookups())
	})
}

func TestNamesDoesNotWaitAfterFailedLookup(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1")
		_, conn := w.dial()
		defer conn.Close()
		w.become(answer{delay: time.Hour}, answer{delay: time.Hour})
		w.until(30*time.Second + 100*ms)
		w.at()
		assert.Equal(t, 31*time.Second, w.since())
		w.until(45*time.Second + 100*ms)
		w.at()
		assert.Equal(t, 45*time.Second+100*ms, w.since())
		assert.Equal(t, seconds(0, 30, 45), w.lookups())
		conn.Close()
		w.until(time.Hour)
		w.zone.set("30 192.0.2.2")
		assert.Equal(t, "192.0.2.2", w.at(), "that was long ago")
	})
}

func TestNamesLookupEndsAfterTenSeconds(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.become(answer{delay: time.Hour}, answer{delay: time.Hour})
		_, err := w.LookupNetIP(t.Context(), "ip", host)
		var e *net.DNSError
		require.ErrorAs(t, err, &e)
		assert.True(t, e.IsTimeout)
		assert.Equal(t, 10*time.Second, w.since())
	})
}

func TestLookupNetIPSelectsFamilies(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1", "30 192.0.2.2", "30 2001:db8::1")
		assert.Equal(t, []string{"2001:db8::1", "192.0.2.1", "192.0.2.2"}, w.addrs())
		for network, want := range map[string]int{"ip": 3, "ip4": 2, "ip6": 1} {
			got, err := w.LookupNetIP(t.Context(), network, "API.example.")
			require.NoError(t, err)
			assert.Len(t, got, want, network)
		}
		_, err := w.LookupNetIP(t.Context(), "tcp", host)
		assert.Equal(t, net.UnknownNetworkError("tcp"), err)
		got, err := w.LookupNetIP(t.Context(), "ip4", "192.0.2.7")
		assert.NoError(t, err)
		assert.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.7")}, got)
		_, err = w.LookupNetIP(t.Context(), "ip6", "192.0.2.7")
		assert.ErrorContains(t, err, "no suitable address")
		w.until(time.Minute)
		w.zone.set("30 192.0.2.1")
		_, err = w.LookupNetIP(t.Context(), "ip6", host)
		assert.ErrorContains(t, err, "no suitable address")
		assert.Equal(t, seconds(0, 60), w.lookups())
	})
}

func TestWatchYieldsChanges(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.fail(dns.RcodeServerFailure)
		type event struct {
			at    time.Duration
			addrs []netip.Addr
			err   bool
		}
		var events []event
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for addrs, err := range w.Watch(ctx, host) {
				events = append(events, event{w.since(), addrs, err != nil})
			}
		}()
		w.until(4 * time.Second)
		w.zone.set("30 192.0.2.1")
		w.until(40 * time.Second)
		w.fail(dns.RcodeServerFailure) // not told, for there are addresses
		w.until(70 * time.Second)
		w.zone.set("30 192.0.2.2", "30 2001:db8::2")
		w.until(200 * time.Second)
		w.zone.set("30 2001:db8::2", "30 192.0.2.2")
		w.until(300 * time.Second)
		cancel()
		<-ended
		one, two, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
		assert.Equal(t, []event{
			{0, nil, true}, {time.Second, nil, true}, {3 * time.Second, nil, true},
			{7 * time.Second, []netip.Addr{one}, false},
			{72 * time.Second, []netip.Addr{six, two}, false},
		}, merged(events, func(a, b event) bool { return a.at == b.at }))
		w.lookups()
		w.until(time.Hour)
		assert.Empty(t, w.lookups(), "nobody watches any more")
		for addrs, err := range w.Watch(t.Context(), host) {
			assert.NoError(t, err)
			assert.Equal(t, []netip.Addr{six, two}, addrs, "what is known")
			break
		}
	})
}

// merged keeps the last of events that are the same: the results of the families may be published one after the other.
func merged[E any](events []E, same func(a, b E) bool) (out []E) {
	for _, e := range events {
		if len(out) > 0 && same(out[len(out)-1], e) {
			out = out[:len(out)-1]
		}
		out = append(out, e)
	}
	return out
}

func TestRefreshWaitsForMinTTL(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.Refresh(host) // nothing is known of it
		w.zone.set("300 192.0.2.1")
		_, conn := w.dial()
		defer conn.Close()
		for range 99 {
			time.Sleep(100 * ms)
			w.Refresh(host)
		}
		w.until(20 * time.Second)
		assert.Equal(t, seconds(0, 5, 10), w.lookups())
		w.until(310 * time.Second)
		w.Refresh(host)
		assert.Equal(t, seconds(310), w.lookups(), "at once if the last was long ago")
	})
}

func TestNamesCloseEndsLookupsAndWatches(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.become(answer{delay: time.Hour}, answer{delay: time.Hour})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := w.DialContext(t.Context(), "tcp", target)
			assert.ErrorIs(t, err, net.ErrClosed)
		})
		wg.Go(func() {
			for range w.Watch(t.Context(), host) {
				t.Error("nothing is known")
			}
		})
		synctest.Wait()
		assert.NoError(t, w.Close())
		wg.Wait()
		assert.Zero(t, w.since())
		_, err := w.LookupNetIP(t.Context(), "ip", host)
		assert.ErrorIs(t, err, net.ErrClosed)
		for range w.Watch(t.Context(), host) {
			t.Error("it is closed")
		}
		w.Refresh(host)
		assert.NoError(t, w.Close())
		assert.NoError(t, new(names.Names).Close())
	})
}

func TestNamesCloseKeepsConnectionsOpen(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1")
		_, conn := w.dial()
		assert.NoError(t, w.Close())
		_, err := conn.Write([]byte("x"))
		assert.NoError(t, err)
		w.until(time.Minute)
		assert.NoError(t, conn.Close())
		assert.Equal(t, seconds(0), w.lookups())
	})
}

// Names stores 1024 hosts without connections.
func TestNamesForgetsUnusedHosts(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("3600 192.0.2.1")
		_, conn := w.dial()
		defer conn.Close()
		for i := range 3000 {
			_, err := w.LookupNetIP(t.Context(), "ip", fmt.Sprintf("host%d.example", i))
			require.NoError(t, err)
			synctest.Wait()
		}
		w.lookups()
		again := func(host string) int {
			_, err := w.LookupNetIP(t.Context(), "ip", host)
			require.NoError(t, err)
			return len(w.lookups())
		}
		assert.Equal(t, 0, again(host), "there is a connection")
		assert.Equal(t, 0, again("host2999.example"))
		assert.Equal(t, 0, again("host1976.example"))
		assert.Equal(t, 1, again("host1975.example"))
		assert.Equal(t, 1025, w.Kept())
	})
}

// Whatever zones, dials and callers do, lookups keep their distance, nothing is left when the
// connections are closed, and the host's new address is found.
func TestNamesStateStaysConsistent(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		ip := func() string { return fmt.Sprintf("192.0.2.%d", r.IntN(5)) }
		play(t, func(t *testing.T, w *world) {
			w.zone.set("30 192.0.2.0")
			_, first := w.dial()
			conns := []net.Conn{first}
			for range 300 {
				switch r.IntN(10) {
				case 0, 1:
					records := []string{fmt.Sprintf("%d %s", r.IntN(20), ip())}
					if r.IntN(2) == 0 {
						records = append(records, fmt.Sprintf("%d %s", r.IntN(20), ip()), "60 2001:db8::1")
					}
					w.zone.set(records...)
				case 2:
					w.fail([]int{dns.RcodeServerFailure, dns.RcodeNameError, 0}[r.IntN(3)])
				case 3:
					w.become(answer{delay: time.Hour}, answer{delay: time.Hour})
				case 4:
					w.net.set(ip(), []reach{refused, silent, {after: 300 * ms}, {}, {}}[r.IntN(5)])
				case 5:
					w.Refresh(host)
				case 6:
					for i, c := range conns[1:] {
						if r.IntN(2) == 0 {
							c.Close()
							conns = append(conns[:i+1], conns[i+2:]...)
							break
						}
					}
				default:
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if c, err := w.DialContext(ctx, "tcp", target); err == nil {
						conns = append(conns, c)
					}
					cancel()
				}
				time.Sleep(time.Duration(r.IntN(5000)) * ms)
			}
			for _, c := range conns {
				c.Close()
			}
			before := -time.Hour
			for _, at := range w.lookups() {
				assert.GreaterOrEqual(t, at-before, time.Second, "seed %d: %v", seed, at)
				before = at
			}
			w.until(2 * time.Hour)
			assert.Empty(t, w.lookups(), "seed %d", seed)
			assert.Zero(t, w.Leaving(), "seed %d", seed)
			assert.Zero(t, w.Held(), "seed %d", seed)
			w.zone.set("30 192.0.2.9")
			assert.Equal(t, "192.0.2.9", w.at(), "seed %d", seed)
		})
	}
}

func TestNamesWithoutExchangerResolvesLocalhost(t *testing.T) {
	n := new(names.Names)
	defer n.Close()
	addrs, err := n.LookupNetIP(t.Context(), "ip4", "localhost")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", addrs[0].String())
}

// A host with thousands of addresses is dialled in the time of its dials.
func TestNamesHandlesManyAddressesQuickly(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		var records []string
		for i := range 4000 {
			records = append(records, fmt.Sprintf("30 A 10.0.%d.%d", i/256, i%256))
		}
		w.become(answer{records: append(records, records...)}, answer{})
		w.Dialer = dialerFunc(func(context.Context, string, string) (net.Conn, error) { return nil, refused.err })
		assert.Len(t, w.addrs(), 4000)
		_, err := w.DialContext(t.Context(), "tcp", target)
		assert.Equal(t, refused.err, err)
	})
}

func TestNamesForgetsAddressesWithHost(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		hosts := 0
		w.Exchanger = exchanger(func(m *dns.Msg) *dns.Msg {
			if m.Question[0].Qtype != dns.TypeA {
				return dnstest.Answer(dnstest.Query{Msg: m})
			}
			hosts++
			return dnstest.Answer(dnstest.Query{Msg: m}, fmt.Sprintf("A 10.0.%d.%d", hosts/256, hosts%256))
		})
		for i := range 3000 {
			_, err := w.LookupNetIP(t.Context(), "ip", fmt.Sprintf("host%d.example", i))
			require.NoError(t, err)
		}
		synctest.Wait()
		assert.Equal(t, 1024, w.Given())
	})
}

// A Client with a Cache is asked past it, once the host is known: what Names keeps has ended.
func TestNamesBypassesCacheOfClient(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		client := &dnshedge.Client{Exchanger: &w.zone, Cache: new(dnshedge.Cache)}
		defer client.Close()
		w.Names = &names.Names{Exchanger: client, Dialer: &w.net}
		defer w.Names.Close()
		w.zone.set("300 192.0.2.1")
		_, err := client.LookupAddrs(t.Context(), host)
		require.NoError(t, err)
		w.at()
		assert.Equal(t, seconds(0), w.lookups(), "but a new host may be in it")
		w.zone.set("300 192.0.2.2")
		w.until(10 * time.Second)
		w.net.set("192.0.2.1", refused)
		assert.Equal(t, "192.0.2.2", w.at())
		assert.Equal(t, seconds(10), w.lookups())
		found, err := client.LookupAddrs(t.Context(), host)
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.2", found[0].Addr.String(), "and has the answer")
		w.fail(dns.RcodeServerFailure)
		w.until(20 * time.Second)
		w.net.set("192.0.2.2", refused)
		_, err = w.DialContext(t.Context(), "tcp", target)
		assert.ErrorIs(t, err, refused.err)
		assert.Equal(t, seconds(20), w.lookups())
		found, err = client.LookupAddrs(t.Context(), host)
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.2", found[0].Addr.String(), "a failure does not spoil it")
	})
}

func TestNamesAliasesLowerTTL(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.Exchanger = exchanger(func(m *dns.Msg) *dns.Msg {
			q := dnstest.Query{Msg: m}
			if m.Question[0].Qtype == dns.TypeA {
				_, _, _ = w.zone.ExchangeContext(t.Context(), m, "") // counts
				return dnstest.Answer(q, host+". 10 CNAME edge.example.", "edge.example. 60 A 192.0.2.1")
			}
			return dnstest.Answer(q, host+". 10 CNAME edge.example.")
		})
		_, conn := w.dial()
		defer conn.Close()
		w.until(25 * time.Second)
		assert.Equal(t, seconds(0, 10, 20), w.lookups())
	})
}

type exchanger func(m *dns.Msg) *dns.Msg

func (e exchanger) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	return e(m), 0, nil
}

// A caller that wants one family waits for it, even if the other family is known.
func TestNamesWaitsForFamilyOfNewHost(t *testing.T) {
	for _, after := range []time.Duration{100 * ms, 3 * time.Second} {
		for _, failed := range []bool{false, true} {
			play(t, func(t *testing.T, w *world) {
				if failed {
					w.fail(dns.RcodeServerFailure)
					_, err := w.LookupNetIP(t.Context(), "ip", host)
					assert.Error(t, err)
				}
				w.become(answer{records: []string{"300 A 192.0.2.1"}, delay: after}, answer{records: []string{"300 AAAA 2001:db8::1"}, delay: 10 * ms})
				w.net.set("2001:db8::1", refused) // as if this machine had no IPv6
				var wg sync.WaitGroup
				wg.Go(func() {
					found, err := w.LookupNetIP(t.Context(), "ip4", host)
					assert.NoError(t, err)
					assert.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, found)
				})
				for _, network := range []string{"tcp", "tcp4"} {
					wg.Go(func() {
						conn, err := w.DialContext(t.Context(), network, target)
						if assert.NoError(t, err) {
							conn.Close()
						}
					})
				}
				wg.Wait()
				assert.Equal(t, after, w.since())
			})
		}
	}
}

// Hosts with concurrent connections are forgotten after use like other hosts.
func TestNamesForgetsHostsAfterBurst(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		var conns []net.Conn
		for i := range 1500 {
			conn, err := w.DialContext(t.Context(), "tcp", fmt.Sprintf("host%d.example:80", i))
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		assert.Equal(t, 1500, w.Kept())
		for _, conn := range conns {
			conn.Close()
		}
		synctest.Wait()
		assert.Equal(t, 1024, w.Kept())
	})
}

// A stranger's zone may have thousands of addresses for each of its names.
func TestNamesLimitsAddressesOfUnusedHosts(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		var records []string
		for i := range 1000 {
			records = append(records, fmt.Sprintf("300 10.0.%d.%d", i/256, i%256))
		}
		w.zone.set(records...)
		for i := range 100 {
			_, err := w.LookupNetIP(t.Context(), "ip", fmt.Sprintf("host%d.example", i))
			require.NoError(t, err)
			synctest.Wait()
		}
		assert.Equal(t, 65, w.Kept())
	})
}

func TestNamesUnknownHostsDisplaceNoOthers(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("3600 192.0.2.1")
		w.addrs()
		w.fail(dns.RcodeNameError)
		for i := range 2000 {
			_, err := w.LookupNetIP(t.Context(), "ip", fmt.Sprintf("host%d.example", i))
			assert.Error(t, err)
		}
		w.lookups()
		w.addrs()
		assert.Empty(t, w.lookups())
		assert.Equal(t, 1, w.Kept())
	})
}

// A caller that waited for a failed lookup does not wait for the next one.
func TestNamesCallerWaitsForOneLookup(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.become(answer{rcode: dns.RcodeServerFailure, delay: time.Second}, answer{rcode: dns.RcodeServerFailure, delay: time.Second})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 20 {
					began := time.Now()
					_, err := w.LookupNetIP(t.Context(), "ip", host)
					assert.Error(t, err)
					assert.LessOrEqual(t, time.Since(began), time.Second)
				}
			})
		}
		wg.Wait()
	})
}

func TestNamesReportsExchangerWithoutResult(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.Exchanger = exchanger(func(*dns.Msg) *dns.Msg { return nil })
		_, err := w.LookupNetIP(t.Context(), "ip", host)
		var e *net.DNSError
		assert.ErrorAs(t, err, &e)
	})
}

func TestWatchWithEndedContextSendsNothing(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range w.Watch(ctx, host) {
			t.Error("it has ended")
		}
		assert.Empty(t, w.lookups())
		assert.Zero(t, w.Held())
	})
}

// A loop over a Watch may panic, and two may go over the same sequence.
func TestWatchReleasesHost(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("30 192.0.2.1")
		seq := w.Watch(t.Context(), host)
		assert.Panics(t, func() {
			for range seq {
				panic("enough")
			}
		})
		for range seq {
			for range seq {
				break
			}
			break
		}
		assert.Zero(t, w.Held())
		for range seq { // and may close the Names
			w.Close()
		}
		assert.Zero(t, w.Held())
	})
}

// No goroutine of ours has a caller that could recover a panic.
func TestNamesRecoversPanicOfExchanger(t *testing.T) {
	for name, fail := range map[string]func(){
		"names: Exchanger panicked: no more":                        func() { panic("no more") },
		"names: Exchanger returned neither a response nor an error": runtime.Goexit,
	} {
		play(t, func(t *testing.T, w *world) {
			w.Exchanger = exchanger(func(*dns.Msg) *dns.Msg { fail(); return nil })
			_, err := w.LookupNetIP(t.Context(), "ip", host)
			assert.ErrorContains(t, err, name)
			w.Exchanger = &w.zone
			w.zone.set("30 192.0.2.1")
			assert.Equal(t, "192.0.2.1", w.at(), "the next lookup finds what there is")
		})
	}
}

// Functions of the user may call methods of the Names.
func TestNamesCallsUserCodeWithoutLock(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		busy := callback(func() { w.Refresh(host) })
		w.become(answer{err: busy}, answer{err: busy})
		ctx := callingContext{t.Context(), busy}
		_, err := w.LookupNetIP(ctx, "ip", host)
		assert.ErrorContains(t, err, "busy")
		for _, err := range w.Watch(ctx, host) {
			assert.ErrorContains(t, err, "busy")
			break
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		w.become(answer{delay: time.Second}, answer{delay: time.Second})
		_, err = w.DialContext(callingContext{ended, busy}, "tcp", target)
		assert.ErrorIs(t, err, context.Canceled)
	})
}

// callback is an error, and calls itself.
type callback func()

func (c callback) Error() string { c(); return "busy" }

type callingContext struct {
	context.Context
	callback
}

func (c callingContext) Err() error                  { c.callback(); return c.Context.Err() }
func (c callingContext) Done() <-chan struct{}       { c.callback(); return c.Context.Done() }
func (c callingContext) Value(key any) any           { c.callback(); return c.Context.Value(key) }
func (c callingContext) Deadline() (time.Time, bool) { c.callback(); return c.Context.Deadline() }
