package names_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// site is a host whose servers a, b and c are on a network in fake time.
type site struct {
	*names.Names
	t      *testing.T
	zone   zone
	start  time.Time
	net    *netsim.Network
	base   *http.Transport
	client *http.Client
	scheme string

	mu      sync.Mutex
	servers map[string]*served
	held    []net.Conn
}

// served is the record of a server's requests. Its site's mu guards it.
type served struct {
	open, conns, requests int
}

// serve runs a test in fake time with HTTP/1.1 or, if h2, with HTTP/2 over TLS. The handler
// answers with the server's name; with ?for=1s after that time, with ?stream=1s the name at once
// and again after that time.
func serve(t *testing.T, h2 bool, wrap func(s *site) http.RoundTripper, f func(t *testing.T, s *site)) {
	if h2 {
		doubles.SkipWithoutHTTP2InBubble(t)
	}
	synctest.Test(t, func(t *testing.T) {
		network, err := netsim.NewMemory(1, "client", "a", "b", "c")
		require.NoError(t, err)
		s := &site{t: t, start: time.Now(), net: network, servers: make(map[string]*served), scheme: "http"}
		s.zone.start = s.start
		serverTLS, clientTLS := dnstest.Certificate()
		var all []*http.Server
		for _, name := range []string{"a", "b", "c"} {
			s.servers[name] = new(served)
			l, err := network.Host(name).Listen("tcp", ":443")
			require.NoError(t, err)
			server := &http.Server{Handler: s.handler(name), ConnState: s.state(name), ErrorLog: log.New(io.Discard, "", 0)}
			if h2 {
				server.TLSConfig = serverTLS.Clone()
				go func() { _ = server.ServeTLS(l, "", "") }()
			} else {
				go func() { _ = server.Serve(l) }()
			}
			all = append(all, server)
		}
		s.Names = &names.Names{Exchanger: &s.zone, Dialer: network.Host("client")}
		s.base = &http.Transport{DialContext: s.DialContext, MaxIdleConnsPerHost: 100}
		if h2 {
			s.scheme = "https"
			s.base.TLSClientConfig, s.base.ForceAttemptHTTP2 = clientTLS, true
		}
		s.client = &http.Client{Transport: wrap(s)}
		f(t, s)
		s.client.CloseIdleConnections()
		for _, conn := range s.held {
			conn.Close()
		}
		time.Sleep(time.Minute)
		for _, server := range all {
			server.Close()
		}
		synctest.Wait()
		assert.Zero(t, s.Leaving())
		assert.NoError(t, s.Close())
		assert.NoError(t, network.Close())
	})
}

func drained(s *site) http.RoundTripper { return s.Drain(s.base) }

func (s *site) handler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.servers[name].requests++
		s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		if d, err := time.ParseDuration(r.FormValue("stream")); err == nil {
			_, _ = io.WriteString(w, name)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(d)
		}
		if d, err := time.ParseDuration(r.FormValue("for")); err == nil {
			time.Sleep(d)
		}
		_, _ = io.WriteString(w, name)
	})
}

func (s *site) state(name string) func(net.Conn, http.ConnState) {
	return func(_ net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch state {
		case http.StateNew:
			s.servers[name].open++
			s.servers[name].conns++
		case http.StateClosed, http.StateHijacked:
			s.servers[name].open--
		}
	}
}

// at makes servers, by name, the host's, with a TTL of 30 s.
func (s *site) at(servers ...string) {
	var records []string
	for _, name := range servers {
		records = append(records, "30 "+s.net.Host(name).Addr().String())
	}
	s.zone.set(records...)
}

// until sleeps until d after the start.
func (s *site) until(d time.Duration) {
	time.Sleep(time.Until(s.start.Add(d)))
	synctest.Wait()
}

// saw returns the record of a server's requests.
func (s *site) saw(name string) served {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.servers[name]
}

