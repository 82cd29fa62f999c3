//go:build !hedge_nogrpc

package grpctest_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
	"github.com/gohedge/hedge/hedgetest/grpctest"
)

const (
	unary  = "/grpc.testing.TestService/UnaryCall"
	stream = "/grpc.testing.TestService/StreamingOutputCall"
)

// failures is a test that only writes down how it fails.
type failures struct {
	testing.TB
	mu  sync.Mutex // guards all
	all []string
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf(format, args...))
}

// service answers with how often it was called, if it counts, and streams three messages.
type service struct {
	testpb.UnimplementedTestServiceServer
	mu      sync.Mutex // guards handled
	handled int
	counts  bool
}

func (s *service) register(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, s) }

func (s *service) state() any { return &s.handled }

func (s *service) UnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = grpc.SetHeader(ctx, metadata.Pairs("served", "yes"))
	if !s.counts {
		return &testpb.SimpleResponse{Username: "same"}, nil
	}
	s.handled++
	if req.FillUsername && s.handled > 1 {
		return nil, status.Error(codes.AlreadyExists, "once")
	}
	return &testpb.SimpleResponse{Username: fmt.Sprint(s.handled)}, nil
}

func (s *service) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	for range 3 {
		if err := out.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
	return nil
}

// TestStalledCallsAreHedged has a unary call and a stream whose first attempts are never answered.
func TestStalledCallsAreHedged(t *testing.T) {
	const usual = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		server := grpctest.NewServer(t, new(service).register)
		var calls hedgetest.Recorder
		in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithObserver(&calls))
		cc := server.Dial(grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()))
		assert.Equal(t, grpctest.Target, cc.Target())
		hedgetest.Warm(t, in, usual, grpctest.Target, unary, stream)
		client := testpb.NewTestServiceClient(cc)

		server.At(1, hedgetest.Fault{Stall: true})
		begun := time.Now()
		_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
		require.NoError(t, err)
		assert.InDelta(t, usual, time.Since(begun), 0.02*float64(usual))
		calls.Hedged(t, 1)

		server.At(1, hedgetest.Fault{Stall: true})
		out, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
		require.NoError(t, err)
		for range 3 {
			_, err = out.Recv()
			require.NoError(t, err)
		}
		_, err = out.Recv()
		assert.Equal(t, io.EOF, err)
		calls.Hedged(t, 1)
		assert.Equal(t, 4, server.Attempts())
	})
}

func TestServerAppliesFaultToNthAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := grpctest.NewServer(t, new(service).register)
		client := testpb.NewTestServiceClient(server.Dial())
		call := func() (codes.Code, time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begun := time.Now()
			_, err := client.UnaryCall(ctx, new(testpb.SimpleRequest))
			return status.Code(err), time.Since(begun)
		}
		server.At(2, hedgetest.Fault{Status: int(codes.NotFound)})
		server.At(3, hedgetest.Fault{Delay: time.Second})
		server.At(4, hedgetest.Fault{Delay: time.Second, Status: int(codes.Internal)})
		server.At(5, hedgetest.Fault{Stall: true})
		server.At(6, hedgetest.Fault{Delay: time.Second, Reset: true})
		for i, want := range []struct {
			code codes.Code
			wait time.Duration
		}{
			{codes.OK, 0}, {codes.NotFound, 0}, {codes.OK, time.Second}, {codes.Internal, time.Second},
			{codes.DeadlineExceeded, time.Minute}, {codes.Unavailable, time.Second}, {codes.OK, 0},
		} {
			code, wait := call()
			assert.Equal(t, want.code, code, "%d", i+1)
			assert.Equal(t, want.wait, wait, "%d", i+1)
		}
		assert.Equal(t, 7, server.Attempts())
	})
}

func TestServerCutsStreamAfterMessagesOfFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := grpctest.NewServer(t, new(service).register)
		client := testpb.NewTestServiceClient(server.Dial())
		for fault, want := range map[hedgetest.Fault]codes.Code{
			{Stall: true, After: 2}: codes.DeadlineExceeded,
			{Reset: true, After: 2}: codes.Unavailable,
		} {
			server.At(1, fault)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
			require.NoError(t, err)
			for range 2 {
				_, err = out.Recv()
				require.NoError(t, err)
			}
			_, err = out.Recv()
			assert.Equal(t, want, status.Code(err))
		}
		server.At(1, hedgetest.Fault{Stall: true, After: 3})
		out, err := client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
		require.NoError(t, err)
		for range 3 {
			_, err = out.Recv()
			require.NoError(t, err)
		}
		_, err = out.Recv()
		assert.Equal(t, io.EOF, err, "an answer of no more than After comes whole")
	})
}

func TestTwiceFailsOnUnsafeCalls(t *testing.T) {
	for _, test := range []struct {
		name string
		of   *service
		req  *testpb.SimpleRequest
		want []string
	}{
		{"read", new(service), new(testpb.SimpleRequest), nil},
		{"count", &service{counts: true}, new(testpb.SimpleRequest), []string{"of two at once, the answers differ: reply", "when it is sent once more: reply", "changes the state\nfrom &2\nto   &3"}},
		{"once", &service{counts: true}, &testpb.SimpleRequest{FillUsername: true}, []string{"of two at once, the answers differ: code", "", ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, f := grpctest.NewServer(t, test.of.register), &failures{TB: t}
				client := testpb.NewTestServiceClient(server.Dial(grpc.WithUnaryInterceptor(grpctest.Twice(f, test.of.state))))
				var header metadata.MD
				resp, err := client.UnaryCall(t.Context(), test.req, grpc.Header(&header))
				if err == nil {
					assert.NotEmpty(t, resp.Username)
				}
				assert.Equal(t, []string{"yes"}, header["served"])
				for i, want := range test.want {
					if i < len(f.all) {
						assert.Contains(t, f.all[i], want)
						assert.Contains(t, f.all[i], "hedgetest: "+unary+" is not safe to hedge: ")
					}
				}
				assert.Equal(t, len(test.want) == 0, len(f.all) == 0, f.all)
				assert.Equal(t, 3, server.Attempts())
			})
		})
	}
}

func TestTwiceRequiresProtoMessages(t *testing.T) {
	f, calls := &failures{TB: t}, 0
	invoker := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		calls++
		return nil
	}
	var reply string
	assert.NoError(t, grpctest.Twice(f, nil)(t.Context(), "/a.B/C", "request", &reply, nil, invoker))
	assert.Equal(t, []string{"hedgetest: /a.B/C has a string and a *string, and not two messages of package proto"}, f.all)
	assert.Equal(t, 1, calls)
}
