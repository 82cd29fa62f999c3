package hedgebalancer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/hedgebalancer"
)

// A roundRobin implements the policies test_ring and test_silent_ring. It picks connections in the order of their
// creation, except those in skip.
type roundRobin struct {
	cc          balancer.ClientConn
	withoutDone bool // picks have no Done
	conns       []balancer.SubConn
	next        int
	doneErrors  map[int][]error // the errors with which the picks of each connection ended; connections are counted from 1
	picks       int
	skip        map[int]bool
}

var builtBalancers = make(chan *roundRobin, 1) // the balancer that was built last

func init() {
	balancer.Register(roundRobinBuilder{"test_ring", false})
	balancer.Register(roundRobinBuilder{"test_silent_ring", true})
}

type roundRobinBuilder struct {
	name        string
	withoutDone bool
}

func (b roundRobinBuilder) Name() string { return b.name }

func (b roundRobinBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	r := &roundRobin{cc: cc, withoutDone: b.withoutDone, doneErrors: make(map[int][]error), skip: make(map[int]bool)}
	builtBalancers <- r
	return r
}

func (r *roundRobin) UpdateClientConnState(s balancer.ClientConnState) error {
	for _, addr := range s.ResolverState.Addresses {
		sc, err := r.cc.NewSubConn([]resolver.Address{addr}, balancer.NewSubConnOptions{StateListener: func(balancer.SubConnState) {}}) //lint:ignore SA1019 there is no other
		if err != nil {
			return err
		}
		r.conns = append(r.conns, sc)
	}
	r.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: r})
	return nil
}

func (r *roundRobin) ResolverError(error)                                        {}
func (r *roundRobin) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
func (r *roundRobin) ExitIdle()                                                  {}
func (r *roundRobin) Close()                                                     {}

func (r *roundRobin) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	for r.skip[r.next%len(r.conns)+1] {
		r.next++
	}
	n := r.next % len(r.conns)
	r.next++
	r.picks++
	if r.withoutDone {
		return balancer.PickResult{SubConn: r.conns[n]}, nil
	}
	return balancer.PickResult{SubConn: r.conns[n], Done: func(d balancer.DoneInfo) { r.doneErrors[n+1] = append(r.doneErrors[n+1], d.Err) }}, nil
}

// A fakeConn is a balancer.ClientConn whose connections are ready at once.
type fakeConn struct {
	balancer.ClientConn
	conns []*fakeSubConn
	state balancer.State
}

func (c *fakeConn) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sc := &fakeSubConn{n: len(c.conns) + 1, setState: opts.StateListener}
	c.conns = append(c.conns, sc)
	return sc, nil
}

func (c *fakeConn) UpdateState(s balancer.State) { c.state = s }

type fakeSubConn struct {
	balancer.SubConn
	n        int
	setState func(balancer.SubConnState)
}

// load is a load report.
type load struct{ application, cpu float64 }

func (l *load) GetApplicationUtilization() float64 { return l.application }
func (l *load) GetCpuUtilization() float64         { return l.cpu }

// A backends is a hedge_elsewhere balancer over several backends, numbered from 1. The child picks them in turn.
type backends struct {
	t     *testing.T
	conn  *fakeConn
	child *roundRobin
}

