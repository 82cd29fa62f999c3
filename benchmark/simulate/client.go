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

// A sendFunc sends the request with the given ID to a backend. It returns the number of the attempt that was answered.
type sendFunc func(ctx context.Context, id int) (attempt int, err error)

// A clientSetup is the input from which a strategy makes its HTTP or gRPC client, for example a transport and a clock.
// The strategy stores functions in it that close the client and count denied hedges. If the benchmark itself sends the
// hedges, the strategy also stores options for that.
type clientSetup struct {
	clock          func() time.Duration // is stopped while other contenders have their turn
	rate           float64              // the true number of requests per second, for strategies that need the rate; else 0
	serverLocation *serverLocation      // of a simulated network, in which a strategy can dial other addresses; else nil
	sent           *attemptCounter      // counts attempts

	// Over HTTP.
	base              *http.Transport
	replicaTransport  http.RoundTripper // base, or a transport that sends attempts to random replicas
	countingTransport http.RoundTripper // replicaTransport, and counts the attempts of each request
	url               string            // of the server

	// connect dials the gRPC server from a host of the simulated network. The connection is closed with the client.
	connect func(dial dialFunc, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error)
	policy  string // load balancing policy; the strategy may set another

	// What the strategy may set.
	denied      func() int         // hedges
	closeClient func()             // closes the client's connections
	raceOptions *race.Options[int] // how requests are raced after delays; nil: the client hedges by itself
	delays      []time.Duration    // before each hedge, where style is set; written between rounds
}

// A dialFunc is a function that opens a connection, like net.Dialer.DialContext.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// An attemptCounter counts the attempts of each request. A transport or a gRPC interceptor below the client increments it.
// Over a simulated network, this library needs the *http.Transport itself, so the counter is an observer of the library.
type attemptCounter struct {
	hedge.NopObserver
	attempts []atomic.Int32 // by request
	winners  []atomic.Int32 // number of the winning attempt, by request; nil: the server sends the number
}

// asObserver returns the counter as an observer of this library, which also records the winning attempts.
func (t *attemptCounter) asObserver() hedge.Observer {
	if t.winners == nil {
		t.winners = make([]atomic.Int32, len(t.attempts))
	}
	return t
}

func (t *attemptCounter) AttemptStart(ctx context.Context, _ hedge.KeyInfo, _ hedge.AttemptInfo) {
	if id, ok := ctx.Value(requestIDKey{}).(int); ok {
		t.attempts[id].Add(1)
	}
}

func (t *attemptCounter) RequestDone(ctx context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if id, ok := ctx.Value(requestIDKey{}).(int); ok {
		t.winners[id].Store(int32(r.Winner))
	}
}

type requestIDKey struct{}

// newClient makes a client of the strategy for the server at the location at. protocol is http or grpc. In config it
// sets the transports and the URL, or connect and the load balancing policy, from which the strategy makes the client.
func (s strategy) newClient(protocol string, at *serverLocation, config *clientSetup) (sendFunc, error) {
	over := s.newHTTPClient
	if protocol == "grpc" {
		over = s.newGRPCClient
	}
	send, err := over(at, config)
	if err != nil || config.raceOptions == nil {
		return send, err
	}
	// The client is raced after delays, without a budget.
	return func(ctx context.Context, id int) (int, error) {
		r := race.Race[int]{Style: *config.raceOptions}
		out := r.Run(ctx, raceOperation(func(ctx context.Context) (int, error) { return send(ctx, id) }), &race.FixedSchedule{Delays: config.delays})
		out.Attempt.Release()
		return out.Value, out.Err
	}, nil
}

