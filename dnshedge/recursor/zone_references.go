package recursor

import "github.com/gohedge/hedge/dnshedge/internal/chain"

// zoneReferences are the zones that entries of a cache refer to, and those above them, which may have left the cache for long. Each one is
// counted once, however many refer to it. They are guarded by the cache's lock.
type zoneReferences map[*chain.Zone]*zoneReference

type zoneReference struct {
	size int64
	refs int // of entries, and of zones below
}

// zoneReferenceSize is what a holding takes besides its zone: the map, itself.
const zoneReferenceSize = 64

// addReference counts one more who refers to a zone, or to none, and returns how many more bytes are held.
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

// removeReference counts one less, and returns how many bytes are held no longer.
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

// above returns the zone whose server has referred to z, or nil.
func (z *delegation) parentDelegation() *delegation {
	if z.chain.Parent == nil {
		return nil
	}
	return z.chain.Parent.Servers.(*delegation)
}
