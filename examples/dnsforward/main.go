// Dnsforward is a forwarding DNS server with hedging and a cache. It is a short example, and can serve a machine's
// resolv.conf or a home network.
//
//	go run ./examples/dnsforward -listen 127.0.0.1:5300 -upstream tls://192.0.2.1#dns.example -upstream tls://192.0.2.2#dns.example
//	dig @127.0.0.1 -p 5300 example.com
//
// With -recursive it needs no other resolver: it asks the servers of the zones itself, and validates their signatures
// (DNSSEC). With -validate it validates the answers of its upstreams. It answers over UDP and TCP, and over TLS and
// HTTPS if it has a certificate. README.md in this folder describes its operation, and -help lists the flags.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	client := &dnshedge.Client{Cache: new(dnshedge.Cache), SpecialUse: dnshedge.SpecialUseForwarder}
	f := &forwarder{client: client}
	flag.Func("listen", "`address` to answer on, over UDP and TCP; may be repeated (default 127.0.0.1:5300)", textFlag(&f.listen))
	flag.Func("listen-tls", "`address` to answer on, over TLS; may be repeated", textFlag(&f.dot))
	flag.Func("listen-https", "`address` to answer on, over HTTPS at /dns-query; may be repeated", textFlag(&f.doh))
	cert := flag.String("cert", "", "`file` with the certificate for TLS and HTTPS")
	key := flag.String("key", "", "`file` with the private key of the certificate")
	flag.StringVar(&f.metrics, "metrics", "", "`address` of an HTTP server with /metrics and /debug/hedge")
	flag.Func("allow", "`network` of clients that are served, as 192.0.2.0/24; may be repeated (default: this machine and private networks)", networkFlag(&f.access.allowed))
	flag.Float64Var(&f.access.perSecond, "rate", 0, "questions per second that a client may ask; 0 is no limit")
	flag.IntVar(&f.conns, "connections", 1000, "connections of all clients, over TCP and TLS, and as many over HTTPS; when the limit is reached, the client with the most connections loses one")
	flag.IntVar(&f.connsPerClient, "client-connections", 100, "connections of one client")
	flag.IntVar(&f.sockets, "sockets", defaultUDPSockets(), "UDP sockets of each address, among which the kernel distributes clients")

	flag.Func("upstream", "`server` to ask; may be repeated (default: the system's)", upstreamFlag(&client.Upstreams))
	flag.Func("fallback", "`server` to ask if all upstreams fail; may be repeated", upstreamFlag(&client.Fallback))
	routes := make(map[string]*dnshedge.Client)
	flag.Func("route", "`domain=server` to ask for the names in a domain; may be repeated; without a server, the domain is asked as all other names are", routeFlag(routes))
	flag.StringVar(&client.Hosts, "hosts", "", "`file` of addresses and names, as /etc/hosts")
	root := new(recursiveFlags)
	root.registerFlags(flag.CommandLine)
	forward := flag.Bool("forward-special", false, "ask servers for special-use names too, such as those of private addresses")
	rebind := flag.Bool("rebind-filter", false, "remove private addresses from answers")
	filter := new(dnshedge.RebindFilter)
	flag.Func("rebind-allow", "`domain` that may have private addresses; may be repeated", textFlag(&filter.Allow))
	flag.DurationVar(&client.Timeout, "timeout", 5*time.Second, "time limit of a question")
	flag.Float64Var(&client.Hedge.BudgetPercent, "budget", 5, "hedges allowed, in percent of the queries; 0 sends none")
	flag.Float64Var(&client.Hedge.MaxHedgesPerSecond, "max-hedges", 0, "hedges per second; 0 is no limit")
	flag.BoolVar(&client.Hedge.Off, "no-hedging", false, "do not hedge")
	flag.Int64Var(&client.Cache.MaxBytes, "cache", 64<<20, "`bytes` of memory for the cache")
	flag.DurationVar(&client.Cache.MaxNegativeTTL, "max-negative", time.Hour, "longest time to believe that a name does not exist")
	flag.DurationVar(&client.Cache.MaxStale, "max-stale", 24*time.Hour, "longest time to answer with expired answers when servers fail; negative is never")
	save := flag.String("save", "", "`file` that keeps the cache over restarts; with -recursive, measurements of servers are in file.servers, and with -validate in file.upstreams")
	last := flag.Duration("for", 0, "end after this `time`; 0 is never")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("dnsforward: unexpected argument %q", flag.Arg(0))
	}
	if client.Hedge.BudgetPercent == 0 {
		client.Hedge.BudgetPercent = dnshedge.NoBudget
	}
	if len(f.listen)+len(f.dot)+len(f.doh) == 0 {
		f.listen = []string{"127.0.0.1:5300"}
	}
	if f.access.allowed == nil {
		f.access.allowed = localNetworks
	}
	if *cert != "" || *key != "" {
		f.cert = &certificate{certFile: *cert, keyFile: *key}
	}
	if *forward {
		client.SpecialUse = dnshedge.SpecialUseOff
	}
	if *rebind || len(filter.Allow) > 0 {
		client.RebindFilter = filter
	}
	resolver, err := root.newResolver(client, flag.CommandLine)
	if err != nil {
		return err
	}
	learners := map[string]stateStore{"": client} // by the suffix of the file name
	if resolver != nil {
		f.resolver, learners[".servers"] = resolver, resolver
		defer resolver.Close()
	}
	if f.validating = root.newValidatingClient(client); f.validating != nil {
		learners[".upstreams"] = f.validating.upstreams
		defer f.validating.closeBoth()
	}
	defer client.Close()
	client.Routes = make(map[string]dnshedge.Exchanger)
	for domain, c := range routes {
		client.Routes[domain] = nil
		if len(c.Upstreams) > 0 {
			c.SpecialUse, c.Timeout, c.Hedge = dnshedge.SpecialUseOff, client.Timeout, client.Hedge
			client.Routes[domain] = c // which client caches
			defer c.Close()
		}
	}
	if err := client.Validate(); err != nil {
		return fmt.Errorf("dnsforward: %w", err)
	}
	if *save != "" {
		for suffix, l := range learners {
			if err := loadState(l, *save+suffix); err != nil {
				return err
			}
		}
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append(reportSignals, syscall.SIGTERM, os.Interrupt)...)
	if err := f.start(); err != nil {
		return err
	}
	err = f.runUntilEnd(signals, *last)
	if *save != "" {
		for suffix, l := range learners {
			err = errors.Join(err, saveState(l, *save+suffix))
		}
	}
	f.writeReport(os.Stdout)
	return err
}

