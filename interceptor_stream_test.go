package hedge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
)

// streamServer serves StreamingOutputCall: three messages that say which attempt sends them.
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

func streamClient(t *testing.T, s *streamServer, opts ...hedge.Option) (testpb.TestServiceClient, *hedge.Stats) {
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

// collect makes a call and returns its messages.
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

func TestSlowStreamIsHedgedUntilItsFirstMessage(t *testing.T) {
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

func TestFastStreamIsThePrimarys(t *testing.T) {
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

func TestAskingForTheHeaderDecidesForThePrimary(t *testing.T) {
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

func TestHeaderDuringTheRaceIsTheWinners(t *testing.T) {
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

func TestStreamsOtherThanServersPassThrough(t *testing.T) {
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

func TestStreamThatFailsKeepsItsStatus(t *testing.T) {
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

func TestStreamEndsWithTheCallersContext(t *testing.T) {
	s := new(streamServer)
	client, _ := streamClient(t, s)
	s.slow.Store(2)
	ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), 20*time.Millisecond), 200*time.Millisecond)
	defer cancel()
	_, _, err := collect(ctx, client)
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.Eventually(t, func() bool { return s.gone.Load() == 2 }, 5*time.Second, time.Millisecond)
}

func TestStreamThatCannotStartFailsInItsOwnWords(t *testing.T) {
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

// gRPC's own interoperability cases, with a hedge forced on every call.
func TestInteropStreamsPassWithEveryCallHedged(t *testing.T) {
	var stats *hedge.Stats
	forced := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return streamer(hedge.WithDelay(ctx, time.Nanosecond), desc, cc, method, opts...)
	}
	// Behind the hedging: give every attempt the time for a hedge to start.
	late := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		if desc.ClientStreams || err != nil {
			return s, err
		}
		return lateStream{s}, nil
	}
	cc := dial(t, serveGRPC(t, interop.NewTestServer()), grpc.WithChainStreamInterceptor(forced, hedge.NewInterceptor(
		hedge.WithMethods("/*"), hedge.WithBudgetPercent(300), hedge.WithStats(&stats), hedge.WithMinDelay(0)).Stream(), late))
	client := testpb.NewTestServiceClient(cc)
	_, err := client.EmptyCall(t.Context(), &testpb.Empty{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	for range 20 {
		interop.DoServerStreaming(t.Context(), client)
		interop.DoClientStreaming(t.Context(), client)
		interop.DoPingPong(t.Context(), client)
		interop.DoEmptyStream(t.Context(), client)
		interop.DoTimeoutOnSleepingServer(t.Context(), client)
		interop.DoCancelAfterBegin(t.Context(), client)
		interop.DoCancelAfterFirstResponse(t.Context(), client)
		interop.DoCustomMetadata(t.Context(), client)
		interop.DoStatusCodeAndMessage(t.Context(), client)
	}
	// One of the nine streams from the server; a timer may be late on a busy machine.
	assert.Greater(t, stats.HedgedRequests.Load(), int64(15))
	assert.LessOrEqual(t, stats.HedgedRequests.Load(), int64(20))
}

type lateStream struct{ grpc.ClientStream }

func (s lateStream) RecvMsg(m any) error {
	time.Sleep(3 * time.Millisecond)
	return s.ClientStream.RecvMsg(m)
}
