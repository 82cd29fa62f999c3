// Package endpointlab sends calls to endpoints that answer alike, side by side: always to one of them, to the next one after an error, and by
// hedge.WithEndpoints. Something is wrong with some of the endpoints, some of the time.
//
// Time is fake, by testing/synctest: no machine disturbs the figures. The library is the real one, and the endpoints are functions. How long an attempt takes
// follows from the seed, its call, its endpoint, and how often that endpoint had the call before: all contenders have the same arrivals, and meet the same.
package endpointlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

const (
	Calls    = 12_000          // of a contender, unless Config says otherwise
	Patience = 2 * time.Second // of a call; one that fails counts as long
	Share    = 0.1             // of the budget
)

// Config says what to measure.
type Config struct {
	World      string   // one of Worlds
	Contenders []string // some of Contenders; empty: all
	Calls      int      // of each contender; 0: Calls
	Seed       uint64
}

// A Row is what was measured of a contender.
type Row struct {
	Contender string

	// Calls are in the order in which they came. Those that failed have no winner of -1, but the latency Patience.
	Calls    []latency.Call
	Failures int
	Tokens   int // what the hedges cost
}

// Burst is how many tokens the budgets of a contender's endpoints hold together: each those of the requests of two seconds, of which it counts 100
// and a tenth of doubt, or twice what the dearest hedge costs.
func Burst(world, name string) int {
	return len(worldOf(world).endpoints) * max(2*110*Share, 2*contenders[slices.Index(Contenders, name)].cost)
}

// Run measures, in the time of its caller: that of a bubble, or real time. If ctx ends, what was measured until then is returned with its error.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	w := worldOf(conf.World)
	switch {
	case w == nil:
		return nil, fmt.Errorf("endpointlab: world %q; want one of %s", conf.World, strings.Join(Worlds, ", "))
	case conf.Calls < 0:
		return nil, fmt.Errorf("endpointlab: Calls is %d, want at least 0", conf.Calls)
	case conf.Calls == 0:
		conf.Calls = Calls
	}
	if len(conf.Contenders) == 0 {
		conf.Contenders = Contenders
	}
	rows := make([]Row, len(conf.Contenders))
	var all sync.WaitGroup
	for n, name := range conf.Contenders {
		at := slices.Index(Contenders, name)
		if at < 0 {
			return nil, fmt.Errorf("endpointlab: contender %q; want one of %s", name, strings.Join(Contenders, ", "))
		}
		all.Go(func() { rows[n] = conf.measure(ctx, w, contenders[at]) })
	}
	all.Wait()
	return rows, ctx.Err()
}

// RunFake is Run in fake time. It starts this program again.
func RunFake(ctx context.Context, conf Config) ([]Row, error) {
	return bubble.Run[Config, []Row](ctx, bubbleName, conf)
}

// Play does what RunFake has started this program for, and does not return then. Programs that call RunFake call it first.
func Play() { bubble.Serve(bubbleName, Run) }

const bubbleName = "endpointlab"

// A contender is a way to choose endpoints.
type contender struct {
	name string
	cost int // of a hedge to another endpoint than the first; 0: one
	over func(c contender, w *world, base http.RoundTripper) http.RoundTripper
}

// The contenders, in the order of the tables.
const (
	Near     = "none"
	Far      = "far"
	Failover = "failover"
	Hedge    = "hedge"
	FarHedge = "far-hedge"
	Ours     = "hedge-endpoints"
	OursDear = "hedge-endpoints-3"
)

var contenders = []contender{
	{name: Near, over: func(_ contender, _ *world, base http.RoundTripper) http.RoundTripper { return base }},
	{name: Far, over: func(_ contender, w *world, base http.RoundTripper) http.RoundTripper { return toLast(w, base) }},
	{name: Failover, over: func(_ contender, w *world, base http.RoundTripper) http.RoundTripper { return failover(w, base) }},
	{name: Hedge, over: func(_ contender, _ *world, base http.RoundTripper) http.RoundTripper { return hedge.New(base) }},
	{name: FarHedge, over: func(_ contender, w *world, base http.RoundTripper) http.RoundTripper {
		return toLast(w, hedge.New(base))
	}},
	{name: Ours, over: withEndpoints},
	{name: OursDear, cost: 3, over: withEndpoints},
}

// Contenders are their names.
var Contenders = func() (names []string) {
	for _, c := range contenders {
		names = append(names, c.name)
	}
	return names
}()

