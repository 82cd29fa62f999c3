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
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// houseLimits say how large the parts of a room may be. A room is a package.
type houseLimits struct {
	room     string // relative to the module; a pattern of path.Match
	function int    // lines of a function, from func to its last brace
	wide     int    // structs that may have more than houseWideStruct fields
	pairs    int    // pairs of files that name each other
}

// houseRooms holds the limits. The first row that matches a room counts.
// A room without a row is not measured.
var houseRooms = []houseLimits{
	{room: ".", function: 50, pairs: 3},
	{room: "internal/engine", function: 60, pairs: 2},
	{room: "benchmark/simulate", function: 60, pairs: 5},
	{room: "benchmark/*", function: 60, pairs: 3},
	{room: "benchmark/internal/*", function: 60, pairs: 4},
	{room: "rangeread", function: 60, pairs: 2},
	{room: "internal/*", function: 60, pairs: 1},
	{room: "dnshedge", function: 60, pairs: 3},
	{room: "dnshedge/internal/group", function: 60, pairs: 4},
	{room: "dnshedge/internal/transport", function: 75, pairs: 4},
	{room: "dnshedge/internal/*", function: 66, pairs: 3},
	{room: "dnshedge/recursor", function: 60, pairs: 5},
	{room: "dnshedge/recursor/internal/*", function: 60, pairs: 1},
}

// houseLaterRooms match houseRooms, but are not measured yet: what only tests and benchmarks use.
var houseLaterRooms = []string{"internal/dnstest", "internal/doubles", "internal/grpctest", "internal/netsim", "internal/rpl"}

// houseTables are the functions that may be longer than their room allows, and why.
var houseTables = map[string]string{ // room, space, name: "internal/engine decodeExport"
	"benchmark/simulate scenarios": "a table of scenarios",
}

// houseWideStruct is the number of fields above which a struct is wide, and needs a reason below.
const houseWideStruct = 25

// houseWideStructs are the structs that may be wide, and why.
var houseWideStructs = map[string]string{ // room, space, name: ". Transport"
}

// TestHouse prints how large the parts of each room are, and holds them to houseRooms. It is run alone by
//
//	go test -run TestHouse -v ./test/repo
//
// Files A and B of a package are a pair if A uses what B declares and B uses what A declares: identifiers of the package,
// methods or fields, as go/types resolves them. Methods and fields count, because a file that reaches into the fields of
// another file's struct depends on that file as much as one that calls its functions.
//
// A room that is too large fails with the functions, structs and pairs that make it so. Cut those. A row for another room
// is added to houseRooms when that room is put in order.
func TestHouse(t *testing.T) {
	rooms := houseOpen(t)
	for _, r := range rooms {
		t.Log(r.summary())
	}
	used := make(map[string]bool)
	for _, r := range rooms {
		t.Run(r.name, func(t *testing.T) {
			r.holds(t, used)
		})
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(houseTables)), slices.Sorted(maps.Keys(houseWideStructs))) {
		if !used[name] {
			t.Errorf("%s needs no exception any more", name)
		}
	}
}

// A houseRoom is a package that is measured.
type houseRoom struct {
	name      string
	limits    houseLimits
	lines     map[string]int // of each file
	functions []housePart    // longest first
	structs   []housePart    // widest first
	pairs     []housePair
	arrows    int // pairs of a file and another file of which it uses something
}

// A housePart is a function with its lines, or a struct with its fields.
type housePart struct {
	name, place string
	size        int
}

func (p housePart) String() string { return fmt.Sprintf("%d %s (%s)", p.size, p.name, p.place) }

// A housePair is two files that name each other.
type housePair struct {
	a, b string
	ab   []string // what a uses of b
	ba   []string // what b uses of a
}

func (p housePair) String() string {
	few := func(names []string) string {
		if len(names) > 6 {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:6], ", "), len(names)-6)
		}
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("pair: %s <-> %s\n\t%s uses %s\n\t%s uses %s", p.a, p.b, p.a, few(p.ab), p.b, few(p.ba))
}

