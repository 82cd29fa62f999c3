// Package endpointlab sends calls to endpoints that can answer in place of each other. It compares clients that always
// call the same endpoint, clients that call the next endpoint after an error, and hedge.WithEndpoints. Some endpoints
// have faults for some of the time.
//
// Time is fake, by testing/synctest: the figures do not depend on the machine. The library is the real one, and the
// endpoints are functions. The seed, the call, the endpoint and the number of earlier attempts of the call there
// determine how long an attempt takes. All contenders have the same arrivals and meet the same faults.
package endpointlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

const (
	DefaultCalls = 12_000          // of a contender, unless the config has a number
	CallTimeout  = 2 * time.Second // of a call; a failed call counts with this latency
)

// A Row is the result of one client, a row of the table. Its calls are in the order in which they were made. Tokens is
// the number of tokens that hedges took from the hedge budget.
type Row struct {
	lab.Row
	Tokens int // cost of the hedges
}

// Run sends the calls of a scenario by the selected clients, and returns a row for each. It runs in the time of its caller:
// the fake time of a testing/synctest bubble, or real time. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf lab.Config) ([]Row, error) {
	sc, err := lab.SelectScenario(&conf, scenarios, DefaultCalls)
	if err != nil {
		return nil, err
	}
	return lab.MeasureAll(ctx, conf, contenders, func(c lab.Contender[*endpointSet, http.RoundTripper]) (Row, error) {
		return measureContender(ctx, conf, sc, c)
	})
}

// FakeTimeRun runs Run in fake time, in a helper process.
var FakeTimeRun = bubble.New("endpointlab", Run)

var contenders = []lab.Contender[*endpointSet, http.RoundTripper]{
	{Name: "none", Start: func(s *endpointSet) (http.RoundTripper, error) { return s, nil }},
	{Name: "far", Start: func(s *endpointSet) (http.RoundTripper, error) {
		return s.newFailoverTransport(len(s.endpoints) - 1), nil
	}},
	{Name: "failover", Start: func(s *endpointSet) (http.RoundTripper, error) { return s.newFailoverTransport(0), nil }},
	{Name: "hedge", Start: func(s *endpointSet) (http.RoundTripper, error) { return hedge.New(s), nil }},
	{Name: "hedge-endpoints", Start: newEndpointsClient},
	{Name: "hedge-endpoints-3", Start: newEndpointsClient},
}

// remoteHedgeCosts are the tokens that a hedge to another endpoint than the first one costs, by the name of the
// contender; 0 means one token.
var remoteHedgeCosts = map[string]int{"hedge-endpoints-3": 3}

// Contenders lists the names of all contenders, in the order of the tables.
var Contenders = lab.NamesOf(contenders)

// A roundTripperFunc is a function that implements http.RoundTripper.
type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func endpointHostName(endpoint int) string { return fmt.Sprintf("endpoint%d.test", endpoint) }

// newFailoverTransport returns a transport that sends a request to one endpoint after another, from the first on, until
// an endpoint answers without an error.
func (s *endpointSet) newFailoverTransport(first int) http.RoundTripper {
	return roundTripperFunc(func(req *http.Request) (resp *http.Response, err error) {
		for i := first; i < len(s.endpoints); i++ {
			r := req.Clone(req.Context())
			r.URL.Host = endpointHostName(i)
			if resp, err = s.RoundTrip(r); err == nil || req.Context().Err() != nil {
				break
			}
		}
		return resp, err
	})
}

func newEndpointsClient(s *endpointSet) (http.RoundTripper, error) {
	all := make([]hedge.Endpoint, len(s.endpoints))
	for i := range all {
		all[i].URL = "http://" + endpointHostName(i)
		if i > 0 {
			all[i].Cost = s.remoteHedgeCost
		}
	}
	return hedge.New(s, hedge.WithEndpoints(all...)), nil
}

