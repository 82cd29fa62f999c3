//go:build !hedge_nogrpc

package grpc_test

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	hedgegrpc "github.com/gohedge/hedge/hedgetest/grpctest"
	"github.com/gohedge/hedge/internal/doubles"
)

const (
	getValue    = "/a.Values/GetValue"
	streamValue = "/a.Values/StreamValue"
)

// A valueServer sends the reply of a call at once, and the end of the call 100 ms later. It records the requests and
// their metadata "id".
//
// If silent is set, it does not answer the first attempt. If garbled is set, it answers the first attempt with an
// invalid message, and ends the call at once.
type valueServer struct {
	reply           proto.Message
	silent, garbled bool

	mu   sync.Mutex
	seen []proto.Message
	ids  []string
}

func (s *valueServer) serve(_ any, stream grpc.ServerStream) error {
	request := s.reply.ProtoReflect().New().Interface()
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	s.mu.Lock()
	s.seen = append(s.seen, request)
	s.ids = append(s.ids, metadata.ValueFromIncomingContext(stream.Context(), "id")...)
	first := len(s.seen) == 1
	s.mu.Unlock()
	if first && s.silent {
		<-stream.Context().Done()
		return nil
	}
	reply := s.reply
	if first && s.garbled {
		reply = wrapperspb.Bytes([]byte{0xff}) // no UTF-8
	}
	if err := stream.SendMsg(reply); err != nil || s.garbled {
		return err
	}
	select {
	case <-time.After(100 * time.Millisecond):
	case <-stream.Context().Done():
	}
	return nil
}

// dial starts the server and returns a connection that is ready. Only calls with a fixed delay are hedged.
func (s *valueServer) dial(t *testing.T, opts ...grpc.DialOption) *grpc.ClientConn {
	return s.dialBy(t, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1)), opts...)
}

// dialBy does the same as dial with the given interceptor.
func (s *valueServer) dialBy(t *testing.T, in *hedge.Interceptor, opts ...grpc.DialOption) *grpc.ClientConn {
	server := hedgegrpc.NewServer(t, func(srv *grpc.Server) {
		srv.RegisterService(&grpc.ServiceDesc{ServiceName: "a.Values", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
			{StreamName: "GetValue", Handler: s.serve}, {StreamName: "StreamValue", Handler: s.serve, ServerStreams: true},
		}}, nil)
	})
	cc := server.Dial(append([]grpc.DialOption{grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream())}, opts...)...)
	cc.Connect()
	synctest.Wait()
	return cc
}

// A mergingCodec merges the decoded message into the existing content of a message, as codecs of other generators do.
type mergingCodec struct{}

func (mergingCodec) Name() string                  { return "proto" }
func (mergingCodec) Marshal(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }
func (mergingCodec) Unmarshal(data []byte, v any) error {
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(data, v.(proto.Message))
}

func stringsOf(values ...string) *structpb.ListValue {
	list := new(structpb.ListValue)
	for _, v := range values {
		list.Values = append(list.Values, structpb.NewStringValue(v))
	}
	return list
}

