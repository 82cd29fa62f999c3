package group

import (
	"context"
	"time"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// maxInitialHedges is the maximum number of hedges for a group with a single server while its delays are not learned.
// These hedges may all be useless.
const maxInitialHedges = 4

// A hedgeSchedule holds the delays after which the hedges of one exchange are due, and asks the hedge policy to admit
// them. Exchange.mu guards it after computeDelays has returned.
type hedgeSchedule struct {
	call policy.Call // records the latency and the hedges of the exchange for key; unused if key is nil
	key  *policy.Key // latency key of the first server; nil if the exchange records no latency

	due               []time.Duration          // delay of each hedge, counted from the start of the exchange
	usesInitialDelays bool                     // the delays are defaults, because the first server has too few samples
	next              int                      // index in due of the next hedge
	dueBuffer         [MaxHedges]time.Duration // memory for due
}

// computeDelays computes the delay of each hedge. If the exchange must not be hedged, denied is the reason; otherwise
// it is policy.None. setupTime is the expected duration of the handshake that the primary needs, or 0. Settings in ctx
// may switch hedging off.
func (h *hedgeSchedule) computeDelays(ctx context.Context, conf *Config, selection *serverSelection, setupTime time.Duration) (denied observe.Reason) {
	first := selection.servers[0]
	h.due = h.dueBuffer[:0]
	denied = policy.Eligibility{SwitchedOff: conf.IsOff()}.Reason(race.OverridesFrom(ctx))
	switch {
	case denied != policy.None:
	case conf.Hedging.FixedDelay > 0:
		h.due = append(h.due, conf.Hedging.FixedDelay)
	case selection.isZoneSilent(): // a hedge would be lost too, and the time until the timeout is no latency of the server
		return observe.DeniedSlow
	default:
		h.key = first.key
		h.call.Begin(ctx, h.key, 0)
		h.usesInitialDelays = first.learnedSlowDelay.Load() == 0
		loss := first.lossDelay()
		at := max(first.slowDelay(), loss) + setupTime
		// The second hedge starts when the first one is probably lost as well, and the third waits twice as long.
		for n := range conf.Hedging.MaxHedges {
			h.due = append(h.due, at)
			at += loss << n
		}
	}
	return denied
}

// nextDue returns the delay of the next hedge, counted from the start of the exchange. ok is false if there is no
// further hedge.
func (h *hedgeSchedule) nextDue() (delay time.Duration, ok bool) {
	if h.next == len(h.due) {
		return 0, false
	}
	return h.due[h.next], true
}

// admitNext decides whether the next hedge is sent, and advances to the hedge after it. There must be a next hedge. In
// shadow mode (isShadow is true), no hedge is sent. denied is the reason that the caller must report to observers, or
// policy.None.
func (h *hedgeSchedule) admitNext(servers Servers, isShadow bool) (isAdmitted bool, denied observe.Reason) {
	n, first := h.next, servers[0]
	h.next++
	switch {
	case h.key == nil: // the delay is fixed, and the hedge needs no budget
		if isShadow {
			return false, observe.DeniedShadow
		}
	case h.usesInitialDelays && len(servers) == 1 && first.lateHedgeCount.Load() >= maxInitialHedges:
		return false, observe.DeniedWarming
	case !first.account.spendForHedge(&h.call, n):
		return false, policy.None // the policy has reported its reason
	default:
		first.lateHedgeCount.Add(1)
	}
	return true, policy.None
}
