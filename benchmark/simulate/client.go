package main

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/race"
)

// A sendFunc is a function that sends the request with the number id to a backend. It returns the number of the attempt
// that was answered.
type sendFunc func(ctx context.Context, id int) (attempt int, err error)

// A clientSetup is the input from which a strategy makes an HTTP or gRPC client. It has the address of the server, the
// transport or dial function to use, and a clock. The strategy stores in it how to close the client, how to count
// refused hedges, and how to race requests.
type clientSetup struct {
	clock func() time.Duration // stands still while others have their turn
	rate  float64              // the true requests per second, for strategies that are given it; else 0
	site  *site                // of a simulated network, else nil: a strategy can choose other addresses or other ways there
	sent  *attemptCounter      // counts attempts

	// Over HTTP.
	base    *http.Transport
	spread  http.RoundTripper // base, or what sends to any replica
	counted http.RoundTripper // the same, and counts the attempts of each request
	url     string            // of the server

	// connect dials the gRPC server from a host of the simulated network. The connection is closed with the client.
	connect func(dial dialer, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error)
	policy  string // that chooses among replicas; the strategy may set another

	// What the strategy may set.
	refused func() int         // hedges
	shut    func()             // closes the client's connections
	style   *race.Options[int] // how requests are raced after delays; nil: the client hedges by itself
	delays  []time.Duration    // before each hedge, where style is set; written between rounds
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// An attemptCounter counts the attempts of each request. Over a simulated network it is an observer of this library,
// because no transport may come between the library and the network there.
type attemptCounter struct {
	hedge.NopObserver
	attempts []atomic.Int32 // by request
	won      []atomic.Int32 // the winning attempt, by request; nil: the server says which it is
}

// startObserving returns the counter as an observer for this library, which reports attempts and winners to it.
func (t *attemptCounter) startObserving() hedge.Observer {
	if t.won == nil {
		t.won = make([]atomic.Int32, len(t.attempts))
	}
	return t
}

func (t *attemptCounter) AttemptStart(ctx context.Context, _ hedge.KeyInfo, _ hedge.AttemptInfo) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.attempts[id].Add(1)
	}
}

func (t *attemptCounter) RequestDone(ctx context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.won[id].Store(int32(r.Winner))
	}
}

// A requestKey is the key under which the context of a request has the number of the request.
type requestKey struct{}

// newClient makes the strategy's client for a server's site, and returns the function that sends its requests. protocol
// is http or grpc. setup is the input of the strategy, which newClient completes.
func (s strategy) newClient(protocol string, at *site, setup *clientSetup) (sendFunc, error) {
	over := s.newHTTPClient
	if protocol == "grpc" {
		over = s.newGRPCClient
	}
	send, err := over(at, setup)
	if err != nil || setup.style == nil {
		return send, err
	}
	// The client is raced after delays, without a budget.
	return func(ctx context.Context, id int) (int, error) {
		r := race.Race[int]{Style: *setup.style}
		out := r.Run(ctx, raceOp(func(ctx context.Context) (int, error) { return send(ctx, id) }), &race.FixedSchedule{Delays: setup.delays})
		out.Attempt.Release()
		return out.Value, out.Err
	}, nil
}

// newHTTPClient makes the strategy's HTTP client for a site, and returns the function that sends its requests. It
// stores the transports for the strategy in setup.
func (s strategy) newHTTPClient(at *site, setup *clientSetup) (sendFunc, error) {
	setup.base = &http.Transport{MaxIdleConnsPerHost: 256}
	scheme := "http://"
	if at.net != nil {
		setup.base.DialContext = at.dialServer
	}
	if at.trust != nil {
		setup.base.TLSClientConfig, setup.base.ForceAttemptHTTP2, scheme = at.trust.Clone(), true, "https://"
	}
	setup.spread = setup.base
	if at.config.random {
		setup.spread = randomReplica{setup.base, at}
	}
	setup.counted, setup.url = &countedTransport{setup.spread, setup.sent.attempts}, scheme+at.addr+"/"
	setup.shut = setup.base.CloseIdleConnections
	rt, err := s.http(setup)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: rt}
	return func(ctx context.Context, id int) (int, error) { return sendGet(ctx, client, setup.url, id) }, nil
}

