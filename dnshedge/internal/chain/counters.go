package chain

import (
	"sync"
	"sync/atomic"
)

// Counters are counted for Stats.
type Counters struct {
	Secure, Insecure atomic.Int64
	KeyQueries       atomic.Int64 // DNSKEY questions
	Rejected         atomic.Int64 // responses rejected because of their signatures
	Synthesized      atomic.Int64 // answers made from cached proofs
	Verifications    atomic.Int64 // units that questions have spent
	bogusByEDE       sync.Map     // *atomic.Int64 by EDE
}

// AddBogus counts a bogus answer.
func (c *Counters) AddBogus(ede uint16) {
	n, ok := c.bogusByEDE.Load(ede)
	if !ok {
		n, _ = c.bogusByEDE.LoadOrStore(ede, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
