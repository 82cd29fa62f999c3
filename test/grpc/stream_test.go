//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// A streamServer serves StreamingOutputCall: three messages with the number of the attempt.
type streamServer struct {
	testpb.UnimplementedTestServiceServer
	slow   atomic.Int64 // attempts to delay before their first message
	n      atomic.Int64
	gone   atomic.Int64 // attempts that were cancelled
	answer func(n int64) error
}

func (s *streamServer) StreamingOutputCall(req *testpb.StreamingOutputCallRequest, out testpb.TestService_StreamingOutputCallServer) error {
	n := s.n.Add(1)
	me := fmt.Sprint(n)
	_ = out.SendHeader(metadata.Pairs("n", me)) // at once, before the work
	out.SetTrailer(metadata.Pairs("n", me))
	if s.slow.Add(-1) >= 0 {
		select {
		case <-out.Context().Done():
			s.gone.Add(1)
			return out.Context().Err()
		case <-time.After(5 * time.Second):
		}
	}
	for range req.ResponseParameters {
		if err := out.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(me)}}); err != nil {
			return err
		}
	}
	if s.answer != nil {
		return s.answer(n)
	}
	return nil
}

func (s *streamServer) FullDuplexCall(d testpb.TestService_FullDuplexCallServer) error {
	s.n.Add(1)
	_, err := d.Recv()
	if err == io.EOF {
		return nil
	}
	return err
}

func streamClient(t *testing.T, s *streamServer, opts ...hedge.GRPCOption) (testpb.TestServiceClient, *hedge.Stats) {
	var stats *hedge.Stats
	cc := dial(t, serveGRPC(t, s), grpc.WithChainStreamInterceptor(hedge.NewInterceptor(
		append(opts, hedge.WithStats(&stats), hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100))...).Stream()))
	client := testpb.NewTestServiceClient(cc)
	got, _, err := collect(t.Context(), client)
	require.NoError(t, err)
	require.Len(t, got, 3)
	s.n.Store(0)
	return client, stats
}

var three = &testpb.StreamingOutputCallRequest{ResponseParameters: make([]*testpb.ResponseParameters, 3)}

// collect opens a stream and returns its messages.
func collect(ctx context.Context, client testpb.TestServiceClient, opts ...grpc.CallOption) (got []string, stream grpc.ClientStream, err error) {
	st, err := client.StreamingOutputCall(ctx, three, append(opts, grpc.WaitForReady(true))...)
	if err != nil {
		return nil, nil, err
	}
	for {
		m, err := st.Recv()
		if err == io.EOF {
			return got, st, nil
		}
		if err != nil {
			return got, st, err
		}
		got = append(got, string(m.Payload.GetBody()))
	}
}

func TestStreamIsHedgedUntilFirstMessage(t *testing.T) {
	s := new(streamServer)
	client, stats := streamClient(t, s)
	s.slow.Store(1)
	var header, trailer metadata.MD
	var from peer.Peer
	var finished []error
	start := time.Now()
	got, st, err := collect(hedge.WithDelay(t.Context(), 20*time.Millisecond), client,
		grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from), grpc.OnFinish(func(err error) { finished = append(finished, err) }))
	require.NoError(t, err)
	assert.Less(t, time.Since(start), 3*time.Second)

	// Everything is the hedge's: the messages, the header, the trailer.
	want := []string{"2"}
	assert.Equal(t, []string{"2", "2", "2"}, got)
	md, err := st.Header()
	require.NoError(t, err)
	assert.Equal(t, want, md["n"])
	assert.Equal(t, want, st.Trailer()["n"])
	assert.Equal(t, want, header["n"])
	assert.Equal(t, want, trailer["n"])
	assert.NotNil(t, from.Addr)
	assert.Equal(t, []error{nil}, finished, "once, with the call's own end")
	assert.EqualValues(t, 1, stats.HedgeWins.Load())
	require.Eventually(t, func() bool { return s.gone.Load() == 1 }, 5*time.Second, time.Millisecond, "the loser is cancelled")
	assert.Equal(t, []error{nil}, finished)
	assert.Equal(t, want, trailer["n"], "and does not write to the caller's targets")
}

