//go:build !hedge_nogrpc

package grpctest

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gohedge/hedge/hedgetest/internal/twin"
	"github.com/gohedge/hedge/internal/grpcattempt"
)

// Twice returns an interceptor that checks whether unary calls are safe to hedge, as hedgetest.Twice does for HTTP. It
// makes each call twice at the same time and, after both replies, a third time.
//
// The caller gets the first reply. The test fails if replies or codes differ, or if the third call changes the result
// of state. With a nil state only replies are compared.
//
// Requests and replies must be messages of package proto. A call with other types is made once, and fails the test.
// Call options apply to each of the three calls; output variables of options get the values of the first call.
//
// Concurrent calls wait for each other, so a goroutine must not make a call while another call of the same goroutine is
// in progress.
func Twice(t testing.TB, state func() any) grpc.UnaryClientInterceptor {
	judge := twin.NewCallComparer(t, state)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		t.Helper()
		in, ok := req.(proto.Message)
		out, ok2 := reply.(proto.Message)
		if !ok || !ok2 {
			t.Errorf("hedgetest: %s has a %T and a %T, and not two messages of package proto", method, req, reply)
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		a := twin.CompareCalls(judge, method, func(n int) callResult {
			own := opts
			if n > 0 { // the first one has the caller's targets
				own, _ = grpcattempt.CloneOptions(opts)
			}
			r := callResult{reply: out.ProtoReflect().New().Interface()}
			r.err = invoker(ctx, method, proto.Clone(in), r.reply, cc, own...)
			return r
		}, nil, describeDifference)
		if a.err == nil {
			proto.Reset(out)
			proto.Merge(out, a.reply)
		}
		return a.err
	}
}

// A callResult is the result of making a call once: the reply, or the error.
type callResult struct {
	reply proto.Message
	err   error
}

// describeDifference returns the difference between two answers as text, such as "code OK and Aborted". It returns ""
// if the answers are equal.
func describeDifference(a, b callResult) string {
	if x, y := status.Code(a.err), status.Code(b.err); x != y {
		return fmt.Sprintf("code %s and %s", x, y)
	}
	if a.err == nil && !proto.Equal(a.reply, b.reply) {
		return fmt.Sprintf("reply {%v} and {%v}", a.reply, b.reply)
	}
	return ""
}