// A roundTrip is a http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// to returns req for endpoint i.
func to(req *http.Request, i int) *http.Request {
	r := req.Clone(req.Context())
	r.URL.Host = host(i)
	return r
}

func host(i int) string { return fmt.Sprintf("endpoint%d.test", i) }

func toLast(w *world, rt http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) { return rt.RoundTrip(to(req, len(w.endpoints)-1)) })
}

// failover asks the next endpoint after each error.
func failover(w *world, rt http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (resp *http.Response, err error) {
		for i := range w.endpoints {
			if resp, err = rt.RoundTrip(to(req, i)); err == nil || req.Context().Err() != nil {
				break
			}
		}
		return resp, err
	})
}

func withEndpoints(c contender, w *world, base http.RoundTripper) http.RoundTripper {
	all := make([]hedge.Endpoint, len(w.endpoints))
	for i := range all {
		all[i].URL = "http://" + host(i)
		if i > 0 {
			all[i].Cost = c.cost
		}
	}
	return hedge.New(base, hedge.WithEndpoints(all...))
}

// A site has the endpoints of one contender.
type site struct {
	*world
	contender
	began time.Time
	lasts time.Duration
	seed  uint64

	asked  [][]atomic.Int32 // by call and endpoint
	tokens atomic.Int64
}

// measure makes all calls of a contender, at random times.
func (conf Config) measure(ctx context.Context, w *world, c contender) Row {
	s := &site{world: w, contender: c, began: time.Now(), seed: conf.Seed, asked: make([][]atomic.Int32, conf.Calls)}
	s.lasts = time.Duration(float64(conf.Calls) / w.rate * float64(time.Second))
	for i := range s.asked {
		s.asked[i] = make([]atomic.Int32, len(w.endpoints))
	}
	rt := c.over(c, w, s)
	row := Row{Contender: c.name, Calls: make([]latency.Call, conf.Calls)}
	arrivals, failures := virtual.NewDraws(conf.Seed), atomic.Int64{}
	var all sync.WaitGroup
	made := 0
	for due := s.began; made < conf.Calls && ctx.Err() == nil; made++ {
		due = due.Add(arrivals.Gap(made, w.rate))
		time.Sleep(time.Until(due))
		n := made
		all.Go(func() {
			if !s.call(ctx, rt, n, &row.Calls[n]) {
				failures.Add(1)
			}
		})
	}
	all.Wait()
	row.Calls, row.Failures, row.Tokens = row.Calls[:made], int(failures.Load()), int(s.tokens.Load())
	return row
}

// call makes a call and notes what came of it.
func (s *site) call(ctx context.Context, rt http.RoundTripper, n int, call *latency.Call) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host(0)+"/"+strconv.Itoa(n), nil)
	if err != nil {
		panic(err)
	}
	call.Index, call.Start = int32(n), time.Since(s.began)
	resp, err := rt.RoundTrip(req)
	call.Latency = time.Since(s.began) - call.Start
	requests := int32(0)
	for i := range s.asked[n] {
		requests += s.asked[n][i].Load()
	}
	call.Hedges = uint8(max(requests-1, 0))
	if err != nil {
		call.Latency = Patience
		return false
	}
	if attempt := resp.Header.Get("X-Attempt"); attempt != "" {
		call.Winner = 1
	}
	return resp.Body.Close() == nil
}

var errDown = errors.New("this endpoint is down")

// RoundTrip answers as the endpoint does that the request is for.
func (s *site) RoundTrip(req *http.Request) (*http.Response, error) {
	var i, n int
	if _, err := fmt.Sscanf(req.URL.Host+req.URL.Path, "endpoint%d.test/%d", &i, &n); err != nil {
		return nil, fmt.Errorf("%s is nowhere: %w", req.URL, err)
	}
	before := s.asked[n][i].Add(1) - 1
	header := http.Header{}
	if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Number > 0 {
		cost := 1
		if i > 0 {
			cost = max(s.cost, 1)
		}
		s.tokens.Add(int64(cost))
		header.Set("X-Attempt", strconv.Itoa(a.Number))
	}
	took, err := s.endpoints[i].answer(virtual.NewDraws(s.seed+1), virtual.Attempt{Request: n, N: 16*i + int(before)}, float64(time.Since(s.began))/float64(s.lasts))
	timer := time.NewTimer(took)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, ProtoMajor: 2, Header: header, Body: http.NoBody, Request: req}, nil
}
