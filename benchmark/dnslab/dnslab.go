// Package dnslab measures ways to ask DNS servers over a simulated network with
// real kernel sockets: who waits how long when packets are lost, late or fine,
// and what that costs in queries.
//
// All contenders ask the same names in the same run. For each name they take
// turns, in an order that rotates from name to name, so that none of them is
// always the one that finds the servers cold. Failures are counted apart and are
// no latencies.
package dnslab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// Scenarios are the networks that can be simulated. All have a round trip of 20
// ms but uniform.
var Scenarios = []string{"clean", "loss1", "loss2", "loss3", "spikes", "uniform", "dead-primary", "dead", "burst"}

// Strategies are the contenders.
var Strategies = append([]string{"single", "fixed-10ms", "hedge"}, OverUDP...)

// OverUDP are those that ask over UDP alone.
var OverUDP = []string{"miekg", "net-resolver", "unbound"}

const (
	oneWay    = 10 * time.Millisecond
	jitter    = 200 * time.Microsecond
	workers   = 32
	Names     = 101  // asked in turn
	Samples   = 5050 // of each contender, unless told otherwise
	giveUp    = 15 * time.Second
	deadAfter = time.Second // what a dead server costs at first is reported apart
)

// Config says what to measure. The zero value measures all contenders on a clean network over UDP.
type Config struct {
	Scenario   string   // one of Scenarios; empty: clean
	Strategies []string // some of Strategies; empty: all that can run here
	Transport  string   // udp, tls or https; empty: udp, which some strategies are bound to
	Samples    int      // of each contender; 0: Samples
	Seed       uint64
	Memory     bool      // without root: sockets of package netsim's own; without unbound
	Progress   func(int) // told how many samples are done; may be nil
}

// Row is what a contender came to.
type Row struct {
	Scenario, Strategy string
	Seed               uint64
	Requests, Errors   int
	Latency            []time.Duration // of those that were answered, sorted
	Calls              []Call          // as they ended
	Queries            int64           // on the wire
	Conns              int64           // streams opened
	Hedges             int64
	Wins               int64
	Denied             int64
}

// Call is one request.
type Call struct {
	Start  time.Duration // since the beginning
	Took   time.Duration
	Failed bool
}

// Quantile returns the latency at q in [0, 1], or 0 if nothing was answered.
func (r Row) Quantile(q float64) time.Duration {
	if len(r.Latency) == 0 {
		return 0
	}
	return r.Latency[int(math.Round(q*float64(len(r.Latency)-1)))]
}

// Mean returns the mean latency and its standard deviation.
func (r Row) Mean() (mean, deviation time.Duration) {
	if len(r.Latency) == 0 {
		return 0, 0
	}
	var sum, squares float64
	for _, d := range r.Latency {
		sum += float64(d)
	}
	m := sum / float64(len(r.Latency))
	for _, d := range r.Latency {
		squares += (float64(d) - m) * (float64(d) - m)
	}
	return time.Duration(m), time.Duration(math.Sqrt(squares / float64(len(r.Latency))))
}

// Extra returns how many queries there were besides one per request, as a share
// of all requests.
func (r Row) Extra() float64 { return float64(r.Queries)/float64(max(len(r.Calls), 1)) - 1 }

