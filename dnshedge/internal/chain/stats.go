package chain

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// Counters counts answers, responses and queries of a Validator, for its statistics.
type Counters struct {
	Secure, Insecure atomic.Int64 // answers with this status
	KeyQueries       atomic.Int64 // DNSKEY queries
	Rejected         atomic.Int64 // responses that CheckResponse or a key lookup has rejected
	Synthesized      atomic.Int64 // answers synthesized from cached proofs
	Verifications    atomic.Int64 // units of verification, see validate.Policy
	bogusByEDE       sync.Map     // by EDE code: number (*atomic.Int64) of bogus answers
}

// RootAnchors returns the key tags of the root's trust anchors. It returns nil if the root has no trust anchor.
func (c *Validator) RootAnchors() []uint16 {
	if a := c.anchors["."]; a != nil && a.ds != nil {
		return a.ds.KeyTags()
	}
	return nil
}

// FillStats sets the counters, the last bogus answers (newest first) and the observations of root keys in s. It adds the
// memory of the Validator's caches to s.Bytes, in bytes.
func (c *Validator) FillStats(s *observe.RecursorStats) {
	n := &c.Counts
	s.Secure, s.Insecure, s.Bogus = n.Secure.Load(), n.Insecure.Load(), make(map[uint16]int64)
	n.bogusByEDE.Range(func(ede, n any) bool {
		s.Bogus[ede.(uint16)] = n.(*atomic.Int64).Load()
		return true
	})
	s.Verifications, s.KeyQueries, s.PassedOver = n.Verifications.Load(), n.KeyQueries.Load(), n.Rejected.Load()
	s.Synthesized = n.Synthesized.Load()
	c.mu.Lock()
	s.Bytes += c.bytes
	c.mu.Unlock()
	s.Bytes += c.aggressive.Bytes()
	c.log.mu.Lock()
	s.LastBogus = slices.Clone(c.log.lastBogus)
	c.log.mu.Unlock()
	slices.Reverse(s.LastBogus)
	r := &c.rootStatus
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tag := range c.RootAnchors() {
		s.Anchors = append(s.Anchors, observe.RecursorAnchor{Tag: tag, Present: slices.Contains(r.anchoredTags, tag), Signs: slices.Contains(r.signingTags, tag)})
	}
	s.UnknownSEP, s.ClockOff = slices.Clone(r.unknownTags), r.clockOff
}
