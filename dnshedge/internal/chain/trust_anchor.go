package chain

import (
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A trustAnchor is the trust anchor of a zone, or a negative trust anchor (RFC 7646), which disables validation for the
// zone.
type trustAnchor struct {
	zone    string          // name, in lower case
	ds      *validate.DSSet // nil for a negative trust anchor
	builtIn bool            // this is the default trust anchor of the root, and was not configured
}

// trustAnchors maps the name of a zone, in lower case, to its trust anchor or negative trust anchor.
type trustAnchors map[string]*trustAnchor

// newTrustAnchors returns the trust anchors in trusted, and negative trust anchors for the names in insecure. If
// trusted is nil, the built-in trust anchor of the root is used. A zone in both has only the negative trust anchor.
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

// nearestAnchor returns the trust anchor or negative trust anchor of the name, or else of its nearest ancestor. It
// returns nil if there is none. The name must be in lower case.
func (a trustAnchors) nearestAnchor(name string) *trustAnchor {
	for ; name != "."; name = dnsname.Parent(name) {
		if anchor := a[name]; anchor != nil {
			return anchor
		}
	}
	return a["."]
}
