package grpcnames_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/dnshedge/grpcnames"
	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
)

// zone answers A questions with its records, and other questions with an empty answer.
type zone struct {
	start time.Time

	mu      sync.Mutex // guards the fields below
	records []string
	rcode   int
	asked   []time.Duration
}

func (z *zone) set(rcode int, records ...string) {
	synctest.Wait()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.rcode, z.records = rcode, records
}

func (z *zone) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	q := dnstest.Query{Msg: m}
	if m.Question[0].Qtype != dns.TypeA {
		return dnstest.Rcode(q, z.rcode), 0, nil
	}
	z.asked = append(z.asked, time.Since(z.start))
	if z.rcode != 0 {
		return dnstest.Rcode(q, z.rcode), 0, nil
	}
	return dnstest.Answer(q, z.records...), 0, nil
}

// lookups returns when the host was looked up.
func (z *zone) lookups() []time.Duration {
	synctest.Wait()
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

// conn is a ClientConn that records the states and errors that it receives.
type conn struct {
	resolver.ClientConn
	start time.Time
	names *names.Names

	mu     sync.Mutex // guards the fields below
	told   []told
	refuse error
	failed error // the last that was reported
}

type told struct {
	at    time.Duration
	addrs string
	err   bool
}

func (c *conn) UpdateState(s resolver.State) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var addrs []string
	for _, a := range s.Addresses {
		addrs = append(addrs, a.Addr)
	}
	c.told = append(c.told, told{time.Since(c.start), strings.Join(addrs, " "), false})
	return c.refuse
}

func (c *conn) ReportError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	var e *net.DNSError
	c.told = append(c.told, told{time.Since(c.start), "", errors.As(err, &e) || errors.Is(err, net.ErrClosed)})
}

// refuses sets the error that UpdateState returns.
func (c *conn) refuses(err error) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = err
}

// failure returns the last error that was reported.
func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// heard returns the recorded states and errors, and clears the record.
func (c *conn) heard() []told {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.told
	c.told = nil
	return told
}

// tellings returns the record after one state.
func tellings(addrs string, seconds ...int) (all []told) {
	for _, s := range seconds {
		all = append(all, told{time.Duration(s) * time.Second, addrs, false})
	}
	return all
}

// play runs a test in fake time.
func play(t *testing.T, f func(t *testing.T, z *zone, c *conn, build func(target string) (resolver.Resolver, error), until func(s int))) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		z, c := &zone{start: start}, &conn{start: start}
		n := &names.Names{Exchanger: z}
		defer n.Close()
		c.names = n
		b := grpcnames.NewBuilder(n)
		assert.Equal(t, "hedgedns", b.Scheme())
		f(t, z, c, func(target string) (resolver.Resolver, error) {
			u, err := url.Parse(target)
			require.NoError(t, err)
			return b.Build(resolver.Target{URL: *u}, c, resolver.BuildOptions{})
		}, func(s int) {
			time.Sleep(time.Until(start.Add(time.Duration(s) * time.Second)))
			synctest.Wait()
		})
	})
}

func TestResolverPassesChangesToBalancer(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
		z.set(dns.RcodeServerFailure)
		r, err := build("hedgedns:///api.example:8443")
		require.NoError(t, err)
		until(2)
		z.set(0, "30 A 192.0.2.1", "30 A 192.0.2.2")
		until(20)
		z.set(dns.RcodeServerFailure)
		until(40)
		z.set(dns.RcodeNameError)
		until(60)
		z.set(0, "30 A 192.0.2.2", "30 A 192.0.2.1")
		until(100)
		z.set(0, "30 A 192.0.2.3")
		until(200)
		assert.Equal(t, []told{
			{0, "", true}, {time.Second, "", true},
			{3 * time.Second, "192.0.2.1:8443 192.0.2.2:8443", false},
			{128 * time.Second, "192.0.2.3:8443", false},
		}, c.heard(), "not of failures when there are addresses, nor of another order")
		r.Close()
		z.set(0, "30 A 192.0.2.4")
		asked := len(z.asked)
		until(1000)
		assert.Empty(t, c.heard())
		assert.Len(t, z.asked, asked)
		r.ResolveNow(resolver.ResolveNowOptions{})
		assert.Empty(t, c.heard())
	})
}

func TestResolveNowWaitsForMinTTL(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
		z.set(0, "300 A 192.0.2.1")
		r, err := build("hedgedns:///api.example")
		require.NoError(t, err)
		defer r.Close()
		until(1)
		z.set(0, "300 A 192.0.2.2")
		for range 100 {
			r.ResolveNow(resolver.ResolveNowOptions{})
		}
		until(7)
		assert.Equal(t, []told{{0, "192.0.2.1:443", false}, {5 * time.Second, "192.0.2.2:443", false}}, c.heard())
		assert.Len(t, z.asked, 2)
		until(60)
		r.ResolveNow(resolver.ResolveNowOptions{})
		synctest.Wait()
		assert.Equal(t, time.Minute, z.asked[2])
	})
}

func TestResolverPassesRefusedStateAgain(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
		z.set(0, "300 A 192.0.2.1")
		c.refuses(errors.New("bad state"))
		r, err := build("hedgedns:///api.example")
		require.NoError(t, err)
		defer r.Close()
		until(2)
		assert.Equal(t, tellings("192.0.2.1:443", 0, 1), c.heard())
		until(100)
		assert.Equal(t, tellings("192.0.2.1:443", 3, 7, 15, 31, 63), c.heard(), "after twice the time")
		assert.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second, 31 * time.Second, 63 * time.Second}, z.lookups(), "no faster than MinTTL")
		until(300)
		assert.Equal(t, tellings("192.0.2.1:443", 123, 183, 243), c.heard(), "after a minute at most")
		c.refuses(nil)
		until(1000)
		assert.Equal(t, tellings("192.0.2.1:443", 303), c.heard(), "until it is taken")
	})
}

