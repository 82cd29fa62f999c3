//go:build !hedge_nogrpc

package worlds_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A grpcPlay is one play of a grpcScenario with its observations.
type grpcPlay struct {
	w       *grpcScenario
	hedged  bool
	shift   int // the server treats attempt n as n + shift
	start   time.Time
	network *netsim.Network
	conn    *grpc.ClientConn
	other   *grpc.ClientConn   // to another target
	second  *grpc.ClientConn   // for hedges
	conns   []*grpc.ClientConn // for hedges
	servers []*grpc.Server
	hedge   *hedge.Interceptor
	stats   *hedge.Stats
	counter countingObserver
	counts  grpctest.OutlierCounts // of outlier detection

	results []*grpcResult
	next    *grpcResult
	memory  latencyMemory
	broken  string

	mu       sync.Mutex // guards the fields below
	arrivals map[int][]*grpcArrival
	hedges   int // sum of their costs
	asked    int // how often interceptors asked for a token
	tokens   int // how often the server was asked
	notes    []finding
}

// A grpcArrival is a request at the server.
type grpcArrival struct {
	conn             int // for hedges; 0: the caller's
	attempt          int
	at, failed, left time.Duration // since the play began; 0: it did not fail, the client did not leave
	failedHere       time.Duration // when it failed in a way in which an attempt over another connection may not; 0: it did not
}

// records returns the requests of a call at the servers in the form that scenarios of all protocols have.
func (p *grpcPlay) records(call int) (all []attemptRecord) {
	for _, a := range p.arrivals[call] {
		all = append(all, attemptRecord{a.attempt, strconv.Itoa(a.conn), a.at, a.failedHere})
	}
	return all
}

func playGRPC(s *stage, w *grpcScenario, hedged bool, shift int) *grpcPlay {
	p := &grpcPlay{w: w, hedged: hedged, shift: shift, arrivals: make(map[int][]*grpcArrival)}
	p.broken = s.runInBubble(p.run)
	return p
}

func (p *grpcPlay) run() {
	p.start = time.Now()
	p.startServers()
	p.newClient()
	root, cancel := context.WithCancel(context.Background())
	giveUp := time.AfterFunc(stuckAfter, cancel)
	p.openIdleStreams(root)
	for i := range p.w.past.calls {
		past := &grpcCall{method: "GetItem", cancel: -1, stream: i%p.w.past.hosts == 1}
		if p.w.past.outage > 0 {
			past.delay = 20 * ms
		}
		p.makeCall(root, past)
		time.Sleep(p.w.past.gap)
	}
	if p.hedge != nil && p.w.client.change != "" {
		time.AfterFunc(13*ms, func() { applyChange(p.hedge, p.w.client.change) })
	}
	p.results = make([]*grpcResult, len(p.w.calls))
	callAll(p.w.calls, giveUp, func(i int, c *grpcCall) {
		time.Sleep(c.at)
		p.results[i] = p.makeCall(root, c)
	})
	time.Sleep(10 * time.Second)
	synctest.Wait()
	for _, r := range p.results {
		r.later()
	}
	p.next = p.makeCall(root, &grpcCall{method: "GetItem", cancel: -1, deadline: 20 * time.Second})
	cancel()
	p.conn.Close()
	p.other.Close()
	p.second.Close()
	for _, cc := range p.conns {
		cc.Close()
	}
	synctest.Wait()
	for _, s := range p.servers {
		s.Stop()
	}
	p.network.Close()
	time.Sleep(2 * forever)
}

func (p *grpcPlay) since() time.Duration { return time.Since(p.start) }

// startServers starts the servers.
func (p *grpcPlay) startServers() {
	hosts := []string{"client", "server"}
	for i, o := range p.w.way.conns {
		hosts = append(hosts, o.host(i))
	}
	if p.w.way.outlier {
		hosts = append(hosts, backendHosts[1:]...)
	}
	network, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		panic(err)
	}
	p.network = network
	p.servers = append(p.servers, p.listen("server", 0))
	if p.w.way.outlier {
		for _, host := range backendHosts[1:] {
			p.servers = append(p.servers, p.listen(host, 0))
		}
	}
	p.serveConns()
}

// listen starts the server of a connection for hedges, or of the callers' connections for 0.
func (p *grpcPlay) listen(host string, conn int) *grpc.Server {
	l, err := p.network.Host(host).Listen("tcp", ":80")
	if err != nil {
		panic(err)
	}
	options := []grpc.ServerOption{grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return p.handleStream(s, conn) })}
	if n := p.w.places; n > 0 {
		options = append(options, grpc.ChainStreamInterceptor(hedge.NewLimiter(n).StreamServer()))
	}
	s := grpc.NewServer(options...)
	go func() { _ = s.Serve(l) }()
	return s
}

