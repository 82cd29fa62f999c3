//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
	"github.com/gohedge/hedge/internal/serviceconfig"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// hedgingPolicy returns a service config in which all methods have a hedgingPolicy with the given fields.
func hedgingPolicy(fields string) string {
	return `{"methodConfig": [{"name": [{}], "hedgingPolicy": {` + fields + `}}]}`
}

const threeAt50 = `"maxAttempts": 3, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE"]`

// A play describes one attempt: its duration, and its status code at the end.
type play struct {
	takes    time.Duration
	code     codes.Code
	pushback string // of its trailer; "": none
}

// played returns an invoker that answers attempt n by the n-th play, and appends the start of each attempt, relative to
// begin.
func played(begin time.Time, began *[]time.Duration, plays ...play) *invoker {
	var mu sync.Mutex
	return &invoker{answer: func(ctx context.Context, n int, reply any, opts []grpc.CallOption) error {
		mu.Lock()
		*began = append(*began, time.Since(begin))
		mu.Unlock()
		p := plays[min(n, len(plays)-1)]
		if err := doubles.Sleep(ctx, p.takes); err != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		if p.pushback != "" {
			for _, o := range opts {
				if o, ok := o.(grpc.TrailerCallOption); ok {
					*o.TrailerAddr = metadata.Pairs("grpc-retry-pushback-ms", p.pushback)
				}
			}
		}
		if p.code == codes.OK {
			reply.(*wrapperspb.StringValue).Value = fmt.Sprint("answer ", n)
		}
		return status.Errorf(p.code, "attempt %d", n)
	}}
}

// An outcome is the result of a call.
type outcome struct {
	began []time.Duration
	took  time.Duration
	text  string // the reply, or the status
}

// playCall makes a call of the method by an interceptor that has learned the usual latency, and returns its outcome.
func playCall(t *testing.T, method, config string, timeout time.Duration, plays []play, opts ...hedge.GRPCOption) (o outcome) {
	opts = append(opts, hedge.WithServiceConfig(config), hedge.WithBudgetPercent(400))
	intercept := hedge.NewUnaryClientInterceptor(opts...)
	usually := &invoker{answer: in(usual)}
	for range 20 {
		require.NoError(t, intercept(t.Context(), method, nil, new(wrapperspb.StringValue), nil, usually.invoke))
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	begin, reply := time.Now(), new(wrapperspb.StringValue)
	i := played(begin, &o.began, plays...)
	err := intercept(ctx, method, wrapperspb.String("id"), reply, nil, i.invoke)
	o.took, o.text = time.Since(begin), reply.Value
	if err != nil {
		o.text = status.Convert(err).Message()
	}
	synctest.Wait()
	return o
}

// learn makes calls of the method read over cc until the interceptor has learned the usual latency.
func learn(t *testing.T, handle *hedge.Interceptor, cc *grpc.ClientConn) {
	usually := &invoker{answer: in(usual)}
	for range 20 {
		require.NoError(t, handle.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), cc, usually.invoke))
	}
}

const never = time.Hour

