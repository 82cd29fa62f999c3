// Package coredns has a plugin for CoreDNS that hedges, to be copied: its recipe is in
// docs/recipes.md. A Corefile says
//
//	hedge FROM TO...
//	hedge FROM recursive {
//		stub DOMAIN ADDRESS...
//	}
//
// The names in the domain FROM are asked of the servers TO, as dnshedge.ParseUpstream reads
// them, or of the servers of their zones, from the root down. A stub is a domain whose servers
// are known.
package coredns

import (
	"context"
	"net/netip"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

func init() { plugin.Register("hedge", setup) }

// setup reads the plugin's lines in a server block, each of which is a handler.
func setup(c *caddy.Controller) error {
	for c.Next() {
		h, err := parse(c)
		if err != nil {
			return plugin.Error("hedge", err)
		}
		c.OnShutdown(h.close) // also when CoreDNS reads its Corefile again: then other handlers go on
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			h.next = next
			return h
		})
	}
	return nil
}

// handler answers the names in a domain.
type handler struct {
	next     plugin.Handler
	from     string
	client   *dnshedge.Client
	resolver *recursor.Resolver // nil: there are upstreams
}

var _ plugin.Handler = (*handler)(nil)

func (h *handler) Name() string { return "hedge" }

// ServeDNS writes a response for all names in the domain, if only SERVFAIL.
func (h *handler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if !plugin.Name(h.from).Matches(r.Question[0].Name) {
		return plugin.NextOrFailure(h.Name(), h.next, ctx, w, r)
	}
	h.client.ServeDNS(w, r)
	return dns.RcodeSuccess, nil // the response is written, whatever its code
}

func (h *handler) close() error {
	if h.resolver != nil {
		_ = h.resolver.Close() // is always nil
	}
	return h.client.Close()
}

// parse reads one line, and its block.
func parse(c *caddy.Controller) (*handler, error) {
	args := c.RemainingArgs()
	if len(args) < 2 {
		return nil, c.ArgErr()
	}
	from := plugin.Host(args[0]).NormalizeExact()
	if len(from) != 1 {
		return nil, c.Errf("want a domain, not %q", args[0])
	}
	h := &handler{from: from[0], client: &dnshedge.Client{Cache: new(dnshedge.Cache)}}
	h.client.SpecialUse = dnshedge.SpecialUseOff // the Corefile, or the Resolver, says who knows what
	if args[1] == "recursive" {
		if len(args) > 2 {
			return nil, c.Errf("%q after recursive, which needs no server", args[2])
		}
		h.resolver = &recursor.Resolver{Zones: make(map[string][]netip.AddrPort)}
		h.client.Exchanger = h.resolver
	} else {
		if h.from == "." {
			h.client.SpecialUse = dnshedge.SpecialUseForwarder
		}
		for _, arg := range args[1:] {
			u, err := dnshedge.ParseUpstream(arg)
			if err != nil {
				return nil, c.Err(err.Error())
			}
			h.client.Upstreams = append(h.client.Upstreams, u)
		}
	}
	for c.NextBlock() {
		if c.Val() != "stub" || h.resolver == nil {
			return nil, c.Errf("unknown property %q", c.Val())
		}
		stub := c.RemainingArgs()
		if len(stub) < 2 {
			return nil, c.ArgErr()
		}
		for _, arg := range stub[1:] {
			at, err := netip.ParseAddrPort(arg)
			if ip, e := netip.ParseAddr(arg); e == nil {
				at, err = netip.AddrPortFrom(ip, 53), nil
			}
			if err != nil {
				return nil, c.Errf("stub %s: %v", stub[0], err)
			}
			h.resolver.Zones[stub[0]] = append(h.resolver.Zones[stub[0]], at)
		}
	}
	return h, nil
}
