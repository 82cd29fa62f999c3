package dnshedge

import "fmt"

// Order says which of the Upstreams is asked first, and where hedges go.
type Order int

// The orders.
const (
	// OrderAuto is OrderFastest for Upstreams, and OrderStrict for the system's servers,
	// whose order is that of resolv.conf, unless that has the option rotate.
	OrderAuto Order = iota

	// OrderFastest is for servers that all give the same answers: the one with the shortest
	// round trip time is asked first, and a hedge goes to another.
	OrderFastest

	// OrderStrict is for servers that may know different names, as a VPN's and a public
	// one: the first is asked first, and hedges go to the same server. The next is asked
	// when the one before it has failed, is found to be down, or is late for its share of
	// Timeout, 5 s at most. That one is still waited for: while it answers others, and most that
	// is of the same type, what the next one says counts after 5 s, as with other resolvers, or
	// when Timeout is nearly over. A server that is found to be down is asked last. Probes of a server
	// do not have names that only servers before it were asked.
	OrderStrict
)

func (o Order) validate() error {
	if o < OrderAuto || o > OrderStrict {
		return fmt.Errorf("dnshedge: Client.Order is %d; want OrderAuto, OrderFastest or OrderStrict", o)
	}
	return nil
}
