package chain

import (
	"sync"
	"sync/atomic"
)

// Counters count the events of a Validator, for Stats.
type Counters struct {
	Secure, Insecure atomic.Int64
	KeyQueries       atomic.Int64 // DNSKEY queries
	Rejected         atomic.Int64 // responses that CheckResponse or a key lookup has rejected
	Synthesized      atomic.Int64 // answers made from cached proofs
	Verifications    atomic.Int64 // units of verification, see validate.Policy
	bogusByEDE       sync.Map     // number (*atomic.Int64) of bogus answers by EDE code
}

// AddBogus counts a bogus answer with the given EDE code.
func (c *Counters) AddBogus(ede uint16) {
	n, ok := c.bogusByEDE.Load(ede)
	if !ok {
		n, _ = c.bogusByEDE.LoadOrStore(ede, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
