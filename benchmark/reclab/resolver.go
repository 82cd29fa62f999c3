package reclab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/netsim"
	"github.com/gohedge/hedge/observe"
)

// listenAddress is the address of all contenders. The simulated servers have all addresses, at port 53.
const listenAddress = "127.0.0.1:5353"

// An environment is everything that the start of a resolver needs.
type environment struct {
	ctx     context.Context
	conf    Config
	name    string
	network *network
}

// A configureFunc returns the command of a program. It writes the program's files to a directory, which has the servers
// of the root in the file hints and the DS record of the root's key in the file anchor.
type configureFunc func(dir string) (*exec.Cmd, error)

var (
	validating         = []string{"hedge", "hedge-off", "unbound-validate", "named-validate"}
	validatingPrograms = validating[2:]
)

// IsValidating reports whether a contender validates signatures (RFC 4035).
func IsValidating(name string) bool { return slices.Contains(validating, name) }

// A resolver is a contender at work.
type resolver struct {
	name      string
	validates bool
	network   *network
	exchange  func(context.Context, *dns.Msg) (*dns.Msg, error)
	cpu       func() time.Duration // processor time so far; nil: unknown
	stats     func() (observe.RecursorStats, error)
	close     func()
}

// newResolver returns the resolver of an environment. It validates only where the root is signed.
func newResolver(e environment) *resolver {
	return &resolver{name: e.name, validates: IsValidating(e.name) && e.network.internet.anchor() != "", network: e.network}
}

// startOwn returns the start of this library's resolver: in this process, or in a process of its own.
func startOwn(h recursor.Hedge) func(environment) (*resolver, error) {
	return func(e environment) (*resolver, error) {
		s := ownSettings{Hints: e.network.internet.rootAddresses(), Hedge: h}
		if IsValidating(e.name) {
			s.Anchor = e.network.internet.anchor()
		}
		if e.conf.Memory {
			return startInMemory(e, s)
		}
		return startProcess(e, func(string) (*exec.Cmd, error) { return ownCommand(s) }, true)
	}
}

// startProgram returns the start of another resolver. It fails with exec.ErrNotFound if the program is not installed.
func startProgram(configure configureFunc) func(environment) (*resolver, error) {
	return func(e environment) (*resolver, error) {
		if e.conf.Memory {
			return nil, fmt.Errorf("reclab: %s in memory: %w", e.name, exec.ErrNotFound)
		}
		return startProcess(e, configure, false)
	}
}

// ownEnv is the variable with the settings of this library's resolver, in JSON.
const ownEnv = "RECLAB_RESOLVER"

// ownSettings configure this library's resolver.
type ownSettings struct {
	Hints  []netip.Addr
	Hedge  recursor.Hedge
	Anchor string // the DS record of the root's key; empty: no validation
}