func (s strategy) newHTTPClient(at *serverLocation, config *clientSetup) (sendFunc, error) {
	config.base = &http.Transport{MaxIdleConnsPerHost: 256}
	scheme := "http://"
	if at.net != nil {
		config.base.DialContext = at.dialServer
	}
	if at.trust != nil {
		config.base.TLSClientConfig, config.base.ForceAttemptHTTP2, scheme = at.trust.Clone(), true, "https://"
	}
	config.replicaTransport = config.base
	if at.config.randomReplica {
		config.replicaTransport = randomReplicaTransport{config.base, at}
	}
	config.countingTransport, config.url = &countingTransport{config.replicaTransport, config.sent.attempts}, scheme+at.addr+"/"
	config.closeClient = config.base.CloseIdleConnections
	rt, err := s.http(config)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: rt}
	return func(ctx context.Context, id int) (int, error) { return sendGet(ctx, client, config.url, id) }, nil
}

func (s strategy) newGRPCClient(at *serverLocation, config *clientSetup) (sendFunc, error) {
	config.policy = "round_robin"
	if at.config.randomReplica {
		config.policy = randomPickerName
	}
	config.connect = func(dial dialFunc, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error) {
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
			opts = append(opts, grpc.WithResolvers(all), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+config.policy+`":{}}]}`))
		}
		conn, err := grpc.NewClient(target, opts...)
		if err == nil {
			closeClient := config.closeClient
			config.closeClient = func() { closeClient(); _ = conn.Close() }
		}
		return conn, err
	}
	chain, err := s.grpc(config)
	if err != nil {
		return nil, err
	}
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if config.sent.winners == nil { // else the library is observed
			config.sent.attempts[req.(*wrapperspb.Int64Value).Value].Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	conn, err := config.connect(at.dialServer, append(chain, count)...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, id int) (int, error) {
		reply := new(wrapperspb.Int64Value)
		err := conn.Invoke(ctx, delayMethod, wrapperspb.Int64(int64(id)), reply)
		return int(reply.Value), err
	}, nil
}

// A randomReplicaTransport sends each attempt to a random replica, determined by the request's ID and the attempt's number.
type randomReplicaTransport struct {
	base http.RoundTripper
	at   *serverLocation
}

func (a randomReplicaTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = replicaAddress(a.at.replicas[pickReplica(req.Context(), len(a.at.replicas))])
	return a.base.RoundTrip(req)
}

// pickReplica returns the index of a pseudo-random replica, below n, for the attempt in ctx. It depends only on the ID
// of the request and the number of the attempt.
func pickReplica(ctx context.Context, n int) int {
	id, _ := ctx.Value(requestIDKey{}).(int)
	attempt, _ := hedge.AttemptFromContext(ctx)
	return rand.New(rand.NewPCG(uint64(id), uint64(attempt.Number))).IntN(n)
}

const randomPickerName = "simulate_random"

func init() {
	balancer.Register(base.NewBalancerBuilder(randomPickerName, randomPicker{}, base.Config{}))
}

// A randomPicker is a gRPC picker that chooses a random replica, determined by the request's ID and the attempt's number.
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
	return balancer.PickResult{SubConn: p[pickReplica(info.Ctx, len(p))]}, nil
}

// A raceOperation is a function that package race can run several times at once, as the attempts of one request. Its
// result is a number, which need not be closed.
type raceOperation func(context.Context) (int, error)

func (f raceOperation) Attempt(a *race.Attempt, _ int) (int, error) { return f(a) }
func (raceOperation) Discard(int, error)                            {}
func (raceOperation) Admit(int) bool                                { return true }
func (raceOperation) Ended(int)                                     {}

// sendGet sends a GET for url with the request ID id. It returns the number of the attempt, which the server writes.
func sendGet(ctx context.Context, client *http.Client, url string, id int) (attempt int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set(requestIDHeader, strconv.Itoa(id))
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

// A countingTransport counts the attempts of each request, and sends them by the next transport.
type countingTransport struct {
	next http.RoundTripper
	sent []atomic.Int32
}

func (t *countingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if id, err := strconv.Atoi(req.Header.Get(requestIDHeader)); err == nil {
		t.sent[id].Add(1)
	}
	return t.next.RoundTrip(req)
}

func (t *countingTransport) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}
