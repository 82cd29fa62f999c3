// Package faultlab compares resolvers while one of their two servers, or the path to it, has a fault: Go's own
// resolver, unbound as a forwarder, and a dnshedge.Client with three configurations. The network has real kernel
// sockets, or works in memory.
//
// All contenders get the same queries at the same times, and each has a host of its own, so that no contender delays
// another. An answer after [QueryTimeout] does not count.
package faultlab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	QueryTimeout = 10 * time.Second // of a query
	DefaultRate  = 100.             // queries per second, unless Config has a rate
)

// Config selects the scenario, the contenders and the rate of queries for Run.
type Config struct {
	Scenario   string   // the name of one of Scenarios
	Contenders []string // names from Contenders; empty: all
	Rate       float64  // queries per second; 0: DefaultRate
	Seed       uint64
	Memory     bool // no root needed: sockets in memory, and no unbound; a function chooses the servers of Go's resolver
	Peers      dnsserver.Peers
	lab.Reporter
}

// A Row is the result of one resolver. Its calls are the queries that have a right answer, in the order in which they
// were sent. Asked also counts the queries without one.
type Row struct {
	lab.Row
	Denials    int           // right answers that deny the name
	LastAnswer time.Duration // from the first query to the last right answer
}

// A testbed is the simulated network of one Run, with the DNS servers of a scenario and a resolv.conf.
type testbed struct {
	scenario
	conf           Config
	net            *netsim.Network
	dir            string
	resolvConfTime time.Time // the modification time of resolv.conf
	servers        map[string]*dnstest.Server
}

// Run sends the queries of a scenario to the selected resolvers, and returns a row for each. It needs root unless
// Memory is set, see netsim.ErrUnsupported. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	sc, err := lab.FindByName("scenario", scenarios, conf.Scenario)
	if err != nil {
		return nil, fmt.Errorf("faultlab: %w", err)
	}
	if conf.Rate == 0 {
		conf.Rate = DefaultRate
	}
	l := &testbed{scenario: sc, conf: conf, servers: make(map[string]*dnstest.Server)}
	defer l.close()
	if err := l.setUp(); err != nil {
		return nil, err
	}
	resolvers, err := l.startResolvers()
	defer func() {
		for _, r := range resolvers {
			r.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	err = l.measureResolvers(ctx, resolvers)
	var rows []Row
	for _, r := range resolvers {
		rows = append(rows, r.newRow())
	}
	return rows, err
}

// QueryDuration returns the duration for which queries are sent in a scenario, which must exist.
func QueryDuration(name string) time.Duration {
	sc, err := lab.FindByName("scenario", scenarios, name)
	if err != nil {
		panic(err) // callers take the name from Scenarios
	}
	return sc.queryDuration()
}

func (l *testbed) setUp() (err error) {
	newNetwork := netsim.NewKernel
	if l.conf.Memory {
		newNetwork = netsim.NewMemory
	}
	if l.net, err = newNetwork(l.conf.Seed, append([]string{"a", "b"}, Contenders...)...); err != nil {
		return err
	}
	if l.dir, err = os.MkdirTemp("", "faultlab"); err != nil {
		return err
	}
	for _, h := range l.serverHosts() {
		l.setLinks(h, l.linkProfile())
		if err := l.startServer(h); err != nil {
			return err
		}
	}
	l.resolvConfTime = time.Now()
	if l.prepare != nil {
		return l.prepare(l)
	}
	return l.writeResolvConf(l.serverHosts()...)
}

func (l *testbed) close() {
	for _, s := range l.servers {
		s.Close()
	}
	if l.net != nil {
		_ = l.net.Close()
	}
	if l.dir != "" {
		_ = os.RemoveAll(l.dir)
	}
}

// serverHosts returns the hosts of the DNS servers, in the order in which resolvers prefer the servers.
func (l *testbed) serverHosts() []string {
	if l.second == nil {
		return []string{"a"}
	}
	return []string{"a", "b"}
}

func (l *testbed) serverAddresses() (addresses []string) {
	for _, h := range l.serverHosts() {
		addresses = append(addresses, l.net.Host(h).Addr().String())
	}
	return addresses
}

// setLinks sets the delay and loss of packets between all resolvers and a host.
func (l *testbed) setLinks(host string, p netsim.Profile) {
	for _, from := range Contenders {
		l.net.Set(from, host, p)
	}
}

func (l *testbed) startServer(host string) error {
	newHandler := l.first
	if host == "b" {
		newHandler = l.second
	}
	s, err := dnsserver.ServeDNS(l.net.Host(host), newHandler(l.conf.Seed))
	if err == nil {
		l.servers[host] = s
	}
	return err
}

func (l *testbed) resolvConfPath() string { return filepath.Join(l.dir, "resolv.conf") }

// writeResolvConf writes a resolv.conf with the servers on the given hosts. Every version has the same length, so that
// no reader gets a mixture, and a later modification time.
func (l *testbed) writeResolvConf(hosts ...string) error {
	const length = 80
	text := ""
	for _, h := range hosts {
		text += "nameserver " + l.net.Host(h).Addr().String() + "\n"
	}
	f, err := os.OpenFile(l.resolvConfPath(), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text+strings.Repeat("\n", length-len(text))), 0); err != nil {
		return err
	}
	l.resolvConfTime = l.resolvConfTime.Add(time.Second)
	return os.Chtimes(l.resolvConfPath(), l.resolvConfTime, l.resolvConfTime)
}

// measureResolvers sends the queries to all resolvers at the same times, and applies the events of the scenario.
func (l *testbed) measureResolvers(ctx context.Context, resolvers []*resolver) error {
	start := time.Now()
	failed := make(chan error, len(l.events))
	var running sync.WaitGroup
	running.Go(func() {
		for _, e := range l.events {
			if lab.SleepContext(ctx, time.Until(start.Add(e.at))) != nil {
				return
			}
			if err := e.apply(l); err != nil {
				failed <- err
			}
		}
	})
	queries := int(l.queryDuration().Seconds() * l.conf.Rate)
	for _, r := range resolvers {
		running.Go(func() {
			lab.Load{Interarrival: lab.ConstantRate(l.conf.Rate)}.Send(ctx, queries, func(i int) {
				r.measureQuery(ctx, start, i, l.query(i))
				l.conf.AddProgress(1)
			})
		})
	}
	running.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	return ctx.Err()
}
