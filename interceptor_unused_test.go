//go:build !hedge_nogrpc

package hedge_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/ops"
)

// verbose returns a logger of all levels to j.
func verbose(j *journal) hedge.Option {
	j.Handler = slog.NewTextHandler(j.text, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "protocol" {
			return slog.Attr{}
		}
		return a
	}})
	return hedge.WithLogger(slog.New(j))
}

// unused returns the journal's records of options without an effect.
func (j *journal) unused() (all []string) {
	for _, line := range j.take() {
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
			j := newJournal()
			s := test.make(append(test.opts, verbose(j))...)
			assert.Equal(t, test.want, s.Unused)
			assert.Equal(t, test.want, j.unused())
		})
	}
}

// TestEveryOptionSaysWhereItHasAnEffect reads the functions that return options: each passes its own name on, for which package ops knows
// where it has an effect.
func TestEveryOptionSaysWhereItHasAnEffect(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	seen := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || !returnsOption(f) {
				continue
			}
			seen++
			name, named, sets := f.Name.Name, false, false
			ast.Inspect(f.Body, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				named = named || ok && lit.Value == `"`+name+`"`
				id, ok := n.(*ast.Ident)
				sets = sets || ok && id.Name == "setting"
				return true
			})
			assert.True(t, named, "%s passes its name on", name)
			unused := ops.Unused("a protocol that there is not", []string{name})
			require.Len(t, unused, 1, name)
			assert.NotEqual(t, name+" is for ", unused[0], "package ops does not know where %s has an effect", name)
			if sets && name != "WithConfig" {
				assert.Equal(t, []string{name + " has no effect before WithConfig"}, ops.Unused("http", []string{name, "WithConfig"}))
			}
		}
	}
	assert.Greater(t, seen, 30)
}

func returnsOption(f *ast.FuncDecl) bool {
	if f.Type.Results == nil || len(f.Type.Results.List) != 1 {
		return false
	}
	id, ok := f.Type.Results.List[0].Type.(*ast.Ident)
	return ok && id.Name == "Option"
}
