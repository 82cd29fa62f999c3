package main

import (
	"context"
	"io"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cristalhq/hedgedhttp"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/published"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/race"
)

// A contender is a strategy with a client, connections and a server of its own.
type contender struct {
	strategy strategy
	hidden   bool // runs for the oracles' sake
	backend  *backend
	request  func(ctx context.Context, id int) (attempt int, err error)
	refused  func() int // hedges
	shut     func()
	sent     []atomic.Int32  // attempts, by request
	delays   []time.Duration // of an oracle; set between rounds
	watch    stopwatch
	calls    []virtual.Call // by request
	done     int            // of them
	used     time.Duration  // processor time
	task     *task
}

// newContender connects a strategy. rate is what published-told is told.
func newContender(s strategy, protocol string, model virtual.Model, seed uint64, requests int, rate float64) (*contender, error) {
	b, err := newBackend(protocol, model, seed, requests)
	if err != nil {
		return nil, err
	}
	c := &contender{
		strategy: s, backend: b, refused: func() int { return 0 },
		sent: make([]atomic.Int32, requests), calls: make([]virtual.Call, requests),
	}
	if s.fixed() > 0 {
		c.delays = []time.Duration{s.fixed()}
	}
	if protocol == "grpc" {
		err = c.dial(rate)
	} else {
		err = c.connect(rate)
	}
	if err != nil {
		b.stop()
		return nil, err
	}
	return c, nil
}

func (c *contender) close() {
	c.shut()
	c.backend.stop()
}

// connect makes the contender's HTTP client.
func (c *contender) connect(rate float64) error {
	base := &http.Transport{MaxIdleConnsPerHost: 256}
	c.shut = base.CloseIdleConnections
	var counted http.RoundTripper = &countedTransport{base, c.sent}
	rt := counted
	var err error
	switch name := c.strategy.name; {
	case c.strategy.isOurs():
		t := hedge.New(counted, c.options()...)
		rt = t
		c.refused = func() (n int) {
			for _, k := range t.Snapshot().Keys {
				d := k.Denied
				n += int(d.Budget + d.Slow + d.Paused + d.Deadline + d.InFlight + d.NotReady)
			}
			return n
		}
	case name == "static-10ms" || name == "static-50ms":
		rt, err = hedgedhttp.NewRoundTripper(c.strategy.fixed(), 2, counted)
	case name == "failsafe-10ms" || name == "failsafe-quantile":
		rt = failsafehttp.NewRoundTripper(counted, failsafe[*http.Response](c))
	case name == "published" || name == "published-told":
		rt = &published.RoundTripper{Policy: c.published(rate), Clock: c.watch.read, Next: counted}
	}
	if err != nil {
		return err
	}
	client := &http.Client{Transport: rt}
	url := "http://" + c.backend.addr() + "/"
	c.request = func(ctx context.Context, id int) (int, error) { return get(ctx, client, url, id) }
	if c.strategy.isOracle() {
		// As our transport does over HTTP/1.1: losers finish, so that their connections stay open.
		c.schedule(race.Style{Detach: true, Linger: &race.Linger{Grace: time.Second, Max: 512}})
	}
	return nil
}

// dial makes the contender's gRPC client.
func (c *contender) dial(rate float64) error {
	var chain []grpc.UnaryClientInterceptor
	switch name := c.strategy.name; {
	case c.strategy.isOurs():
		var stats *hedge.Stats
		chain = append(chain, hedge.NewUnaryClientInterceptor(append(c.options(), hedge.WithStats(&stats))...))
		c.refused = func() int { return int(stats.BudgetExhausted.Load()) }
	case name == "failsafe-10ms" || name == "failsafe-quantile":
		chain = append(chain, failsafegrpc.NewUnaryClientInterceptor(failsafe[*wrapperspb.Int64Value](c)))
	case name == "published" || name == "published-told":
		chain = append(chain, published.UnaryClientInterceptor(c.published(rate), c.watch.read))
	}
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		c.sent[req.(*wrapperspb.Int64Value).Value].Add(1)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	conn, err := grpc.NewClient(c.backend.addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(append(chain, count)...))
	if err != nil {
		return err
	}
	c.shut = func() { _ = conn.Close() }
	c.request = func(ctx context.Context, id int) (int, error) {
		reply := new(wrapperspb.Int64Value)
		err := conn.Invoke(ctx, delayMethod, wrapperspb.Int64(int64(id)), reply)
		return int(reply.Value), err
	}
	if c.strategy.isOracle() || c.strategy.name == "static-10ms" || c.strategy.name == "static-50ms" {
		c.schedule(race.Style{})
	}
	return nil
}

func (c *contender) options() []hedge.Option {
	if c.strategy.hedges < 0 {
		return nil
	}
	return []hedge.Option{hedge.WithMaxHedges(c.strategy.hedges)}
}

