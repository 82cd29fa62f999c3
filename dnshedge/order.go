package dnshedge

import "fmt"

// Order says in which order a Client asks its Upstreams, and to which of them hedges go.
type Order int

// The orders.
const (
	// OrderAuto is OrderFastest for Upstreams, and OrderStrict for the system's servers,
	// whose order is that of resolv.conf, unless that has the option rotate.
	OrderAuto Order = iota

	// OrderFastest is for servers that all give the same answers. The server with the shortest round trip time is asked
	// first, and a hedge goes to another server.
	OrderFastest

	// OrderStrict is for servers that may know different names, such as a VPN's server and a public one. The first
	// server is asked first, and hedges go to the same server.
	//
	// The next server is asked when the server before it has failed, is down, or has used its share of Timeout, at
	// most 5 s. A down server is asked last.
	//
	// A late server is still waited for. While it answers other questions, and most questions of the same type, the
	// answer of the next server is held back. It is used after 5 s, as in other resolvers, or when Timeout is nearly
	// over.
	//
	// A probe does not send a server a name that was only sent to the servers before it.
	OrderStrict
)

func (o Order) validate() error {
	if o < OrderAuto || o > OrderStrict {
		return fmt.Errorf("dnshedge: Client.Order is %d; want OrderAuto, OrderFastest or OrderStrict", o)
	}
	return nil
}
