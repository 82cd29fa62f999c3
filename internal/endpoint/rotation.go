package endpoint

import "sync/atomic"

// A Rotation selects the endpoint of each hedge of one gRPC call, in turn. An endpoint is a connection: index 0 is the
// caller's connection, which the primary uses; indexes from 1 are the connections for hedges. The zero Rotation is for
// a call without connections for hedges.
//
// The goroutine of the call selects and adds hedges, one at a time. Attempts record their results concurrently.
type Rotation struct {
	detector *Detector
	used     Mask          // endpoints used since the last time that all were used
	excluded atomic.Uint32 // a Mask of the endpoints whose servers have pushed back
}

// Init prepares r for a call. The Mask own holds the endpoints whose connection is the same as the caller's; they are
// used last.
func (r *Rotation) Init(d *Detector, own Mask) { *r = Rotation{detector: d, used: own} }

// SelectHedge returns the endpoint of the next hedge. The endpoint is in ready, not ejected, and not yet used by the
// call. When all endpoints were used, the rotation starts again. SelectHedge returns 0 if no endpoint is available.
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

// WithdrawHedge records that an admitted hedge to endpoint i was not sent.
func (r *Rotation) WithdrawHedge(i int) { r.detector.withdrawHedge(i) }

// Exclude prevents further hedges of the call to endpoint i, whose server has pushed back.
func (r *Rotation) Exclude(i int) { r.excluded.Or(1 << i) }

// RecordResult records the result of attempt n at endpoint i for the health of the endpoint. If excused is true, a
// failure does not count: the attempt was cancelled, or its server has pushed back.
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
