package dnshedge_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

const ms = time.Millisecond

// mountResolvConf mounts another file over /etc/resolv.conf, in a process that a test has started for that.
var mountResolvConf = func() error { return nil }

// errNoMount begins the output of a process that could not mount the file.
const errNoMount = "cannot mount resolv.conf: "

func TestMain(m *testing.M) {
	if err := mountResolvConf(); err != nil {
		fmt.Println(errNoMount, err)
		os.Exit(1)
	}
	doubles.PreloadNetConfig()
	code := m.Run()
	if forwarderDir != "" {
		_ = os.RemoveAll(forwarderDir)
	}
	os.Exit(code)
}

// lab is a client and three hosts with servers, 20 ms away, in a bubble.
type lab struct {
	*testing.T
	net *netsim.Network
}

func bubble(t *testing.T, f func(l *lab)) {
	t.Helper()
	dnstest.Certificate() // outside the bubble, for all of them
	synctest.Test(t, func(t *testing.T) {
		n, err := netsim.NewMemory(1, "client", "a", "b", "c")
		require.NoError(t, err)
		defer n.Close()
		l := &lab{t, n}
		for _, h := range []string{"a", "b", "c"} {
			l.link(h, netsim.Profile{Delay: netsim.Constant(10 * ms)})
		}
		f(l)
	})
}

// link sets both directions between the client and a host.
func (l *lab) link(host string, p netsim.Profile) { l.net.Set("client", host, p) }

// serve starts a server that supports all transports.
func (l *lab) serve(host string, h dnstest.Handler) *dnstest.Server {
	l.Helper()
	s := &dnstest.Server{Handler: h}
	at := l.net.Host(host)
	pc, err := at.ListenPacket("udp", ":53")
	require.NoError(l, err)
	s.ServeUDP(pc)
	for port, serve := range map[string]func(net.Listener){":53": s.ServeTCP, ":853": s.ServeTLS, ":443": s.ServeHTTPS} {
		ln, err := at.Listen("tcp", port)
		require.NoError(l, err)
		serve(ln)
	}
	l.Cleanup(s.Close)
	return s
}

// up returns the upstream of a host.
func (l *lab) up(network, host string) dnshedge.Upstream {
	l.Helper()
	if network == "https" {
		doubles.SkipWithoutHTTP2InBubble(l)
	}
	s := network + "://" + l.net.Host(host).Addr().String()
	if network == "tls" || network == "https" {
		s += "#" + dnstest.Name
	}
	up, err := dnshedge.ParseUpstream(s)
	require.NoError(l, err)
	return up
}

// client sets the remaining fields of a Client for the lab, and closes the Client at the end of the test.
func (l *lab) client(c *dnshedge.Client, ups ...dnshedge.Upstream) *dnshedge.Client {
	c.Upstreams = ups
	c.Dialer = l.net.Host("client")
	_, trusting := dnstest.Certificate()
	c.TLSConfig = trusting
	l.Cleanup(func() { c.Close() })
	return c
}

func question(name string, typ uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, typ)
	return m
}

// ask sends a question for the A records of a name, and returns the duration.
func (l *lab) ask(c *dnshedge.Client, name string) (*dns.Msg, time.Duration, error) {
	l.Helper()
	start := time.Now()
	r, rtt, err := c.Exchange(question(name, dns.TypeA), "")
	took := time.Since(start)
	assert.Equal(l, took, rtt)
	return r, took, err
}

// must is ask where no error is expected.
func (l *lab) must(c *dnshedge.Client, name string) (*dns.Msg, time.Duration) {
	l.Helper()
	r, took, err := l.ask(c, name)
	require.NoError(l, err)
	return r, took
}

// addr returns the first address of a response.
func addr(r *dns.Msg) string {
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return ""
}

// script returns a handler that answers query n, counted from 0, with handler n. The last handler answers all later
// queries.
func script(replies ...func(q dnstest.Query) dnstest.Reply) dnstest.Handler {
	var mu sync.Mutex
	n := 0
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		i := min(n, len(replies)-1)
		n++
		mu.Unlock()
		return replies[i](q)
	}
}

func good(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1")} }

func drop(dnstest.Query) dnstest.Reply { return dnstest.Reply{} }

func rcode(code int) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Msg: dnstest.Rcode(q, code)} }
}

func after(d time.Duration, h dnstest.Handler) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		r := h(q)
		r.Delay += d
		return r
	}
}

// learn sends questions until the client has learned the latencies of its servers.
func (l *lab) learn(c *dnshedge.Client) {
	l.Helper()
	for range 40 {
		l.must(c, "learn.example.")
	}
}

var background = context.Background()

// bubbleOnly runs f in a bubble without a network.
func bubbleOnly(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// off returns a Client that does not hedge.
func off() *dnshedge.Client { return &dnshedge.Client{Hedge: dnshedge.Hedge{Off: true}} }

func with(records ...string) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply { return dnstest.Reply{Msg: dnstest.Answer(q, records...)} }
}

func ttl(r *dns.Msg) uint32 { return r.Answer[0].Header().Ttl }

// edes returns the codes of the extended errors of a response.
func edes(r *dns.Msg) (codes []uint16) {
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				codes = append(codes, e.InfoCode)
			}
		}
	}
	return codes
}

// edns asks with EDNS.
func (l *lab) edns(c *dnshedge.Client, name string) (*dns.Msg, error) {
	m := question(name, dns.TypeA)
	m.SetEdns0(1232, false)
	r, _, err := c.Exchange(m, "")
	return r, err
}

func trusting(c *dnshedge.Client) *dnshedge.Client {
	_, c.TLSConfig = dnstest.Certificate()
	return c
}

// zone answers as a small zone does.
func zone(q dnstest.Query) dnstest.Reply {
	name, typ := strings.ToLower(q.Question[0].Name), q.Question[0].Qtype
	long := strings.Repeat(strings.Repeat("x", 255)+" ", 240)
	records := map[string][]string{
		"a.example. A":        {"A 192.0.2.1", "A 192.0.2.2"},
		"a.example. AAAA":     {"AAAA 2001:db8::1"},
		"alias.example. A":    {"CNAME a.example.", "a.example. A 192.0.2.1"},
		"alias.example. AAAA": {"CNAME a.example.", "a.example. AAAA 2001:db8::1"},
		"mx.example. MX":      {"MX 10 mail.example.", "MX 20 mail2.example."},
		"txt.example. TXT":    {`TXT "one two" three`},
		"long.example. TXT":   {"TXT " + long},
		"ns.example. NS":      {"NS ns1.example."},
		"_sip._tcp.srv.example. SRV": {
			"SRV 1 2 5060 a.example.", "SRV 2 2 5061 a.example."},
		"1.2.0.192.in-addr.arpa. PTR": {"PTR a.example."},
	}
	if name == "broken.example." {
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
	}
	if rrs, ok := records[name+" "+dns.TypeToString[typ]]; ok {
		m := dnstest.Answer(q, rrs...)
		m.Compress = true
		if q.Net == "udp" && m.Len() > 1232 {
			m.Answer, m.Truncated = nil, true
		}
		return dnstest.Reply{Msg: m}
	}
	for k := range records {
		if strings.HasPrefix(k, name+" ") {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeSuccess, 300, 60)}
		}
	}
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 60)}
}
