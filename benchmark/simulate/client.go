package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/internal/race"
)

// An httpPath is what an HTTP client is built on.
type httpPath struct {
	base    *http.Transport
	counted http.RoundTripper // base, and counts the attempts of each request
	url     string            // of the server
}

// A grpcPath is what a gRPC client is built on.
type grpcPath struct {
	// connect dials the server from a host of the lab. The connection is closed with the contender.
	connect func(dial dialer, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error)
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// connectHTTP makes the contender's HTTP client.
func (c *contender) connectHTTP() error {
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
	rt, err := c.strategy.http(c, httpPath{base, &countedTransport{base, c.sent}, url})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: rt}
	c.request = func(ctx context.Context, id int) (int, error) { return get(ctx, client, url, id) }
	return nil
}

// connectGRPC makes the contender's gRPC client.
func (c *contender) connectGRPC() error {
	at := c.backend.site
	connect := func(dial dialer, chain ...grpc.UnaryClientInterceptor) (*grpc.ClientConn, error) {
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
	chain, err := c.strategy.grpc(c, grpcPath{connect})
	if err != nil {
		return err
	}
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if c.won == nil { // else the tally counts them
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
	return nil
}

// schedule makes the contender race its requests after its delays, without a budget.
func (c *contender) schedule() {
	request := c.request
	c.request = func(ctx context.Context, id int) (int, error) {
		var r race.Race[int]
		out := r.Run(ctx, op(func(ctx context.Context) (int, error) { return request(ctx, id) }), always{}, c.delays, *c.style)
		out.Attempt.Release()
		return out.Value, out.Err
	}
}

// op is what is raced. Its values hold nothing that must be closed.
type op func(context.Context) (int, error)

func (f op) Attempt(a *race.Attempt, _ int) (int, error) { return f(a) }
func (op) Discard(int, error)                            {}

// always is a gate that admits every hedge.
type always struct{}

func (always) Admit(int) bool { return true }
func (always) Ended(int)      {}

// requestKey is the key of a request's number in its context.
type requestKey struct{}

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
