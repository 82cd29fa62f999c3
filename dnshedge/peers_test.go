package dnshedge_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// peer starts a real server and waits until it accepts connections at all of
// its ports. It is ended with the test.
func peer(t *testing.T, ports []string, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.Command(path, args...)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	for _, port := range ports {
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				c.Close()
			}
			select {
			case <-done:
				t.Fatalf("%s ended: %s", name, log.String())
			default:
			}
			return err == nil
		}, 10*time.Second, 20*time.Millisecond, "%s", name)
	}
}

// freePorts returns ports of loopback of which nobody listens, TCP or UDP. They
// are below those that the kernel gives to clients, or one of these could have
// taken a port before the server does.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range 100 * n {
		if len(ports) == n {
			break
		}
		at := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		l, err := net.Listen("tcp", at)
		if err != nil {
			continue
		}
		defer l.Close()
		pc, err := net.ListenPacket("udp", at)
		if err != nil {
			continue
		}
		defer pc.Close()
		_, port, _ := net.SplitHostPort(at)
		ports = append(ports, port)
	}
	require.Len(t, ports, n)
	return ports
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

const zoneFile = `$ORIGIN example.
$TTL 3600
@     SOA ns admin 1 3600 600 86400 300
@     NS  ns
ns    A   127.0.0.1
a     A   192.0.2.1
a     AAAA 2001:db8::1
alias CNAME a
mx    MX  10 a
big   TXT %s
`

func zoneText() string {
	return fmt.Sprintf(zoneFile, strings.Repeat(`"`+strings.Repeat("x", 255)+`" `, 40))
}

// pemFiles writes the test certificate for servers that read files.
func pemFiles(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	server, _ := dnstest.Certificate()
	c := server.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(t, err)
	cert = write(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})))
	key = write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return cert, key
}

// knot starts an authoritative server for zoneFile and returns its port.
func knot(t *testing.T) string {
	t.Helper()
	dir, port := t.TempDir(), freePorts(t, 1)[0]
	write(t, filepath.Join(dir, "example.zone"), zoneText())
	conf := write(t, filepath.Join(dir, "knot.conf"), fmt.Sprintf(`
server:
    rundir: %[1]q
    listen: 127.0.0.1@%[2]s
database:
    storage: %[1]q
zone:
  - domain: example
    file: %[3]q
log:
  - target: stderr
    any: error
`, dir, port, filepath.Join(dir, "example.zone")))
	peer(t, []string{port}, "knotd", "-c", conf)
	loaded(t, "udp://127.0.0.1:"+port)
	return port
}

// loaded waits until a server has read its zone: it may listen before.
func loaded(t *testing.T, up string) dnshedge.Upstream {
	t.Helper()
	u, err := dnshedge.ParseUpstream(up)
	require.NoError(t, err)
	c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{u}})
	defer c.Close()
	require.Eventually(t, func() bool {
		r, _, err := c.Exchange(question("a.example.", dns.TypeA), "")
		return err == nil && len(r.Answer) == 1
	}, 20*time.Second, 20*ms, up)
	return u
}

// checkPeer asks what every server of the zone must answer.
func checkPeer(t *testing.T, up string) {
	t.Helper()
	u := loaded(t, up)
	c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{u}, Cache: new(dnshedge.Cache)})
	defer c.Close()
	for range 2 { // from the server, from the cache
		for _, q := range []struct {
			name    string
			typ     uint16
			rcode   int
			answers int
		}{
			{"a.example.", dns.TypeA, 0, 1}, {"A.eXample.", dns.TypeAAAA, 0, 1}, {"alias.example.", dns.TypeA, 0, 2},
			{"mx.example.", dns.TypeMX, 0, 1}, {"a.example.", dns.TypeTXT, 0, 0}, {"nx.example.", dns.TypeA, 3, 0},
			{"big.example.", dns.TypeTXT, 0, 1},
		} {
			r, _, err := c.Exchange(question(q.name, q.typ), "")
			require.NoError(t, err, "%s %d", q.name, q.typ)
			assert.Equal(t, q.rcode, r.Rcode, q.name)
			assert.Len(t, r.Answer, q.answers, q.name)
			assert.Equal(t, q.name, r.Question[0].Name)
			assert.False(t, r.Truncated)
		}
	}
	s := c.Stats()
	assert.EqualValues(t, 7, s.Hits)
	assert.Zero(t, s.Ignored)
	assert.Zero(t, s.Failures)
}

func TestKnotAnswers(t *testing.T) {
	port := knot(t)
	for _, network := range []string{"udp", "tcp"} {
		checkPeer(t, network+"://127.0.0.1:"+port)
	}
}