// shutdownTime is how long the shutdown may take, in addition to the Timeout of a question.
const shutdownTime = 2 * time.Second

// runUntilEnd waits until a signal arrives, a listener fails, or the duration last has passed, and then shuts the
// forwarder down. If last is 0, there is no time limit. It returns the errors of the listeners and of the shutdown.
func (f *forwarder) runUntilEnd(signals <-chan os.Signal, last time.Duration) error {
	log.Printf("dnsforward: listening on %v", slices.Concat(f.listen, f.dot, f.doh))
	var end <-chan time.Time
	if last > 0 {
		end = time.After(last)
	}
	err := f.waitForEnd(signals, end)
	// The last question may take all of its Timeout, and its response is written after that.
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(f.client.Timeout, 5*time.Second)+shutdownTime)
	defer cancel()
	return errors.Join(err, f.shutDown(ctx))
}

// waitForEnd waits until the forwarder must end. That is so if a signal arrives, end fires, or a listener has failed,
// whose error it returns. On a signal in reportSignals it writes the statistics and continues.
func (f *forwarder) waitForEnd(signals <-chan os.Signal, end <-chan time.Time) error {
	for {
		select {
		case s := <-signals:
			if slices.Contains(reportSignals, s) {
				f.writeReport(os.Stdout)
				continue
			}
			log.Printf("dnsforward: %v", s)
			return nil
		case err := <-f.failed:
			return err
		case <-end:
			return nil
		}
	}
}

// textFlag returns a function for flag.Func that appends the flag's value to the list at to.
func textFlag(to *[]string) func(string) error {
	return func(s string) error {
		*to = append(*to, s)
		return nil
	}
}

// networkFlag returns a function for flag.Func that parses a network, or a single address, and appends it to the list
// at to.
func networkFlag(to *[]netip.Prefix) func(string) error {
	return func(s string) error {
		p, err := netip.ParsePrefix(s)
		if ip, e := netip.ParseAddr(s); e == nil {
			p, err = ip.Prefix(ip.BitLen())
		}
		*to = append(*to, p.Masked())
		return err
	}
}

