package dnshedge

import (
	"fmt"

	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// SpecialUse says which special-use names a Client answers itself, without asking a
// server. Such names mean something on one machine or in one network only, or nowhere.
// Servers elsewhere have no answer, and need not know who asks for what.
//
// Names with a route in Client.Routes, other than that of ".", are asked there:
// "10.in-addr.arpa" with a nil Exchanger has the names of these addresses asked of the
// Upstreams. ExchangeContext with an address asks the server there whatever the name.
type SpecialUse int8

const (
	// SpecialUseLibrary answers the names that the RFCs ask every program to answer:
	// localhost, invalid (RFC 6761), onion (RFC 7686) and alt (RFC 9476).
	SpecialUseLibrary SpecialUse = iota

	// SpecialUseForwarder answers in addition what the RFCs ask of a caching server, unless
	// it is configured otherwise: test (RFC 6761), local and the reverse zones of link-local
	// addresses (RFC 6762), the reverse zones of other addresses that mean nothing in public
	// (RFC 6303, RFC 7793), home.arpa (RFC 8375), resolver.arpa (RFC 9462) and service.arpa
	// (RFC 9665). Programs must ask their server for these, for it may know them.
	SpecialUseForwarder

	// SpecialUseOff asks the servers for every name.
	SpecialUseOff
)

func (s SpecialUse) validate() error {
	if s < SpecialUseLibrary || s > SpecialUseOff {
		return fmt.Errorf("dnshedge: Client.SpecialUse is %d; want SpecialUseLibrary, SpecialUseForwarder or SpecialUseOff", s)
	}
	return nil
}

// findZone returns the zone that q's name is in, or nil. It costs a few nanoseconds if the
// name's last label is that of no zone.
func (s SpecialUse) findZone(q *wire.Query) *special.Zone {
	if s == SpecialUseOff {
		return nil
	}
	var buf [wire.MaxKey]byte
	return special.FindZone(q.AppendKey(buf[:0])[:len(q.Name)], s == SpecialUseForwarder)
}
