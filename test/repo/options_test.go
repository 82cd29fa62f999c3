package repo_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// optionCalls are calls of all functions that return options, and the letters of the constructors that accept the result, see optionConstructors.
var optionCalls = map[string]string{
	`WithPercentile(0.9)`: "HGF", `WithMaxHedges(1)`: "HGF", `WithBudgetPercent(5)`: "HGF", `WithEstimatedRPS(50)`: "HGF", `WithMinDelay(1)`: "HGF",
	`WithMaxDelay(1)`: "HGF", `WithInitialDelay(1)`: "HGF", `WithBurst(1)`: "HGF", `WithMaxHedgesPerSecond(1)`: "HGF", `WithMaxKeys(1)`: "HGF",
	`WithConfig(hedge.DefaultConfig())`: "HGF", `WithBudget(nil)`: "HGF", `WithStats(nil)`: "HGF", `WithShadow()`: "HGF", `WithAudit()`: "HGF",
	`WithOptions(hedge.WithName("a"), hedge.WithShadow())`: "HGF",

	`WithName("a")`: "HGFL", `WithLogger(nil)`: "HGFL", `WithObserver(nil)`: "HGFL",
	`WithKeyFunc(nil)`: "HG", `WithRoute("/", hedge.Policy{})`: "HG",

	`WithLinger(1)`: "H", `WithMaxReplayBytes(1)`: "H", `WithAttemptHeader("a")`: "H", `WithHedgeable(nil)`: "H", `WithFailureStatus(500)`: "H",
	`WithAnswerStatus(404)`: "H", `WithFailureFunc(nil)`: "H", `WithHedgeTransport(nil)`: "H", `WithFirstByte()`: "H", `WithEndpoints()`: "H",
	`WithReplicas(nil)`: "H", `WithResume()`: "H", `WithHTTPOptions(hedge.WithName("a"), hedge.WithRoute("/", hedge.Policy{}), hedge.WithResume())`: "H",

	`WithMethods("/*")`: "G", `WithDeclaredMethods()`: "G", `WithHedgeConn(nil)`: "G", `WithHedgeConns(nil)`: "G", `WithNonFatalCodes()`: "G",
	`WithAnswerCodes()`: "G", `WithServiceConfig("{}")`: "G", `WithGRPCOptions(hedge.WithName("a"), hedge.WithRoute("/*", hedge.Policy{}), hedge.WithDeclaredMethods())`: "G",

	`WithUnlimited("/")`: "L", `WithLimitedHealthChecks()`: "L",
}

// optionConstructors are the functions that take options, by letters. A %s is the place of an option.
var optionConstructors = map[string][]string{
	"H": {"New(nil, %s)", "NewWithConfig(nil, hedge.Config{}, %s)", "Wrap(nil, %s)", "WithHTTPOptions(%s)"},
	"G": {"NewInterceptor(%s)", "NewInterceptorWithConfig(hedge.Config{}, %s)", "NewUnaryClientInterceptor(%s)", `DialOptions("{}", %s)`, "WithGRPCOptions(%s)"},
	"F": {"NewHedger(%s)", "NewHedgerWithConfig(hedge.Config{}, %s)"},
	"L": {"NewLimiter(1, %s)"},
}

// TestOptionsCompileWhereTheyHaveAnEffect gives every option to every constructor, and checks which snippets the compiler accepts.
func TestOptionsCompileWhereTheyHaveAnEffect(t *testing.T) {
	root, importPackage := importRoot(t)
	var called []string
	snippets := make(map[string]bool) // whether they are to compile
	for call, letters := range optionCalls {
		name, _, _ := strings.Cut(call, "(")
		called = append(called, name)
		for letter, constructors := range optionConstructors {
			for _, constructor := range constructors {
				snippets[fmt.Sprintf("hedge."+constructor, "hedge."+call)] = strings.Contains(letters, letter)
			}
		}
	}
	snippets[`hedge.WithOptions(hedge.WithRoute("/", hedge.Policy{}))`] = false
	snippets[`hedge.New(nil, []hedge.Option{hedge.WithShadow()}...)`] = false // a slice needs WithOptions
	snippets[`hedge.New(nil, hedge.WithOptions([]hedge.Option{hedge.WithShadow()}...))`] = true
	assert.ElementsMatch(t, optionFunctions(root), called)
	refused := refusedSnippets(t, importPackage, slices.Sorted(maps.Keys(snippets)))
	for snippet, compiles := range snippets {
		if compiles {
			assert.NoError(t, refused[snippet], snippet)
		} else {
			assert.ErrorContains(t, refused[snippet], "cannot use ", snippet)
		}
	}
}

// refusedSnippets returns the first error of the type checker for each expression that it refuses.
func refusedSnippets(t *testing.T, importPackage types.Importer, snippets []string) map[string]error {
	source := "package p; import \"github.com/gohedge/hedge\"; func f() {\n" + strings.Join(snippets, "\n") + "\n}"
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "snippets.go", source, parser.SkipObjectResolution)
	require.NoError(t, err)
	refused := make(map[string]error)
	config := types.Config{Importer: importPackage, Error: func(err error) {
		wrong := err.(types.Error)
		snippet := snippets[fset.Position(wrong.Pos).Line-2]
		refused[snippet] = cmp.Or(refused[snippet], err)
	}}
	_, _ = config.Check("p", fset, []*ast.File{file}, nil) // Error gets the errors
	return refused
}

// optionFunctions returns the names of the functions that return an option.
func optionFunctions(root *types.Package) (names []string) {
	for _, name := range root.Scope().Names() {
		f, ok := root.Scope().Lookup(name).(*types.Func)
		if !ok || !f.Exported() || f.Signature().Results().Len() != 1 {
			continue
		}
		if result, ok := f.Signature().Results().At(0).Type().(*types.Named); ok && strings.HasSuffix(result.Obj().Name(), "Option") && result.Obj().Pkg() == root {
			names = append(names, name)
		}
	}
	return names
}

// importRoot returns the package of the root and an importer that has it.
func importRoot(t *testing.T) (*types.Package, types.Importer) {
	exports := make(map[string]string)
	listed := output(t, ".", nil, "go", "list", "-export", "-deps", "-json=ImportPath,Export", ".")
	for decoder := json.NewDecoder(strings.NewReader(listed)); decoder.More(); {
		var p struct{ ImportPath, Export string }
		require.NoError(t, decoder.Decode(&p))
		exports[p.ImportPath] = p.Export
	}
	importPackage := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	root, err := importPackage.Import(module)
	require.NoError(t, err)
	return root, importPackage
}