func TestFastStreamIsNotHedged(t *testing.T) {
	s := new(streamServer)
	client, stats := streamClient(t, s)
	var trailer metadata.MD
	finished := 0
	got, _, err := collect(hedge.WithDelay(t.Context(), time.Minute), client, grpc.Trailer(&trailer), grpc.OnFinish(func(error) { finished++ }))
	require.NoError(t, err)
	assert.Equal(t, []string{"1", "1", "1"}, got)
	assert.Equal(t, []string{"1"}, trailer["n"])
	assert.Equal(t, 1, finished)
	assert.Zero(t, stats.HedgedRequests.Load())
}

func TestStreamHeaderChoosesPrimary(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	st, err := client.StreamingOutputCall(hedge.WithDelay(t.Context(), time.Nanosecond), three)
	require.NoError(t, err)
	md, err := st.Header()
	require.NoError(t, err)
	assert.Equal(t, []string{"1"}, md["n"])
	for range 3 {
		m, err := st.Recv()
		require.NoError(t, err)
		assert.Equal(t, "1", string(m.Payload.Body))
	}
	_, err = st.Recv()
	assert.Equal(t, io.EOF, err)
	assert.EqualValues(t, 1, s.n.Load())
}

func TestStreamHeaderDuringRaceIsWinners(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	s.slow.Store(1)
	st, err := client.StreamingOutputCall(hedge.WithDelay(t.Context(), 50*time.Millisecond), three)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		m, err := st.Recv()
		if assert.NoError(t, err) {
			assert.Equal(t, "2", string(m.Payload.Body))
		}
	})
	time.Sleep(10 * time.Millisecond) // the race is on
	md, err := st.Header()
	require.NoError(t, err)
	assert.Equal(t, []string{"2"}, md["n"])
	wg.Wait()
	for err == nil {
		_, err = st.Recv()
	}
	assert.Equal(t, io.EOF, err)
}

func TestClientStreamsAreNotHedged(t *testing.T) {
	s := new(streamServer)
	client, stats := streamClient(t, s)
	st, err := client.FullDuplexCall(hedge.WithDelay(t.Context(), time.Nanosecond))
	require.NoError(t, err)
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, st.CloseSend())
	_, err = st.Recv()
	assert.Equal(t, io.EOF, err)
	assert.EqualValues(t, 1, s.n.Load())
	assert.EqualValues(t, 1, stats.NotHedgeable.Load())
}

func TestFailedStreamKeepsStatus(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	s.answer = func(n int64) error { return status.Errorf(codes.DataLoss, "attempt %d", n) }
	s.slow.Store(1)
	var finished []error
	got, _, err := collect(hedge.WithDelay(t.Context(), 20*time.Millisecond), client, grpc.OnFinish(func(err error) { finished = append(finished, err) }))
	assert.Len(t, got, 3)
	assert.Equal(t, "attempt 2", status.Convert(err).Message())
	require.Len(t, finished, 1)
	assert.Equal(t, codes.DataLoss, status.Code(finished[0]))
}

func TestStreamEndsWithCallerContext(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	s.slow.Store(2)
	ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*time.Millisecond), 200*time.Millisecond)
	defer cancel()
	_, _, err := collect(ctx, client)
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.Eventually(t, func() bool { return s.gone.Load() == 2 }, 5*time.Second, time.Millisecond)
}

func TestUnopenedStreamReturnsItsError(t *testing.T) {
	intercept := hedge.NewInterceptor(hedge.WithMethods("/*")).Stream()
	want := errors.New("no stream")
	finished := 0
	_, err := intercept(t.Context(), &grpc.StreamDesc{ServerStreams: true}, nil, "/a.B/C",
		func(_ context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			for _, o := range opts {
				if o, ok := o.(grpc.OnFinishCallOption); ok {
					o.OnFinish(want)
				}
			}
			return nil, want
		}, grpc.OnFinish(func(error) { finished++ }))
	assert.Same(t, want, err)
	assert.Equal(t, 1, finished)
}

