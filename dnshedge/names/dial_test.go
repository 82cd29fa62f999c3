package names_test

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/names"
)

var silent = reach{after: -1}

func TestDialContextTriesNextAddressAfter250ms(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1", "300 192.0.2.2", "300 2001:db8::1", "300 2001:db8::2")
		w.addrs()
		for _, ip := range []string{"192.0.2.1", "2001:db8::1", "2001:db8::2"} {
			w.net.set(ip, silent)
		}
		assert.Equal(t, "192.0.2.2", w.at())
		assert.Equal(t, []dialled{{"2001:db8::2", 0}, {"192.0.2.2", 250 * ms}}, w.net.made(), "IPv6 first, and the families take turns")
		assert.Equal(t, "192.0.2.2", w.at())
		assert.Equal(t, []dialled{{"2001:db8::1", 250 * ms}, {"192.0.2.1", 500 * ms}, {"192.0.2.2", 750 * ms}}, w.net.made(),
			"one that was overtaken comes last; the addresses of a family take turns")
		w.at()
		assert.Equal(t, []dialled{{"192.0.2.2", 750 * ms}}, w.net.made())
		w.until(2 * time.Minute)
		w.at()
		assert.Len(t, w.net.made(), 4, "a minute later all is forgiven")
	})
}

func TestDialContextTriesNextAddressAtOnceAfterFailure(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1", "300 192.0.2.2", "300 2001:db8::1")
		w.addrs()
		w.net.set("2001:db8::1", reach{err: syscall.ENETUNREACH})
		w.net.set("192.0.2.2", reach{after: 100 * ms, err: refused.err})
		assert.Equal(t, "192.0.2.1", w.at())
		assert.Equal(t, []dialled{{"2001:db8::1", 0}, {"192.0.2.2", 0}, {"192.0.2.1", 100 * ms}}, w.net.made())
		assert.Equal(t, "192.0.2.1", w.at())
		assert.Equal(t, []dialled{{"192.0.2.1", 100 * ms}}, w.net.made())
		w.until(10 * time.Second)
		w.at()
		assert.Equal(t, seconds(0), w.lookups(), "what was never reached tells nothing: this machine may have no IPv6")
	})
}

func TestDialContextIPv4WaitsForIPv6(t *testing.T) {
	for _, test := range []struct {
		six   time.Duration
		first string
		at    time.Duration
	}{
		{59 * ms, "2001:db8::1", 59 * ms},
		{61 * ms, "192.0.2.1", 60 * ms},
		{time.Hour, "192.0.2.1", 60 * ms},
	} {
		play(t, func(t *testing.T, w *world) {
			w.become(answer{records: []string{"300 A 192.0.2.1"}, delay: 10 * ms}, answer{records: []string{"300 AAAA 2001:db8::1"}, delay: test.six})
			assert.Equal(t, test.first, w.at())
			assert.Equal(t, []dialled{{test.first, test.at}}, w.net.made())
		})
	}
	play(t, func(t *testing.T, w *world) {
		w.become(answer{records: []string{"300 A 192.0.2.1"}, delay: time.Second}, answer{records: []string{"300 AAAA 2001:db8::1"}, delay: 10 * ms})
		w.net.set("2001:db8::1", silent)
		assert.Equal(t, "192.0.2.1", w.at())
		assert.Equal(t, []dialled{{"2001:db8::1", 10 * ms}, {"192.0.2.1", time.Second}}, w.net.made(), "IPv6 does not wait, and IPv4 joins in")
	})
}

func TestDialContextFailureStartsOneLookup(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		w.at()
		w.until(10 * time.Second)
		w.become(answer{records: []string{"300 A 192.0.2.2"}, delay: 100 * ms}, answer{delay: 100 * ms})
		w.net.set("192.0.2.1", refused)
		got := make(chan string, 50)
		for range cap(got) {
			go func() { got <- w.at() }()
		}
		for range cap(got) {
			assert.Equal(t, "192.0.2.2", <-got, "all callers go on with the new address")
		}
		assert.Equal(t, 10*time.Second+100*ms, w.since())
		assert.Equal(t, seconds(0, 10), w.lookups())
	})
}

func TestDialContextFailuresLookUpEveryFiveSeconds(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		w.net.set("192.0.2.1", refused)
		for w.since() < 20*time.Second {
			_, err := w.DialContext(t.Context(), "tcp", target)
			assert.Equal(t, refused.err, err, "the Dialer's own error")
			time.Sleep(10 * ms)
		}
		assert.Equal(t, seconds(0, 5, 10, 15), w.lookups())
	})
}

