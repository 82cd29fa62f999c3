package rangeread

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A task is one range, and what its attempts share. It lasts until the last of them has ended, and so has who reads.
type rangeRequest struct {
	store       *Store
	fetch       Fetch
	version     *objectVersion
	key         *policy.Key
	ctx         context.Context // of the attempts
	cancel      context.CancelCauseFunc
	stopOnClose func() bool // ctx from the life of the Reader

	users         atomic.Int32 // attempts that have not ended, and who reads
	hedgedBytes   atomic.Int64 // bytes that hedges have asked for
	readBytes     atomic.Int64 // bytes of the range, by all attempts
	returnedBytes atomic.Int64 // of them, what was returned
}

// addUser says that an attempt begins.
func (t *rangeRequest) addUser() { t.users.Add(1) }

// removeUser says that an attempt has ended, or that nobody reads any more. With the last one the task is over.
func (t *rangeRequest) removeUser() {
	if t.users.Add(-1) > 0 {
		return
	}
	t.store.twice.Add(min(max(t.readBytes.Load()-t.returnedBytes.Load(), 0), t.hedgedBytes.Load()))
	t.stopOnClose()
	t.cancel(nil)
}

// admitHedge decides whether a hedge for the bytes from from to to may start, at the delay of that index. It is paid for by what it asks for, as nobody
// knows what the server has sent of it, or of the attempt that it beats, when that is cut off.
func (t *rangeRequest) admitHedge(c *policy.Call, index int, from, to int64) bool {
	reason, n := policy.None, t.store.responseBytes(from, to)
	paid := t.store.bytes.SpendN(n)
	if !paid {
		reason = observe.DeniedBudget
	}
	c.Denied = policy.None
	if c.AdmitRequest(index, policy.HedgeRequest{}, reason) {
		t.hedgedBytes.Add(n)
		t.store.hedged.Add(n)
		return true
	}
	if paid && c.Denied != observe.DeniedShadow { // as if that was sent
		t.store.bytes.RefundN(n)
	}
	if c.Denied != policy.None {
		t.store.denied.countDenial(c.Denied, !paid)
	}
	return false
}
