package hedgebalancer

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	reportHolds = 10 * time.Second // how long a report is believed
	unknownLoad = 0.5              // of a backend without a report that is believed
	tooLoaded   = 0.8              // from here on a backend gets hedges only if no other is below
)

// utilizations are what is read of a load report (ORCA, gRFC A51), an *OrcaLoadReport. gRPC parses reports if package
// google.golang.org/grpc/orca is linked in. Its modules are many, and not needed for this.
type utilizations interface {
	GetApplicationUtilization() float64
	GetCpuUtilization() float64
}

// loadOf returns what a report says: application_utilization, and cpu_utilization where that is not set, as for
// weighted_round_robin. A report that does not set a field has 0 there, so that 0 says nothing.
func loadOf(report any) (load float64, ok bool) {
	u, ok := report.(utilizations)
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

// A meter knows how loaded a server is.
type meter struct {
	some *atomic.Bool            // true once a server of the policy has reported something
	last atomic.Pointer[reading] // nil: none
}

// A reading is what a server reported.
type reading struct {
	load  float64 // 1: fully
	fails bool    // the call that it came with had failed as calls of a broken server do
	at    time.Time
}

// fails reports whether a call failed as calls of a broken server do. Such a server has little to do, and would get all hedges.
func fails(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.ResourceExhausted, codes.DataLoss, codes.DeadlineExceeded:
		return true
	}
	return false
}

// hear takes note of what the server of a call that ends has reported.
func (m *meter) hear(info balancer.DoneInfo) {
	if load, ok := loadOf(info.ServerLoad); ok {
		m.last.Store(&reading{load, fails(info.Err), time.Now()})
		if !m.some.Load() { // calls of all servers would write to it
			m.some.Store(true)
		}
	}
}

// also returns what ends a call, of which done hears as well.
func (m *meter) also(done func(balancer.DoneInfo)) func(balancer.DoneInfo) {
	return func(info balancer.DoneInfo) {
		m.hear(info)
		done(info)
	}
}

// read returns what the server has reported, and whether it has.
func (m *meter) read(now time.Time) (r reading, said bool) {
	if r := m.last.Load(); r != nil && now.Sub(r.at) <= reportHolds {
		return *r, true
	}
	return reading{load: unknownLoad}, false
}

// A grade says how good a backend is for a hedge.
type grade struct {
	class int // less is better
	load  float64
}

// betterThan reports whether g is a better grade.
func (g grade) betterThan(other grade) bool {
	return g.class < other.class || g.class == other.class && g.load < other.load
}

// worst is the grade of the primary's backend, the last resort.
var worst = grade{class: 4}

// gradeOf returns the grade of a backend that has reported r and that no attempt of the call has used, rank 0, or only hedges, rank 1.
func gradeOf(rank int, r reading) grade {
	switch {
	case rank > 1:
		return worst
	case r.fails, r.load >= tooLoaded:
		return grade{2 + rank, r.load}
	}
	return grade{rank, r.load}
}
