package coredns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/whoami"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/dnstest"
)

func TestMain(m *testing.M) {
	caddy.Quiet, dnsserver.Quiet = true, true
	if err := dnsserver.SetDirectives([]string{"bind", "tls", "hedge", "forward", "whoami"}); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A server answers every name.
type server struct {
	dnstest.Server
	at    string
	asked atomic.Int64
}

// serve starts a server. The first one that is asked for slow.example. is stuck with it.
func serve(t *testing.T, stuck *atomic.Pointer[server]) *server {
	s := new(server)
	s.Handler = func(q dnstest.Query) dnstest.Reply {
		s.asked.Add(1)
		if q.Question[0].Name == "slow.example." && (stuck.CompareAndSwap(nil, s) || stuck.Load() == s) {
			return dnstest.Reply{}
		}
		m := dnstest.Answer(q, "A 192.0.2.1")
		m.Authoritative = true
		return dnstest.Reply{Msg: m}
	}
	pc, l := listen(t)
	s.ServeUDP(pc)
	s.ServeTCP(l)
	t.Cleanup(s.Close)
	s.at = pc.LocalAddr().String()
	return s
}

// listen returns sockets for UDP and TCP at one port. A port that is free for one may be taken for the other.
func listen(t *testing.T) (net.PacketConn, net.Listener) {
	for range 20 {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		l, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, l
		}
		assert.NoError(t, pc.Close())
	}
	require.Fail(t, "no port is free for both")
	return nil, nil
}

// corefile has a line of ours in a server block.
func corefile(format string, args ...any) caddy.Input {
	return caddy.CaddyfileInput{
		Filepath: "Corefile", ServerTypeName: "dns",
		Contents: []byte(".:0 {\n\tbind 127.0.0.1\n\t" + fmt.Sprintf(format, args...) + "\n\twhoami\n}\n"),
	}
}

// start starts a CoreDNS and returns its address.
func start(t *testing.T, format string, args ...any) string {
	instance, err := caddy.Start(corefile(format, args...))
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, instance) })
	return instance.Servers()[0].LocalAddr().String()
}

func stop(t *testing.T, instance *caddy.Instance) {
	assert.NoError(t, errors.Join(instance.ShutdownCallbacks()...))
	assert.NoError(t, instance.Stop())
	instance.Wait()
}

func ask(t *testing.T, at, name string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	r, _, err := (&dns.Client{Timeout: 5 * time.Second}).Exchange(m, at)
	require.NoError(t, err)
	return r
}

func TestCoreDNS(t *testing.T) {
	var stuck atomic.Pointer[server]
	one, two := serve(t, &stuck), serve(t, &stuck)
	at := start(t, "hedge . udp://%s udp://%s", one.at, two.at)
	for i := range 5 {
		require.Len(t, ask(t, at, fmt.Sprintf("a%d.example.", i)).Answer, 1)
	}
	assert.Len(t, ask(t, at, "slow.example.").Answer, 1, "from the other server")
	assert.NotNil(t, stuck.Load())
	before := one.asked.Load() + two.asked.Load()
	assert.Len(t, ask(t, at, "slow.example.").Answer, 1)
	assert.Equal(t, before, one.asked.Load()+two.asked.Load(), "from the cache")
	assert.Equal(t, dns.RcodeNameError, ask(t, at, "x.onion.").Rcode, "does not leave")
}

func TestCoreDNSResolvesFromTheRootDown(t *testing.T) {
	s := serve(t, new(atomic.Pointer[server]))
	at := start(t, "hedge . recursive {\n\t\tstub example. %s\n\t}", s.at)
	r := ask(t, at, "a.example.")
	require.Len(t, r.Answer, 1)
	assert.False(t, r.Authoritative)
	assert.False(t, r.AuthenticatedData)
	assert.True(t, r.RecursionAvailable)
	assert.EqualValues(t, 1, s.asked.Load())
}

func TestNamesOutsideTheDomainGoToTheNextPlugin(t *testing.T) {
	s := serve(t, new(atomic.Pointer[server]))
	at := start(t, "hedge corp.example. udp://%s", s.at)
	assert.Len(t, ask(t, at, "a.corp.example.").Answer, 1)
	assert.Empty(t, ask(t, at, "a.example.").Answer)
	assert.NotEmpty(t, ask(t, at, "a.example.").Extra, "of whoami")
	assert.EqualValues(t, 1, s.asked.Load())
}

func TestAfterARestartTheNewHandlerAnswers(t *testing.T) {
	before, after := serve(t, new(atomic.Pointer[server])), serve(t, new(atomic.Pointer[server]))
	first, err := caddy.Start(corefile("hedge . udp://%s", before.at))
	require.NoError(t, err)
	assert.Len(t, ask(t, first.Servers()[0].LocalAddr().String(), "a.example.").Answer, 1)
	_, err = first.Restart(corefile("hedge . x://192.0.2.1"))
	require.Error(t, err)
	assert.Len(t, ask(t, first.Servers()[0].LocalAddr().String(), "b.example.").Answer, 1, "the old one goes on")
	second, err := first.Restart(corefile("hedge . recursive {\n\t\tstub example. %s\n\t}", after.at))
	require.NoError(t, err)
	defer stop(t, second)
	assert.Len(t, ask(t, second.Servers()[0].LocalAddr().String(), "c.example.").Answer, 1)
	assert.EqualValues(t, 2, before.asked.Load())
	assert.EqualValues(t, 1, after.asked.Load())
}

func TestCorefile(t *testing.T) {
	for _, corefile := range []string{`
hedge . udp://192.0.2.1 tls://192.0.2.2#dns.example
`, `
hedge . recursive {
	stub corp.example 10.0.0.53
}
`} {
		c := caddy.NewTestController("dns", corefile)
		c.Next()
		h, err := parse(c)
		require.NoError(t, err, corefile)
		assert.Equal(t, ".", h.from)
		if h.resolver != nil {
			assert.Equal(t, map[string][]netip.AddrPort{"corp.example": {netip.MustParseAddrPort("10.0.0.53:53")}}, h.resolver.Zones)
		} else {
			assert.Len(t, h.client.Upstreams, 2)
		}
	}
}

func TestWhatACorefileGetsWrongIsNamed(t *testing.T) {
	for line, want := range map[string]string{
		"hedge":                                     "Wrong argument count",
		"hedge .":                                   "Wrong argument count",
		"hedge . x://192.0.2.1":                     `x://192.0.2.1`,
		"hedge . recursive udp://192.0.2.1":         `"udp://192.0.2.1" after recursive`,
		"hedge . recursive {\n max 5\n}":            `unknown property "max"`,
		"hedge . udp://192.0.2.1 {\n stub a. b\n}":  `unknown property "stub"`,
		"hedge . recursive {\n stub example.\n}":    "Wrong argument count",
		"hedge . recursive {\n stub example. x\n}":  "stub example.: ",
		"hedge 10.0.0.0/7 udp://192.0.2.1":          `want a domain, not "10.0.0.0/7"`,
		"hedge . udp://192.0.2.1\n hedge . another": "another",
	} {
		err := setup(caddy.NewTestController("dns", line))
		assert.ErrorContains(t, err, want, line)
	}
}
