package main

// The resolvers that several engines ask.
func init() {
	registerStrategies(
		strategy{
			name: "net-resolver", rank: 240, about: "Go's own resolver",
			look: look{shade: shade{"#be185d", "#f472b6"}, highlight: true},
		},
		strategy{
			name: "unbound", rank: 250, about: "unbound, if it is installed: forwarding, or resolving with discard-timeout 0",
			look: look{shade: shade{"#15803d", "#4ade80"}, highlight: true},
		},
	)
}
