// Limiter measures over real sockets what a hedge.Limiter does for servers that are busy.
//
//	go run ./benchmark/limiter
//
// Twenty servers on loopback work on one request at a time, and finish what they have begun
// though its caller has gone. Requests arrive at random, for a server at random, 80 % of what
// the servers can do. The work of a request is a timer, not computing: it takes the same
// time on a machine that is busy. It is lognormal, 5 ms ± 2 ms, and one request in twenty
// takes ten times as long. All strategies meet the same requests, in turns, so that what
// disturbs the machine disturbs all of them:
//
//	none      no hedging
//	hedge     hedge.New, or hedge.NewUnaryClientInterceptor, with no option set
//	limited   the same, and a Limiter before each server's handler
//
// It prints a line for each protocol and strategy (latencies in milliseconds), and then for
// each protocol how far hedging with Limiters is from what it promises. On a machine so busy
// that timers are late, all figures are too high; it prints how late they were, and
// TestHedgingBehindLimitersKeepsItsPromises does the same in fake time. With -slow 10,
// all work takes ten times as long, and there are a tenth of the requests per second.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/conncount"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

const (
	servers = 20
	mean    = 7250 * time.Microsecond // of the work of a request
	rounds  = 5                       // turns of each strategy; the first is to warm up
	tooMany = 5000                    // calls under way: ten times what a queue at 80 % load has at its worst
)

var (
	protocols  = []string{"http1", "http2", "grpc"}
	strategies = []string{"none", "hedge", "limited"}
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "limiter:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("limiter", flag.ContinueOnError)
	w := world{dial: new(net.Dialer).DialContext, listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }}
	fs.Float64Var(&w.load, "load", 0.8, "`share` of what the servers can do, above 0 and below 1")
	fs.DurationVar(&w.lasts, "d", 20*time.Second, "how long each strategy plays, a fifth of it to warm up")
	fs.Uint64Var(&w.seed, "seed", 1, "`number` that all random draws follow from")
	fs.Float64Var(&w.slow, "slow", 1, "`factor` by which all work takes longer, and requests are fewer")
	chosen := fs.String("protocol", strings.Join(protocols, ","), "comma-separated `names` of protocols")
	if err := fs.Parse(args); err != nil {
		return err
	}
	names := strings.Split(*chosen, ",")
	for _, name := range names {
		if !slices.Contains(protocols, name) {
			return fmt.Errorf("-protocol %q: must be %s", name, strings.Join(protocols, ", "))
		}
	}
	switch {
	case !(w.load > 0 && w.load < 1):
		return fmt.Errorf("-load %v: must be above 0 and below 1", w.load)
	case !(w.slow >= 1 && w.slow <= 1000):
		return fmt.Errorf("-slow %v: must be between 1 and 1000", w.slow)
	case w.lasts < time.Second:
		return fmt.Errorf("-d %v: must be 1s or more", w.lasts)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "protocol\tstrategy\tcalls\tfailed\tp50\tp99\tp99.9\thedges %\tworked/call\tleft\trefused\tconns\tlate p99\t")
	var said []string
	for _, protocol := range names {
		found, err := w.measure(protocol)
		if err != nil {
			return err
		}
		for _, strategy := range strategies {
			r := found[strategy]
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.3f\t%d\t%d\t%d\t%.1f\t\n", protocol, strategy, r.calls, r.failed,
				r.quantile(0.5), r.quantile(0.99), r.quantile(0.999), 100*r.share(r.hedges), r.share(r.worked), r.left, r.refused, r.conns, r.late)
		}
		none, hedged, limited := found["none"], found["hedge"], found["limited"]
		said = append(said, fmt.Sprintf("%s: p99 is %.2f × that without hedging (promised: 0.75; without Limiters %.2f); requests worked on, %.3f × the calls (1.03); "+
			"connections beyond those without hedging, %.2f × the losers that left the queue (1.1)",
			protocol, limited.quantile(0.99)/none.quantile(0.99), hedged.quantile(0.99)/none.quantile(0.99), limited.share(limited.worked),
			float64(max(limited.conns-none.conns, 0))/float64(max(limited.left, 1))))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", strings.Join(said, "\n"))
	return err
}

// A world is the same for all strategies.
type world struct {
	load  float64
	slow  float64
	lasts time.Duration
	seed  uint64

	listen func() (net.Listener, error)
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}

// A result is what one strategy did. All calls count but in took.
type result struct {
	calls, failed        int
	took                 []time.Duration // by the calls that were measured, sorted
	hedges, worked       int64
	left, refused, conns int64
	late                 float64 // p99 of the timers of servers, in ms
}

func (r result) quantile(q float64) float64 { return float64(virtual.Quantile(r.took, q)) / 1e6 }

func (r result) share(n int64) float64 { return float64(n) / float64(max(r.calls, 1)) }