// TestStreamEndsIfRequestCannotBeSent checks that no context remains.
func TestStreamEndsIfRequestCannotBeSent(t *testing.T) {
	client, _ := streamClient(t, new(streamServer))
	life, cancel := context.WithCancel(t.Context())
	defer cancel()
	caller := &fixture.CountingContext{Context: life}
	var finished []error
	_, err := client.StreamingOutputCall(caller, &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 100)}},
		grpc.MaxCallSendMsgSize(10), grpc.OnFinish(func(err error) { finished = append(finished, err) }))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, []error{err}, finished)
	require.Eventually(t, func() bool { return caller.Children.Load() == 0 }, 5*time.Second, time.Millisecond, "contexts hang on the caller's")
}

// TestReadStreamReleasesContexts lets the primary and the hedge win.
func TestReadStreamReleasesContexts(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	life, cancel := context.WithCancel(t.Context())
	defer cancel()
	caller := &fixture.CountingContext{Context: life}
	for slow := range int64(2) {
		s.slow.Store(slow)
		_, _, err := collect(hedge.WithDelay(caller, 20*ms), client)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return caller.Children.Load() == 0 }, 5*time.Second, time.Millisecond)
	}
}

// TestStreamAbandonedBeforeFirstMessageEnds cancels the caller's context, which grpc allows as an end of a stream.
func TestStreamAbandonedBeforeFirstMessageEnds(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	s.slow.Store(2)
	for _, closed := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		finished := make(chan error, 1)
		st, err := client.StreamingOutputCall(ctx, three, grpc.OnFinish(func(err error) { finished <- err }))
		require.NoError(t, err)
		if closed {
			require.NoError(t, st.CloseSend())
		}
		assert.Nil(t, st.Trailer(), "it does not wait for a race")
		cancel()
		assert.Equal(t, codes.Canceled, status.Code(<-finished))
		_ = st.Trailer()
		_, err = st.Header()
		require.NoError(t, err, "RecvMsg has the status")
		_, err = st.Recv()
		assert.Equal(t, codes.Canceled, status.Code(err))
		assert.Empty(t, finished, "once")
	}
}

func TestStreamContextOutlivesLoser(t *testing.T) {
	s := new(streamServer)
	client, stats := streamClient(t, s)
	s.slow.Store(1)
	type key struct{}
	st, err := client.StreamingOutputCall(hedge.WithDelay(context.WithValue(t.Context(), key{}, "value"), 20*ms), three)
	require.NoError(t, err)
	early := st.Context()
	assert.Equal(t, "value", early.Value(key{}))
	for range 3 {
		_, err = st.Recv()
		require.NoError(t, err)
		assert.NoError(t, early.Err())
		assert.NoError(t, st.Context().Err())
	}
	_, err = st.Recv()
	assert.Equal(t, io.EOF, err)
	assert.EqualValues(t, 1, stats.HedgeWins.Load())
	assert.Equal(t, context.Canceled, early.Err(), "it ends with the call")
}

func TestOnFinishFunctionsSeeTrailer(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	for slow := range int64(2) {
		s.n.Store(0)
		s.slow.Store(slow)
		var trailer, seen metadata.MD
		_, _, err := collect(hedge.WithDelay(t.Context(), 20*ms), client, grpc.Trailer(&trailer), grpc.OnFinish(func(error) { seen = trailer }))
		require.NoError(t, err)
		assert.Equal(t, []string{fmt.Sprint(1 + slow)}, seen["n"])
	}
}

// A deafStream is a stream that ignores its context, and whose messages arrive late.
type deafStream struct {
	grpc.ClientStream
	after time.Duration
	sent  func(any)
}

func (s *deafStream) SendMsg(m any) error  { time.Sleep(s.after / 2); s.sent(m); return nil }
func (s *deafStream) CloseSend() error     { return nil }
func (s *deafStream) RecvMsg(any) error    { time.Sleep(s.after / 2); return nil }
func (s *deafStream) Trailer() metadata.MD { return nil }

