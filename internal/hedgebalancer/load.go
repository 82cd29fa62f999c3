package hedgebalancer

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	reportLifetime    = 10 * time.Second // age after which a load report is ignored
	unknownLoad       = 0.5              // assumed load of a backend without a current report
	overloadThreshold = 0.8              // a backend with at least this load gets a hedge only if all are overloaded
)

// A utilizationReport has the methods of *OrcaLoadReport (gRFC A51) that this package needs. The interface avoids a
// dependency on package google.golang.org/grpc/orca, which the program must import so that gRPC parses load reports.
type utilizationReport interface {
	GetApplicationUtilization() float64
	GetCpuUtilization() float64
}

// reportedLoad returns the load in a report: application_utilization, or cpu_utilization if that is 0. A value of 0
// means that the field is not set. This is the rule of weighted_round_robin. It is not ok if neither is set.
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

// A loadTracker stores the last load report of one backend.
type loadTracker struct {
	anyReported *atomic.Bool               // shared by the backends of a policy: whether any has sent a report
	lastReport  atomic.Pointer[loadReport] // nil: there was no report
}

type loadReport struct {
	load   float64 // 1: fully loaded
	failed bool    // the call with the report ended with an error of isServerFailure
	at     time.Time
}

// isServerFailure reports whether err has a status code of a broken server. The load of a broken server is low, so it
// would otherwise get all hedges.
func isServerFailure(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.ResourceExhausted, codes.DataLoss, codes.DeadlineExceeded:
		return true
	}
	return false
}

// recordLoad stores the load report in info, which comes with the end of a call.
func (m *loadTracker) recordLoad(info balancer.DoneInfo) {
	if load, ok := reportedLoad(info.ServerLoad); ok {
		m.lastReport.Store(&loadReport{load, isServerFailure(info.Err), time.Now()})
		if !m.anyReported.Load() { // avoids a shared write by every call
			m.anyReported.Store(true)
		}
	}
}

// withLoadRecorder returns a Done function that calls recordLoad and then done.
func (m *loadTracker) withLoadRecorder(done func(balancer.DoneInfo)) func(balancer.DoneInfo) {
	return func(info balancer.DoneInfo) {
		m.recordLoad(info)
		done(info)
	}
}

// currentLoad returns the last load report. If there is none, or if it is older than reportLifetime, the load is
// unknownLoad and known is false.
func (m *loadTracker) currentLoad(now time.Time) (r loadReport, known bool) {
	if r := m.lastReport.Load(); r != nil && now.Sub(r.at) <= reportLifetime {
		return *r, true
	}
	return loadReport{load: unknownLoad}, false
}

// A grade ranks a backend as a target of a hedge.
type grade struct {
	class int // lower is better
	load  float64
}

func (g grade) isBetterThan(other grade) bool {
	return g.class < other.class || g.class == other.class && g.load < other.load
}

// worstGrade is the grade of the primary's backend.
var worstGrade = grade{class: 4}

// gradeBackend returns the grade of a backend with the load report r and the rank that [HedgePick.usageRank] returns.
func gradeBackend(rank int, r loadReport) grade {
	switch {
	case rank > 1:
		return worstGrade
	case r.failed, r.load >= overloadThreshold:
		return grade{2 + rank, r.load}
	}
	return grade{rank, r.load}
}