// TestInterceptorFollowsServiceConfig names each case after a rule of gRFC A6, or after the promise of this package
// that applies instead.
func TestInterceptorFollowsServiceConfig(t *testing.T) {
	ok := func(d time.Duration) play { return play{takes: d} }
	fails := func(d time.Duration, c codes.Code) play { return play{takes: d, code: c} }
	pushes := func(d time.Duration, ms string) play { return play{d, codes.Unavailable, ms} }
	for _, test := range []struct {
		name    string // what A6 says
		fields  string
		timeout time.Duration
		plays   []play
		want    outcome
	}{
		{name: "after hedgingDelay has elapsed without a response, the second RPC is issued, and so on, up to maxAttempts",
			fields: threeAt50, plays: []play{ok(never), ok(never), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms, 100 * ms}, 110 * ms, "answer 2"}},
		{name: "no more than maxAttempts are sent",
			fields: threeAt50, plays: []play{ok(300 * ms), ok(never)},
			want: outcome{[]time.Duration{0, 50 * ms, 100 * ms}, 300 * ms, "answer 0"}},
		{name: "an answer before hedgingDelay is the only one",
			fields: threeAt50, plays: []play{ok(49 * ms)},
			want: outcome{[]time.Duration{0}, 49 * ms, "answer 0"}},
		{name: "a hedge's answer cancels the others",
			fields: threeAt50, plays: []play{ok(never), ok(20 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms}, 70 * ms, "answer 1"}},
		{name: "a higher maxAttempts than 5 counts as 5",
			fields: `"maxAttempts": 7, "hedgingDelay": "0.05s"`, plays: []play{ok(never), ok(never), ok(never), ok(never), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms, 100 * ms, 150 * ms, 200 * ms}, 210 * ms, "answer 4"}},
		{name: "with a delay of 0s all are sent at once",
			fields: `"maxAttempts": 4, "hedgingDelay": "0s"`, plays: []play{ok(30 * ms), ok(20 * ms), ok(20 * ms), ok(20 * ms)},
			want: outcome{[]time.Duration{0, 0, 0, 0}, 20 * ms, ""}},
		{name: "a delay that is left unset is learned, and not 0s",
			fields: `"maxAttempts": 2`, plays: []play{ok(never), ok(20 * ms)},
			want: outcome{[]time.Duration{0, usual}, usual + 20*ms, "answer 1"}}, // learned
		{name: "after a non-fatal status the next one is sent immediately, and the following at hedgingDelay",
			fields: threeAt50, plays: []play{fails(10*ms, codes.Unavailable), ok(never), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 10 * ms}, 20 * ms, "attempt 0"}}, // a failure is held for the usual time
		{name: "a non-fatal status of a hedge as well",
			fields: threeAt50, plays: []play{ok(never), fails(10*ms, codes.Unavailable), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms, 60 * ms}, 70 * ms, "answer 2"}},
		{name: "a fatal status of the first is returned",
			fields: threeAt50, plays: []play{fails(60*ms, codes.Internal), ok(20 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms}, 60 * ms, "attempt 0"}},
		{name: "a fatal status before the first hedge as well",
			fields: threeAt50, plays: []play{fails(10*ms, codes.NotFound)},
			want: outcome{[]time.Duration{0}, 10 * ms, "attempt 0"}},
		{name: "a fatal status of a hedge is not",
			fields: threeAt50, plays: []play{ok(80 * ms), fails(10*ms, codes.NotFound)},
			want: outcome{[]time.Duration{0, 50 * ms}, 80 * ms, "answer 0"}},
		{name: "nonFatalStatusCodes that is not set makes all statuses fatal",
			fields: `"maxAttempts": 3, "hedgingDelay": "0.05s"`, plays: []play{fails(10*ms, codes.Unavailable)},
			want: outcome{[]time.Duration{0}, 10 * ms, "attempt 0"}},
		{name: "if all fail, the first failure is returned", // A6 does not say
			fields: threeAt50, plays: []play{fails(5*ms, codes.Unavailable), fails(5*ms, codes.Unavailable), fails(5*ms, codes.Unavailable)},
			want: outcome{[]time.Duration{0, 5 * ms, 10 * ms}, 15 * ms, "attempt 0"}},
		{name: "after a push-back the next one is sent after that long, and the following at hedgingDelay",
			fields: threeAt50, plays: []play{pushes(5*ms, "30"), ok(never), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 35 * ms}, 45 * ms, "attempt 0"}},
		{name: "a push-back of 0 sends it immediately",
			fields: threeAt50, plays: []play{pushes(5*ms, "0"), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 5 * ms}, 15 * ms, "answer 1"}},
		{name: "a push-back of a hedge puts the next one off",
			fields: threeAt50, plays: []play{ok(never), pushes(10*ms, "100"), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms, 160 * ms}, 170 * ms, "answer 2"}},
		{name: "a negative push-back ends hedging",
			fields: threeAt50, plays: []play{ok(never), pushes(10*ms, "-1"), ok(10 * ms)}, timeout: 200 * ms,
			want: outcome{[]time.Duration{0, 50 * ms}, 200 * ms, "context deadline exceeded"}},
		{name: "and another attempt's push-back does not begin it again",
			fields: threeAt50, plays: []play{pushes(65*ms, "900"), pushes(5*ms, "-1"), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms}, 65 * ms, "attempt 0"}},
		{name: "one that cannot be parsed as well",
			fields: threeAt50, plays: []play{pushes(10*ms, "soon"), ok(10 * ms)},
			want: outcome{[]time.Duration{0}, 10 * ms, "attempt 0"}},
		{name: "one of more than 32 bits as well",
			fields: threeAt50, plays: []play{pushes(10*ms, "2147483648"), ok(10 * ms)},
			want: outcome{[]time.Duration{0}, 10 * ms, "attempt 0"}},
		{name: "hedges that are out go on after it",
			fields: threeAt50, plays: []play{pushes(55*ms, "-1"), ok(8 * ms), ok(10 * ms)},
			want: outcome{[]time.Duration{0, 50 * ms}, 58 * ms, "answer 1"}},
		{name: "a push-back after maxAttempts sends none",
			fields: `"maxAttempts": 2, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE"]`, plays: []play{pushes(5*ms, "10"), pushes(5*ms, "10")},
			want: outcome{[]time.Duration{0, 15 * ms}, 20 * ms, "attempt 0"}},
		{name: "a push-back with a fatal status does not help",
			fields: threeAt50, plays: []play{{5 * ms, codes.NotFound, "10"}, ok(10 * ms)},
			want: outcome{[]time.Duration{0}, 5 * ms, "attempt 0"}},
		{name: "the deadline spans all attempts",
			fields: threeAt50, plays: []play{ok(never)}, timeout: 80 * ms,
			want: outcome{[]time.Duration{0, 50 * ms}, 80 * ms, "context deadline exceeded"}},
		{name: "a failure in hand is returned before it",
			fields: threeAt50, plays: []play{fails(5*ms, codes.Unavailable), ok(never)}, timeout: 200 * ms,
			want: outcome{[]time.Duration{0, 5 * ms}, 15 * ms, "attempt 0"}},
		{name: "a push-back beyond the deadline is not waited for",
			fields: threeAt50, plays: []play{pushes(5*ms, "5000"), ok(never)}, timeout: 100 * ms,
			want: outcome{[]time.Duration{0}, 5 * ms, "attempt 0"}}, // not held for longer than a second
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if test.timeout == 0 {
					test.timeout = time.Minute
				}
				got := playCall(t, "/a.B/Write", hedgingPolicy(test.fields), test.timeout, test.plays)
				assert.Equal(t, len(test.want.began), len(got.began), "%v", got.began)
				for n := range min(len(test.want.began), len(got.began)) {
					assert.InDelta(t, test.want.began[n], got.began[n], float64(ms), "attempt %d", n)
				}
				assert.InDelta(t, test.want.took, got.took, float64(ms))
				if test.want.text != "" {
					assert.Equal(t, test.want.text, got.text)
				}
			})
		})
	}
}

