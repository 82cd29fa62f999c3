package main

// init registers the DNS resolvers that several engines compare.
func init() {
	registerStrategies(
		strategy{
			name: "net-resolver", rank: 240, about: "Go's own resolver",
		},
		strategy{
			name: "unbound", rank: 250, about: "unbound, if it is installed: forwarding, or resolving with discard-timeout 0",
		},
	)
}