func (c *contender) published(rate float64) *published.Policy {
	if c.strategy.name == "published" {
		rate = published.DefaultRPS
	}
	p := published.New(rate)
	c.refused = p.Refused
	return p
}

// failsafe is failsafe-go's policy with its budget.
func failsafe[R any](c *contender) hedgepolicy.HedgePolicy[R] {
	var refused atomic.Int64
	c.refused = func() int { return int(refused.Load()) }
	limit := budget.NewBuilder().OnBudgetExceeded(func(budget.ExceededEvent) { refused.Add(1) }).Build()
	if d := c.strategy.fixed(); d > 0 {
		return hedgepolicy.NewBuilderWithDelay[R](d).WithBudget(limit).Build()
	}
	return hedgepolicy.NewBuilderWithDelayQuantile[R](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).
		WithBudget(limit).Build()
}

// schedule makes the contender race its requests after its delays, without a budget.
func (c *contender) schedule(style race.Style) {
	request := c.request
	c.request = func(ctx context.Context, id int) (int, error) {
		var r race.Race[int]
		out := r.Run(ctx, op(func(ctx context.Context) (int, error) { return request(ctx, id) }), open{}, c.delays, style)
		out.Attempt.Release()
		return out.Value, out.Err
	}
}

// op is what is raced; its answers need no care.
type op func(context.Context) (int, error)

func (f op) Attempt(a *race.Attempt, _ int) (int, error) { return f(a) }
func (op) Discard(int, error)                            {}

// open is a gate that admits every hedge.
type open struct{}

func (open) Admit(int) bool { return true }

// get sends a request and returns which of its attempts answered.
func get(ctx context.Context, client *http.Client, url string, id int) (attempt int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set(requestHeader, strconv.Itoa(id))
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(body))
}

// countedTransport counts the attempts of each request.
type countedTransport struct {
	next http.RoundTripper
	sent []atomic.Int32
}

func (t *countedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if id, err := strconv.Atoi(req.Header.Get(requestHeader)); err == nil {
		t.sent[id].Add(1)
	}
	return t.next.RoundTrip(req)
}

// CloseIdleConnections closes those of the transport below.
func (t *countedTransport) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}

// A stopwatch runs while its contender does, and not while others have their turn.
type stopwatch struct {
	mu    sync.Mutex
	ran   time.Duration
	since time.Time // zero: stopped
}

func (w *stopwatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = time.Now()
}

func (w *stopwatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran += time.Since(w.since)
	w.since = time.Time{}
}

func (w *stopwatch) read() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return w.ran
	}
	return w.ran + time.Since(w.since)
}

// round sends the next n requests: from as many callers as there are workers,
// or, if there are none, at random times at the given rate.
func (c *contender) round(ctx context.Context, n int, w virtual.World, arrivals *virtual.Draws) {
	runtime.GC() // each contender pays for its own garbage
	before, _ := cputime.Used()
	c.watch.start()
	defer func() {
		c.watch.stop()
		after, _ := cputime.Used()
		c.used += after - before
	}()
	from, to := c.done, min(c.done+n, len(c.calls))
	var wg sync.WaitGroup
	defer wg.Wait()
	if w.Workers == 0 {
		due := time.Now()
		for id := from; id < to && ctx.Err() == nil; id++ {
			due = due.Add(arrivals.Gap(id, w.Rate))
			time.Sleep(time.Until(due))
			wg.Go(func() { c.call(id) })
			c.done = id + 1
		}
		return
	}
	var next atomic.Int64
	next.Store(int64(from))
	for range w.Workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				id := int(next.Add(1)) - 1
				if id >= to {
					return
				}
				c.call(id)
			}
		})
	}
	wg.Wait()
	c.done = min(int(next.Load()), to)
}

// call makes request id and notes what its caller saw. It is not interrupted:
// the request would count as a failure.
func (c *contender) call(id int) {
	call := virtual.Call{Index: int32(id), Start: c.watch.read()}
	start := time.Now()
	attempt, err := c.request(context.Background(), id)
	call.Latency = time.Since(start)
	call.Winner = int8(min(attempt, math.MaxInt8))
	if err != nil {
		call.Winner = -1
	}
	c.calls[id] = call
}

// finished returns the calls that were made.
func (c *contender) finished() []virtual.Call {
	calls := c.calls[:c.done]
	for i := range calls {
		calls[i].Hedges = uint8(max(c.sent[i].Load()-1, 0))
	}
	return calls
}

// trial returns what came of the contender.
func (c *contender) trial(protocol string, sc scenario, seed uint64) trial {
	t := trial{engine: protocol, scenario: sc, strategy: c.strategy.name, seed: seed, calls: c.finished(), refused: c.refused()}
	conns := int(c.backend.opened.Load())
	t.conns = &conns
	if _, known := cputime.Used(); known && c.done > 0 {
		each := round(float64(c.used.Microseconds()) / float64(c.done))
		t.cpu = &each
	}
	return t
}
