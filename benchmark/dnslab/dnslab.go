// Package dnslab compares DNS clients and forwarders over a simulated network: the latency of lookups while packets are
// lost, late or on time, and the number of queries. The network has real kernel sockets, or works in memory.
//
// All contenders look up the same names in the same run. They take turns at each name, in an order that rotates from
// name to name, so that none of them is always the first after a pause. Failed lookups are counted separately and have
// no latency.
package dnslab

import (
	"cmp"
	"context"
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
	DefaultLookups = 5050 // of each contender

	interleavedWorkers = 32 // concurrent lookups while contenders take turns
)

// A testbed is the simulated network of one run, with two DNS servers that the clients query.
type testbed struct {
	*lab.Testbed
	conf lab.Config
	// received counts the queries that the servers have received from each contender.
	received map[string]*atomic.Int64
}

// Run lets the selected DNS clients and forwarders look up names over a simulated network, and returns a row for each.
// It needs root unless Memory is set, see netsim.ErrUnsupported. If ctx ends, Run returns the results so far and the
// error of ctx.
func Run(ctx context.Context, conf lab.Config) ([]lab.Row, error) {
	sc, err := lab.SelectScenario(&conf, scenarios, DefaultLookups)
	if err != nil {
		return nil, err
	}
	conf.Transport = cmp.Or(conf.Transport, "udp")
	bed, err := lab.NewTestbed(conf, append([]string{"a", "b"}, Contenders...)...)
	if err != nil {
		return nil, err
	}
	defer bed.Close()
	l := &testbed{Testbed: bed, conf: conf, received: make(map[string]*atomic.Int64)}
	if err := l.startServers(sc); err != nil {
		return nil, err
	}
	clients, err := l.startClients()
	if err != nil {
		return nil, err
	}
	l.measureInterleaved(ctx, clients)
	var rows []lab.Row
	for _, c := range clients {
		rows = append(rows, c.newRow())
	}
	return rows, ctx.Err()
}

// measureInterleaved makes all lookups: for each number, all clients look up their name of that number one after another.
// No name is looked up twice, so that a cache is no advantage.
func (l *testbed) measureInterleaved(ctx context.Context, clients []*client) {
	start := time.Now()
	lab.Load{Workers: cmp.Or(l.conf.Workers, interleavedWorkers)}.Run(ctx, l.conf.Calls, func(n int) {
		for i := range clients {
			c := clients[(n+i)%len(clients)]
			c.calls.Measure(ctx, start, n, func() error { return c.lookup(ctx, c.queryName(n)) })
		}
		l.conf.AddProgress(len(clients))
	})
}

// startServers starts the testbed's two DNS servers with the links of scenario sc, and writes their certificate to a
// file that forwarders trust.
func (l *testbed) startServers(sc scenario) error {
	for _, name := range Contenders {
		l.received[name] = new(atomic.Int64)
	}
	for i, host := range []string{"a", "b"} {
		for _, from := range Contenders {
			l.Net.Link(from, host).Set(sc.links[i].to)
			l.Net.Link(host, from).Set(sc.links[i].from)
		}
		if err := l.startServer(l.Net.Host(host)); err != nil {
			return err
		}
	}
	cert, _ := dnstest.CertificatePEM()
	return os.WriteFile(l.certificateFile(), cert, 0o644)
}

// startServer starts a DNS server that answers each query at once over all transports, and counts the queries by client.
func (l *testbed) startServer(h *netsim.Host) error {
	s, err := dnsserver.ServeDNS(h, func(q dnstest.Query) dnstest.Reply {
		labels := dns.SplitDomainName(strings.ToLower(q.Question[0].Name)) // kresd changes the case of letters
		if len(labels) == 3 && l.received[labels[1]] != nil {
			l.received[labels[1]].Add(1)
		}
		return dnsserver.AnswerAddress(q)
	})
	if err != nil {
		return err
	}
	l.AtClose(s.Close)
	for port, serve := range map[string]func(net.Listener){":853": s.ServeTLS, ":443": s.ServeHTTPS} {
		listener, err := h.Listen("tcp", port)
		if err != nil {
			return err
		}
		serve(listener)
	}
	return nil
}
