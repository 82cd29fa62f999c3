package dnslab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/dnshedge"
)

// forwarders are the contenders that run as processes of their own, each on a host of its own together with its clients.
var forwarders = []string{"forwarder", "unbound", "dnsdist", "coredns"}

// upstreamsEnv is the variable with the servers of the forwarder, separated by spaces.
const upstreamsEnv = "DNSLAB_UPSTREAMS"

// ServeForwarder runs this library's DNS forwarder in a helper process that Run has started for it, and does not return
// in it. In any other process it returns at once. A program that calls Run calls ServeForwarder first.
func ServeForwarder() {
	upstreams := strings.Fields(os.Getenv(upstreamsEnv))
	if len(upstreams) == 0 {
		return
	}
	client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
	for _, address := range upstreams {
		client.Upstreams = append(client.Upstreams, dnshedge.Upstream{Addr: net.JoinHostPort(address, "53")})
	}
	go func() { _ = dns.ListenAndServe(dnsserver.ListenAddress, "tcp", client) }() // its port shows that the process is ready
	fmt.Fprintln(os.Stderr, dns.ListenAndServe(dnsserver.ListenAddress, "udp", client))
	os.Exit(1)
}

// startForwarder starts this program again, as a DNS forwarder that uses dnshedge.Client with its defaults, and returns
// the function that looks up names through it.
func (c *client) startForwarder() (lookupFunc, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), upstreamsEnv+"="+strings.Join(c.upstreams(), " "))
	cmd.Stderr = os.Stderr
	return c.startProcess(func(string) (*exec.Cmd, error) { return cmd, nil })
}

// startUnbound starts the program unbound as a DNS forwarder without a cache, and returns the function that looks up
// names through it.
func (c *client) startUnbound() (lookupFunc, error) {
	return c.startProcess(func(dir string) (*exec.Cmd, error) {
		return dnsserver.UnboundCommand(dir, "  module-config: \"iterator\"\n  cache-max-ttl: 0\n  serve-expired: no\n", dnsserver.UnboundForwards(c.upstreams()))
	})
}

// startDnsdist starts the program dnsdist as a DNS forwarder, which has no cache and retransmits nothing. It returns
// the function that looks up names through it.
func (c *client) startDnsdist() (lookupFunc, error) {
	text := "setLocal('127.0.0.1:53')\n"
	for _, address := range c.upstreams() {
		text += fmt.Sprintf("newServer({address='%s:53'}):setUp()\n", address)
	}
	return c.startProcess(func(dir string) (*exec.Cmd, error) {
		return dnsserver.ConfiguredCommand(dir, text, "dnsdist", "--supervised", "--disable-syslog", "-C")
	})
}

// startCoreDNS starts the program CoreDNS as a DNS forwarder without a cache. It queries its servers in random order,
// and servers that are down last. It detects these by queries for the servers of the root.
func (c *client) startCoreDNS() (lookupFunc, error) {
	text := fmt.Sprintf(".:53 {\n  bind 127.0.0.1\n  forward . %s\n}\n", strings.Join(c.upstreams(), " "))
	return c.startProcess(func(dir string) (*exec.Cmd, error) {
		return dnsserver.ConfiguredCommand(dir, text, "coredns", "-quiet", "-conf")
	})
}

// startProcess starts a DNS forwarder as a process on a host of its own, and returns the function that looks up names
// through it. command returns the command, and writes the forwarder's files to dir.
func (c *client) startProcess(command func(dir string) (*exec.Cmd, error)) (lookupFunc, error) {
	if c.conf.Memory {
		return nil, fmt.Errorf("no processes on a network in memory: %w", exec.ErrNotFound)
	}
	if c.dir == "" {
		var err error
		if c.dir, err = os.MkdirTemp("", "dnslab"); err != nil {
			return nil, err
		}
	}
	cmd, err := command(c.dir)
	if err != nil {
		return nil, err
	}
	var server *dnsserver.Client
	if server, c.close, err = dnsserver.Start(c.net.Host(c.name), cmd, lookupTimeout); err != nil {
		return nil, err
	}
	c.complete = func(r *lab.Row) {
		r.Sent = c.net.Link(c.name, "a").Counters().UDP + c.net.Link(c.name, "b").Counters().UDP
	}
	return func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		return checkAnswer(server.Exchange(ctx, newQuery(name)))
	}, nil
}
