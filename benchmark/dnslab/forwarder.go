package dnslab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/asker"
	"github.com/gohedge/hedge/dnshedge"
)

// forwarders are the contenders that are processes of their own, each on a host of its
// own together with its clients.
var forwarders = []string{"forwarder", "unbound", "dnsdist", "coredns"}

// upstreamsEnv has the servers that the forwarder asks, separated by spaces.
const upstreamsEnv = "DNSLAB_UPSTREAMS"

// Forward makes this process the forwarder if another one that runs this package
// wants it, and does not return then. Programs that call Run call it first.
func Forward() {
	ups := strings.Fields(os.Getenv(upstreamsEnv))
	if len(ups) == 0 {
		return
	}
	client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
	for _, at := range ups {
		client.Upstreams = append(client.Upstreams, dnshedge.Upstream{Addr: net.JoinHostPort(at, "53")})
	}
	for _, network := range []string{"tcp", "udp"} { // TCP says that it is ready
		if network == "tcp" {
			go func() { _ = dns.ListenAndServe("127.0.0.1:53", network, client) }()
			continue
		}
		fmt.Fprintln(os.Stderr, dns.ListenAndServe("127.0.0.1:53", network, client))
	}
	os.Exit(1)
}

// forwarder is a process of this program that forwards with a Client's defaults.
func (b *bench) forwarder(c *contender) error {
	if b.conf.Memory {
		return fmt.Errorf("dnslab: a forwarder on a memory network: %w", exec.ErrNotFound)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), upstreamsEnv+"="+strings.Join(b.upstreams(), " "))
	cmd.Stderr = os.Stderr
	return b.forward(c, cmd)
}

// unbound's cache keeps nothing.
func (b *bench) unbound(c *contender) error {
	var forwards strings.Builder
	for _, at := range b.upstreams() {
		fmt.Fprintf(&forwards, "  forward-addr: %s\n", at)
	}
	return b.configured(c, "unbound", func(dir string) string {
		return fmt.Sprintf(`server:
  interface: 127.0.0.1
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  logfile: ""
  verbosity: 0
  do-daemonize: no
  module-config: "iterator"
  cache-max-ttl: 0
  serve-expired: no
  num-threads: 1
remote-control:
  control-enable: no
forward-zone:
  name: "."
%s`, dir, &forwards)
	}, "-d", "-c")
}

// dnsdist has no cache and sends nothing again.
func (b *bench) dnsdist(c *contender) error {
	return b.configured(c, "dnsdist", func(string) string {
		text := "setLocal('127.0.0.1:53')\n"
		for _, at := range b.upstreams() {
			text += fmt.Sprintf("newServer({address='%s:53'}):setUp()\n", at)
		}
		return text
	}, "--supervised", "--disable-syslog", "-C")
}

// coredns has no cache. It asks the servers in a random order, and those that are down,
// which it finds out by asking for the root's servers, last.
func (b *bench) coredns(c *contender) error {
	return b.configured(c, "coredns", func(string) string {
		return fmt.Sprintf(".:53 {\n  bind 127.0.0.1\n  forward . %s\n}\n", strings.Join(b.upstreams(), " "))
	}, "-quiet", "-conf")
}

// configured starts a program with a configuration file, whose name is its last argument.
func (b *bench) configured(c *contender, program string, text func(dir string) string, args ...string) error {
	if b.conf.Memory {
		return fmt.Errorf("dnslab: %s on a memory network: %w", program, exec.ErrNotFound)
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "dnslab"); err != nil {
			return err
		}
	}
	file := filepath.Join(b.dir, program+".conf")
	if err := os.WriteFile(file, []byte(text(b.dir)), 0o600); err != nil {
		return err
	}
	return b.forward(c, exec.Command(path, append(args, file)...))
}

// forward starts a forwarder and makes c ask it.
func (b *bench) forward(c *contender, cmd *exec.Cmd) error {
	host := b.net.Host(c.name)
	if err := host.Start(cmd); err != nil {
		return err
	}
	questions := &asker.Asker{Timeout: giveUp, Dial: func(ctx context.Context) (net.Conn, error) {
		return host.DialContext(ctx, "udp", "127.0.0.1:53")
	}}
	c.close = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		questions.Close()
	}
	c.ask = func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, giveUp)
		defer cancel()
		r, err := questions.Ask(ctx, question(name))
		if err != nil {
			return err
		}
		return right(r, nil)
	}
	c.stats = func(r *Row) {
		r.Queries = b.net.Link(c.name, "a").Counters().UDP + b.net.Link(c.name, "b").Counters().UDP
	}
	// It is ready when it accepts connections.
	for range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		conn, err := host.DialContext(ctx, "tcp", "127.0.0.1:53")
		cancel()
		if err == nil {
			return conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("dnslab: " + c.name + " does not start")
}
