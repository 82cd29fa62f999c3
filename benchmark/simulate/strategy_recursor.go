package main

// Package reclab runs these, and hedge and unbound.
func init() {
	enter(
		strategy{
			name: "hedge-off", rank: 104, recursor: true, about: "this library's resolver without hedging; a lost query goes to another server",
			look: look{shade: shade{"#64748b", "#94a3b8"}, highlight: true},
		},
		strategy{
			name: "hedge-novalidate", rank: 105, recursor: true, about: "this library's resolver, which checks no signatures",
			look: look{shade: shade{"#0369a1", "#7dd3fc"}},
		},
		strategy{
			name: "unbound-stock", rank: 252, recursor: true, about: "unbound with its defaults, which drops answers after 1.9 s, if it is installed",
			look: look{shade: shade{"#65a30d", "#a3e635"}},
		},
		strategy{
			name: "unbound-validate", rank: 253, recursor: true, about: "unbound, which checks signatures, if it is installed",
			look: look{shade: shade{"#0f766e", "#5eead4"}},
		},
		strategy{
			name: "named", rank: 254, recursor: true, about: "BIND, if it is installed",
			look: look{shade: shade{"#b45309", "#fbbf24"}, highlight: true},
		},
		strategy{
			name: "named-validate", rank: 255, recursor: true, about: "BIND, which checks signatures, if it is installed",
			look: look{shade: shade{"#be185d", "#f9a8d4"}},
		},
		strategy{
			name: "pdns", rank: 256, recursor: true, about: "PowerDNS Recursor, if it is installed",
			look: look{shade: shade{"#b91c1c", "#f87171"}},
		},
		strategy{
			name: "kresd", rank: 258, recursor: true, about: "Knot Resolver, if it is installed",
			look: look{shade: shade{"#6d28d9", "#a78bfa"}, highlight: true},
		},
	)
}
