package reclab

import (
	"bytes"
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

	"github.com/gohedge/hedge/benchmark/internal/asker"
	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/netsim"
	"github.com/gohedge/hedge/observe"
)

// kind is a resolver that can be measured.
type kind struct {
	name string
	ours *recursor.Hedge // this library's, with these hedges; nil: a program
	// validates says that it checks signatures, with the root's key in the file anchor of its directory.
	validates bool
	// configure returns the program's command. Its files are in a directory of its own, with the
	// root's servers in the file hints.
	configure func(dir string) (*exec.Cmd, error)
}

var contenders = []kind{
	{name: "hedge", ours: new(recursor.Hedge), validates: true},
	{name: "hedge-off", ours: &recursor.Hedge{Off: true}, validates: true},
	{name: "hedge-novalidate", ours: new(recursor.Hedge)},
	{name: "unbound", configure: unbound("  discard-timeout: 0\n" + iterates)},
	{name: "unbound-stock", configure: unbound(iterates)},
	{name: "unbound-validate", validates: true, configure: unbound("  discard-timeout: 0\n" + checks)},
	{name: "named", configure: named("dnssec-validation no;", "")},
	{name: "named-validate", validates: true, configure: named("dnssec-validation yes;", "trust-anchors")},
	{name: "pdns", configure: pdns},
	{name: "kresd", configure: kresd},
}

// Contenders are the names of the contenders.
var Contenders = func() (all []string) {
	for _, c := range contenders {
		all = append(all, c.name)
	}
	return all
}()

// ContendersOf returns the names of those that are compared in a scenario: some validate only where something is signed, and
// the stock settings of unbound are no matter of signatures.
func ContendersOf(scenario string) (all []string) {
	for _, c := range contenders {
		if Signed(scenario) && c.name != "unbound-stock" && c.name != "pdns" && c.name != "kresd" || !Signed(scenario) && c.name != "hedge-novalidate" && (!c.validates || c.ours != nil) {
			all = append(all, c.name)
		}
	}
	return all
}

// Validates reports whether a contender checks signatures.
func Validates(name string) bool {
	return slices.ContainsFunc(contenders, func(k kind) bool { return k.name == name && k.validates })
}

// listen is where contenders listen. The simulated servers have all addresses, at port 53.
const listen = "127.0.0.1:5353"

// The modules of unbound.
const (
	iterates = "  module-config: \"iterator\"\n"
	checks   = "  module-config: \"validator iterator\"\n  trust-anchor-signaling: no\n  trust-anchor-file: \"anchor\"\n"
)

// unbound returns what configures unbound, which drops answers that took it more than 1.9 s
// unless the settings say otherwise.
func unbound(settings string) func(string) (*exec.Cmd, error) {
	return func(dir string) (*exec.Cmd, error) {
		return configured(dir, `server:
  interface: 127.0.0.1
  port: 5353
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: "`+dir+`"
  pidfile: ""
  use-syslog: no
  logfile: ""
  verbosity: 0
  do-daemonize: no
  do-ip6: no
  num-threads: 1
  outgoing-range: 4096
  num-queries-per-thread: 2048
  root-hints: "`+filepath.Join(dir, "hints")+`"
`+settings+`remote-control:
  control-enable: no
`, "unbound", "-d", "-c")
	}
}

// named returns what configures BIND: whether it validates, and how it is given the root's key.
func named(validation, anchors string) func(string) (*exec.Cmd, error) {
	return func(dir string) (*exec.Cmd, error) {
		anchors := anchors
		if anchors != "" {
			text, err := os.ReadFile(filepath.Join(dir, "anchor"))
			f := strings.Fields(string(text)) // owner, TTL, class, type, and the DS record
			if err != nil || len(f) < 8 {
				return nil, fmt.Errorf("reclab: %q is no anchor: %w", text, err)
			}
			anchors = fmt.Sprintf("trust-anchors { . static-ds %s %s %s \"%s\"; };", f[4], f[5], f[6], strings.Join(f[7:], ""))
		}
		return configured(dir, `options {
  directory "`+dir+`";
  listen-on port 5353 { 127.0.0.1; };
  listen-on-v6 { none; };
  allow-query { any; };
  recursion yes;
  `+validation+`
  empty-zones-enable no;
  pid-file none;
  session-keyfile none;
};
`+anchors+`
controls {};
zone "." { type hint; file "hints"; };
`, "named", "-4", "-g", "-n", "1", "-c")
	}
}

