package forward_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

const mediaType = "application/dns-message"

// upstream starts a server: names that begin with slow take 700 ms.
func upstream(t *testing.T) dnshedge.Upstream {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		switch name := strings.ToLower(q.Question[0].Name); {
		case strings.HasPrefix(name, "slow"):
			return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1"), Delay: 700 * time.Millisecond}
		case strings.HasPrefix(name, "nx."):
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 60)}
		case strings.HasPrefix(name, "loop.") && q.Question[0].Qtype == dns.TypeA:
			return dnstest.Reply{Msg: dnstest.Answer(q, "A 127.0.0.1")}
		case strings.HasPrefix(name, "private."):
			return dnstest.Reply{Msg: dnstest.Answer(q, "A 10.0.0.1")}
		}
		return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1")}
	}}
	s.ServeUDP(pc)
	t.Cleanup(s.Close)
	return dnshedge.Upstream{Addr: pc.LocalAddr().String()}
}

// A running is a Forwarder that serves in the background.
type running struct {
	forward.Config
	end func() error // makes Serve return, and returns its error, each time
}

// begin completes a Config with a client of a server and an address, starts a Forwarder, and ends it with the test.
func begin(t *testing.T, conf forward.Config) running {
	t.Helper()
	if conf.Client == nil {
		conf.Client = &dnshedge.Client{Cache: new(dnshedge.Cache), SpecialUse: dnshedge.SpecialUseForwarder}
	}
	if conf.Client.Upstreams == nil && conf.Client.Exchanger == nil {
		conf.Client.Upstreams = []dnshedge.Upstream{upstream(t)}
	}
	if conf.Limits == nil {
		conf.Limits = &forward.Limits{Conns: 1000, ConnsPerClient: 100, UDPSockets: 1}
	}
	var f *forward.Forwarder
	for tries := 1; f == nil; tries++ {
		conf.Listen = []string{doubles.FreeAddress(t)}
		var err error
		if f, err = forward.New(conf); tries == 4 || !errors.Is(err, syscall.EADDRINUSE) { // another process has taken the port
			require.NoError(t, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	end := sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() {
		assert.NoError(t, end())
		conf.Client.Close()
	})
	return running{conf, end}
}

// secure gives a Config listeners for TLS and HTTPS.
func secure(t *testing.T, conf forward.Config) forward.Config {
	t.Helper()
	get, err := forward.CertificateFiles(pemFiles(t, t.TempDir()))
	require.NoError(t, err)
	conf.TLSConfig = &tls.Config{GetCertificate: get}
	conf.ListenTLS, conf.ListenHTTPS = []string{doubles.FreeAddress(t)}, []string{doubles.FreeAddress(t)}
	return conf
}

// pemFiles writes a certificate and its key into files of a folder.
func pemFiles(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	certPEM, keyPEM := dnstest.CertificatePEM()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, certPEM, 0o600))
	require.NoError(t, os.WriteFile(key, keyPEM, 0o600))
	return cert, key
}

// networks parses an access list.
func networks(t *testing.T, texts ...string) (l forward.AccessList) {
	t.Helper()
	for _, s := range texts {
		p, err := forward.ParseNetwork(s)
		require.NoError(t, err)
		l = append(l, p)
	}
	return l
}

func ask(name string) *dns.Msg {
	m := new(dns.Msg)
	return m.SetQuestion(name, dns.TypeA)
}

// exchange asks once.
func exchange(t *testing.T, network, at, name string) (*dns.Msg, error) {
	t.Helper()
	_, trusting := dnstest.Certificate()
	c := &dns.Client{Net: network, TLSConfig: trusting.Clone(), Timeout: 5 * time.Second}
	r, _, err := c.ExchangeContext(t.Context(), ask(name), at)
	return r, err
}

// dial connects for many questions.
func dial(t *testing.T, at string) *dns.Conn {
	t.Helper()
	c, err := dns.DialTimeout("tcp", at, 5*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c
}

func TestForwarderAnswersOverEveryTransport(t *testing.T) {
	f := begin(t, secure(t, forward.Config{}))
	for network, at := range map[string]string{"udp": f.Listen[0], "tcp": f.Listen[0], "tcp-tls": f.ListenTLS[0]} {
		r, err := exchange(t, network, at, "a.example.")
		require.NoError(t, err, network)
		assert.Len(t, r.Answer, 1)
		r, err = exchange(t, network, at, "printer.local.")
		require.NoError(t, err, network)
		assert.Equal(t, dns.RcodeNameError, r.Rcode)
	}
	up, err := dnshedge.ParseUpstream("https://" + f.ListenHTTPS[0] + "/dns-query")
	require.NoError(t, err)
	_, trusting := dnstest.Certificate()
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}, TLSConfig: trusting.Clone()}
	defer c.Close()
	r, _, err := c.Exchange(ask("a.example."), "")
	require.NoError(t, err)
	assert.Len(t, r.Answer, 1)
}

