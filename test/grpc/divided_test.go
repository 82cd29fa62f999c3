//go:build !hedge_nogrpc

package grpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
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
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// Options of callers and interceptors, which grpc obeys by the methods that they promote.
type (
	ownTrailer     struct{ grpc.TrailerCallOption }
	ownTrailerAt   struct{ *grpc.TrailerCallOption }
	ownTrailerDeep struct {
		ownTrailer
		name string
	}
	ownHeader struct {
		name string
		grpc.HeaderCallOption
	}
	ownPeer struct{ grpc.PeerCallOption }
	setting struct {
		grpc.EmptyCallOption
		retries int
	}
	anyOption  struct{ grpc.CallOption }
	hidden     = grpc.TrailerCallOption
	ownHidden  struct{ hidden }
	ownDeepAt  struct{ *ownTrailer }
	twoOptions struct {
		grpc.EmptyCallOption
		inner
	}
	inner struct{ grpc.TrailerCallOption }
)

// sentWith makes a call whose first attempt is slow, and returns the invoker that received the attempts.
func sentWith(t *testing.T, req, reply any, opts ...grpc.CallOption) *invoker {
	t.Helper()
	i := &invoker{answer: in(time.Second, 5*ms)}
	require.NoError(t, warmCaller(t, read, hedge.WithMaxHedges(1)).intercept(t.Context(), read, req, reply, nil, i.invoke, opts...))
	return i
}

func TestR4CallOptionsAreClonedByGRPCType(t *testing.T) {
	md := func() *metadata.MD { return new(metadata.MD) }
	for name, o := range map[string]struct {
		option grpc.CallOption
		want   int
	}{
		"empty":                    {grpc.EmptyCallOption{}, 2},
		"an interceptor's":         {setting{retries: 3}, 2},
		"an interceptor's pointer": {&setting{retries: 3}, 2},
		"wait for ready":           {grpc.WaitForReady(true), 2},
		"static method":            {grpc.StaticMethod(), 2},
		"size":                     {grpc.MaxCallRecvMsgSize(1), 2},
		"pointer to size":          {&grpc.MaxRecvMsgSizeCallOption{MaxRecvMsgSize: 1}, 2},
		"trailer":                  {grpc.Trailer(md()), 2},
		"pointer to trailer":       {&grpc.TrailerCallOption{TrailerAddr: md()}, 2},
		"embeds trailer":           {ownTrailer{grpc.TrailerCallOption{TrailerAddr: md()}}, 2},
		"pointer, embeds trailer":  {&ownTrailer{grpc.TrailerCallOption{TrailerAddr: md()}}, 2},
		"embeds pointer":           {ownTrailerAt{&grpc.TrailerCallOption{TrailerAddr: md()}}, 2},
		"embeds what embeds":       {ownTrailerDeep{ownTrailer{grpc.TrailerCallOption{TrailerAddr: md()}}, "deep"}, 2},
		"embeds header":            {ownHeader{"h", grpc.HeaderCallOption{HeaderAddr: md()}}, 2},
		"embeds peer":              {ownPeer{grpc.PeerCallOption{PeerAddr: new(peer.Peer)}}, 2},
		"embeds any option":        {anyOption{grpc.Trailer(md())}, 1},
		"embeds by a hidden name":  {ownHidden{grpc.TrailerCallOption{TrailerAddr: md()}}, 1},
		"embeds at a distance":     {ownDeepAt{&ownTrailer{grpc.TrailerCallOption{TrailerAddr: md()}}}, 1},
		"embeds two":               {twoOptions{inner: inner{grpc.TrailerCallOption{TrailerAddr: md()}}}, 1},
		"nil pointer":              {(*grpc.TrailerCallOption)(nil), 1},
		"nil":                      {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := sentWith(t, nil, new(wrapperspb.StringValue), grpc.WaitForReady(true), o.option)
				require.Equal(t, o.want, i.n)
				assert.Equal(t, o.option, i.opts[0][1], "the primary has the caller's")
				for _, opts := range i.opts[1:] {
					assert.IsType(t, o.option, opts[1], "what is below may look for the type")
				}
			})
		})
	}
}

// A numbered is a service that answers each call with its number in header, trailer and reply. The call with the number
// slow is slow.
type numbered struct {
	testpb.UnimplementedTestServiceServer
	n    atomic.Int64
	slow int64
}