func pdns(dir string) (*exec.Cmd, error) {
	path, err := exec.LookPath("pdns_recursor")
	if err != nil {
		return nil, err
	}
	return exec.Command(path, "--config-dir="+dir), os.WriteFile(filepath.Join(dir, "recursor.conf"), []byte(`local-address=127.0.0.1
local-port=5353
allow-from=127.0.0.0/8
hint-file=`+filepath.Join(dir, "hints")+`
dont-query=
dnssec=off
threads=1
daemon=no
disable-syslog=yes
write-pid=no
socket-dir=`+dir+`
security-poll-suffix=
`), 0o644)
}

// kresd by default asks for what this world does not have.
func kresd(dir string) (*exec.Cmd, error) {
	cmd, err := configured(dir, `net.listen('127.0.0.1', 5353, { kind = 'dns' })
net.ipv6 = false
option('ALLOW_LOCAL', true)
trust_anchors.remove('.')
modules = { 'hints' }
modules.unload('ta_update') modules.unload('ta_signal_query') modules.unload('priming') modules.unload('detect_time_skew')
hints.root_file('`+filepath.Join(dir, "hints")+`')
cache.open(100*MB, 'lmdb://`+dir+`')
`, "kresd", "-n", "-c")
	if err == nil {
		cmd.Args = append(cmd.Args, dir)
	}
	return cmd, err
}

// configured writes a configuration file, whose name is the program's last argument.
func configured(dir, text, program string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, program+".conf")
	return exec.Command(path, append(args, file)...), os.WriteFile(file, []byte(text), 0o644)
}

// resolverEnv has the settings of our own resolver, in JSON.
const resolverEnv = "RECLAB_RESOLVER"

type settings struct {
	Hints  []netip.Addr
	Hedge  recursor.Hedge
	Anchor string // the root's DS record; "": nothing is validated
}

// settings returns those of our own resolver in a world.
func (k kind) settings(w *world) settings {
	s := settings{Hints: w.hints(), Hedge: *k.ours}
	if k.validates {
		s.Anchor = w.anchor()
	}
	return s
}

// resolver returns our own contender, as a program uses it.
func (s settings) resolver(d recursor.Dialer, t *recursor.Trace) (*dnshedge.Client, *recursor.Resolver) {
	r := &recursor.Resolver{Hints: s.Hints, Hedge: s.Hedge, Dialer: d, Trace: t, NoIPv6: true, Trust: dnssec.Trust{Off: s.Anchor == ""}}
	if s.Anchor != "" {
		ds, err := dns.NewRR(s.Anchor)
		if err != nil {
			panic(err) // the world has made it
		}
		r.Trust.Anchors = []dns.RR{ds}
	}
	return &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}, r
}

// Resolve makes this process our own resolver if another one that runs this package wants
// it, and does not return then. Programs that call Run call it first.
func Resolve() {
	text := os.Getenv(resolverEnv)
	if text == "" {
		return
	}
	err := resolve(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// resolve answers until standard input ends, and then writes what it did to standard output.
func resolve(text string) error {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	client, r := s.resolver(nil, nil)
	pc, err := net.ListenPacket("udp4", listen)
	if err != nil {
		return err
	}
	go func() { _ = (&dnshedge.Server{Client: client}).ServePacket(pc) }()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r.Stats())
}

// contender is a resolver at work.
type contender struct {
	name      string
	validates bool
	internet  *internet
	ask       func(context.Context, *dns.Msg) (*dns.Msg, error)
	cpu       func() time.Duration // that it has used; nil: unknown
	stats     func() (observe.RecursorStats, error)
	close     func()
}

// inMemory starts our own resolver in this process.
func inMemory(k kind, n *internet, trace *recursor.Trace) *contender {
	client, r := k.settings(n.world).resolver(n, trace)
	return &contender{
		name: k.name, validates: k.validates && n.world.anchor() != "", internet: n,
		ask: func(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
			answer, _, err := client.ExchangeContext(ctx, m, "")
			return answer, err
		},
		stats: func() (observe.RecursorStats, error) { return r.Stats(), nil },
		close: func() { _ = client.Close(); _ = r.Close() },
	}
}

func (w *world) hints() (all []netip.Addr) {
	for _, s := range w.roots {
		all = append(all, s.addr)
	}
	return all
}

// hintsFile is a zone file of the root's servers.
func (w *world) hintsFile() []byte {
	var b bytes.Buffer
	for _, s := range w.roots {
		fmt.Fprintf(&b, ". 3600000 NS %s\n%s 3600000 A %s\n", s.name, s.name, s.addr)
	}
	return b.Bytes()
}

// start starts a contender in a namespace of its own, with an internet. It returns an
// exec.ErrNotFound if the program is not installed.
func start(ctx context.Context, k kind, n *internet) (_ *contender, err error) {
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
	cmd, err := k.command(dir, n.world)
	if err != nil {
		return nil, err
	}
	space, err := netsim.NewNamespace(Network)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = space.Close() })
	hangUp, err := n.listen(space)
	if err != nil {
		return nil, err
	}
	undo = append(undo, hangUp)

	c := &contender{name: k.name, validates: k.validates && n.world.anchor() != "", internet: n, close: stop}
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	if k.ours != nil {
		if err := c.listenTo(cmd); err != nil {
			return nil, err
		}
	}
	kill, err := runIn(space, cmd)
	if err != nil {
		return nil, err
	}
	undo = append(undo, kill)
	c.cpu = func() time.Duration {
		used, _ := cputime.Of(cmd.Process.Pid)
		return used
	}
	questions := questionsIn(space)
	c.ask = questions.Ask
	undo = append(undo, questions.Close)
	if err := c.warm(ctx); err != nil {
		return nil, fmt.Errorf("%w; it said: %s", err, said.String())
	}
	return c, nil
}

