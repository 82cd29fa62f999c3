package repo_test

import (
	"bytes"
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
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// layoutLimits are limits of a package. A limit is the largest value reached so far; a commit that raises one gives a reason other than a feature.
type layoutLimits struct {
	packages  string // relative to the module; a pattern of path.Match
	function  int    // lines of a function without its documentation
	filePairs int    // pairs of files that use each other
}

// limitsByPackage has the limits of each package in the first row that matches its path.
var limitsByPackage = []layoutLimits{
	{".", 50, 1},
	{"internal/httpcall", 60, 2},
	{"internal/policy", 60, 2},
	{"benchmark/simulate", 60, 5},
	{"benchmark/*", 60, 3},
	{"benchmark/internal/*", 60, 4},
	{"rangeread", 60, 2},
	{"steering", 50, 0},
	{"internal/*", 60, 1},
	{"dnshedge", 60, 3},
	{"dnshedge/forward", 45, 0},
	{"dnshedge/internal/group", 50, 1},
	{"dnshedge/internal/transport", 60, 3},
	{"dnshedge/internal/*", 66, 3},
	{"dnshedge/recursor", 60, 4},
	{"dnshedge/recursor/internal/*", 60, 1},
}

// packagesOfTests are used by tests and benchmarks alone. They have no limits.
var packagesOfTests = []string{"internal/dnstest", "internal/doubles", "internal/grpctest", "internal/metricstest", "internal/netsim", "internal/rpl"}

// longFunctions may have more lines than their package allows.
var longFunctions = []string{"benchmark/simulate.virtualScenarios"} // a table

// maxFlatFields is the limit of flat fields, see flatFields, of structs that wideStructs does not name.
const maxFlatFields = 40

// wideStructs has the flat fields of each struct that has more than maxFlatFields.
var wideStructs = map[string]int{
	"internal/funccall.detachedCall": 42, "internal/grpccall.unaryCall": 76, "internal/grpccall.stream": 79,
	"internal/httpcall.call": 61, "internal/httpcall.resumption": 41, // a body outlives its call, so it needs a copy of the call's mode
	"dnshedge.groupQuery": 72, "dnshedge/internal/group.Exchange": 57, "dnshedge/internal/group.exchangeRace": 59,
	"benchmark/simulate.contender": 54,
}

// TestLayout compares the layout of the packages with its limits: function length, flat fields of structs, and pairs of files of which each uses
// a function, a type, a variable, a method or a field that the other declares. It runs alone, and prints the largest functions and structs, with
//
//	go test -run TestLayout -v ./test/repo
func TestLayout(t *testing.T) {
	if testing.Short() {
		t.Skip("the layout does not depend on the version of Go, and the test needs the workspace")
	}
	wide := make(map[string]int)
	for _, p := range loadPackages(t) {
		t.Run(p.name, func(t *testing.T) {
			row := slices.IndexFunc(limitsByPackage, func(l layoutLimits) bool {
				match, err := path.Match(l.packages, p.name)
				return err == nil && match
			})
			if row < 0 || slices.Contains(packagesOfTests, p.name) {
				require.True(t, row >= 0 || !strings.HasPrefix(p.name, "internal/"), "no limits")
				return
			}
			limits := limitsByPackage[row]
			functions, structs, pairs := p.functionLines(t), p.structFields(), p.filePairs()
			t.Logf("functions: %s; structs: %s; pairs of files: %s", largest(functions), largest(structs), strings.Join(pairs, ", "))
			for name, lines := range functions {
				assert.True(t, lines <= limits.function || slices.Contains(longFunctions, p.name+"."+name), "%s has %d lines, and the limit is %d", name, lines, limits.function)
			}
			for name, fields := range structs {
				if fields > maxFlatFields {
					wide[strings.Replace(p.name, ".", "hedge", 1)+"."+name] = fields
				}
			}
			assert.LessOrEqual(t, len(pairs), limits.filePairs, "pairs of files that use each other: %s", pairs)
		})
	}
	assert.Equal(t, wideStructs, wide, "structs with more than %d flat fields", maxFlatFields)
}

// largest returns up to three names with the largest sizes.
func largest(sizes map[string]int) string {
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b)) })
	var texts []string
	for _, name := range names[:min(3, len(names))] {
		texts = append(texts, fmt.Sprint(name, " ", sizes[name]))
	}
	return strings.Join(texts, ", ")
}

// checkedPackage is a package with its types.
type checkedPackage struct {
	name, directory string // name is the import path relative to the module, or "." for the root
	fset            *token.FileSet
	types           *types.Package
	info            *types.Info
}

