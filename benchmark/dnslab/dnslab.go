// Package dnslab compares DNS clients and forwarders over a simulated network: the latency of lookups while packets are
// lost, late or on time, and the number of queries. The network has real kernel sockets, or works in memory.
//
// All contenders look up the same names in the same run. They take turns at each name, in an order that rotates from
// name to name, so that none of them is always the first after a pause. Failed lookups are counted separately and have
// no latency.
package dnslab

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	DefaultLookups = 5050 // of each contender, unless Config has a number

	interleavedWorkers = 32 // concurrent lookups while contenders take turns
)

// Config selects the scenario, the contenders and the lookups for Run. The zero value stands for all contenders over
// UDP in the first scenario.
type Config struct {
	Scenario   string   // the name of one of Scenarios; empty: the first
	Contenders []string // names from Contenders; empty: all that support the transport
	Transport  string   // udp, tls or https; empty: udp, the only one of some contenders
	Lookups    int      // of each contender; 0: DefaultLookups
	Seed       uint64
	Memory     bool // no root needed: sockets in memory, and no forwarders
	Workers    int  // concurrent lookups of one contender at a time, with two equal servers; 0: contenders take turns at each name
	Peers      dnsserver.Peers
	lab.Reporter
}

// A testbed is the simulated network of one Run, with two DNS servers that the clients query.
type testbed struct {
	conf    Config
	net     *netsim.Network
	servers [2]*dnstest.Server
	// received counts the queries that the servers have received from each contender.
	received map[string]*atomic.Int64
	dir      string // for the files of forwarders; empty: none
}

// Run lets the selected DNS clients and forwarders look up names over a simulated network, and returns a row for each.
// It needs root unless Memory is set, see netsim.ErrUnsupported. If ctx ends, Run returns the results so far and the
// error of ctx.
func Run(ctx context.Context, conf Config) ([]lab.Row, error) {
	if conf.Scenario == "" {
		conf.Scenario = Scenarios[0].Name
	}
	if conf.Transport == "" {
		conf.Transport = "udp"
	}
	if conf.Lookups == 0 {
		conf.Lookups = DefaultLookups
	}
	if conf.Workers < 0 {
		return nil, fmt.Errorf("dnslab: Config.Workers is %d; want 0 or more", conf.Workers)
	}
	l, err := newTestbed(conf)
	if err != nil {
		return nil, err
	}
	defer l.close()
	clients, err := l.startClients(conf.Contenders)
	defer func() {
		for _, c := range clients {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if conf.Workers > 0 {
		l.measureUnderLoad(ctx, clients)
	} else {
		l.measureInterleaved(ctx, clients)
	}
	var rows []lab.Row
	for _, c := range clients {
		rows = append(rows, c.newRow())
	}
	return rows, ctx.Err()
}

// loadRounds is the number of parts into which the lookups of each contender under load are divided.
const loadRounds = 10

// measureUnderLoad lets the clients take turns in rounds, each with as many concurrent lookups as Config.Workers.
func (l *testbed) measureUnderLoad(ctx context.Context, clients []*client) {
	start := time.Now()
	for round := range loadRounds {
		for i := range clients {
			c := clients[(round+i)%len(clients)]
			from, to := l.conf.Lookups*round/loadRounds, l.conf.Lookups*(round+1)/loadRounds
			lab.Load{Workers: l.conf.Workers}.Send(ctx, to-from, func(n int) {
				c.measureLookup(ctx, start, from+n)
				if i == 0 {
					l.conf.AddProgress(1)
				}
			})
		}
	}
}

// measureInterleaved lets the clients look up each name one after another. The names of a client differ from each
// other, so that a cache is no advantage.
func (l *testbed) measureInterleaved(ctx context.Context, clients []*client) {
	start := time.Now()
	lab.Load{Workers: interleavedWorkers}.Send(ctx, l.conf.Lookups, func(n int) {
		for i := range clients {
			clients[(n+i)%len(clients)].measureLookup(ctx, start, n)
		}
		l.conf.AddProgress(1)
	})
}

func newTestbed(conf Config) (*testbed, error) {
	sc, err := lab.FindByName("scenario", scenarios, conf.Scenario)
	if err != nil {
		return nil, fmt.Errorf("dnslab: %w", err)
	}
	newNetwork := netsim.NewKernel
	if conf.Memory {
		newNetwork = netsim.NewMemory
	}
	clientHosts := append([]string{"client"}, forwarders...)
	n, err := newNetwork(conf.Seed, append([]string{"a", "b"}, clientHosts...)...)
	if err != nil {
		return nil, err
	}
	l := &testbed{net: n, conf: conf, received: make(map[string]*atomic.Int64)}
	for _, name := range Contenders {
		l.received[name] = new(atomic.Int64)
	}
	for i, host := range []string{"a", "b"} {
		for _, from := range clientHosts {
			n.Link(from, host).Set(sc.links[i].to)
			n.Link(host, from).Set(sc.links[i].from)
		}
		if l.servers[i], err = l.startServer(n.Host(host)); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *testbed) close() {
	for _, s := range l.servers {
		if s != nil {
			s.Close()
		}
	}
	_ = l.net.Close()
	if l.dir != "" {
		_ = os.RemoveAll(l.dir)
	}
}

// startServer starts a DNS server that answers every query at once over all transports, and counts queries by
// contender.
func (l *testbed) startServer(h *netsim.Host) (*dnstest.Server, error) {
	s, err := dnsserver.ServeDNS(h, func(q dnstest.Query) dnstest.Reply {
		labels := dns.SplitDomainName(strings.ToLower(q.Question[0].Name)) // kresd changes the case of letters
		if len(labels) == 3 && l.received[labels[1]] != nil {
			l.received[labels[1]].Add(1)
		}
		return dnsserver.AnswerAddress(q)
	})
	if err != nil {
		return nil, err
	}
	for port, serve := range map[string]func(net.Listener){":853": s.ServeTLS, ":443": s.ServeHTTPS} {
		l, err := h.Listen("tcp", port)
		if err != nil {
			s.Close()
			return nil, err
		}
		serve(l)
	}
	return s, nil
}
