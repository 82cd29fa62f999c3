package dnshedge_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/gohedge/hedge/internal/doubles"
)

// peer starts a server program and waits until it accepts connections at all of its ports. The program ends with the
// test.
func peer(t *testing.T, ports []string, name string, args ...string) *os.Process {
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
				return true
			default:
			}
			return err == nil
		}, 10*time.Second, 20*time.Millisecond, "%s", name)
		select {
		case <-done:
			t.Fatalf("%s ended: %s", name, log.String())
		default:
		}
	}
	return cmd.Process
}

// freePorts returns n ports of addresses that doubles.FreeAddress returns.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		_, port, err := net.SplitHostPort(doubles.FreeAddress(t))
		require.NoError(t, err)
		ports = append(ports, port)
	}
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
*.any A   192.0.2.9
big   TXT %s
`

func zoneText() string {
	return fmt.Sprintf(zoneFile, strings.Repeat(`"`+strings.Repeat("x", 255)+`" `, 40))
}

// pemFiles writes the test certificate and its private key to files, for server programs.
func pemFiles(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	certPEM, keyPEM := dnstest.CertificatePEM()
	return write(t, filepath.Join(dir, "cert.pem"), string(certPEM)), write(t, filepath.Join(dir, "key.pem"), string(keyPEM))
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
  - domain: broken # which has no file, and so questions about it fail
log:
  - target: stderr
    any: error
`, dir, port, filepath.Join(dir, "example.zone")))
	peer(t, []string{port}, "knotd", "-c", conf)
	loaded(t, "udp://127.0.0.1:"+port)
	return port
}

// loaded waits until a server has loaded its zone, which may be later than it accepts connections.
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

// checkPeer asks questions that every server of the zone must answer.
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

func TestClientAsksKnot(t *testing.T) {
	port := knot(t)
	for _, network := range []string{"udp", "tcp"} {
		checkPeer(t, network+"://127.0.0.1:"+port)
	}
}

func TestClientAsksBindOverEveryTransport(t *testing.T) {
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

func TestClientAsksUnboundOverTLS(t *testing.T) {
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

func TestClientHidesDropsAndDelaysOfDnsdist(t *testing.T) {
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
		slow, late := 0, 0
		var lag atomic.Int64 // how late timers are, at most
		quit := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for tick := time.Now(); ; tick = time.Now() {
				select {
				case <-quit:
					return
				case <-time.After(5 * ms):
					lag.Store(max(lag.Load(), int64(time.Since(tick)-5*ms)))
				}
			}
		})
		for range 300 {
			lag.Store(0)
			denied := c.Stats().Denied
			start := time.Now()
			r, _, err := c.Exchange(question("a.example.", dns.TypeA), "")
			require.NoError(t, err)
			require.Equal(t, "192.0.2.1", addr(r))
			switch {
			case time.Since(start) <= 200*ms:
			case lag.Load() > int64(20*ms), c.Stats().Denied > denied: // the machine was busy, or late hedges did not win
				late++
			default:
				slow++
			}
		}
		close(quit)
		wg.Wait()
		s := c.Stats()
		c.Close()
		t.Logf("%s: %d slow, and %d in a busy machine", rule, slow, late)
		assert.LessOrEqual(t, slow, 4, rule)
		assert.Positive(t, s.HedgeWins, rule)
	}
}

// forwarderDir is the folder into which buildForwarder writes the program. TestMain removes it.
var forwarderDir string

// buildForwarder builds examples/dnsforward. All tests share the result.
var buildForwarder = sync.OnceValues(func() (bin string, err error) {
	if forwarderDir, err = os.MkdirTemp("", "dnsforward"); err != nil {
		return "", err
	}
	bin = filepath.Join(forwarderDir, "dnsforward")
	out, err := exec.Command("go", "build", "-o", bin, "../examples/dnsforward").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return bin, err
})

// forwarder starts examples/dnsforward and returns its port.
func forwarder(t *testing.T, upstream string) string {
	t.Helper()
	port, _ := forwarderProcess(t, upstream)
	return port
}

func forwarderProcess(t *testing.T, upstream string) (port string, process *os.Process) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a program")
	}
	bin, err := buildForwarder()
	require.NoError(t, err)
	port = freePorts(t, 1)[0]
	return port, peer(t, []string{port}, bin, "-listen", "127.0.0.1:"+port, "-upstream", upstream)
}