// summary is the room's numbers in one line, with their limits.
func (r *houseRoom) summary() string {
	largest := func(parts []housePart) string {
		if len(parts) == 0 {
			return "0"
		}
		return fmt.Sprintf("%d %s", parts[0].size, parts[0].name)
	}
	return fmt.Sprintf("%-19s files %d, lines %d, longest function %s, widest struct %s, arrows %d, pairs %d of %d",
		r.name, len(r.lines), r.totalLines(),
		largest(r.functions), largest(r.structs), r.arrows, len(r.pairs), r.limits.pairs)
}

func (r *houseRoom) totalLines() (n int) {
	for _, l := range r.lines {
		n += l
	}
	return n
}

// holds checks the room against its limits, and prints what is next to them. It adds the exceptions that the room needs to used.
func (r *houseRoom) holds(t *testing.T, used map[string]bool) {
	large := func(what string, parts []housePart, limit int, reasons map[string]string) (n int) {
		for i, p := range parts {
			if p.size <= limit {
				if i < 3 {
					t.Logf("%s: %s", what, p)
				}
				continue
			}
			n++
			name := r.name + " " + p.name
			used[name] = true
			if reason := reasons[name]; reason != "" {
				t.Logf("%s: %s: %s", what, p, reason)
			} else {
				t.Errorf("%s: %s, %d at most without a reason", what, p, limit)
			}
		}
		return n
	}
	large("function", r.functions, r.limits.function, houseTables)
	if n := large("struct", r.structs, houseWideStruct, houseWideStructs); n > r.limits.wide {
		t.Errorf("%d structs have more than %d fields, %d at most", n, houseWideStruct, r.limits.wide)
	}
	for _, p := range r.pairs {
		t.Log(p)
	}
	if n := len(r.pairs); n > r.limits.pairs {
		t.Errorf("%d pairs of files name each other, %d at most", n, r.limits.pairs)
	}
}

// houseOpen measures all rooms.
func houseOpen(t *testing.T) (rooms []*houseRoom) {
	if testing.Short() {
		t.Skip("the structure is the same with every Go, and needs the workspace")
	}
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", ".", "./internal/...", "./rangeread", "./dnshedge/...", "./benchmark/...")
	var complaint bytes.Buffer
	list.Stderr = &complaint
	out, err := list.Output()
	require.NoError(t, err, "%s", &complaint)

	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	exports := make(map[string]string)
	var packages []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		require.NoError(t, d.Decode(&p))
		exports[p.ImportPath] = p.Export
		if !p.DepOnly && len(p.GoFiles) > 0 {
			packages = append(packages, p)
		}
	}
	open := func(p string) (io.ReadCloser, error) { return os.Open(exports[p]) }

	for _, p := range packages {
		r := &houseRoom{name: "."}
		if p.ImportPath != module {
			r.name = strings.TrimPrefix(p.ImportPath, module+"/")
		}
		row := slices.IndexFunc(houseRooms, func(l houseLimits) bool {
			match, err := path.Match(l.room, r.name)
			return err == nil && match
		})
		if row < 0 || slices.Contains(houseLaterRooms, r.name) {
			assert.True(t, row >= 0 || !strings.HasPrefix(r.name, "internal/"), "%s has no row in houseRooms", r.name)
			continue
		}
		r.limits = houseRooms[row]
		r.measureFiles(t, p.Dir)
		r.measurePairs(t, p.ImportPath, p.Dir, p.GoFiles, open)
		rooms = append(rooms, r)
	}
	slices.SortFunc(rooms, func(a, b *houseRoom) int { return cmp.Compare(a.name, b.name) })
	require.NotEmpty(t, rooms)
	return rooms
}

