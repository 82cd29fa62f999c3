package main

// Package dnslab runs these.
func init() {
	enter(
		strategy{
			name: "single", rank: 80, dns: true, about: "this library without hedging; a lost query is sent again",
			look: look{shade: shade{rgb(0x6b7280), rgb(0x9ca3af)}, highlight: true},
		},
		strategy{
			name: "fixed-10ms", rank: 90, dns: true, about: "a hedge for every query after 10 ms, no budget",
			look: look{shade: shade{rgb(0xc2410c), rgb(0xfb923c)}},
		},
		strategy{
			name: "miekg", rank: 230, dns: true, about: "the plain client of github.com/miekg/dns",
			look: look{shade: shade{rgb(0x7e22ce), rgb(0xc084fc)}},
		},
		strategy{
			name: "net-resolver", rank: 240, dns: true, about: "Go's own resolver",
			look: look{shade: shade{rgb(0xbe185d), rgb(0xf472b6)}, highlight: true},
		},
		strategy{
			name: "forwarder", rank: 245, dns: true, about: "this library as a forwarder, with its defaults",
			look: look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}, highlight: true},
		},
		strategy{
			name: "dnsdist", rank: 260, dns: true, about: "dnsdist, if it is installed",
			look: look{shade: shade{rgb(0x854d0e), rgb(0xfacc15)}},
		},
		strategy{
			name: "coredns", rank: 270, dns: true, about: "CoreDNS, forwarding, if it is installed",
			look: look{shade: shade{rgb(0x9f1239), rgb(0xfb7185)}},
		},
		strategy{
			name: "unbound", rank: 250, dns: true, recursor: true, about: "unbound, if it is installed: forwarding, or resolving with discard-timeout 0",
			look: look{shade: shade{rgb(0x15803d), rgb(0x4ade80)}, highlight: true},
		},
	)
}
