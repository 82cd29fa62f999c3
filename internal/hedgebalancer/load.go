package hedgebalancer

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	reportLifetime    = 10 * time.Second // age at which a load report is ignored
	unknownLoad       = 0.5              // load of a backend without a current report
	overloadThreshold = 0.8              // from this load on, a backend gets a hedge only if no other backend is below
)

// A utilizationReport has the fields of a load report that count here (*OrcaLoadReport, gRFC A51). gRPC parses load reports if package
// google.golang.org/grpc/orca is linked in. Its modules are many, and not needed for the fields.
type utilizationReport interface {
	GetApplicationUtilization() float64
	GetCpuUtilization() float64
}

// reportedLoad returns application_utilization, or cpu_utilization if that is not set, as weighted_round_robin does. A value of 0 means that the
// field is not set.
func reportedLoad(report any) (load float64, ok bool) {
	u, ok := report.(utilizationReport)
	if !ok {
		return 0, false
	}
	for _, load := range [...]float64{u.GetApplicationUtilization(), u.GetCpuUtilization()} {
		if load > 0 {
			return load, true
		}
	}
	return 0, false
}

// A loadTracker stores the last load report of a server.
type loadTracker struct {
	anyReported *atomic.Bool               // true if any server of the policy has sent a load report
	lastReport  atomic.Pointer[loadReport] // nil: the server has sent none
}

type loadReport struct {
	load   float64 // 1: fully loaded
	failed bool    // the call that carried the report failed with an error of [isServerFailure]
	at     time.Time
}

// isServerFailure reports whether err has a code of a broken server. A broken server is idle, and would get all hedges.
func isServerFailure(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.ResourceExhausted, codes.DataLoss, codes.DeadlineExceeded:
		return true
	}
	return false
}

// recordLoad stores the load report that came with the end of a call.
func (m *loadTracker) recordLoad(info balancer.DoneInfo) {
	if load, ok := reportedLoad(info.ServerLoad); ok {
		m.lastReport.Store(&loadReport{load, isServerFailure(info.Err), time.Now()})
		if !m.anyReported.Load() { // avoids a shared write by every call
			m.anyReported.Store(true)
		}
	}
}

// withLoadRecorder returns a Done that records the load report and calls done.
func (m *loadTracker) withLoadRecorder(done func(balancer.DoneInfo)) func(balancer.DoneInfo) {
	return func(info balancer.DoneInfo) {
		m.recordLoad(info)
		done(info)
	}
}

// currentLoad returns the last load report. If there is none or it is too old, known is false and the load is unknownLoad.
func (m *loadTracker) currentLoad(now time.Time) (r loadReport, known bool) {
	if r := m.lastReport.Load(); r != nil && now.Sub(r.at) <= reportLifetime {
		return *r, true
	}
	return loadReport{load: unknownLoad}, false
}

// A grade ranks a backend for a hedge.
type grade struct {
	class int // lower is better
	load  float64
}

func (g grade) isBetterThan(other grade) bool {
	return g.class < other.class || g.class == other.class && g.load < other.load
}

// worstGrade is the grade of the backend of the primary.
var worstGrade = grade{class: 4}

// gradeBackend returns the grade of a backend that has reported r and has the rank of [HedgePick.usageRank].
func gradeBackend(rank int, r loadReport) grade {
	switch {
	case rank > 1:
		return worstGrade
	case r.failed, r.load >= overloadThreshold:
		return grade{2 + rank, r.load}
	}
	return grade{rank, r.load}
}
