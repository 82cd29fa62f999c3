package main

import (
	"context"
	"io"
	"math"
	"net"
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
	protocol string
	lab      *lab // nil: loopback
	fake     bool // time
	world    virtual.World
	seed     uint64
	rate     float64 // what published-told is told
	hidden   bool    // runs for the oracles' sake

	// From open to close.
	backend *backend
	request func(ctx context.Context, id int) (attempt int, err error)
	refused func() int // hedges
	shut    func()

	sent   []atomic.Int32  // attempts, by request
	won    []atomic.Int32  // the attempt that did, by request; nil: the server says it
	delays []time.Duration // of an oracle; set between rounds
	watch  stopwatch
	calls  []virtual.Call // by request
	done   int            // of them
	used   time.Duration  // processor time
	denied int            // hedges, by clients that are closed
	opened int            // connections, to servers that are closed
	task   *task
}

// newContender connects a strategy. rate is what published-told is told.
func newContender(s strategy, protocol string, j job, w virtual.World, requests int, rate float64) (*contender, error) {
	c := &contender{
		strategy: s, protocol: protocol, lab: j.scenario.lab, fake: j.fake, world: w, seed: j.seed, rate: rate,
		sent: make([]atomic.Int32, requests), calls: make([]virtual.Call, requests),
	}
	if s.fixed() > 0 {
		c.delays = []time.Duration{s.fixed()}
	}
	return c, c.open()
}

// episode returns the number of requests that one client makes.
func (c *contender) episode() int {
	if c.world.Episodes > 0 {
		return c.world.Requests
	}
	return len(c.calls)
}

// open starts a server and a client.
func (c *contender) open() error {
	var at *site
	var err error
	if c.lab != nil {
		at, err = c.lab.site(c.protocol, c.done/c.episode(), c.watch.read)
		if err == nil && !c.fake {
			at.net.Precise()
		}
	} else {
		at, err = loopbackSite()
	}
	if err != nil {
		return err
	}
	c.backend, c.refused, c.shut = newBackend(c, at), func() int { return 0 }, func() {}
	if c.protocol == "grpc" {
		err = c.dial()
	} else {
		err = c.connect()
	}
	if err != nil {
		c.close()
	}
	return err
}

// close ends what open started, if that is not done.
func (c *contender) close() {
	if c.backend == nil {
		return
	}
	c.denied += c.refused()
	c.opened += int(c.backend.opened.Load())
	c.shut()
	c.backend.stop()
	c.backend.site.close()
	c.backend = nil
}

// connect makes the contender's HTTP client.
func (c *contender) connect() error {
	at := c.backend.site
	base := &http.Transport{MaxIdleConnsPerHost: 256}
	scheme := "http://"
	if at.net != nil {
		base.DialContext = at.dial
	}
	if at.trust != nil {
		base.TLSClientConfig, base.ForceAttemptHTTP2, scheme = at.trust.Clone(), true, "https://"
	}
	url := scheme + at.addr + "/"
	c.shut = base.CloseIdleConnections
	var counted http.RoundTripper = &countedTransport{base, c.sent}
	rt := counted
	var err error
	switch name := c.strategy.name; {
	case c.strategy.isOurs():
		next := counted
		if c.lab != nil {
			next = base // which it must know to use all it can do
		}
		t := hedge.New(next, c.options(base)...)
		rt, c.shut = t, t.CloseIdleConnections
		if name == "hedge-warm" {
			err = t.Warm(context.Background(), 1, url)
		}
		c.refused = func() (n int) {
			for _, k := range t.Snapshot().Keys {
				for _, denied := range k.Denied {
					n += int(denied)
				}
			}
			return n
		}
	case name == "static-10ms" || name == "static-50ms":
		rt, err = hedgedhttp.NewRoundTripper(c.strategy.fixed(), 2, counted)
	case name == "failsafe-10ms" || name == "failsafe-quantile":
		rt = failsafehttp.NewRoundTripper(counted, failsafe[*http.Response](c))
	case name == "published" || name == "published-told":
		rt = &published.RoundTripper{Policy: c.published(), Clock: c.watch.read, Next: counted}
	}
	if err != nil {
		return err
	}
	client := &http.Client{Transport: rt}
	c.request = func(ctx context.Context, id int) (int, error) { return get(ctx, client, url, id) }
	if c.strategy.isOracle() {
		// As our transport does over HTTP/1.1: losers finish, so that their connections stay open.
		c.schedule(race.Style{Detach: true, Linger: &race.Linger{Max: 512}, Grace: time.Second})
	}
	return nil
}

