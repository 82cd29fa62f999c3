//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/race"
)

// A below is the transport below hedging. It records the overrides in the context of each attempt, and answers the
// first attempt slowly.
type below struct {
	mu   sync.Mutex
	seen []race.Overrides
	slow bool
}

func (b *below) attempt(ctx context.Context) error {
	b.mu.Lock()
	b.seen = append(b.seen, race.OverridesFrom(ctx))
	takes := usual
	if b.slow && len(b.seen) == 1 {
		takes = time.Second
	}
	b.mu.Unlock()
	return doubles.Sleep(ctx, takes)
}

// An anyClient is a client of any protocol, with a way to disable it and to make a call.
type anyClient struct {
	enable func(bool)
	call   func(context.Context, *below) error
}

// anyClients create a client for each protocol and each path that a call can take through it.
var anyClients = map[string]func(...hedge.Option) anyClient{
	"HTTP/1.1":                       overHTTP("HTTP/1.1", nil),
	"HTTP/2":                         overHTTP("HTTP/2.0", nil),
	"HTTP with a body":               overHTTP("HTTP/1.1", func() io.Reader { return strings.NewReader("body") }),
	"HTTP with a body that fails":    overHTTP("HTTP/1.1", func() io.Reader { return io.LimitReader(failingBody{}, 4) }),
	"HTTP with a body of any length": overHTTP("HTTP/1.1", func() io.Reader { return io.MultiReader(strings.NewReader("body")) }),
	"gRPC": func(opts ...hedge.Option) anyClient {
		in := hedge.NewInterceptor(hedge.WithOptions(opts...))
		return anyClient{in.SetEnabled, func(ctx context.Context, b *below) error {
			return in.Unary()(ctx, "/catalog.v1.Catalog/Browse", wrapperspb.String("id"), new(wrapperspb.StringValue), nil,
				func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					return b.attempt(ctx)
				})
		}}
	},
	"gRPC stream":               overStream(&grpc.StreamDesc{ServerStreams: true}),
	"gRPC stream both ways":     overStream(&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}),
	"gRPC stream of the client": overStream(&grpc.StreamDesc{ClientStreams: true}),
	"Do": func(opts ...hedge.Option) anyClient {
		h := hedge.NewHedger(hedge.WithOptions(opts...))
		return anyClient{h.SetEnabled, func(ctx context.Context, b *below) error {
			_, err := hedge.Do(ctx, h, "k", func(ctx context.Context) (int, error) { return 0, b.attempt(ctx) })
			return err
		}}
	},
	"Do without a Hedger": func(...hedge.Option) anyClient {
		return anyClient{func(bool) {}, func(ctx context.Context, b *below) error {
			_, err := hedge.Do(ctx, nil, "k", func(ctx context.Context) (int, error) { return 0, b.attempt(ctx) })
			return err
		}}
	},
	"DoDetached": func(opts ...hedge.Option) anyClient {
		h := hedge.NewHedger(hedge.WithOptions(opts...))
		return anyClient{h.SetEnabled, func(ctx context.Context, b *below) error {
			_, err := hedge.DoDetached(ctx, h, "k", func(ctx context.Context) (int, error) { return 0, b.attempt(ctx) }, nil)
			return err
		}}
	},
	"DoDetached without a Hedger": func(...hedge.Option) anyClient {
		return anyClient{func(bool) {}, func(ctx context.Context, b *below) error {
			_, err := hedge.DoDetached(ctx, nil, "k", func(ctx context.Context) (int, error) { return 0, b.attempt(ctx) }, nil)
			return err
		}}
	},
}

// A failingBody is a request body whose Read fails.
type failingBody struct{}

func (failingBody) Read([]byte) (int, error) { return 0, errors.New("no more") }

func overHTTP(proto string, body func() io.Reader) func(...hedge.Option) anyClient {
	return func(opts ...hedge.Option) anyClient {
		var b *below
		tr := hedge.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			if err := b.attempt(r.Context()); err != nil {
				return nil, err
			}
			resp := &http.Response{StatusCode: 200, Body: http.NoBody, Header: make(http.Header), Proto: proto, Request: r}
			resp.ProtoMajor, resp.ProtoMinor, _ = http.ParseHTTPVersion(proto)
			return resp, nil
		}), hedge.WithOptions(opts...))
		return anyClient{tr.SetEnabled, func(ctx context.Context, now *below) error {
			b = now
			var sent io.Reader
			if body != nil {
				sent = body()
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, site, sent)
			if err != nil {
				return err
			}
			if _, broken := sent.(*io.LimitedReader); broken {
				req.ContentLength = 4
			}
			resp, err := tr.RoundTrip(req)
			if err != nil {
				return err
			}
			if resp.Request != req {
				return errors.New("the response is another request's")
			}
			return resp.Body.Close()
		}}
	}
}

// A probedStream records its context when it is opened, and receives one message.
type probedStream struct {
	grpc.ClientStream
	ctx context.Context
	b   *below
}

