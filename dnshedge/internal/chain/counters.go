package chain

import (
	"sync"
	"sync/atomic"
)

// Counters holds the numbers of events in a Validator, for its statistics.
type Counters struct {
	Secure, Insecure atomic.Int64
	KeyQueries       atomic.Int64 // DNSKEY queries
	Rejected         atomic.Int64 // responses that CheckResponse or a key lookup has rejected
	Synthesized      atomic.Int64 // answers synthesized from cached proofs
	Verifications    atomic.Int64 // units of verification, see validate.Policy
	bogusByEDE       sync.Map     // by EDE code: number (*atomic.Int64) of bogus answers
}

// AddBogus counts a bogus answer. ede is the info code of its extended error (RFC 8914).
func (c *Counters) AddBogus(ede uint16) {
	n, ok := c.bogusByEDE.Load(ede)
	if !ok {
		n, _ = c.bogusByEDE.LoadOrStore(ede, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
