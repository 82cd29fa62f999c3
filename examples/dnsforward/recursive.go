package main

import (
	"flag"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// fromTheRoot is what the flag -recursive, and those that need it, ask for.
type fromTheRoot struct {
	on    bool
	hints []netip.Addr
	stubs map[string][]netip.AddrPort
}

func (r *fromTheRoot) define(flags *flag.FlagSet) {
	flags.BoolVar(&r.on, "recursive", false, "ask the servers of the zones, from the root down, instead of a resolver; does not validate DNSSEC")
	flags.Func("root-hint", "`address` of a root server, for -recursive; may be repeated (default: the Internet's)", func(s string) error {
		ip, err := netip.ParseAddr(s)
		r.hints = append(r.hints, ip)
		return err
	})
	flags.Func("stub", "`domain=address` of a server that has the domain, for -recursive; the port is 53 unless it follows; may be repeated", func(s string) error {
		domain, server, _ := strings.Cut(s, "=")
		at, err := netip.ParseAddrPort(server)
		if ip, e := netip.ParseAddr(server); e == nil {
			at, err = netip.AddrPortFrom(ip, 53), nil
		}
		if _, ok := dns.IsDomainName(domain); !ok || domain == "" || err != nil {
			return fmt.Errorf("want a domain, = and an address")
		}
		if r.stubs == nil {
			r.stubs = make(map[string][]netip.AddrPort)
		}
		r.stubs[domain] = append(r.stubs[domain], at)
		return nil
	})
}

// resolver makes the Resolver that c asks, after flags were parsed. It is nil without -recursive.
func (r *fromTheRoot) resolver(c *dnshedge.Client, flags *flag.FlagSet) (*recursor.Resolver, error) {
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !r.on {
		for _, name := range []string{"root-hint", "stub"} {
			if given[name] {
				return nil, fmt.Errorf("dnsforward: -%s needs -recursive", name)
			}
		}
		return nil, nil
	}
	for _, flag := range []struct{ name, why string }{
		{"upstream", "it asks the servers of the zones"}, {"fallback", "it asks the servers of the zones"},
		{"forward-special", "give -stub the special-use names that a server of yours has"},
	} {
		if given[flag.name] {
			return nil, fmt.Errorf("dnsforward: -%s cannot be used with -recursive: %s", flag.name, flag.why)
		}
	}
	own := &recursor.Resolver{Hints: r.hints, Zones: r.stubs}
	own.Hedge.Off, own.Hedge.MaxPerSecond = c.Hedge.Off, c.Hedge.MaxHedgesPerSecond
	if given["budget"] {
		own.Hedge.BudgetPercent = c.Hedge.BudgetPercent
	}
	c.Exchanger = own
	c.SpecialUse = dnshedge.SpecialUseOff // the Resolver answers those names, but for stubs
	return own, nil
}
