package chain

import (
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// trustAnchor is where a chain begins, or where nothing is validated.
type trustAnchor struct {
	zone    string
	ds      *validate.DSSet // nil: nothing is validated from here down
	builtIn bool
}

type trustAnchors map[string]*trustAnchor

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

// closestTo returns the one that is nearest to a name, at or above it, or nil.
func (all trustAnchors) closestTo(name string) *trustAnchor {
	for ; name != "."; name = dnsname.Parent(name) {
		if a := all[name]; a != nil {
			return a
		}
	}
	return all["."]
}
