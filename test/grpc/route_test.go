//go:build !hedge_nogrpc

package grpc_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
)

func TestRoutesApplyToMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hedge.NewUnaryClientInterceptor(hedge.WithMaxHedges(1),
			hedge.WithRoute("/a.B/Create", hedge.Policy{Hedgeable: true, Delay: 10 * ms}),
			hedge.WithRoute("/a.B/*", hedge.Policy{Delay: 20 * ms}),
			hedge.WithRoute("/a.C/*", hedge.Policy{Off: true}),
			hedge.WithRoute("/*", hedge.Policy{Delay: 30 * ms}))
		for method, want := range map[string]time.Duration{
			"/a.B/Create": 15 * ms, "/a.B/Get": 25 * ms, "/a.B/Delete": time.Second, "/a.C/Get": time.Second, "/x.Y/Get": 35 * ms,
		} {
			i := &invoker{answer: in(time.Second, 5*ms)}
			start := time.Now()
			require.NoError(t, c(t.Context(), method, nil, new(wrapperspb.StringValue), nil, i.invoke))
			assert.Equal(t, want, time.Since(start), method)
		}
	})
}
