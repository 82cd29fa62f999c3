package main

import (
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// recursiveFlags holds the values of the command-line flags for recursion and for DNSSEC validation.
type recursiveFlags struct {
	enabled  bool                        // -recursive
	hints    []netip.Addr                // -root-hint: addresses of root servers
	stubs    map[string][]netip.AddrPort // -stub: servers by domain
	noDNSSEC bool                        // -no-dnssec
	validate bool                        // -validate: validate the answers of upstreams
	trust    dnssec.Trust                // -anchors and -insecure
}

// registerFlags defines the flags of r in a flag set, which stores their values in r when it is parsed.
func (r *recursiveFlags) registerFlags(flags *flag.FlagSet) {
	flags.BoolVar(&r.enabled, "recursive", false, "ask the servers of the zones, from the root down, instead of a resolver, and check signatures (DNSSEC)")
	flags.Func("root-hint", "`address` of a root server, for -recursive; may be repeated (default: the Internet's)", func(s string) error {
		ip, err := netip.ParseAddr(s)
		r.hints = append(r.hints, ip)
		return err
	})
	flags.Func("stub", "`domain=address` of a server that has the domain, for -recursive; the default port is 53; may be repeated", func(s string) error {
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
	flags.BoolVar(&r.validate, "validate", false, "validate the answers of upstreams (DNSSEC); -recursive always validates")
	flags.BoolVar(&r.noDNSSEC, "no-dnssec", false, "do not validate signatures (DNSSEC), with -recursive")
	flags.Func("anchors", "`file` of trust anchors, as root-anchors.xml or as DS and DNSKEY records; for -recursive and -validate (default: the root's keys)", func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		anchors, err := dnssec.ReadAnchors(f)
		r.trust.Anchors = append(r.trust.Anchors, anchors...)
		return err
	})
	flags.Func("insecure", "`domain` whose signatures are not checked, for -recursive and -validate; may be repeated", func(s string) error {
		if _, ok := dns.IsDomainName(s); !ok || s == "" {
			return fmt.Errorf("want a domain")
		}
		r.trust.Insecure = append(r.trust.Insecure, s)
		return nil
	})
}

// trustConfig returns the configuration of DNSSEC validation: off with -no-dnssec, and else the given trust anchors and
// exceptions.
func (r *recursiveFlags) trustConfig() dnssec.Trust {
	if r.noDNSSEC {
		return dnssec.Trust{Off: true}
	}
	t := r.trust
	if t.Insecure == nil {
		t.Insecure = []string{} // not nil: validate, without exceptions
	}
	return t
}

// newResolver creates the Resolver for the flag -recursive, and makes it the Exchanger of c. It must be called after
// flags was parsed.
//
// Without -recursive it returns nil. It returns an error if flags contradict each other.
func (r *recursiveFlags) newResolver(c *dnshedge.Client, flags *flag.FlagSet) (*recursor.Resolver, error) {
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !r.enabled {
		for _, name := range []string{"root-hint", "stub", "no-dnssec"} {
			if given[name] {
				return nil, fmt.Errorf("dnsforward: -%s needs -recursive", name)
			}
		}
		for _, name := range []string{"anchors", "insecure"} {
			if given[name] && !r.validate {
				return nil, fmt.Errorf("dnsforward: -%s needs -recursive or -validate", name)
			}
		}
		return nil, nil
	}
	for _, flag := range []struct{ name, why string }{
		{"upstream", "it asks the servers of the zones"}, {"fallback", "it asks the servers of the zones"},
		{"validate", "it checks signatures without that"},
		{"forward-special", "give -stub the special-use names that a server of yours has"},
	} {
		if given[flag.name] {
			return nil, fmt.Errorf("dnsforward: -%s cannot be used with -recursive: %s", flag.name, flag.why)
		}
	}
	for _, name := range []string{"anchors", "insecure"} {
		if r.noDNSSEC && given[name] {
			return nil, fmt.Errorf("dnsforward: -%s cannot be used with -no-dnssec: nothing is checked", name)
		}
	}
	own := &recursor.Resolver{Hints: r.hints, Zones: r.stubs, Trust: r.trustConfig(), Logger: slog.Default()}
	own.Hedge.Off, own.Hedge.MaxPerSecond = c.Hedge.Off, c.Hedge.MaxHedgesPerSecond
	if given["budget"] {
		own.Hedge.BudgetPercent = c.Hedge.BudgetPercent
	}
	c.Exchanger = own
	c.SpecialUse = dnshedge.SpecialUseOff // the Resolver answers special-use names, except for stubs
	return own, nil
}
