// Package faultlab asks resolvers, side by side, in worlds in which something is wrong with one of their two
// servers, or with the way there: Go's own resolver, unbound as a forwarder, and this library's Client in
// three ways. The network is simulated, with real kernel sockets, or works in memory.
//
// All contenders are asked the same questions at the same times, and each has a host of its own, so that
// none waits for another. A question is given [Patience]; who has said nothing by then has not answered.
package faultlab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	Patience = 10 * time.Second // for each question
	Rate     = 100.             // questions a second, unless Config says otherwise
)

// Config says what to measure.
type Config struct {
	World      string   // one of Worlds
	Contenders []string // some of Contenders; empty: all that can run here
	Rate       float64  // questions a second; 0: Rate
	Seed       uint64
	Memory     bool             // without root: sockets of package netsim's own, without unbound, and Go's resolver told whom to dial
	Progress   func(int)        // called with how many more questions were answered, or were not; may be nil
	Skipped    func(why string) // called for each contender that cannot run here; may be nil
}

// Row is what was measured of a contender.
type Row struct {
	Contender string
	Calls     []latency.Call // of questions that have a right answer, in the order in which they were asked; Winner is -1 if it was not given
	Denied    int            // answers that deny the name, where that is right as well
	Last      time.Duration  // from the first question to the last right answer
	Queries   int64          // to both servers
	Asked     int            // questions, those without a right answer included
}

// Answered returns the number of questions that were answered rightly.
func (r Row) Answered() int { return len(latency.Answered(r.Calls)) }

// bench is a world at work.
type bench struct {
	world
	conf    Config
	net     *netsim.Network
	dir     string
	wrote   time.Time // what the time of the file resolv.conf says
	servers map[string]*dnstest.Server
}

// Run measures. It needs root, unless Memory is set; see netsim.ErrUnsupported. If ctx ends, what was measured
// until then is returned with its error.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	i := slices.Index(Worlds, conf.World)
	if i < 0 {
		return nil, fmt.Errorf("faultlab: world %q; want one of %s", conf.World, strings.Join(Worlds, ", "))
	}
	if conf.Rate == 0 {
		conf.Rate = Rate
	}
	b := &bench{world: worlds[i], conf: conf, servers: make(map[string]*dnstest.Server)}
	defer b.close()
	if err := b.open(); err != nil {
		return nil, err
	}
	all, err := b.contenders(ctx)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	err = b.play(ctx, all)
	var rows []Row
	for _, c := range all {
		rows = append(rows, c.row(b))
	}
	return rows, err
}

// Lasts returns how long questions are asked in a world.
func Lasts(name string) time.Duration { return worlds[slices.Index(Worlds, name)].lasts() }

// open makes the network, the servers and resolv.conf.
func (b *bench) open() (err error) {
	newNetwork := netsim.NewKernel
	if b.conf.Memory {
		newNetwork = netsim.NewMemory
	}
	if b.net, err = newNetwork(b.conf.Seed, append([]string{"a", "b"}, Contenders...)...); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "faultlab"); err != nil {
		return err
	}
	for _, h := range b.hosts() {
		b.way(h, b.profile())
		if err := b.serve(h); err != nil {
			return err
		}
	}
	b.wrote = time.Now()
	if b.start != nil {
		return b.start(b)
	}
	return b.names(b.hosts()...)
}

func (b *bench) close() {
	for _, s := range b.servers {
		s.Close()
	}
	if b.net != nil {
		_ = b.net.Close()
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// hosts are those of the servers.
func (b *bench) hosts() []string {
	if b.second == nil {
		return []string{"a"}
	}
	return []string{"a", "b"}
}

// way sets both directions between all contenders and a server.
func (b *bench) way(host string, p netsim.Profile) {
	for _, from := range Contenders {
		b.net.Set(from, host, p)
	}
}

// serve starts the server of a host, over UDP and TCP.
func (b *bench) serve(host string) error {
	make := b.first
	if host == "b" {
		make = b.second
	}
	s := &dnstest.Server{Handler: make(b.conf.Seed)}
	pc, err := b.net.Host(host).ListenPacket("udp", ":53")
	if err != nil {
		return err
	}
	s.ServeUDP(pc)
	b.servers[host] = s
	l, err := b.net.Host(host).Listen("tcp", ":53")
	if err != nil {
		return err
	}
	s.ServeTCP(l)
	return nil
}

// resolvConf is the file that Go's resolver, and a Client without Upstreams, read.
func (b *bench) resolvConf() string { return filepath.Join(b.dir, "resolv.conf") }

// names writes the servers on some hosts into resolv.conf. The file is as long as before and written at once, so
// that nobody reads half of it, and each time has another time.
func (b *bench) names(hosts ...string) error {
	const long = 80
	text := ""
	for _, h := range hosts {
		text += "nameserver " + b.net.Host(h).Addr().String() + "\n"
	}
	f, err := os.OpenFile(b.resolvConf(), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text+strings.Repeat("\n", long-len(text))), 0); err != nil {
		return err
	}
	b.wrote = b.wrote.Add(time.Second)
	return os.Chtimes(b.resolvConf(), b.wrote, b.wrote)
}

// play asks the questions, while things happen, and waits for the answers.
func (b *bench) play(ctx context.Context, all []*contender) error {
	began := time.Now()
	failed := make(chan error, len(b.events))
	var happening, asking sync.WaitGroup
	happening.Go(func() {
		for _, e := range b.events {
			if !sleep(ctx, time.Until(began.Add(e.at))) {
				return
			}
			if err := e.do(b); err != nil {
				failed <- err
			}
		}
	})
	for i := range int(b.lasts().Seconds() * b.conf.Rate) {
		if !sleep(ctx, time.Until(began.Add(time.Duration(float64(i)/b.conf.Rate*float64(time.Second))))) {
			break
		}
		for _, c := range all {
			asking.Go(func() {
				c.measure(ctx, began, i, b.question(i))
				if b.conf.Progress != nil {
					b.conf.Progress(1)
				}
			})
		}
	}
	asking.Wait()
	happening.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	return ctx.Err()
}

// sleep waits, or reports false if ctx ends before that.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
