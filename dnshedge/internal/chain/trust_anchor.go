package chain

import (
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A trustAnchor is a trust anchor or a negative trust anchor (RFC 7646).
type trustAnchor struct {
	zone    string
	ds      *validate.DSSet // nil: a negative trust anchor
	builtIn bool            // the default trust anchor of the root
}

// A trustAnchors holds the trust anchors by zone, in lower case.
type trustAnchors map[string]*trustAnchor

// newTrustAnchors returns the given trust anchors and negative trust anchors. If trusted is nil, it adds the built-in
// ones of the root.
func newTrustAnchors(trusted []*validate.DSSet, insecure []string) trustAnchors {
	all := make(trustAnchors)
	if trusted == nil {
		all["."] = &trustAnchor{zone: ".", ds: validate.RootTrustAnchors(), builtIn: true}
	}
	for _, ds := range trusted {
		name := dnsname.ToLower(ds.Zone())
		all[name] = &trustAnchor{zone: name, ds: ds}
	}
	for _, name := range insecure {
		all[name] = &trustAnchor{zone: name}
	}
	return all
}

// nearestAnchor returns the nearest trust anchor at or above a name, or nil if there is none.
func (all trustAnchors) nearestAnchor(name string) *trustAnchor {
	for ; name != "."; name = dnsname.Parent(name) {
		if a := all[name]; a != nil {
			return a
		}
	}
	return all["."]
}
