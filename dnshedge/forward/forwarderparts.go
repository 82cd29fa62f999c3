package forward

import (
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/observe"
)

// forwarderParts holds the parts of a Forwarder whose state is saved and whose statistics are reported. They are the
// Client that answers queries, the Client that queries upstream servers, and the resolver or validator, if there is
// one.
type forwarderParts struct {
	client    *dnshedge.Client // answers the forwarder's clients
	upstreams *dnshedge.Client // asks servers; without a validator it is equal to client
	resolver  resolver         // nil: none
	validator validator        // nil: none
}

// A resolver is the *recursor.Resolver that a Client uses in place of upstream servers. It is an interface with the
// methods that this package calls, so that a program that only forwards queries does not link package recursor.
type resolver interface {
	stateStore
	validator
}

// A validator is the *dnssec.Validator through which a Client receives its answers. It is an interface with the method
// that this package calls, so that programs without validation do not link package dnssec.
type validator interface{ Stats() observe.RecursorStats }

// findForwarderParts returns the parts of the Forwarder whose Client is c. If the Exchanger of c is a resolver or
// validator, this Exchanger is one of the parts. If a validator wraps another Client, the other Client queries the
// upstream servers, and otherwise c does.
func findForwarderParts(c *dnshedge.Client) forwarderParts {
	parts := forwarderParts{client: c, upstreams: c}
	switch e := c.Exchanger.(type) {
	case resolver:
		parts.resolver = e
	case validator:
		parts.validator = e
		if v, ok := e.(interface{ Unwrap() any }); ok {
			if inner, ok := v.Unwrap().(*dnshedge.Client); ok && inner != nil {
				parts.upstreams = inner
			}
		}
	}
	return parts
}

// stateStores returns the parts whose state is saved. The keys of the map are the names of their files. The state of
// the Client is in file. The names of the other files are file with the ending ".servers" or ".upstreams".
func (c forwarderParts) stateStores(file string) map[string]stateStore {
	all := map[string]stateStore{file: c.client}
	if c.resolver != nil {
		all[file+".servers"] = c.resolver
	}
	if c.upstreams != c.client {
		all[file+".upstreams"] = c.upstreams
	}
	return all
}
