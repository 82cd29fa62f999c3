// Package faultlab compares resolvers while one of their two servers, or the path to it, has a fault: Go's own
// resolver, unbound as a forwarder, and a dnshedge.Client with three configurations. The network has real kernel
// sockets, or works in memory.
//
// All contenders get the same queries at the same times, and each has a host of its own, so that no contender delays
// another. An answer after [QueryTimeout] does not count.
package faultlab

import (
	"cmp"
	"context"
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
	DefaultRate  = 100.             // queries per second, unless the config has a rate
)

// A Row is the result of one resolver. Its calls are the queries for which a right answer exists, in the order in which
// they were sent. Asked is the number of all queries.
type Row struct {
	lab.Row
	Denials    int           // right answers that deny the name
	LastAnswer time.Duration // from the first query to the last right answer
}

// A testbed is the simulated network of one Run, with the DNS servers of a scenario and a resolv.conf.
type testbed struct {
	*lab.Testbed
	scenario
	conf           lab.Config
	resolvConfTime time.Time // the modification time of resolv.conf
	servers        map[string]*dnstest.Server
}

// Run sends the queries of a scenario to the selected resolvers, and returns a row for each. It needs root unless
// Memory is set, see netsim.ErrUnsupported. In memory, it leaves out unbound, and runs Go's resolver in this
// process. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf lab.Config) ([]Row, error) {
	sc, err := lab.SelectScenario(&conf, scenarios, 0)
	if err != nil {
		return nil, err
	}
	if conf.Calls > 0 {
		conf.Rate = float64(conf.Calls) / sc.queryDuration().Seconds()
	}
	conf.Rate = cmp.Or(conf.Rate, DefaultRate)
	bed, err := lab.NewTestbed(conf, append([]string{"a", "b"}, Contenders...)...)
	if err != nil {
		return nil, err
	}
	defer bed.Close()
	l := &testbed{Testbed: bed, scenario: sc, conf: conf, resolvConfTime: time.Now(), servers: make(map[string]*dnstest.Server)}
	if err := l.startServers(); err != nil {
		return nil, err
	}
	resolvers, err := lab.StartAll(conf, contenders, func(c lab.Contender[*resolver, resolveFunc]) (r *resolver, err error) {
		r = &resolver{testbed: l, name: c.Name}
		r.resolve, err = c.Start(r)
		return r, err
	})
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

// startServers starts the DNS servers and writes resolv.conf.
func (l *testbed) startServers() error {
	for _, h := range l.serverHosts() {
		l.setLinks(h, l.linkProfile())
		if err := l.startServer(h); err != nil {
			return err
		}
	}
	if l.prepare != nil {
		return l.prepare(l)
	}
	return l.writeResolvConf(l.serverHosts()...)
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
		addresses = append(addresses, l.Net.Host(h).Addr().String())
	}
	return addresses
}

// setLinks sets the delay and loss of packets between all resolvers and a host.
func (l *testbed) setLinks(host string, p netsim.Profile) {
	for _, from := range Contenders {
		l.Net.Set(from, host, p)
	}
}

func (l *testbed) startServer(host string) error {
	newHandler := l.first
	if host == "b" {
		newHandler = l.second
	}
	s, err := dnsserver.ServeDNS(l.Net.Host(host), newHandler(l.conf.Seed))
	if err == nil {
		l.servers[host] = s
		l.AtClose(s.Close)
	}
	return err
}

func (l *testbed) resolvConfPath() string { return filepath.Join(l.Dir, "resolv.conf") }

// writeResolvConf writes a resolv.conf with the servers on the given hosts. Its modification time is later than before, by
// which readers see the change. Its length is always the same, so that no reader gets a mixture of two versions.
func (l *testbed) writeResolvConf(hosts ...string) error {
	const length = 80
	text := ""
	for _, h := range hosts {
		text += "nameserver " + l.Net.Host(h).Addr().String() + "\n"
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
			lab.Load{Interarrival: lab.ConstantRate(l.conf.Rate)}.Run(ctx, queries, func(i int) {
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
