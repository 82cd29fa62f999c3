// Package dnslab measures ways to ask DNS servers over a simulated network: how long
// callers wait when packets are lost, late or on time, and how many queries that
// costs. The network has real kernel sockets, or works in memory.
//
// All contenders ask the same names in the same run. For each name they take turns,
// in an order that rotates from name to name, so that the first question after a
// pause is not always the same contender's. Failures are counted separately, and
// have no latency.
package dnslab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	Samples = 5050 // questions of each contender, unless Config says otherwise

	workers = 32 // that ask at the same time
)

// Config says what to measure. The zero value measures all contenders on a clean network over UDP.
type Config struct {
	Scenario   string   // one of Scenarios; empty: clean
	Strategies []string // some of Strategies; empty: all that can run here
	Transport  string   // udp, tls or https; empty: udp, which some strategies are bound to
	Samples    int      // questions of each contender; 0: Samples
	Seed       uint64
	Memory     bool      // without root: sockets of package netsim's own; without forwarders
	Workers    int       // that keep a question in flight each, to two equal servers and of names of its own; 0: contenders take turns at each question
	Progress   func(int) // called with how many more samples are done; may be nil
}

// Row is what was measured of a contender.
type Row struct {
	Strategy string
	Calls    []latency.Call // as they ended
	Queries  int64          // on the wire
	Conns    int64          // streams opened
	Hedges   int64
	Wins     int64
	Denied   int64
}

// Extra returns how many queries there were besides one per request, as a share
// of all requests.
func (r Row) Extra() float64 { return float64(r.Queries)/float64(max(len(r.Calls), 1)) - 1 }

// bench is a network with two servers.
type bench struct {
	net     *netsim.Network
	servers [2]*dnstest.Server
	conf    Config
	dir     string // for the forwarders' files; empty: none
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
	if conf.Workers < 0 {
		return nil, fmt.Errorf("dnslab: Config.Workers is %d; want 0 or more", conf.Workers)
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
	if conf.Workers > 0 {
		b.load(ctx, all, start)
	} else {
		b.turns(ctx, all, start)
	}
	var rows []Row
	for _, c := range all {
		rows = append(rows, c.row())
	}
	return rows, ctx.Err()
}

// rounds is in how many parts a contender's questions are asked under load.
const rounds = 10

// load has the contenders asked one after another, in rounds, each with a question
// of every worker in flight.
func (b *bench) load(ctx context.Context, all []*contender, start time.Time) {
	for round := range rounds {
		for i := range all {
			c := all[(round+i)%len(all)]
			end := b.conf.Samples * (round + 1) / rounds
			var next atomic.Int64
			next.Store(int64(b.conf.Samples * round / rounds))
			var wg sync.WaitGroup
			for range b.conf.Workers {
				wg.Go(func() {
					for ctx.Err() == nil {
						n := int(next.Add(1)) - 1
						if n >= end {
							return
						}
						c.measure(ctx, start, fmt.Sprintf("n%d.s%d.example.", n, b.conf.Seed))
						if b.conf.Progress != nil && i == 0 {
							b.conf.Progress(1)
						}
					}
				})
			}
			wg.Wait()
		}
	}
}

// turns has the contenders take turns at each question.
func (b *bench) turns(ctx context.Context, all []*contender, start time.Time) {
	conf := b.conf
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= conf.Samples {
					return
				}
				// Each name is asked once: contenders with a cache would have an advantage.
				name := fmt.Sprintf("n%d.example.", i)
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
	askers := append([]string{"client"}, forwarders...)
	n, err := newNetwork(conf.Seed, append([]string{"a", "b"}, askers...)...)
	if err != nil {
		return nil, err
	}
	b := &bench{net: n, conf: conf}
	for i, h := range []string{"a", "b"} {
		p := [...][2]netsim.Profile{a, b2}[i]
		for _, from := range askers {
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
