package rangeread

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A task is one range, and what its attempts share. It lasts until the last of them has ended, and so has who reads.
type task struct {
	store   *Store
	fetch   Fetch
	version *version
	key     *policy.Key
	ctx     context.Context // of the attempts
	cancel  context.CancelCauseFunc
	untie   func() bool // ctx from the life of the Reader

	out   atomic.Int32 // attempts that have not ended, and who reads
	extra atomic.Int64 // bytes that hedges have asked for
	read  atomic.Int64 // bytes of the range, by all attempts
	used  atomic.Int64 // of them, what was returned
}

// begin says that an attempt begins.
func (t *task) begin() { t.out.Add(1) }

// end says that an attempt has ended, or that nobody reads any more. With the last one the task is over.
func (t *task) end() {
	if t.out.Add(-1) > 0 {
		return
	}
	t.store.twice.Add(min(max(t.read.Load()-t.used.Load(), 0), t.extra.Load()))
	t.untie()
	t.cancel(nil)
}

// admit decides whether a hedge for the bytes from from to to may start, at the delay of that index. It is paid for by what it asks for, as nobody
// knows what the server has sent of it, or of the attempt that it beats, when that is cut off.
func (t *task) admit(c *policy.Call, index int, from, to int64) bool {
	reason, n := policy.None, t.store.cost(from, to)
	paid := t.store.bytes.SpendN(n)
	if !paid {
		reason = observe.DeniedBudget
	}
	c.Denied = policy.None
	if c.AdmitRequest(index, policy.HedgeRequest{}, reason) {
		t.extra.Add(n)
		t.store.hedged.Add(n)
		return true
	}
	if paid && c.Denied != observe.DeniedShadow { // as if that was sent
		t.store.bytes.RefundN(n)
	}
	if c.Denied != policy.None {
		t.store.denied.count(c.Denied, !paid)
	}
	return false
}
