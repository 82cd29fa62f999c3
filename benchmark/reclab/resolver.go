package reclab

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/netsim"
	"github.com/gohedge/hedge/observe"
)

// listenAddress is the address of all contenders. The simulated servers have all addresses, at port 53.
const listenAddress = "127.0.0.1:5353"

// An environment has the things that a compared resolver needs to start, such as the config and its simulated network.
type environment struct {
	ctx     context.Context
	conf    lab.Config
	bed     *lab.Testbed
	name    string
	network *network
}

// A configureFunc writes the configuration of a DNS server of another project to dir, and returns the command that runs
// it. dir already has the files hints, with the root servers, and anchor, with the DS record of the root's key.
type configureFunc func(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error)

var (
	validatingContenders = []string{"hedge", "hedge-off", "unbound-validate", "named-validate"}
	validatingPrograms   = validatingContenders[2:]
)

// IsValidating reports whether the resolver with the given name validates DNSSEC signatures (RFC 4035).
func IsValidating(name string) bool { return slices.Contains(validatingContenders, name) }

// A resolver is one of the compared resolvers while it runs.
type resolver struct {
	name      string
	validates bool
	network   *network
	exchange  func(context.Context, *dns.Msg) (*dns.Msg, error)
	cpu       func() time.Duration // processor time so far; nil: unknown
	stats     func() (observe.RecursorStats, error)
}

// newResolver returns a resolver for environment e. The caller must set exchange, and may set cpu and stats.
func newResolver(e environment) *resolver {
	return &resolver{name: e.name, validates: IsValidating(e.name) && e.network.internet.trustAnchor() != "", network: e.network}
}

// newLibraryStarter returns a function that starts this library's resolver with the settings h: in a helper process, or
// in this process if the network is in memory.
func newLibraryStarter(h recursor.Hedge) func(environment) (*resolver, error) {
	return func(e environment) (*resolver, error) {
		s := librarySettings{Hedge: h}
		for _, root := range e.network.internet.roots {
			s.Hints = append(s.Hints, root.addr)
		}
		if IsValidating(e.name) {
			s.Anchor = e.network.internet.trustAnchor()
		}
		if e.conf.Memory {
			return startInProcess(e, s)
		}
		return startResolverProcess(e, func(dnsserver.PeerCommands, string) (*exec.Cmd, error) {
			return libraryHelper.Command(context.Background(), s, "GOMAXPROCS=1")
		}, true)
	}
}

// newPeerStarter returns a function that starts another project's resolver. configure writes its configuration files.
func newPeerStarter(configure configureFunc) func(environment) (*resolver, error) {
	return func(e environment) (*resolver, error) {
		if e.conf.Memory {
			return nil, fmt.Errorf("no processes in memory: %w", exec.ErrNotFound)
		}
		return startResolverProcess(e, configure, false)
	}
}

// The librarySettings configure this library's resolver, in this process or in a helper process.
type librarySettings struct {
	Hints  []netip.Addr
	Hedge  recursor.Hedge
	Anchor string // the DS record of the root's key; empty: no validation
}

// newClient returns a caching client of this library's resolver, and the resolver. A nil d means real sockets, and a
// nil t no trace.
func (s librarySettings) newClient(d recursor.Dialer, t *recursor.Trace) (*dnshedge.Client, *recursor.Resolver) {
	r := &recursor.Resolver{Hints: s.Hints, Hedge: s.Hedge, Dialer: d, Trace: t, NoIPv6: true, Trust: dnssec.Trust{Off: s.Anchor == ""}}
	if s.Anchor != "" {
		ds, err := dns.NewRR(s.Anchor)
		if err != nil {
			panic(err) // the record comes from an internet
		}
		r.Trust.Anchors = []dns.RR{ds}
	}
	return &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}, r
}

var libraryHelper = helper.New("reclab", librarySettings.serve)

// serve runs this library's resolver as a DNS server in a helper process until standard input ends. It then writes the
// resolver's statistics to standard output.
func (s librarySettings) serve() error {
	client, r := s.newClient(nil, nil)
	pc, err := net.ListenPacket("udp4", listenAddress)
	if err != nil {
		return err
	}
	go func() { _ = (&dnshedge.Server{Client: client}).ServePacket(pc) }()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r.Stats())
}