func newBackends(t *testing.T, n int, child string) *backends {
	b := balancer.Get("hedge_elsewhere")
	config, err := b.(balancer.ConfigParser).ParseConfig(fmt.Appendf(nil, `{"childPolicy":[{%q:{}}]}`, child))
	require.NoError(t, err)
	f := &backends{t: t, conn: new(fakeConn)}
	var addrs []resolver.Address
	for i := range n {
		addrs = append(addrs, resolver.Address{Addr: fmt.Sprint("backend", i+1)})
	}
	lb := b.Build(f.conn, balancer.BuildOptions{})
	require.NoError(t, lb.UpdateClientConnState(balancer.ClientConnState{ResolverState: resolver.State{Addresses: addrs}, BalancerConfig: config}))
	f.child = <-builtBalancers
	for _, sc := range f.conn.conns {
		sc.setState(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	}
	return f
}

// pick picks for an attempt. The first pick of the child is the backend next. It returns the backend of the attempt, and the function that ends the
// attempt.
func (f *backends) pick(ctx context.Context, next int) (backend int, done func(balancer.DoneInfo)) {
	f.t.Helper()
	f.child.next = next - 1
	r, err := f.conn.state.Picker.Pick(balancer.PickInfo{Ctx: ctx})
	require.NoError(f.t, err)
	return r.SubConn.(*fakeSubConn).n, r.Done
}

// reportLoad makes a call without hedges, which a backend answers with a load report.
func (f *backends) reportLoad(backend int, of any) {
	f.t.Helper()
	_, done := f.pick(f.t.Context(), backend)
	done(balancer.DoneInfo{ServerLoad: of})
}

type hedgedCall struct {
	backends   *backends
	primary    hedgebalancer.PrimaryPick
	hedgePicks hedgebalancer.HedgePicks
	hedges     int
}

// startCall starts a call. The argument is the backend of its primary.
func (f *backends) startCall(backend int) (c *hedgedCall, done func(balancer.DoneInfo)) {
	f.t.Helper()
	c = &hedgedCall{backends: f}
	got, done := f.pick(context.WithValue(f.t.Context(), hedgebalancer.ContextKey{}, &c.primary), backend)
	require.Equal(f.t, backend, got)
	return c, done
}

// sendHedge starts the next hedge. The first pick of the child is the backend next.
func (c *hedgedCall) sendHedge(next int) (backend int, done func(balancer.DoneInfo)) {
	c.backends.t.Helper()
	c.hedges++
	return c.backends.pick(c.hedgePicks.NewContext(c.backends.t.Context(), c.hedges, &c.primary), next)
}

func TestPickerSendsHedgeToLessLoadedBackend(t *testing.T) {
	cpu := func(u float64) *load { return &load{cpu: u} }
	for name, c := range map[string]struct {
		backends int
		reports  map[int]any
		next     int   // of the child, for every hedge; the primary has backend 1
		want     []int // backends of the hedges
	}{
		"no report: the child's next":                {4, nil, 3, []int{3, 4, 2}},
		"the less loaded of the child's next two":    {4, map[int]any{2: cpu(0.7), 3: cpu(0.6), 4: cpu(0.1)}, 2, []int{3, 4, 2}},
		"the primary's is not, however idle":         {3, map[int]any{1: cpu(0.01), 2: cpu(0.9), 3: cpu(0.85)}, 2, []int{3, 2, 3}},
		"no report counts as a half":                 {4, map[int]any{2: cpu(0.51), 4: cpu(0.49)}, 2, []int{3, 4, 2}},
		"equal ones in the child's order":            {4, map[int]any{2: cpu(0.3), 3: cpu(0.3), 4: cpu(0.3)}, 3, []int{3, 4, 2}},
		"one report":                                 {3, map[int]any{2: cpu(0.6)}, 2, []int{3, 2}},
		"a loaded one after one that a hedge has":    {3, map[int]any{2: cpu(0.2), 3: cpu(0.8)}, 3, []int{2, 2}},
		"just below is not loaded":                   {3, map[int]any{2: cpu(0.2), 3: cpu(0.79)}, 3, []int{2, 3}},
		"all are loaded: as if none were":            {4, map[int]any{2: cpu(0.9), 3: cpu(0.95), 4: cpu(0.8)}, 2, []int{2, 4, 3, 4}},
		"two loaded ones, and one that says nothing": {4, map[int]any{2: cpu(0.9), 3: cpu(0.8)}, 2, []int{4}},
		"the application counts more than the CPU":   {3, map[int]any{2: &load{0.2, 0.9}, 3: &load{0.3, 0.1}}, 3, []int{2, 3}},
		"an application above 1":                     {3, map[int]any{2: &load{1.7, 0.1}, 3: cpu(0.9)}, 2, []int{3}},
		"a report of nothing says nothing":           {3, map[int]any{2: cpu(0), 3: cpu(0.4)}, 2, []int{3, 2}},
		"numbers that are none say nothing":          {4, map[int]any{2: cpu(math.NaN()), 3: cpu(-1), 4: &load{math.NaN(), 0.4}}, 2, []int{2, 4, 3}},
		"another report says nothing":                {3, map[int]any{2: "busy", 3: cpu(0.4)}, 2, []int{3, 2}},
		"of twenty, the idlest if it is next":        {20, map[int]any{20: cpu(0.1)}, 19, []int{20}},
		"of twenty, not always the idlest":           {20, map[int]any{20: cpu(0.1)}, 2, []int{2}},
		"the only one that is not loaded":            {7, map[int]any{2: cpu(1), 3: cpu(1), 4: cpu(1), 5: cpu(1), 6: cpu(1), 7: cpu(0.7)}, 2, []int{7}},
	} {
		for _, child := range []string{"test_ring", "test_silent_ring"} {
			t.Run(name+" "+child, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newBackends(t, c.backends, child)
					for _, n := range slices.Sorted(maps.Keys(c.reports)) {
						f.reportLoad(n, c.reports[n])
					}
					time.Sleep(10 * time.Second) // so long a report holds
					call, _ := f.startCall(1)
					var got []int
					for range c.want {
						backend, _ := call.sendHedge(c.next)
						got = append(got, backend)
					}
					assert.Equal(t, c.want, got)
				})
			})
		}
	}
}