// newClient opens the connections and makes the client.
func (p *grpcPlay) newClient() {
	dial := func(target, host string, options ...grpc.DialOption) *grpc.ClientConn {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return p.network.Host("client").DialContext(ctx, "tcp", host+":80")
			}))
		cc, err := grpc.NewClient("passthrough:///"+target, options...)
		if err != nil {
			panic(err)
		}
		return cc
	}
	var unary []grpc.UnaryClientInterceptor
	var stream []grpc.StreamClientInterceptor
	p.second = dial("server:80", "server", p.markInterceptors("second")...)
	p.dialConns(dial)
	if p.hedged {
		options := []hedge.GRPCOption{hedge.WithBudgetPercent(100 * p.w.client.share), hedge.WithStats(&p.stats)}
		if p.w.way.second {
			options = append(options, hedge.WithHedgeConn(p.second))
		}
		if len(p.conns) > 0 {
			options = append(options, p.withConns())
		}
		if p.w.client.counts {
			options = append(options, hedge.WithObserver(&p.counter))
		}
		for _, option := range p.w.client.options {
			options = append(options, option())
		}
		p.hedge = hedge.NewInterceptor(options...)
		unary, stream = append(unary, p.hedge.Unary()), append(stream, p.hedge.Stream())
	}
	if y := &p.w.way; y.signs || y.token || y.panics != "" || y.refuses != "" {
		unary, stream = append(unary, p.lowerInterceptor), append(stream, p.lowerInterceptorStream)
	}
	chain := []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary...), grpc.WithChainStreamInterceptor(stream...)}
	chain = append(chain, p.markInterceptors("0")...)
	plain := chain[:len(chain):len(chain)]
	config := p.w.way.timeoutConfig()
	if config != "" {
		chain = append(chain, grpc.WithDefaultServiceConfig("{"+config+"}"))
	}
	if p.w.way.spelt {
		p.conn, p.other = p.dialSpelt(chain)
		return
	}
	p.other = dial("other:80", "server", chain...)
	if p.w.way.outlier {
		p.conn = p.dialBackends(plain, config)
		return
	}
	p.conn = dial("server:80", "server", chain...)
}

const (
	callKey    = "x-call"
	actKey     = "x-act"
	attemptKey = "grpc-previous-rpc-attempts"
	tokenRPC   = "/shop.v1.Tokens/CreateToken"
	tokenTakes = 70 * ms
)

// lowerInterceptor is the interceptor between the hedging and the connection.
func (p *grpcPlay) lowerInterceptor(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if err := p.prepareAttempt(ctx, method, req); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, options...)
}

func (p *grpcPlay) lowerInterceptorStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := p.prepareAttempt(ctx, method, nil); err != nil {
		return nil, err
	}
	return open(ctx, desc, cc, method, options...)
}

// prepareAttempt does the work of lowerInterceptor before an attempt.
func (p *grpcPlay) prepareAttempt(ctx context.Context, method string, req any) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	if method == tokenRPC || len(md[callKey]) == 0 || md[callKey][0] == "0" {
		return nil
	}
	info, _ := hedge.AttemptFromContext(ctx)
	attempt := strconv.Itoa(info.Number + p.shift)
	if p.w.way.panics == attempt {
		panic("interceptor")
	}
	if p.w.way.refuses == attempt {
		return status.Error(codes.Unavailable, "an interceptor refuses")
	}
	if r, ok := req.(interface{ GetPayload() *testpb.Payload }); ok && p.w.way.signs {
		r.GetPayload().Body = append(r.GetPayload().Body, " signed"...)
	}
	if p.w.way.token {
		p.mu.Lock()
		p.asked++
		p.mu.Unlock()
		return p.conn.Invoke(ctx, tokenRPC, &testpb.SimpleRequest{}, new(testpb.SimpleResponse))
	}
	return nil
}