func TestBindAnswersOverEveryTransport(t *testing.T) {
	dir := t.TempDir()
	p := freePorts(t, 3)
	cert, key := pemFiles(t, dir)
	write(t, filepath.Join(dir, "example.zone"), zoneText())
	conf := write(t, filepath.Join(dir, "named.conf"), fmt.Sprintf(`
tls local { cert-file %[1]q; key-file %[2]q; };
http local { endpoints { "/dns-query"; }; };
options {
  directory %[3]q;
  pid-file none; session-keyfile none;
  recursion no; dnssec-validation no;
  listen-on port %[4]s { 127.0.0.1; };
  listen-on port %[5]s tls local { 127.0.0.1; };
  listen-on port %[6]s tls local http local { 127.0.0.1; };
  listen-on-v6 { none; };
};
controls { };
zone "example" { type primary; file "example.zone"; };
`, cert, key, dir, p[0], p[1], p[2]))
	peer(t, p, "named", "-g", "-c", conf)
	checkPeer(t, "udp://127.0.0.1:"+p[0])
	checkPeer(t, "tcp://127.0.0.1:"+p[0])
	checkPeer(t, "tls://127.0.0.1:"+p[1]+"#"+dnstest.Name)
	checkPeer(t, "https://127.0.0.1:"+p[2]+"/dns-query#"+dnstest.Name)
}

func TestUnboundForwardsOverTLS(t *testing.T) {
	auth := knot(t)
	dir := t.TempDir()
	p := freePorts(t, 2)
	cert, key := pemFiles(t, dir)
	conf := write(t, filepath.Join(dir, "unbound.conf"), fmt.Sprintf(`
server:
  interface: 127.0.0.1@%[1]s
  interface: 127.0.0.1@%[2]s
  tls-port: %[2]s
  tls-service-pem: %[3]q
  tls-service-key: %[4]q
  username: ""
  chroot: ""
  directory: %[5]q
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  module-config: "iterator"
  do-not-query-localhost: no
remote-control:
  control-enable: no
stub-zone:
  name: "example"
  stub-addr: 127.0.0.1@%[6]s
`, p[0], p[1], cert, key, dir, auth))
	peer(t, p, "unbound", "-d", "-c", conf)
	checkPeer(t, "udp://127.0.0.1:"+p[0])
	checkPeer(t, "tls://127.0.0.1:"+p[1]+"#"+dnstest.Name)
}

func TestDnsdistThatDropsAndDelaysDoesNotShow(t *testing.T) {
	auth := knot(t)
	dir := t.TempDir()
	p := freePorts(t, 2)
	for i, rule := range []string{
		`addAction(ProbaRule(0.05), DropAction())`,
		`addAction(ProbaRule(0.05), DelayAction(300))`,
	} {
		conf := write(t, filepath.Join(dir, fmt.Sprint("dnsdist", i, ".conf")), fmt.Sprintf("setLocal('127.0.0.1:%s')\nnewServer('127.0.0.1:%s')\n%s\n", p[i], auth, rule))
		peer(t, p[i:i+1], "dnsdist", "--supervised", "--disable-syslog", "-C", conf)
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "127.0.0.1:" + p[i]}}, Hedge: dnshedge.Hedge{BudgetPercent: 20}}
		slow := 0
		for range 300 {
			start := time.Now()
			r, _, err := c.Exchange(question("a.example.", dns.TypeA), "")
			require.NoError(t, err)
			require.Equal(t, "192.0.2.1", addr(r))
			if time.Since(start) > 200*time.Millisecond {
				slow++
			}
		}
		s := c.Stats()
		c.Close()
		assert.LessOrEqual(t, slow, 4, rule)
		assert.Positive(t, s.HedgeWins, rule)
	}
}

// forwarder builds and starts examples/dnsforward.
func forwarder(t *testing.T, upstream string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a program")
	}
	bin := filepath.Join(t.TempDir(), "dnsforward")
	out, err := exec.Command("go", "build", "-o", bin, "../examples/dnsforward").CombinedOutput()
	require.NoError(t, err, "%s", out)
	port := freePorts(t, 1)[0]
	peer(t, []string{port}, bin, "-listen", "127.0.0.1:"+port, "-upstream", upstream)
	return port
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestDigAndKdigLikeTheForwarder(t *testing.T) {
	port := forwarder(t, "127.0.0.1:"+knot(t))
	for _, prog := range []string{"dig", "kdig"} {
		for _, transport := range []string{"+notcp", "+tcp"} {
			assert.Equal(t, "192.0.2.1\n", tool(t, prog, "@127.0.0.1", "-p", port, transport, "+short", "a.example", "A"))
			assert.Contains(t, tool(t, prog, "@127.0.0.1", "-p", port, transport, "nx.example", "A"), "NXDOMAIN")
			assert.Contains(t, tool(t, prog, "@127.0.0.1", "-p", port, transport, "+short", "alias.example", "AAAA"), "2001:db8::1")
		}
	}
	out := tool(t, "dig", "@127.0.0.1", "-p", port, "big.example", "TXT")
	assert.Contains(t, out, "retrying in TCP mode")
	assert.NotContains(t, out, "WARNING")
}

