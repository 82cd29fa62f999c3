package faultlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"

	"github.com/gohedge/hedge/dnshedge"
)

// The contenders that others are compared with.
const (
	Go      = "net-resolver" // Go's own resolver
	Unbound = "unbound"
)

// kinds are the contenders.
var kinds = []struct {
	name  string
	start func(*bench, *contender) error
}{
	{Go, (*bench).goResolver},
	{Unbound, (*bench).unbound},
	{"hedge-resolvconf", func(b *bench, c *contender) error {
		return b.client(c, &dnshedge.Client{ResolvConf: b.resolvConf()})
	}},
	{"hedge-upstreams", func(b *bench, c *contender) error {
		client := &dnshedge.Client{Upstreams: b.upstreams()}
		if b.differ {
			client.Order = dnshedge.OrderStrict
		}
		return b.client(c, client)
	}},
	{"hedge-fallback", func(b *bench, c *contender) error {
		ups := b.upstreams()
		if len(ups) == 1 {
			ups = append(ups, dnshedge.Upstream{Net: "tcp", Addr: ups[0].Addr})
		}
		return b.client(c, &dnshedge.Client{Upstreams: ups[:1], Fallback: ups[1:]})
	}},
}

// Contenders are the names of the contenders, Go's resolver and unbound first.
var Contenders = func() (all []string) {
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return all
}()

// contenders starts those that the Config names, and all that can run here if it names none.
func (b *bench) contenders(ctx context.Context) (all []*contender, err error) {
	for _, name := range b.conf.Contenders {
		if !slices.Contains(Contenders, name) {
			return nil, fmt.Errorf("faultlab: contender %q; want one of %s", name, strings.Join(Contenders, ", "))
		}
	}
	for _, k := range kinds {
		if ctx.Err() != nil {
			return all, ctx.Err()
		}
		if len(b.conf.Contenders) > 0 && !slices.Contains(b.conf.Contenders, k.name) {
			continue
		}
		c := &contender{name: k.name, close: func() {}}
		err := k.start(b, c)
		if errors.Is(err, exec.ErrNotFound) && len(b.conf.Contenders) == 0 {
			if b.conf.Skipped != nil {
				b.conf.Skipped(fmt.Sprintf("%s: %v", k.name, err))
			}
			continue
		}
		if err != nil {
			c.close()
			return all, fmt.Errorf("faultlab: %s: %w", k.name, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// upstreams are both servers, or the only one.
func (b *bench) upstreams() (ups []dnshedge.Upstream) {
	for _, h := range b.hosts() {
		ups = append(ups, dnshedge.Upstream{Net: "udp", Addr: net.JoinHostPort(b.net.Host(h).Addr().String(), "53")})
	}
	return ups
}

// client completes a Client and has c ask it.
func (b *bench) client(c *contender, client *dnshedge.Client) error {
	client.Timeout, client.Dialer = Patience, b.net.Host(c.name)
	c.close = func() { _ = client.Close() }
	c.ask = func(_ context.Context, q question) (said, error) {
		m, _, err := client.Exchange(q.message(), "")
		return saidBy(m, q), err
	}
	return client.Validate()
}