func TestStreamHedgeThatIgnoresContextDoesNotDelayCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := hedge.NewInterceptor(hedge.WithMethods("/*"))
		var n atomic.Int64
		var mu sync.Mutex
		var sent []string
		streamer := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return &deafStream{after: []time.Duration{20 * ms, 5 * time.Second}[min(n.Add(1)-1, 1)], sent: func(m any) {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, m.(*wrapperspb.StringValue).Value)
			}}, nil
		}
		start := time.Now()
		st, err := handle.Stream()(hedge.WithDelay(t.Context(), ms), &grpc.StreamDesc{ServerStreams: true}, nil, "/a.B/C", streamer)
		require.NoError(t, err)
		req := wrapperspb.String("id")
		require.NoError(t, st.SendMsg(req))
		require.NoError(t, st.CloseSend())
		require.NoError(t, st.RecvMsg(new(wrapperspb.StringValue)))
		assert.Equal(t, 20*ms, time.Since(start))
		req.Value = "another call's"
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.Greater(t, len(sent), 1)
		for _, value := range sent {
			assert.Equal(t, "id", value)
		}
	})
}

// A panicStream is a stream whose codec panics.
type panicStream struct{ deafStream }

func (*panicStream) RecvMsg(any) error { panic("codec") }

func TestPanicInStreamDoesNotBlock(t *testing.T) {
	handle := hedge.NewInterceptor(hedge.WithMethods("/*"))
	st, err := handle.Stream()(t.Context(), &grpc.StreamDesc{ServerStreams: true}, nil, "/a.B/C",
		func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return &panicStream{deafStream{sent: func(any) {}}}, nil
		})
	require.NoError(t, err)
	assert.PanicsWithValue(t, "codec", func() { _ = st.RecvMsg(new(wrapperspb.StringValue)) })
	assert.Nil(t, st.Trailer())
	assert.PanicsWithValue(t, "codec", func() { _ = st.RecvMsg(new(wrapperspb.StringValue)) }, "it does not wait for a race")
}

// An unreadable is a message that panics when it is copied.
type unreadable struct{ *wrapperspb.StringValue }

func (unreadable) ProtoReflect() protoreflect.Message { panic("message") }

func TestStreamWithUncloneableRequestIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := hedge.NewInterceptor(hedge.WithMethods("/*"))
		st, err := handle.Stream()(hedge.WithDelay(t.Context(), ms), &grpc.StreamDesc{ServerStreams: true}, nil, "/a.B/C",
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return &deafStream{after: time.Second, sent: func(any) {}}, nil
			})
		require.NoError(t, err)
		require.NoError(t, st.SendMsg(unreadable{wrapperspb.String("id")}))
		require.NoError(t, st.RecvMsg(new(wrapperspb.StringValue)))
		assert.Zero(t, handle.Snapshot().Stats.HedgePanics)
		assert.EqualValues(t, 1, handle.Snapshot().Stats.NotHedgeable)
		require.NoError(t, st.RecvMsg(new(wrapperspb.StringValue)))
	})
}

// A stuckStream is a stream on a connection that neither sends nor receives.
type stuckStream struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *stuckStream) SendMsg(any) error { return s.RecvMsg(nil) }
func (s *stuckStream) RecvMsg(any) error {
	<-s.ctx.Done()
	return status.FromContextError(s.ctx.Err()).Err()
}
func (s *stuckStream) Trailer() metadata.MD { return nil }

func TestSendErrorAfterHedgeWonIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handle := hedge.NewInterceptor(hedge.WithMethods("/*"))
		var n atomic.Int64
		var hedged context.Context
		st, err := handle.Stream()(hedge.WithDelay(t.Context(), ms), &grpc.StreamDesc{ServerStreams: true}, nil, "/a.B/C",
			func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
				if n.Add(1) == 1 {
					return &stuckStream{ctx: ctx}, nil
				}
				hedged = ctx
				return &deafStream{sent: func(any) {}}, nil
			})
		require.NoError(t, err)
		go func() { assert.NoError(t, st.SendMsg(wrapperspb.String("id")), "the hedge has sent it") }()
		synctest.Wait()
		require.NoError(t, st.RecvMsg(new(wrapperspb.StringValue)))
		synctest.Wait()
		assert.NoError(t, hedged.Err(), "the call goes on")
		require.NoError(t, st.RecvMsg(new(wrapperspb.StringValue)))
	})
}
