package hedge

import (
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/ops"
)

// WithAudit measures whether hedging helps, and switches it off for a host where it
// harms: where servers are so busy that the hedges of all callers delay everybody.
//
// No caller sees the harm that its own hedges do to others, nor what theirs do to it. So
// all clients with WithAudit let hedging rest for the same 20 seconds of the time of day,
// which a hash of the host picks, and each compares what its calls then waited with what
// they wait in the 20 seconds beside. The clocks of clients may differ by two seconds. They agree on a host by its name:
// that of a URL, the gRPC target, the key given to [Do].
//
// Until there is a verdict hedging rests half of the time: for two to four minutes with hundreds of calls a
// second, for ten minutes to half an hour with two. Then the verdict is tested every 43 minutes on
// average, and anew where latencies change. A host with less than one call a second is hedged
// as without WithAudit. The verdict is that of all routes and methods of the host; it is shown
// by [KeySnapshot], observers, logs and the debug page, and goes with Export and Import.
//
// [RequestResult.Saved] and [KeySnapshot.Saved], which estimate what this measures, are 0
// with it. With [WithShadow] there is no audit, as no hedge is sent. HEDGE_MODE=audit in the
// environment does the same. The default is no audit.
func WithAudit() Option {
	return optionFunc(func(c *config) { c.audit = true })
}

// auditing returns the engine's setting for it.
func (h *handle) auditing(c *engine.Config) {
	if h.options.audit && !h.options.shadow {
		c.Audit, c.Wall = new(engine.Auditing), time.Now
	}
}

// audit returns what the audit of a host has found; nil if there is none.
func audit(v engine.AuditView) *Audit {
	if !v.On {
		return nil
	}
	a := ops.Audit(v)
	return &a
}
