package bhope

import (
	"context"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Clock returns the running time of a client: the time since its start without the periods in which the benchmark
// pauses it to let other clients run.
type Clock func() time.Duration

// A RoundTripper is an HTTP transport that hedges requests of all methods, even if they are not idempotent.
type RoundTripper struct {
	Policy *Policy
	Clock  Clock
	Next   http.RoundTripper
}

var _ http.RoundTripper = (*RoundTripper)(nil)

// RoundTrip sends a request, and sends it again as a hedge if the first attempt is slow. It returns the result of the
// attempt that ends first, which may be an error.
func (t *RoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	attempt := func(ctx context.Context) (*http.Response, error) { return t.Next.RoundTrip(req.Clone(ctx)) }
	discard := func(r *http.Response) {
		if r != nil {
			_ = r.Body.Close()
		}
	}
	resp, cancel, err := raceAttempts(req.Context(), t.Policy, t.Clock, req.URL.Host, attempt, discard)
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &cancelingBody{resp.Body, cancel}
	return resp, nil
}

// A cancelingBody is a response body that cancels the context of its attempt when the caller closes it.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// UnaryClientInterceptor hedges all unary calls as p decides, in the time of clock. Replies must be protobuf messages.
func UnaryClientInterceptor(p *Policy, clock Clock) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		attempt := func(ctx context.Context) (proto.Message, error) {
			ownReply := reply.(proto.Message).ProtoReflect().New().Interface()
			return ownReply, invoke(ctx, method, req, ownReply, cc, opts...)
		}
		got, cancel, err := raceAttempts(ctx, p, clock, cc.Target(), attempt, func(proto.Message) {})
		defer cancel()
		if err == nil {
			proto.Merge(reply.(proto.Message), got)
		}
		return err
	}
}

// raceAttempts calls attempt, and calls it again as a hedge when the delay of policy p for host has passed. It returns
// the result of the attempt that ends first. The other attempt is cancelled, and its result is passed to discard. The
// caller must call cancel when the winner's context is no longer needed.
func raceAttempts[T any](ctx context.Context, p *Policy, clock Clock, host string, attempt func(context.Context) (T, error), discard func(T)) (v T, cancel context.CancelFunc, err error) {
	type result struct {
		v   T
		err error
		n   int
	}
	start := clock()
	results := make(chan result)
	returned := make(chan struct{})
	defer close(returned)
	var cancels []context.CancelFunc
	launch := func() {
		attemptCtx, cancel := context.WithCancel(ctx)
		n := len(cancels)
		cancels = append(cancels, cancel)
		go func() {
			v, err := attempt(attemptCtx)
			select {
			case results <- result{v, err, n}:
			case <-returned:
				if err == nil {
					discard(v)
				}
			}
		}()
	}
	timer := time.NewTimer(p.StartRequest(start, host))
	defer timer.Stop()
	launch()
	for {
		select {
		case <-timer.C:
			if p.AdmitHedge(clock()) {
				launch()
			}
		case r := <-results:
			p.RecordLatency(clock(), host, clock()-start)
			for n, cancel := range cancels {
				if n != r.n {
					cancel()
				}
			}
			return r.v, cancels[r.n], r.err
		}
	}
}