// measureFiles finds lines, functions and structs, also in files that are for other systems.
func (r *houseRoom) measureFiles(t *testing.T, dir string) {
	r.lines = make(map[string]int)
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	fset := token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		require.NoError(t, err)
		r.lines[filepath.Base(name)] = bytes.Count(src, []byte("\n"))
		r.measureDecls(fset, file)
	}
	for _, parts := range [][]housePart{r.functions, r.structs} {
		slices.SortFunc(parts, func(a, b housePart) int {
			return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name))
		})
	}
}

func (r *houseRoom) measureDecls(fset *token.FileSet, file *ast.File) {
	place := func(n ast.Node) string {
		p := fset.Position(n.Pos())
		return fmt.Sprintf("%s:%d", filepath.Base(p.Filename), p.Line)
	}
	function := func(name string, n ast.Node, end token.Pos) {
		lines := fset.Position(end).Line - fset.Position(n.Pos()).Line + 1
		r.functions = append(r.functions, housePart{name, place(n), lines})
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			name := f.Name.Name
			if f.Recv != nil {
				name = houseReceiver(f.Recv.List[0].Type) + "." + name
			}
			function(name, f.Type, f.End()) // without the doc comment
		}
		within := "" // the names around the node
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				if _, ok := decl.(*ast.GenDecl); ok { // inside a function it is part of that
					function("func in "+within, n, n.End())
					return true
				}
			case *ast.ValueSpec:
				within = n.Names[0].Name
			case *ast.TypeSpec:
				within = n.Name.Name
			case *ast.StructType:
				name := within
				if name == "" {
					name = "struct without a name"
				}
				if fields := houseFields(n); fields > 0 {
					r.structs = append(r.structs, housePart{name, place(n), fields})
				}
				return false
			}
			return true
		})
	}
}

// houseReceiver returns the name of a method's type.
func houseReceiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return houseReceiver(e.X)
	case *ast.IndexExpr:
		return houseReceiver(e.X)
	case *ast.IndexListExpr:
		return houseReceiver(e.X)
	}
	return e.(*ast.Ident).Name
}

// houseFields counts every name of a field, and an embedded type as one.
// The fields of a struct without a name inside it are its own: what is reached through s.a.b is no smaller than through s.b.
func houseFields(s *ast.StructType) (n int) {
	for _, f := range s.Fields.List {
		names := max(1, len(f.Names))
		own := 1
		ast.Inspect(f.Type, func(node ast.Node) bool {
			inner, ok := node.(*ast.StructType)
			if ok {
				own = max(own, houseFields(inner))
			}
			return !ok
		})
		n += names * own
	}
	return n
}

// measurePairs finds what the files of a package use of each other.
func (r *houseRoom) measurePairs(t *testing.T, importPath, dir string, names []string, open importer.Lookup) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)} // it holds selected fields and methods as well
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", open)}
	pkg, err := conf.Check(importPath, fset, files, info)
	require.NoError(t, err)

	type arrow struct{ from, to string }
	arrows := make(map[arrow]map[string]bool)
	for id, o := range info.Uses {
		name := o.Name()
		switch x := o.(type) { // a field or method of an instance of a generic type is that of the type
		case *types.Func:
			o = x.Origin()
			if recv := x.Signature().Recv(); recv != nil {
				name = "." + name
			}
		case *types.Var:
			o = x.Origin()
			if x.IsField() {
				name = "." + name
			}
		}
		if o.Pkg() != pkg || o.Parent() != pkg.Scope() && !strings.HasPrefix(name, ".") {
			continue
		}
		a := arrow{filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(o.Pos()).Filename)}
		if a.from == a.to {
			continue
		}
		if arrows[a] == nil {
			arrows[a] = make(map[string]bool)
		}
		arrows[a][name] = true
	}
	r.arrows = len(arrows)
	for a, names := range arrows {
		back := arrows[arrow{a.to, a.from}]
		if a.from < a.to && len(back) > 0 {
			r.pairs = append(r.pairs, housePair{a.from, a.to, slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(back))})
		}
	}
	slices.SortFunc(r.pairs, func(a, b housePair) int { return cmp.Or(cmp.Compare(a.a, b.a), cmp.Compare(a.b, b.b)) })
}
