package recursor

import "github.com/gohedge/hedge/dnshedge/internal/chain"

// zoneReferences counts the memory of zones that cache entries refer to, and of their parents, which may have left the
// cache. Each zone counts once. The cache's lock guards it.
type zoneReferences map[*chain.Zone]*zoneReference

type zoneReference struct {
	size int64
	refs int // of entries, and of child zones
}

// zoneReferenceSize is the size of a zoneReference and its map entry.
const zoneReferenceSize = 64

// addReference adds a reference to a zone, which may be nil, and returns the additional bytes.
func (h zoneReferences) addReference(z *delegation) (more int64) {
	for z != nil {
		if old := h[z.chain]; old != nil {
			old.refs++
			return more
		}
		kept := &zoneReference{size: z.memorySize() + zoneReferenceSize, refs: 1}
		h[z.chain] = kept
		more += kept.size
		z = z.parentDelegation()
	}
	return more
}

// removeReference removes a reference and returns the freed bytes.
func (h zoneReferences) removeReference(z *delegation) (less int64) {
	for z != nil {
		kept := h[z.chain]
		if kept.refs--; kept.refs > 0 {
			return less
		}
		delete(h, z.chain)
		less += kept.size
		z = z.parentDelegation()
	}
	return less
}

// parentDelegation returns the zone whose server has sent the referral to z, or nil.
func (z *delegation) parentDelegation() *delegation {
	if z.chain.Parent == nil {
		return nil
	}
	return z.chain.Parent.Servers.(*delegation)
}