func TestForwarderAnswersOverTCPConcurrently(t *testing.T) {
	f := begin(t, forward.Config{})
	c := dial(t, f.Listen[0])
	require.NoError(t, c.WriteMsg(ask("slow.example.")))
	require.NoError(t, c.WriteMsg(ask("fast.example.")))
	for _, want := range []string{"fast.example.", "slow.example."} {
		r, err := c.ReadMsg()
		require.NoError(t, err)
		assert.Equal(t, want, r.Question[0].Name, "RFC 7766 §6.2.1.1")
	}
}

func TestForwarderAnswersManyQuestionsOnOneConnection(t *testing.T) {
	const n = 1000
	f := begin(t, forward.Config{})
	c := dial(t, f.Listen[0])
	go func() {
		for i := range n {
			m := ask("a.example.")
			m.Id = uint16(i)
			_ = c.WriteMsg(m)
		}
		// No question follows, and all answers are still wanted.
		_ = c.Conn.(*net.TCPConn).CloseWrite()
	}()
	seen := make(map[uint16]bool)
	for range n {
		r, err := c.ReadMsg()
		require.NoError(t, err, "after %d", len(seen))
		seen[r.Id] = true
	}
	assert.Len(t, seen, n)
	_, err := c.ReadMsg()
	assert.ErrorIs(t, err, io.EOF)
}

func TestForwarderRefusesClientsOutsideAllowedNetworks(t *testing.T) {
	conf := secure(t, forward.Config{})
	conf.Allow = networks(t, "192.0.2.0/24", "127.0.0.2")
	f := begin(t, conf)
	r, err := exchange(t, "udp", f.Listen[0], "a.example.")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeRefused, r.Rcode)
	for network, at := range map[string]string{"tcp": f.Listen[0], "tcp-tls": f.ListenTLS[0]} {
		_, err = exchange(t, network, at, "a.example.")
		assert.Error(t, err, network)
	}
	assert.Zero(t, f.Client.Stats().Queries)
}

func TestForwarderDropsDatagramsAboveRate(t *testing.T) {
	f := begin(t, forward.Config{Limits: &forward.Limits{QuestionsPerSecond: 0.001, UDPSockets: 1}})
	c, err := net.Dial("udp", f.Listen[0])
	require.NoError(t, err)
	defer c.Close()
	for range 5 {
		b, err := ask("a.example.").Pack()
		require.NoError(t, err)
		_, err = c.Write(b)
		require.NoError(t, err)
	}
	b := make([]byte, 512)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = c.Read(b)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	_, err = c.Read(b)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestForwarderLimitsConnections(t *testing.T) {
	f := begin(t, forward.Config{Limits: &forward.Limits{Conns: 3, ConnsPerClient: 2, UDPSockets: 1}})
	works := func(c *dns.Conn) bool {
		_ = c.WriteMsg(ask("a.example."))
		_, err := c.ReadMsg()
		return err == nil
	}
	a, b := dial(t, f.Listen[0]), dial(t, f.Listen[0])
	assert.True(t, works(a))
	assert.True(t, works(b))
	assert.False(t, works(dial(t, f.Listen[0])), "the third of one client")
	a.Close()
	require.Eventually(t, func() bool { return works(dial(t, f.Listen[0])) }, 5*time.Second, 10*time.Millisecond)
}

// overHTTP2 returns a client that asks over one connection from an address of this machine, and the number of connections that
// it has opened.
func overHTTP2(t *testing.T, local string) (*http.Client, *atomic.Int64) {
	t.Helper()
	_, trusting := dnstest.Certificate()
	opened := new(atomic.Int64)
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	base := &http.Transport{TLSClientConfig: trusting.Clone(), ForceAttemptHTTP2: true, MaxConnsPerHost: 1}
	base.DialContext = func(ctx context.Context, network, at string) (net.Conn, error) {
		opened.Add(1)
		return d.DialContext(ctx, network, at)
	}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: base, Timeout: 10 * time.Second}, opened
}

// overHTTPS asks a question.
func overHTTPS(t *testing.T, c *http.Client, at, name string) error {
	t.Helper()
	b, err := ask(name).Pack()
	require.NoError(t, err)
	resp, err := c.Post("https://"+at+"/dns-query", mediaType, bytes.NewReader(b))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err = io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return new(dns.Msg).Unpack(b)
}