// A service is the servers that one strategy has.
type service struct {
	addrs    []string
	limiters []*hedge.Limiter // one for each server; nil: it waits for its turn, deaf to its caller
	worked   atomic.Int64
	conns    atomic.Int64
	stop     []func()

	mu   sync.Mutex
	late []time.Duration
}

// turn works on a request when it is its turn.
func (s *service) turn(line *semaphore.Weighted, work time.Duration) {
	if line != nil {
		_ = line.Acquire(context.Background(), 1) // a context that does not end
		defer line.Release(1)
	}
	s.worked.Add(1)
	begun := time.Now()
	time.Sleep(work)
	late := time.Since(begun) - work
	s.mu.Lock()
	s.late = append(s.late, late)
	s.mu.Unlock()
}

// workHeader says how long a request takes.
const workHeader = "X-Work"

// open starts a server.
func (s *service) open(protocol string, limited bool, w world) error {
	listener, err := w.listen()
	if err != nil {
		return err
	}
	var line *semaphore.Weighted
	var limiter *hedge.Limiter
	if limited {
		limiter = hedge.NewLimiter(1)
		s.limiters = append(s.limiters, limiter)
	} else {
		line = semaphore.NewWeighted(1)
	}
	s.addrs = append(s.addrs, listener.Addr().String())
	counted := conncount.Listener{Listener: listener, Accepted: &s.conns}
	if protocol == "grpc" {
		var opts []grpc.ServerOption
		if limited {
			opts = append(opts, grpc.UnaryInterceptor(limiter.UnaryServer()))
		}
		srv := grpc.NewServer(opts...)
		srv.RegisterService(&workService, &worker{s, line})
		s.stop = append(s.stop, srv.Stop)
		go func() { _ = srv.Serve(counted) }() // until stopped
		return nil
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work, _ := time.ParseDuration(r.Header.Get(workHeader))
		s.turn(line, work)
		_, _ = io.WriteString(w, "done")
	})
	if limited {
		h = limiter.Handler(h)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	s.stop = append(s.stop, func() { _ = srv.Close() })
	go func() { _ = srv.Serve(counted) }() // until closed
	return nil
}

func (s *service) close() {
	for _, stop := range s.stop {
		stop()
	}
}

// worker is a gRPC server.
type worker struct {
	service *service
	line    *semaphore.Weighted
}

// workMethod promises by its name that it is safe to repeat.
const workMethod = "/benchmark.Work/Get"

var workService = grpc.ServiceDesc{
	ServiceName: "benchmark.Work",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Get",
		Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			request := new(wrapperspb.Int64Value)
			if err := decode(request); err != nil {
				return nil, err
			}
			handle := func(context.Context, any) (any, error) {
				w := srv.(*worker)
				w.service.turn(w.line, time.Duration(request.Value))
				return wrapperspb.Int64(0), nil
			}
			if intercept == nil {
				return handle(ctx, request)
			}
			return intercept(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: workMethod}, handle)
		},
	}},
}

// measure puts the strategies into the world, in turns.
func (w world) measure(protocol string) (map[string]result, error) {
	rate := w.load * servers / mean.Seconds() / w.slow
	each := int(rate * w.lasts.Seconds() / rounds)
	var all []*contender
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	for _, strategy := range strategies {
		c := &contender{strategy: strategy, took: make([]time.Duration, rounds*each)}
		all = append(all, c)
		if err := c.open(protocol, w); err != nil {
			return nil, err
		}
	}
	gaps := virtual.NewDraws(w.seed)
	for round := range rounds {
		for i := range all { // another one begins each time
			c := all[(i+round)%len(all)]
			if !c.play(round*each, (round+1)*each, func(id int) time.Duration { return gaps.Gap(id, rate) }) {
				return nil, fmt.Errorf("%s, %s: %d calls are under way: this machine is too busy, see -slow", protocol, c.strategy, tooMany)
			}
		}
	}
	found := make(map[string]result)
	for _, c := range all {
		found[c.strategy] = c.result(each)
	}
	return found, nil
}

// A contender is a strategy with servers and a client of its own.
type contender struct {
	strategy string
	service  service
	stats    *hedge.Stats // nil: it does not hedge
	call     func(context.Context) error
	shut     func()
	took     []time.Duration // by each call; -1: it failed
}

func (c *contender) open(protocol string, w world) (err error) {
	for range servers {
		if err := c.service.open(protocol, c.strategy == "limited", w); err != nil {
			return err
		}
	}
	work := virtual.Stragglers(virtual.Lognormal(5*time.Millisecond, 2*time.Millisecond), 0.05, 10)
	draw := &draws{seed: w.seed, model: virtual.Times(work, w.slow)}
	if protocol == "grpc" {
		c.call, c.shut, err = c.service.overGRPC(c.strategy != "none", draw, &c.stats, w)
	} else {
		c.call, c.shut = c.service.overHTTP(protocol, c.strategy != "none", draw, &c.stats, w)
	}
	return err
}