func TestDialContextLooksUpAfterReachedAddressFails(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1", "300 192.0.2.2")
		w.at()
		w.at() // both
		w.until(10 * time.Second)
		w.net.made()
		w.zone.set("300 192.0.2.2", "300 192.0.2.3")
		w.net.set("192.0.2.1", refused)
		w.at()
		w.at()
		synctest.Wait()
		assert.ElementsMatch(t, []string{"192.0.2.2", "192.0.2.3"}, w.addrs())
		assert.Equal(t, seconds(0, 10), w.lookups())
	})
}

func TestDialContextSeparatesPorts(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1", "300 192.0.2.2")
		w.Dialer = dialerFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "192.0.2.1:9090" {
				return nil, refused.err
			}
			return w.net.DialContext(ctx, network, address)
		})
		met := make(map[string]int)
		for range 10 {
			conn, err := w.DialContext(t.Context(), "tcp", host+":9090")
			require.NoError(t, err)
			conn.Close()
			met[w.at()]++
			met[w.at()]++
			w.until(w.since() + 6*time.Second)
		}
		assert.Equal(t, map[string]int{"192.0.2.1": 10, "192.0.2.2": 10}, met, "addresses take turns")
		assert.Equal(t, seconds(0), w.lookups(), "it was never reached")
		assert.ElementsMatch(t, []string{"192.0.2.1", "192.0.2.2"}, w.addrs())
	})
}

func TestDialContextWaitsASecondForLookup(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		w.at()
		w.until(10 * time.Second)
		w.become(answer{delay: time.Hour}, answer{delay: time.Hour})
		w.net.set("192.0.2.1", refused)
		_, err := w.DialContext(t.Context(), "tcp", target)
		assert.Equal(t, refused.err, err)
		assert.Equal(t, 11*time.Second, w.since())
		_, err = w.DialContext(t.Context(), "tcp", target)
		assert.Equal(t, refused.err, err)
		assert.Equal(t, 11*time.Second, w.since(), "and no other waits again")
	})
}

func TestDialContextEndsWithContext(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		w.at()
		w.net.set("192.0.2.1", silent)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := w.DialContext(ctx, "tcp", target)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		var op net.Error
		assert.True(t, errors.As(err, &op) && op.Timeout())
		assert.Equal(t, 3*time.Second, w.since())
		w.until(20 * time.Second)
		w.net.set("192.0.2.1", reach{})
		w.at()
		assert.Equal(t, seconds(0), w.lookups(), "the caller's time tells nothing of the host")
	})
}

func TestDialContextClosesLateConnection(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		late := make(chan *closable, 1)
		w.Dialer = dialerFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := w.net.DialContext(ctx, network, address)
			if ip, _, _ := net.SplitHostPort(address); ip == "2001:db8::1" {
				time.Sleep(400 * ms)
				c := &closable{Conn: conn}
				late <- c
				return c, err
			}
			return conn, err
		})
		w.zone.set("300 192.0.2.1", "300 2001:db8::1")
		assert.Equal(t, "192.0.2.1", w.at())
		w.until(time.Second)
		assert.True(t, (<-late).closed)
	})
}

type closable struct {
	net.Conn
	closed bool
}

func (c *closable) Close() error {
	c.closed = true
	return c.Conn.Close()
}

type dialerFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (f dialerFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

func TestDialContextPassesOtherAddressesToDialer(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		var got []string
		w.Dialer = dialerFunc(func(_ context.Context, network, address string) (net.Conn, error) {
			got = append(got, network+" "+address)
			return nil, refused.err
		})
		for _, a := range [][2]string{{"tcp", "192.0.2.1:80"}, {"tcp6", "[fe80::1%eth0]:80"}, {"tcp", ":80"}, {"unix", "/run/x:1"}, {"tcp", "without.port"}} {
			_, err := w.DialContext(t.Context(), a[0], a[1])
			assert.Equal(t, refused.err, err)
		}
		assert.Equal(t, []string{"tcp 192.0.2.1:80", "tcp6 [fe80::1%eth0]:80", "tcp :80", "unix /run/x:1", "tcp without.port"}, got)
		assert.Empty(t, w.lookups())
	})
}

func TestDialContextReportsFamilyWithoutAddresses(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		_, err := w.DialContext(t.Context(), "tcp6", target)
		assert.ErrorContains(t, err, "no suitable address")
		assert.IsType(t, &net.OpError{}, err)
		assert.Empty(t, w.net.made())
		assert.Equal(t, "192.0.2.1", w.at())
	})
}

func TestDialContextReportsDialerWithoutResult(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1")
		w.Dialer = dialerFunc(func(context.Context, string, string) (net.Conn, error) { return nil, nil })
		_, err := w.DialContext(t.Context(), "tcp", target)
		assert.ErrorContains(t, err, "neither a connection nor an error")
	})
}