// newGRPCClient makes the strategy's gRPC client for a site, and returns the function that sends its requests. It
// stores the function that dials for the strategy in setup.
func (s strategy) newGRPCClient(at *site, setup *clientSetup) (sendFunc, error) {
	setup.policy = "round_robin"
	if at.config.random {
		setup.policy = randomPolicy
	}
	setup.connect = func(dial dialer, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error) {
		opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(chain...)}
		if at.net != nil {
			opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }))
		}
		target := "passthrough:///" + at.addr
		if len(at.replicas) > 1 {
			all := manual.NewBuilderWithScheme("replicas")
			var addrs []resolver.Address
			for _, ip := range at.replicas {
				addrs = append(addrs, resolver.Address{Addr: replicaAddress(ip)})
			}
			all.InitialState(resolver.State{Addresses: addrs})
			target = "replicas:///"
			opts = append(opts, grpc.WithResolvers(all), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+setup.policy+`":{}}]}`))
		}
		conn, err := grpc.NewClient(target, opts...)
		if err == nil {
			shut := setup.shut
			setup.shut = func() { shut(); _ = conn.Close() }
		}
		return conn, err
	}
	chain, err := s.grpc(setup)
	if err != nil {
		return nil, err
	}
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if setup.sent.won == nil { // else the library is observed
			setup.sent.attempts[req.(*wrapperspb.Int64Value).Value].Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	conn, err := setup.connect(at.dialServer, append(chain, count)...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, id int) (int, error) {
		reply := new(wrapperspb.Int64Value)
		err := conn.Invoke(ctx, delayMethod, wrapperspb.Int64(int64(id)), reply)
		return int(reply.Value), err
	}, nil
}

// A randomReplica is an HTTP transport that sends each attempt to a random replica of the server. The numbers of the
// request and of the attempt determine the replica, so that it is the same for all strategies.
type randomReplica struct {
	base http.RoundTripper
	at   *site
}

func (a randomReplica) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = replicaAddress(a.at.replicas[drawReplica(req.Context(), len(a.at.replicas))])
	return a.base.RoundTrip(req)
}

// drawReplica draws the replica to which an attempt goes, an index from 0 to n-1. ctx has the numbers of the request
// and of the attempt, which determine the result.
func drawReplica(ctx context.Context, n int) int {
	id, _ := ctx.Value(requestKey{}).(int)
	attempt, _ := hedge.AttemptFromContext(ctx)
	return rand.New(rand.NewPCG(uint64(id), uint64(attempt.Number))).IntN(n)
}

// randomPolicy is the name of the gRPC load balancing policy randomPicker.
const randomPolicy = "simulate_random"

func init() { balancer.Register(base.NewBalancerBuilder(randomPolicy, randomPicker{}, base.Config{})) }

// A randomPicker is the gRPC load balancing policy that sends each attempt to a random replica, as randomReplica does.
type randomPicker []balancer.SubConn

func (randomPicker) Build(info base.PickerBuildInfo) balancer.Picker {
	if len(info.ReadySCs) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	return randomPicker(slices.SortedFunc(maps.Keys(info.ReadySCs), func(a, b balancer.SubConn) int {
		return strings.Compare(info.ReadySCs[a].Address.Addr, info.ReadySCs[b].Address.Addr)
	}))
}

func (p randomPicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{SubConn: p[drawReplica(info.Ctx, len(p))]}, nil
}

// A raceOp is an operation that package race runs as attempts. Its results are numbers, which need no closing.
type raceOp func(context.Context) (int, error)

func (f raceOp) Attempt(a *race.Attempt, _ int) (int, error) { return f(a) }
func (raceOp) Discard(int, error)                            {}
func (raceOp) Admit(int) bool                                { return true }
func (raceOp) Ended(int)                                     {}

// sendGet sends a GET for url, with the request number id in a header. It returns the number of the attempt that was
// answered, which the server writes into the body.
func sendGet(ctx context.Context, client *http.Client, url string, id int) (attempt int, err error) {
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

// A countedTransport is an HTTP transport that counts the attempts of each request and sends them through another
// transport.
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

func (t *countedTransport) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}