// handleStream handles a request at the server of a connection for hedges, or of the callers' connections for 0.
func (p *grpcPlay) handleStream(s grpc.ServerStream, conn int) error {
	ctx := s.Context()
	md, _ := metadata.FromIncomingContext(ctx)
	number, attempt := firstNumber(md, callKey), firstNumber(md, attemptKey)
	method, _ := grpc.MethodFromServerStream(s)
	req := new(testpb.SimpleRequest)
	if err := s.RecvMsg(req); err != nil {
		return err
	}
	if method == tokenRPC {
		p.mu.Lock()
		p.tokens++
		p.mu.Unlock()
		if err := waitForClient(ctx, tokenTakes); err != nil {
			return err
		}
		return s.SendMsg(&testpb.SimpleResponse{})
	}
	a := &grpcArrival{conn: conn, attempt: attempt, at: p.since()}
	p.mu.Lock()
	order := len(p.arrivals[number])
	p.arrivals[number] = append(p.arrivals[number], a)
	if attempt > 0 {
		p.hedges += p.w.way.costOf(conn)
	}
	p.mu.Unlock()
	if err := p.applyFault(s, conn, number, attempt); err != nil {
		p.mu.Lock()
		a.failedHere = p.since()
		p.mu.Unlock()
		return err
	}
	if number == 0 {
		if err := waitForClient(ctx, 10*ms+p.w.past.outage); err != nil {
			return err
		}
		return s.SendMsg(&testpb.SimpleResponse{Username: "past"})
	}
	p.checkMarks(md, conn, number, attempt)
	c := p.w.calls[number-1]
	if text := string(req.Payload.GetBody()); !c.isExpected(text) {
		p.note("6 request", fmt.Sprintf("attempt %d of call %d is sent as %q", attempt, number, text))
	}
	defer func() {
		if ctx.Err() != nil {
			p.mu.Lock()
			a.left = p.since()
			p.mu.Unlock()
		}
	}()
	err := p.applyStep(s, c, conn, attempt+p.shift, p.w.nonce && order > 0)
	if err != nil && ctx.Err() == nil {
		p.mu.Lock()
		if a.failed = p.since(); status.Code(err) == codes.Unavailable {
			a.failedHere = a.failed
		}
		p.mu.Unlock()
	}
	return err
}

func (p *grpcPlay) note(promise, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, finding{promise, detail})
}

func firstNumber(md metadata.MD, key string) int {
	if len(md[key]) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(md[key][0])
	return n
}

// waitForClient waits for d. If the client leaves before that or its deadline passes, it returns the status of the end. A
// server that went on would answer at the very deadline, when the attempts of the call time out.
func waitForClient(ctx context.Context, d time.Duration) error {
	return status.FromContextError(doubles.Sleep(ctx, d)).Err()
}

// applyStep applies the step of an attempt at the server.
func (p *grpcPlay) applyStep(s grpc.ServerStream, c *grpcCall, conn, attempt int, again bool) error {
	who := metadata.Pairs(actKey, strconv.Itoa(attempt))
	md, _ := metadata.FromIncomingContext(s.Context())
	at := fmt.Sprint(md[":authority"])
	if conn > 0 { // it is the same service by another name
		at = "[server:80]"
	}
	_ = s.SetHeader(who)
	s.SetTrailer(who)
	if again {
		return status.Error(codes.Unauthenticated, "the nonce was used")
	}
	act := c.acts[min(attempt, len(c.acts)-1)]
	if act.header {
		_ = s.SendHeader(nil)
	}
	if err := waitForClient(s.Context(), 5*ms+act.wait+p.w.past.outage); err != nil {
		return err
	}
	if act.pushBack != "" {
		s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", act.pushBack))
	}
	if act.code != codes.OK {
		return status.Errorf(act.code, "call %d attempt %d", c.number, attempt)
	}
	if !c.stream {
		if err := s.SendMsg(c.serverReply(fmt.Sprintf("call %d attempt %d %s", c.number, attempt, at))); err != nil {
			return err
		}
		return waitForClient(s.Context(), act.stall)
	}
	for i := range act.messages {
		if i > 0 {
			if err := waitForClient(s.Context(), act.stall); err != nil {
				return err
			}
		}
		if err := s.SendMsg(&testpb.SimpleResponse{Username: fmt.Sprintf("call %d attempt %d message %d", c.number, attempt, i)}); err != nil {
			return err
		}
	}
	if act.failing != codes.OK {
		return status.Errorf(act.failing, "call %d attempt %d at the end", c.number, attempt)
	}
	return nil
}

// A grpcResult is the result of a call. Times are since its start.
type grpcResult struct {
	began, first, end time.Duration // first: when the first message was there, or the end
	err, panicked     string
	code              codes.Code // of the end, or of the first message
	firstCode         codes.Code
	act               int // -1: not known
	messages          string
	header, trailer   string
	finished          string
	wrong             []string
	held              int64
	later             func()
}

func (r *grpcResult) String() string {
	return fmt.Sprintf("{%s%s act %d first %v end %v %q}", r.err, r.panicked, r.act, r.first, r.end, r.messages)
}

func (r *grpcResult) isStuck() bool { return r.end >= stuckAfter-time.Minute }

// succeeded reports whether the call has its first message without an error. By rule R1 it ends the race.
func (r *grpcResult) succeeded() bool {
	return r.panicked == "" && !r.isStuck() && r.firstCode == codes.OK
}

// teachesLatency reports whether the call ended with an error that is an answer, from which the client learns the latency.
func (r *grpcResult) teachesLatency() bool {
	switch r.firstCode {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return r.panicked == "" && !r.isStuck()
	}
	return false
}

