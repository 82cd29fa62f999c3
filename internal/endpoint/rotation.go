package endpoint

import "sync/atomic"

// A Rotation selects the endpoints of the hedges of one gRPC call. Endpoint 0 is the caller's own connection, which the primary uses. The
// connections for hedges are endpoints 1 and up. The goroutine of the call selects and adds hedges, one at a time; attempts report their
// results concurrently. The zero Rotation is that of a call without connections for hedges.
type Rotation struct {
	detector *Detector
	used     Mask          // endpoints that the call has used in the current round
	excluded atomic.Uint32 // a Mask: endpoints whose servers have pushed back
}

// Init makes r the Rotation of a call. The Mask own holds the endpoints whose connection is the caller's own connection too.
func (r *Rotation) Init(d *Detector, own Mask) { *r = Rotation{detector: d, used: own} }

// SelectHedge returns the endpoint of the next hedge, which is one of ready: the next endpoint that the call has not used and that is not ejected. A
// call that has used all of them begins again with the first one. It returns 0 if there is no such endpoint.
func (r *Rotation) SelectHedge(ready Mask) int {
	ready &^= Mask(r.excluded.Load())
	if ready&^r.used == 0 {
		r.used = 0
	}
	if i := r.detector.selectHedge(ready, r.used, 0); i > 0 {
		return i
	}
	i := r.detector.firstAvailable(ready)
	if i == 0 && ready != 0 {
		r.detector.recordUnsentHedge()
	}
	return i
}

// AddHedge records that a hedge to endpoint i was admitted.
func (r *Rotation) AddHedge(i int) {
	r.used = r.used.With(i)
	r.detector.recordTrial(i)
	r.detector.recordHedge(i)
}

// WithdrawHedge records that a hedge to endpoint i was admitted and not sent.
func (r *Rotation) WithdrawHedge(i int) { r.detector.withdrawHedge(i) }

// Exclude keeps further hedges of the call from endpoint i, whose server has pushed back.
func (r *Rotation) Exclude(i int) { r.excluded.Or(1 << i) }

// RecordResult records the result of attempt n at endpoint i. Excused is true for a failure that does not count against the endpoint: the
// attempt was cancelled, or its server pushed back.
func (r *Rotation) RecordResult(n, i int, answered, excused bool) {
	if n == 0 {
		r.detector.SelectPrimary(1) // which counts the call
	}
	switch {
	case answered:
		r.detector.recordSuccess(i)
	case !excused:
		r.detector.recordFailure(i)
	}
}
