package chain

import (
	"sync"
	"sync/atomic"
)

// Counts are what Stats says.
type Counts struct {
	Secure, Insecure atomic.Int64
	KeyQueries       atomic.Int64 // questions for keys
	PassedOver       atomic.Int64 // responses that were not taken for their signatures
	Synthesized      atomic.Int64 // answers that were made of proofs of others
	Verifications    atomic.Int64 // units that were spent by questions
	bogus            sync.Map     // *atomic.Int64 by EDE
}

// Bogus counts an answer that is bogus.
func (c *Counts) Bogus(ede uint16) {
	n, ok := c.bogus.Load(ede)
	if !ok {
		n, _ = c.bogus.LoadOrStore(ede, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
