//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
	"github.com/gohedge/hedge/hedgetest/grpctest"
)

// An echo is a service that sends each message of a stream back.
type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (echo) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	return s.Send(new(testpb.StreamingOutputCallResponse))
}

func (echo) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return s.SendAndClose(new(testpb.StreamingInputCallResponse))
		} else if err != nil {
			return err
		}
	}
}

func (echo) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

// streamsOfAllKinds are the stream descriptions of echo.
var streamsOfAllKinds = map[string]*grpc.StreamDesc{
	"StreamingOutputCall": {ServerStreams: true},
	"StreamingInputCall":  {ClientStreams: true},
	"FullDuplexCall":      {ServerStreams: true, ClientStreams: true},
}

func TestLimiterStreamTakesSlotWithFirstMessage(t *testing.T) {
	for method, desc := range streamsOfAllKinds {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := hedge.NewLimiter(2)
				cc := grpctest.NewServer(t, func(s *grpc.Server) { testpb.RegisterTestServiceServer(s, echo{}) },
					grpc.ChainUnaryInterceptor(limit.UnaryServer()), grpc.ChainStreamInterceptor(limit.StreamServer())).Dial()
				var silent []grpc.ClientStream
				for range 3 {
					s, err := cc.NewStream(t.Context(), desc, "/grpc.testing.TestService/"+method)
					require.NoError(t, err)
					silent = append(silent, s)
				}
				synctest.Wait()
				assert.Equal(t, hedge.LimiterSnapshot{Limit: 2}, limit.Snapshot())
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := testpb.NewTestServiceClient(cc).EmptyCall(ctx, new(testpb.Empty))
				require.NoError(t, err)
				if desc.ClientStreams { // it has the place until its handler returns
					for _, s := range silent {
						require.NoError(t, s.SendMsg(new(testpb.StreamingOutputCallRequest)))
					}
					synctest.Wait()
					assert.Equal(t, hedge.LimiterSnapshot{Limit: 2, Working: 2, Waiting: 1, Worked: 3}, limit.Snapshot())
				}
				for _, s := range silent {
					if !desc.ClientStreams {
						require.NoError(t, s.SendMsg(new(testpb.StreamingOutputCallRequest)))
					}
					require.NoError(t, s.CloseSend())
				}
				synctest.Wait()
				assert.Equal(t, hedge.LimiterSnapshot{Limit: 2, Worked: 4}, limit.Snapshot())
			})
		})
	}
}

// serveStream runs a handler behind the stream interceptor of a Limiter.
func serveStream(l *hedge.Limiter, stream grpc.ServerStream, handler func(grpc.ServerStream) error) error {
	return l.StreamServer()(nil, stream, &grpc.StreamServerInfo{FullMethod: "/a.B/C", IsClientStream: true}, func(_ any, s grpc.ServerStream) error { return handler(s) })
}

// A talkingStream is a stream whose SendMsg succeeds and whose RecvMsg returns err.
type talkingStream struct {
	incomingStream
	err     error
	trailer metadata.MD
}

func (s *talkingStream) RecvMsg(any) error            { return s.err }
func (s *talkingStream) SendMsg(any) error            { return nil }
func (s *talkingStream) SendHeader(metadata.MD) error { return nil }
func (s *talkingStream) SetTrailer(md metadata.MD)    { s.trailer = metadata.Join(s.trailer, md) }

func TestLimiterStreamTakesSlotBeforeHandlerSends(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(grpc.ServerStream) error
		err    error
		worked int64
	}{
		"SendMsg":                           {func(s grpc.ServerStream) error { return s.SendMsg(nil) }, nil, 1},
		"SendHeader":                        {func(s grpc.ServerStream) error { return s.SendHeader(nil) }, nil, 1},
		"RecvMsg":                           {func(s grpc.ServerStream) error { return s.RecvMsg(nil) }, nil, 1},
		"RecvMsg after the end":             {func(s grpc.ServerStream) error { return s.RecvMsg(nil) }, io.EOF, 1},
		"RecvMsg of a stream that is reset": {func(s grpc.ServerStream) error { return s.RecvMsg(nil) }, status.Error(codes.Canceled, "reset"), 0},
		"nothing":                           {func(grpc.ServerStream) error { return nil }, nil, 0},
	} {
		l := hedge.NewLimiter(1)
		err := serveStream(l, &talkingStream{incomingStream: incomingStream{ctx: t.Context()}, err: c.err}, func(s grpc.ServerStream) error {
			err := c.do(s)
			assert.Equal(t, c.worked, l.Snapshot().Working, name)
			assert.Equal(t, err, c.do(s), "%s: a stream takes one place", name)
			l.Release(s.Context())
			assert.Zero(t, l.Snapshot().Working, name)
			return err
		})
		assert.Equal(t, c.err, err, name)
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: c.worked}, l.Snapshot(), name)
	}
}

func TestLimiterStreamReleasedBeforeFirstMessageTakesNoSlot(t *testing.T) {
	l := hedge.NewLimiter(1)
	require.NoError(t, serveStream(l, &incomingStream{ctx: t.Context()}, func(s grpc.ServerStream) error {
		l.Release(s.Context())
		return s.RecvMsg(nil)
	}))
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1}, l.Snapshot())
}