// newClient returns this library's resolver with a cache.
func (s ownSettings) newClient(d recursor.Dialer, t *recursor.Trace) (*dnshedge.Client, *recursor.Resolver) {
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

// ServeResolver is this library's resolver in a process that Run has started for it, and does not return in it. A
// program that calls Run calls ServeResolver first.
func ServeResolver() {
	text := os.Getenv(ownEnv)
	if text == "" {
		return
	}
	if err := serveOwn(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveOwn answers queries until standard input ends, and then writes its statistics to standard output.
func serveOwn(text string) error {
	var s ownSettings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
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

// startInMemory starts this library's resolver in this process.
func startInMemory(e environment, s ownSettings) (*resolver, error) {
	client, own := s.newClient(e.network, e.conf.Trace)
	r := newResolver(e)
	r.exchange = func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
		answer, _, err := client.ExchangeContext(ctx, m, "")
		return answer, err
	}
	r.stats = func() (observe.RecursorStats, error) { return own.Stats(), nil }
	r.close = func() { _ = client.Close(); _ = own.Close() }
	if err := r.waitUntilReady(e.ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// startProcess starts a resolver in a namespace of its own, with the servers of the environment's network.
func startProcess(e environment, configure configureFunc, isOwn bool) (_ *resolver, err error) {
	var undo []func()
	stop := sync.OnceFunc(func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	})
	defer func() {
		if err != nil {
			stop()
		}
	}()
	dir, err := os.MkdirTemp("", "reclab")
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = os.RemoveAll(dir) })
	if err := e.network.internet.writeFiles(dir); err != nil {
		return nil, err
	}
	cmd, err := configure(dir)
	if err != nil {
		return nil, fmt.Errorf("reclab: %s: %w", e.name, err)
	}
	space, err := netsim.NewNamespace(Network)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = space.Close() })
	stopServers, err := e.network.listen(space)
	if err != nil {
		return nil, err
	}
	undo = append(undo, stopServers)
	r := newResolver(e)
	r.close = stop
	var output outputTail
	cmd.Stdout, cmd.Stderr = &output, &output
	if isOwn {
		if err := r.readStatsFrom(cmd); err != nil {
			return nil, err
		}
	}
	kill, err := runInNamespace(space, cmd)
	if err != nil {
		return nil, err
	}
	undo = append(undo, kill)
	r.cpu = func() time.Duration {
		used, _ := cputime.OfProcess(cmd.Process.Pid)
		return used
	}
	client := newClientIn(space)
	r.exchange = client.Exchange
	undo = append(undo, client.Close)
	if err := r.waitUntilReady(e.ctx); err != nil {
		return nil, fmt.Errorf("%w; its output: %s", err, output.String())
	}
	return r, nil
}

// writeFiles writes the files hints and anchor, see configureFunc.
func (n *internet) writeFiles(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil { // some programs drop their privileges
		return err
	}
	var hints strings.Builder
	for _, s := range n.roots {
		fmt.Fprintf(&hints, ". 3600000 NS %s\n%s 3600000 A %s\n", s.name, s.name, s.addr)
	}
	if err := os.WriteFile(filepath.Join(dir, "hints"), []byte(hints.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "anchor"), []byte(n.anchor()+"\n"), 0o644)
}

func (n *internet) rootAddresses() (all []netip.Addr) {
	for _, s := range n.roots {
		all = append(all, s.addr)
	}
	return all
}

// readStatsFrom makes r.stats end the standard input of this library's resolver and read its statistics.
func (r *resolver) readStatsFrom(cmd *exec.Cmd) error {
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

// newClientIn returns a client of the resolver in a namespace.
func newClientIn(space *netsim.Namespace) *dnsserver.Client {
	return &dnsserver.Client{Timeout: Timeout, Dial: func(context.Context) (conn net.Conn, err error) {
		err = space.Do(func() (err error) {
			conn, err = net.Dial("udp4", listenAddress)
			return err
		})
		return conn, err
	}}
}

// runInNamespace starts a program in a namespace.
func runInNamespace(space *netsim.Namespace, cmd *exec.Cmd) (kill func(), err error) {
	dieWithParent(cmd)
	cmd.WaitDelay = time.Second // a child process of the program may hold its output open
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		err := space.Do(func() error {
			started <- cmd.Start()
			<-done // the program dies with this thread, its parent
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		close(done)
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		close(done)
	}, nil
}

// ownCommand returns the command that runs this program as this library's resolver, with one thread as the other resolvers.
func ownCommand(s ownSettings) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), ownEnv+"="+string(text), "GOMAXPROCS=1")
	return cmd, nil
}

// waitUntilReady looks up a name that does not exist until there is an answer. The resolver then knows the servers of
// the root and of one zone below the root.
func (r *resolver) waitUntilReady(ctx context.Context) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		m := new(dns.Msg)
		m.SetQuestion("www.nobody.c00.", dns.TypeA)
		lookupCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		answer, err := r.exchange(lookupCtx, m)
		cancel()
		switch {
		case err == nil && answer.Rcode == dns.RcodeNameError:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return errors.Join(fmt.Errorf("reclab: %s does not start", r.name), err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// An outputTail keeps the last 2,000 bytes of a program's output. Its zero value is empty.
type outputTail struct {
	mu  sync.Mutex
	end []byte
}

func (t *outputTail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-2000):]
	return len(b), nil
}

func (t *outputTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.end))
}
