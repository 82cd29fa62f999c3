package dnshedge

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mediaType = "application/dns-message"

	// Windows that hold a few of the largest messages. Large ones let a server
	// queue megabytes in front of an answer.
	streamWindow = 1 << 17
	connWindow   = 1 << 18

	pingAfter = 5 * time.Second // of silence on a connection with queries
	pingWait  = 2 * time.Second
)

// StatusError is what an exchange over HTTPS fails with if the server answers
// with another HTTP status than 200.
type StatusError struct {
	Upstream Upstream
	Code     int
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("dnshedge: upstream %s: HTTP status %d %s", e.Upstream, e.Code, http.StatusText(e.Code))
}

// doh asks over HTTPS (RFC 8484) with GET and ID 0, so that HTTP caches work,
// and net/http may repeat a query whose connection was closed under it. Each
// lane has a transport and so a connection of its own.
type doh struct {
	opener
	obs   observer
	url   url.URL
	tls   *tls.Config
	bare  func() bool
	size  int
	lanes [2]atomic.Pointer[site]

	ctx    context.Context // of all requests
	cancel context.CancelFunc
	mu     sync.Mutex // makes closed and adding to wg one step
	closed bool
	wg     sync.WaitGroup // of requests
}

var _ transport = (*doh)(nil)

// site is a lane's transport.
type site struct {
	http *http.Transport
	seen atomic.Int64 // when something last arrived, Unix ns
	open atomic.Bool  // a connection was opened and used

	mu      sync.Mutex // guards the fields below
	conns   []net.Conn // that are open; one, as a rule
	busy    int        // requests in flight
	retired bool       // closes with its last request
}

// enter counts a request.
func (s *site) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy++; s.busy == 1 {
		s.seen.Store(time.Now().UnixNano()) // silence begins with the first who waits
	}
}

func (s *site) leave() {
	s.mu.Lock()
	s.busy--
	over := s.busy == 0 && s.retired
	s.mu.Unlock()
	if over {
		s.close()
	}
}

// tracked is a connection that its site knows of while it is open.
type tracked struct {
	net.Conn
	site *site
}

func (s *site) track(c net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, c)
	return &tracked{c, s}
}

func (t *tracked) Close() error {
	t.site.mu.Lock()
	if i := slices.Index(t.site.conns, t.Conn); i >= 0 {
		t.site.conns = slices.Delete(t.site.conns, i, i+1)
	}
	t.site.mu.Unlock()
	return t.Conn.Close()
}

// path returns the round trip time of the newest connection, or 0.
func (s *site) path() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == 0 {
		return 0
	}
	return pathTime(s.conns[len(s.conns)-1])
}

func newDoH(o opener, obs observer, config *tls.Config, size int, bare func() bool) *doh {
	d := &doh{opener: o, obs: obs, tls: config, size: size, bare: bare}
	host := o.up.Addr
	if h, port, err := net.SplitHostPort(host); err == nil && port == ports["https"] {
		host = h
		if ip := net.ParseIP(h); ip != nil && ip.To4() == nil {
			host = "[" + h + "]"
		}
	}
	d.url = url.URL{Scheme: "https", Host: host}
	if u, err := d.url.Parse(o.up.path()); err == nil {
		d.url = *u
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for i := range d.lanes {
		d.lanes[i].Store(d.newSite())
	}
	return d
}

func (d *doh) newSite() *site {
	s := new(site)
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(true) // for servers that speak nothing better
	s.http = &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			c, err := d.open(ctx, network)
			if err != nil {
				return nil, err
			}
			return s.track(c), nil
		},
		TLSClientConfig:     d.tls.Clone(), // net/http writes to it
		TLSHandshakeTimeout: dialTime,
		Protocols:           &protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingWait,
			MaxReceiveBufferPerConnection: connWindow,
			MaxReceiveBufferPerStream:     streamWindow,
		},
		MaxConnsPerHost:        1, // or requests that wait for a handshake would each dial
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: 1 << 14,
		DisableCompression:     true,
	}
	return s
}

func (d *doh) keepalive(time.Duration) {} // RFC 7828 is TCP's; HTTP has its own

func (d *doh) ready() bool { return d.lanes[0].Load().open.Load() }

func (d *doh) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
	for i := range d.lanes {
		d.lanes[i].Load().close()
	}
}

