package main

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// exchangerFunc is a function that is an Exchanger.
type exchangerFunc func(ctx context.Context, m *dns.Msg) (*dns.Msg, error)

func (f exchangerFunc) ExchangeContext(ctx context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r, err := f(ctx, m)
	return r, 0, err
}

func TestForwarderLimitsHTTPSRequests(t *testing.T) {
	asked, answer := make(chan bool, 10), make(chan bool)
	c := &dnshedge.Client{Exchanger: exchangerFunc(func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		asked <- true
		<-answer
		return new(dns.Msg).SetReply(m), nil
	})}
	defer c.Close()
	d := &dohHandler{client: c, access: &accessControl{}, requests: &clientCounter{maxPerClient: 1, maxTotal: 2}}
	request := func(from, name string) int {
		b, err := ask(name).Pack()
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
