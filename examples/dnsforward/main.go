// Dnsforward is a forwarding DNS server with hedging and a cache, for one machine or a home network. Package forward
// does the work, and this program has the flags.
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
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// reportSignals are the signals after which the program prints its statistics.
var reportSignals []os.Signal

func main() {
	log.SetFlags(0)
	if err := run(flag.CommandLine, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// run starts a forwarder with the configuration in args, the arguments of a command line. It answers queries until the
// process gets SIGTERM or an interrupt, the time of the flag -for has passed, or a listener fails. Then it prints the
// statistics. The flags are defined in flags.
func run(flags *flag.FlagSet, args []string) error {
	o, err := parseOptions(flags, args)
	if err != nil {
		return err
	}
	defer o.Client.Close()
	f, err := forward.New(o.Config)
	if err != nil {
		return err
	}
	log.Printf("dnsforward: listening on %v", slices.Concat(o.Listen, o.ListenTLS, o.ListenHTTPS))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if o.last > 0 {
		defer time.AfterFunc(o.last, cancel).Stop()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append(reportSignals, syscall.SIGTERM, os.Interrupt)...)
	go func() {
		for s := range signals {
			if slices.Contains(reportSignals, s) {
				forward.WriteReport(os.Stdout, o.Client)
				continue
			}
			log.Printf("dnsforward: %v", s)
			cancel()
		}
	}()
	err = f.Serve(ctx)
	forward.WriteReport(os.Stdout, o.Client)
	return err
}

// options is the configuration of a forwarder, and the values of the flags for which forward.Config has no field.
type options struct {
	forward.Config
	resolver               *recursor.Resolver             // used with recursive
	routes                 map[string][]dnshedge.Upstream // by domain; empty: the usual servers are asked
	filter                 dnshedge.RebindFilter
	recursive, validate    bool
	rebind, forwardSpecial bool
	cert, key              string
	last                   time.Duration
}

// parseOptions defines the flags in flags, and parses args, the arguments of a command line. It returns the complete
// configuration of the forwarder, with its clients, certificate and addresses. It returns an error for invalid flags,
// and for a certificate that cannot be read.
func parseOptions(flags *flag.FlagSet, args []string) (*options, error) {
	client := &dnshedge.Client{Cache: new(dnshedge.Cache), SpecialUse: dnshedge.SpecialUseForwarder, Routes: make(map[string]dnshedge.Exchanger)}
	limits := forward.DefaultLimits()
	o := &options{Config: forward.Config{Client: client, Limits: &limits}, routes: make(map[string][]dnshedge.Upstream)}
	o.resolver = &recursor.Resolver{Zones: make(map[string][]netip.AddrPort), Logger: slog.Default()}
	o.defineFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := o.checkFlags(flags); err != nil {
		return nil, err
	}
	o.configureClients()
	if len(o.ListenTLS)+len(o.ListenHTTPS) > 0 {
		get, err := forward.CertificateFiles(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("dnsforward: -listen-tls and -listen-https need -cert and -key: %w", err)
		}
		o.TLSConfig = &tls.Config{GetCertificate: get}
	} else if len(o.Listen) == 0 {
		o.Listen = []string{"127.0.0.1:5300"}
	}
	return o, nil
}

// defineFlags defines the flags, which store their values in o when they are parsed.
func (o *options) defineFlags(flags *flag.FlagSet) {
	parseText := func(s string) (string, error) { return s, nil }
	flags.Func("listen", "`address` to answer on, over UDP and TCP; may be repeated (default 127.0.0.1:5300)", appendTo(&o.Listen, parseText))
	flags.Func("listen-tls", "`address` to answer on, over TLS; may be repeated", appendTo(&o.ListenTLS, parseText))
	flags.Func("listen-https", "`address` to answer on, over HTTPS at /dns-query; may be repeated", appendTo(&o.ListenHTTPS, parseText))
	flags.StringVar(&o.cert, "cert", "", "`file` with the certificate for TLS and HTTPS")
	flags.StringVar(&o.key, "key", "", "`file` with the private key of the certificate")
	flags.StringVar(&o.ListenMetrics, "metrics", "", "`address` of an HTTP server with /metrics and /debug/hedge")
	flags.Func("allow", "`network` of clients that are served, as 192.0.2.0/24; may be repeated (default: this machine and private networks)", appendTo(&o.Allow, forward.ParseNetwork))
	flags.Float64Var(&o.Limits.QuestionsPerSecond, "rate", 0, "questions per second that a client may ask; 0 is no limit")
	flags.IntVar(&o.Limits.Conns, "connections", o.Limits.Conns, "connections of all clients, over TCP and TLS, and as many over HTTPS; when the limit is reached, the client with the most connections loses one")
	flags.IntVar(&o.Limits.ConnsPerClient, "client-connections", o.Limits.ConnsPerClient, "connections of one client")
	flags.IntVar(&o.Limits.UDPSockets, "sockets", o.Limits.UDPSockets, "UDP sockets of each address, among which the kernel distributes clients; 0 is no UDP")
	flags.StringVar(&o.StateFile, "save", "", "`file` that keeps the cache over restarts; with -recursive, measurements of servers are in file.servers, and with -validate in file.upstreams")
	flags.DurationVar(&o.last, "for", 0, "end after this `time`; 0 is never")

	c := o.Client
	flags.Func("upstream", "`server` to ask; may be repeated (default: the system's)", appendTo(&c.Upstreams, dnshedge.ParseUpstream))
	flags.Func("fallback", "`server` to ask if all upstreams fail; may be repeated", appendTo(&c.Fallback, dnshedge.ParseUpstream))
	flags.Func("route", "`domain=server` to ask for the names in a domain; may be repeated; without a server, the domain is asked as all other names are", o.addRoute)
	flags.StringVar(&c.Hosts, "hosts", "", "`file` of addresses and names, as /etc/hosts")
	flags.BoolVar(&o.forwardSpecial, "forward-special", false, "ask servers for special-use names too, such as those of private addresses")
	flags.BoolVar(&o.rebind, "rebind-filter", false, "remove private addresses from answers")
	flags.Func("rebind-allow", "`domain` that may have private addresses; may be repeated", appendTo(&o.filter.Allow, parseText))
	flags.DurationVar(&c.Timeout, "timeout", 5*time.Second, "time limit of a question")
	flags.Func("budget", "hedges allowed, in `percent` of the queries; 0 sends none (default 5; 15 with -recursive)", func(s string) (err error) {
		c.Hedge.BudgetPercent, err = strconv.ParseFloat(s, 64)
		c.Hedge.BudgetPercent = cmp.Or(c.Hedge.BudgetPercent, dnshedge.NoBudget)
		o.resolver.Hedge.BudgetPercent = c.Hedge.BudgetPercent
		return err
	})
	flags.Float64Var(&c.Hedge.MaxHedgesPerSecond, "max-hedges", 0, "hedges per second; 0 is no limit")
	flags.BoolVar(&c.Hedge.Off, "no-hedging", false, "do not hedge")
	flags.Int64Var(&c.Cache.MaxBytes, "cache", 64<<20, "`bytes` of memory for the cache; 0 is no cache")
	flags.DurationVar(&c.Cache.MaxNegativeTTL, "max-negative", time.Hour, "longest time to believe that a name does not exist")
	flags.DurationVar(&c.Cache.MaxStale, "max-stale", 24*time.Hour, "longest time to answer with expired answers when servers fail; 0 is never")

	flags.BoolVar(&o.recursive, "recursive", false, "ask the servers of the zones, from the root down, instead of a resolver, and check signatures (DNSSEC)")
	flags.Func("root-hint", "`address` of a root server, for -recursive; may be repeated (default: the Internet's)", appendTo(&o.resolver.Hints, netip.ParseAddr))
	flags.Func("stub", "`domain=address` of a server that has the domain, for -recursive; the default port is 53; may be repeated", o.addStub)
	flags.BoolVar(&o.validate, "validate", false, "validate the answers of upstreams (DNSSEC); -recursive always validates")
	flags.BoolVar(&o.resolver.Trust.Off, "no-dnssec", false, "do not validate signatures (DNSSEC), with -recursive")
	flags.Func("anchors", "`file` of trust anchors, as root-anchors.xml or as DS and DNSKEY records; for -recursive and -validate (default: the root's keys)", o.addAnchors)
	flags.Func("insecure", "`domain` whose signatures are not checked, for -recursive and -validate; may be repeated", appendTo(&o.resolver.Trust.Insecure, parseDomain))
}

// addRoute parses s, "domain=server". It adds the server to the servers that are queried for names in the domain. If s
// has no server ("domain="), it adds none. The usual servers are queried for names in a domain without added servers.
func (o *options) addRoute(s string) (err error) {
	domain, server, ok := strings.Cut(s, "=")
	if !ok || domain == "" {
		return errors.New("want a domain, = and a server")
	}
	servers := o.routes[domain]
	if server != "" {
		err = appendTo(&servers, dnshedge.ParseUpstream)(server)
	}
	o.routes[domain] = servers
	return err
}

// addStub parses s, "domain=address", and makes the domain a stub zone: the resolver queries the server at the address
// instead of the servers in the domain's delegation. A stub zone may have several servers. The address is an IP
// address, with a port or with the default port 53.
func (o *options) addStub(s string) error {
	domain, server, _ := strings.Cut(s, "=")
	at, err := netip.ParseAddrPort(server)
	if ip, e := netip.ParseAddr(server); e == nil {
		at, err = netip.AddrPortFrom(ip, 53), nil
	}
	if _, e := parseDomain(domain); e != nil || err != nil {
		return errors.New("want a domain, = and an address")
	}
	o.resolver.Zones[domain] = append(o.resolver.Zones[domain], at)
	return nil
}

// addAnchors adds the trust anchors in the file at path: root-anchors.xml, or DS and DNSKEY records.
func (o *options) addAnchors(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	anchors, err := dnssec.ReadAnchors(f)
	o.resolver.Trust.Anchors = append(o.resolver.Trust.Anchors, anchors...)
	return err
}

// parseDomain returns s if it is a domain name, and otherwise an error.
func parseDomain(s string) (string, error) {
	if _, ok := dns.IsDomainName(s); !ok || s == "" {
		return "", errors.New("want a domain")
	}
	return s, nil
}

// appendTo returns a function for flag.Func that parses a value and appends it to a list.
func appendTo[L ~[]T, T any](list *L, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		*list = append(*list, v)
		return err
	}
}

// checkFlags returns an error if flags that were parsed contradict each other.
func (o *options) checkFlags(flags *flag.FlagSet) (err error) {
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("dnsforward: unexpected argument %q", flags.Arg(0))
	case o.Client.Timeout == 0:
		return errors.New("dnsforward: -timeout is 0; want more")
	}
	for _, rule := range []struct {
		applies    bool
		flags, why string
	}{
		{!o.recursive, "root-hint stub no-dnssec", "needs -recursive"},
		{!o.recursive && !o.validate, "anchors insecure", "needs -recursive or -validate"},
		{o.recursive, "upstream fallback", "cannot be used with -recursive: it asks the servers of the zones"},
		{o.recursive, "validate", "cannot be used with -recursive: it checks signatures without that"},
		{o.recursive, "forward-special", "cannot be used with -recursive: give -stub the special-use names that a server of yours has"},
		{len(o.ListenTLS)+len(o.ListenHTTPS) == 0, "cert key", "needs -listen-tls or -listen-https"},
		{o.Client.Cache.MaxBytes == 0 && o.Client.Cache.MaxStale != 0, "max-stale", "needs a cache, and -cache is 0"},
		{o.Client.Cache.MaxBytes == 0 && o.Client.Cache.MaxNegativeTTL != 0, "max-negative", "needs a cache, and -cache is 0"},
		{o.resolver.Trust.Off, "anchors insecure", "cannot be used with -no-dnssec: nothing is checked"},
	} {
		flags.Visit(func(f *flag.Flag) {
			if rule.applies && slices.Contains(strings.Fields(rule.flags), f.Name) {
				err = cmp.Or(err, fmt.Errorf("dnsforward: -%s %s", f.Name, rule.why))
			}
		})
	}
	return err
}