// TestHedgeSendsRequestFromBeforeReply has calls whose request and reply share memory. A hedge becomes due after the
// primary has received its reply and before the call ends.
func TestHedgeSendsRequestFromBeforeReply(t *testing.T) {
	type messages struct{ request, reply proto.Message }
	for name, c := range map[string]struct {
		reply proto.Message // of the server
		make  func() messages
		opts  []grpc.CallOption
	}{
		"one message": {wrapperspb.String("reply"), func() messages {
			m := wrapperspb.String("request")
			return messages{m, m}
		}, nil},
		"one message without generated code": {wrapperspb.String("reply"), func() messages {
			m := dynamicpb.NewMessage((*wrapperspb.StringValue)(nil).ProtoReflect().Descriptor())
			m.Set(m.Descriptor().Fields().ByName("value"), protoreflect.ValueOfString("request"))
			return messages{m, m}
		}, nil},
		"the request contains the reply": {structpb.NewStringValue("reply"), func() messages {
			reply := structpb.NewStringValue("request")
			return messages{structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{reply}}), reply}
		}, nil},
		"the reply contains the request": {structpb.NewListValue(stringsOf("reply")), func() messages {
			request := structpb.NewStringValue("request")
			return messages{request, structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{request}})}
		}, nil},
		"one map, which a codec keeps": {&structpb.Struct{Fields: map[string]*structpb.Value{"b": structpb.NewStringValue("reply")}}, func() messages {
			fields := make(map[string]*structpb.Value)
			return messages{&structpb.Struct{Fields: fields}, &structpb.Struct{Fields: fields}}
		}, []grpc.CallOption{grpc.ForceCodec(mergingCodec{})}},
		"one slice, which a codec keeps": {stringsOf("reply"), func() messages {
			values := stringsOf("request").Values
			return messages{&structpb.ListValue{Values: values}, &structpb.ListValue{Values: values[:0]}}
		}, []grpc.CallOption{grpc.ForceCodec(mergingCodec{})}},
	} {
		t.Run(name+"/unary", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := &valueServer{reply: c.reply}, c.make()
				want := proto.Clone(m.request)
				require.NoError(t, s.dial(t).Invoke(hedge.WithDelay(t.Context(), 50*ms), getValue, m.request, m.reply, c.opts...))
				s.check(t, want, 2)
				assert.Equal(t, asText(c.reply), asText(m.reply))
			})
		})
		t.Run(name+"/stream", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, m := &valueServer{reply: c.reply, silent: true}, c.make()
				want := proto.Clone(m.request)
				st, err := s.dial(t).NewStream(hedge.WithDelay(t.Context(), 50*ms), &grpc.StreamDesc{ServerStreams: true}, streamValue, c.opts...)
				require.NoError(t, err)
				require.NoError(t, st.SendMsg(m.request))
				require.NoError(t, st.CloseSend())
				require.NoError(t, st.RecvMsg(m.reply))
				s.check(t, want, 2)
				assert.Equal(t, asText(c.reply), asText(m.reply))
				require.Equal(t, io.EOF, st.RecvMsg(m.reply))
			})
		})
	}
}

// TestHedgeSendsRequestClearedByDecoding has a hedging policy. The hedge starts because the primary fails to decode its
// reply, which has cleared the request.
func TestHedgeSendsRequestClearedByDecoding(t *testing.T) {
	const policy = `{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"10s","nonFatalStatusCodes":["INTERNAL"]}}]}`
	for kind, call := range map[string]func(context.Context, *grpc.ClientConn, proto.Message) error{
		"unary": func(ctx context.Context, cc *grpc.ClientConn, m proto.Message) error {
			return cc.Invoke(ctx, getValue, m, m)
		},
		"stream": func(ctx context.Context, cc *grpc.ClientConn, m proto.Message) error {
			st, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streamValue)
			if err != nil {
				return err
			}
			return cmp.Or(st.SendMsg(m), st.CloseSend(), st.RecvMsg(m))
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &valueServer{reply: wrapperspb.String("reply"), garbled: true}
				m := wrapperspb.String("request")
				ctx, cancel := context.WithCancel(hedge.WithDelay(t.Context(), 10*time.Second))
				defer cancel()
				require.NoError(t, call(ctx, s.dialBy(t, hedge.NewInterceptor(hedge.WithBudgetPercent(400), hedge.WithServiceConfig(policy))), m))
				assert.Equal(t, "reply", m.Value)
				s.check(t, wrapperspb.String("request"), 2)
			})
		})
	}
}

// asText returns a text that is equal for messages with equal content.
func asText(m proto.Message) string {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(encoded)
}

// check checks that the given number of attempts was made, that all have ended, and that each has sent the request.
func (s *valueServer) check(t *testing.T, request proto.Message, attempts int) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Len(t, s.seen, attempts)
	for _, m := range s.seen {
		assert.Equal(t, asText(request), asText(m))
	}
}