func (s *numbered) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	n := s.n.Add(1)
	_ = grpc.SetHeader(ctx, metadata.Pairs("n", fmt.Sprint(n)))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("n", fmt.Sprint(n)))
	if n == s.slow {
		<-ctx.Done()
	} else {
		time.Sleep(60 * ms)
	}
	return &testpb.SimpleResponse{Hostname: fmt.Sprint(n)}, nil
}

func TestR4OutputOptionsReceiveOnlyWinnersResult(t *testing.T) {
	for name, option := range map[string]func(*metadata.MD) grpc.CallOption{
		"trailer":                 func(md *metadata.MD) grpc.CallOption { return grpc.Trailer(md) },
		"pointer to trailer":      func(md *metadata.MD) grpc.CallOption { return &grpc.TrailerCallOption{TrailerAddr: md} },
		"embeds trailer":          func(md *metadata.MD) grpc.CallOption { return ownTrailer{grpc.TrailerCallOption{TrailerAddr: md}} },
		"pointer, embeds trailer": func(md *metadata.MD) grpc.CallOption { return &ownTrailer{grpc.TrailerCallOption{TrailerAddr: md}} },
		"embeds pointer":          func(md *metadata.MD) grpc.CallOption { return ownTrailerAt{&grpc.TrailerCallOption{TrailerAddr: md}} },
		"header":                  func(md *metadata.MD) grpc.CallOption { return &grpc.HeaderCallOption{HeaderAddr: md} },
		"embeds header":           func(md *metadata.MD) grpc.CallOption { return ownHeader{"h", grpc.HeaderCallOption{HeaderAddr: md}} },
		"embeds at a distance": func(md *metadata.MD) grpc.CallOption {
			return ownDeepAt{&ownTrailer{grpc.TrailerCallOption{TrailerAddr: md}}}
		},
		"embeds any other": func(md *metadata.MD) grpc.CallOption { return anyOption{grpc.Trailer(md)} },
	} {
		for _, slow := range []int64{1, 2} {
			t.Run(fmt.Sprint(name, ", slow attempt ", slow), func(t *testing.T) {
				if slow == 1 && (strings.Contains(name, "distance") || strings.Contains(name, "other")) {
					t.Skip("it is sent once, and the backend hangs")
				}
				s := &numbered{slow: slow}
				cc := dial(t, serveGRPC(t, s), grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(hedge.WithMethods("/*"))))
				client := testpb.NewTestServiceClient(cc)
				_, err := client.EmptyCall(t.Context(), new(testpb.Empty), grpc.WaitForReady(true))
				require.Equal(t, codes.Unimplemented, status.Code(err))
				var md metadata.MD
				resp, err := client.UnaryCall(hedge.WithDelay(t.Context(), 20*ms), new(testpb.SimpleRequest), option(&md))
				require.NoError(t, err)
				for range 20 { // while losers end
					require.Equal(t, []string{resp.Hostname}, md["n"])
					time.Sleep(ms)
				}
			})
		}
	}
}

// Messages that are a proto.Message because they embed one.
type (
	tracedMessage struct {
		*wrapperspb.StringValue
		trace string
	}
	wrappedMessage struct{ proto.Message }
)

// An embedsGogo is a message that embeds a message of gogo/protobuf.
type embedsGogo struct {
	*gogo
	trace string
}

