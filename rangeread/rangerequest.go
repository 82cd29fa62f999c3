package rangeread

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A rangeRequest is the state that all attempts of one range share. It ends when its rangeBody and all attempts have
// ended.
type rangeRequest struct {
	store       *Store
	fetch       Fetch
	version     *objectVersion
	key         *policy.Key
	ctx         context.Context // context of the attempts
	cancel      context.CancelCauseFunc
	stopOnClose func() bool // removes the callback that cancels ctx when the Reader is closed

	users         atomic.Int32 // running attempts, plus one for the rangeBody
	hedgedBytes   atomic.Int64 // bytes requested by hedges
	readBytes     atomic.Int64 // bytes of the range read by all attempts
	returnedBytes atomic.Int64 // bytes of the range returned to the caller
}

// addUser counts a new attempt or rangeBody.
func (t *rangeRequest) addUser() { t.users.Add(1) }

// removeUser counts an attempt or rangeBody that has ended. The last one ends the request, and counts the bytes that
// were read twice.
func (t *rangeRequest) removeUser() {
	if t.users.Add(-1) > 0 {
		return
	}
	t.store.twice.Add(min(max(t.readBytes.Load()-t.returnedBytes.Load(), 0), t.hedgedBytes.Load()))
	t.stopOnClose()
	t.cancel(nil)
}

// admitHedge reports whether the hedge with the given index in the schedule may start, for the bytes [from, to). The
// budget of bytes pays for all requested bytes, because the number of bytes that a cancelled attempt has caused is
// unknown.
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
	if paid && c.Denied != observe.DeniedShadow { // in shadow mode, the bytes are paid as if the hedge was sent
		t.store.bytes.RefundN(n)
	}
	if c.Denied != policy.None {
		t.store.denied.countDenial(c.Denied, !paid)
	}
	return false
}