// TestStreamHedgeSendsMetadataOfCall has callers that change their arguments after the stream was opened.
func TestStreamHedgeSendsMetadataOfCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &valueServer{reply: wrapperspb.String("reply"), silent: true}
		md, desc := metadata.Pairs("id", "mine"), &grpc.StreamDesc{ServerStreams: true}
		opts := []grpc.CallOption{grpc.UseCompressor(gzip.Name)}
		st, err := s.dial(t).NewStream(hedge.WithDelay(metadata.NewOutgoingContext(t.Context(), md), 50*ms), desc, streamValue, opts...)
		require.NoError(t, err)
		md["id"][0], opts[0], desc.ServerStreams = "of the next call", grpc.UseCompressor("unknown"), false
		md.Set("other", "x")
		require.NoError(t, st.SendMsg(wrapperspb.String("request")))
		require.NoError(t, st.CloseSend())
		reply := new(wrapperspb.StringValue)
		require.NoError(t, st.RecvMsg(reply))
		s.check(t, wrapperspb.String("request"), 2)
		assert.Equal(t, []string{"mine", "mine"}, s.ids)
		require.Equal(t, io.EOF, st.RecvMsg(reply))
	})
}

// An echoServer returns each request after the usual latency. If slow is set, the next attempt takes one hour.
type echoServer struct{ slow atomic.Bool }

func (s *echoServer) serve(_ any, stream grpc.ServerStream) error {
	request, takes := new(wrapperspb.StringValue), usual
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	if s.slow.CompareAndSwap(true, false) {
		takes = time.Hour
	}
	if err := doubles.Sleep(stream.Context(), takes); err != nil {
		return err
	}
	return stream.SendMsg(request)
}

// TestStreamHedgeSendsRequestAsSent has callers that change the message after SendMsg and use it for another stream.
func TestStreamHedgeSendsRequestAsSent(t *testing.T) {
	asIs := func(ctx context.Context) context.Context { return ctx }
	for name, c := range map[string]struct {
		opts []hedge.GRPCOption
		with func(context.Context) context.Context
	}{
		"the caller's delay": {nil, func(ctx context.Context) context.Context { return hedge.WithDelay(ctx, 50*ms) }},
		"a route's delay":    {[]hedge.GRPCOption{hedge.WithRoute(streamValue, hedge.Policy{Delay: 50 * ms})}, asIs},
		"the initial delay":  {[]hedge.GRPCOption{hedge.WithInitialDelay(50 * ms)}, asIs},
		"a learned delay":    {nil, asIs},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stats *hedge.Stats
				s := new(echoServer)
				server := hedgegrpc.NewServer(t, func(srv *grpc.Server) {
					srv.RegisterService(&grpc.ServiceDesc{ServiceName: "a.Values", HandlerType: (*any)(nil),
						Streams: []grpc.StreamDesc{{StreamName: "StreamValue", Handler: s.serve, ServerStreams: true}}}, nil)
				})
				in := hedge.NewInterceptor(append(c.opts, hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithBudgetPercent(100), hedge.WithStats(&stats))...)
				cc := server.Dial(grpc.WithChainStreamInterceptor(in.Stream()))
				cc.Connect()
				synctest.Wait()
				request := new(wrapperspb.StringValue)
				open := func(value string) grpc.ClientStream {
					request.Value = value
					st, err := cc.NewStream(c.with(t.Context()), &grpc.StreamDesc{ServerStreams: true}, streamValue)
					require.NoError(t, err)
					require.NoError(t, st.SendMsg(request))
					require.NoError(t, st.CloseSend())
					return st
				}
				receive := func(st grpc.ClientStream) string {
					reply := new(wrapperspb.StringValue)
					require.NoError(t, st.RecvMsg(reply))
					require.Equal(t, io.EOF, st.RecvMsg(reply))
					return reply.Value
				}
				for range 20 {
					require.Equal(t, "warm", receive(open("warm")))
				}
				for range 3 { // the memory for requests is used again
					s.slow.Store(true)
					one := open("one")
					synctest.Wait()
					two := open("two")
					assert.Equal(t, "one", receive(one))
					assert.Equal(t, "two", receive(two))
				}
				assert.EqualValues(t, 3, stats.HedgeWins.Load())
			})
		})
	}
}