func TestR4HedgesHaveRequestAndReplyOfSameType(t *testing.T) {
	type raw struct{ Data []byte }
	mine := new(raw)
	var whatever any = mine
	for name, c := range map[string]struct {
		req, reply func() any
		want       int
	}{
		"messages":                     {want: 2},
		"nil request":                  {req: func() any { return nil }, want: 2},
		"nil message":                  {req: func() any { return (*wrapperspb.StringValue)(nil) }, want: 2},
		"older request":                {req: func() any { return &gogo{Items: []item{{1}}} }, want: 2},
		"embeds an older request":      {req: func() any { return &embedsGogo{new(gogo), "t"} }, want: 1},
		"embeds a message":             {req: func() any { return &tracedMessage{wrapperspb.String("id"), "t"} }, want: 1},
		"embeds a message, no pointer": {req: func() any { return tracedMessage{wrapperspb.String("id"), "t"} }, want: 1},
		"embeds any message":           {req: func() any { return &wrappedMessage{wrapperspb.String("id")} }, want: 1},
		"embeds no message yet":        {req: func() any { return new(wrappedMessage) }, want: 1},
		"is read when encoded":         {req: func() any { return bytes.NewBufferString("id") }, want: 1},
		"bytes":                        {req: func() any { return &[]byte{1} }, want: 1},
		"reply with content":           {reply: func() any { return wrapperspb.String("before") }, want: 2},
		"reply of bytes":               {reply: func() any { return new([]byte) }, want: 2},
		"reply of no buffers":          {reply: func() any { return &mem.BufferSlice{} }, want: 2},
		"reply of bytes to fill":       {reply: func() any { b := make([]byte, 0, 9); return &b }, want: 1},
		"reply of any type":            {reply: func() any { return new(raw) }, want: 2},
		"reply of any type, content":   {reply: func() any { return &raw{Data: make([]byte, 0, 9)} }, want: 1},
		"reply refers elsewhere":       {reply: func() any { return &whatever }, want: 1},
		"reply has a writer":           {reply: func() any { return &struct{ W io.Writer }{new(bytes.Buffer)} }, want: 1},
		"reply embeds a message":       {reply: func() any { return &tracedMessage{StringValue: new(wrapperspb.StringValue)} }, want: 1},
		"reply embeds none yet":        {reply: func() any { return new(wrappedMessage) }, want: 1},
		"nil reply":                    {reply: func() any { return nil }, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var req, reply any = wrapperspb.String("id"), new(wrapperspb.StringValue)
			if c.req != nil {
				req = c.req()
			}
			if c.reply != nil {
				reply = c.reply()
			}
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				n := 0
				h := hedge.NewInterceptor(hedge.WithMaxHedges(1), hedge.WithMethods("/*"))
				below := func(ctx context.Context, _ string, r, into any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					assert.IsType(t, req, r)
					assert.IsType(t, reply, into)
					mu.Lock()
					first := n == 0
					n++
					if first {
						assert.True(t, r == req || fmt.Sprintf("%T", req)[0] != '*', "the primary has the caller's")
					}
					mu.Unlock()
					return in(time.Second, 5*ms)(ctx, map[bool]int{false: 1}[first], into, nil)
				}
				require.NoError(t, h.Unary()(hedge.WithDelay(t.Context(), 20*ms), read, req, reply, nil, below))
				assert.Equal(t, c.want, n, "unary")

				opened := 0
				st, err := h.Stream()(hedge.WithDelay(t.Context(), 20*ms), &grpc.StreamDesc{ServerStreams: true}, nil, read,
					func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
						opened++
						return &deafStream{after: time.Second, sent: func(m any) { assert.IsType(t, req, m) }}, nil
					})
				require.NoError(t, err)
				require.NoError(t, st.SendMsg(req))
				require.NoError(t, st.RecvMsg(reply))
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, c.want, opened, "stream")
				if c.want == 1 {
					assert.EqualValues(t, 2, h.Snapshot().Stats.NotHedgeable)
				}
			})
		})
	}
}

// TestR4JSONCodecFillsMemoryOfCallersReply has a JSON codec, which writes to memory of the caller that the reply refers
// to.
func TestR4JSONCodecFillsMemoryOfCallersReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type item struct{ Name string }
		var mine item
		var reply any = &mine
		below := func(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			a, _ := hedge.AttemptFromContext(ctx)
			if err := doubles.Sleep(ctx, time.Second/time.Duration(1+10*a.Number)); err != nil { // a hedge would win
				return err
			}
			return json.Unmarshal([]byte(`{"Name":"lamp"}`), reply)
		}
		require.NoError(t, warmCaller(t, read).intercept(t.Context(), read, wrapperspb.String("id"), &reply, nil, below))
		assert.Equal(t, "lamp", mine.Name)
	})
}