// An embeddingOption is an option of the kind that other interceptors define.
type embeddingOption struct{ grpc.TrailerCallOption }

// newOptions returns the options of the call. read returns the values that were written to their targets.
func (c *grpcCall) newOptions(r *grpcResult) (all []grpc.CallOption, read func() string) {
	var header, trailer metadata.MD
	var from peer.Peer
	if c.request != "" || c.reply == "envelope" || c.reply == "any" {
		all = append(all, grpc.ForceCodec(codec{}))
	}
	switch c.targets {
	case "value":
		all = append(all, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from))
	case "pointer":
		all = append(all, &grpc.HeaderCallOption{HeaderAddr: &header}, &grpc.TrailerCallOption{TrailerAddr: &trailer})
	case "embedded":
		all = append(all, embeddingOption{grpc.TrailerCallOption{TrailerAddr: &trailer}})
	}
	if c.finish {
		all = append(all, grpc.OnFinish(func(err error) { r.finished += fmt.Sprintf("<%v>", status.Code(err)) }))
	}
	return all, func() string { return fmt.Sprint(header[actKey], trailer[actKey], from.Addr != nil) }
}

// makeCall makes a call.
func (p *grpcPlay) makeCall(root context.Context, c *grpcCall) (r *grpcResult) {
	r = &grpcResult{began: p.since(), act: -1}
	own, stop := newCallerTimes(root, c.deadline, c.cancel)
	defer stop()
	ctx := metadata.AppendToOutgoingContext(p.counts.NewContext(own), callKey, strconv.Itoa(c.number))
	if p.hedged && c.delay > 0 {
		ctx = hedge.WithDelay(ctx, c.delay)
	}
	if p.hedged && c.allowed {
		ctx = hedge.AllowHedging(ctx)
	}
	req, change := c.newMessage()
	options, targets := c.newOptions(r)
	reply, text := c.newReply(req)
	var then string // the targets and the reply at the end of the call
	state := func() string { return targets() + text() }
	r.later = func() {
		if now := state(); now != then {
			r.wrong = append(r.wrong, fmt.Sprintf("after the call, %q became %q", then, now))
		}
		r.held = own.held.Load()
	}
	start := time.Now()
	defer func() {
		r.end = time.Since(start)
		if r.first == 0 {
			r.first = r.end
		}
		if v := recover(); v != nil {
			r.panicked, _, _ = strings.Cut(fmt.Sprint(v), "\n")
		}
		if m, ok := req.(*testpb.SimpleRequest); ok && !p.w.way.signs && c.reply != "request" && !proto.Equal(m, newSimpleRequest(requestText)) {
			r.wrong = append(r.wrong, "the request was changed")
		}
		if r.succeeded() || r.teachesLatency() || own.Err() != nil {
			p.memory.addWait(p.since()-r.end+r.first, r.first) // a stream goes on after its first message
		}
		then, r.trailer = state(), targets()
		if c.reuse {
			change()
		}
	}()
	cc := p.conn
	if c.elsewhere {
		cc = p.other
	}
	var err error
	if c.stream {
		err = c.openStream(ctx, cc, r, req, start, options)
	} else {
		err = cc.Invoke(ctx, "/shop.v1.Items/"+c.method, req, reply, options...)
		r.messages = text()
		r.firstCode = status.Code(err)
	}
	if err != nil {
		r.err, r.code = incidental.ReplaceAllString(err.Error(), "$1"), status.Code(err)
	}
	if i := strings.LastIndex(r.err+r.messages, "attempt "); i >= 0 {
		fmt.Sscanf((r.err + r.messages)[i:], "attempt %d", &r.act)
	}
	return r
}

// openStream makes a streaming call.
func (c *grpcCall) openStream(ctx context.Context, cc *grpc.ClientConn, r *grpcResult, req any, start time.Time, options []grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/shop.v1.Items/"+c.method, options...)
	if err != nil {
		r.firstCode = status.Code(err)
		return err
	}
	if err := s.SendMsg(req); err != nil && err != io.EOF {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if c.reads == "header" {
		_, _ = s.Header()
	}
	for n := 0; ; n++ {
		reply := new(testpb.SimpleResponse)
		err := s.RecvMsg(reply)
		if n == 0 {
			r.first = time.Since(start)
			if !errors.Is(err, io.EOF) {
				r.firstCode = status.Code(err)
			}
		}
		if err == nil {
			r.messages += reply.Username + ";"
		}
		if errors.Is(err, io.EOF) {
			md, _ := s.Header()
			r.header = fmt.Sprint(md[actKey], s.Trailer()[actKey])
			r.act = firstNumber(s.Trailer(), actKey)
			return nil
		}
		if err == nil && c.reads == "one" {
			cancel()
			for err == nil { // the targets of call options are set when the stream has ended
				err = s.RecvMsg(reply)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}