// TestInterceptorDoesNotReadMetadataAfterCall has a caller that reuses one metadata map for all calls. The race
// detector checks it.
func TestInterceptorDoesNotReadMetadataAfterCall(t *testing.T) {
	in := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
	var attempts sync.WaitGroup
	md := metadata.Pairs("id", "0")
	for i := range 100 {
		var late sync.Once
		require.NoError(t, in.Unary()(hedge.WithDelay(metadata.NewOutgoingContext(t.Context(), md), ms), getValue, wrapperspb.String("request"), new(wrapperspb.StringValue), nil,
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				attempts.Add(1)
				defer attempts.Done()
				first := false
				late.Do(func() { first = true })
				if first {
					time.Sleep(ms)
					return nil
				}
				time.Sleep(ms) // its call is over
				_, _ = metadata.FromOutgoingContext(ctx)
				return nil
			}))
		md.Set("id", string(rune('a'+i%26)))
		md["other"] = slices.Clone(md["id"])
	}
	attempts.Wait()
}

// TestPreparedMessageIsHedged has streams whose caller encodes the message as grpc.PreparedMsg.
func TestPreparedMessageIsHedged(t *testing.T) {
	for name, c := range map[string]struct {
		call []grpc.CallOption
		dial []grpc.DialOption
	}{
		"plain":                 {},
		"compressed":            {[]grpc.CallOption{grpc.UseCompressor(gzip.Name)}, nil},
		"compressed by default": {nil, []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name))}},
		"interceptors below":    {nil, timeoutBelow(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &valueServer{reply: wrapperspb.String("reply"), silent: true}
				ctx, cancel := context.WithCancel(hedge.WithDelay(t.Context(), 50*ms))
				defer cancel()
				st, err := s.dial(t, c.dial...).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, streamValue, c.call...)
				require.NoError(t, err)
				var m grpc.PreparedMsg
				require.NoError(t, m.Encode(st, wrapperspb.String("request")))
				require.NoError(t, st.SendMsg(&m))
				require.NoError(t, m.Encode(st, wrapperspb.String("of another call")))
				require.NoError(t, st.CloseSend())
				reply := new(wrapperspb.StringValue)
				require.NoError(t, st.RecvMsg(reply))
				assert.Equal(t, "reply", reply.Value)
				s.check(t, wrapperspb.String("request"), 2)
				require.Equal(t, io.EOF, st.RecvMsg(reply))
			})
		})
	}
}

// TestStreamContextHasMethodDeadline calls Context before the first message.
func TestStreamContextHasMethodDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &valueServer{reply: wrapperspb.String("reply")}
		cc := s.dial(t, grpc.WithDefaultServiceConfig(timeoutConfig))
		ctx, cancel := context.WithCancel(t.Context())
		desc := &grpc.StreamDesc{ServerStreams: true}
		st, err := cc.NewStream(ctx, desc, streamValue)
		require.NoError(t, err)
		within, stop := context.WithCancel(st.Context())
		defer stop()
		deadline, ok := within.Deadline()
		assert.True(t, ok)
		assert.Equal(t, 300*ms, time.Until(deadline))
		cancel()
		<-within.Done()
		assert.Equal(t, context.Canceled, within.Err(), "the caller gave up")

		st, err = cc.NewStream(t.Context(), desc, streamValue)
		require.NoError(t, err)
		within, stop = context.WithCancel(st.Context())
		defer stop()
		<-within.Done()
		assert.Equal(t, context.DeadlineExceeded, within.Err())
	})
}