// TestR4InterceptorBelowMayChangeItsRequest has an interceptor below that signs the request while hedges start. The
// race detector checks it as well.
func TestR4InterceptorBelowMayChangeItsRequest(t *testing.T) {
	for name, c := range map[string]struct {
		req  func() any
		sign func(any) string
	}{
		"message": {func() any { return wrapperspb.String("id") }, func(m any) string {
			r := m.(*wrapperspb.StringValue)
			r.Value += "+signature"
			return r.Value
		}},
		"older message": {func() any { return &gogo{Items: []item{{1}}} }, func(m any) string {
			r := m.(*gogo)
			r.Items = append(r.Items, item{2})
			return fmt.Sprint(r.Items)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			once := c.sign(c.req())
			for range 20 {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					var sent []string
					sign := func(m any) (first bool) {
						for range 3 {
							time.Sleep(10 * ms)
						}
						text := c.sign(m)
						mu.Lock()
						defer mu.Unlock()
						sent = append(sent, text)
						return len(sent) == 1
					}
					h := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(2))
					ctx := hedge.WithDelay(t.Context(), 30*ms)
					require.NoError(t, h.Unary()(ctx, read, c.req(), new(wrapperspb.StringValue), nil,
						func(ctx context.Context, _ string, req, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
							n := 1
							if sign(req) {
								n = 0
							}
							return in(time.Second, 100*ms)(ctx, n, reply, nil)
						}))
					st, err := h.Stream()(ctx, &grpc.StreamDesc{ServerStreams: true}, nil, read,
						func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
							return &deafStream{after: 100 * ms, sent: func(m any) { sign(m) }}, nil
						})
					require.NoError(t, err)
					require.NoError(t, st.SendMsg(c.req()))
					require.NoError(t, st.RecvMsg(new(wrapperspb.StringValue)))
					time.Sleep(time.Minute)
					synctest.Wait()
					assert.Greater(t, len(sent), 3)
					for _, s := range sent {
						assert.Equal(t, once, s)
					}
				})
			}
		})
	}
}

func TestR4HedgeConnServesNamedTargets(t *testing.T) {
	conn := func(target string) *grpc.ClientConn { return dial(t, target) }
	address := serveGRPC(t, new(numbered))
	var sentOver func(*grpc.ClientConn) // is called with the connection of an attempt
	to, a, b := dial(t, address, grpc.WithUnaryInterceptor(func(_ context.Context, _ string, _, _ any, cc *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		sentOver(cc)
		return nil
	})), conn("passthrough:///a"), conn("passthrough:///b")
	other, spelt := dial(t, to.Target()), conn("dns:///"+address)
	for name, c := range map[string]struct {
		others []string
		calls  []*grpc.ClientConn
		want   []bool // sent twice
	}{
		"another one":             {nil, []*grpc.ClientConn{a, b, a}, []bool{false, false, false}},
		"that of the connection":  {nil, []*grpc.ClientConn{to, a, other, b}, []bool{true, false, true, false}},
		"that comes later":        {nil, []*grpc.ClientConn{a, to, a, other}, []bool{false, true, false, true}},
		"another spelling":        {nil, []*grpc.ClientConn{spelt, a, spelt, to}, []bool{true, false, true, true}},
		"one that is given":       {[]string{"passthrough:///a"}, []*grpc.ClientConn{a, b, to, a}, []bool{true, false, true, true}},
		"no connection":           {nil, []*grpc.ClientConn{nil, to}, []bool{false, true}},
		"no connection, in tests": {[]string{""}, []*grpc.ClientConn{nil, a}, []bool{true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			h := hedge.NewInterceptor(hedge.WithHedgeConn(to, c.others...), hedge.WithMethods("/*"), hedge.WithMaxHedges(1))
			require.Eventually(t, func() bool { return to.GetState().String() == "READY" }, 10*time.Second, ms)
			for n, cc := range c.calls {
				var mu sync.Mutex
				var over []*grpc.ClientConn
				takes, hedged := 40*ms, make(chan struct{})
				sentOver = func(cc *grpc.ClientConn) {
					mu.Lock()
					defer mu.Unlock()
					if over = append(over, cc); len(over) == 2 {
						close(hedged)
					}
				}
				if c.want[n] {
					takes = 10 * time.Second // or until it is hedged
				}
				require.NoError(t, h.Unary()(hedge.WithDelay(t.Context(), 10*ms), read, nil, new(wrapperspb.StringValue), cc,
					func(ctx context.Context, _ string, _, reply any, cc *grpc.ClientConn, _ ...grpc.CallOption) error {
						sentOver(cc)
						select {
						case <-hedged:
							return nil
						case <-time.After(takes):
							return nil
						}
					}))
				want := []*grpc.ClientConn{cc}
				if c.want[n] {
					want = append(want, to)
				}
				assert.Equal(t, want, over, "call %d", n)
			}
		})
	}
}

