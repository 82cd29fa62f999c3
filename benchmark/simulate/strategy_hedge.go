package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/internal/audit"
	hedging "github.com/gohedge/hedge/internal/engine"
)

// library is this library with some options.
type library struct {
	maxHedges int                                              // 0: the default
	options   func(*contender, *http.Transport) []hedge.Option // besides; nil: none
	warm      bool                                             // Transport.Warm before the first request
	ownConn   bool                                             // WithHedgeConn
	audit     *audit.Settings                                  // nil: none
}

func init() {
	some := func(options ...hedge.Option) func(*contender, *http.Transport) []hedge.Option {
		return func(*contender, *http.Transport) []hedge.Option { return options }
	}
	enter(
		library{}.everywhere(strategy{
			name: ours, rank: 100, dns: true, recursor: true, about: "this library, no option set",
			look: look{shade: shade{rgb(0x1d4ed8), rgb(0x60a5fa)}, highlight: true},
		}),
		strategy{
			name: "hedge-limited", rank: 106, about: "this library, and a Limiter before each server", limited: true,
			look:    look{shade: shade{rgb(0x0e7490), rgb(0x22d3ee)}},
			virtual: library{}.virtual,
		},
		library{maxHedges: 1}.everywhere(strategy{
			name: "hedge-1", rank: 110, about: "this library with one hedge per call",
			look: look{shade: shade{rgb(0x0284c7), rgb(0x38bdf8)}},
		}),
		library{maxHedges: 2}.everywhere(strategy{
			name: "hedge-2", rank: 120, about: "this library with two hedges per call, which is the default", onRequest: true,
			look: look{shade: shade{rgb(0x4338ca), rgb(0x818cf8)}},
		}),
		library{maxHedges: 3}.everywhere(strategy{
			name: "hedge-3", rank: 130, about: "this library with three hedges per call", onRequest: true,
			look: look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}},
		}),

		library{options: some(hedge.WithFirstByte())}.overHTTP(strategy{
			name: "hedge-first-byte-10", rank: 140, scenarios: []string{"stream"}, about: "this library with WithFirstByte",
			look: look{shade: shade{rgb(0x0284c7), rgb(0x38bdf8)}},
		}),
		library{options: some(hedge.WithFirstByte(), hedge.WithBudgetPercent(11.5))}.overHTTP(strategy{
			name: "hedge-first-byte", rank: 150, scenarios: []string{"stream"},
			about: "the same with a budget of 11.5 %, which pays for hedging a slow tenth of calls, and the slow tenth of those hedges",
			look:  look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}, highlight: true},
		}),
		library{options: func(_ *contender, base *http.Transport) []hedge.Option {
			return []hedge.Option{hedge.WithHedgeTransport(base)}
		}}.overHTTP(strategy{
			name: "hedge-one-pool", rank: 160, scenarios: []string{"frozen-h2"}, about: "this library with its hedges on the connections of the primaries",
			look: look{shade: shade{rgb(0x0284c7), rgb(0x38bdf8)}, highlight: true},
		}),
		library{ownConn: true}.overGRPC(strategy{
			name: "hedge-conn", rank: 170, scenarios: []string{"frozen-h2"}, about: "this library with WithHedgeConn",
			look: look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}, highlight: true},
		}),
		library{audit: &audit.Settings{}}.inVirtualTime(strategy{
			name: audited, rank: 174, scenarios: longNames(), about: "this library with WithAudit",
			look: look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}},
		}),
		library{audit: &audit.Settings{After: 5 * time.Minute, Bits: 3}}.inVirtualTime(strategy{
			name: "hedge-audit-slow", rank: 176, scenarios: longNames(), onRequest: true,
			about: "the same as if it were the default: no rest in the first five minutes, and then one in sixteen slots until the verdict",
			look:  look{shade: shade{rgb(0x4338ca), rgb(0x818cf8)}},
		}),
		library{warm: true}.overHTTP(strategy{
			name: "hedge-warm", rank: 180, scenarios: []string{"cold"}, about: "this library, after Transport.Warm",
			look: look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}, highlight: true},
		}),
		library{options: func(c *contender, _ *http.Transport) []hedge.Option {
			return []hedge.Option{hedge.WithReplicas(c.backend.site)}
		}}.overHTTP(strategy{
			name: "hedge-replicas-2s", rank: 190, scenarios: []string{"replica"}, about: "this library with WithReplicas",
			look: look{shade: shade{rgb(0x0284c7), rgb(0x38bdf8)}, highlight: true},
		}),
		library{options: func(c *contender, _ *http.Transport) []hedge.Option {
			return []hedge.Option{hedge.WithReplicas(c.backend.site), hedge.WithBurst(10 * sec)}
		}}.overHTTP(strategy{
			name: "hedge-replicas", rank: 200, scenarios: []string{"replica"}, about: "the same with a burst of ten seconds, for pauses",
			look: look{shade: shade{rgb(0x0f766e), rgb(0x2dd4bf)}, highlight: true},
		}),
	)
}

