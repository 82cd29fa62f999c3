//go:build !hedge_nogrpc

package grpc_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestInterceptorPanicsOnInvalidOptions(t *testing.T) {
	for want, f := range map[string]func(){
		"hedge: WithHedgeConn: *ClientConn is nil":                                           func() { hedge.WithHedgeConn(nil) },
		"hedge: WithNonFatalCodes: code is OK":                                               func() { hedge.WithNonFatalCodes(0) },
		`hedge: WithMethods: "pkg.S/M" is not /pkg.Service/Method, /pkg.Service/* or /*`:     func() { hedge.WithMethods("pkg.S/M") },
		`hedge: WithMethods: "/pkg.S" is not /pkg.Service/Method, /pkg.Service/* or /*`:      func() { hedge.WithMethods("/*", "/pkg.S") },
		`hedge: WithMethods: "/pkg.S/Get*" is not /pkg.Service/Method, /pkg.Service/* or /*`: func() { hedge.WithMethods("/pkg.S/Get*") },
	} {
		func() {
			defer func() { assert.Equal(t, want, fmt.Sprint(recover())) }()
			f()
		}()
	}
}

func TestInterceptorRejectsRoutesThatMatchNoMethod(t *testing.T) {
	for _, pattern := range []string{"GET /api/items", "catalog.test/a", "/a", "/", "/a/b/c", "/{service}/{method}", "/pkg.Service/Get*"} {
		_, err := hedge.NewInterceptorWithConfig(hedge.DefaultConfig(), hedge.WithRoute(pattern, hedge.Policy{Off: true}))
		assert.EqualError(t, err, fmt.Sprintf("hedge: WithRoute(%q): pattern is not /pkg.Service/Method, /pkg.Service/* or /*, as gRPC needs", pattern))
	}
	for _, pattern := range []string{"/pkg.Service/Get", "/pkg.Service/*", "/*"} {
		_, err := hedge.NewInterceptorWithConfig(hedge.DefaultConfig(), hedge.WithRoute(pattern, hedge.Policy{Off: true}))
		assert.NoError(t, err)
	}
}

func TestInterceptorRejectsInvalidConfig(t *testing.T) {
	c := hedge.DefaultConfig()
	c.BudgetPercent = -1
	_, err := hedge.NewInterceptorWithConfig(c)
	assert.EqualError(t, err, "hedge: Config.BudgetPercent: -1 is not in [0, 400]")

	c.BudgetPercent = 3
	in, err := hedge.NewInterceptorWithConfig(c, hedge.WithMaxHedges(1), nil)
	require.NoError(t, err)
	c.MaxHedges = 1
	assert.Equal(t, c, in.Snapshot().Config)
	assert.Equal(t, "hedge.Interceptor", fmt.Sprint(in))

	var stats *hedge.Stats
	hedge.New(nil, hedge.WithStats(&stats))
	first := stats
	hedge.NewUnaryClientInterceptor(nil, hedge.WithStats(&stats))
	assert.Same(t, first, stats)
}

func TestZeroInterceptorPanicsWithConstructorName(t *testing.T) {
	const zero = "hedge: a zero Transport, Interceptor or Hedger is not usable: New, NewInterceptor and NewHedger make one"
	in, l := new(hedge.Interceptor), new(hedge.Limiter)
	for name, f := range map[string]func(){
		"Unary":  func() { in.Unary() },
		"Stream": func() { in.Stream() },
		"String": func() { _ = in.String() },
		"Export": func() { _ = in.Export(io.Discard) },
	} {
		assert.PanicsWithValue(t, zero, f, name)
	}
	const zeroLimiter = "hedge: a zero Limiter is not usable: NewLimiter makes one"
	assert.PanicsWithValue(t, zeroLimiter, func() { l.UnaryServer() })
	assert.PanicsWithValue(t, zeroLimiter, func() { l.StreamServer() })
}
