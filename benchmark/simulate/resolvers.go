package main

import "github.com/gohedge/hedge/benchmark/internal/dnsserver"

// init registers the DNS servers and resolvers that several engines compare, as strategies. In the engine recursor they
// resolve names from the root; in other engines they forward queries.
func init() {
	registerStrategies(
		strategy{name: "net-resolver", rank: 240, description: "Go's own resolver"},
		strategy{name: "forwarder", rank: 245, description: "this library as a forwarder, with its defaults"},
		strategy{name: dnsserver.BareGo, rank: 246, description: "a Go server that does no more than read queries and write responses"},
		strategy{name: "unbound", rank: 250, description: "unbound, if it is installed; resolving, it has discard-timeout 0"},
		strategy{name: "named", rank: 254, description: "BIND, if it is installed"},
		strategy{name: "pdns", rank: 256, description: "PowerDNS Recursor, if it is installed"},
		strategy{name: "kresd", rank: 258, description: "Knot Resolver, if it is installed"},
		strategy{name: "dnsdist", rank: 260, description: "dnsdist, if it is installed"},
		strategy{name: "sdns", rank: 272, description: "sdns, if it is installed"},
		strategy{name: "hickory", rank: 274, description: "Hickory DNS, if it is installed"},
	)
}
