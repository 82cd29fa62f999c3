package hedgebalancer

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	reportLifetime    = 10 * time.Second // age from which on a load report is ignored
	unknownLoad       = 0.5              // assumed load of a backend without a current load report; 1 is full load
	overloadThreshold = 0.8              // a backend with at least this load gets a hedge only if all other backends are overloaded too
)

// A utilizationReport is a load report of a server (gRFC A51). It has the methods of *OrcaLoadReport that this package
// needs. The interface avoids a dependency on package google.golang.org/grpc/orca, which the program must import so
// that gRPC parses load reports.
type utilizationReport interface {
	GetApplicationUtilization() float64
	GetCpuUtilization() float64
}

// reportedLoad returns the load that a server has reported; 1 is full load. It is application_utilization, or
// cpu_utilization if application_utilization is not set, as in weighted_round_robin. The value 0 means not set. The
// result ok is false if neither is set or report has another type.
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

// A loadTracker stores the most recent load report of one backend. It is safe for concurrent use.
type loadTracker struct {
	anyReported *atomic.Bool               // a backend of the policy has sent a load report; shared by all backends
	lastReport  atomic.Pointer[loadReport] // nil if there was no report
}

// A loadReport is the load that a server reported at the end of a call.
type loadReport struct {
	load   float64   // 1 is full load
	failed bool      // the call ended with an error for which isServerFailure returns true
	at     time.Time // time of the report
}

// isServerFailure reports whether the status err suggests a broken server. A broken server has a low load, so it would
// otherwise get all hedges.
func isServerFailure(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.ResourceExhausted, codes.DataLoss, codes.DeadlineExceeded:
		return true
	}
	return false
}

// recordLoad stores the load report in info, if info contains a report. It can be the Done function of a pick, which
// gRPC calls at the end of a call.
func (m *loadTracker) recordLoad(info balancer.DoneInfo) {
	if load, ok := reportedLoad(info.ServerLoad); ok {
		m.lastReport.Store(&loadReport{load, isServerFailure(info.Err), time.Now()})
		if !m.anyReported.Load() { // avoids a shared write by every call
			m.anyReported.Store(true)
		}
	}
}

// withLoadRecorder returns a Done function that calls recordLoad and then the given Done function.
func (m *loadTracker) withLoadRecorder(done func(balancer.DoneInfo)) func(balancer.DoneInfo) {
	return func(info balancer.DoneInfo) {
		m.recordLoad(info)
		done(info)
	}
}

// currentLoad returns the most recent load report. The result known is false if there is no report, or if it is older
// than reportLifetime. In that case the load is unknownLoad.
func (m *loadTracker) currentLoad(now time.Time) (r loadReport, known bool) {
	if r := m.lastReport.Load(); r != nil && now.Sub(r.at) <= reportLifetime {
		return *r, true
	}
	return loadReport{load: unknownLoad}, false
}

// A grade ranks a backend as a target of a hedge. The class counts first, and then the load. Lower values are better.
type grade struct {
	class int     // 0 or 1: not overloaded; 2 or 3: overloaded or broken; 4: the primary's backend; odd: another hedge uses the backend
	load  float64 // 1 is full load
}

// isBetterThan reports whether a backend with grade g is a better target for a hedge than a backend with grade other.
func (g grade) isBetterThan(other grade) bool {
	return g.class < other.class || g.class == other.class && g.load < other.load
}

// worstGrade is the grade of the backend that the primary uses.
var worstGrade = grade{class: 4}

// gradeBackend returns the grade of a backend. The argument rank says how attempts of the call use the backend, see
// [HedgePick.usageRank]. The argument r is the backend's load report.
func gradeBackend(rank int, r loadReport) grade {
	switch {
	case rank > 1:
		return worstGrade
	case r.failed, r.load >= overloadThreshold:
		return grade{2 + rank, r.load}
	}
	return grade{rank, r.load}
}