func TestResolverReplacesRefusedState(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
		z.set(0, "300 A 192.0.2.1")
		c.refuses(errors.New("bad state"))
		r, err := build("hedgedns:///api.example")
		require.NoError(t, err)
		defer r.Close()
		until(4)
		assert.Equal(t, tellings("192.0.2.1:443", 0, 1, 3), c.heard())
		z.set(0, "300 A 192.0.2.2")
		until(6)
		assert.Equal(t, tellings("192.0.2.2:443", 5, 6), c.heard(), "looked up again, and told anew")
		c.refuses(nil)
		until(200)
		assert.Equal(t, tellings("192.0.2.2:443", 8), c.heard())
	})
}

func TestResolverPassesRefusedAddressAgain(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
		c.refuses(errors.New("not yet"))
		r, err := build("hedgedns:///192.0.2.9")
		require.NoError(t, err)
		until(2)
		c.refuses(nil)
		until(100)
		assert.Equal(t, tellings("192.0.2.9:443", 0, 1, 3), c.heard())
		assert.Empty(t, z.lookups())
		r.Close()
	})
}

func TestResolverPassesNothingAfterClose(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
		z.set(0, "300 A 192.0.2.1")
		c.refuses(errors.New("bad state"))
		for _, target := range []string{"hedgedns:///api.example", "hedgedns:///192.0.2.9"} {
			r, err := build(target)
			require.NoError(t, err)
			assert.Len(t, c.heard(), 1)
			r.Close()
		}
		until(100)
		assert.Empty(t, c.heard())
	})
}

func TestResolverReportsClosedNames(t *testing.T) {
	for _, rcode := range []int{dns.RcodeSuccess, dns.RcodeServerFailure} {
		play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), until func(int)) {
			z.set(rcode, "300 A 192.0.2.1")
			r, err := build("hedgedns:///api.example")
			require.NoError(t, err)
			defer r.Close()
			assert.Len(t, c.heard(), 1)
			c.names.Close()
			assert.Equal(t, []told{{err: true}}, c.heard())
			assert.ErrorIs(t, c.failure(), net.ErrClosed)
			until(100)
			assert.Empty(t, c.heard())
		})
	}
}

func TestCallFailsAfterNamesIsClosed(t *testing.T) {
	n := new(names.Names)
	n.Close()
	for _, balancer := range []string{"pick_first", "round_robin"} {
		conn, err := grpc.NewClient("hedgedns:///api.example:443", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithResolvers(grpcnames.NewBuilder(n)), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+balancer+`":{}}]}`))
		require.NoError(t, err)
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = conn.Invoke(ctx, "/a.B/C", nil, nil)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.ErrorContains(t, err, "Names is closed")
	}
}

func TestBuilderParsesTargets(t *testing.T) {
	play(t, func(t *testing.T, z *zone, c *conn, build func(string) (resolver.Resolver, error), _ func(int)) {
		z.set(0, "300 A 192.0.2.1")
		for target, want := range map[string]string{
			"hedgedns:///api.example":          "192.0.2.1:443",
			"hedgedns:///api.example:80":       "192.0.2.1:80",
			"hedgedns:api.example:80":          "192.0.2.1:80",
			"hedgedns:///192.0.2.9":            "192.0.2.9:443",
			"hedgedns:///192.0.2.9:80":         "192.0.2.9:80",
			"hedgedns:///2001:db8::1":          "[2001:db8::1]:443",
			"hedgedns:///[2001:db8::1]":        "[2001:db8::1]:443",
			"hedgedns:///[2001:db8::1]:80":     "[2001:db8::1]:80",
			"hedgedns:///[fe80::1%25eth0]:80":  "[fe80::1%eth0]:80",
			"hedgedns:///api.example.:grpc-tl": "192.0.2.1:grpc-tl",
		} {
			r, err := build(target)
			require.NoError(t, err, target)
			if told := c.heard(); assert.Len(t, told, 1, target) {
				assert.Equal(t, want, told[0].addrs, target)
			}
			r.ResolveNow(resolver.ResolveNowOptions{})
			r.Close()
		}
		for target, want := range map[string]string{
			"hedgedns://192.0.2.53/api.example": `grpcnames: target "hedgedns://192.0.2.53/api.example" has the authority "192.0.2.53"; want hedgedns:///host:port`,
			"hedgedns:///":                      `grpcnames: target "hedgedns:///" lacks a host or a port; want hedgedns:///host:port`,
			"hedgedns:///:80":                   `grpcnames: target "hedgedns:///:80" lacks a host or a port; want hedgedns:///host:port`,
			"hedgedns:///api.example:":          `grpcnames: target "hedgedns:///api.example:" lacks a host or a port; want hedgedns:///host:port`,
			"hedgedns:///[2001:db8::1":          `grpcnames: target "hedgedns:///[2001:db8::1": address [2001:db8::1:443: missing ']' in address`,
		} {
			_, err := build(target)
			assert.EqualError(t, err, want)
		}
		assert.Empty(t, c.heard())
	})
	assert.Panics(t, func() { grpcnames.NewBuilder(nil) })
}