// call sends a request, and returns the body of the response.
func (s *site) call(query string) string {
	resp, err := s.client.Get(s.scheme + "://" + dnstest.Name + ":443/?" + query)
	if !assert.NoError(s.t, err) {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	assert.NoError(s.t, err)
	return string(body)
}

// load makes n callers send requests, one after the other, until d after the start. Half of them
// have bodies that cannot be sent again.
func (s *site) load(n int, query string, d time.Duration) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for time.Since(s.start) < d {
				if i%2 == 0 {
					s.call(query)
				} else {
					resp, err := s.client.Post(s.scheme+"://"+dnstest.Name+":443/?"+query, "text/plain", io.MultiReader(strings.NewReader("once")))
					if assert.NoError(s.t, err) {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}
			}
		})
	}
	return &wg
}

func forProtocols(t *testing.T, wrap func(s *site) http.RoundTripper, f func(t *testing.T, s *site)) {
	for _, h2 := range []bool{false, true} {
		name := "HTTP/1.1"
		if h2 {
			name = "HTTP/2"
		}
		t.Run(name, func(t *testing.T) { serve(t, h2, wrap, f) })
	}
}

func TestDrainClosesIdleConnectionsToRemovedAddress(t *testing.T) {
	forProtocols(t, drained, func(t *testing.T, s *site) {
		s.at("a", "b")
		for range 4 {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { s.call("for=100ms") })
			}
			wg.Wait()
		}
		left, stays := "a", "b"
		if s.saw("a").open == 0 { // over HTTP/2 there is one connection
			left, stays = "b", "a"
		}
		s.at(stays)
		s.until(29 * time.Second)
		assert.Positive(t, s.saw(left).open)
		s.until(30*time.Second + 100*ms)
		assert.Zero(t, s.saw(left).open)
		before := s.saw(left)
		assert.Equal(t, stays, s.call(""))
		assert.Equal(t, before, s.saw(left))
		s.until(2 * time.Minute)
		assert.Equal(t, 1, s.saw(stays).open)
	})
}

func TestDrainClosesBusyConnectionsWithoutFailingCalls(t *testing.T) {
	forProtocols(t, drained, func(t *testing.T, s *site) {
		s.at("a")
		s.call("")
		s.until(25 * time.Second)
		load := s.load(20, "for=50ms", 36*time.Second)
		s.until(28 * time.Second)
		conns := s.saw("a").conns
		s.at("b")
		s.until(30*time.Second + 500*ms)
		assert.Zero(t, s.saw("a").open)
		a := s.saw("a")
		s.until(32 * time.Second)
		b := s.saw("b")
		load.Wait()
		assert.Equal(t, a, s.saw("a"))
		assert.Equal(t, conns, a.conns)
		assert.Equal(t, b.conns, s.saw("b").conns, "connections are kept again")
		assert.Greater(t, s.saw("b").requests, 1500)
	})
}

func TestDrainDoesNotDisturbLongRequest(t *testing.T) {
	forProtocols(t, drained, func(t *testing.T, s *site) {
		s.at("a")
		var wg sync.WaitGroup
		for _, q := range []string{"for=1m15s", "stream=2m0s"} {
			wg.Go(func() {
				assert.Equal(t, strings.Repeat("a", 1+strings.Count(q, "stream")), s.call(q))
			})
		}
		s.until(10 * time.Second)
		s.at("b")
		s.until(31 * time.Second)
		assert.Positive(t, s.saw("a").open)
		calls := make(map[string]int)
		for s.until(40 * time.Second); time.Since(s.start) < 100*time.Second; time.Sleep(100 * ms) {
			calls[s.call("")]++
		}
		assert.LessOrEqual(t, calls["a"], 2, "over the connection that had been busy")
		most := 50
		if s.scheme == "https" { // one connection to a, to which the first request after the removal has said to close
			most = 5
		}
		assert.LessOrEqual(t, s.saw("b").conns, most, "other calls keep their connections but for two seconds")
		wg.Wait()
		s.until(180 * time.Second) // sweeps go on
		assert.Zero(t, s.saw("a").open)
	})
}

