// Package cachelab compares DNS servers that answer from their caches: the processor time of a query over UDP, over few
// and many TCP or TLS connections, and over a new connection for each query, and the memory of a connection.
//
// All contenders are forwarders with one thread. Each runs as a process on a host of its own, and its clients are on the
// same host. The contenders take turns, so that a disturbance of the machine meets all of them. Only one has open
// connections at a time.
package cachelab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// Queries is the default number of queries to each contender.
const Queries = 20_000

const (
	workers = 24 // concurrent queries
	timeout = 5 * time.Second
)

// A scenario determines the transport and the number of connections over which clients send their queries.
type scenario struct {
	lab.Scenario
	network     string // udp, tcp or tls
	connections int    // that stay open during a round; 0: each query has a new connection
}

// rounds returns the number of rounds into which the queries are divided: fewer if connections take long to open.
func (s scenario) rounds() int { return max(1, min(5, 4_000/max(1, s.connections))) }

var scenarios = []scenario{
	{lab.Scenario{Name: "udp", Description: "over UDP"}, "udp", workers},
	{lab.Scenario{Name: "tcp-24", Description: "over 24 TCP connections"}, "tcp", workers},
	{lab.Scenario{Name: "tcp-2000", Description: "over 2,000 TCP connections"}, "tcp", 2000},
	{lab.Scenario{Name: "tcp-new", Description: "over a new TCP connection for each query"}, "tcp", 0},
}

// newManyClients returns scenarios with 100 to 19,000 TCP or TLS connections.
func newManyClients() (all []scenario) {
	for _, network := range []string{"tcp", "tls"} {
		for _, n := range []int{100, 1000, 10_000, 19_000} {
			name := fmt.Sprintf("%s-%d", network, n)
			all = append(all, scenario{lab.Scenario{Name: name, Description: fmt.Sprintf("over %d %s connections", n, strings.ToUpper(network))}, network, n})
		}
	}
	return all
}

var manyClients = newManyClients()

// Scenarios lists the short scenarios. ManyClients lists the scenarios with 100 to 19,000 connections, which take long.
var Scenarios, ManyClients = lab.ScenariosOf(scenarios), lab.ScenariosOf(manyClients)

var contenders = newContenders()

func newContenders() (all []contender) {
	for _, name := range append([]string{"forwarder", dnsserver.BareGo}, dnsserver.PeerNames()...) {
		all = append(all, contender{Name: name, Start: func(f dnsserver.ForwarderConfig) (*exec.Cmd, error) { return f.Command(name) }})
	}
	return all
}

// Contenders lists the names of all contenders.
var Contenders = lab.NamesOf(contenders)

// Config selects the scenario, the contenders and the queries for Run. The zero value stands for all contenders in the
// first scenario.
type Config struct {
	Scenario   string   // the name of one of Scenarios or ManyClients; empty: the first of Scenarios
	Contenders []string // names from Contenders; empty: all
	Queries    int      // to each contender; 0: Queries
	Seed       uint64
	Peers      dnsserver.Peers
	lab.Reporter
}

// A Row is the result of one contender, with the memory of its connections.
type Row struct {
	lab.Row
	ConnectionMemory float64       // bytes of the process for each connection that stays open; 0: unknown, or there are few
	KernelMemory     float64       // bytes of the kernel for the server's end of each such connection; 0: as above
	Elapsed          time.Duration // in which all queries were answered
}

// A cacheLab is the simulated network of one Run, with an upstream that contenders query once for each name.
type cacheLab struct {
	conf     Config
	scenario scenario
	net      *netsim.Network
	upstream *dnstest.Server
	dir      string // for the files of contenders
	servers  []*server
}