func TestDialContextRecoversPanicOfDialer(t *testing.T) {
	for want, fail := range map[string]func(){
		"names: Dialer panicked: no more":                          func() { panic("no more") },
		"names: Dialer returned neither a connection nor an error": runtime.Goexit,
	} {
		play(t, func(t *testing.T, w *world) {
			w.zone.set("300 192.0.2.1", "300 2001:db8::1")
			w.Dialer = dialerFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
				if strings.HasPrefix(address, "[") {
					fail()
				}
				return w.net.DialContext(ctx, network, address)
			})
			assert.Equal(t, "192.0.2.1", w.at())
			_, err := w.DialContext(t.Context(), "tcp6", target)
			assert.EqualError(t, err, want)
		})
	}
}

// No lookup and no goroutine is needed for these addresses.
func TestDialContextRecoversPanicForAddress(t *testing.T) {
	for want, fail := range map[string]dialerFunc{
		"names: Dialer panicked: no more":                          func(context.Context, string, string) (net.Conn, error) { panic("no more") },
		"names: Dialer returned neither a connection nor an error": func(context.Context, string, string) (net.Conn, error) { return nil, nil },
	} {
		play(t, func(t *testing.T, w *world) {
			w.Dialer = fail
			for _, a := range [][2]string{{"tcp", "192.0.2.1:80"}, {"udp6", "[2001:db8::1]:53"}, {"tcp", ":80"}, {"unix", "/run/x"}} {
				conn, err := w.DialContext(t.Context(), a[0], a[1])
				assert.EqualError(t, err, want, a)
				assert.Nil(t, conn, a)
			}
		})
	}
}

func TestDialContextOfAddressFailsAfterClose(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		require.NoError(t, w.Close())
		for _, a := range [][2]string{{"tcp", "192.0.2.1:80"}, {"udp6", "[2001:db8::1]:53"}, {"tcp", ":80"}, {"unix", "/run/x"}} {
			_, err := w.DialContext(t.Context(), a[0], a[1])
			require.ErrorIs(t, err, net.ErrClosed, a)
			assert.IsType(t, &net.OpError{}, err)
		}
		_, err := w.LookupNetIP(t.Context(), "ip", "192.0.2.1")
		require.ErrorIs(t, err, net.ErrClosed)
		assert.Empty(t, w.net.made())
	})
}

// A connection that comes too late is closed, and its Close may panic.
func TestDialContextRecoversPanicOfLateConnection(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1", "300 2001:db8::1")
		late := new(closable) // of nothing
		w.Dialer = dialerFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "[") {
				time.Sleep(time.Second)
				return late, nil
			}
			return w.net.DialContext(ctx, network, address)
		})
		assert.Equal(t, "192.0.2.1", w.at())
		w.until(10 * time.Second)
		assert.True(t, late.closed)
	})
}

var _ dnshedge.Dialer = dialerFunc(nil)

// A connection of package net keeps its methods, such as ReadFrom, which sends files without a copy.
func TestDialContextReturnsTCPMethods(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	n := &names.Names{Exchanger: &zone{a: answer{records: []string{"300 A 127.0.0.1"}}}}
	defer n.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	conn, err := n.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
	require.NoError(t, err)
	defer conn.Close()
	assert.Implements(t, (*interface {
		SetKeepAlive(bool) error
		CloseWrite() error
	})(nil), conn)
	assert.IsType(t, &net.TCPConn{}, conn.(interface{ NetConn() net.Conn }).NetConn())
}

// Packages such as miekg/dns detect by its type whether a connection has messages.
func TestDialContextReturnsUDPMethods(t *testing.T) {
	n := &names.Names{Exchanger: &zone{a: answer{records: []string{"300 A 127.0.0.1"}}}}
	defer n.Close()
	conn, err := n.DialContext(t.Context(), "udp", net.JoinHostPort(host, "9"))
	require.NoError(t, err)
	assert.Implements(t, (*net.PacketConn)(nil), conn)
	assert.IsType(t, &net.UDPConn{}, conn.(interface{ NetConn() net.Conn }).NetConn())
	assert.Positive(t, n.Held())
	assert.NoError(t, conn.Close())
	assert.Zero(t, n.Held())
}

// After 2³¹ dials, too, on a computer of 32 bits.
func TestDialContextRotationWrapsAround(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.zone.set("300 192.0.2.1", "300 192.0.2.2", "300 192.0.2.3")
		w.addrs()
		w.SetTurn(host, math.MaxUint-3)
		for range 8 {
			w.at()
		}
	})
}