// configureClients completes the Client of the forwarder from the flags. It creates the further Clients that the flags
// -validate and -route need. With the flag -metrics, it also creates the handler of /metrics and /debug/hedge, which
// serves the statistics of the clients.
func (o *options) configureClients() {
	c := o.Client
	if o.forwardSpecial {
		c.SpecialUse = dnshedge.SpecialUseOff
	}
	if o.rebind || len(o.filter.Allow) > 0 {
		c.RebindFilter = &o.filter
	}
	c.Cache.MaxNegativeTTL, c.Cache.MaxStale = cmp.Or(c.Cache.MaxNegativeTTL, -1), cmp.Or(c.Cache.MaxStale, -1) // in a Cache, 0 is a default
	if c.Cache.MaxBytes == 0 {
		c.Cache = nil
	}
	pages := []debug.Source{debug.DNS(c)}
	if r := o.resolver; o.recursive {
		r.Hedge.Off, r.Hedge.MaxPerSecond = c.Hedge.Off, c.Hedge.MaxHedgesPerSecond
		c.Exchanger, c.SpecialUse = r, dnshedge.SpecialUseOff // the Resolver answers special-use names, except for stubs
		pages = append(pages, debug.Recursor(r))
	} else if o.validate {
		inner := &dnshedge.Client{Upstreams: c.Upstreams, Fallback: c.Fallback, Hedge: c.Hedge, Timeout: c.Timeout, SpecialUse: dnshedge.SpecialUseOff}
		v := &dnssec.Validator{Exchanger: inner, Trust: r.Trust, Name: "validator", Logger: r.Logger}
		c.Upstreams, c.Fallback, c.Exchanger = nil, nil, v
		pages = append(pages, debug.DNS(inner), debug.Recursor(v))
	}
	for domain, servers := range o.routes {
		c.Routes[domain] = nil
		if len(servers) > 0 { // c caches
			c.Routes[domain] = &dnshedge.Client{Upstreams: servers, SpecialUse: dnshedge.SpecialUseOff, Timeout: c.Timeout, Hedge: c.Hedge}
		}
	}
	if o.ListenMetrics != "" {
		mux := http.NewServeMux()
		mux.Handle("/metrics", forward.MetricsHandler("dnsforward", c))
		mux.Handle("/debug/hedge", debug.Handler(pages...))
		o.Metrics = mux
	}
}
