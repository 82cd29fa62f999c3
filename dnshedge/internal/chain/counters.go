package chain

import (
	"sync"
	"sync/atomic"
)

// Counters are what Stats says.
type Counters struct {
	Secure, Insecure atomic.Int64
	KeyQueries       atomic.Int64 // questions for keys
	Rejected         atomic.Int64 // responses that were not taken for their signatures
	Synthesized      atomic.Int64 // answers that were made of proofs of others
	Verifications    atomic.Int64 // units that were spent by questions
	bogusByEDE       sync.Map     // *atomic.Int64 by EDE
}

// AddBogus counts an answer that is bogus.
func (c *Counters) AddBogus(ede uint16) {
	n, ok := c.bogusByEDE.Load(ede)
	if !ok {
		n, _ = c.bogusByEDE.LoadOrStore(ede, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