// links returns what the links to the two servers do.
func links(scenario string) (a, b [2]netsim.Profile, err error) {
	steady := netsim.Profile{Delay: netsim.Uniform(oneWay-jitter, oneWay+jitter)}
	both := func(there, back netsim.Profile) ([2]netsim.Profile, [2]netsim.Profile, error) {
		return [2]netsim.Profile{there, back}, [2]netsim.Profile{there, back}, nil
	}
	lossy := func(p float64) netsim.Profile { return netsim.Profile{Delay: steady.Delay, Loss: p} }
	switch scenario {
	case "clean":
		return both(steady, steady)
	case "loss1":
		return both(lossy(0.01), lossy(0.01))
	case "loss2":
		return both(lossy(0.02), lossy(0.02))
	case "loss3":
		return both(lossy(0.03), lossy(0.03))
	case "spikes":
		spikes := netsim.Spikes(steady.Delay, 0.05, netsim.Uniform(40*time.Millisecond, 140*time.Millisecond))
		return both(netsim.Profile{Delay: spikes}, steady)
	case "uniform":
		slow := netsim.Profile{Delay: netsim.Uniform(100*time.Millisecond-jitter, 100*time.Millisecond+jitter)}
		return both(slow, slow)
	case "burst": // 2 % lost, in bursts of five
		burst := netsim.Profile{Delay: steady.Delay, Burst: &netsim.Burst{GoodToBad: 0.005, BadToGood: 0.2, LossBad: 0.8}}
		return both(burst, burst)
	case "dead-primary":
		dead := netsim.Profile{BlackHole: true}
		return [2]netsim.Profile{dead, dead}, [2]netsim.Profile{steady, steady}, nil
	case "dead":
		return both(netsim.Profile{BlackHole: true}, netsim.Profile{BlackHole: true})
	}
	return a, b, fmt.Errorf("dnslab: scenario %q; want one of %s", scenario, strings.Join(Scenarios, ", "))
}

// contender asks one name.
type contender struct {
	name  string
	ask   func(ctx context.Context, name string) error
	count *counter
	stats func(r *Row)
	close func()

	mu    sync.Mutex // guards calls
	calls []Call
}

// counter is a Dialer that counts. Every query is one Write.
type counter struct {
	dnshedge.Dialer
	queries, conns atomic.Int64
}

func (c *counter) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	k, err := c.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(network, "tcp") {
		c.conns.Add(1)
		return k, nil
	}
	return &counted{k, c}, nil
}

// counted stays a net.PacketConn, for by that Go's resolver and miekg's client
// tell datagrams from streams.
type counted struct {
	net.Conn
	*counter
}

var _ net.PacketConn = (*counted)(nil)

func (c *counted) Write(b []byte) (int, error) {
	c.queries.Add(1)
	return c.Conn.Write(b)
}

func (c *counted) ReadFrom(b []byte) (int, net.Addr, error) {
	return c.Conn.(net.PacketConn).ReadFrom(b)
}

func (c *counted) WriteTo(b []byte, to net.Addr) (int, error) {
	c.queries.Add(1)
	return c.Conn.(net.PacketConn).WriteTo(b, to)
}

// bench is a network with two servers.
type bench struct {
	net     *netsim.Network
	servers [2]*dnstest.Server
	conf    Config
	dir     string // for unbound
}

// Run measures. It needs root, unless Memory is set; see netsim.ErrUnsupported.
// If ctx ends, what was measured until then is returned with its error.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	if conf.Scenario == "" {
		conf.Scenario = "clean"
	}
	if conf.Transport == "" {
		conf.Transport = "udp"
	}
	if conf.Samples == 0 {
		conf.Samples = Samples
	}
	b, err := open(conf)
	if err != nil {
		return nil, err
	}
	defer b.close()
	all, err := b.contenders(conf.Strategies)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= conf.Samples {
					return
				}
				// Nobody waits for another's answer, as coalescing contenders would.
				name := fmt.Sprintf("n%d.w%d.example.", i%Names, w)
				for j := range all {
					all[(i+j)%len(all)].measure(ctx, start, name)
				}
				if conf.Progress != nil {
					conf.Progress(1)
				}
			}
		})
	}
	wg.Wait()
	var rows []Row
	for _, c := range all {
		rows = append(rows, b.row(c, conf.Scenario, 0))
		if conf.Scenario == "dead-primary" {
			rows = append(rows, b.row(c, "dead-primary/after", deadAfter))
		}
	}
	return rows, ctx.Err()
}

func (c *contender) measure(ctx context.Context, start time.Time, name string) {
	begun := time.Now()
	err := c.ask(ctx, name)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, Call{Start: begun.Sub(start), Took: took, Failed: err != nil})
}