func (c *contender) close() {
	if c.shut != nil {
		c.shut()
	}
	c.service.close()
}

// play makes calls, and returns when all have ended. It reports false if there were too many at once.
func (c *contender) play(from, to int, gap func(int) time.Duration) bool {
	var (
		all  sync.WaitGroup
		busy atomic.Int64
		due  = time.Now()
	)
	defer all.Wait()
	for id := from; id < to; id++ {
		if busy.Load() > tooMany {
			return false
		}
		due = due.Add(gap(id))
		time.Sleep(time.Until(due))
		busy.Add(1)
		all.Go(func() {
			defer busy.Add(-1)
			begun := time.Now()
			if err := c.call(context.WithValue(context.Background(), idKey{}, id)); err != nil {
				c.took[id] = -1
				return
			}
			c.took[id] = time.Since(begun)
		})
	}
	return true
}

// result returns what the strategy did. The first calls do not count for what calls took.
func (c *contender) result(warm int) result {
	s := &c.service
	r := result{calls: len(c.took), worked: s.worked.Load(), conns: s.conns.Load()}
	for id, d := range c.took {
		switch {
		case d < 0:
			r.failed++
		case id >= warm:
			r.took = append(r.took, d)
		}
	}
	slices.Sort(r.took)
	if c.stats != nil {
		r.hedges = c.stats.HedgesSent.Load()
	}
	for _, l := range s.limiters {
		n := l.Snapshot()
		r.left, r.refused = r.left+n.Left, r.refused+n.Refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.late)
	r.late = float64(virtual.Quantile(s.late, 0.99)) / 1e6
	return r
}

// idKey is the key of a call's number in its context.
type idKey struct{}

// draws are the server and the work of each attempt.
type draws struct {
	seed  uint64
	model virtual.Model
	pool  sync.Pool // of *virtual.Draws
}

func (d *draws) of(ctx context.Context) (server int, work time.Duration) {
	id, _ := ctx.Value(idKey{}).(int)
	a, _ := hedge.AttemptFromContext(ctx)
	own, ok := d.pool.Get().(*virtual.Draws)
	if !ok {
		own = virtual.NewDraws(d.seed)
	}
	defer d.pool.Put(own)
	work = d.model(own, virtual.Attempt{Request: id, N: a.Number})
	return rand.New(rand.NewPCG(d.seed, uint64(id)<<2|uint64(a.Number))).IntN(servers), work
}

// overHTTP returns a client.
func (s *service) overHTTP(protocol string, hedges bool, draw *draws, stats **hedge.Stats, w world) (call func(context.Context) error, shut func()) {
	base := &http.Transport{DialContext: w.dial, MaxIdleConnsPerHost: 512, Protocols: new(http.Protocols)}
	if protocol == "http2" {
		base.Protocols.SetUnencryptedHTTP2(true)
	} else {
		base.Protocols.SetHTTP1(true)
	}
	var rt http.RoundTripper = balancer{s, base, draw}
	if hedges {
		rt = hedge.New(rt, hedge.WithStats(stats))
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://service/", nil)
		if err != nil {
			return err
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
		return err
	}, base.CloseIdleConnections
}

// balancer sends each attempt to a server at random.
type balancer struct {
	service *service
	base    http.RoundTripper
	draw    *draws
}

func (b balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	server, work := b.draw.of(req.Context())
	req = req.Clone(req.Context())
	req.URL.Host = b.service.addrs[server]
	req.Header.Set(workHeader, work.String())
	return b.base.RoundTrip(req)
}

// overGRPC returns a client.
func (s *service) overGRPC(hedges bool, draw *draws, stats **hedge.Stats, w world) (call func(context.Context) error, shut func(), err error) {
	var conns []*grpc.ClientConn
	shut = func() {
		for _, cc := range conns {
			_ = cc.Close()
		}
	}
	for _, addr := range s.addrs {
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return w.dial(ctx, "tcp", addr) }))
		if err != nil {
			shut()
			return nil, nil, err
		}
		cc.Connect()
		conns = append(conns, cc)
	}
	balance := func(ctx context.Context, method string, _, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		server, work := draw.of(ctx)
		return conns[server].Invoke(ctx, method, wrapperspb.Int64(int64(work)), reply, opts...)
	}
	intercept := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return next(ctx, method, req, reply, cc, opts...)
	}
	if hedges {
		intercept = hedge.NewUnaryClientInterceptor(hedge.WithStats(stats))
	}
	return func(ctx context.Context) error {
		return intercept(ctx, workMethod, new(wrapperspb.Int64Value), new(wrapperspb.Int64Value), nil, balance)
	}, shut, nil
}
