package main

// Package dnslab runs these.
func init() {
	enter(
		strategy{
			name: "single", rank: 80, dns: true, about: "this library without hedging; a lost query is sent again",
			look: look{shade: shade{"#6b7280", "#9ca3af"}, highlight: true},
		},
		strategy{
			name: "fixed-10ms", rank: 90, dns: true, about: "a hedge for every query after 10 ms, no budget",
			look: look{shade: shade{"#c2410c", "#fb923c"}},
		},
		strategy{
			name: "miekg", rank: 230, dns: true, about: "the plain client of github.com/miekg/dns",
			look: look{shade: shade{"#7e22ce", "#c084fc"}},
		},
		strategy{
			name: "net-resolver", rank: 240, dns: true, faults: true, about: "Go's own resolver",
			look: look{shade: shade{"#be185d", "#f472b6"}, highlight: true},
		},
		strategy{
			name: "forwarder", rank: 245, dns: true, about: "this library as a forwarder, with its defaults",
			look: look{shade: shade{"#0f766e", "#2dd4bf"}, highlight: true},
		},
		strategy{
			name: "dnsdist", rank: 260, dns: true, about: "dnsdist, if it is installed",
			look: look{shade: shade{"#854d0e", "#facc15"}},
		},
		strategy{
			name: "coredns", rank: 270, dns: true, about: "CoreDNS, forwarding, if it is installed",
			look: look{shade: shade{"#9f1239", "#fb7185"}},
		},
		strategy{
			name: "unbound", rank: 250, dns: true, recursor: true, faults: true, about: "unbound, if it is installed: forwarding, or resolving with discard-timeout 0",
			look: look{shade: shade{"#15803d", "#4ade80"}, highlight: true},
		},
	)
}