// TestInterceptorHedgesMethodsByPrecedence compares the service config with options and declarations that take
// precedence.
func TestInterceptorHedgesMethodsByPrecedence(t *testing.T) {
	one := `{"methodConfig": [{"name": [{"service": "a.B", "method": "Write"}], "hedgingPolicy": {` + threeAt50 + `}}]}`
	for name, test := range map[string]struct {
		method string
		opts   []hedge.GRPCOption
		most   int
		why    string
	}{
		"a policy":                    {"/a.B/Write", nil, 2, "its service config has methodConfig[0].hedgingPolicy"},
		"a route is Off":              {"/a.B/Write", []hedge.GRPCOption{hedge.WithRoute("/a.B/*", hedge.Policy{Off: true})}, 0, "its route is Off"},
		"a route of other things":     {"/a.B/Write", []hedge.GRPCOption{hedge.WithRoute("/a.B/*", hedge.Policy{})}, 2, "its service config has methodConfig[0].hedgingPolicy"},
		"no policy, no reading name":  {"/a.B/Create", nil, 0, "its name begins with no word that reads"},
		"no policy, a reading name":   {"/a.B/GetItem", nil, 4, "its name begins with Get and holds no word that writes or takes"},
		"a policy, and listed":        {"/a.B/Write", []hedge.GRPCOption{hedge.WithMethods("/*")}, 2, "WithMethods lists it"},
		"declared methods do not ask": {"/a.B/Write", []hedge.GRPCOption{hedge.WithDeclaredMethods()}, 2, "its service config has methodConfig[0].hedgingPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			most, why := hedge.NewInterceptor(append(test.opts, hedge.WithServiceConfig(one), hedge.WithMaxHedges(4))...).Hedges(test.method)
			assert.Equal(t, test.most, most)
			assert.Equal(t, test.why, why)
		})
	}
}

// TestMinAndMaxDelayLimitOnlyLearnedDelays sets WithMinDelay and WithMaxDelay: a fixed delay is not changed.
func TestMinAndMaxDelayLimitOnlyLearnedDelays(t *testing.T) {
	bounds := []hedge.GRPCOption{hedge.WithMinDelay(4 * ms), hedge.WithMaxDelay(8 * ms)}
	stalls := []play{{takes: never}, {takes: never}, {takes: 5 * ms}}
	for name, test := range map[string]struct {
		fields string
		opts   []hedge.GRPCOption
		want   []time.Duration
	}{
		"longer than WithMaxDelay's":     {`"maxAttempts": 3, "hedgingDelay": "0.05s"`, nil, []time.Duration{0, 50 * ms, 100 * ms}},
		"shorter than WithMinDelay's":    {`"maxAttempts": 3, "hedgingDelay": "0.002s"`, nil, []time.Duration{0, 2 * ms, 4 * ms}},
		"the route's":                    {`"maxAttempts": 3`, []hedge.GRPCOption{hedge.WithRoute(read, hedge.Policy{Delay: 30 * ms})}, []time.Duration{0, 30 * ms, 60 * ms}},
		"learned, and then as far apart": {`"maxAttempts": 3`, nil, []time.Duration{0, 8 * ms, 16 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := playCall(t, read, hedgingPolicy(test.fields), time.Hour, stalls, append(test.opts, bounds...)...)
				assert.Equal(t, test.want, o.began)
				assert.Equal(t, "answer 2", o.text)
			})
		})
	}
}