// An endpointSet has the simulated endpoints that one client chooses from. It counts attempts, and the tokens of the
// hedge budget that hedges cost.
type endpointSet struct {
	scenario
	remoteHedgeCost int
	start           time.Time
	duration        time.Duration
	seed            uint64

	attempts [][]atomic.Int32 // by call and endpoint
	tokens   atomic.Int64
}

func measureContender(ctx context.Context, conf lab.Config, sc scenario, c lab.Contender[*endpointSet, http.RoundTripper]) (Row, error) {
	s := &endpointSet{scenario: sc, remoteHedgeCost: remoteHedgeCosts[c.Name], start: time.Now(), seed: conf.Seed, attempts: make([][]atomic.Int32, conf.Calls)}
	s.duration = time.Duration(float64(conf.Calls) / sc.rate * float64(time.Second))
	for i := range s.attempts {
		s.attempts[i] = make([]atomic.Int32, len(sc.endpoints))
	}
	client, err := c.Start(s)
	if err != nil {
		return Row{}, err
	}
	row := Row{Row: lab.Row{Contender: c.Name, Calls: make([]latency.Call, conf.Calls)}}
	arrivals, failures := virtual.NewRandomSource(conf.Seed), atomic.Int64{}
	row.Asked = lab.Load{Interarrival: func(i int) time.Duration { return arrivals.InterarrivalTime(i, sc.rate) }}.Run(ctx, conf.Calls, func(i int) {
		if !s.makeCall(ctx, client, i, &row.Calls[i]) {
			failures.Add(1)
		}
	})
	row.Calls, row.Failures, row.Tokens = row.Calls[:row.Asked], int(failures.Load()), int(s.tokens.Load())
	return row, nil
}

// makeCall makes the n-th call by client, stores its measurement in call, and reports whether it was answered.
func (s *endpointSet) makeCall(ctx context.Context, client http.RoundTripper, n int, call *latency.Call) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpointHostName(0)+"/"+strconv.Itoa(n), nil)
	if err != nil {
		panic(err)
	}
	call.Index, call.Start = int32(n), time.Since(s.start)
	resp, err := client.RoundTrip(req)
	call.Latency = time.Since(s.start) - call.Start
	requests := int32(0)
	for i := range s.attempts[n] {
		requests += s.attempts[n][i].Load()
	}
	call.Hedges = uint8(max(requests-1, 0))
	if err != nil {
		call.Latency = CallTimeout
		return false
	}
	if attempt := resp.Header.Get("X-Attempt"); attempt != "" {
		call.Winner = 1
	}
	return resp.Body.Close() == nil
}

var errEndpointDown = errors.New("this endpoint is down")

// RoundTrip answers a call as the endpoint in its URL does, with the latency and the faults of that endpoint.
func (s *endpointSet) RoundTrip(req *http.Request) (*http.Response, error) {
	var i, n int
	if _, err := fmt.Sscanf(req.URL.Host+req.URL.Path, "endpoint%d.test/%d", &i, &n); err != nil {
		return nil, fmt.Errorf("%s is not the URL of an endpoint: %w", req.URL, err)
	}
	earlier := s.attempts[n][i].Add(1) - 1
	header := http.Header{}
	if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Number > 0 {
		cost := 1
		if i > 0 {
			cost = max(s.remoteHedgeCost, 1)
		}
		s.tokens.Add(int64(cost))
		header.Set("X-Attempt", strconv.Itoa(a.Number))
	}
	progress := float64(time.Since(s.start)) / float64(s.duration)
	took, err := s.endpoints[i].drawOutcome(virtual.NewRandomSource(s.seed+1), virtual.Attempt{Request: n, N: 16*i + int(earlier)}, progress)
	if sleepErr := lab.SleepContext(req.Context(), took); sleepErr != nil {
		return nil, sleepErr
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, ProtoMajor: 2, Header: header, Body: http.NoBody, Request: req}, nil
}
