package published

import (
	"context"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Clock returns how long something has run. It may stand still while that is paused.
type Clock func() time.Duration

// RoundTripper hedges requests as the policy says, whatever their method.
type RoundTripper struct {
	Policy *Policy
	Clock  Clock
	Next   http.RoundTripper
}

var _ http.RoundTripper = (*RoundTripper)(nil)

// RoundTrip returns the first result, even if it is an error.
func (t *RoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	attempt := func(ctx context.Context) (*http.Response, error) { return t.Next.RoundTrip(req.Clone(ctx)) }
	drop := func(r *http.Response) {
		if r != nil {
			_ = r.Body.Close()
		}
	}
	resp, done, err := race(req.Context(), t.Policy, t.Clock, req.URL.Host, attempt, drop)
	if err != nil {
		done()
		return nil, err
	}
	resp.Body = &body{resp.Body, done}
	return resp, nil
}

// body ends its request's context when it is closed.
type body struct {
	io.ReadCloser
	done context.CancelFunc
}

func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// UnaryClientInterceptor hedges calls with protobuf messages as the policy says, whatever their method.
func UnaryClientInterceptor(p *Policy, clock Clock) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		attempt := func(ctx context.Context) (proto.Message, error) {
			mine := reply.(proto.Message).ProtoReflect().New().Interface()
			return mine, invoke(ctx, method, req, mine, cc, opts...)
		}
		got, done, err := race(ctx, p, clock, cc.Target(), attempt, func(proto.Message) {})
		defer done()
		if err == nil {
			proto.Merge(reply.(proto.Message), got)
		}
		return err
	}
}

// race makes an attempt and perhaps a second one. The first result wins; the other
// attempt is cancelled, and its result is dropped. The winner's context
// lives until done is called.
func race[T any](ctx context.Context, p *Policy, clock Clock, host string, attempt func(context.Context) (T, error), drop func(T)) (v T, done context.CancelFunc, err error) {
	type result struct {
		v   T
		err error
		n   int
	}
	start := clock()
	results := make(chan result)
	over := make(chan struct{})
	defer close(over)
	var cancels []context.CancelFunc
	launch := func() {
		mine, cancel := context.WithCancel(ctx)
		n := len(cancels)
		cancels = append(cancels, cancel)
		go func() {
			v, err := attempt(mine)
			select {
			case results <- result{v, err, n}:
			case <-over:
				if err == nil {
					drop(v)
				}
			}
		}()
	}
	timer := time.NewTimer(p.Delay(start, host))
	defer timer.Stop()
	launch()
	for {
		select {
		case <-timer.C:
			if p.Admit(clock()) {
				launch()
			}
		case r := <-results:
			p.Learn(clock(), host, clock()-start)
			for n, cancel := range cancels {
				if n != r.n {
					cancel()
				}
			}
			return r.v, cancels[r.n], r.err
		}
	}
}