func TestServerAnswersDigAndKdig(t *testing.T) {
	port := forwarder(t, "127.0.0.1:"+knot(t))
	for _, prog := range []string{"dig", "kdig"} {
		for _, transport := range []string{"+notcp", "+tcp"} {
			assert.Equal(t, "192.0.2.1\n", doubles.RunTool(t, prog, "@127.0.0.1", "-p", port, transport, "+short", "a.example", "A"))
			assert.Contains(t, doubles.RunTool(t, prog, "@127.0.0.1", "-p", port, transport, "nx.example", "A"), "NXDOMAIN")
			assert.Contains(t, doubles.RunTool(t, prog, "@127.0.0.1", "-p", port, transport, "+short", "alias.example", "AAAA"), "2001:db8::1")
		}
	}
	out := doubles.RunTool(t, "dig", "@127.0.0.1", "-p", port, "big.example", "TXT")
	assert.Contains(t, out, "retrying in TCP mode")
	assert.NotContains(t, out, "WARNING")
}

const (
	soakers = 16 // clients that query a server at the same time
	restart = 50 * ms
)

// soaked is a server that loses queries and restarts from time to time, and its client.
type soaked struct {
	*testing.T
	network, at string
	client      *dnshedge.Client
	lossy       atomic.Bool
	queries     atomic.Int64

	mu     sync.Mutex // guards server
	server *dnstest.Server
}

func (s *soaked) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		if s.queries.Add(1)%100 == 0 && s.lossy.Load() {
			return dnstest.Reply{}
		}
		return good(q)
	}}
	if s.network == "udp" {
		if pc, err := net.ListenPacket("udp", s.at); assert.NoError(s, err) {
			s.server.ServeUDP(pc)
		}
	} else if ln, err := net.Listen("tcp", s.at); assert.NoError(s, err) {
		s.server.ServeTLS(ln)
	}
}

func (s *soaked) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.Close()
}

// ask sends the given number of questions and returns the number of questions without an answer.
func (s *soaked) ask(questions int64) int64 {
	var left, failed atomic.Int64
	left.Store(questions)
	var wg sync.WaitGroup
	for range soakers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if _, _, err := s.client.Exchange(question("x.example.", dns.TypeA), ""); err != nil {
					failed.Add(1)
					time.Sleep(5 * ms) // a server that is down refuses connections at once
				}
			}
		})
	}
	wg.Wait()
	return failed.Load()
}

// Memory and goroutines stay constant in clients over UDP and over TLS, while their servers lose queries and restart.
func TestClientStaysFlatInSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("asks 100,000 questions")
	}
	total := int64(50_000) // of each client
	if doubles.RaceEnabled {
		total = 10_000
	}
	ports := freePorts(t, 2)
	var all []*soaked
	for i, network := range []string{"udp", "tls"} {
		up := dnshedge.Upstream{Net: network, Addr: "127.0.0.1:" + ports[i]}
		if network == "tls" {
			up.ServerName = dnstest.Name
		}
		s := &soaked{T: t, network: network, at: up.Addr}
		s.client = trusting(&dnshedge.Client{Upstreams: []dnshedge.Upstream{up}, Timeout: 2 * time.Second})
		s.start()
		all = append(all, s)
	}
	var failed atomic.Int64
	each := func(f func(s *soaked)) {
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() { f(s) })
		}
		wg.Wait()
	}
	each(func(s *soaked) { s.ask(total / 20) })
	time.Sleep(100 * ms) // no query is lost yet, and so none runs on for longer
	before := doubles.MeasureUsage()
	each(func(s *soaked) {
		s.lossy.Store(true)
		for range 5 {
			restarted := make(chan struct{})
			time.AfterFunc(restart, func() { s.stop(); s.start(); close(restarted) })
			failed.Add(s.ask(total / 5))
			<-restarted
		}
	})
	after := doubles.MeasureUsage()
	for range 20 { // abandoned queries end after 2 s, and later on a busy machine
		if after.Goroutines <= before.Goroutines+8 && after.Files <= before.Files+8 {
			break
		}
		time.Sleep(500 * ms)
		after = doubles.MeasureUsage()
	}
	for _, s := range all {
		t.Logf("%s: %d questions, %d hedges", s.network, total, s.client.Stats().Hedges)
	}
	t.Logf("%d failed; goroutines %d to %d, files %d to %d, heap %d to %d KiB", failed.Load(),
		before.Goroutines, after.Goroutines, before.Files, after.Files, before.Heap>>10, after.Heap>>10)
	assert.LessOrEqual(t, after.Goroutines, before.Goroutines+8)
	assert.LessOrEqual(t, after.Files, before.Files+8)
	assert.LessOrEqual(t, after.Heap, before.Heap+4<<20)
	assert.Less(t, failed.Load(), 2*total/50)
	for _, s := range all {
		require.NoError(t, s.client.Close())
		s.stop()
	}
}
