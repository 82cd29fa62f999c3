package recursor

import "github.com/gohedge/hedge/dnshedge/internal/chain"

// zoneReferences keeps account of the memory of delegations that cache entries keep alive, directly or through a child
// zone. Several entries may refer to the same delegation, whose memory then counts only once. cache.mu guards it.
type zoneReferences map[*chain.Zone]*zoneReference

// A zoneReference holds the memory of one delegation, and the number of references to the delegation.
type zoneReference struct {
	size int64 // estimated memory, in bytes
	refs int   // number of references from cache entries and child zones
}

// zoneReferenceSize is the estimated memory of a zoneReference and its map entry, in bytes.
const zoneReferenceSize = 64

// addReference records that one more cache entry refers to the delegation z. It returns the memory that this adds, in
// bytes. It is 0 if z is nil or already has references.
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

// removeReference records that one cache entry fewer refers to the delegation z. It returns the memory that this frees,
// in bytes. It is 0 if z is nil or still has references.
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

// parentDelegation returns the delegation of the parent zone that has sent the referral to z. It returns nil if no
// referral led to z.
func (z *delegation) parentDelegation() *delegation {
	if z.chain.Parent == nil {
		return nil
	}
	return z.chain.Parent.Servers.(*delegation)
}