// Load reports are late: an idle server that gets the hedges of all clients is overloaded before it can report that.
func TestPickerDoesNotSendAllHedgesToIdlestBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newBackends(t, 21, "test_ring")
		for n := range 21 {
			f.reportLoad(n+1, &load{cpu: 0.5})
		}
		f.reportLoad(7, &load{cpu: 0.05})
		got := make(map[int]int)
		for n := range 20 {
			call, _ := f.startCall(1)
			backend, _ := call.sendHedge(n + 2)
			got[backend]++
		}
		assert.Equal(t, 2, got[7], "twice its share: %v", got)
	})
}

func TestPickerIgnoresLoadReportsOlderThanTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newBackends(t, 3, "test_ring")
		hedge := func() int {
			call, _ := f.startCall(1)
			backend, _ := call.sendHedge(2)
			return backend
		}
		f.reportLoad(2, &load{cpu: 0.9})
		time.Sleep(10 * time.Second)
		assert.Equal(t, 3, hedge())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 2, hedge())
		f.reportLoad(2, &load{cpu: 0.9})
		f.reportLoad(2, &load{}) // says nothing, and takes nothing back
		assert.Equal(t, 3, hedge())
		f.reportLoad(2, &load{cpu: 0.4})
		assert.Equal(t, 2, hedge())
	})
}

// A load report counts whether the attempt succeeded or failed.
func TestPickerRecordsLoadReportsOfAttempts(t *testing.T) {
	for _, child := range []string{"test_ring", "test_silent_ring"} {
		synctest.Test(t, func(t *testing.T) {
			f := newBackends(t, 4, child)
			call, primary := f.startCall(2)
			third, hedge := call.sendHedge(3)
			require.Equal(t, 3, third)
			primary(balancer.DoneInfo{Err: errors.New("too busy"), ServerLoad: &load{cpu: 0.95}})
			hedge(balancer.DoneInfo{ServerLoad: &load{cpu: 0.9}})
			call, _ = f.startCall(1)
			var got []int
			for range 4 {
				backend, _ := call.sendHedge(2)
				got = append(got, backend)
			}
			assert.Equal(t, []int{4, 4, 4, 4}, got, "the others are loaded, and it is not")
		})
	}
}

// A server that fails at once is idle. It must not get all hedges, because none of them would win.
func TestPickerTreatsFailingServerAsOverloaded(t *testing.T) {
	for code, fails := range map[codes.Code]bool{
		codes.Unavailable: true, codes.Internal: true, codes.Unknown: true, codes.ResourceExhausted: true, codes.DataLoss: true, codes.DeadlineExceeded: true,
		codes.OK: false, codes.NotFound: false, codes.InvalidArgument: false, codes.Aborted: false, codes.Canceled: false,
	} {
		for _, child := range []string{"test_ring", "test_silent_ring"} {
			t.Run(fmt.Sprint(code, " ", child), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newBackends(t, 4, child)
					f.reportLoad(2, &load{cpu: 0.7})
					f.reportLoad(3, &load{cpu: 0.9})
					end := func(code codes.Code) {
						_, done := f.pick(t.Context(), 4)
						done(balancer.DoneInfo{Err: status.Error(code, ""), ServerLoad: &load{cpu: 0.01}})
					}
					hedges := func() (got []int) {
						call, _ := f.startCall(1)
						for range 3 {
							backend, _ := call.sendHedge(3)
							got = append(got, backend)
						}
						return got
					}
					end(code)
					if fails {
						assert.Equal(t, []int{2, 2, 2}, hedges())
						end(codes.OK)
					}
					assert.Equal(t, []int{4, 2, 4}, hedges())
					f.reportLoad(2, &load{cpu: 0.95})
					end(code)
					if fails {
						assert.Equal(t, 4, hedges()[0], "of those that are loaded or fail, the least loaded")
					}
				})
			})
		}
	}
}