// upstreamFlag returns a function for flag.Func that parses an upstream and appends it to the list at to.
func upstreamFlag(to *[]dnshedge.Upstream) func(string) error {
	return func(s string) error {
		u, err := dnshedge.ParseUpstream(s)
		*to = append(*to, u)
		return err
	}
}

// routeFlag returns a function for flag.Func that parses "domain=server" and adds the server to the domain's Client in
// to. An empty server adds only the Client.
func routeFlag(to map[string]*dnshedge.Client) func(string) error {
	return func(s string) error {
		domain, server, ok := strings.Cut(s, "=")
		if !ok || domain == "" {
			return fmt.Errorf("want a domain, = and a server")
		}
		c := to[domain]
		if c == nil {
			c = new(dnshedge.Client)
			to[domain] = c
		}
		if server == "" {
			return nil
		}
		return upstreamFlag(&c.Upstreams)(server)
	}
}

// A stateStore can write its measurements and cached answers to a file, and read them after a restart. It is a
// *dnshedge.Client or a *recursor.Resolver.
type stateStore interface {
	Export(io.Writer) error
	Import(io.Reader) error
}

// loadState reads the file that saveState has written into l. If the file does not exist, or cannot be imported, l
// starts without measurements and answers. It returns an error if an existing file cannot be opened.
func loadState(l stateStore, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the first start
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := l.Import(f); err != nil {
		log.Printf("dnsforward: starting without %s: %v", path, err)
	}
	return nil
}

// saveState writes the measurements and answers of l to a file. It replaces an existing file atomically, and leaves the
// file unchanged after an error.
func saveState(l stateStore, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".dnsforward-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(l.Export(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func roundDuration(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// writeReport writes the forwarder's statistics.
func (f *forwarder) writeReport(w io.Writer) {
	s, a := f.client.Stats(), f.upstreamClient().Stats()
	fmt.Fprintf(w, "questions %d  cache hits %d  stale %d  local %d  refreshes %d  failures %d  cached bytes %d\n",
		s.Queries, s.Hits, s.Stale, s.Local, s.Refreshes, s.Failures, f.client.Cache.Bytes())
	fmt.Fprintf(w, "queries %d  hedges %d (won %d, denied %d)  resends %d  failovers %d  ignored messages %d\n",
		a.Wire, a.Hedges, a.HedgeWins, a.Denied, a.Resends, a.Failovers, a.Ignored)
	for _, u := range a.Upstreams {
		state := ""
		if u.Silent {
			state = "  SILENT"
		}
		fmt.Fprintf(w, "  %v: queries %d  round trip %v  p50 %v  p99 %v  loss delay %v  slow delay %v%s\n",
			u.Upstream, u.Queries, roundDuration(u.SRTT), roundDuration(u.P50), roundDuration(u.P99), roundDuration(u.LossDelay), roundDuration(u.SlowDelay), state)
	}
	if f.resolver != nil {
		s := f.resolver.Stats()
		fmt.Fprintf(w, "from the root: questions %d  failures %d  queries %d (TCP %d)  hedges %d (won %d, denied %d)  timeouts %d  failovers %d  lame %d\n",
			s.Questions, s.Failures, s.Wire, s.TCP, s.Hedges, s.HedgeWins, s.Denied, s.Timeouts, s.Failovers, s.Lame)
		fmt.Fprintf(w, "  servers %d (resting %d)  zones %d  RRsets %d  bytes %d  first contact %v\n",
			s.Servers, s.Resting, s.Zones, s.RRsets, s.Bytes, roundDuration(s.FirstContact))
		if s.Bogus != nil {
			reportSecurity(w, s)
		}
	}
	if f.validating != nil {
		reportSecurity(w, f.validating.Stats())
	}
}

// reportSecurity writes the counts of secure, insecure and bogus answers, which DNSSEC validation has found, to w.
func reportSecurity(w io.Writer, s recursor.Stats) {
	fmt.Fprintf(w, "  secure %d  insecure %d  bogus %d  passed over %d\n", s.Secure, s.Insecure, countBogus(s), s.PassedOver)
}
