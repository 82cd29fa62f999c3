package names_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
)

const (
	ms     = time.Millisecond
	host   = "api.example"
	target = host + ":443"
)

// zone answers questions as configured, and records the times of A questions.
type zone struct {
	mu    sync.Mutex
	start time.Time
	a     answer
	aaaa  answer
	asked []time.Duration // since start
}

// answer is the configured answer for a record type.
type answer struct {
	records []string // each "TTL TYPE DATA"
	rcode   int
	err     error
	delay   time.Duration
}

// set makes records, each "TTL ADDRESS", the answer.
func (z *zone) set(records ...string) {
	var a, aaaa answer
	for _, r := range records {
		ttl, ip, _ := strings.Cut(r, " ")
		if strings.Contains(ip, ":") {
			aaaa.records = append(aaaa.records, ttl+" AAAA "+ip)
		} else {
			a.records = append(a.records, ttl+" A "+ip)
		}
	}
	z.become(a, aaaa)
}

func (z *zone) fail(rcode int) { z.become(answer{rcode: rcode}, answer{rcode: rcode}) }

func (z *zone) become(a, aaaa answer) {
	synctest.Wait() // what has been asked is answered as before
	z.mu.Lock()
	defer z.mu.Unlock()
	z.a, z.aaaa = a, aaaa
}

func (z *zone) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	z.mu.Lock()
	found := z.aaaa
	if m.Question[0].Qtype == dns.TypeA {
		found = z.a
		z.asked = append(z.asked, time.Since(z.start))
	}
	z.mu.Unlock()
	if found.delay > 0 {
		select {
		case <-time.After(found.delay):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	if found.err != nil {
		return nil, 0, found.err
	}
	q := dnstest.Query{Msg: m}
	if found.rcode != 0 {
		return dnstest.Rcode(q, found.rcode), 0, nil
	}
	return dnstest.Answer(q, found.records...), 0, nil
}

// lookups returns when the host was looked up, and forgets it.
func (z *zone) lookups() []time.Duration {
	synctest.Wait()
	z.mu.Lock()
	defer z.mu.Unlock()
	asked := z.asked
	z.asked = nil
	return asked
}

// dialer is a Dialer that opens no sockets: its connections read until they are closed.
type dialer struct {
	mu    sync.Mutex
	start time.Time
	reach map[string]reach // by IP address; others connect at once
	dials []dialled
}

// reach is how an address can be reached.
type reach struct {
	after time.Duration // negative: never
	err   error         // then
}

var refused = reach{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}

type dialled struct {
	address string
	at      time.Duration
}

func (d *dialer) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	ip, _, _ := net.SplitHostPort(address)
	d.mu.Lock()
	d.dials = append(d.dials, dialled{ip, time.Since(d.start)})
	r := d.reach[ip]
	d.mu.Unlock()
	if r.after < 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if r.after > 0 {
		select {
		case <-time.After(r.after):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	own, other := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, other) }()
	return &pipe{own, ip}, nil
}

func (d *dialer) set(ip string, r reach) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reach == nil {
		d.reach = make(map[string]reach)
	}
	d.reach[ip] = r
}

// made returns the recorded dials, and clears the record.
func (d *dialer) made() []dialled {
	d.mu.Lock()
	defer d.mu.Unlock()
	dials := d.dials
	d.dials = nil
	return dials
}

type pipe struct {
	net.Conn
	ip string
}

// world is a Names with a zone and a dialer for tests, in fake time.
type world struct {
	*names.Names
	t *testing.T
	zone
	net   dialer
	start time.Time
}

// play runs a test in fake time.
func play(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, start: time.Now()}
		w.zone.start, w.net.start = w.start, w.start
		w.Names = &names.Names{Exchanger: &w.zone, Dialer: &w.net}
		defer w.Close()
		f(t, w)
	})
}

// until sleeps until d after the start.
func (w *world) until(d time.Duration) {
	time.Sleep(time.Until(w.start.Add(d)))
	synctest.Wait()
}

// since returns the time since the start.
func (w *world) since() time.Duration { return time.Since(w.start) }

// dial connects, and returns the address that it has come to, and the connection.
func (w *world) dial() (string, net.Conn) {
	w.t.Helper()
	conn, err := w.DialContext(w.t.Context(), "tcp", target)
	require.NoError(w.t, err)
	return conn.(interface{ NetConn() net.Conn }).NetConn().(*pipe).ip, conn
}

// at dials, closes the connection, and returns its address.
func (w *world) at() string {
	w.t.Helper()
	ip, conn := w.dial()
	conn.Close()
	return ip
}

// addrs returns the addresses that LookupNetIP has.
func (w *world) addrs() []string {
	w.t.Helper()
	found, err := w.LookupNetIP(w.t.Context(), "ip", host)
	require.NoError(w.t, err)
	var out []string
	for _, ip := range found {
		out = append(out, ip.String())
	}
	return out
}

func seconds(s ...float64) (out []time.Duration) {
	for _, s := range s {
		out = append(out, time.Duration(s*float64(time.Second)))
	}
	return out
}

func assertNotFound(t *testing.T, err error) {
	t.Helper()
	var e *net.DNSError
	if assert.True(t, errors.As(err, &e), "%v", err) {
		assert.True(t, e.IsNotFound)
		assert.Equal(t, host, e.Name)
	}
}
