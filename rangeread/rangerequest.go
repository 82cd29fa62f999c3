package rangeread

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A rangeRequest holds the state that the rangeBody and all attempts of one range share. Its context is cancelled when
// the rangeBody and all attempts have ended. It is safe for concurrent use.
type rangeRequest struct {
	store       *Store
	fetch       Fetch
	version     *objectVersion
	key         *policy.Key     // latency key of the size class
	ctx         context.Context // context of the attempts
	cancel      context.CancelCauseFunc
	stopOnClose func() bool // removes the callback that cancels ctx when the Reader is closed

	users         atomic.Int32 // number of running attempts, plus one for the rangeBody
	hedgedBytes   atomic.Int64 // bytes requested by hedges
	readBytes     atomic.Int64 // bytes of the range read by all attempts
	returnedBytes atomic.Int64 // bytes of the range returned to the caller
}

// addUser counts an attempt or the rangeBody as a user, so that the context of the request stays alive. Each call of
// addUser needs a call of removeUser.
func (t *rangeRequest) addUser() { t.users.Add(1) }

// removeUser ends the use that addUser has counted, of an attempt or of the rangeBody. With the last use, it cancels
// the context of the request, and adds the bytes that were read twice to the counters.
func (t *rangeRequest) removeUser() {
	if t.users.Add(-1) > 0 {
		return
	}
	t.store.bytesReadTwice.Add(min(max(t.readBytes.Load()-t.returnedBytes.Load(), 0), t.hedgedBytes.Load()))
	t.stopOnClose()
	t.cancel(nil)
}

// admitHedge reports whether a hedge for the bytes [from, to) may start. The argument index is the position of the
// hedge in the schedule. If the hedge may start, admitHedge takes tokens from the budgets of hedges and of bytes.
// Otherwise it counts the denial.
//
// The budget of bytes pays for all requested bytes, because it is not known how many bytes the server sends for a
// cancelled attempt.
func (t *rangeRequest) admitHedge(c *policy.Call, index int, from, to int64) bool {
	reason, n := policy.None, t.store.responseBytes(from, to)
	paid := t.store.byteBudget.SpendN(n)
	if !paid {
		reason = observe.DeniedBudget
	}
	c.Denied = policy.None
	if c.AdmitRequest(index, policy.HedgeRequest{}, reason) {
		t.hedgedBytes.Add(n)
		t.store.bytesHedged.Add(n)
		return true
	}
	if paid && c.Denied != observe.DeniedShadow { // in shadow mode, the bytes are paid as if the hedge was sent
		t.store.byteBudget.RefundN(n)
	}
	if c.Denied != policy.None {
		t.store.denied.countDenial(c.Denied, !paid)
	}
	return false
}