// dial makes the contender's gRPC client.
func (c *contender) dial() error {
	at := c.backend.site
	connect := func(dial func(context.Context, string, string) (net.Conn, error), chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error) {
		opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(chain...)}
		if at.net != nil {
			opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }))
		}
		conn, err := grpc.NewClient("passthrough:///"+at.addr, opts...)
		if err == nil {
			shut := c.shut
			c.shut = func() { shut(); _ = conn.Close() }
		}
		return conn, err
	}
	var chain []grpc.UnaryClientInterceptor
	switch name := c.strategy.name; {
	case c.strategy.isOurs():
		var stats *hedge.Stats
		opts := c.options(nil)
		if c.strategy.name == "hedge-conn" {
			apart, err := connect(at.from(detour))
			if err != nil {
				return err
			}
			opts = append(opts, hedge.WithHedgeConn(apart))
		}
		chain = append(chain, hedge.NewUnaryClientInterceptor(append(opts, hedge.WithStats(&stats))...))
		c.refused = func() int { return int(stats.BudgetExhausted.Load()) }
	case name == "failsafe-10ms" || name == "failsafe-quantile":
		chain = append(chain, failsafegrpc.NewUnaryClientInterceptor(failsafe[*wrapperspb.Int64Value](c)))
	case name == "published" || name == "published-told":
		chain = append(chain, published.UnaryClientInterceptor(c.published(), c.watch.read))
	}
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if c.won == nil { // else they are counted by the tally
			c.sent[req.(*wrapperspb.Int64Value).Value].Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	conn, err := connect(at.dial, append(chain, count)...)
	if err != nil {
		return err
	}
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

// options returns what makes our contender of the library.
func (c *contender) options(base http.RoundTripper) []hedge.Option {
	var opts []hedge.Option
	if c.strategy.hedges >= 0 {
		opts = append(opts, hedge.WithMaxHedges(c.strategy.hedges))
	}
	switch c.strategy.name {
	case "hedge-first-byte":
		opts = append(opts, hedge.WithFirstByte(), hedge.WithBudgetPercent(11.5))
	case "hedge-first-byte-10":
		opts = append(opts, hedge.WithFirstByte())
	case "hedge-one-pool":
		opts = append(opts, hedge.WithHedgeTransport(base))
	case "hedge-replicas-2s":
		opts = append(opts, hedge.WithReplicas(c.backend.site))
	case "hedge-replicas":
		opts = append(opts, hedge.WithReplicas(c.backend.site), hedge.WithBurst(10*sec))
	}
	if c.lab != nil {
		if c.won == nil {
			c.won = make([]atomic.Int32, len(c.calls))
		}
		opts = append(opts, hedge.WithObserver(&tally{c: c}))
	}
	return opts
}

// tally counts the attempts of each request where nothing can come between the
// library and its transport, or its connections.
type tally struct {
	hedge.NopObserver
	c *contender
}

func (t *tally) AttemptStart(ctx context.Context, _ hedge.KeyInfo, _ hedge.AttemptInfo) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.c.sent[id].Add(1)
	}
}

func (t *tally) RequestDone(ctx context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.c.won[id].Store(int32(r.Winner))
	}
}

// requestKey is the key of a request's number in its context.
type requestKey struct{}

func (c *contender) published() *published.Policy {
	rate := c.rate
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
func (open) Ended(int)      {}

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

// round sends the next n requests, with a new client for each episode.
func (c *contender) round(ctx context.Context, n int, arrivals *virtual.Draws) error {
	runtime.GC() // each contender pays for its own garbage
	to := min(c.done+n, len(c.calls))
	for c.done < to && ctx.Err() == nil {
		if c.done > 0 && c.done%c.episode() == 0 {
			c.close()
			if err := c.open(); err != nil {
				return err
			}
		}
		at, stop := c.done%c.episode(), c.episode()
		if c.lab != nil && at < c.lab.freeze {
			stop = c.lab.freeze
		}
		c.play(ctx, min(to, c.done-at+stop), arrivals)
	}
	return nil
}

// play sends requests until so many are done: from as many callers as there are
// workers, or, if there are none, at random times at the world's rate.
func (c *contender) play(ctx context.Context, to int, arrivals *virtual.Draws) {
	before, _ := cputime.Used()
	c.watch.start()
	defer func() {
		c.watch.stop()
		after, _ := cputime.Used()
		c.used += after - before
	}()
	if w := &c.world; w.Episodes > 0 && c.done%w.Requests == 0 {
		c.call(c.done) // alone, for clients to have one connection, if they can share it
		c.done++
	}
	from := c.done
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.world.Workers == 0 {
		due := time.Now()
		for id := from; id < to && ctx.Err() == nil; id++ {
			due = due.Add(arrivals.Gap(id, c.world.Rate))
			time.Sleep(time.Until(due))
			wg.Go(func() { c.call(id) })
			c.done = id + 1
		}
		return
	}
	var next atomic.Int64
	next.Store(int64(from))
	for range c.world.Workers {
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
	call := virtual.Call{Index: int32(id % c.episode()), Start: c.watch.read()}
	ctx := context.Background()
	if c.lab != nil {
		ctx = context.WithValue(ctx, requestKey{}, id)
		if n := len(c.lab.rtts); n > 0 {
			call.Host = int16(id / c.episode() % n)
		}
	}
	if c.world.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.world.Timeout)
		defer cancel()
	}
	start := time.Now()
	attempt, err := c.request(ctx, id)
	call.Latency = time.Since(start)
	if c.won != nil {
		attempt = int(c.won[id].Load())
	}
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

// trial returns what came of the contender, which is closed.
func (c *contender) trial(protocol string, sc scenario, seed uint64) trial {
	t := trial{engine: protocol, scenario: sc, strategy: c.strategy.name, seed: seed, calls: c.finished(), refused: c.denied}
	t.conns = &c.opened
	if _, known := cputime.Used(); known && c.done > 0 {
		each := round(float64(c.used.Microseconds()) / float64(c.done))
		t.cpu = &each
	}
	return t
}