// A caller that is alone, and mostly idle, and one that is not alone.
func TestDrainClosesConnectionOfRareCaller(t *testing.T) {
	forProtocols(t, drained, func(t *testing.T, s *site) {
		s.at("a")
		for range 8 {
			s.call("for=1s")
			time.Sleep(2 * time.Second)
		}
		s.at("b")
		for time.Since(s.start) < 40*time.Second {
			s.call("for=1s")
			time.Sleep(2 * time.Second)
		}
		assert.Zero(t, s.saw("a").open)
		assert.Positive(t, s.saw("b").requests)
	})
}

func TestDrainIgnoresRotatingAddresses(t *testing.T) {
	forProtocols(t, drained, func(t *testing.T, s *site) {
		s.at("a")
		load := s.load(4, "for=1s", 5*time.Minute)
		for i := range 10 {
			s.at([]string{"a", "b"}[i%2])
			s.until(time.Duration(i+1)*30*time.Second - time.Second)
		}
		load.Wait()
		assert.LessOrEqual(t, s.saw("a").conns+s.saw("b").conns, 40)
	})
}

// Of addresses that come and go, one that was in no answer for five minutes has left.
func TestDrainClosesConnectionsToAddressesAbsentForFiveMinutes(t *testing.T) {
	serve(t, false, drained, func(t *testing.T, s *site) {
		s.at("a", "b", "c")
		s.hold()
		for i := range 7 {
			s.at([][]string{{"a", "b", "c"}, {"b", "c"}}[i%2]...)
			s.until(time.Duration(i)*30*time.Second + 10*time.Second)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { s.call("for=100ms") })
		}
		wg.Wait()
		s.at("a", "b")
		s.until(509 * time.Second)
		assert.Equal(t, 1, s.saw("c").open, "it left after 210 s, and may come back")
		s.until(511 * time.Second)
		assert.Zero(t, s.saw("c").open)
	})
}

// After a rollback, the connections must return as well.
func TestDrainHandlesRollback(t *testing.T) {
	forProtocols(t, drained, func(t *testing.T, s *site) {
		s.at("a")
		s.call("")
		s.at("b")
		s.until(31 * time.Second)
		assert.Equal(t, "b", s.call(""))
		assert.Equal(t, [2]int{0, 1}, [2]int{s.saw("a").open, s.saw("b").open})
		s.at("a")
		s.until(61*time.Second + 100*ms)
		assert.Equal(t, "a", s.call(""))
		assert.Equal(t, [2]int{1, 0}, [2]int{s.saw("a").open, s.saw("b").open})
	})
}

// hold makes a connection and leaves it idle.
func (s *site) hold() {
	conn, err := s.DialContext(s.t.Context(), "tcp", dnstest.Name+":443")
	require.NoError(s.t, err)
	s.held = append(s.held, conn)
}

var _ hedge.Resolver = (*names.Names)(nil)