// A client holds all connections, idle or with a question under way, over each protocol. Another one is answered, and so is all
// that was asked.
func TestForwarderLimitsConnectionsOfOneClient(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs two addresses of loopback")
	}
	for _, name := range []string{"a.example.", "slow.example."} {
		f := begin(t, secure(t, forward.Config{Limits: &forward.Limits{Conns: 3, ConnsPerClient: 100, UDPSockets: 1}}))
		var wg sync.WaitGroup
		for i := range 3 {
			stream := dial(t, f.Listen[0])
			web, _ := overHTTP2(t, "127.0.0.1")
			for _, ask := range []func(name string) error{
				func(name string) error { return exchangeOver(stream, name) },
				func(name string) error { return overHTTPS(t, web, f.ListenHTTPS[0], name) },
			} {
				require.NoError(t, ask("a.example."))
				if name == "slow.example." {
					wg.Go(func() { assert.NoError(t, ask(fmt.Sprintf("slow%d.example.", i))) })
				}
			}
		}
		if name == "slow.example." {
			require.Eventually(t, func() bool { return f.Client.Stats().Queries >= 6+6 }, 5*time.Second, time.Millisecond, "all are under way")
		}
		other, _ := overHTTP2(t, "127.0.0.2")
		assert.NoError(t, overHTTPS(t, other, f.ListenHTTPS[0], "b.example."), name)
		d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}, Timeout: 5 * time.Second}
		conn, err := d.Dial("tcp", f.Listen[0])
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		assert.NoError(t, exchangeOver(&dns.Conn{Conn: conn}, "b.example."), name)
		wg.Wait()
	}
}

// exchangeOver asks over a connection.
func exchangeOver(c *dns.Conn, name string) error {
	if err := c.WriteMsg(ask(name)); err != nil {
		return err
	}
	_, err := c.ReadMsg()
	return err
}

// An HTTP/2 connection that is never idle ends all the same, and loses no answer.
func TestForwarderClosesBusyConnectionOfGreedyClient(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs two addresses of loopback")
	}
	f := begin(t, secure(t, forward.Config{Limits: &forward.Limits{Conns: 1, ConnsPerClient: 100, UDPSockets: 1}}))
	busy, opened := overHTTP2(t, "127.0.0.1")
	require.NoError(t, overHTTPS(t, busy, f.ListenHTTPS[0], "a.example."))
	var wg sync.WaitGroup
	var quit atomic.Bool
	for i := range 4 {
		wg.Go(func() {
			for n := 0; !quit.Load(); n++ {
				assert.NoError(t, overHTTPS(t, busy, f.ListenHTTPS[0], fmt.Sprintf("slow%d-%d.example.", i, n)))
			}
		})
	}
	require.Eventually(t, func() bool { return f.Client.Stats().Queries >= 5 }, 5*time.Second, time.Millisecond)
	other, _ := overHTTP2(t, "127.0.0.2")
	assert.NoError(t, overHTTPS(t, other, f.ListenHTTPS[0], "b.example."))
	other.CloseIdleConnections()
	require.Eventually(t, func() bool { return opened.Load() > 1 }, 10*time.Second, time.Millisecond, "it has to open another one")
	quit.Store(true)
	wg.Wait()
}

