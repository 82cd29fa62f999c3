//go:build !hedge_nogrpc

package worlds_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// connKey is the key of the metadata that the interceptors of each connection add.
const connKey = "x-conn"

// markInterceptors returns the interceptors of a connection, if the scenario has them. They add the name of the
// connection to the metadata.
func (p *grpcPlay) markInterceptors(name string) []grpc.DialOption {
	if !p.w.way.marks {
		return nil
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			return invoke(metadata.AppendToOutgoingContext(ctx, connKey, name), method, req, reply, cc, options...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(metadata.AppendToOutgoingContext(ctx, connKey, name), desc, cc, method, options...)
		}),
	}
}

// checkMarks reports an attempt that the interceptors of its connection did not observe exactly once, or that those of
// another connection observed.
func (p *grpcPlay) checkMarks(md metadata.MD, conn, number, attempt int) {
	want := strconv.Itoa(conn)
	if p.w.way.second && attempt > 0 {
		want = "second"
	}
	if p.w.way.marks && !slices.Equal(md[connKey], []string{want}) {
		p.note("3 interceptors", fmt.Sprintf("attempt %d of call %d went over connection %s, and interceptors of %q have seen it", attempt, number, want, md[connKey]))
	}
}

// openIdleStreams opens server streams without messages. It checks that they occupy no slot of the Limiter.
func (p *grpcPlay) openIdleStreams(ctx context.Context) {
	for range p.w.idle {
		if _, err := p.second.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/shop.v1.Items/ListItems"); err != nil {
			panic(err)
		}
	}
	if p.w.idle == 0 {
		return
	}
	synctest.Wait() // the server has the streams
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := p.second.Invoke(ctx, "/shop.v1.Items/GetItem", newSimpleRequest(requestText), new(testpb.SimpleResponse)); err != nil {
		p.note("5 places", fmt.Sprintf("%d streams without a message keep a call out: %v", p.w.idle, err))
	}
}