func (b *bench) row(c *contender, scenario string, after time.Duration) Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Row{
		Scenario: scenario, Strategy: c.name, Seed: b.conf.Seed, Calls: c.calls,
		Queries: c.count.queries.Load(), Conns: c.count.conns.Load(),
	}
	for _, call := range c.calls {
		switch {
		case call.Start < after:
			continue
		case call.Failed:
			r.Errors++
		default:
			r.Latency = append(r.Latency, call.Took)
		}
		r.Requests++
	}
	slices.Sort(r.Latency)
	if c.stats != nil {
		c.stats(&r)
	}
	return r
}

func open(conf Config) (*bench, error) {
	a, b2, err := links(conf.Scenario)
	if err != nil {
		return nil, err
	}
	newNetwork := netsim.NewKernel
	if conf.Memory {
		newNetwork = netsim.NewMemory
	}
	n, err := newNetwork(conf.Seed, "client", "a", "b", "forwarder")
	if err != nil {
		return nil, err
	}
	b := &bench{net: n, conf: conf}
	for i, h := range []string{"a", "b"} {
		p := [...][2]netsim.Profile{a, b2}[i]
		for _, from := range []string{"client", "forwarder"} {
			n.Link(from, h).Set(p[0])
			n.Link(h, from).Set(p[1])
		}
		if b.servers[i], err = serve(n.Host(h)); err != nil {
			b.close()
			return nil, err
		}
	}
	return b, nil
}

func (b *bench) close() {
	for _, s := range b.servers {
		if s != nil {
			s.Close()
		}
	}
	_ = b.net.Close()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// serve starts a server that has all answers at hand.
func serve(h *netsim.Host) (*dnstest.Server, error) {
	s := &dnstest.Server{Handler: dnstest.Fixed(netip.MustParseAddr("192.0.2.1"), 0)}
	pc, err := h.ListenPacket("udp", ":53")
	if err != nil {
		return nil, err
	}
	s.ServeUDP(pc)
	for port, serve := range map[string]func(net.Listener){":53": s.ServeTCP, ":853": s.ServeTLS, ":443": s.ServeHTTPS} {
		l, err := h.Listen("tcp", port)
		if err != nil {
			s.Close()
			return nil, err
		}
		serve(l)
	}
	return s, nil
}

// upstreams are the servers that contenders may ask: both where one is dead, else the first.
func (b *bench) upstreams() []string {
	hosts := []string{"a"}
	if strings.HasPrefix(b.conf.Scenario, "dead") {
		hosts = []string{"a", "b"}
	}
	var out []string
	for _, h := range hosts {
		out = append(out, b.net.Host(h).Addr().String())
	}
	return out
}

func (b *bench) contenders(names []string) ([]*contender, error) {
	chosen := names
	if len(chosen) == 0 {
		chosen = Strategies
		if b.conf.Transport != "udp" {
			chosen = chosen[:len(chosen)-len(OverUDP)]
		}
	}
	var all []*contender
	for _, name := range chosen {
		c := &contender{name: name, count: &counter{Dialer: b.net.Host("client")}, close: func() {}}
		var err error
		switch name {
		case "single":
			err = b.ours(c, dnshedge.Hedge{Off: true})
		case "fixed-10ms":
			err = b.ours(c, dnshedge.Hedge{Fixed: 10 * time.Millisecond})
		case "hedge":
			err = b.ours(c, dnshedge.Hedge{})
		case "miekg":
			b.miekg(c)
		case "net-resolver":
			b.netResolver(c)
		case "unbound":
			err = b.unbound(c)
			if errors.Is(err, exec.ErrNotFound) && len(names) == 0 {
				continue
			}
		default:
			err = fmt.Errorf("dnslab: strategy %q; want one of %s", name, strings.Join(Strategies, ", "))
		}
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

// right checks an answer.
func right(r *dns.Msg, err error) error {
	switch {
	case err != nil:
		return err
	case r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1:
		return fmt.Errorf("dnslab: wrong answer: %s, %d records", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	return nil
}

func question(name string) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	return m
}

func (b *bench) ours(c *contender, h dnshedge.Hedge) error {
	_, trusting := dnstest.Certificate()
	client := &dnshedge.Client{Hedge: h, Dialer: c.count, TLSConfig: trusting}
	for _, at := range b.upstreams() {
		s := b.conf.Transport + "://" + at
		if b.conf.Transport != "udp" {
			s += "#" + dnstest.Name
		}
		up, err := dnshedge.ParseUpstream(s)
		if err != nil {
			return err
		}
		client.Upstreams = append(client.Upstreams, up)
	}
	c.close = func() { _ = client.Close() }
	c.ask = func(ctx context.Context, name string) error {
		r, _, err := client.ExchangeContext(ctx, question(name), "")
		return right(r, err)
	}
	c.stats = func(r *Row) {
		s := client.Stats()
		r.Queries, r.Hedges, r.Wins, r.Denied = s.Wire, s.Hedges, s.HedgeWins, s.Denied
	}
	return nil
}

// miekg is the plain client of github.com/miekg/dns: a socket per query, two
// seconds per server, the servers in order.
func (b *bench) miekg(c *contender) {
	client := new(dns.Client)
	ups := b.upstreams()
	c.ask = func(ctx context.Context, name string) error {
		var err error
		for _, at := range ups {
			var conn net.Conn
			if conn, err = c.count.DialContext(ctx, "udp", net.JoinHostPort(at, "53")); err != nil {
				return err
			}
			var r *dns.Msg
			r, _, err = client.ExchangeWithConnContext(ctx, question(name), &dns.Conn{Conn: conn})
			_ = conn.Close()
			if err == nil {
				return right(r, nil)
			}
		}
		return err
	}
}

// turn counts a lookup's attempts, which Go's resolver makes server by server.
type turn struct{}

func (b *bench) netResolver(c *contender) {
	ups := b.upstreams()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		n := ctx.Value(turn{}).(*atomic.Int64).Add(1) - 1
		return c.count.DialContext(ctx, network, net.JoinHostPort(ups[int(n)%len(ups)], "53"))
	}}
	c.ask = func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, turn{}, new(atomic.Int64)), giveUp)
		defer cancel()
		addrs, err := r.LookupNetIP(ctx, "ip4", name)
		if err == nil && len(addrs) != 1 {
			err = errors.New("dnslab: wrong answer")
		}
		return err
	}
}

