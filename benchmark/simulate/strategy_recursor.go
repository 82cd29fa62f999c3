package main

// Package reclab runs these, and hedge and unbound.
func init() {
	enter(
		strategy{
			name: "hedge-off", rank: 104, recursor: true, about: "this library's resolver without hedging; a lost query goes to another server",
			look: look{shade: shade{rgb(0x64748b), rgb(0x94a3b8)}, highlight: true},
		},
		strategy{
			name: "unbound-stock", rank: 252, recursor: true, about: "unbound with its defaults, which drops answers after 1.9 s, if it is installed",
			look: look{shade: shade{rgb(0x65a30d), rgb(0xa3e635)}},
		},
		strategy{
			name: "named", rank: 254, recursor: true, about: "BIND, if it is installed",
			look: look{shade: shade{rgb(0xb45309), rgb(0xfbbf24)}, highlight: true},
		},
		strategy{
			name: "pdns", rank: 256, recursor: true, about: "PowerDNS Recursor, if it is installed",
			look: look{shade: shade{rgb(0xb91c1c), rgb(0xf87171)}},
		},
		strategy{
			name: "kresd", rank: 258, recursor: true, about: "Knot Resolver, if it is installed",
			look: look{shade: shade{rgb(0x6d28d9), rgb(0xa78bfa)}, highlight: true},
		},
	)
}