// command returns what runs the contender, and writes its files to a directory. It returns an
// exec.ErrNotFound if the program is not installed.
func (k kind) command(dir string, w *world) (cmd *exec.Cmd, err error) {
	if err := os.Chmod(dir, 0o755); err != nil { // some programs drop their privileges
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "hints"), w.hintsFile(), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "anchor"), []byte(w.anchor()+"\n"), 0o644); err != nil {
		return nil, err
	}
	if k.ours == nil {
		cmd, err = k.configure(dir)
	} else {
		cmd, err = ourselves(k.settings(w))
	}
	if err != nil {
		return nil, fmt.Errorf("reclab: %s: %w", k.name, err)
	}
	return cmd, nil
}

// listenTo has our own resolver say what it did when its input ends.
func (c *contender) listenTo(cmd *exec.Cmd) error {
	cmd.Stdout = nil
	in, out, err := pipes(cmd)
	c.stats = func() (s observe.RecursorStats, err error) {
		if err = in.Close(); err == nil {
			err = json.NewDecoder(out).Decode(&s)
		}
		return s, err
	}
	return err
}

// questionsIn asks the contender of a namespace.
func questionsIn(space *netsim.Namespace) *asker.Asker {
	return &asker.Asker{Timeout: giveUp, Dial: func(context.Context) (conn net.Conn, err error) {
		err = space.Do(func() (err error) {
			conn, err = net.Dial("udp4", listen)
			return err
		})
		return conn, err
	}}
}

// runIn starts a program in a namespace.
func runIn(space *netsim.Namespace, cmd *exec.Cmd) (kill func(), err error) {
	dieWithParent(cmd)
	cmd.WaitDelay = time.Second // for programs that it has started, which hold its output
	started, over := make(chan error, 1), make(chan struct{})
	go func() {
		err := space.Do(func() error {
			started <- cmd.Start()
			<-over // the thread is its parent
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		close(over)
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		close(over)
	}, nil
}

// ourselves returns the command that runs this program as our own resolver.
func ourselves(s settings) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), resolverEnv+"="+string(text), "GOMAXPROCS=1") // as the others have one thread
	return cmd, nil
}

func pipes(cmd *exec.Cmd) (in io.WriteCloser, out io.ReadCloser, err error) {
	if in, err = cmd.StdinPipe(); err == nil {
		out, err = cmd.StdoutPipe()
	}
	return in, out, err
}

// warm asks for a name that does not exist until there is an answer: the contender then knows
// the servers of the root and of one zone below it.
func (c *contender) warm(ctx context.Context) error {
	until := time.Now().Add(30 * time.Second)
	for {
		m := new(dns.Msg)
		m.SetQuestion("www.nobody.c00.", dns.TypeA)
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		answer, err := c.ask(one, m)
		cancel()
		switch {
		case err == nil && answer.Rcode == dns.RcodeNameError:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(until):
			return errors.Join(fmt.Errorf("reclab: %s does not start", c.name), err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// tail keeps the end of what a program says. The zero value is empty.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-2000):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.end))
}