// loadPackages returns the packages that users import or benchmarks use, in the order of go list.
func loadPackages(t *testing.T) (packages []checkedPackage) {
	listed := output(t, ".", nil, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", ".", "./internal/...", "./rangeread", "./steering", "./dnshedge/...", "./benchmark/...")
	exports := make(map[string]string)
	openExport := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	for decoder := json.NewDecoder(strings.NewReader(listed)); decoder.More(); {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
			DepOnly                 bool
		}
		require.NoError(t, decoder.Decode(&p))
		exports[p.ImportPath] = p.Export
		if p.DepOnly || len(p.GoFiles) == 0 {
			continue
		}
		loaded := checkedPackage{
			name: cmp.Or(strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/"), "."), directory: p.Dir,
			fset: token.NewFileSet(), info: &types.Info{Uses: make(map[*ast.Ident]types.Object)},
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(loaded.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, file)
		}
		config := types.Config{Importer: importer.ForCompiler(loaded.fset, "gc", openExport)}
		var err error
		loaded.types, err = config.Check(p.ImportPath, loaded.fset, files, loaded.info)
		require.NoError(t, err)
		packages = append(packages, loaded)
	}
	require.NotEmpty(t, packages)
	return packages
}

// functionLines returns the lines of each function and method, also in files for other systems. A function literal counts as a part of its function.
func (p checkedPackage) functionLines(t *testing.T) map[string]int {
	lines := make(map[string]int)
	names, err := filepath.Glob(filepath.Join(p.directory, "*.go"))
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		require.NoError(t, err)
		record := func(name string, node ast.Node) {
			text := source[node.Pos()-file.FileStart : node.End()-file.FileStart]
			lines[name] = max(lines[name], bytes.Count(text, []byte("\n"))+1)
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					receiver := types.ExprString(d.Recv.List[0].Type)
					receiver, _, _ = strings.Cut(strings.TrimPrefix(receiver, "*"), "[")
					name = receiver + "." + name
				}
				d.Doc = nil
				record(name, d)
			case *ast.GenDecl:
				ast.Inspect(d, func(node ast.Node) bool {
					if _, ok := node.(*ast.FuncLit); ok {
						record("function literal in "+filepath.Base(name), node)
					}
					return true
				})
			}
		}
	}
	return lines
}

// structFields returns the flat fields of each struct type that has a name.
func (p checkedPackage) structFields() map[string]int {
	fields := make(map[string]int)
	for _, name := range p.types.Scope().Names() {
		object, ok := p.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || object.IsAlias() {
			continue
		}
		if s, ok := object.Type().Underlying().(*types.Struct); ok {
			fields[name] = flatFields(s)
		}
	}
	return fields
}

// flatFields counts the fields of s. In place of a field that holds a struct, or an array of structs, the fields of that struct count,
// if its type has no name or is declared in this module.
func flatFields(s *types.Struct) (n int) {
	for i := range s.NumFields() {
		held := s.Field(i).Type()
		if array, ok := held.Underlying().(*types.Array); ok {
			held = array.Elem()
		}
		inner, ok := held.Underlying().(*types.Struct)
		if named, isNamed := types.Unalias(held).(*types.Named); isNamed && (named.Obj().Pkg() == nil || !strings.HasPrefix(named.Obj().Pkg().Path(), module)) {
			ok = false
		}
		if ok {
			n += flatFields(inner)
		} else {
			n++
		}
	}
	return n
}

// filePairs returns the names of each two files of which each uses what the other declares.
func (p checkedPackage) filePairs() (pairs []string) {
	type use struct{ from, of string }
	uses := make(map[use]bool)
	for identifier, object := range p.info.Uses {
		inScope := object.Parent() == p.types.Scope()
		switch o := object.(type) { // a field or method of an instance of a generic type is that of the type
		case *types.Func:
			object = o.Origin()
			inScope = inScope || o.Signature().Recv() != nil
		case *types.Var:
			object = o.Origin()
			inScope = inScope || o.IsField()
		}
		if object.Pkg() == p.types && inScope {
			base := func(position token.Pos) string { return filepath.Base(p.fset.Position(position).Filename) }
			uses[use{base(identifier.Pos()), base(object.Pos())}] = true
		}
	}
	for u := range uses {
		if u.from < u.of && uses[use{u.of, u.from}] {
			pairs = append(pairs, u.from+" and "+u.of)
		}
	}
	slices.Sort(pairs)
	return pairs
}
