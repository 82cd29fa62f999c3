package chain

import (
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// anchor is where a chain begins, or where nothing is validated.
type anchor struct {
	zone    string
	ds      *validate.DSSet // nil: nothing is validated from here down
	builtIn bool
}

type anchors map[string]*anchor

func newAnchors(trusted []*validate.DSSet, insecure []string) anchors {
	all := make(anchors)
	if trusted == nil {
		all["."] = &anchor{zone: ".", ds: validate.RootAnchors(), builtIn: true}
	}
	for _, ds := range trusted {
		name := dnsname.Lower(ds.Zone())
		all[name] = &anchor{zone: name, ds: ds}
	}
	for _, name := range insecure {
		all[name] = &anchor{zone: name}
	}
	return all
}

// of returns the one that is nearest to a name, at or above it, or nil.
func (all anchors) of(name string) *anchor {
	for ; name != "."; name = dnsname.Parent(name) {
		if a := all[name]; a != nil {
			return a
		}
	}
	return all["."]
}