// Run sends queries to the selected contenders, and returns a row for each. It needs root on Linux, see
// netsim.ErrUnsupported. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	if conf.Scenario == "" {
		conf.Scenario = Scenarios[0].Name
	}
	sc, err := lab.FindByName("scenario", slices.Concat(scenarios, manyClients), conf.Scenario)
	if err != nil {
		return nil, fmt.Errorf("cachelab: %w", err)
	}
	if conf.Queries < 0 {
		return nil, fmt.Errorf("cachelab: Config.Queries is %d; want 0 or more", conf.Queries)
	}
	if conf.Queries == 0 {
		conf.Queries = Queries
	}
	l := &cacheLab{conf: conf, scenario: sc}
	defer l.close()
	if err := l.open(); err != nil {
		return nil, err
	}
	if err := l.startServers(); err != nil {
		return nil, err
	}
	rounds := sc.rounds()
	for round := range rounds {
		for i := range l.servers {
			queries := conf.Queries*(round+1)/rounds - conf.Queries*round/rounds
			if err := l.servers[(round+i)%len(l.servers)].measureRound(ctx, queries); err != nil {
				return l.rows(), err
			}
		}
	}
	return l.rows(), ctx.Err()
}

func (l *cacheLab) open() (err error) {
	if l.net, err = netsim.NewKernel(l.conf.Seed, append([]string{"upstream"}, Contenders...)...); err != nil {
		return err
	}
	if l.dir, err = os.MkdirTemp("", "cachelab"); err != nil {
		return err
	}
	l.upstream, err = dnsserver.ServeDNS(l.net.Host("upstream"), dnsserver.AnswerAddress)
	return err
}

func (l *cacheLab) close() {
	for _, s := range l.servers {
		s.close()
	}
	if l.upstream != nil {
		l.upstream.Close()
	}
	if l.net != nil {
		_ = l.net.Close()
	}
	if l.dir != "" {
		_ = os.RemoveAll(l.dir)
	}
}

var errManyIdle = errors.New("above four fifths of its limit, it closes connections that are idle for 200 ms")

// startServers starts the contenders that the Config selects. It skips peers that do not start.
func (l *cacheLab) startServers() error {
	selected, err := lab.SelectByName("contender", contenders, l.conf.Contenders)
	if err != nil {
		return fmt.Errorf("cachelab: %w", err)
	}
	if l.scenario.connections > 0 {
		selected = slices.DeleteFunc(slices.Clone(selected), func(c contender) bool { return c.Name == dnsserver.BareGo })
	}
	l.servers, err = dnsserver.StartAll("cachelab", selected, l.conf.Reporter, l.startServer)
	return err
}

// A contender is a DNS server to compare. Its Start function returns the command that runs the server.
type contender = lab.Contender[dnsserver.ForwarderConfig, *exec.Cmd]

// startServer starts contender c on a host of its own, and fills its cache.
func (l *cacheLab) startServer(c contender) (s *server, err error) {
	if c.Name == "unbound" && l.scenario.connections >= dnsserver.MaxTCPConns*4/5 {
		return nil, errManyIdle
	}
	dir := filepath.Join(l.dir, c.Name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	certificate := filepath.Join(dir, "server.pem")
	cert, key := dnstest.CertificatePEM()
	if err := os.WriteFile(certificate, append(cert, key...), 0o600); err != nil {
		return nil, err
	}
	cmd, err := c.Start(dnsserver.ForwarderConfig{
		Peers: l.conf.Peers, Dir: dir, Upstreams: []string{l.net.Host("upstream").Addr().String()}, Transport: "udp",
		CertificateFile: certificate, ServesTLS: l.scenario.network == "tls",
	})
	if err != nil {
		return nil, err
	}
	s = &server{name: c.Name, scenario: l.scenario, host: l.net.Host(c.Name), progress: l.conf.AddProgress}
	_, s.stop, err = dnsserver.Start(s.host, cmd, timeout)
	if err == nil {
		s.process = cmd.Process
		err = s.prepare()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (l *cacheLab) rows() (rows []Row) {
	for _, s := range l.servers {
		rows = append(rows, s.toRow())
	}
	return rows
}