// TestInvalidFirstConfigOfResolverFailsCalls has a resolver whose first config is invalid. Until a valid one arrives,
// gRPC fails the calls and ignores the config of the program.
func TestInvalidFirstConfigOfResolverFailsCalls(t *testing.T) {
	for name, text := range map[string]string{"to gRPC": "{", "to hedge": hedgingPolicy(`"maxAttempts": 1`)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := grpctest.NewBackends(t, 1)
				in := hedge.NewInterceptor(hedge.WithServiceConfig(hedgingPolicy(threeAt50)), hedge.WithBudgetPercent(400))
				cc := grpctest.Dial(t, "fleet:///", grpc.WithResolvers(in.Resolver(f.Resolver)), grpc.WithDefaultServiceConfig(hedgingPolicy(threeAt50)),
					grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
						return f.Network.Host("client").DialContext(ctx, "tcp", addr)
					}), grpc.WithChainUnaryInterceptor(in.Unary()))
				f.Resolver.InitialState(resolver.State{})
				f.Resolver.BuildCallback = func(_ resolver.Target, conn resolver.ClientConn, _ resolver.BuildOptions) {
					f.Resolver.InitialState(resolver.State{Addresses: f.Addrs, ServiceConfig: conn.ParseServiceConfig(text)})
					f.ResolverConn <- conn
				}
				_, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(testpb.NewTestServiceClient(cc)))
				require.Equal(t, codes.Unavailable, status.Code(err))
				assert.ErrorContains(t, err, "service config")
				most, _ := in.Hedges(testpb.TestService_UnaryCall_FullMethodName)
				assert.Equal(t, 2, most, "the program's is in force here, and no call is made")

				conn := <-f.ResolverConn
				require.NoError(t, conn.UpdateState(resolver.State{Addresses: f.Addrs, ServiceConfig: conn.ParseServiceConfig(hedgingPolicy(threeAt50))}))
				for range 20 {
					_, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(testpb.NewTestServiceClient(cc)))
					require.NoError(t, err)
				}
				f.Delays[0].Store(int64(70 * ms))
				at, err := f.RecordCall(t.Context(), grpctest.UnaryCaller(testpb.NewTestServiceClient(cc)))
				require.NoError(t, err)
				assert.Len(t, at, 2)
			})
		})
	}
}

func TestCallerOverridesServiceConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := hedge.WithServiceConfig(hedgingPolicy(threeAt50))
		for name, test := range map[string]struct {
			ctx  func(context.Context) context.Context
			opts []hedge.GRPCOption
			want int
		}{
			"nothing":        {func(ctx context.Context) context.Context { return ctx }, nil, 3},
			"WithoutHedging": {hedge.WithoutHedging, nil, 1},
			"WithDelay":      {func(ctx context.Context) context.Context { return hedge.WithDelay(ctx, 200*ms) }, nil, 2},
			"a route":        {func(ctx context.Context) context.Context { return ctx }, []hedge.GRPCOption{hedge.WithRoute("/*", hedge.Policy{Delay: 250 * ms})}, 2},
			"no hedges":      {func(ctx context.Context) context.Context { return ctx }, []hedge.GRPCOption{hedge.WithMaxHedges(0)}, 1},
			"shadow":         {func(ctx context.Context) context.Context { return ctx }, []hedge.GRPCOption{hedge.WithShadow()}, 1},
		} {
			c := warmCaller(t, read, append(test.opts, config)...)
			i := &invoker{answer: in(300 * ms)}
			_, err := c.get(test.ctx(t.Context()), i)
			require.NoError(t, err)
			assert.Equal(t, test.want, i.n, name)
		}
	})
}

func TestServiceConfigDoesNotEnableDisabledHedging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := hedge.NewInterceptor(hedge.WithServiceConfig(hedgingPolicy(threeAt50)))
		learn(t, handle, nil)
		handle.SetEnabled(false)
		i := &invoker{answer: in(300 * ms)}
		require.NoError(t, handle.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), nil, i.invoke))
		assert.Equal(t, 1, i.n)
	})
}

// TestOutageCostsBudgetInsteadOfMaxAttempts has a hedging policy. The first ten calls and the budget limit hedges
// nevertheless.
func TestOutageCostsBudgetInsteadOfMaxAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intercept := hedge.NewUnaryClientInterceptor(hedge.WithServiceConfig(hedgingPolicy(threeAt50)))
		i := &invoker{answer: in(300 * ms)}
		call := func(n int) int {
			before := i.n
			for range n {
				require.NoError(t, intercept(t.Context(), read, nil, new(wrapperspb.StringValue), nil, i.invoke))
			}
			return i.n - before
		}
		assert.Equal(t, 10, call(10), "too little is known")
		assert.LessOrEqual(t, call(1000), 1000+100+20)
	})
}

func TestRetryThrottlingDeniesHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := strings.TrimSuffix(hedgingPolicy(`"maxAttempts": 2, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE"]`), "}") +
			`, "retryThrottling": {"maxTokens": 10, "tokenRatio": 1}}`
		handle := hedge.NewInterceptor(hedge.WithServiceConfig(config), hedge.WithBudgetPercent(400))
		learn(t, handle, nil)
		intercept := handle.Unary()
		call := func(method string, i *invoker) int {
			_ = intercept(t.Context(), method, nil, new(wrapperspb.StringValue), nil, i.invoke)
			return i.n
		}
		down := func() *invoker { return &invoker{answer: failsWith(10*ms, codes.Unavailable)} }
		up := func() *invoker { return &invoker{answer: in(10 * ms)} }
		assert.Equal(t, 2, call(read, down())) // 10, 9, 8
		assert.Equal(t, 2, call(read, down())) // 7, 6
		assert.Equal(t, 1, call(read, down())) // 5: half
		assert.Equal(t, 1, call(read, down())) // 4
		assert.Equal(t, 1, call(read, &invoker{answer: failsWith(10*ms, codes.NotFound)}), "a fatal failure costs nothing")
		assert.Equal(t, 1, call(read, up()))                           // 5
		assert.Equal(t, 1, call(read, down()))                         // 4
		assert.Equal(t, 1, call(read, up()))                           // 5
		assert.Equal(t, 1, call("/a.B/Write", up()))                   // 6: any method's success counts
		assert.Equal(t, 2, call(read, &invoker{answer: in(200 * ms)})) // 7: above half
	})
}

// TestRetryThrottlingCountsSuccessOfUnhedgedMethod makes successful calls of a method that is sent once.
func TestRetryThrottlingCountsSuccessOfUnhedgedMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := `{"methodConfig": [{"name": [{"service": "catalog.v1.Catalog"}], "hedgingPolicy": {"maxAttempts": 2, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE"]}}],
			"retryThrottling": {"maxTokens": 2, "tokenRatio": 1}}`
		handle := hedge.NewInterceptor(hedge.WithServiceConfig(config), hedge.WithBudgetPercent(400))
		learn(t, handle, nil)
		intercept := handle.Unary()
		i := &invoker{answer: failsWith(10*ms, codes.Unavailable)}
		assert.Error(t, intercept(t.Context(), read, nil, new(wrapperspb.StringValue), nil, i.invoke))
		assert.Equal(t, 1, i.n)
		i = &invoker{answer: in(10 * ms)}
		require.NoError(t, intercept(t.Context(), "/a.B/Create", nil, new(wrapperspb.StringValue), nil, i.invoke))
		i = &invoker{answer: in(200 * ms)}
		require.NoError(t, intercept(t.Context(), read, nil, new(wrapperspb.StringValue), nil, i.invoke))
		assert.Equal(t, 2, i.n)
	})
}

func TestUpdateServiceConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := fixture.NewJournal()
		handle := hedge.NewInterceptor(hedge.WithServiceConfig(hedgingPolicy(threeAt50)), hedge.WithDeclaredMethods(), hedge.WithBudgetPercent(400), hedge.WithLogger(slog.New(j)))
		learn(t, handle, nil)
		sent := func() int {
			i := &invoker{answer: in(300 * ms)}
			require.NoError(t, handle.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), nil, i.invoke))
			return i.n
		}
		assert.Equal(t, 3, sent())
		assert.Equal(t, []string{"INFO method has a hedging policy method=" + read + " policy=methodConfig[0].hedgingPolicy of=the program attempts=3 learned_delay=false delay=50ms"},
			without(j.Take(), `"`))
		require.NoError(t, handle.UpdateServiceConfig(hedgingPolicy(`"maxAttempts": 2, "hedgingDelay": "0s"`)))
		assert.Equal(t, 2, sent())
		assert.Len(t, j.Take(), 2)
		assert.Equal(t, "methodConfig[0].hedgingPolicy of UpdateServiceConfig", handle.Snapshot().Keys[0].Policy)
		assert.Equal(t, []time.Duration{0}, handle.Snapshot().Keys[0].Delays)

		assert.EqualError(t, handle.UpdateServiceConfig(hedgingPolicy(`"maxAttempts": 1`)), "hedge: service config: methodConfig[0].hedgingPolicy.maxAttempts: 1 is not an integer above 1")
		assert.EqualError(t, handle.UpdateServiceConfig(hedgingPolicy(`"maxAttempts": 3, "hedgeDelay": "1s"`)), "hedge: service config: methodConfig[0].hedgingPolicy.hedgeDelay: a hedgingPolicy has no such field")
		assert.Equal(t, 2, sent(), "an invalid one changes nothing")
		assert.Empty(t, j.Take())
		require.NoError(t, handle.UpdateServiceConfig("{}"))
		assert.Equal(t, 1, sent())
		assert.Empty(t, handle.Snapshot().Keys[0].Policy)
	})
}

