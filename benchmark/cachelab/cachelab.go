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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
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

// rounds returns into how many rounds a run is divided, in each of which all servers are measured one after another: five,
// or fewer if the scenario has so many connections that they take long to open.
func (s scenario) rounds() int { return max(1, min(5, 4_000/max(1, s.connections))) }

var scenarios = []scenario{
	{lab.Scenario{Name: "udp", Description: "over UDP"}, "udp", workers},
	{lab.Scenario{Name: "tcp-24", Description: "over 24 TCP connections"}, "tcp", workers},
	{lab.Scenario{Name: "tcp-2000", Description: "over 2,000 TCP connections"}, "tcp", 2000},
	{lab.Scenario{Name: "tcp-new", Description: "over a new TCP connection for each query"}, "tcp", 0},
}

// newManyClientsScenarios returns scenarios with 100 to 19,000 TCP or TLS connections.
func newManyClientsScenarios() (all []scenario) {
	for _, network := range []string{"tcp", "tls"} {
		for _, n := range []int{100, 1000, 10_000, 19_000} {
			name := fmt.Sprintf("%s-%d", network, n)
			all = append(all, scenario{lab.Scenario{Name: name, Description: fmt.Sprintf("over %d %s connections", n, strings.ToUpper(network))}, network, n})
		}
	}
	return all
}

var manyClients = newManyClientsScenarios()

// Scenarios lists the short scenarios. ManyClients lists the scenarios with 100 to 19,000 connections, which take long.
var Scenarios, ManyClients = lab.ScenariosOf(scenarios), lab.ScenariosOf(manyClients)

// Contenders lists the names of all contenders.
var Contenders = append([]string{"forwarder", dnsserver.BareGo}, dnsserver.PeerNames()...)

// A Row is the result of one DNS server: its calls, the time for all of them, and the memory per open connection.
type Row struct {
	lab.Row
	ConnectionMemory float64       // bytes of the process for each connection that stays open; 0: unknown, or there are few
	KernelMemory     float64       // bytes of the kernel for the server's end of each such connection; 0: as above
	Elapsed          time.Duration // in which all queries were answered
}

// A testbed is the simulated network of one Run, with an upstream that each compared server queries once for each name.
type testbed struct {
	*lab.Testbed
	conf     lab.Config
	scenario scenario
}

// Run sends queries to the selected DNS servers, and returns a row for each. It needs root on Linux, see
// netsim.ErrUnsupported. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf lab.Config) (rows []Row, err error) {
	sc, err := lab.SelectScenario(&conf, slices.Concat(scenarios, manyClients), Queries)
	if err != nil {
		return nil, err
	}
	bed, err := lab.NewTestbed(conf, append([]string{upstreamHost}, Contenders...)...)
	if err != nil {
		return nil, err
	}
	defer bed.Close()
	l := &testbed{Testbed: bed, conf: conf, scenario: sc}
	servers, err := l.startServers()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range servers {
			s.row.Contender, s.row.Calls = s.name, s.calls.SortedCalls()
			rows = append(rows, s.row)
		}
	}()
	rounds := sc.rounds()
	for round := range rounds {
		for i := range servers {
			queries := conf.Calls*(round+1)/rounds - conf.Calls*round/rounds
			if err := servers[(round+i)%len(servers)].measureRound(ctx, queries); err != nil {
				return nil, err
			}
		}
	}
	return nil, ctx.Err()
}

const upstreamHost = "upstream"

var errManyIdle = errors.New("above four fifths of its limit, it closes connections that are idle for 200 ms")

// startServers starts the DNS servers that the config selects, and the upstream to which they forward queries.
func (l *testbed) startServers() ([]*server, error) {
	upstream, err := dnsserver.ServeDNS(l.Net.Host(upstreamHost), dnsserver.AnswerAddress)
	if err != nil {
		return nil, err
	}
	l.AtClose(upstream.Close)
	cert, key := dnstest.CertificatePEM()
	if err := os.WriteFile(l.certificateFile(), append(cert, key...), 0o600); err != nil {
		return nil, err
	}
	var all []contender
	for _, name := range Contenders {
		all = append(all, contender{Name: name, Start: l.startServer})
	}
	return lab.StartAll(l.conf, all, func(c contender) (*server, error) { return c.Start(c.Name) })
}

func (l *testbed) certificateFile() string { return filepath.Join(l.Dir, "server.pem") }

// A contender is a DNS server to compare. Its Start function takes the contender's name and returns the running server.
type contender = lab.Contender[string, *server]

// startServer starts the named DNS server on a host of its own, and fills its cache.
func (l *testbed) startServer(name string) (_ *server, err error) {
	if name == "unbound" && l.scenario.connections >= dnsserver.MaxTCPConns*4/5 {
		return nil, errManyIdle
	}
	s := &server{name: name, scenario: l.scenario, host: l.Net.Host(name), progress: l.conf.AddProgress}
	var stop func()
	_, s.process, stop, err = dnsserver.ForwarderConfig{
		Peers: l.conf.Peers, Dir: filepath.Join(l.Dir, name), Upstreams: []string{l.Net.Host(upstreamHost).Addr().String()}, Transport: "udp",
		CertificateFile: l.certificateFile(), ServesTLS: l.scenario.network == "tls", ClosesConns: l.scenario.connections == 0,
	}.Start(s.host, name, timeout)
	l.AtClose(stop)
	if err != nil {
		return nil, err
	}
	return s, s.warmUp()
}