func (s *probedStream) SendMsg(any) error        { return nil }
func (s *probedStream) CloseSend() error         { return nil }
func (s *probedStream) Context() context.Context { return s.ctx }
func (s *probedStream) Trailer() metadata.MD     { return nil }
func (s *probedStream) RecvMsg(any) error {
	if err := s.b.attempt(s.ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

func overStream(desc *grpc.StreamDesc) func(...hedge.Option) anyClient {
	return func(opts ...hedge.Option) anyClient {
		in := hedge.NewInterceptor(hedge.WithOptions(opts...))
		return anyClient{in.SetEnabled, func(ctx context.Context, b *below) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			s, err := in.Stream()(ctx, desc, nil, "/catalog.v1.Catalog/Browse",
				func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
					return &probedStream{ctx: ctx, b: b}, nil
				})
			if err != nil {
				return err
			}
			if err := s.SendMsg(wrapperspb.String("id")); err != nil {
				return err
			}
			return s.RecvMsg(new(wrapperspb.StringValue))
		}}
	}
}

// TestR3OverridesApplyToOneCallOnly tries all protocols, call paths and overrides.
func TestR3OverridesApplyToOneCallOnly(t *testing.T) {
	asks := map[string]func(context.Context) context.Context{
		"nothing": func(ctx context.Context) context.Context { return ctx },
		"allowed": hedge.AllowHedging,
		"a delay": func(ctx context.Context) context.Context { return hedge.WithDelay(ctx, 20*ms) },
		"both":    func(ctx context.Context) context.Context { return hedge.AllowHedging(hedge.WithDelay(ctx, 20*ms)) },
		"both, and forbidden": func(ctx context.Context) context.Context {
			return hedge.WithoutHedging(hedge.AllowHedging(hedge.WithDelay(ctx, 20*ms)))
		},
		"both, for a hedge": func(ctx context.Context) context.Context {
			return race.WithOverrides(ctx, func(o *race.Overrides) { *o = race.Overrides{Allow: true, Delay: 20 * ms, Hedge: 2} })
		},
	}
	ways := map[string]struct {
		warm, off, slow bool
		opts            []hedge.Option
	}{
		"quick":        {warm: true},
		"slow":         {warm: true, slow: true},
		"warming up":   {slow: true},
		"switched off": {off: true, slow: true},
		"shadow":       {warm: true, slow: true, opts: []hedge.Option{hedge.WithShadow()}},
		"observed":     {warm: true, slow: true, opts: []hedge.Option{hedge.WithObserver(hedge.NopObserver{})}},
	}
	hedged := false
	for protocol, make := range anyClients {
		for name, way := range ways {
			for asked, ask := range asks {
				t.Run(protocol+", "+name+", "+asked, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := make(way.opts...)
						for n := 0; way.warm && n < 20; n++ {
							_ = c.call(hedge.AllowHedging(t.Context()), new(below))
						}
						c.enable(!way.off)
						ctx, b := ask(t.Context()), &below{slow: way.slow}
						_ = c.call(ctx, b)
						time.Sleep(time.Minute) // losers may linger
						synctest.Wait()
						own := race.OverridesFrom(ctx)
						for n, o := range b.seen {
							want := race.Overrides{Never: own.Never, Hedge: own.Hedge}
							if n > 0 {
								want.Hedge, hedged = n, true
							}
							o.Parent = race.CallTarget{} // what the call is: see TestOnlyOuterOfNestedClientsHedges
							assert.Equal(t, want, o, "attempt %d", n)
						}
						assert.NotEmpty(t, b.seen)
					})
				})
			}
		}
	}
	assert.True(t, hedged, "nothing was hedged")
}

// A tokenSource is a call credential that exchanges a refresh token by HTTP. The refresh token is valid once.
type tokenSource struct{ client *http.Client }

func (r tokenSource) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://issuer.test/token", strings.NewReader("refresh_token=once"))
	if err != nil {
		return nil, err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer x"}, resp.Body.Close()
}

func (tokenSource) RequireTransportSecurity() bool { return false }

func TestR3CredentialsOfAllowedCallAreFetchedOnce(t *testing.T) {
	var posts, takes atomic.Int64
	issuer := hedge.New(roundTripper(func(r *http.Request) (*http.Response, error) {
		posts.Add(1)
		if err := doubles.Sleep(r.Context(), time.Duration(takes.Load())); err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Header: make(http.Header), Request: r}, nil
	}), hedge.WithInitialDelay(ms))
	cc := dial(t, serveGRPC(t, new(testpb.UnimplementedTestServiceServer)), grpc.WithPerRPCCredentials(tokenSource{&http.Client{Transport: issuer}}),
		grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor()), grpc.WithChainStreamInterceptor(hedge.NewInterceptor().Stream()))
	client := testpb.NewTestServiceClient(cc)
	ctx := hedge.AllowHedging(t.Context())
	_, _ = client.EmptyCall(ctx, new(testpb.Empty), grpc.WaitForReady(true))
	posts.Store(0)
	takes.Store(int64(50 * ms))
	_, _ = client.EmptyCall(ctx, new(testpb.Empty))
	assert.EqualValues(t, 1, posts.Swap(0), "unary")
	s, err := client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
	require.NoError(t, err)
	_, _ = s.Recv()
	assert.EqualValues(t, 1, posts.Load(), "stream")
}