// TestSnapshotHasDelaysOfHedgingPolicy expects one delay for each hedge that the policy allows.
func TestSnapshotHasDelaysOfHedgingPolicy(t *testing.T) {
	for attempts := 2; attempts <= 5; attempts++ {
		synctest.Test(t, func(t *testing.T) {
			handle := hedge.NewInterceptor(hedge.WithServiceConfig(hedgingPolicy(fmt.Sprintf(`"maxAttempts": %d`, attempts))), hedge.WithBudgetPercent(400))
			for range 20 {
				require.NoError(t, handle.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), nil, (&invoker{answer: in(usual)}).invoke))
			}
			delays := handle.Snapshot().Keys[0].Delays
			var began []time.Duration
			require.NoError(t, handle.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), nil, played(time.Now(), &began, play{takes: time.Second}).invoke))
			assert.Len(t, delays, attempts-1)
			assert.Equal(t, began[1:], delays)
		})
	}
}

// without returns the lines that do not contain text.
func without(lines []string, text string) (out []string) {
	for _, l := range lines {
		out = append(out, strings.ReplaceAll(l, text, ""))
	}
	return out
}

func TestInterceptorRejectsInvalidServiceConfigs(t *testing.T) {
	const invalid = `{"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": "nonsense"}}]}`
	const want = `hedge: service config: methodConfig[0].hedgingPolicy.maxAttempts: "nonsense" is not an integer above 1`
	assert.PanicsWithError(t, want, func() { hedge.WithServiceConfig(invalid) })
	_, err := hedge.DialOptions(invalid)
	assert.EqualError(t, err, want)
	_, err = hedge.DialOptions(hedgingPolicy(threeAt50), hedge.WithMinDelay(2*ms), hedge.WithMaxDelay(ms))
	assert.Error(t, err, "of options that contradict each other")
}

// A servesAs is a service whose functions a test sets.
type servesAs struct {
	testpb.UnimplementedTestServiceServer
	unary  func(context.Context) error
	stream func(grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error
}

func (s *servesAs) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return new(testpb.SimpleResponse), s.unary(ctx)
}

func (s *servesAs) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, stream testpb.TestService_StreamingOutputCallServer) error {
	return s.stream(stream)
}

// servedAs returns a connected client of the service.
func servedAs(t *testing.T, service *servesAs, opts ...grpc.DialOption) testpb.TestServiceClient {
	_, dial := overMemory(t, service)
	cc := dial("client", opts...)
	grpctest.Connect(t, cc)
	return testpb.NewTestServiceClient(cc)
}

// experiment makes five calls of 300 ms each by a client with hedgingDelay 50 ms, after warm calls. It returns the
// number of requests that the server received for them.
func experiment(t *testing.T, warm int, opts []grpc.DialOption) (requests int) {
	var mu sync.Mutex
	seen := map[string]int{}
	client := servedAs(t, &servesAs{unary: func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		mu.Lock()
		seen["all"]++
		seen[strings.Join(md["grpc-previous-rpc-attempts"], " ")]++
		mu.Unlock()
		return doubles.Sleep(ctx, 300*ms)
	}}, opts...)
	for range warm + 5 {
		_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
		require.NoError(t, err)
	}
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	hedges := seen["all"] - warm - 5
	assert.Equal(t, hedges, seen["1"]+seen["2"], "hedges are numbered in grpc-previous-rpc-attempts: %v", seen)
	return seen["all"] - warm
}

const experimental = `{"methodConfig": [{"name": [{"service": "grpc.testing.TestService"}], "hedgingPolicy": {"maxAttempts": 3, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE"]}}]}`

// TestGRPCIgnoresWhatWeObey fails when grpc-go implements hedging policies. Then set serviceconfig.NativeHedgingSince
// to that version.
func TestGRPCIgnoresWhatWeObey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, 5, experiment(t, 0, []grpc.DialOption{grpc.WithDefaultServiceConfig(experimental)}))
		nonsense := strings.Replace(experimental, "3", `"nonsense"`, 1)
		assert.Equal(t, 5, experiment(t, 0, []grpc.DialOption{grpc.WithDefaultServiceConfig(nonsense)}), "it does not even read them")
	})
}

func TestDialOptionsApplyHedgingPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts, err := hedge.DialOptions(experimental)
		require.NoError(t, err)
		assert.Equal(t, 5, experiment(t, 0, opts), "the first ten calls are not hedged")
		opts, err = hedge.DialOptions(experimental)
		require.NoError(t, err)
		assert.Equal(t, 8, experiment(t, 10, opts), "calls of which all are slow are no tail, and the budget is for tails")
		opts, err = hedge.DialOptions(experimental, hedge.WithBudgetPercent(400))
		require.NoError(t, err)
		assert.Equal(t, 15, experiment(t, 10, opts))
	})
}

