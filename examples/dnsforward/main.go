//go:build unix

// Dnsforward is a forwarding DNS server that hedges and caches. It is small enough to
// read, and can serve a machine's resolv.conf. It is for Unix only, because signals
// control it.
//
//	go run ./examples/dnsforward -listen 127.0.0.1:5300 -upstream tls://192.0.2.1#dns.example -upstream tls://192.0.2.2#dns.example
//	dig @127.0.0.1 -p 5300 example.com
//
// It answers over UDP and TCP. On SIGUSR1 it prints statistics; on SIGTERM or SIGINT it
// answers what it has been asked, and ends. With -save it keeps the cache, and the times
// that it learned of the servers, in a file over restarts. All -upstream servers must be
// equivalent; -fallback servers are asked only if all of those fail. Without -upstream it
// asks the servers of the system's resolv.conf, which must not be this one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
	listen := flag.String("listen", "127.0.0.1:5300", "`address` to answer on, over UDP and TCP")
	save := flag.String("save", "", "`file` that keeps the cache over restarts")
	sockets := flag.Int("sockets", runtime.GOMAXPROCS(0), "UDP sockets, among which the kernel spreads clients")
	flag.Func("upstream", "`server` to ask; may be repeated", into(&client.Upstreams))
	flag.Func("fallback", "`server` to ask if all others fail; may be repeated", into(&client.Fallback))
	flag.DurationVar(&client.Timeout, "timeout", 5*time.Second, "for one question")
	flag.Float64Var(&client.Hedge.BudgetPercent, "budget", 5, "hedges allowed, in percent of the queries")
	flag.Float64Var(&client.Hedge.MaxHedgesPerSecond, "max-hedges", 0, "hedges per second; 0 is no limit")
	flag.BoolVar(&client.Hedge.Off, "no-hedging", false, "do not hedge")
	flag.Int64Var(&client.Cache.MaxBytes, "cache", 64<<20, "`bytes` of memory for the cache")
	flag.DurationVar(&client.Cache.MaxNegativeTTL, "max-negative", time.Hour, "longest time to believe that a name does not exist")
	flag.DurationVar(&client.Cache.MaxStale, "max-stale", 24*time.Hour, "longest time to answer with expired answers when servers fail; negative is never")
	last := flag.Duration("for", 0, "end after that `time`; 0 is never")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("dnsforward: unexpected argument %q", flag.Arg(0))
	}
	defer client.Close()
	if *save != "" {
		if err := load(client, *save); err != nil {
			return err
		}
	}

	servers, err := start(*listen, *sockets, dns.HandlerFunc(client.ServeDNS))
	if err != nil {
		return err
	}
	log.Printf("dnsforward: listening on %s", *listen)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGTERM, os.Interrupt)
	if *last > 0 {
		time.AfterFunc(*last, func() { signals <- os.Interrupt })
	}
	for s := range signals {
		if s == syscall.SIGUSR1 {
			report(client)
			continue
		}
		log.Printf("dnsforward: %v", s)
		break
	}
	ctx, cancel := context.WithTimeout(context.Background(), client.Timeout)
	defer cancel()
	for _, s := range servers {
		err = errors.Join(err, s.ShutdownContext(ctx))
	}
	if *save != "" {
		err = errors.Join(err, store(client, *save))
	}
	report(client)
	return err
}

// into returns a flag's function that appends upstreams.
func into(to *[]dnshedge.Upstream) func(string) error {
	return func(s string) error {
		u, err := dnshedge.ParseUpstream(s)
		*to = append(*to, u)
		return err
	}
}

// start listens on TCP and on some UDP sockets.
func start(address string, sockets int, h dns.Handler) ([]*dns.Server, error) {
	var servers []*dns.Server
	failed := make(chan error, sockets+1)
	up := make(chan struct{}, sockets+1)
	begin := func(s *dns.Server) {
		s.Handler, s.NotifyStartedFunc = h, func() { up <- struct{}{} }
		servers = append(servers, s)
		go func() { failed <- s.ListenAndServe() }()
	}
	for range max(sockets, 1) {
		begin(&dns.Server{Addr: address, Net: "udp", ReusePort: sockets > 1, UDPSize: 4096})
	}
	begin(&dns.Server{Addr: address, Net: "tcp", IdleTimeout: func() time.Duration { return 10 * time.Second }})
	for range servers {
		select {
		case <-up:
		case err := <-failed:
			return nil, fmt.Errorf("dnsforward: listen on %s: %w", address, err)
		}
	}
	return servers, nil
}

// load reads what store wrote. Without a file, the client starts empty.
func load(c *dnshedge.Client, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the first start
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.Import(f); err != nil {
		log.Printf("dnsforward: starting without %s: %v", path, err)
	}
	return nil
}

// store replaces the file as a whole, or leaves it as it was.
func store(c *dnshedge.Client, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".dnsforward-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(c.Export(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// report prints what the client did.
func report(c *dnshedge.Client) {
	s := c.Stats()
	fmt.Printf("questions %d  cache hits %d  stale %d  refreshes %d  failures %d  cached bytes %d\n",
		s.Queries, s.Hits, s.Stale, s.Refreshes, s.Failures, c.Cache.Bytes())
	fmt.Printf("queries %d  hedges %d (won %d, denied %d)  resends %d  failovers %d  ignored messages %d\n",
		s.Wire, s.Hedges, s.HedgeWins, s.Denied, s.Resends, s.Failovers, s.Ignored)
	for _, u := range s.Upstreams {
		state := ""
		if u.Silent {
			state = "  SILENT"
		}
		fmt.Printf("  %v: queries %d  round trip %v  p50 %v  p99 %v  loss delay %v  slow delay %v%s\n",
			u.Upstream, u.Queries, round(u.SRTT), round(u.P50), round(u.P99), round(u.LossDelay), round(u.SlowDelay), state)
	}
}
