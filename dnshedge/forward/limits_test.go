package forward

import (
	"bytes"
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

func TestAccessControlLimitsRatePerClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &accessControl{perSecond: 10}
		at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip)} }
		count := func(ip string) (n int) {
			for range 100 {
				if a.allowQuestion(at(ip)) {
					n++
				}
			}
			return n
		}
		assert.Equal(t, 10, count("192.0.2.1"))
		assert.Equal(t, 10, count("192.0.2.2"))
		assert.Equal(t, 10, count("2001:db8::1"))
		assert.Zero(t, count("2001:db8::2"), "the same network of 64 bits")
		assert.Zero(t, count("::ffff:192.0.2.1"))
		assert.Equal(t, 10, count("fe80::1"))
		assert.Equal(t, 10, count("fe80::2"), "all machines of a link have the same network")
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, 5, count("192.0.2.1"))
		assert.Equal(t, 100*time.Millisecond, a.reserveQuestion(at("192.0.2.1")))
		assert.Equal(t, 200*time.Millisecond, a.reserveQuestion(at("192.0.2.1")))

		// A flood from forged addresses takes bounded memory, and does not free from
		// its limit who goes on asking.
		for i := range 8 * maxLimits {
			a.allowQuestion(&net.UDPAddr{IP: net.IP{100, byte(i >> 16), byte(i >> 8), byte(i)}})
			if i%1000 == 0 {
				assert.Zero(t, count("192.0.2.1"))
			}
		}
		assert.LessOrEqual(t, len(a.limits)+len(a.oldLimits), 2*maxLimits)
		assert.True(t, (&accessControl{}).allowQuestion(at("192.0.2.1")), "no limit")
	})
}

func TestAccessControlDelaysStreamQuestionForASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &accessControl{perSecond: 2}
		at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
		start := time.Now()
		var wg sync.WaitGroup
		for _, wait := range []time.Duration{0, 0, 500 * time.Millisecond, time.Second} {
			wg.Go(func() {
				assert.Equal(t, dnshedge.Answer, a.admitQuery(at))
				assert.Equal(t, wait, time.Since(start))
			})
			synctest.Wait()
		}
		for range 10 {
			assert.Equal(t, dnshedge.Ignore, a.admitQuery(at), "it would wait for 1.5 s")
		}
		assert.Zero(t, time.Since(start))
		wg.Wait()
		assert.Equal(t, dnshedge.Answer, a.admitQuery(at))
		assert.Equal(t, 1500*time.Millisecond, time.Since(start), "those that were ignored do not count")
	})
}

// exchangerFunc is a function that is an Exchanger.
type exchangerFunc func(ctx context.Context, m *dns.Msg) (*dns.Msg, error)

func (f exchangerFunc) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r, err := f(ctx, m)
	return r, 0, err
}

func TestDoHHandlerLimitsRequests(t *testing.T) {
	asked, answer := make(chan bool, 10), make(chan bool)
	c := &dnshedge.Client{Exchanger: exchangerFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		asked <- true
		<-answer
		return new(dns.Msg).SetReply(m), nil
	})}
	defer c.Close()
	d := &dohHandler{server: &dnshedge.Server{Client: c}, access: &accessControl{}, requests: &clientLimiter{maxPerClient: 1, maxTotal: 2, byClient: make(map[netip.Addr]int)}}
	request := func(from, name string) int {
		b, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		assert.NoError(t, err)
		r := httptest.NewRequest(http.MethodGet, "/dns-query?dns="+base64.RawURLEncoding.EncodeToString(b), nil)
		r.RemoteAddr = from + ":1000"
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w.Code
	}
	codes := make(chan int, 2)
	for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
		go func() { codes <- request(from, from+".example.") }()
		<-asked
		assert.Equal(t, http.StatusServiceUnavailable, request("192.0.2.1", "b.example."), "one more of the client")
	}
	assert.Equal(t, http.StatusServiceUnavailable, request("192.0.2.3", "b.example."), "one more in all")
	close(answer)
	for range 2 {
		require.Equal(t, http.StatusOK, <-codes)
	}
	assert.Equal(t, http.StatusOK, request("192.0.2.1", "c.example."))
}

// Over HTTP/2, a connection without a slot ends only if a response says so.
func TestDoHHandlerAnnouncesCloseInFailures(t *testing.T) {
	c := new(dnshedge.Client)
	defer c.Close()
	evicted := new(limitedConn)
	evicted.closesAfterResponse.Store(true)
	status := func(d *dohHandler, method, target, from string) int {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), connContextKey{}, evicted), method, target, nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		assert.Equal(t, "close", w.Header().Get("Connection"), w.Code)
		return w.Code
	}
	newHandler := func(maxRequests int, perSecond float64) *dohHandler {
		requests := &clientLimiter{maxPerClient: maxRequests, byClient: make(map[netip.Addr]int)}
		return &dohHandler{server: &dnshedge.Server{Client: c}, access: &accessControl{perSecond: perSecond}, requests: requests}
	}
	const from = "192.0.2.1:1000"
	d := newHandler(1, 0)
	assert.Equal(t, http.StatusBadRequest, status(d, http.MethodGet, dohPath, ""))
	assert.Equal(t, http.StatusNotFound, status(d, http.MethodGet, "/", from))
	assert.Equal(t, http.StatusBadRequest, status(d, http.MethodGet, dohPath, from))
	assert.Equal(t, http.StatusBadRequest, status(d, http.MethodGet, dohPath+"?dns=AAAA", from), "not a query")
	assert.Equal(t, http.StatusMethodNotAllowed, status(d, http.MethodPut, dohPath, from))
	assert.Equal(t, http.StatusUnsupportedMediaType, status(d, http.MethodPost, dohPath, from))
	d = newHandler(0, 0.001)
	assert.Equal(t, http.StatusServiceUnavailable, status(d, http.MethodGet, dohPath, from))
	assert.Equal(t, http.StatusTooManyRequests, status(d, http.MethodGet, dohPath, from))
}

func TestDoHHandlerReportsMethods(t *testing.T) {
	c := &dnshedge.Client{SpecialUse: dnshedge.SpecialUseForwarder}
	defer c.Close()
	d := &dohHandler{
		server: &dnshedge.Server{Client: c}, access: new(accessControl),
		requests: &clientLimiter{maxPerClient: 1, byClient: make(map[netip.Addr]int)},
	}
	query, err := new(dns.Msg).SetQuestion("localhost.", dns.TypeA).Pack()
	require.NoError(t, err)
	request := func(method string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, dohPath+"?dns="+base64.RawURLEncoding.EncodeToString(query), bytes.NewReader(query))
		r.RemoteAddr = "192.0.2.1:1000"
		r.Header.Set("Content-Type", mediaType)
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w
	}
	w := request(http.MethodPut)
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
	assert.Equal(t, "GET, HEAD, POST", w.Header().Get("Allow"))
	assert.Equal(t, "method PUT; want GET, HEAD or POST\n", w.Body.String())
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		assert.Equal(t, http.StatusOK, request(method).Code, method)
	}
}
