package forward_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
)

// fakeListener is a Listener whose connections a test makes.
type fakeListener struct {
	handler chan *forward.QueryHandler
	end     chan struct{}
}

func (l *fakeListener) Serve(h *forward.QueryHandler) error {
	l.handler <- h
	<-l.end
	return dnshedge.ErrServerClosed
}

func (l *fakeListener) Shutdown(context.Context) error {
	close(l.end)
	return nil
}

// serveFake runs a Forwarder with a fakeListener, and returns its handler and a function that ends the Forwarder.
func serveFake(t *testing.T, limits *forward.Limits) (*forward.QueryHandler, func()) {
	return serveFakeWithClient(t, &dnshedge.Client{Upstreams: []dnshedge.Upstream{upstream(t)}}, limits)
}

// serveFakeWithClient is serveFake with a Client that answers the queries.
func serveFakeWithClient(t *testing.T, client *dnshedge.Client, limits *forward.Limits) (*forward.QueryHandler, func()) {
	t.Cleanup(func() { client.Close() })
	l := &fakeListener{handler: make(chan *forward.QueryHandler, 1), end: make(chan struct{})}
	f, err := forward.New(forward.Config{Client: client, Listeners: []forward.Listener{l}, Limits: limits})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx) }()
	return <-l.handler, func() {
		cancel()
		assert.NoError(t, <-ended)
	}
}

func clientAt(ip string) net.Addr { return &net.UDPAddr{IP: net.ParseIP(ip), Port: 1234} }

func wireQuestion(t *testing.T, name string) []byte {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	b, err := m.SetEdns0(1232, false).Pack()
	require.NoError(t, err)
	return b
}

func TestListenerQueriesAreAnswered(t *testing.T) {
	client := &dnshedge.Client{Upstreams: []dnshedge.Upstream{upstream(t)}}
	h, end := serveFakeWithClient(t, client, nil)
	assert.True(t, h.IsAllowed(clientAt("127.0.0.1")))
	assert.False(t, h.IsAllowed(clientAt("203.0.113.1")))
	c, ok := h.AdmitConn(clientAt("127.0.0.1"))
	require.True(t, ok)
	defer c.Close()
	require.True(t, c.Start(func(bool) {}))

	b := c.Answer(wireQuestion(t, "a.example."))
	assert.Zero(t, len(b)%468, "padding")
	m := new(dns.Msg)
	require.NoError(t, m.Unpack(b))
	assert.Len(t, m.Answer, 1)
	assert.Nil(t, c.Answer(b), "a response")
	assert.Nil(t, c.Answer([]byte("short")))

	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "https://dns.example/dns-query", nil)
	c.ServeHTTP(w, r)
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code)

	answered := make(chan []byte)
	before, slow := client.Stats().Queries, wireQuestion(t, "slow.example.")
	go func() { answered <- c.Answer(slow) }()
	require.Eventually(t, func() bool { return client.Stats().Queries > before }, 10*time.Second, time.Millisecond)
	end()
	assert.NotEmpty(t, <-answered, "received before the end")
	assert.Nil(t, c.Answer(wireQuestion(t, "a.example.")), "received after the end")
}

func TestListenerConnectionsAreLimited(t *testing.T) {
	h, end := serveFake(t, &forward.Limits{Conns: 2, ConnsPerClient: 2})
	defer end()
	admit := func(ip string) *forward.ClientConn {
		c, ok := h.AdmitConn(clientAt(ip))
		require.True(t, ok)
		return c
	}
	left := make(chan bool, 1)
	one, two := admit("127.0.0.1"), admit("127.0.0.1")
	require.True(t, one.Start(func(inUse bool) { left <- inUse }))
	require.True(t, two.Start(func(bool) {}))
	_, ok := h.AdmitConn(clientAt("127.0.0.1"))
	assert.False(t, ok, "the client has two")
	other := admit("127.0.0.2")
	require.True(t, other.Start(func(bool) {}))
	assert.False(t, <-left, "the oldest connection of the client with the most makes room")
	one.Close()
	one.Close()
	three := admit("127.0.0.1")
	three.Close()
	assert.False(t, three.Start(func(bool) {}), "closed before")
	two.Close()
	last := admit("127.0.0.3")
	assert.True(t, last.Start(func(bool) {}), "Close has released the place")
	last.Close()
	other.Close()
}

// A connection that ends while it waits for a place does not wait any longer, and takes no place from others.
func TestEndedConnectionStopsWaiting(t *testing.T) {
	h, end := serveFake(t, &forward.Limits{Conns: 1, ConnsPerClient: 1})
	defer end()
	admit := func(ip string) *forward.ClientConn {
		c, ok := h.AdmitConn(clientAt(ip))
		require.True(t, ok)
		t.Cleanup(c.Close)
		return c
	}
	evicted := make(chan bool, 1)
	evicting, open, waiting := admit("127.0.0.1"), admit("127.0.0.2"), admit("127.0.0.3")
	require.True(t, evicting.Start(func(bool) {}))
	require.True(t, open.Start(func(inUse bool) { evicted <- inUse }))
	started := make(chan bool, 1)
	go func() { started <- waiting.Start(func(bool) {}) }()
	time.Sleep(100 * time.Millisecond)
	waiting.Close()
	select {
	case ok := <-started:
		assert.False(t, ok)
	case <-time.After(3 * time.Second):
		assert.Fail(t, "Start waits after Close")
	}
	evicting.Close()
	ended := admit("127.0.0.4")
	ended.Close()
	assert.False(t, ended.Start(func(bool) {}))
	time.Sleep(100 * time.Millisecond)
	assert.Empty(t, evicted, "the open connection keeps its place")
}

func TestListenersAreChecked(t *testing.T) {
	client := &dnshedge.Client{}
	_, err := forward.New(forward.Config{Client: client, Listeners: []forward.Listener{nil}})
	assert.ErrorContains(t, err, "Listeners contains nil")
}

// brokenListener cannot serve.
type brokenListener struct{ fakeListener }

func (l *brokenListener) Serve(*forward.QueryHandler) error { return errors.New("no socket") }

func TestFailedListenerEndsForwarder(t *testing.T) {
	client := &dnshedge.Client{Upstreams: []dnshedge.Upstream{upstream(t)}}
	defer client.Close()
	l := &brokenListener{fakeListener{end: make(chan struct{})}}
	f, err := forward.New(forward.Config{Client: client, Listeners: []forward.Listener{l}})
	require.NoError(t, err)
	assert.ErrorContains(t, f.Serve(t.Context()), "no socket")
	<-l.end
}
