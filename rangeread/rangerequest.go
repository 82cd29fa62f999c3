package rangeread

import (
	"context"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A rangeRequest is the state that the attempts of one range share. It ends when its reader and all its attempts have ended.
type rangeRequest struct {
	store       *Store
	fetch       Fetch
	version     *objectVersion
	key         *policy.Key
	ctx         context.Context // of the attempts
	cancel      context.CancelCauseFunc
	stopOnClose func() bool // stops the cancellation of ctx by Close of the Reader

	users         atomic.Int32 // attempts that have not ended, and the reader
	hedgedBytes   atomic.Int64 // bytes that hedges have requested
	readBytes     atomic.Int64 // bytes of the range, by all attempts
	returnedBytes atomic.Int64 // bytes of these that were returned to the caller
}

// addUser counts an attempt, or the reader, that begins.
func (t *rangeRequest) addUser() { t.users.Add(1) }

// removeUser counts an attempt, or the reader, that has ended. The last one ends the request and counts the bytes that were read twice.
func (t *rangeRequest) removeUser() {
	if t.users.Add(-1) > 0 {
		return
	}
	t.store.twice.Add(min(max(t.readBytes.Load()-t.returnedBytes.Load(), 0), t.hedgedBytes.Load()))
	t.stopOnClose()
	t.cancel(nil)
}

// admitHedge decides whether a hedge for the bytes [from, to) may start, at the delay of the given index. The budget of bytes pays for all requested
// bytes: the number that the server has sent when an attempt is cancelled is not known.
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