// TestLimiterStreamWithTwoInterceptorsTakesOneSlot has a second interceptor or handler of the same Limiter, which the
// stream passes before its first message.
func TestLimiterStreamWithTwoInterceptorsTakesOneSlot(t *testing.T) {
	limitHTTP := func(l *hedge.Limiter, ctx context.Context) int {
		w := httptest.NewRecorder()
		l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		return w.Code
	}
	limitUnary := func(l *hedge.Limiter, ctx context.Context) error {
		_, err := l.UnaryServer()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) { return nil, nil })
		return err
	}
	for name, inner := range map[string]func(*hedge.Limiter, grpc.ServerStream) error{
		"StreamServer": func(l *hedge.Limiter, s grpc.ServerStream) error {
			return serveStream(l, s, func(s grpc.ServerStream) error { return s.RecvMsg(nil) })
		},
		"StreamServer thrice": func(l *hedge.Limiter, s grpc.ServerStream) error {
			return serveStream(l, s, func(s grpc.ServerStream) error {
				return serveStream(l, s, func(s grpc.ServerStream) error { return s.SendMsg(nil) })
			})
		},
		"Handler": func(l *hedge.Limiter, s grpc.ServerStream) error {
			assert.Equal(t, http.StatusOK, limitHTTP(l, s.Context()))
			return s.RecvMsg(nil)
		},
		"UnaryServer": func(l *hedge.Limiter, s grpc.ServerStream) error {
			return errors.Join(limitUnary(l, s.Context()), s.RecvMsg(nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := hedge.NewLimiter(1)
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				require.NoError(t, serveStream(l, &talkingStream{incomingStream: incomingStream{ctx: ctx}}, func(s grpc.ServerStream) error { return inner(l, s) }))
				assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, l.Snapshot())
			})
		})
	}
	t.Run("a stream that leaves", func(t *testing.T) {
		l := hedge.NewLimiter(1)
		ctx, leave := context.WithCancel(t.Context())
		leave()
		require.Equal(t, codes.Canceled, status.Code(serveStream(l, &incomingStream{ctx: t.Context()}, func(first grpc.ServerStream) error {
			require.NoError(t, first.RecvMsg(nil)) // takes the only place
			return serveStream(l, &talkingStream{incomingStream: incomingStream{ctx: ctx}}, func(s grpc.ServerStream) error {
				assert.Equal(t, http.StatusServiceUnavailable, limitHTTP(l, s.Context()))
				assert.Equal(t, codes.Canceled, status.Code(limitUnary(l, s.Context())))
				return nil
			})
		})))
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1, Left: 1}, l.Snapshot())
	})
}

// TestLimiterRefusedStreamEndsWithLimiterStatus has handlers that ignore the error of RecvMsg.
func TestLimiterRefusedStreamEndsWithLimiterStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1)
		block := make(chan struct{})
		work := func(s grpc.ServerStream) error {
			err := s.RecvMsg(nil)
			<-block
			return err
		}
		go func() { _ = serveStream(l, &incomingStream{ctx: t.Context()}, work) }()
		synctest.Wait()
		for _, swallowed := range []error{nil, errors.New("broken")} {
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, leave)
			stream := &talkingStream{incomingStream: incomingStream{ctx: ctx}}
			err := serveStream(l, stream, func(s grpc.ServerStream) error {
				assert.Equal(t, codes.Canceled, status.Code(s.RecvMsg(nil)))
				assert.Equal(t, codes.Canceled, status.Code(s.SendMsg(nil)), "it sends nothing without its place")
				return swallowed
			})
			assert.Equal(t, codes.Canceled, status.Code(err))
		}
		for range 4 {
			go func() { _ = serveStream(l, &incomingStream{ctx: t.Context()}, work) }()
			synctest.Wait()
		}
		marked := metadata.NewIncomingContext(t.Context(), metadata.Pairs("grpc-previous-rpc-attempts", "1"))
		stream := &talkingStream{incomingStream: incomingStream{ctx: marked}}
		err := serveStream(l, stream, func(grpc.ServerStream) error { t.Error("the handler of a refused hedge runs"); return nil })
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, metadata.Pairs("hedge-limit", "1", "hedge-refused", "1"), stream.trailer)
		close(block)
		synctest.Wait()
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 5, Left: 2, Refused: 1}, l.Snapshot())
	})
}

// TestLimiterStreamWhoseHandlerReturnsWhileQueuedHoldsNoSlot calls RecvMsg in a goroutine of the handler while other
// requests have all slots.
func TestLimiterStreamWhoseHandlerReturnsWhileQueuedHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1)
		block := make(chan struct{})
		go func() {
			_ = serveStream(l, &incomingStream{ctx: t.Context()}, func(s grpc.ServerStream) error { err := s.RecvMsg(nil); <-block; return err })
		}()
		synctest.Wait()
		ctx, end := context.WithCancel(t.Context())
		start := time.Now()
		require.NoError(t, serveStream(l, &incomingStream{ctx: ctx}, func(s grpc.ServerStream) error {
			go func() { _ = s.RecvMsg(nil) }()
			time.Sleep(time.Second)
			return nil
		}))
		assert.Equal(t, time.Second, time.Since(start))
		close(block)
		synctest.Wait()
		end()
		assert.Zero(t, l.Snapshot().Working+l.Snapshot().Waiting)
	})
}

func TestWithLimitedHealthChecksLimitsHealthChecks(t *testing.T) {
	for method, call := range map[string]string{"Check": "unary", "Watch": "stream"} {
		l := hedge.NewLimiter(1, hedge.WithLimitedHealthChecks())
		full := "/grpc.health.v1.Health/" + method
		if call == "unary" {
			_, err := l.UnaryServer()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: full}, func(context.Context, any) (any, error) { return nil, nil })
			require.NoError(t, err)
		} else {
			require.NoError(t, l.StreamServer()(nil, &incomingStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: full}, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) }))
		}
		assert.EqualValues(t, 1, l.Snapshot().Worked, method)
	}
}