func TestForwarderAnswersDNSOverHTTPS(t *testing.T) {
	f := begin(t, secure(t, forward.Config{}))
	_, trusting := dnstest.Certificate()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Clone(), ForceAttemptHTTP2: true, MaxConnsPerHost: 1}}
	defer web.CloseIdleConnections()
	url := "https://" + f.ListenHTTPS[0] + "/dns-query"
	get := func(name string) string {
		b, err := ask(name).Pack()
		require.NoError(t, err)
		return url + "?dns=" + base64.RawURLEncoding.EncodeToString(b)
	}
	post := func(kind, body string) *http.Request {
		r, err := http.NewRequest("POST", url, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", kind)
		return r
	}
	other := func(method, url string) *http.Request {
		r, err := http.NewRequest(method, url, nil)
		require.NoError(t, err)
		return r
	}
	packed, err := ask("a.example.").Pack()
	require.NoError(t, err)
	for _, row := range []struct {
		request *http.Request
		status  int
		rcode   int
		age     string
	}{
		{other("GET", get("a.example.")), 200, dns.RcodeSuccess, "max-age=300"},
		{post(mediaType, string(packed)), 200, dns.RcodeSuccess, "max-age=300"},
		{other("GET", get("nx.example.")), 200, dns.RcodeNameError, "max-age=60"},
		{other("GET", get("x.onion.")), 200, dns.RcodeNameError, "max-age=10800"},
		{other("GET", url), 400, 0, ""},
		{other("GET", url+"?dns=AAAA"), 400, 0, ""},
		{other("GET", url+"?dns=a.example."), 400, 0, ""},
		{post(mediaType, "x"), 400, 0, ""},
		{post(mediaType, strings.Repeat("x", 1<<16)), 400, 0, ""},
		{post("text/plain", string(packed)), 415, 0, ""},
		{other("PUT", url), 405, 0, ""},
		{other("GET", "https://"+f.ListenHTTPS[0]+"/"), 404, 0, ""},
	} {
		resp, err := web.Do(row.request)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, row.status, resp.StatusCode, "%s %s", row.request.Method, row.request.URL)
		assert.Equal(t, "HTTP/2.0", resp.Proto)
		if row.status != 200 {
			continue
		}
		m := new(dns.Msg)
		require.NoError(t, m.Unpack(body))
		assert.Equal(t, row.rcode, m.Rcode)
		assert.Equal(t, mediaType, resp.Header.Get("Content-Type"))
		age := row.age
		if got := resp.Header.Get("Cache-Control"); strings.TrimRight(got, "0123456789") == strings.TrimRight(age, "0123456789") && got <= age {
			age = got // a second may have passed
		}
		assert.Equal(t, age, resp.Header.Get("Cache-Control"))
	}
}

func TestForwarderPadsAnswersOverHTTPS(t *testing.T) {
	f := begin(t, secure(t, forward.Config{}))
	_, trusting := dnstest.Certificate()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Clone()}}
	defer web.CloseIdleConnections()
	for edns, size := range map[bool]int{true: 468, false: len("a.example.") + 1 + 32} {
		m := ask("a.example.")
		if edns {
			m.SetEdns0(1232, false)
		}
		packed, err := m.Pack()
		require.NoError(t, err)
		resp, err := web.Post("https://"+f.ListenHTTPS[0]+"/dns-query", mediaType, bytes.NewReader(packed))
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Len(t, b, size)
	}
}

func TestForwarderLimitsRateOverHTTPS(t *testing.T) {
	f := begin(t, secure(t, forward.Config{Limits: &forward.Limits{QuestionsPerSecond: 0.001, Conns: 1000, ConnsPerClient: 100, UDPSockets: 1}}))
	_, trusting := dnstest.Certificate()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Clone()}}
	defer web.CloseIdleConnections()
	packed, err := ask("a.example.").Pack()
	require.NoError(t, err)
	for _, test := range []struct {
		path   string
		status int
	}{{"/dns-query", 200}, {"/dns-query", 429}, {"/other", 429}} {
		resp, err := web.Post("https://"+f.ListenHTTPS[0]+test.path, mediaType, bytes.NewReader(packed))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, test.status, resp.StatusCode, test.path)
	}
}

func TestForwarderFiltersPrivateAddresses(t *testing.T) {
	f := begin(t, forward.Config{Client: &dnshedge.Client{RebindFilter: new(dnshedge.RebindFilter)}})
	r, err := exchange(t, "udp", f.Listen[0], "private.example.")
	require.NoError(t, err)
	assert.Empty(t, r.Answer)
}

func TestForwarderSurvivesMangledMessages(t *testing.T) {
	f := begin(t, secure(t, forward.Config{}))
	good, err := ask("a.example.").Pack()
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	mangled := func() []byte {
		b := slices.Clone(good)
		for range 1 + rnd.IntN(6) {
			b[rnd.IntN(len(b))] = byte(rnd.Uint32())
		}
		return b[:rnd.IntN(len(b)+1)]
	}
	c, err := net.Dial("udp", f.Listen[0])
	require.NoError(t, err)
	defer c.Close()
	for range 100_000 {
		_, _ = c.Write(mangled())
	}
	for range 500 {
		k, err := net.Dial("tcp", f.Listen[0])
		require.NoError(t, err)
		_ = k.SetDeadline(time.Now().Add(5 * time.Second))
		b := mangled()
		_, _ = k.Write(append([]byte{0, byte(rnd.IntN(64))}, b...))
		k.Close()
	}
	for network, at := range map[string]string{"udp": f.Listen[0], "tcp": f.Listen[0], "tcp-tls": f.ListenTLS[0]} {
		require.Eventually(t, func() bool {
			r, err := exchange(t, network, at, "a.example.")
			return err == nil && len(r.Answer) == 1
		}, 20*time.Second, 100*time.Millisecond, network)
	}
}