func TestR4LogsUnhedgedCallsOncePerMethodAndReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		h := hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithLogger(slog.New(slog.NewTextHandler(&told, nil))))
		call := func(ctx context.Context, method string, req any, opts ...grpc.CallOption) {
			require.NoError(t, h.Unary()(ctx, method, req, new(wrapperspb.StringValue), nil, (&invoker{answer: in(ms)}).invoke, opts...))
		}
		lines := func() []string {
			defer told.Reset()
			return strings.Split(strings.TrimSpace(told.String()), "\n")
		}
		for range 3 {
			call(t.Context(), read, new([]byte))
			call(hedge.WithoutHedging(t.Context()), "/a.B/GetC", new([]byte))
			call(t.Context(), "/a.B/"+strings.Repeat("x", 300), new([]byte))
		}
		all := lines()
		require.Len(t, all, 1, "%q", all)
		assert.Contains(t, all[0], "method="+read+` because="its request cannot be copied"`)
		call(t.Context(), read, nil, anyOption{grpc.WaitForReady(true)})
		call(t.Context(), "/a.B/GetC", new([]byte))
		assert.Len(t, lines(), 2)
	})
}

func TestOnFinishIsCalledOnlyForStartedRPC(t *testing.T) {
	refuses := func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
		return status.Error(codes.Unauthenticated, "no token")
	}
	for want, below := range map[int]grpc.UnaryClientInterceptor{
		0: refuses,
		1: func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoker(ctx, method, req, reply, cc, opts...)
		},
	} {
		var calls atomic.Int64
		cc := dial(t, serveGRPC(t, new(numbered)), grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(hedge.WithMethods("/*")), below))
		_, err := testpb.NewTestServiceClient(cc).EmptyCall(t.Context(), new(testpb.Empty), grpc.WaitForReady(true), grpc.OnFinish(func(error) { calls.Add(1) }))
		require.Error(t, err)
		assert.EqualValues(t, want, calls.Load())
	}
}

// TestR4CodecKeepsContentOfReply has a codec set by the caller that keeps existing content of the reply, as a JSON
// codec does.
func TestR4CodecKeepsContentOfReply(t *testing.T) {
	for name, c := range map[string]struct {
		reply proto.Message
		opts  []grpc.CallOption
		want  int
	}{
		"grpc's own codec":          {reply: wrapperspb.String("kept"), want: 2},
		"another codec":             {reply: wrapperspb.String("kept"), opts: []grpc.CallOption{grpc.CallContentSubtype("json")}, want: 1},
		"another codec, of a value": {reply: wrapperspb.String("kept"), opts: []grpc.CallOption{grpc.Header(new(metadata.MD)), grpc.ForceCodecV2(nil)}, want: 1},
		"another codec, embedded":   {reply: wrapperspb.String("kept"), opts: []grpc.CallOption{struct{ grpc.ForceCodecCallOption }{}}, want: 1},
		"nothing to keep":           {reply: new(wrapperspb.StringValue), opts: []grpc.CallOption{grpc.CallContentSubtype("json")}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := hedge.NewInterceptor(hedge.WithMaxHedges(1), hedge.WithMethods("/*"))
				ctx := hedge.WithDelay(t.Context(), 20*ms)
				var n atomic.Int64
				below := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					if n.Add(1) == 1 {
						return doubles.Sleep(ctx, time.Second)
					}
					return doubles.Sleep(ctx, 5*ms)
				}
				require.NoError(t, h.Unary()(ctx, read, wrapperspb.String("id"), new(wrapperspb.StringValue), nil, below)) // whose types are known then
				n.Store(0)
				require.NoError(t, h.Unary()(ctx, read, wrapperspb.String("id"), proto.Clone(c.reply), nil, below, c.opts...))
				assert.EqualValues(t, c.want, n.Load(), "unary")

				var opened atomic.Int64
				st, err := h.Stream()(ctx, &grpc.StreamDesc{ServerStreams: true}, nil, read,
					func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
						opened.Add(1)
						return &deafStream{after: time.Second, sent: func(any) {}}, nil
					}, c.opts...)
				require.NoError(t, err)
				require.NoError(t, st.SendMsg(wrapperspb.String("id")))
				require.NoError(t, st.RecvMsg(c.reply))
				time.Sleep(time.Minute)
				assert.EqualValues(t, c.want, opened.Load(), "stream")
			})
		})
	}
}
