package endpoint

import (
	"sync/atomic"
	"time"
)

// A Rotation distributes the hedges of one gRPC call over several connections. Each connection is an endpoint. Index 0
// is the caller's connection, which the primary uses; indexes from 1 are the connections for hedges. The zero Rotation
// is for a call without connections for hedges.
//
// Only the goroutine that runs the call may select and add hedges. Attempts may record their results concurrently.
type Rotation struct {
	detector *Detector
	used     Mask          // endpoints that the call has used; emptied when a hedge uses one of them again
	excluded atomic.Uint32 // a Mask of the endpoints that get no more hedges of the call, because their servers have pushed back
}

// Init prepares r for a call whose endpoints d observes. The Mask own contains the indexes under which the connections
// for hedges include the caller's connection. The rotation uses them last, because the primary is already there.
func (r *Rotation) Init(d *Detector, own Mask) { *r = Rotation{detector: d, used: own} }

// SelectHedge returns the endpoint of the call's next hedge, or 0 if no endpoint is available. The Mask ready contains
// the endpoints whose connections are ready. The selected endpoint is in ready and not used by the call yet. When the
// call has used all of them, they may be used again.
//
// An ejected endpoint is selected only as a trial, which lets the endpoint be restored.
func (r *Rotation) SelectHedge(ready Mask) int {
	ready &^= Mask(r.excluded.Load())
	used := r.used // not changed here, because the hedge may be denied
	if ready&^used == 0 {
		used = 0
	}
	if i := r.detector.selectHedge(ready, used, 0); i > 0 {
		return i
	}
	i := r.detector.firstAvailable(ready)
	if i == 0 && ready != 0 {
		r.detector.recordUnsentHedge()
	}
	return i
}

// SelectFailover returns the endpoint of a hedge that starts because an attempt has failed. The Mask unused contains the endpoints
// whose connections are ready and that the call has not used. The result is 0 if none of them is available. As for SelectHedge, an
// ejected endpoint is selected only as a trial.
func (r *Rotation) SelectFailover(unused Mask) int {
	return r.detector.selectHedge(unused&^Mask(r.excluded.Load()), 0, 0)
}

// FailoverTimeout returns how long a hedge to endpoint i that a failure has started may run after the primary has failed. The
// argument usual is the usual latency of the call, which is the minimum if the endpoint has not answered yet.
func (r *Rotation) FailoverTimeout(i int, usual time.Duration) time.Duration {
	return r.detector.failoverTimeout(i, usual)
}

// ExpectedLatency returns the usual latency of hedges to endpoint i, or 0 if the endpoint has not answered any.
func (r *Rotation) ExpectedLatency(i int) time.Duration { return r.detector.knownLatency(i) }

// AddHedge records that a hedge to endpoint i was admitted. It must be called before the next SelectHedge, which then
// selects another endpoint.
func (r *Rotation) AddHedge(i int) {
	if r.used.Has(i) {
		r.used = 0
	}
	r.used = r.used.With(i)
	r.detector.recordTrial(i)
	r.detector.recordHedge(i)
}

// WithdrawHedge records that the hedge to endpoint i, which AddHedge has recorded, was not sent after all. It undoes
// the count of the hedge in the statistics.
func (r *Rotation) WithdrawHedge(i int) { r.detector.withdrawHedge(i) }

// Exclude prevents further hedges of this call to endpoint i, because the server of that endpoint has pushed back.
func (r *Rotation) Exclude(i int) { r.excluded.Or(1 << i) }

// RecordResult records the result of attempt n at endpoint i for the health of the endpoint; n = 0 is the primary. If
// answered is true, the attempt has succeeded. Otherwise it has failed.
//
// If excused is true, a failure does not count against the endpoint, because the attempt was cancelled or its server
// has pushed back.
func (r *Rotation) RecordResult(n, i int, answered, excused bool) {
	if n == 0 {
		r.detector.SelectPrimary(1) // counts the call
	}
	switch {
	case answered:
		r.detector.recordSuccess(i)
	case !excused:
		r.detector.recordFailure(i)
	}
}

// RecordLatency records how long a hedge to endpoint i took, for FailoverTimeout. If answered is false, the hedge was cancelled
// after that time, or its server has pushed back. The argument failover says that the failure of another attempt has started the hedge.
func (r *Rotation) RecordLatency(i int, answered, failover bool, took time.Duration) {
	switch {
	case answered:
		r.detector.recordAnswer(0, i, took)
	case failover:
		r.detector.recordUnansweredFailover(i, took)
	default:
		r.detector.recordNoAnswer(i, took)
	}
}
