package forward

import (
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/observe"
)

// A clientChain is the Client of a Forwarder with the parts that it asks: servers, a resolver, or another Client through a
// validator. The Forwarder saves the state of all these parts, and reports their statistics.
type clientChain struct {
	client    *dnshedge.Client // answers the forwarder's clients
	upstreams *dnshedge.Client // asks servers; without a validator it is equal to client
	resolver  resolver         // nil: none
	validator validator        // nil: none
}

// A resolver is a *recursor.Resolver.
type resolver interface {
	stateStore
	validator
}

// A validator is a *dnssec.Validator.
type validator interface{ Stats() observe.RecursorStats }

// newClientChain returns the chain that begins with c.
func newClientChain(c *dnshedge.Client) clientChain {
	chain := clientChain{client: c, upstreams: c}
	switch e := c.Exchanger.(type) {
	case resolver:
		chain.resolver = e
	case validator:
		chain.validator = e
		if v, ok := e.(interface{ Unwrap() any }); ok {
			if inner, ok := v.Unwrap().(*dnshedge.Client); ok && inner != nil {
				chain.upstreams = inner
			}
		}
	}
	return chain
}

// stateStores returns the parts of the chain that have state to save, by the name of their file.
func (c clientChain) stateStores(file string) map[string]stateStore {
	all := map[string]stateStore{file: c.client}
	if c.resolver != nil {
		all[file+".servers"] = c.resolver
	}
	if c.upstreams != c.client {
		all[file+".upstreams"] = c.upstreams
	}
	return all
}
