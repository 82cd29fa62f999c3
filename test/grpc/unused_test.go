//go:build !hedge_nogrpc

package grpc_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// unusedOptions returns the journal's records of options without an effect.
func unusedOptions(j *fixture.Journal) (all []string) {
	for _, line := range j.Take() {
		_, why, found := strings.Cut(line, ` option="`)
		if found && strings.HasPrefix(line, `DEBUG "an option has no effect" `) {
			all = append(all, strings.ReplaceAll(strings.TrimSuffix(why, `"`), `\"`, `"`))
		}
	}
	return all
}

// TestOptionsWithoutEffectAreTold gives options to what they are not for, and beside others that overrule them.
func TestOptionsWithoutEffectAreTold(t *testing.T) {
	key := hedge.WithKeyFunc(func(context.Context, string, string) string { return "" })
	base := doubles.RoundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, nil })
	resolver := hedge.WithReplicas(net.DefaultResolver)
	for name, test := range map[string]struct {
		make func(opts ...hedge.Option) hedge.Snapshot
		opts []hedge.Option
		want []string
	}{
		"http": {
			func(opts ...hedge.Option) hedge.Snapshot { return hedge.New(base, opts...).Snapshot() },
			[]hedge.Option{hedge.WithMethods("/*"), hedge.WithLinger(0), hedge.WithMethods("/a.B/C"), hedge.WithDeclaredMethods(), hedge.WithBudget(hedge.NewBudget(5, 5)), hedge.WithBurst(1), resolver, key},
			[]string{"WithMethods is for gRPC", "WithDeclaredMethods is for gRPC", "WithBurst has no effect beside WithBudget", "WithReplicas needs an *http.Transport below, not a doubles.RoundTripperFunc"},
		},
		"http, nothing": {
			func(opts ...hedge.Option) hedge.Snapshot { return hedge.New(nil, opts...).Snapshot() },
			[]hedge.Option{resolver, hedge.WithBudgetPercent(3), hedge.WithRoute("/", hedge.Policy{FirstByte: true, Hedgeable: true}), hedge.WithRoute("/a", hedge.Policy{Off: true})},
			nil,
		},
		"grpc": {
			func(opts ...hedge.Option) hedge.Snapshot { return hedge.NewInterceptor(opts...).Snapshot() },
			[]hedge.Option{hedge.WithLinger(0), hedge.WithMethods("/*"), hedge.WithShadow(), hedge.WithAudit(), hedge.WithRoute("/a.B/*", hedge.Policy{FirstByte: true, Off: true, Hedgeable: true})},
			[]string{"WithLinger is for HTTP", "WithAudit has no effect beside WithShadow", `FirstByte of the route "/a.B/*" is for HTTP`, `Hedgeable of the route "/a.B/*" has no effect beside Off`},
		},
		"http, one after the other": {
			func(opts ...hedge.Option) hedge.Snapshot { return hedge.New(nil, opts...).Snapshot() },
			[]hedge.Option{hedge.WithMaxHedges(1), hedge.WithLinger(0), hedge.WithMinDelay(0), hedge.WithShadow(), hedge.WithConfig(hedge.DefaultConfig()), hedge.WithMinDelay(0), hedge.WithFirstByte()},
			[]string{"WithMaxHedges has no effect before WithConfig", "WithLinger has no effect beside WithFirstByte"},
		},
		"func": {
			func(opts ...hedge.Option) hedge.Snapshot { return hedge.NewHedger(opts...).Snapshot() },
			[]hedge.Option{hedge.WithFirstByte(), key, hedge.WithMaxHedges(1), hedge.WithName("x")},
			[]string{"WithFirstByte is for HTTP", "WithKeyFunc is for HTTP and gRPC"},
		},
		"limiter": {
			func(opts ...hedge.Option) hedge.Snapshot {
				hedge.NewLimiter(1, opts...)
				return hedge.Snapshot{Unused: []string{"WithBudgetPercent is for HTTP, gRPC and functions"}}
			},
			[]hedge.Option{hedge.WithBudgetPercent(5), hedge.WithName("x")},
			[]string{"WithBudgetPercent is for HTTP, gRPC and functions"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := fixture.NewVerboseJournal()
			s := test.make(append(test.opts, hedge.WithLogger(slog.New(j)))...)
			assert.Equal(t, test.want, s.Unused)
			assert.Equal(t, test.want, unusedOptions(j))
		})
	}
}
