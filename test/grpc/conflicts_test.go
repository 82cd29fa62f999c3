//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// checkConflict checks the error of withError, and that withoutError panics with the same error. An empty want means no
// error.
func checkConflict(t *testing.T, want string, withError func() error, withoutError func()) {
	t.Helper()
	if err := withError(); want == "" {
		require.NoError(t, err)
		require.NotPanics(t, withoutError)
	} else {
		require.EqualError(t, err, want)
		require.PanicsWithError(t, want, withoutError)
	}
}

func TestHTTPConstructorsRejectContradictoryOptions(t *testing.T) {
	never := func(*http.Response) bool { return false }
	base := doubles.RoundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
	for want, test := range map[string]struct {
		below http.RoundTripper
		opts  []hedge.HTTPOption
	}{
		`hedge: WithBudgetPercent(5) has no effect beside WithBudget(NewBudget(2, 10)): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithBudgetPercent(5), hedge.WithBudget(hedge.NewBudget(2, 10))}},
		`hedge: WithEstimatedRPS(50) has no effect beside WithBudget(NewBudget(2, 10)): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithBudget(hedge.NewBudget(2, 10)), hedge.WithEstimatedRPS(50)}},
		`hedge: WithBurst(3s) has no effect beside WithBudget(NewBudget(2.5, 0)): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithBurst(3 * time.Second), hedge.WithBudget(hedge.NewBudget(2.5, 0))}},
		`hedge: WithFailureStatus(404, 500) has no effect beside WithFailureFunc(func): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithFailureFunc(never), hedge.WithFailureStatus(404, 500)}},
		`hedge: WithAnswerStatus(404) has no effect beside WithFailureFunc(func): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithFailureFunc(never), hedge.WithAnswerStatus(404)}},
		`hedge: WithAudit() has no effect beside WithShadow(): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithShadow(), hedge.WithAudit()}},
		`hedge: WithReplicas(*net.Resolver) has no effect beside WithHedgeTransport(*http.Transport): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithReplicas(net.DefaultResolver), hedge.WithHedgeTransport(http.DefaultTransport)}},
		`hedge: WithLinger(0s) has no effect beside WithFirstByte(): remove one of them`: {
			opts: []hedge.HTTPOption{hedge.WithLinger(0), hedge.WithFirstByte()}},
		`hedge: WithMinDelay(5ms) has no effect before WithConfig, which sets MinDelay to 1ms: put it after WithConfig`: {
			opts: []hedge.HTTPOption{hedge.WithMinDelay(5 * ms), hedge.WithConfig(hedge.DefaultConfig()), hedge.WithMaxHedges(1)}},
		`hedge: WithAttemptHeader("X-Try") has no effect before WithConfig, which sets AttemptHeader to "": put it after WithConfig`: {
			opts: []hedge.HTTPOption{hedge.WithHTTPOptions(hedge.WithAttemptHeader("X-Try")), hedge.WithConfig(hedge.DefaultConfig())}},
		"hedge: WithMaxHedges(1) has no effect before WithConfig, which sets MaxHedges to 2: put it after WithConfig\n" +
			"hedge: WithAudit() has no effect beside WithShadow(): remove one of them": {
			opts: []hedge.HTTPOption{hedge.WithOptions(hedge.WithShadow(), nil, hedge.WithMaxHedges(1)), hedge.WithConfig(hedge.DefaultConfig()), hedge.WithAudit()}},
		`hedge: WithReplicas(*net.Resolver) needs an *http.Transport below, not a doubles.RoundTripperFunc`: {
			below: base, opts: []hedge.HTTPOption{hedge.WithReplicas(net.DefaultResolver)}},
		"": {opts: []hedge.HTTPOption{
			nil, hedge.WithConfig(hedge.DefaultConfig()), hedge.WithBurst(time.Second), hedge.WithReplicas(net.DefaultResolver), hedge.WithShadow(),
			hedge.WithRoute("/", hedge.Policy{FirstByte: true, Hedgeable: true}), hedge.WithRoute("/a", hedge.Policy{Off: true})}},
	} {
		checkConflict(t, want, func() error {
			_, err := hedge.NewWithConfig(test.below, hedge.DefaultConfig(), test.opts...)
			return err
		}, func() { hedge.Wrap(&http.Client{Transport: test.below}, test.opts...) })
	}
}

func TestGRPCConstructorsRejectContradictoryOptions(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///a", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	for want, opts := range map[string][]hedge.GRPCOption{
		`hedge: WithAudit() has no effect beside WithShadow(): remove one of them`: {hedge.WithAudit(), hedge.WithShadow()},
		`hedge: WithHedgeConn(passthrough:///a) has no effect beside WithHedgeConns(passthrough:///a): remove one of them`: {
			hedge.WithHedgeConns(nil, hedge.HedgeConn{Conn: conn}), hedge.WithGRPCOptions(hedge.WithHedgeConn(conn))},
		`hedge: WithRoute("/a.B/*"): FirstByte true is for HTTP`: {hedge.WithRoute("/a.B/*", hedge.Policy{FirstByte: true})},
		"": {hedge.WithRoute("/a.B/*", hedge.Policy{Hedgeable: true}), hedge.WithHedgeConn(conn), hedge.WithMethods("/*"), hedge.WithDeclaredMethods()},
	} {
		checkConflict(t, want, func() error {
			_, err := hedge.NewInterceptorWithConfig(hedge.DefaultConfig(), opts...)
			return err
		}, func() { hedge.NewInterceptor(opts...) })
		checkConflict(t, want, func() error {
			_, err := hedge.DialOptions("{}", opts...)
			return err
		}, func() { hedge.NewUnaryClientInterceptor(opts...) })
	}
}

func TestHedgerConstructorsRejectContradictoryOptions(t *testing.T) {
	for want, opts := range map[string][]hedge.FuncOption{
		`hedge: WithBudgetPercent(0) has no effect beside WithBudget(NewBudget(1, 1)): remove one of them`: {
			hedge.WithBudget(hedge.NewBudget(1, 1)), hedge.WithBudgetPercent(0)},
		"": {hedge.WithBudget(hedge.NewBudget(1, 1)), hedge.WithName("a"), hedge.WithName("b")},
	} {
		checkConflict(t, want, func() error {
			_, err := hedge.NewHedgerWithConfig(hedge.DefaultConfig(), opts...)
			return err
		}, func() { hedge.NewHedger(opts...) })
	}
}

func TestRoutePanicsIfOffAndHedgeable(t *testing.T) {
	assert.PanicsWithError(t, `hedge: WithRoute("/a"): Hedgeable true has no effect beside Off true`, func() {
		hedge.WithRoute("/a", hedge.Policy{Off: true, Hedgeable: true})
	})
}

// TestEnvironmentOverridesOptionsWithoutContradiction sets HEDGE_MODE, by which an operator overrides the options of a
// program.
func TestEnvironmentOverridesOptionsWithoutContradiction(t *testing.T) {
	key := hedge.WithKeyFunc(func(context.Context, string, string) string { return "" })
	for mode, opt := range map[string]hedge.Option{"shadow": hedge.WithAudit(), "audit": hedge.WithShadow(), "on": hedge.WithShadow()} {
		t.Setenv("HEDGE_MODE", mode)
		assert.Equal(t, mode == "shadow", hedge.New(nil, opt, key).Snapshot().Shadow, mode)
	}
}
