//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestServerInterceptorPropagatesAttemptNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := warmCaller(t, read)
		marked := func(ctx context.Context) context.Context {
			var inside context.Context
			_, _ = hedge.NewUnaryServerInterceptor()(metadata.NewIncomingContext(ctx, metadata.Pairs("grpc-previous-rpc-attempts", "3")), nil, nil,
				func(ctx context.Context, _ any) (any, error) { inside = ctx; return nil, nil })
			return inside
		}
		for name, ctx := range map[string]context.Context{
			"alone":         marked(t.Context()),
			"among others":  metadata.AppendToOutgoingContext(marked(t.Context()), "token", "x"),
			"already there": metadata.AppendToOutgoingContext(marked(t.Context()), "grpc-previous-rpc-attempts", "3"),
		} {
			i := &invoker{answer: in(time.Second)}
			_, err := c.get(ctx, i)
			require.NoError(t, err)
			require.Len(t, i.sent, 1, name)
			md, _ := metadata.FromOutgoingContext(i.sent[0])
			assert.Equal(t, []string{"3"}, md["grpc-previous-rpc-attempts"], name)
		}
		assert.EqualValues(t, 3, c.stats.NotHedgeable.Load())
	})
}

type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

func TestServerInterceptorWithoutAttemptNumberDoesNotAllocate(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("user-agent", "x", ":authority", "y"))
	unary := hedge.NewUnaryServerInterceptor()
	handler := func(context.Context, any) (any, error) { return nil, nil }
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = unary(ctx, nil, nil, handler) }))
	stream, ss := hedge.NewStreamServerInterceptor(), &serverStream{ctx: ctx}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		_ = stream(nil, ss, nil, func(any, grpc.ServerStream) error { return nil })
	}))
}