// unbound is a forwarder in a host of its own, asked over that host's loopback
// with a cache that keeps nothing.
func (b *bench) unbound(c *contender) error {
	if b.conf.Memory {
		return fmt.Errorf("dnslab: unbound on a memory network: %w", exec.ErrNotFound)
	}
	path, err := exec.LookPath("unbound")
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "dnslab"); err != nil {
		return err
	}
	var forwards strings.Builder
	for _, at := range b.upstreams() {
		fmt.Fprintf(&forwards, "  forward-addr: %s\n", at)
	}
	conf := filepath.Join(b.dir, "unbound.conf")
	text := fmt.Sprintf(`server:
  interface: 127.0.0.1
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  logfile: ""
  verbosity: 0
  do-daemonize: no
  module-config: "iterator"
  cache-max-ttl: 0
  serve-expired: no
  num-threads: 1
remote-control:
  control-enable: no
forward-zone:
  name: "."
%s`, b.dir, &forwards)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(path, "-d", "-c", conf)
	host := b.net.Host("forwarder")
	if err := host.Start(cmd); err != nil {
		return err
	}
	c.close = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	client := &dns.Client{Timeout: giveUp}
	c.ask = func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, giveUp)
		defer cancel()
		conn, err := host.DialContext(ctx, "udp", "127.0.0.1:53")
		if err != nil {
			return err
		}
		defer conn.Close()
		r, _, err := client.ExchangeWithConnContext(ctx, question(name), &dns.Conn{Conn: conn})
		return right(r, err)
	}
	c.stats = func(r *Row) {
		r.Queries = b.net.Link("forwarder", "a").Counters().UDP + b.net.Link("forwarder", "b").Counters().UDP
	}
	// It is ready when it refuses no more.
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		conn, err := host.DialContext(ctx, "tcp", "127.0.0.1:53")
		cancel()
		if err == nil {
			return conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("dnslab: unbound does not start")
}
