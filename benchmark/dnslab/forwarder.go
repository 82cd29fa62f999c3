package dnslab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/internal/dnstest"
)

// forwarders are the contenders that run as processes, each on a host of its own together with its clients.
var forwarders = append([]string{"forwarder"}, dnsserver.PeerNames()...)

func (c *client) startForwarder() (lookupFunc, error) {
	if c.conf.Memory {
		return nil, fmt.Errorf("no processes on a network in memory: %w", exec.ErrNotFound)
	}
	server, _, stop, err := dnsserver.ForwarderConfig{
		Peers: c.conf.Peers, Dir: filepath.Join(c.Dir, c.name), Upstreams: c.upstreams(), Transport: c.conf.Transport, ServerName: dnstest.Name,
		CertificateFile: c.certificateFile(),
	}.Start(c.Net.Host(c.name), c.name, lookupTimeout)
	c.AtClose(stop)
	if err != nil {
		return nil, err
	}
	lookup := func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		return checkAnswer(server.Exchange(ctx, newQuery(name)))
	}
	if !strings.HasPrefix(c.conf.Scenario, "dead") {
		err = dnsserver.Retry(10*time.Second, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return lookup(ctx, c.queryName(-1))
		})
	}
	return lookup, err
}

func (l *testbed) certificateFile() string { return filepath.Join(l.Dir, "roots.pem") }
