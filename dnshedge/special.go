package dnshedge

import (
	"fmt"

	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// SpecialUse says which special-use names a Client answers itself, without asking a server. These names have a meaning
// on one machine or in one network only, or no meaning at all. Public servers have no answer, and should not learn
// which clients ask for them.
//
// A route in Client.Routes, except the route ".", has precedence. For example, "10.in-addr.arpa" with a nil Exchanger
// sends questions about these addresses to the Upstreams. ExchangeContext with an address asks the server there for all
// names.
type SpecialUse int8

const (
	// SpecialUseLibrary answers the names that the RFCs ask every program to answer:
	// localhost, invalid (RFC 6761), onion (RFC 7686) and alt (RFC 9476).
	SpecialUseLibrary SpecialUse = iota

	// SpecialUseForwarder answers, in addition, the names that the RFCs ask a caching server to answer by default:
	//
	//   - test (RFC 6761), home.arpa (RFC 8375), resolver.arpa (RFC 9462) and service.arpa (RFC 9665),
	//   - local and the reverse zones of link-local addresses (RFC 6762),
	//   - the reverse zones of other addresses without a public meaning (RFC 6303, RFC 7793).
	//
	// Programs must ask their server for these names, because it may know them.
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

// findZone returns the special-use zone that contains the name of q, or nil. For most names it compares only the last
// label, which takes a few nanoseconds.
func (s SpecialUse) findZone(q *wire.Query) *special.Zone {
	if s == SpecialUseOff {
		return nil
	}
	var buf [wire.MaxKey]byte
	return special.FindZone(q.AppendKey(buf[:0])[:len(q.Name)], s == SpecialUseForwarder)
}