func TestDrainClosesConnectionsOfHedges(t *testing.T) {
	hedged := func(s *site) http.RoundTripper {
		return s.Drain(hedge.New(s.base, hedge.WithReplicas(s.Names), hedge.WithMaxHedges(1)))
	}
	forProtocols(t, hedged, func(t *testing.T, s *site) {
		s.at("a", "b")
		hedgedCall := func() {
			ctx := hedge.WithDelay(t.Context(), 20*ms)
			req, err := http.NewRequestWithContext(ctx, "GET", s.scheme+"://"+dnstest.Name+":443/?for=100ms", nil)
			require.NoError(t, err)
			resp, err := s.client.Do(req)
			if assert.NoError(t, err) {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
		for range 30 {
			hedgedCall()
		}
		assert.Positive(t, s.saw("a").open)
		assert.Positive(t, s.saw("b").open)
		s.at("c")
		for time.Since(s.start) < 40*time.Second {
			hedgedCall()
		}
		assert.Zero(t, s.saw("a").open)
		assert.Zero(t, s.saw("b").open)
		assert.Positive(t, s.saw("c").open)
	})
}

func TestDrainDoesNotModifyRequest(t *testing.T) {
	var sent []*http.Request
	record := roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r)
		return &http.Response{StatusCode: 200, Request: r, Body: io.NopCloser(bytes.NewReader(nil))}, nil
	})
	serve(t, false, func(s *site) http.RoundTripper { return s.Drain(record) }, func(t *testing.T, s *site) {
		s.at("a")
		s.hold()
		req := func(host string) *http.Request {
			r, err := http.NewRequest("GET", "http://"+host+"/", nil)
			require.NoError(t, err)
			return r
		}
		s.until(20 * time.Second)
		own := req(dnstest.Name)
		_, err := s.client.Transport.RoundTrip(own)
		require.NoError(t, err)
		assert.Same(t, own, sent[0], "nothing is to be drained")
		s.at("b")
		s.until(31 * time.Second)
		resp, err := s.client.Transport.RoundTrip(own)
		require.NoError(t, err)
		assert.True(t, sent[1].Close)
		assert.False(t, own.Close)
		assert.Same(t, own, resp.Request)
		for _, r := range []*http.Request{req("other.example"), {Method: "GET", URL: own.URL, Header: http.Header{"Upgrade": {"websocket"}}}, {Method: "GET", Close: true, URL: own.URL}, {}} {
			_, err := s.client.Transport.RoundTrip(r)
			require.NoError(t, err)
			assert.Same(t, r, sent[len(sent)-1])
		}
		s.until(33 * time.Second) // nobody uses the connection
		_, err = s.client.Transport.RoundTrip(own)
		require.NoError(t, err)
		assert.False(t, sent[len(sent)-1].Close)
		s.client.CloseIdleConnections() // which record does not have
	})
}

// A body that cannot be had again is, if it has not been read, and is closed in the end.
func TestDrainResendsUnreadBody(t *testing.T) {
	refuse := func(r *http.Request) { // as HTTP/2 does
		assert.NoError(t, r.Body.Close())
	}
	send := func(r *http.Request) (*http.Response, error) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		assert.NoError(t, r.Body.Close())
		return &http.Response{StatusCode: 200}, nil
	}
	errRewind := errors.New("net/http: cannot rewind body after connection loss")
	var sent int
	var first io.ReadCloser
	for name, test := range map[string]struct {
		do   func(r *http.Request) (*http.Response, error)
		read string
	}{
		"refused twice": {func(r *http.Request) (*http.Response, error) {
			if sent++; sent <= 2 {
				refuse(r)
				return nil, errRewind
			}
			return send(r)
		}, "once"},
		"refused for ever": {func(r *http.Request) (*http.Response, error) { refuse(r); return nil, errRewind }, ""},
		"refused, and closed when it is again": {func(r *http.Request) (*http.Response, error) {
			if sent++; sent == 1 {
				first = r.Body
				return nil, errRewind
			}
			assert.NoError(t, first.Close())
			n, err := first.Read(make([]byte, 9))
			assert.Equal(t, []any{0, io.EOF}, []any{n, err})
			return send(r)
		}, "once"},
		"read": {func(r *http.Request) (*http.Response, error) {
			assert.Zero(t, sent)
			sent++
			_, _ = send(r)
			return nil, errRewind
		}, "once"},
		"refused":          {func(r *http.Request) (*http.Response, error) { refuse(r); return nil, io.ErrUnexpectedEOF }, ""},
		"forgotten":        {func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, ""},
		"answered, unread": {func(r *http.Request) (*http.Response, error) { refuse(r); return &http.Response{StatusCode: 401}, nil }, ""},
		"answered before it is read": {func(r *http.Request) (*http.Response, error) {
			time.AfterFunc(time.Second, func() { refuse(r) })
			return &http.Response{StatusCode: 401}, nil
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(names.Names)
				defer n.Close()
				b := &once{Reader: strings.NewReader("once")}
				sent = 0
				req, err := http.NewRequest("POST", "http://api.example/", b)
				require.NoError(t, err)
				_, _ = n.Drain(roundTripper(test.do)).RoundTrip(req)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				assert.Equal(t, 1, b.closed)
				assert.Equal(t, test.read, b.read.String())
				assert.Nil(t, req.GetBody)
			})
		})
	}
}