func TestInterceptorLeavesHedgesToNativeHedging(t *testing.T) {
	assert.False(t, serviceconfig.HasNativeHedging("1.90.0"), "no version does yet")
	defer func() { serviceconfig.NativeHedgingSince = "" }()
	serviceconfig.NativeHedgingSince = "1.90.0"
	for version, want := range map[string]bool{"1.90.0": true, "1.90.1": true, "1.100.0": true, "2.0.0": true, "1.90.0-dev": true, "1.89.9": false, "1.85.0": false, "0.95.0": false} {
		assert.Equal(t, want, serviceconfig.HasNativeHedging(version), version)
	}

	serviceconfig.NativeHedgingSince = grpc.Version
	in := hedge.NewInterceptor(hedge.WithServiceConfig(hedgingPolicy(threeAt50)))
	most, why := in.Hedges(read)
	assert.Zero(t, most)
	assert.Equal(t, "gRPC hedges it, by methodConfig[0].hedgingPolicy", why)
}

func TestStreamsFollowServiceConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name  string
			plays []play
			want  int
			err   codes.Code
			took  time.Duration
		}{
			{"after each delay", []play{{takes: never}, {takes: never}, {takes: 10 * ms}}, 3, codes.OK, 110 * ms},
			{"a non-fatal failure", []play{{takes: 10 * ms, code: codes.Unavailable}, {takes: 10 * ms}}, 2, codes.OK, 20 * ms},
			{"a fatal failure", []play{{takes: 10 * ms, code: codes.NotFound}}, 1, codes.NotFound, 10 * ms},
			{"a fatal failure of a hedge", []play{{takes: 90 * ms}, {takes: 10 * ms, code: codes.NotFound}}, 2, codes.OK, 90 * ms},
			{"no more hedges", []play{{takes: 10 * ms, code: codes.Unavailable, pushback: "-1"}}, 1, codes.Unavailable, 10 * ms},
			{"all fail", []play{{takes: 10 * ms, code: codes.Unavailable}}, 3, codes.Unavailable, 30 * ms},
		} {
			opts, err := hedge.DialOptions(experimental, hedge.WithBudgetPercent(400))
			require.NoError(t, err)
			var mu sync.Mutex
			n := -20 // the calls to learn from
			client := servedAs(t, &servesAs{stream: func(s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
				mu.Lock()
				p := play{takes: usual}
				if n >= 0 {
					p = test.plays[min(n, len(test.plays)-1)]
				}
				n++
				mu.Unlock()
				if err := doubles.Sleep(s.Context(), p.takes); err != nil {
					return err
				}
				if p.pushback != "" {
					s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", p.pushback))
				}
				if p.code != codes.OK {
					return status.Error(p.code, "as told")
				}
				return s.Send(new(testpb.StreamingOutputCallResponse))
			}}, opts...)
			for range 20 {
				s, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
				require.NoError(t, err)
				_, err = s.Recv()
				require.NoError(t, err)
			}
			begin := time.Now()
			s, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
			require.NoError(t, err)
			_, err = s.Recv()
			assert.Equal(t, test.err, status.Code(err), test.name)
			assert.InDelta(t, test.took, time.Since(begin), float64(ms), test.name)
			for err == nil {
				_, err = s.Recv()
			}
			synctest.Wait()
			mu.Lock()
			assert.Equal(t, test.want, n, test.name)
			mu.Unlock()
		}
	})
}

// TestUnopenedStreamOfHedgeCanEndCall has a hedge whose stream cannot be opened. Its status ends the call.
func TestUnopenedStreamOfHedgeCanEndCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts, err := hedge.DialOptions(experimental, hedge.WithBudgetPercent(400), hedge.WithAnswerCodes(codes.Internal))
		require.NoError(t, err)
		refuse := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if md, _ := metadata.FromOutgoingContext(ctx); len(md["grpc-previous-rpc-attempts"]) > 0 {
				return nil, status.Error(codes.Internal, "no token")
			}
			return streamer(ctx, desc, cc, method, opts...)
		}
		takes := usual
		client := servedAs(t, &servesAs{stream: func(s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			_ = doubles.Sleep(s.Context(), takes)
			return s.Send(new(testpb.StreamingOutputCallResponse))
		}}, append(opts, grpc.WithChainStreamInterceptor(refuse))...)
		for range 20 {
			s, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
			require.NoError(t, err)
			_, err = s.Recv()
			require.NoError(t, err)
		}
		takes = 60 * ms
		var ends []error
		s, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest), grpc.OnFinish(func(err error) { ends = append(ends, err) }))
		require.NoError(t, err)
		_, err = s.Recv()
		assert.Equal(t, status.Error(codes.Internal, "no token"), err)
		assert.Empty(t, s.Trailer())
		_, again := s.Header()
		assert.Equal(t, err, again)
		_, again = s.Recv()
		assert.Equal(t, err, again)
		assert.Error(t, s.Context().Err())
		assert.NoError(t, s.CloseSend())
		synctest.Wait()
		assert.Equal(t, []error{err}, ends)
	})
}