func (l library) everywhere(s strategy) strategy {
	s.http, s.grpc, s.virtual = l.http, l.grpc, l.virtual
	return s
}

func (l library) overHTTP(s strategy) strategy {
	s.http = l.http
	return s
}

func (l library) overGRPC(s strategy) strategy {
	s.grpc = l.grpc
	return s
}

func (l library) inVirtualTime(s strategy) strategy {
	s.virtual = l.virtual
	return s
}

func (l library) http(c *contender, p httpPath) (http.RoundTripper, error) {
	next := p.counted
	if c.lab != nil {
		next = p.base // the library must see the *http.Transport to use all of its features
	}
	t := hedge.New(next, l.with(c, p.base)...)
	c.shut = t.CloseIdleConnections
	c.refused = func() (n int) {
		for _, k := range t.Snapshot().Keys {
			for _, denied := range k.Denied {
				n += int(denied)
			}
		}
		return n
	}
	if l.warm {
		return t, t.Warm(context.Background(), 1, p.url)
	}
	return t, nil
}

func (l library) grpc(c *contender, p grpcPath) ([]grpc.UnaryClientInterceptor, error) {
	opts := l.with(c, nil)
	if l.ownConn {
		conn, err := p.connect(c.backend.site.from(detour))
		if err != nil {
			return nil, err
		}
		opts = append(opts, hedge.WithHedgeConn(conn))
	}
	var stats *hedge.Stats
	intercept := hedge.NewUnaryClientInterceptor(append(opts, hedge.WithStats(&stats))...)
	c.refused = func() int { return int(stats.BudgetExhausted.Load()) }
	return []grpc.UnaryClientInterceptor{intercept}, nil
}

// virtual drives the library's engine by the simulation's clock, without an adapter.
func (l library) virtual(s setting) func() virtual.Policy {
	config := usualConfig()
	if l.maxHedges > 0 {
		config.MaxHedges = l.maxHedges
	}
	if s.estimate > 0 {
		config.EstimatedRPS = s.estimate
	}
	config.Audit = l.audit
	return func() virtual.Policy { return virtual.NewOurs(config) }
}

// with returns the options of a contender's client.
func (l library) with(c *contender, base *http.Transport) []hedge.Option {
	var opts []hedge.Option
	if l.maxHedges > 0 {
		opts = append(opts, hedge.WithMaxHedges(l.maxHedges))
	}
	if l.options != nil {
		opts = append(opts, l.options(c, base)...)
	}
	if c.lab != nil {
		if c.won == nil {
			c.won = make([]atomic.Int32, len(c.calls))
		}
		opts = append(opts, hedge.WithObserver(&tally{c: c}))
	}
	return opts
}

// tally counts the attempts of each request where nothing can come between the
// library and its transport, or its connections.
type tally struct {
	hedge.NopObserver
	c *contender
}

func (t *tally) AttemptStart(ctx context.Context, _ hedge.KeyInfo, _ hedge.AttemptInfo) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.c.sent[id].Add(1)
	}
}

func (t *tally) RequestDone(ctx context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	if id, ok := ctx.Value(requestKey{}).(int); ok {
		t.c.won[id].Store(int32(r.Winner))
	}
}

// usualConfig is hedge.DefaultConfig in the terms of the library's engine.
func usualConfig() hedging.Config {
	c := hedge.DefaultConfig()
	return hedging.Config{
		Percentile: c.Percentile, MaxHedges: c.MaxHedges, Share: c.BudgetPercent / 100, EstimatedRPS: c.EstimatedRPS, Burst: c.Burst,
		MinDelay: c.MinDelay, MaxDelay: c.MaxDelay, InitialDelay: c.InitialDelay, MaxPerSecond: c.MaxHedgesPerSecond, MaxKeys: c.MaxKeys, Short: true,
	}
}