func startInProcess(e environment, s librarySettings) (*resolver, error) {
	client, own := s.newClient(e.network, e.conf.Trace)
	r := newResolver(e)
	r.exchange = func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		answer, _, err := client.ExchangeContext(ctx, m, "")
		return answer, err
	}
	r.stats = func() (observe.RecursorStats, error) { return own.Stats(), nil }
	e.bed.AtClose(func() { _ = client.Close(); _ = own.Close() })
	return r, r.waitUntilReady(e.ctx)
}

// startResolverProcess starts a resolver as a process, in a network namespace with the servers of the simulated internet.
// isLibrary means that it is this library's resolver, which writes its statistics when it ends.
func startResolverProcess(e environment, configure configureFunc, isLibrary bool) (*resolver, error) {
	dir := filepath.Join(e.bed.Dir, e.name)
	if err := e.network.internet.writeRootFiles(dir); err != nil {
		return nil, err
	}
	cmd, err := configure(e.conf.Peers, dir)
	if err != nil {
		return nil, err
	}
	space, err := netsim.NewNamespace(ServerNetwork)
	if err != nil {
		return nil, err
	}
	e.bed.AtClose(func() { _ = space.Close() })
	stopServers, err := e.network.listenAndServe(space)
	if err != nil {
		return nil, err
	}
	e.bed.AtClose(stopServers)
	r := newResolver(e)
	var output dnsserver.OutputTail
	cmd.Stdout, cmd.Stderr = &output, &output
	if isLibrary {
		if err := r.setStatsCommand(cmd); err != nil {
			return nil, err
		}
	}
	cmd.WaitDelay = time.Second // a child process of the program may hold its output open
	if err := space.Do(cmd.Start); err != nil {
		return nil, err
	}
	e.bed.AtClose(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	r.cpu = func() time.Duration {
		used, _ := cputime.LiveThreads(cmd.Process.Pid)
		return used
	}
	r.exchange = newNamespaceClient(space).Exchange
	if err := r.waitUntilReady(e.ctx); err != nil {
		return nil, fmt.Errorf("%w; its output: %s", err, output.String())
	}
	return r, nil
}

// writeRootFiles makes the directory dir. It writes hints, the addresses of the root servers, and anchor, the DS record of
// the root's key, to it.
func (n *internet) writeRootFiles(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	var hints strings.Builder
	for _, s := range n.roots {
		fmt.Fprintf(&hints, ". 3600000 NS %s\n%s 3600000 A %s\n", s.name, s.name, s.addr)
	}
	if err := os.WriteFile(filepath.Join(dir, "hints"), []byte(hints.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "anchor"), []byte(n.trustAnchor()+"\n"), 0o644)
}

// setStatsCommand sets r.stats, which ends cmd by closing its standard input and reads the statistics that cmd writes.
func (r *resolver) setStatsCommand(cmd *exec.Cmd) error {
	cmd.Stdout = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	r.stats = func() (s observe.RecursorStats, err error) {
		if err = in.Close(); err == nil {
			err = json.NewDecoder(out).Decode(&s)
		}
		return s, err
	}
	return err
}

func newNamespaceClient(space *netsim.Namespace) *dnsserver.Client {
	return &dnsserver.Client{Timeout: QuestionTimeout, Dial: func(context.Context) (conn net.Conn, err error) {
		err = space.Do(func() (err error) {
			conn, err = net.Dial("udp4", listenAddress)
			return err
		})
		return conn, err
	}}
}

// waitUntilReady queries a missing name until the resolver answers, for at most 30 seconds. The resolver has then
// cached the servers of the root and of one top-level domain.
func (r *resolver) waitUntilReady(ctx context.Context) error {
	err := dnsserver.Retry(30*time.Second, func() error {
		if ctx.Err() != nil {
			return nil
		}
		m := new(dns.Msg)
		m.SetQuestion("www.nobody.c00.", dns.TypeA)
		lookupCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		answer, err := r.exchange(lookupCtx, m)
		if err == nil && answer.Rcode != dns.RcodeNameError {
			err = fmt.Errorf("it answers %s", dns.RcodeToString[answer.Rcode])
		}
		return err
	})
	return cmp.Or(ctx.Err(), err)
}
