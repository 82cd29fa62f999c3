package integration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	estats "google.golang.org/grpc/experimental/stats"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/stats"

	"github.com/gohedge/hedge"
)

// outlierInterval is the interval of byRate and byPercentage.
const outlierInterval = 300 * time.Millisecond

// An ejectionRecorder counts the ejections by outlier detection, which gRPC reports as a metric.
type ejectionRecorder struct {
	estats.UnimplementedMetricsRecorder
	began time.Time
	count atomic.Int64
	first atomic.Int64 // time from began to the first ejection, in nanoseconds
}

func (r *ejectionRecorder) RecordInt64Count(handle *estats.Int64CountHandle, n int64, _ ...string) {
	if handle.Descriptor().Name == "grpc.lb.outlier_detection.ejections_enforced" && r.count.Add(n) == n {
		r.first.Store(int64(time.Since(r.began)))
	}
}

func (*ejectionRecorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (*ejectionRecorder) HandleRPC(context.Context, stats.RPCStats)                       {}
func (*ejectionRecorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}
func (*ejectionRecorder) HandleConn(context.Context, stats.ConnStats) {}

// A fleetClient is a client of a fleet with four callers.
type fleetClient struct {
	ejections ejectionRecorder
	hedges    *hedge.Interceptor // nil: calls are not hedged
	client    healthpb.HealthClient
	calls     atomic.Int64
}

// newFleetClient returns a client of f. If options are given, its calls are hedged.
func newFleetClient(t *testing.T, f *fleet, balancing string, options ...hedge.GRPCOption) *fleetClient {
	c := &fleetClient{ejections: ejectionRecorder{began: time.Now()}}
	dial := []grpc.DialOption{grpc.WithStatsHandler(&c.ejections)}
	if len(options) > 0 {
		c.hedges = hedge.NewInterceptor(append(options, hedge.WithMethods("/*"), hedge.WithMaxHedges(1))...)
		dial = append(dial, grpc.WithChainUnaryInterceptor(c.hedges.Unary()))
	}
	c.client = f.dial(t, balancing, dial...)
	return c
}

// call makes calls from four goroutines until enough returns true. Hedges start after 10 ms.
func (c *fleetClient) call(t *testing.T, enough func() bool) {
	var callers sync.WaitGroup
	end := time.Now().Add(20 * time.Second)
	for range 4 {
		callers.Go(func() {
			for !enough() && time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 10*time.Millisecond), 5*time.Second)
				_, _ = c.client.Check(ctx, new(healthpb.HealthCheckRequest))
				cancel()
				c.calls.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	callers.Wait()
}

// lasts returns a function that returns true after the time d.
func lasts(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

func (c *fleetClient) hasEjected() bool { return c.ejections.count.Load() > 0 }

var outlierAlgorithms = map[string]string{"success rate": byRate, "failure percentage": byPercentage}

// TestOutlierDetection has a backend that is slow, so that its attempts lose.
func TestOutlierDetection(t *testing.T) {
	for name, algorithm := range outlierAlgorithms {
		for _, arrangement := range []struct {
			name, config  string
			ejectsHealthy bool
		}{{"below hedge_elsewhere", outlierBelow, false}, {"above hedge_elsewhere", outlierAbove, true}, {"alone", outlierAlone, true}} {
			t.Run(name+" "+arrangement.name, func(t *testing.T) {
				f := startFleet(t)
				f.backends[0].slow.Store(int64(100 * time.Millisecond))
				c := newFleetClient(t, f, fmt.Sprintf(arrangement.config, algorithm), hedge.WithBudgetPercent(100))
				enough := lasts(5 * outlierInterval)
				if arrangement.ejectsHealthy {
					enough = c.hasEjected
				}
				c.call(t, enough)
				assert.Positive(t, c.hedges.Snapshot().Stats.HedgeWins)
				assert.Equal(t, arrangement.ejectsHealthy, c.hasEjected(), "%d calls, %+v", c.calls.Load(), c.hedges.Snapshot().Stats)
			})
		}
	}
}

// TestOutlierDetectionAboveWithHighThreshold has a budget that hedges at most a tenth of the calls, so that a slow
// backend loses less than a half of its attempts.
func TestOutlierDetectionAboveWithHighThreshold(t *testing.T) {
	f := startFleet(t)
	f.backends[0].slow.Store(int64(100 * time.Millisecond))
	const settings = ejects + `, "failurePercentageEjection":{"threshold":85, "enforcementPercentage":100, "minimumHosts":2, "requestVolume":10}`
	c := newFleetClient(t, f, fmt.Sprintf(outlierAbove, settings), hedge.WithBudgetPercent(10), hedge.WithBurst(0))
	c.call(t, lasts(5*outlierInterval))
	assert.Positive(t, c.hedges.Snapshot().Stats.HedgeWins)
	assert.False(t, c.hasEjected())
}

// TestOutlierDetectionEjectsFailingBackendInTime compares two clients of the same backends, with and without hedges. One
// backend begins to fail, and another one is slow. Because a busy machine delays one client more than the other, the best of
// three comparisons counts.
func TestOutlierDetectionEjectsFailingBackendInTime(t *testing.T) {
	for name, algorithm := range outlierAlgorithms {
		compare := func(t *testing.T) (late time.Duration) {
			f := startFleet(t)
			f.backends[1].slow.Store(int64(30 * time.Millisecond))
			hedged := newFleetClient(t, f, fmt.Sprintf(outlierBelow, algorithm), hedge.WithBudgetPercent(100))
			plain := newFleetClient(t, f, fmt.Sprintf(outlierAlone, algorithm))
			both := []*fleetClient{hedged, plain}
			callBoth := func(enough func(*fleetClient) func() bool) {
				var clients sync.WaitGroup
				for _, c := range both {
					clients.Go(func() { c.call(t, enough(c)) })
				}
				clients.Wait()
			}
			callBoth(func(*fleetClient) func() bool { return lasts(2 * outlierInterval) })
			for _, c := range both {
				require.False(t, c.hasEjected())
			}
			require.Positive(t, hedged.hedges.Snapshot().Stats.HedgeWins)
			f.backends[0].fails.Store(true)
			callBoth(func(c *fleetClient) func() bool { return c.hasEjected })
			for _, c := range both {
				require.EqualValues(t, 1, c.ejections.count.Load())
			}
			late = time.Duration(hedged.ejections.first.Load() - plain.ejections.first.Load())
			t.Logf("the hedging client ejects %v later", late)
			return late
		}
		t.Run(name, func(t *testing.T) {
			const limit = outlierInterval + outlierInterval/2 // half an interval for a busy machine
			best := compare(t)
			for range 2 {
				if best >= limit {
					best = min(best, compare(t))
				}
			}
			assert.Less(t, best, limit)
		})
	}
}

// TestOutlierDetectionDoesNotEjectBackendThatHangs has a backend that never answers. Hedges rescue its calls.
func TestOutlierDetectionDoesNotEjectBackendThatHangs(t *testing.T) {
	f := startFleet(t)
	c := newFleetClient(t, f, fmt.Sprintf(outlierBelow, byPercentage), hedge.WithBudgetPercent(100))
	c.call(t, lasts(outlierInterval)) // all backends are connected
	f.backends[0].slow.Store(int64(time.Hour))
	c.call(t, lasts(5*outlierInterval))
	assert.Positive(t, c.hedges.Snapshot().Stats.HedgeWins)
	assert.False(t, c.hasEjected())
}