// The child is asked as often as before load reports existed, if no server has sent a current one.
func TestPickerLimitsPicksFromChild(t *testing.T) {
	picks := func(f *backends, hedges, next int) (n []int) {
		call, _ := f.startCall(1)
		for range hedges {
			before := f.child.picks
			call.sendHedge(next)
			n = append(n, f.child.picks-before)
		}
		return n
	}
	synctest.Test(t, func(t *testing.T) {
		f := newBackends(t, 10, "test_ring")
		want := []int{1, 2, 3} // each hedge finds first where those before it went
		assert.Equal(t, want, picks(f, 3, 2))
		assert.Equal(t, []int{2}, picks(f, 1, 1))
		f.reportLoad(10, &load{cpu: 0.1})
		assert.Equal(t, []int{2, 3, 4}, picks(f, 3, 2), "two that the call has not used, unless the first is the best")
		assert.Equal(t, []int{1, 1}, []int{picks(f, 1, 10)[0], picks(f, 1, 10)[0]})
		time.Sleep(10*time.Second + 1)
		assert.Equal(t, want, picks(f, 3, 2))

		f.child.skip = map[int]bool{10: true}
		f.reportLoad(1, &load{cpu: 0.6})
		assert.Equal(t, []int{1}, picks(f, 1, 2), "a half, as the one that is not picked")
	})
	synctest.Test(t, func(t *testing.T) {
		f := newBackends(t, 30, "test_ring")
		f.child.skip = map[int]bool{30: true}
		f.reportLoad(2, &load{cpu: 0.6})
		f.child.skip[30] = false
		f.reportLoad(30, &load{cpu: 0.1})
		f.child.skip[30] = true
		assert.Equal(t, []int{2}, picks(f, 1, 2))
		for n := 2; n < 30; n++ {
			f.reportLoad(n, &load{cpu: 0.9})
		}
		assert.Equal(t, []int{20}, picks(f, 1, 2), "of thirty, of which the best is not picked")
	})
}

// A backend that was rejected for its load has no attempt of the call. The unused pick ends after the hedge.
func TestPickerFinishesUnusedPickAfterHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newBackends(t, 4, "test_ring")
		f.reportLoad(2, &load{cpu: 0.9})
		f.reportLoad(3, &load{cpu: 0.8})
		f.reportLoad(4, &load{cpu: 0.1})
		clear(f.child.doneErrors)
		call, primary := f.startCall(1)
		backend, hedge := call.sendHedge(2)
		require.Equal(t, 4, backend)
		assert.Empty(t, f.child.doneErrors)
		hedge(balancer.DoneInfo{})
		assert.Equal(t, []error{nil}, f.child.doneErrors[4])
		for _, passed := range []int{2, 3} {
			require.Len(t, f.child.doneErrors[passed], 1)
			assert.ErrorContains(t, f.child.doneErrors[passed][0], "the backend was not used")
		}
		primary(balancer.DoneInfo{})
		assert.Equal(t, []error{nil}, f.child.doneErrors[1])
	})
}

func TestPickerIgnoresLoadOfBackendThatIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newBackends(t, 3, "test_ring")
		f.reportLoad(3, &load{cpu: 0.1})
		f.reportLoad(2, &load{cpu: 0.4})
		f.conn.conns[2].setState(balancer.SubConnState{ConnectivityState: connectivity.TransientFailure})
		f.child.skip = map[int]bool{3: true}
		call, _ := f.startCall(1)
		before := f.child.picks
		backend, _ := call.sendHedge(2)
		assert.Equal(t, 2, backend)
		assert.Equal(t, 1, f.child.picks-before)
	})
}