// Both have the answers in their caches, and take turns.
func TestDnsperfIsServedLikeByDnsdist(t *testing.T) {
	auth := knot(t)
	ours, theirs := forwarder(t, "127.0.0.1:"+auth), freePorts(t, 1)[0]
	conf := write(t, filepath.Join(t.TempDir(), "dnsdist.conf"), fmt.Sprintf(
		"setLocal('127.0.0.1:%s')\nnewServer('127.0.0.1:%s')\ngetPool(''):setCache(newPacketCache(10000))\n", theirs, auth))
	peer(t, []string{theirs}, "dnsdist", "--supervised", "--disable-syslog", "-C", conf)
	loaded(t, "udp://127.0.0.1:"+theirs)
	queries := write(t, filepath.Join(t.TempDir(), "queries"), "a.example A\nalias.example A\nnx.example A\nmx.example MX\n")
	perSecond := regexp.MustCompile(`Queries per second: +([0-9.]+)`)
	rate := func(port string) float64 {
		out := tool(t, "dnsperf", "-s", "127.0.0.1", "-p", port, "-d", queries, "-l", "1", "-c", "4", "-q", "50")
		assert.Contains(t, out, "Queries lost:         0")
		found := perSecond.FindStringSubmatch(out)
		require.NotNil(t, found, out)
		n, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		return n
	}
	var shares []float64
	for range 3 {
		a, b := rate(ours), rate(theirs)
		t.Logf("%.0f queries per second; dnsdist %.0f: %.2f x", a, b, a/b)
		shares = append(shares, a/b)
	}
	slices.Sort(shares)
	assert.Greater(t, shares[1], 0.35) // on a quiet machine, above 0.5
}

// soakers is how many ask at a time.
const soakers = 16

func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("asks 100,000 questions")
	}
	total := int64(100_000)
	if raceEnabled {
		total = 20_000
	}
	for _, network := range []string{"udp", "tls"} {
		t.Run(network, func(t *testing.T) { soak(t, network, total/2) })
	}
}

// soak asks over a server that loses queries and is started anew now and then,
// and sees whether anything piles up.
func soak(t *testing.T, network string, total int64) {
	var n atomic.Int64
	lossy := func(q dnstest.Query) dnstest.Reply {
		if n.Add(1)%100 == 0 {
			return dnstest.Reply{}
		}
		return good(q)
	}
	var mu sync.Mutex // guards server
	var server *dnstest.Server
	at := "127.0.0.1:" + freePorts(t, 1)[0]
	start := func() {
		mu.Lock()
		defer mu.Unlock()
		server = &dnstest.Server{Handler: lossy}
		if network == "udp" {
			pc, err := net.ListenPacket("udp", at)
			require.NoError(t, err)
			server.ServeUDP(pc)
			return
		}
		ln, err := net.Listen("tcp", at)
		require.NoError(t, err)
		server.ServeTLS(ln)
	}
	start()
	c := trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: network, Addr: at, ServerName: dnstest.Name}}, Timeout: 2 * time.Second})
	if network == "udp" {
		c.Upstreams[0].ServerName = ""
	}
	ask := func(count int64) (failed int64) {
		var left, bad atomic.Int64
		left.Store(count)
		var wg sync.WaitGroup
		for range soakers {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if _, _, err := c.Exchange(question("x.example.", dns.TypeA), ""); err != nil {
						bad.Add(1)
						time.Sleep(5 * ms) // a server that is down refuses at once
					}
				}
			})
		}
		wg.Wait()
		return bad.Load()
	}
	settled := func() (goroutines, files int, heap uint64) {
		time.Sleep(2500 * ms) // what is abandoned ends after 2 s
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if e, err := os.ReadDir("/proc/self/fd"); err == nil {
			files = len(e)
		}
		return runtime.NumGoroutine(), files, m.HeapAlloc
	}
	ask(total / 20)
	g0, f0, h0 := settled()
	var failed int64
	for range 5 {
		mu.Lock()
		old := server
		mu.Unlock()
		time.AfterFunc(50*ms, func() { old.Close(); start() })
		failed += ask(total / 5)
		time.Sleep(100 * ms)
	}
	g1, f1, h1 := settled()
	t.Logf("%d questions, %d failed; goroutines %d to %d, files %d to %d, heap %d to %d KiB; %d hedges", total, failed, g0, g1, f0, f1, h0>>10, h1>>10, c.Stats().Hedges)
	assert.LessOrEqual(t, g1, g0+8)
	assert.LessOrEqual(t, f1, f0+8)
	assert.LessOrEqual(t, h1, h0+4<<20)
	assert.Less(t, failed, total/50)
	require.NoError(t, c.Close())
	server.Close()
}
