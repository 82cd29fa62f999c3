package bhope_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/benchmark/internal/bhope"
)

// A scriptedTransport answers each attempt after a time of its own.
type scriptedTransport struct {
	takes []time.Duration
	fails []error
	sent  atomic.Int32
	ended atomic.Int32 // bodies closed
}

func (s *scriptedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	n := s.sent.Add(1) - 1
	select {
	case <-time.After(s.takes[n]):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if n < int32(len(s.fails)) && s.fails[n] != nil {
		return nil, s.fails[n]
	}
	return &http.Response{StatusCode: 200, Body: &countedBody{Reader: strings.NewReader("x"), ended: &s.ended}}, nil
}

type countedBody struct {
	io.Reader
	ended *atomic.Int32
}

func (c *countedBody) Close() error { c.ended.Add(1); return nil }

func newClock() bhope.Clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func TestSecondAttemptAnswersForASlowFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scriptedTransport{takes: []time.Duration{time.Hour, 5 * ms}}
		rt := &bhope.RoundTripper{Policy: bhope.New(100), Clock: newClock(), Next: s}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host.test/", nil)
		require.NoError(t, err)
		start := time.Now()
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 15*ms, time.Since(start))
		require.NoError(t, resp.Body.Close())
		assert.EqualValues(t, 1, s.ended.Load())
	})
}

func TestFirstResultWinsThoughItIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		s := &scriptedTransport{takes: []time.Duration{40 * ms, ms}, fails: []error{nil, refused}}
		rt := &bhope.RoundTripper{Policy: bhope.New(100), Clock: newClock(), Next: s}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host.test/", nil)
		require.NoError(t, err)
		_, err = rt.RoundTrip(req)
		assert.ErrorIs(t, err, refused)
	})
}

func TestRefusedHedgeWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bhope.New(0)
		require.True(t, p.AdmitHedge(0))
		s := &scriptedTransport{takes: []time.Duration{40 * ms}}
		rt := &bhope.RoundTripper{Policy: p, Clock: newClock(), Next: s}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host.test/", nil)
		require.NoError(t, err)
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.EqualValues(t, 1, s.sent.Load())
		assert.Equal(t, 1, p.DeniedHedges())
	})
}

func TestInterceptorGivesTheWinnersReply(t *testing.T) {
	cc, err := grpc.NewClient("passthrough:///host.test", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		invoke := func(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			n := sent.Add(1)
			if n == 1 {
				<-ctx.Done()
			}
			reply.(*wrapperspb.Int64Value).Value = n
			return ctx.Err()
		}
		reply := new(wrapperspb.Int64Value)
		intercept := bhope.UnaryClientInterceptor(bhope.New(100), newClock())
		require.NoError(t, intercept(t.Context(), "/s/Get", wrapperspb.Int64(0), reply, cc, invoke))
		assert.EqualValues(t, 2, reply.Value)
	})
}
