package recursor

import "github.com/gohedge/hedge/dnshedge/internal/chain"

// zoneReferences counts the memory of the delegations that cache entries refer to, directly or through a child zone.
// A delegation counts once, also if it is not cached any more. cache.mu guards it.
type zoneReferences map[*chain.Zone]*zoneReference

// A zoneReference is the memory of a delegation, and the number of references to it.
type zoneReference struct {
	size int64
	refs int // number of references, from cache entries and child zones
}

// zoneReferenceSize is the estimated memory of a zoneReference and its map entry, in bytes.
const zoneReferenceSize = 64

// addReference adds a reference to z, which may be nil. It returns the additional memory in bytes.
func (h zoneReferences) addReference(z *delegation) (added int64) {
	for z != nil {
		if old := h[z.chain]; old != nil {
			old.refs++
			return added
		}
		kept := &zoneReference{size: z.memorySize() + zoneReferenceSize, refs: 1}
		h[z.chain] = kept
		added += kept.size
		z = z.parentDelegation()
	}
	return added
}

// removeReference removes a reference to z, which may be nil. It returns the freed memory in bytes.
func (h zoneReferences) removeReference(z *delegation) (freed int64) {
	for z != nil {
		kept := h[z.chain]
		if kept.refs--; kept.refs > 0 {
			return freed
		}
		delete(h, z.chain)
		freed += kept.size
		z = z.parentDelegation()
	}
	return freed
}

// parentDelegation returns the delegation of the zone whose server has sent the referral to z, or nil if there was
// no referral.
func (z *delegation) parentDelegation() *delegation {
	if z.chain.Parent == nil {
		return nil
	}
	return z.chain.Parent.Servers.(*delegation)
}