func TestDrainClosesBodyAfterPanic(t *testing.T) {
	n := new(names.Names)
	defer n.Close()
	b := &once{Reader: strings.NewReader("once")}
	req, err := http.NewRequest("POST", "http://api.example/", b)
	require.NoError(t, err)
	assert.PanicsWithValue(t, "no more", func() {
		_, _ = n.Drain(roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Body.Close()
			panic("no more")
		})).RoundTrip(req)
	})
	assert.Equal(t, 1, b.closed)
}

// once is a body that records whether it was read and closed.
type once struct {
	io.Reader
	read   bytes.Buffer
	closed int
}

func (o *once) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	o.read.Write(p[:n])
	return n, err
}

func (o *once) Close() error {
	o.closed++
	return nil
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An inner RoundTripper sees from GetBody whether the body can be read again, as without Drain.
func TestDrainAddsNoGetBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(names.Names)
		defer n.Close()
		rt := n.Drain(roundTripper(func(r *http.Request) (*http.Response, error) {
			assert.Nil(t, r.GetBody)
			return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
		}))
		req, err := http.NewRequest("POST", "http://api.example/", io.MultiReader(strings.NewReader("once")))
		require.NoError(t, err)
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
	})
}

// The error of a connection that was lost is the caller's.
func TestDrainReturnsErrorAfterBodyWasRead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() { // answers one request of each connection
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for _, answer := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""} {
				if req, err := http.ReadRequest(r); err == nil {
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = io.WriteString(c, answer)
				}
			}
			c.Close()
		}
	}()
	n := new(names.Names)
	defer n.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	for _, rt := range []http.RoundTripper{base, n.Drain(base)} {
		var last error
		for range 2 {
			req, err := http.NewRequest("GET", "http://"+l.Addr().String(), io.MultiReader(strings.NewReader("once")))
			require.NoError(t, err)
			var resp *http.Response
			if resp, last = rt.RoundTrip(req); last == nil {
				resp.Body.Close()
			}
		}
		assert.ErrorIs(t, last, io.EOF)
	}
}

// A request that fails to close its connection does not prevent the next request from closing it.
func TestDrainRepeatsForOpenConnection(t *testing.T) {
	ignores := func(s *site) http.RoundTripper {
		first := true
		return s.Drain(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Close && first { // as one that HTTP/2 gave up before it was sent
				first = false
				r = r.Clone(r.Context())
				r.Close = false
			}
			return s.base.RoundTrip(r)
		}))
	}
	serve(t, false, ignores, func(t *testing.T, s *site) {
		s.at("a")
		s.call("")
		for time.Since(s.start) < 29*time.Second {
			s.call("for=1s")
		}
		s.at("b")
		for time.Since(s.start) < 3*time.Minute {
			s.call("for=1s")
		}
		assert.Zero(t, s.saw("a").open)
		assert.Positive(t, s.saw("b").requests)
		s.base.CloseIdleConnections()
	})
}

func TestDrainSurvivesPanicOfOtherTransport(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		var swept atomic.Int64
		w.Drain(&sweeper{close: func() { panic("no more") }})
		w.Drain(&sweeper{close: func() { swept.Add(1) }})
		w.zone.set("10 192.0.2.1")
		_, conn := w.dial()
		w.zone.set("10 192.0.2.2")
		w.until(11 * time.Second)
		conn.Close()
		w.until(time.Minute)
		assert.EqualValues(t, 2, swept.Load(), "at 10 s and at 11 s")
	})
}

// sweeper is a RoundTripper that records the calls of CloseIdleConnections.
type sweeper struct {
	http.RoundTripper
	close func()
}

func (s *sweeper) CloseIdleConnections() { s.close() }