// TestPushbackDoesNotDelayFailureWithoutHedge has a failed primary and a hedge that would not be sent: the failure is
// returned at once.
func TestPushbackDoesNotDelayFailureWithoutHedge(t *testing.T) {
	one := hedgingPolicy(threeAt50)
	pushed := play{5 * ms, codes.Unavailable, "900"}
	for name, test := range map[string]struct {
		config  string
		opts    []hedge.GRPCOption
		timeout time.Duration
	}{
		"shadow":                  {one, []hedge.GRPCOption{hedge.WithShadow()}, time.Minute},
		"throttled":               {strings.TrimSuffix(one, "}") + `, "retryThrottling": {"maxTokens": 1, "tokenRatio": 0.1}}`, nil, time.Minute},
		"the deadline is earlier": {one, nil, 800 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := playCall(t, "/a.B/Write", test.config, test.timeout, []play{pushed, {takes: 5 * ms}}, test.opts...)
				assert.Equal(t, outcome{[]time.Duration{0}, 5 * ms, "attempt 0"}, got)
			})
		})
	}
	t.Run("the budget is spent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := warmCaller(t, read, hedge.WithServiceConfig(one), hedge.WithBudgetPercent(1))
			held := 0
			for range 200 {
				var began []time.Duration
				begin := time.Now()
				_, err := c.get(t.Context(), played(begin, &began, pushed))
				assert.Error(t, err)
				if time.Since(begin) > 5*ms {
					held++
					assert.GreaterOrEqual(t, len(began), 2, "it was held for a hedge")
				}
			}
			assert.Less(t, held, 20)
		})
	})
}

// TestStreamReadLateSendsAtMostMaxAttempts calls RecvMsg long after the request was sent.
func TestStreamReadLateSendsAtMostMaxAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts, err := hedge.DialOptions(hedgingPolicy(`"maxAttempts": 2, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE"]`), hedge.WithBudgetPercent(400))
		require.NoError(t, err)
		var mu sync.Mutex
		var began []time.Time
		var plays []play
		client := servedAs(t, &servesAs{stream: func(s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			mu.Lock()
			p := plays[min(len(began), len(plays)-1)]
			began = append(began, time.Now())
			mu.Unlock()
			if err := doubles.Sleep(s.Context(), p.takes); err != nil {
				return err
			}
			if p.code != codes.OK {
				return status.Error(p.code, "as told")
			}
			return s.Send(new(testpb.StreamingOutputCallResponse))
		}}, opts...)
		call := func(late time.Duration) {
			began = nil
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
			require.NoError(t, err)
			time.Sleep(late)
			_, _ = s.Recv()
			cancel()
			synctest.Wait()
		}
		plays = []play{{takes: 200 * ms}}
		for range 30 {
			call(0)
		}
		plays = []play{{takes: 48 * ms, code: codes.Unavailable}, {takes: never}}
		call(45 * ms)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, began, 2, "maxAttempts")
		assert.Equal(t, 48*ms, began[1].Sub(began[0]))
	})
}

func TestInterceptorFollowsConfigOfResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := fixture.NewJournal()
		handle := hedge.NewInterceptor(hedge.WithDeclaredMethods(), hedge.WithBudgetPercent(400), hedge.WithLogger(slog.New(j)))
		f := grpctest.NewBackends(t, 1)
		cc := grpctest.Dial(t, "fleet:///", grpc.WithResolvers(handle.Resolver(f.Resolver)), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return f.Network.Host("client").DialContext(ctx, "tcp", addr)
		}))
		f.Resolver.InitialState(resolver.State{Addresses: f.Addrs})
		grpctest.Connect(t, cc)
		sent := func() int {
			i := &invoker{answer: in(300 * ms)}
			require.NoError(t, handle.Unary()(t.Context(), read, nil, new(wrapperspb.StringValue), cc, i.invoke))
			return i.n
		}
		assert.Equal(t, 1, sent())
		update := func(text string) error {
			return f.Resolver.CC().UpdateState(resolver.State{Addresses: f.Addrs, ServiceConfig: f.Resolver.CC().ParseServiceConfig(text)})
		}
		require.NoError(t, update(hedgingPolicy(threeAt50)))
		learn(t, handle, cc)
		assert.Equal(t, 3, sent())
		assert.Equal(t, "methodConfig[0].hedgingPolicy of the resolver", handle.Snapshot().Keys[0].Policy)
		j.Take()
		assert.Error(t, update(hedgingPolicy(`"maxAttempts": 0`)))
		assert.Equal(t, 3, sent())
		lines := j.Take()
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], `WARN "service config refused"`)
		assert.Contains(t, lines[0], "hedgingPolicy.maxAttempts: 0 is not an integer above 1")
		require.NoError(t, f.Resolver.CC().UpdateState(resolver.State{Addresses: f.Addrs}))
		assert.Equal(t, 3, sent(), "as in gRPC, no config leaves the last one in force")
		require.NoError(t, update("{}"))
		assert.Equal(t, 1, sent())
	})
}