// close closes what the site has opened. No request must be in flight, and
// none may follow.
func (s *site) close() {
	s.http.CloseIdleConnections()
	s.mu.Lock()
	conns := slices.Clone(s.conns)
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // one whose last stream has just ended is not idle yet
	}
}

type fetched struct {
	reply
	err error
}

func (d *doh) exchange(ctx context.Context, q *query, lane int) (reply, error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return reply{}, errClosed
	}
	d.wg.Add(1)
	d.mu.Unlock()
	// The request has a context of its own: cancelling a stream makes servers
	// suspicious (ENHANCE_YOUR_CALM), and hides how long the answer took.
	own, cancel := context.WithTimeout(d.ctx, dialTime+drainTime)
	result := make(chan fetched, 1)
	go func() {
		defer d.wg.Done()
		defer cancel()
		r, err := d.fetch(own, d.site(lane), q)
		result <- fetched{r, err}
	}()
	select {
	case f := <-result:
		return f.reply, f.err
	case <-ctx.Done():
	}
	if !d.obs.abandon() {
		cancel()
		return reply{}, context.Cause(ctx)
	}
	d.wg.Go(func() {
		defer d.obs.abandoned()
		t := time.NewTimer(d.obs.linger())
		defer t.Stop()
		select {
		case <-result:
		case <-t.C:
			cancel()
			<-result
		}
	})
	return reply{}, context.Cause(ctx)
}

// site returns the lane's transport, entered: a new one if its connection has
// fallen silent.
func (d *doh) site(lane int) *site {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.lanes[lane].Load()
	s.mu.Lock()
	silent := s.busy > 0 && time.Since(time.Unix(0, s.seen.Load())) >= d.obs.stall()
	s.retired = s.retired || silent
	s.mu.Unlock()
	if silent {
		s = d.newSite()
		d.lanes[lane].Store(s)
	}
	s.enter()
	return s
}

func (d *doh) fetch(ctx context.Context, s *site, q *query) (reply, error) {
	defer s.leave()
	start := time.Now()
	var sent atomic.Int64 // Unix ns
	var fresh atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			now := time.Now()
			sent.Store(now.UnixNano())
			d.obs.wrote()
			if !i.Reused {
				fresh.Store(true)
				s.seen.Store(now.UnixNano())
				d.obs.shook(now.Sub(start))
			}
		},
	})
	wire := q.append(make([]byte, 0, 256), 0, shape{size: d.size, plain: d.bare(), pad: true})
	u := d.url
	u.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(wire)
	req := (&http.Request{
		Method: http.MethodGet, URL: &u, Host: u.Host,
		Header: http.Header{"Accept": {mediaType}, "User-Agent": {""}},
	}).WithContext(ctx)
	resp, err := s.http.RoundTrip(req)
	if err != nil {
		if d.ctx.Err() != nil {
			err = errClosed
		}
		return reply{}, err
	}
	defer resp.Body.Close()
	s.open.Store(true)
	s.seen.Store(time.Now().UnixNano())
	if resp.StatusCode != http.StatusOK {
		return reply{}, &StatusError{d.up, resp.StatusCode}
	}
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || t != mediaType {
		return reply{}, fmt.Errorf("dnshedge: upstream %s: content type %q; want %s", d.up, resp.Header.Get("Content-Type"), mediaType)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMsg+1))
	switch {
	case err != nil:
		return reply{}, fmt.Errorf("dnshedge: upstream %s: %w", d.up, err)
	case len(body) > maxMsg:
		err := errors.New("dnshedge: response longer than a message")
		d.obs.ignored(err)
		return reply{}, fmt.Errorf("dnshedge: upstream %s: %w", d.up, err)
	}
	if err := q.check(body, 0); err != nil {
		d.obs.ignored(err)
		return reply{}, fmt.Errorf("dnshedge: upstream %s: %w", d.up, err)
	}
	ans, err := newAnswer(body, q)
	if err != nil {
		d.obs.ignored(err)
		return reply{}, err
	}
	r := reply{answer: ans}
	// RFC 8484 §5.1: the time in HTTP caches counts.
	if age, err := strconv.ParseUint(resp.Header.Get("Age"), 10, 31); err == nil {
		r.age = time.Duration(age) * time.Second
	}
	began := time.Unix(0, sent.Load())
	if fresh.Load() {
		r.setup = began.Sub(start)
	}
	d.obs.answered(time.Since(began), s.path())
	return r, nil
}
